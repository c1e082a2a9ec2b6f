"""Counters of an entity: for monitoring (metrics) and for billing (meter.py).

Counters are plain numbers, updated once per command or chunk, never per message.

    EntityMetrics   under the names that Azure Monitor has for a namespace.  They belong to an
                    entity of the directory and go with it; names are added when read.
                    All start at zero with the process, as a scraper expects of a counter.
    EntityMeter     operations that Azure would bill, until the meter takes them

docs/operating/metrics.md has the table of names; a test compares them.
"""

from typing import Final

from twinbus.clock import Clock
from twinbus.entities.commands import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DEFER,
    Command,
    ReceiveDeferred,
    Reply,
    Send,
    Settle,
)
from twinbus.entities.message import NewMessage
from twinbus.entities.selections import Selected, SettleRanges
from twinbus.errors import ServerBusy, ServiceError
from twinbus.metered import MANAGEMENT, PING, RECEIVE, SEND, UNIT_BYTES, Metered

_SERVER_ERROR: Final = 500  # HTTP's line between whose fault it was
_PASSED_MAX: Final = 10_000  # sends after which one that is never answered is waited for no more
# A client whose idle link the server has detached in the middle of a receive is back in seconds:
# the SDKs' retries take up to 12 s.  One that comes later has come for another receive.
RETURN_MS_MAX: Final = 60_000
_LEFT_OUT: Final = 15  # sends after each one that was timed: one in sixteen tells enough

# Attribute of EntityMetrics → name, meaning.
COUNTERS: Final = (
    ("incoming_requests", "servicebus_incoming_requests_total", "Requests."),
    ("successful_requests", "servicebus_successful_requests_total", "Requests that succeeded."),
    ("server_errors", "servicebus_server_errors_total", "Requests that failed by our fault."),
    ("user_errors", "servicebus_user_errors_total", "Requests that failed by the client's."),
    ("throttled_requests", "servicebus_throttled_requests_total", "Requests told to come later."),
    ("incoming_messages", "servicebus_incoming_messages_total", "Messages sent to the entity."),
    ("incoming_bytes", "servicebus_incoming_bytes_total", "Their size, encoded."),
    ("outgoing_messages", "servicebus_outgoing_messages_total", "Messages handed to receivers."),
    ("outgoing_bytes", "servicebus_outgoing_bytes_total", "Their size, encoded."),
    ("completed", "servicebus_complete_message_total", "Messages completed."),
    ("abandoned", "servicebus_abandon_message_total", "Messages abandoned."),
    ("deferred", "twinbus_defer_message_total", "Messages deferred."),
    ("dead_lettered", "twinbus_dead_letter_message_total", "Messages dead-lettered by receivers."),
)


def measure(messages: list[NewMessage]) -> tuple[int, int, int]:
    """Of messages that were sent: size and units of those that are no pings, the pings."""
    size = pings = 0
    units = len(messages)
    for message in messages:
        length = len(message.body)
        size += length
        if length > UNIT_BYTES:
            units += (length - 1) // UNIT_BYTES
        key = message.producer_key
        if key is not None and key.is_ping:
            pings += 1
            size -= length
    return size, units - pings, pings


