"""Metrics: what has been counted, under the names that Azure Monitor has for a namespace.

Counters are plain numbers that are added to once per command or chunk, never per message.  They
belong to an entity of the directory and go with it; names come in when somebody looks.  Everything
starts at zero with the process, which is what a scraper expects of a counter.

docs/operating/metrics.md has the table of names; a test compares.
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
from twinbus.entities.selections import Selected, SettleRanges
from twinbus.errors import ServerBusy, ServiceError
from twinbus.gateway.counting.meter import EntityMeter, measure

_SERVER_ERROR: Final = 500  # HTTP's line between whose fault it was
_PASSED_MAX: Final = 10_000  # sends after which one that is never answered is waited for no more
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


class Enlisted:
    """A command in a transaction: it is counted, or metered, when that is committed."""

    __slots__ = ("_command", "_counts")

    def __init__(self, counts: EntityMetrics | EntityMeter, command: Command) -> None:
        self._counts = counts
        self._command = command

    def committed(self) -> None:
        self._counts.replied(Reply(self._command, None, None))

    def rolled_back(self) -> None:
        """Nothing has happened."""


class SendLatency:
    """How long sends take until they are durable: of one at a time, and then not of the next few.

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
    """What a gateway counts beside its entities."""

    def __init__(self, clock: Clock) -> None:
        self._namespaces: dict[str, EntityMetrics] = {}
        self.send_latency = SendLatency(clock)
        self.connections_opened = 0
        self.connections_closed = 0

    def of_namespace(self, name: str) -> EntityMetrics:
        """The counters of requests to a namespace that are about no entity."""
        return self._namespaces.setdefault(name, EntityMetrics())
