"""Recovery: from files to entities.  Reads everything, writes nothing.

    newest snapshot ─▶ entities, messages        what was at its place in the log
    log from there  ─▶ facts, replayed in order  what happened since

Whatever is there is either as it was written, or torn at the very end of the log, or `LogDamaged`
with the file and the offset.  A file that is missing is damage as well: nothing is ever taken for
empty.  Segments before the snapshot's place are not replayed, but those with live bodies are read
and their checksums compared, so that no damaged body is ever served.
"""

from contextlib import closing
from typing import Final

from twinbus.clock import Now
from twinbus.entities.facts import Fact, Stored
from twinbus.errors import LogDamaged, ServiceError
from twinbus.limits import SEGMENT_HEADER_BYTES
from twinbus.storage.decoder import Decoder
from twinbus.storage.disk import Disk
from twinbus.storage.entity_index import EntityIndex
from twinbus.storage.log import (
    OFFSET_MASK,
    SEAL,
    SEGMENT_MAGIC,
    SNAPSHOT_MAGIC,
    Frame,
    FrameReader,
    Header,
    LogPlace,
    numbered,
    read_header,
    read_note,
    segment_name,
)
from twinbus.storage.records import Counters, kept_bytes
from twinbus.storage.snapshot import TEMPORARY_NAME, Census, snapshot_name

SPARE_SUFFIX: Final = ".spare"  # a segment that holds nothing any more
FRESH_SUFFIX: Final = ".new"  # a file of zeros on its way to become a segment

# What a description or a time may raise that no version of twinbus has written.
_SENSELESS: Final = (ValueError, TypeError, KeyError, AttributeError, OverflowError)


class Recovered:
    """What was found."""

    def __init__(self) -> None:
        self.entities = EntityIndex()
        self.salt = 0
        self.segment_size = 0
        self.snapshot = 0  # number; 0 = none
        self.snapshot_size = 0
        self.old_snapshots: list[int] = []
        self.place = LogPlace(1, SEGMENT_HEADER_BYTES, 1)  # where replaying began
        self.end = LogPlace(1, SEGMENT_HEADER_BYTES, 1)  # where appending goes on
        self.census = Census()  # of the snapshot
        self.segments: list[int] = []  # that hold something
        self.ready_segment = 0
        self.dead_segments: list[int] = []
        self.fact_count = 0


def recover(disk: Disk, now: Now) -> Recovered | None:
    """Everything the directory holds; None if there is no store in it."""
    names = disk.names()
    segments = numbered(names, ".log")
    snapshots = numbered(names, ".snapshot")
    if not segments:
        left = snapshots or numbered(names, SPARE_SUFFIX) or TEMPORARY_NAME in names
        if left:
            raise LogDamaged(
                segment_name(1), 0, "files of a store are here, but its log is missing"
            )
        return None
    found = Recovered()
    if snapshots:
        found.snapshot = snapshots[-1]
        found.old_snapshots = snapshots[:-1]
        _load_snapshot(disk, found, now)
    _check_segments(disk, found, segments)
    _replay(disk, found, segments[-1], now)
    for queue in found.entities.by_id.values():
        queue.publish(queue.last_sequence_number)
        if queue.history is not None:
            queue.history.forget_old(now.utc_ms)
    return found


# --- the snapshot -----------------------------------------------------------------------------


def _load_snapshot(disk: Disk, found: Recovered, now: Now) -> None:
    path = snapshot_name(found.snapshot)
    size = disk.size(path)
    with closing(disk.open(path)) as file:
        header = read_header(file, path, SNAPSHOT_MAGIC, found.snapshot)
        found.salt = header.salt
        found.place = LogPlace(header.log_segment, header.log_offset, header.log_frame)
        reader = FrameReader(file, found.snapshot, header.salt, size, SEGMENT_HEADER_BYTES)
        expected = 1
        complete = False
        while True:
            frame = reader.next()
            if frame is None or frame.frame != expected:
                raise LogDamaged(
                    path, reader.offset, "a part of the snapshot is damaged or missing"
                )
            expected += 1
            if frame.kind == SEAL:
                break
            for fact in Decoder(frame.records, path, frame.offset, found.snapshot).facts():
                complete = isinstance(fact, Counters)
                if isinstance(fact, Stored):
                    found.census.count(fact.messages)
                found.census.kept_bytes += kept_bytes(fact)
                _apply(found.entities, fact, now, path, frame)
        if not complete or reader.offset != size:
            raise LogDamaged(path, reader.offset, "the snapshot does not end where it should")
    found.snapshot_size = size


def _apply(entities: EntityIndex, fact: Fact, now: Now, path: str, frame: Frame) -> None:
    try:
        entities.replay(fact, now)
    except (*_SENSELESS, ServiceError) as error:
        reason = f"a record that makes no sense: {error}"
        raise LogDamaged(path, frame.offset, reason) from error


# --- the log ----------------------------------------------------------------------------------


