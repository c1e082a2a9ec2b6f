"""The meter: every operation that Azure would bill, by namespace, entity and kind.

    send         an accepted message: one unit for each 64 KiB, rounded up
    receive      a message handed to a receiver or settled by its number: the same; a receive
                 without a message is one unit
    ping         a successful ping of a pair of namespaces
    management   a completed request about an entity, its messages or its sessions

Settling is free, and so are tokens, links and refused requests.  Every entity has its own counters
(`EntityMeter`); `take` empties them once a second, and tells them the time.  Nothing here may fail
or wait.  Two meters for one entity do no harm: their counts are added up.
"""

from typing import Final

from twinbus.entities.facts import DEAD_LETTER, TRANSFER_DEAD_LETTER
from twinbus.gateway.counting.counters import EntityMeter
from twinbus.metered import Metered

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
    """Detects from the flows of a receiving link which receives ended without a message.

    A receive begins with a grant of credit.  Clients do not say when it ends; the next grant, a
    drain or the end of the link shows it.  If nothing was delivered by then, it was empty.

    A link that the server itself detaches because nothing moves on it ends no receive: the client
    attaches again, and its first grant goes on with what was interrupted.

    The official SDK also grants one more credit when its credit is used up but its receive has not
    quite ended.  That does not begin a receive, unless credit comes one by one anyway.
    """

    __slots__ = ("_credit", "_granted", "_has_begun", "_meter", "_state", "flows")

    def __init__(self, meter: EntityMeter) -> None:
        self._meter = meter
        self._state = _IDLE
        self._granted = 0  # by the flow that began the last receive
        self._credit = 0  # what is left of it
        self._has_begun = False
        self.flows = 0  # how often the client has used the link to ask for messages

    def flowed(self, credit: int, drain: bool) -> None:
        """A flow of the client: so many messages may be sent to it from now on."""
        self.flows += 1
        if credit > 0 and not self._has_begun:
            self._has_begun = True
            self._meter.resumed()
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

    def interrupted(self) -> None:
        """The server detaches the link because nothing moves on it."""
        if self._state == _WAITING:
            self._meter.interrupted()
        self._state = _IDLE
