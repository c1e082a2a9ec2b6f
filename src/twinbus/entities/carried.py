"""What has been carried into an entity from other stores, so that nothing comes twice.

A producer carries messages from a part of another store (gateway/relay.py, gateway/journal.py).  It
names itself and the numbers that its messages have at home.  When it does not hear what became of a
send it sends the same numbers again, also after a restart, and perhaps together with others:

    send 11 … 20   ─▶ stored, but the answer is lost
    send 11 … 25   ─▶ 11 … 20 are dropped, 21 … 25 stored
    send 26 … 30, completed 11 … 25   ─▶ only 26 … 30 have to be remembered

So an entity remembers, for each producer, the numbers that have come and are not known to be
completed at home.  They are stated in one fact with the messages, and are as durable as these.

A number is never forgotten because of time.  Only the oldest go, of producers and of numbers, when
there are too many (see limits.py for why that does no harm).
"""

from typing import Final

from twinbus.limits import CARRIED_NUMBERS_MAX, CARRIED_PRODUCERS_MAX

# Producers whose messages were acknowledged when they came into the journal.  Nobody is there any
# more to be refused: they are let in whatever the entity's size and status.
JOURNAL: Final = "$journal/"


class CarriedNumbers:
    """The numbers that one entity remembers, by producer; who sent last comes last."""

    __slots__ = ("_by_producer",)

    def __init__(self) -> None:
        self._by_producer: dict[str, list[int]] = {}

    def of(self, producer: str) -> list[int]:
        """What has come from this producer, as far as it still matters."""
        found = self._by_producer.get(producer)
        return [] if found is None else found

    def with_these(self, producer: str, numbers: list[int], completed: list[int]) -> list[int]:
        """What has to be remembered after a send; changes nothing."""
        over = set(completed)
        over.update(numbers)
        kept = [number for number in self.of(producer) if number not in over]
        kept.extend(numbers)
        return kept[-CARRIED_NUMBERS_MAX:]

    def remember(self, producer: str, numbers: list[int]) -> None:
        """These are now all the numbers of this producer."""
        by_producer = self._by_producer
        by_producer.pop(producer, None)
        by_producer[producer] = numbers
        while len(by_producer) > CARRIED_PRODUCERS_MAX:
            del by_producer[next(iter(by_producer))]

    def all(self) -> list[tuple[str, list[int]]]:
        """For snapshots; in order, so that remembering them again gives the same."""
        return list(self._by_producer.items())
