"""Emptying a journal: its entries are carried over to where they were meant to go, in order.

Every entity, and every partition, has a lane of its own: nothing overtakes anything on its way to
the same place, and many entries for it go in one send.  With a single lane entries for several
places, as they come in turn, would go one by one, slower than new ones are written under load, and
the journal would never be empty.  journal.py says what the journal is for.
"""

from collections.abc import Callable, Iterable, Sequence

from twinbus.clock import Clock, Now
from twinbus.entities.commands import COMPLETE, DEAD_LETTER
from twinbus.entities.facts import MAIN
from twinbus.entities.forwarded import refusal
from twinbus.entities.message import NEVER_MS, Message, NewMessage, Overlay
from twinbus.entities.partitions import split_partition
from twinbus.errors import EntityNotFound, InvalidOperation, ServiceError
from twinbus.gateway.directory.directory import Directory, Entity, Part
from twinbus.gateway.transfer.carrier import CarriedMessage, Carrier, Lane
from twinbus.gateway.transfer.journal_entries import Entry, decode_entry
from twinbus.links.store_link import StoreLink


class CarriedEntry(CarriedMessage):
    """An entry in hand."""

    __slots__ = ("entry",)

    def __init__(self, message: Message, body: bytes) -> None:
        super().__init__(message, body)
        try:
            self.entry: Entry | None = decode_entry(body)
        except ValueError:
            self.entry = None


class Drain(Carrier):
    """Empties one journal, in order."""

    def __init__(
        self,
        links: Sequence[StoreLink],
        clock: Clock,
        directory: Directory,
        journal: Part,
        name: str,
        on_progress: Callable[[int, int], None],
    ) -> None:
        super().__init__(links, clock, journal, MAIN, name)
        self._directory = directory
        self._on_progress = on_progress
        # By name and making of where they lead.
        self._lane_numbers: dict[tuple[str, int], int] = {}

    def carried_message(self, message: Message, body: bytes) -> CarriedMessage:
        return CarriedEntry(message, body)

    def address(self, carried: CarriedMessage) -> int:
        entry, numbers = _entry(carried), self._lane_numbers
        return numbers.setdefault((entry.name, entry.created_ms), len(numbers))

    def destination(self, lane: Lane) -> Part:
        entry = _entry(lane.sent[0])
        entity = self._entity(entry)
        partition = max(0, split_partition(entry.name)[1])
        if partition >= len(entity.parts):  # made anew without partitions, by a clock set back
            raise _not_found()
        return entity.parts[partition]

    def _entity(self, entry: Entry) -> Entity:
        entity = self._directory.find(split_partition(entry.name)[0])
        if entity is None or entity.description.created_utc_ms != entry.created_ms:
            raise _not_found()
        return entity

    def rewritten(self, carried: CarriedMessage, now: Now) -> NewMessage:
        entry = _entry(carried)
        default_ms = self._entity(entry).description.default_time_to_live_ms
        life_ms = min(entry.time_to_live_ms, default_ms)
        if life_ms != NEVER_MS:  # 0: it has expired, and its entity does with it what it does
            life_ms = max(0, life_ms - (now.utc_ms - entry.accepted_ms))
        new = NewMessage(entry.body, life_ms)
        new.message_id, new.session_id, new.partition_key = entry.keys
        new.producer_key = entry.producer_key
        return new

    def refuse(self, carried: CarriedMessage, error: ServiceError) -> tuple[int, Overlay | None]:
        """With its entity it would be gone, too; anything else is kept for a person to look at."""
        if isinstance(error, EntityNotFound):
            return COMPLETE, None
        return DEAD_LETTER, refusal(error)

    def progressed(self, batch: list[CarriedMessage]) -> None:
        """The oldest that waits is among those in hand, or came after all that are completed."""
        in_hand = [each.accepted_ms for each in _entries(self.in_hand)]
        completed = [each.accepted_ms for each in _entries(batch)]
        accepted_ms = min(in_hand) if in_hand else max(completed, default=0)
        self._on_progress(len(batch), accepted_ms)


def _not_found() -> EntityNotFound:
    return EntityNotFound("The messaging entity could not be found.")


def _entry(carried: CarriedMessage) -> Entry:
    assert isinstance(carried, CarriedEntry)
    if carried.entry is None:
        raise InvalidOperation("The entry of the journal cannot be read.")
    return carried.entry


def _entries(batch: Iterable[CarriedMessage]) -> list[Entry]:
    """Those that can be read."""
    return [
        carried.entry
        for carried in batch
        if isinstance(carried, CarriedEntry) and carried.entry is not None
    ]