class EntityMetrics:
    """What has happened at one entity."""

    __slots__ = (
        "abandoned",
        "completed",
        "dead_lettered",
        "deferred",
        "incoming_bytes",
        "incoming_messages",
        "outgoing_bytes",
        "outgoing_messages",
        "server_errors",
        "successful_requests",
        "throttled_requests",
        "user_errors",
    )

    def __init__(self) -> None:
        self.successful_requests = 0
        self.server_errors = 0
        self.user_errors = 0
        self.throttled_requests = 0
        self.incoming_messages = 0
        self.incoming_bytes = 0
        self.outgoing_messages = 0
        self.outgoing_bytes = 0
        self.completed = 0
        self.abandoned = 0
        self.deferred = 0
        self.dead_lettered = 0

    @property
    def incoming_requests(self) -> int:
        """All that were answered, one way or another."""
        refused = self.server_errors + self.user_errors + self.throttled_requests
        return self.successful_requests + refused

    @property
    def is_used(self) -> bool:
        """Has anything happened since the start?"""
        return self.incoming_requests > 0 or self.outgoing_messages > 0

    def answered(self, error: ServiceError | None) -> None:
        """A request has been answered."""
        if error is None:
            self.successful_requests += 1
        elif isinstance(error, ServerBusy):
            self.throttled_requests += 1
        elif error.http_status >= _SERVER_ERROR:
            self.server_errors += 1
        else:
            self.user_errors += 1

    def replied(self, reply: Reply) -> None:
        """A command has been answered: the same, with what it has done."""
        if reply.error is not None:
            self.answered(reply.error)
            return
        self.successful_requests += 1
        command, result = reply.command, reply.result
        if isinstance(command, Settle):  # the usual case: many clients settle one by one
            count = len(command.locks)
            if isinstance(result, list):
                count -= sum([error is not None for error in result])
            self.settled(command.outcome, count)
        elif isinstance(command, Send):
            size, _, pings = measure(command.messages)
            self.sent(len(command.messages) - pings, size)
        elif isinstance(command, ReceiveDeferred) and isinstance(result, list):
            self.delivered(len(result), sum([len(each.body) for each in result]))
        elif isinstance(command, SettleRanges) and isinstance(result, Selected):
            self.settled(COMPLETE if command.overlay is None else DEAD_LETTER, result.count)

    def sent(self, count: int, size_bytes: int) -> None:
        """So many messages have become durable."""
        self.incoming_messages += count
        self.incoming_bytes += size_bytes

    def settled(self, outcome: int, count: int) -> None:
        """So many messages were settled in this way."""
        if outcome == COMPLETE:
            self.completed += count
        elif outcome == ABANDON:
            self.abandoned += count
        elif outcome == DEFER:
            self.deferred += count
        elif outcome == DEAD_LETTER:
            self.dead_lettered += count

    def delivered(self, count: int, size_bytes: int) -> None:
        """So many messages were handed to a receiver."""
        self.outgoing_messages += count
        self.outgoing_bytes += size_bytes


