"""What has come from producers that number their messages, so that nothing comes twice.

A client that does not hear what became of a send sends the message again, perhaps by another way
(docs/designs/2026-11-pairing.md).  If it gives every message a key once, its own name and a number,
and every copy keeps the key, then the entity knows a copy when it sees one:

    producer "a", 1 … 100 ─▶ stored        {"a": [1, 101]}
    producer "a", 100     ─▶ dropped
    producer "a", 205     ─▶ stored        {"a": [1, 101, 205, 206]}

The numbers of a producer are kept as bounds: where a run of numbers begins and where it has ended,
in turns, rising.  A number has come if an odd count of bounds is not above it.

Numbers are stated in one fact with the messages they belong to, only those that are new: having
come is for ever, so adding them once more changes nothing.  What is forgotten, because there are
too many producers or runs, can only let a copy pass.  This module must never take a message for a
copy whose number has not come.

A producer whose name begins with `~` is a passing one: it numbers one piece of work (what a chunk
of a Spark task has for one partition) and never sends again.  They are many, and must not push out
those that last.

Not to be confused with carried.py, where the stores of one server carry messages to each other.
"""

from bisect import bisect_left, bisect_right
from typing import Final

from twinbus.entities.message import NewMessage
from twinbus.limits import ARRIVAL_PASSING_MAX, ARRIVAL_PRODUCERS_MAX, ARRIVAL_RANGES_MAX

PASSING: Final = "~"


def add_range(bounds: list[int], first: int, end: int) -> None:
    """Add the numbers from `first` to before `end`; neighbours grow together."""
    if bounds and bounds[-1] == first:  # the next one of a producer that loses none: nearly always
        bounds[-1] = end
        return
    left = bisect_left(bounds, first)
    right = bisect_right(bounds, end)
    made: list[int] = []
    if left & 1 == 0:  # it begins where nothing was
        made.append(first)
    if right & 1 == 0:
        made.append(end)
    bounds[left:right] = made


def has_number(bounds: list[int], number: int) -> bool:
    """Is it one of the numbers within these bounds?"""
    if not bounds or bounds[-1] <= number:
        return False
    return bisect_right(bounds, number) & 1 == 1


class Screened:
    """A send without its pings and without copies of what has come."""

    __slots__ = ("_places", "_total", "arrived", "fresh", "ping_bytes", "ping_count")

    def __init__(self, total: int) -> None:
        self.fresh: list[NewMessage] = []
        self.arrived: dict[str, list[int]] = {}  # by producer: bounds of the numbers that are new
        self.ping_count = 0
        self.ping_bytes = 0
        self._places: list[int] = []
        self._total = total

    def keep(self, place: int, message: NewMessage) -> None:
        """This one is new."""
        self._places.append(place)
        self.fresh.append(message)

    def spread(self, numbers: list[int]) -> list[int]:
        """The numbers of the fresh ones at their places in the send; 0 for the others."""
        found = [0] * self._total
        for place, number in zip(self._places, numbers, strict=True):
            found[place] = number
        return found


class Arrivals:
    """The numbers that one entity remembers, by producer; who sent last comes last."""

    __slots__ = ("_bounds_max", "_lasting", "_passing", "_passing_max", "_producers_max")

    def __init__(
        self,
        producers_max: int = ARRIVAL_PRODUCERS_MAX,
        ranges_max: int = ARRIVAL_RANGES_MAX,
        passing_max: int = ARRIVAL_PASSING_MAX,
    ) -> None:
        self._lasting: dict[str, list[int]] = {}
        self._passing: dict[str, list[int]] = {}
        self._producers_max = producers_max  # of those that last
        self._passing_max = passing_max
        self._bounds_max = 2 * ranges_max

    def screen(self, messages: list[NewMessage]) -> Screened:
        """Tell what is new from pings and copies, also of each other.  Changes nothing."""
        found = Screened(len(messages))
        for place, message in enumerate(messages):
            key = message.producer_key
            if key is None:
                found.keep(place, message)
            elif key.is_ping:
                found.ping_count += 1
                found.ping_bytes += len(message.body)
            else:
                arrived = found.arrived.setdefault(key.producer, [])
                if self.has(key.producer, key.number) or has_number(arrived, key.number):
                    continue
                add_range(arrived, key.number, key.number + 1)
                found.keep(place, message)
        return found

    def has(self, producer: str, number: int) -> bool:
        """Has this number come?"""
        bounds = self._of_kind(producer).get(producer)
        return bounds is not None and has_number(bounds, number)

    def add(self, producer: str, added: list[int]) -> None:
        """The numbers within these bounds have come."""
        by_producer = self._of_kind(producer)
        bounds = by_producer.pop(producer, None)
        if bounds is None:
            bounds = []
        by_producer[producer] = bounds
        for at in range(0, len(added), 2):
            add_range(bounds, added[at], added[at + 1])
        if len(bounds) > self._bounds_max:
            del bounds[: len(bounds) - self._bounds_max]
        most = self._passing_max if by_producer is self._passing else self._producers_max
        while len(by_producer) > most:
            del by_producer[next(iter(by_producer))]

    def producers(self) -> list[str]:
        """For snapshots; in order, so that adding them again gives the same."""
        return [*self._lasting, *self._passing]

    def bounds_of(self, producer: str) -> list[int]:
        """All numbers of a producer that are remembered; none if it has been forgotten."""
        found = self._of_kind(producer).get(producer)
        return [] if found is None else found

    def _of_kind(self, producer: str) -> dict[str, list[int]]:
        return self._passing if producer.startswith(PASSING) else self._lasting