def _check_segments(disk: Disk, found: Recovered, present: list[int]) -> None:
    """Are all segments there, of one size and one store, and are old bodies as they were?"""
    first = found.place.segment
    if found.snapshot == 0 and present[0] != 1:
        raise LogDamaged(
            segment_name(present[0]),
            0,
            "the log begins here, but the snapshot before it is missing",
        )
    live = found.census.live_bytes
    needed = sorted(number for number in live if number < first)
    for number in needed + list(range(first, max(present[-1], first) + 1)):
        path = segment_name(number)
        if number not in present:
            raise LogDamaged(path, 0, "the segment is missing")
        header = _segment_header(disk, number)
        if found.salt == 0:
            found.salt = header.salt
        if found.segment_size == 0:
            found.segment_size = header.size
        if header.salt != found.salt or header.size != found.segment_size:
            raise LogDamaged(path, 0, "the segment belongs to another store")
    for number in live:
        if number > first:
            raise LogDamaged(snapshot_name(found.snapshot), 0, f"refers to segment {number}")
    for number in needed:
        check_sealed_segment(disk, number, found.salt, found.segment_size)
    found.segments = needed
    found.dead_segments = [n for n in present if n < first and n not in live]


def _segment_header(disk: Disk, number: int) -> Header:
    path = segment_name(number)
    with closing(disk.open(path)) as file:
        header = read_header(file, path, SEGMENT_MAGIC, number)
    size = disk.size(path)
    if size != header.size or size > OFFSET_MASK:
        raise LogDamaged(path, min(size, header.size), f"the file has {size} bytes")
    return header


def check_sealed_segment(disk: Disk, number: int, salt: int, size: int) -> None:
    """Every frame up to the seal must be valid: its bodies are still served."""
    path = segment_name(number)
    with closing(disk.open(path)) as file:
        reader = FrameReader(file, number, salt, size, SEGMENT_HEADER_BYTES)
        previous = -1
        while True:
            frame = reader.next()
            if frame is None or previous not in (-1, frame.frame - 1):
                raise LogDamaged(path, reader.offset, "a frame is damaged")
            previous = frame.frame
            if frame.kind == SEAL:
                return


def _replay(disk: Disk, found: Recovered, last: int, now: Now) -> None:
    number = found.place.segment
    frame = -1  # the first segment may begin before the snapshot's place: any number will do
    while True:
        found.segments.append(number)
        sealed, frame = _replay_segment(disk, found, number, frame, now)
        if not sealed:
            break
        if number == last:
            raise LogDamaged(segment_name(number + 1), 0, "the segment is missing")
        number += 1
        found.end = LogPlace(number, SEGMENT_HEADER_BYTES, frame)
    if last > number + 1:
        raise LogDamaged(segment_name(number), found.end.offset, "the segment is not sealed")
    if last == number + 1:
        _check_unused(disk, found, last)
        found.ready_segment = last


def _replay_segment(
    disk: Disk, found: Recovered, number: int, expected: int, now: Now
) -> tuple[bool, int]:
    """Replay one segment; returns whether it is sealed, and the number of the next frame."""
    path = segment_name(number)
    place = found.place
    start = SEGMENT_HEADER_BYTES
    if number == place.segment:  # what lies before the place is checked, but not replayed
        start = place.offset
    with closing(disk.open(path)) as file:
        reader = FrameReader(file, number, found.salt, found.segment_size, SEGMENT_HEADER_BYTES)
        while True:
            offset = reader.offset
            if number == place.segment and offset == start:
                if expected not in (-1, place.frame):
                    raise LogDamaged(path, offset, f"frame {expected}, not the snapshot's")
                expected = place.frame
            frame = reader.next()
            if frame is None:
                _check_end(reader, path, offset, max(start, read_note(file, found.salt, number)))
                found.end = LogPlace(number, offset, expected)
                return False, expected
            if expected not in (-1, frame.frame):
                raise LogDamaged(path, offset, f"frame {frame.frame} instead of {expected}")
            expected = frame.frame + 1
            if offset < start:
                if frame.end > start or frame.kind == SEAL:
                    raise LogDamaged(path, offset, "the snapshot's place is not in the log")
                continue
            if frame.kind == SEAL:
                return True, expected
            for fact in Decoder(frame.records, path, frame.offset, number).facts():
                found.fact_count += 1
                _apply(found.entities, fact, now, path, frame)


def _check_end(reader: FrameReader, path: str, offset: int, reached: int) -> None:
    """An invalid frame ends the log only if the log is not known to have gone on behind it."""
    later = reader.valid_frame_after(offset)
    if later >= 0:
        raise LogDamaged(path, offset, f"a frame is damaged; a valid one follows at byte {later}")
    if offset < reached:
        raise LogDamaged(path, offset, f"a frame is damaged; the log had reached byte {reached}")


def _check_unused(disk: Disk, found: Recovered, number: int) -> None:
    """The prepared segment behind the end of the log must not have been written."""
    path = segment_name(number)
    with closing(disk.open(path)) as file:
        reader = FrameReader(file, number, found.salt, found.segment_size, SEGMENT_HEADER_BYTES)
        if reader.next() is not None or reader.valid_frame_after(SEGMENT_HEADER_BYTES) >= 0:
            name = segment_name(number - 1)
            reason = f"the log ends here, but {path} goes on"
            raise LogDamaged(name, found.end.offset, reason)