class EntityMeter:
    """What one entity has to be billed for since the last `take`."""

    __slots__ = (
        "_changed",
        "_interrupted_ms",
        "_is_changed",
        "empty_receives",
        "entity",
        "managed",
        "namespace",
        "pings",
        "receive_units",
        "receives",
        "send_units",
        "sends",
    )

    def __init__(self, namespace: str, entity: str, changed: "list[EntityMeter]") -> None:
        self.namespace = namespace
        self.entity = entity
        self._changed = changed  # the meter's own list
        self._is_changed = False
        # Since when receives that the server has interrupted wait to go on; 0: since just now.
        self._interrupted_ms: list[int] = []
        self.sends = 0
        self.send_units = 0
        self.receives = 0
        self.receive_units = 0
        self.empty_receives = 0  # of the receives
        self.pings = 0
        self.managed = 0

    def sent(self, count: int, units: int, pings: int) -> None:
        """So many messages were accepted, and so many pings (`measure`)."""
        self.sends += count
        self.send_units += units
        self.pings += pings
        if not self._is_changed:
            self._change()

    def delivered(self, bodies: list[bytes], size_bytes: int) -> None:
        """These were handed to a receiver; together they are not larger than `size_bytes`."""
        count = len(bodies)
        units = count
        if size_bytes > UNIT_BYTES:  # else none of them can be larger
            for body in bodies:
                size = len(body)
                if size > UNIT_BYTES:
                    units += (size - 1) // UNIT_BYTES
        self.receives += count
        self.receive_units += units
        if not self._is_changed:
            self._change()

    def received_nothing(self) -> None:
        """A receive has ended without a message."""
        self.receives += 1
        self.receive_units += 1
        self.empty_receives += 1
        self._change()

    def interrupted(self) -> None:
        """The server has detached a link that waited for messages: its receive has not ended."""
        self._interrupted_ms.append(0)
        self._change()

    def resumed(self) -> None:
        """A new link waits for messages: if one was interrupted, it is that receive.

        Whose it was does not matter: what is counted is the same.
        """
        if self._interrupted_ms:
            self._interrupted_ms.pop()

    def managed_once(self) -> None:
        """A request was carried out."""
        self.managed += 1
        self._change()

    def replied(self, reply: Reply) -> None:
        """A request about messages was answered."""
        command, result = reply.command, reply.result
        if reply.error is not None or isinstance(command, Settle):
            return
        if isinstance(command, Send):
            _, units, pings = measure(command.messages)
            self.sent(len(command.messages) - pings, units, pings)
        elif isinstance(command, ReceiveDeferred) and isinstance(result, list):
            if result:
                bodies = [each.body for each in result]
                self.delivered(bodies, sum([len(body) for body in bodies]))
            else:
                self.received_nothing()
        elif isinstance(command, SettleRanges) and isinstance(result, Selected) and result.count:
            self.receives += result.count
            self.receive_units += result.units
            self._change()
        else:
            self.managed_once()

    def _change(self) -> None:
        if not self._is_changed:
            self._is_changed = True
            self._changed.append(self)

    def take(self, from_ms: int, to_ms: int) -> list[Metered]:
        """What was counted between these moments; from here on it begins at zero."""
        self._give_up_interrupted(to_ms)
        name, path = self.namespace, self.entity
        receives, units, empty = self.receives, self.receive_units, self.empty_receives
        counted = [
            Metered(from_ms, to_ms, name, path, SEND, self.sends, self.send_units),
            Metered(from_ms, to_ms, name, path, RECEIVE, receives, units, empty),
            Metered(from_ms, to_ms, name, path, PING, self.pings, self.pings),
            Metered(from_ms, to_ms, name, path, MANAGEMENT, self.managed, self.managed),
        ]
        self.sends = self.send_units = self.receives = self.receive_units = 0
        self.empty_receives = self.pings = self.managed = 0
        self._is_changed = False
        if self._interrupted_ms:
            self._change()  # to be looked at again
        return [each for each in counted if each.operations]

    def _give_up_interrupted(self, now_ms: int) -> None:
        """Those who have not come back by now got nothing."""
        since = [each or now_ms for each in self._interrupted_ms]
        # A clock that was set back makes nobody wait for longer.
        self._interrupted_ms = [each for each in since if 0 <= now_ms - each < RETURN_MS_MAX]
        for _ in range(len(since) - len(self._interrupted_ms)):
            self.received_nothing()


class Enlisted:
    """A command in a transaction: counted or metered when the transaction commits."""

    __slots__ = ("_command", "_counts")

    def __init__(self, counts: EntityMetrics | EntityMeter, command: Command) -> None:
        self._counts = counts
        self._command = command

    def committed(self) -> None:
        self._counts.replied(Reply(self._command, None, None))

    def rolled_back(self) -> None:
        """Nothing has happened."""


class SendLatency:
    """How long sends take to become durable, sampled: one at a time, then none of the next few.

    That costs next to nothing.
    """

    __slots__ = ("_begun_ms", "_clock", "_command", "_left_out", "_passed", "count", "sum_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._command: Send | None = None
        self._begun_ms = 0
        self._passed = 0
        self._left_out = 0  # how many more are not timed
        self.count = 0
        self.sum_ms = 0

    def begin(self, command: Send) -> None:
        """A send goes off; if no other one is being timed, it is."""
        if self._left_out:
            self._left_out -= 1
        elif self._command is None or self._passed == _PASSED_MAX:
            self._command = command
            self._passed = 0
            self._begun_ms = self._clock.now().mono_ms
        else:
            self._passed += 1

    def end(self, command: Send) -> None:
        """It is answered."""
        if command is self._command:
            self._command = None
            self._left_out = _LEFT_OUT
            self.count += 1
            self.sum_ms += self._clock.now().mono_ms - self._begun_ms


class Metrics:
    """What a gateway counts besides its entities."""

    def __init__(self, clock: Clock) -> None:
        self._namespaces: dict[str, EntityMetrics] = {}
        self.send_latency = SendLatency(clock)
        self.connections_opened = 0
        self.connections_closed = 0

    def of_namespace(self, name: str) -> EntityMetrics:
        """The counters of requests to a namespace that are about no entity."""
        return self._namespaces.setdefault(name, EntityMetrics())
