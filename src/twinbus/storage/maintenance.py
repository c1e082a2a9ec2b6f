"""Background work: the next segment, snapshots, and the way of segments back to free space.

The loop thread asks for a task, the maintenance thread runs it, the loop thread finishes it; one
at a time.  A task's `run` sees only what it was given and the disk.

    reserve    take the room of the next segment: a full disk shows here, and from here on sends
               count on it, though to fill it with zeros takes a while
    prepare    the next segment, out of its room or a spare one
    spare      while nothing is written, make a spare one, so that the next burst finds it: writing
               a segment of zeros beside the log slows its syncs down
    snapshot   slice by slice (`snapshot.py`), when the log has grown enough since the last one
    retire     segments before the snapshot that hold no live body become spare, or go
    note       leave it in writing how far the log has come (`log.py`)
    move       a few old messages must not pin segments: when the log is mostly dead, the live
               messages of the emptiest segments are stated again and so move to its head

How full a segment is comes from the census that every snapshot takes anyway, so that removing a
message costs nothing here.  A census is an upper bound until the next one: bodies only ever go.
A segment that was emptied by moving is retired by the snapshot after, which no longer refers to it.
"""

from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from twinbus.clock import Now
from twinbus.entities.message import GONE, Message
from twinbus.errors import LogDamaged, LogPoisoned
from twinbus.storage.disk import Disk, File
from twinbus.storage.log import (
    OFFSET_MASK,
    SEGMENT_MAGIC,
    Header,
    LogPlace,
    segment_name,
    write_note,
)
from twinbus.storage.records import Counters
from twinbus.storage.recovery import FRESH_SUFFIX, SPARE_SUFFIX, check_sealed_segment
from twinbus.storage.snapshot import NO_ROOM, TEMPORARY_NAME, SnapshotFile

SPARES_MAX: Final = 2
SPARES_AHEAD: Final = 1  # made when there is nothing else to do
SPARE_NUMBERS_FROM: Final = 9_000_000_000  # above every segment that will ever be
IDLE_MS: Final = 1_000  # nothing written for so long: nobody minds if we use the disk
FREE_SEGMENTS_MIN: Final = 8  # a disk with less room than this is left alone
MOVE_MESSAGES_MAX: Final = 256  # in one go, so that the loop stays free
MOVE_BYTES_MAX: Final = 1 << 20
MOVE_OVERHEAD_BYTES: Final = 128  # what a message takes in the log beside its body, about
NOTE_INTERVAL_MS: Final = 5_000
RETRY_MS: Final = 1_000  # a full disk is asked again after this


@dataclass(eq=False)
class Task:
    """Work for the maintenance thread.  `full` tells afterwards that the disk had no room."""

    disk: Disk
    full: bool = field(default=False, init=False)

    def run(self) -> None:
        """Do it.  LogPoisoned when the disk fails in any way but being full, or LogDamaged."""
        try:
            self.work()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise LogPoisoned(f"background work on the disk failed: {error}") from error
            self.full = True

    def work(self) -> None:
        raise NotImplementedError


@dataclass(eq=False)
class ReserveSegment(Task):
    """Take the room of the next segment; `PrepareSegment` makes one of it."""

    number: int
    size: int

    def work(self) -> None:
        file = self.disk.create(fresh_name(self.number))
        try:
            file.reserve(self.size)
        except OSError:
            self.disk.remove(fresh_name(self.number))
            raise
        finally:
            file.close()


@dataclass(eq=False)
class PrepareSegment(Task):
    """Make the next segment durable, name and header, before anybody needs it."""

    number: int
    salt: int
    size: int
    spare: int  # number of a spare segment to use, or 0

    def work(self) -> None:
        disk = self.disk
        if self.spare:
            name = spare_name(self.spare)
        else:
            name = fresh_name(self.number)
            disk.preallocate(name, self.size)
        # Under a name that recovery does not read: the header must be durable before the name is.
        file = disk.open(name)
        file.write([Header(SEGMENT_MAGIC, self.number, self.salt, self.size).encode()], 0)
        file.sync()
        file.close()
        disk.rename(name, segment_name(self.number))
        disk.sync_directory()


@dataclass(eq=False)
class MakeSpare(Task):
    """Make a spare segment ahead of need, if the disk has plenty of room."""

    number: int
    size: int
    made: bool = field(default=False, init=False)

    def work(self) -> None:
        if self.disk.free_bytes() < FREE_SEGMENTS_MIN * self.size:
            return
        name = fresh_name(self.number)
        self.disk.preallocate(name, self.size)
        self.disk.rename(name, spare_name(self.number))
        self.made = True


@dataclass(eq=False)
class RemoveSpare(Task):
    """Give up a spare segment: its room is needed for the next snapshot."""

    number: int

    def work(self) -> None:
        self.disk.remove(spare_name(self.number))


def fresh_name(number: int) -> str:
    return f"{number:010d}{FRESH_SUFFIX}"


