"""Emptying a journal: its entries are carried over to where they were meant to go, in order.

All entries of a journal take one lane, so nothing overtakes anything, and a send that waits for its
store holds up those behind it.  What the journal is for is told in journal.py.
"""

from collections.abc import Callable, Sequence

from twinbus.broker.forwarding import refusal
from twinbus.broker.links import StoreLink
from twinbus.clock import Clock, Now
from twinbus.entities.commands import COMPLETE, DEAD_LETTER
from twinbus.entities.facts import MAIN
from twinbus.entities.message import NEVER_MS, Message, NewMessage, Overlay
from twinbus.entities.partitions import split_partition
from twinbus.errors import EntityNotFound, InvalidOperation, ServiceError
from twinbus.gateway.carrying import Carrier, Lane, Letter
from twinbus.gateway.directory import Directory, Entity, Part
from twinbus.gateway.journal_entries import Entry, decode_entry


class JournalLetter(Letter):
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
        producer: str,
        on_progress: Callable[[int, int], None],
    ) -> None:
        super().__init__(links, clock, journal, MAIN, producer)
        self._directory = directory
        self._on_progress = on_progress

    def letter(self, message: Message, body: bytes) -> Letter:
        return JournalLetter(message, body)

    def address(self, letter: Letter) -> int:
        _entry(letter)
        return 0  # one lane, whatever the entity: first come, first served

    def destination(self, lane: Lane) -> Part:
        name = _entry(lane.sent[0]).name
        entity = self._entity(name)
        partition = max(0, split_partition(name)[1])
        if partition >= len(entity.parts):  # it has been made anew without partitions
            raise _not_found()
        return entity.parts[partition]

    def _entity(self, name: str) -> Entity:
        entity = self._directory.find(split_partition(name)[0])
        if entity is None:
            raise _not_found()
        return entity

    def goes_with(self, first: Letter, other: Letter) -> bool:
        return _entry(first).name == _entry(other).name

    def rewritten(self, letter: Letter, now: Now) -> NewMessage:
        entry = _entry(letter)
        default_ms = self._entity(entry.name).description.default_time_to_live_ms
        life_ms = min(entry.time_to_live_ms, default_ms)
        if life_ms != NEVER_MS:  # 0: it has expired, and its entity does with it what it does
            life_ms = max(0, life_ms - (now.utc_ms - entry.accepted_ms))
        new = NewMessage(entry.body, life_ms)
        new.message_id, new.session_id, new.partition_key = entry.keys
        return new

    def refuse(self, letter: Letter, error: ServiceError) -> tuple[int, Overlay | None]:
        """With its entity it would be gone, too; anything else is kept for a person to look at."""
        if isinstance(error, EntityNotFound):
            return COMPLETE, None
        return DEAD_LETTER, refusal(error)

    def progressed(self, letters: list[Letter]) -> None:
        accepted = [
            letter.entry.accepted_ms
            for letter in letters
            if isinstance(letter, JournalLetter) and letter.entry is not None
        ]
        self._on_progress(len(letters), max(accepted, default=0))


def _not_found() -> EntityNotFound:
    return EntityNotFound("The messaging entity could not be found.")


def _entry(letter: Letter) -> Entry:
    assert isinstance(letter, JournalLetter)
    if letter.entry is None:
        raise InvalidOperation("The entry of the journal cannot be read.")
    return letter.entry
