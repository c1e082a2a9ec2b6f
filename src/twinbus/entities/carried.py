"""What has been carried into an entity from other stores, so that nothing comes twice.

A carrier brings messages from a part of another store (gateway/transfer/relay.py,
gateway/transfer/journal.py). It names itself and the numbers that its messages have at home. When
it does not hear what became of a send it sends the same numbers again, also after a restart, and
perhaps together with others:

    send 11 … 20   ─▶ stored, but the answer is lost
    send 11 … 25   ─▶ 11 … 20 are dropped, 21 … 25 stored
    send 26 … 30, completed 11 … 25   ─▶ only 26 … 30 have to be remembered

So an entity remembers, for each carrier, the numbers that have come and are not known to be
completed at home.  They are stated in one fact with the messages, and are as durable as these.

A number is never forgotten because of time.  Only the oldest go, of carriers and of numbers, when
there are too many (see limits.py for why that does no harm).
"""

from typing import Final

from twinbus.limits import CARRIED_NUMBERS_MAX, CARRIERS_MAX

# Carriers whose messages were acknowledged when they came into the journal.  Nobody is there any
# more to be refused: they are let in whatever the entity's size and status.
JOURNAL: Final = "$journal/"


class CarriedNumbers:
    """The numbers that one entity remembers, by carrier; who sent last comes last."""

    __slots__ = ("_by_carrier",)

    def __init__(self) -> None:
        self._by_carrier: dict[str, list[int]] = {}

    def of(self, carrier: str) -> list[int]:
        """What has come from this carrier, as far as it still matters."""
        found = self._by_carrier.get(carrier)
        return [] if found is None else found

    def with_these(self, carrier: str, numbers: list[int], completed: list[int]) -> list[int]:
        """What has to be remembered after a send; changes nothing."""
        over = set(completed)
        over.update(numbers)
        kept = [number for number in self.of(carrier) if number not in over]
        kept.extend(numbers)
        return kept[-CARRIED_NUMBERS_MAX:]

    def remember(self, carrier: str, numbers: list[int]) -> None:
        """These are now all the numbers of this carrier."""
        by_carrier = self._by_carrier
        by_carrier.pop(carrier, None)
        by_carrier[carrier] = numbers
        while len(by_carrier) > CARRIERS_MAX:
            del by_carrier[next(iter(by_carrier))]

    def all(self) -> list[tuple[str, list[int]]]:
        """For snapshots; in order, so that remembering them again gives the same."""
        return list(self._by_carrier.items())