def spare_name(number: int) -> str:
    return f"{number:010d}{SPARE_SUFFIX}"


@dataclass(eq=False)
class ReserveSnapshot(Task):
    """Make room for the next snapshot while there is some."""

    size: int

    def work(self) -> None:
        if TEMPORARY_NAME in self.disk.names():
            file = self.disk.open(TEMPORARY_NAME)
        else:
            file = self.disk.create(TEMPORARY_NAME)
        try:
            file.reserve(self.size)
        finally:
            file.close()


@dataclass(eq=False)
class WriteSlice(Task):
    """Append a slice to the snapshot."""

    file: SnapshotFile
    parts: list[bytes]

    def work(self) -> None:
        self.file.write(self.parts)


@dataclass(eq=False)
class FinishSnapshot(Task):
    """Complete the snapshot, name it, and let the older one go."""

    file: SnapshotFile
    counters: Counters
    old_numbers: list[int]
    size: int = field(default=0, init=False)

    def work(self) -> None:
        self.size = self.file.finish(self.counters, self.old_numbers)


@dataclass(eq=False)
class Retire(Task):
    """Dead segments become spare, as far as spares are wanted; the others are removed."""

    spares: list[int]
    removed: list[int]

    def work(self) -> None:
        for number in self.spares:
            self.disk.rename(segment_name(number), spare_name(number))
        for number in self.removed:
            self.disk.remove(segment_name(number))
        # A spare gets a new header soon; by then it must not come back under its old name.
        self.disk.sync_directory()


@dataclass(eq=False)
class NoteEnd(Task):
    """Note how far the log has come, so that damage to its last frame would show."""

    salt: int
    place: LogPlace

    def work(self) -> None:
        # A file of its own: the log may go on to the next segment, and close this one, meanwhile.
        with closing(self.disk.open(segment_name(self.place.segment))) as file:
            write_note(file, self.salt, self.place)


@dataclass(eq=False)
class CheckSegment(Task):
    """Compare all checksums of a segment before its messages move.

    They get a new checksum by that: damage that came since the start must not be made right.
    """

    number: int
    salt: int
    size: int

    def work(self) -> None:
        check_sealed_segment(self.disk, self.number, self.salt, self.size)


class ReadBodies(Task):
    """Read the bodies of messages that are to move."""

    def __init__(self, disk: Disk, movable: list[tuple[int, Message]]) -> None:
        super().__init__(disk)
        self.movable = movable
        # As of now: the loop thread may change a message while we read.
        self._positions = [message.position for _, message in movable]
        self.bodies: list[bytes] = []

    def work(self) -> None:
        segment = 0
        file: File | None = None
        try:
            for position, (_, message) in zip(self._positions, self.movable, strict=True):
                if file is None or position >> 32 != segment:
                    if file is not None:
                        file.close()
                    segment = position >> 32
                    file = self.disk.open(segment_name(segment))
                body = file.read(message.length, position & OFFSET_MASK)
                if len(body) != message.length:
                    offset = position & OFFSET_MASK
                    raise LogDamaged(segment_name(segment), offset, "the file ends in a body")
                self.bodies.append(body)
        finally:
            if file is not None:
                file.close()


class Moving:
    """Which messages are still to be moved, and which segments that will have emptied."""

    def __init__(self) -> None:
        self._movable: list[tuple[int, Message]] = []
        self._victims: set[int] = set()
        self.unchecked: list[int] = []  # victims whose checksums are still to be compared
        self.emptied: set[int] = set()

    def start(self, movable: list[tuple[int, Message]], victims: set[int]) -> None:
        movable.sort(key=_position_of)  # reads go through each segment from front to back
        movable.reverse()  # taken from the end
        self._movable = movable
        self._victims = victims
        self.unchecked = sorted(victims)
        self.emptied = set()

    def next_slice(self, room: int) -> list[tuple[int, Message]]:
        """Who goes next and fits; when nobody is left the victims count as emptied."""
        found: list[tuple[int, Message]] = []
        size = 0
        while self._movable and len(found) < MOVE_MESSAGES_MAX and size < MOVE_BYTES_MAX:
            message = self._movable[-1][1]
            if message.state != GONE and message.position >> 32 in self._victims:
                size += message.length + MOVE_OVERHEAD_BYTES
                if size > room:
                    return found
                found.append(self._movable[-1])
            del self._movable[-1]
        if not found:
            self.emptied = self._victims
            self._victims = set()
        return found

    @property
    def active(self) -> bool:
        return bool(self._victims)


def _position_of(entry: tuple[int, Message]) -> int:
    return entry[1].position


class Backoff:
    """When a full disk is asked again."""

    def __init__(self) -> None:
        self.waiting = False
        self._until_ms = 0  # monotonic

    def full(self, now: Now) -> None:
        self.waiting = True
        self._until_ms = now.mono_ms + RETRY_MS

    def over(self, now: Now) -> bool:
        return now.mono_ms >= self._until_ms

    def clear(self) -> None:
        self.waiting = False
