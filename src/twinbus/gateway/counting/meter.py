"""The meter: every operation that Azure would bill, by namespace, entity and kind.

    send         a message that was accepted: each begun 64 KiB of it is a unit
    receive      a message that was handed to a receiver or settled by its number, likewise; a
                 receive without any is one
    ping         a ping of a pair of namespaces that got through
    management   a request about an entity, its messages or its sessions that was carried out

Settling is free, and so are tokens, links and whatever was refused.  Counters are plain numbers,
added to once per command or chunk; `take` empties them once a second.  Nothing here may fail, wait
or know the time.  Two meters of one entity are no harm: what they counted is added up.
"""

from typing import Final

from twinbus.entities.commands import ReceiveDeferred, Reply, Send, Settle
from twinbus.entities.facts import DEAD_LETTER, TRANSFER_DEAD_LETTER
from twinbus.entities.message import NewMessage
from twinbus.entities.selections import Selected, SettleRanges
from twinbus.metered import MANAGEMENT, PING, RECEIVE, SEND, UNIT_BYTES, Metered

METERS_MAX: Final = 20_000  # remembered by name; links keep theirs beyond that
_SUBQUEUES: Final = {
    DEAD_LETTER: "/$deadletterqueue",
    TRANSFER_DEAD_LETTER: "/$transfer/$deadletterqueue",
}

# What a link that receives waits for (ReceiveWatch).
_IDLE: Final = 0
_WAITING: Final = 1
_SERVED: Final = 2


def metered_path(path: str, subqueue: int) -> str:
    """An entity or one of its dead-letter queues, as the meter names it."""
    return path + _SUBQUEUES.get(subqueue, "")


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


class EntityMeter:
    """What is to be billed of one entity, since it was last taken."""

    __slots__ = (
        "_changed",
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
        return [each for each in counted if each.operations]


class Meter:
    """The meters of all entities of a gateway."""

    def __init__(self) -> None:
        self._meters: dict[tuple[str, str], EntityMeter] = {}
        self._changed: list[EntityMeter] = []

    def of(self, namespace: str, entity: str) -> EntityMeter:
        """The meter of an entity; "" is the namespace itself."""
        key = (namespace, entity)
        found = self._meters.get(key)
        if found is None:
            if len(self._meters) >= METERS_MAX:
                self._meters.clear()
            found = self._meters[key] = EntityMeter(namespace, entity, self._changed)
        return found

    def take(self, from_ms: int, to_ms: int) -> list[Metered]:
        """What was counted between these moments; the next time it is what comes from now on."""
        changed = list(self._changed)
        self._changed.clear()
        return [line for meter in changed for line in meter.take(from_ms, to_ms)]


class ReceiveWatch:
    """Tells from the flows of a receiving link which receives have ended without a message.

    A receive begins with a grant of credit.  Clients do not say when it ends: the next grant says
    so, or a drain, or the end of the link.  If nothing was delivered by then, it was an empty one.

    The official SDK also grants one more credit when those it gave are used up and its receive has
    not quite ended.  That begins nothing, unless credit comes one by one anyway.
    """

    __slots__ = ("_credit", "_granted", "_meter", "_state")

    def __init__(self, meter: EntityMeter) -> None:
        self._meter = meter
        self._state = _IDLE
        self._granted = 0  # by the flow that began the last receive
        self._credit = 0  # what is left of it

    def flowed(self, credit: int, drain: bool) -> None:
        """A flow of the client: so many messages may be sent to it from now on."""
        is_used_up = self._state == _SERVED and self._credit <= 0
        self._credit = credit
        if credit <= 0:
            self.ended()
        elif drain:
            if self._state == _IDLE:  # it takes what there is; else what it has begun ends here
                self._state = _WAITING
        elif not (is_used_up and credit == 1 and self._granted > 1):
            if self._state == _WAITING:
                self._meter.received_nothing()
            self._state = _WAITING
            self._granted = credit

    def delivered(self, count: int) -> None:
        """So many messages have gone to the client."""
        self._state = _SERVED
        self._credit -= count

    def ended(self) -> None:
        """Credit was drained or withdrawn, or the link is closed."""
        if self._state == _WAITING:
            self._meter.received_nothing()
        self._state = _IDLE
