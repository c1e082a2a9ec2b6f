"""The log: segments of checksummed frames, appended one commit at a time.

A store's log is a row of files `NNNNNNNNNN.log` of one size, numbered from 1 without gaps at the
writing end.  A segment is written from front to back, once; snapshots (`snapshot.py`) use the same
format under another magic.  Every file begins with a header block of 4,096 bytes:

    HEADER   | magic:8s | version:I | number:I | salt:Q | size:Q |
             | log_segment:I | log_offset:I | log_frame:Q | checksum:I |       then zeros

`salt` is random, chosen when the store was made and the same in all of its files.  The three
`log_` fields are zero in a segment; in a snapshot they say where replaying begins.  Then frames
follow, each at a multiple of 512:

    FRAME    | magic:4s | checksum:I | length:I | number:I | frame:Q | kind:B | reserved:7s |
             then `length` bytes of records (`records.py`), then zeros to the next multiple of 512

`number` repeats the file's, `frame` counts through all segments without gaps.  `checksum` is CRC-32
over everything after itself and the records, begun with salt, file number and the frame's offset.
So a frame is valid at exactly one place of one generation of one file: what a recycled file still
holds, or a misdirected write put there, is not.  Frames keep to their own sectors: a torn write
can never touch a frame that was durable before.

A segment ends with a SEAL frame, synced before the first frame of the next segment is written; the
next segment was made durable, name and header, before that.

**Where the log ends.**  At most one frame is ever on its way to the disk.  So the first invalid
frame is a torn one, and the end of the log, if nothing valid comes after it.  If a valid frame of
the same generation lies anywhere behind it, or the next segment has one, the invalid frame had
been durable and is damaged: that is `LogDamaged`, and nothing is changed or deleted.

Only the very last frame could be damaged without leaving such a trace.  So every few seconds, and
when the store is closed, a note is left in the header block of the segment, at byte 512: the log
has reached this place.

    NOTE     | magic:4s | checksum:I | offset:I | number:I | frame:Q |
"""

import struct
from typing import Final

from twinbus.entities.message import Message
from twinbus.errors import LogDamaged, LogPoisoned
from twinbus.limits import SEGMENT_HEADER_BYTES
from twinbus.storage.checksum import crc32
from twinbus.storage.disk import Disk, File
from twinbus.storage.ring import WriteRing

FORMAT_VERSION: Final = 1
SEGMENT_MAGIC: Final = b"TWINLOG\x00"
SNAPSHOT_MAGIC: Final = b"TWINSNAP"
NOTE_MAGIC: Final = b"\xf1TwN"
FRAME_MAGIC: Final = b"\xf1TwF"
SECTOR_SIZE: Final = 512

RECORDS: Final = 1  # kinds of frames
SEAL: Final = 2

HEADER: Final = struct.Struct("<8sIIQQIIQI")
FRAME: Final = struct.Struct("<4sIIIQB7s")
NOTE: Final = struct.Struct("<4sIIIQ")
SEED: Final = struct.Struct("<QII")
CHECKSUM: Final = struct.Struct("<I")
FRAME_SIZE: Final = FRAME.size
NOTE_OFFSET: Final = 512
CHECKED_FROM: Final = 8  # where in a frame the bytes begin that the checksum covers
RESERVED: Final = bytes(7)

WINDOW_SIZE: Final = 1 << 22  # how much a reader takes in at once
FILES_OPEN_MAX: Final = 128  # segments kept open for reading bodies
OFFSET_MASK: Final = (1 << 32) - 1


def segment_name(number: int) -> str:
    return f"{number:010d}.log"


def numbered(names: list[str], suffix: str) -> list[int]:
    """The numbers of all files with this suffix, ascending; other names are none of ours."""
    found = []
    for name in names:
        stem = name.removesuffix(suffix)
        if len(name) == 10 + len(suffix) and name.endswith(suffix) and stem.isdecimal():
            found.append(int(stem))
    return sorted(found)


def aligned(size: int) -> int:
    return (size + SECTOR_SIZE - 1) // SECTOR_SIZE * SECTOR_SIZE


class LogPlace:
    """A place in the log where a frame begins, or will begin."""

    __slots__ = ("frame", "offset", "segment")

    def __init__(self, segment: int, offset: int, frame: int) -> None:
        self.segment = segment
        self.offset = offset
        self.frame = frame

    def position(self) -> int:
        return (self.segment << 32) + self.offset


# --- headers ----------------------------------------------------------------------------------


class Header:
    """What the first block of a file says."""

    __slots__ = ("log_frame", "log_offset", "log_segment", "magic", "number", "salt", "size")

    def __init__(self, magic: bytes, number: int, salt: int, size: int) -> None:
        self.magic = magic
        self.number = number
        self.salt = salt
        self.size = size
        self.log_segment = 0
        self.log_offset = 0
        self.log_frame = 0

    def encode(self) -> bytes:
        fields = HEADER.pack(
            self.magic,
            FORMAT_VERSION,
            self.number,
            self.salt,
            self.size,
            self.log_segment,
            self.log_offset,
            self.log_frame,
            0,
        )[: -CHECKSUM.size]
        return (fields + CHECKSUM.pack(crc32(fields))).ljust(SEGMENT_HEADER_BYTES, b"\x00")


def read_header(file: File, path: str, magic: bytes, number: int) -> Header:
    """The header of this very file, or LogDamaged."""
    data = file.read(SEGMENT_HEADER_BYTES, 0)
    if len(data) < SEGMENT_HEADER_BYTES:
        raise LogDamaged(path, len(data), "the file is too short for its header")
    found_magic, version, found, salt, size, segment, offset, frame, checksum = HEADER.unpack_from(
        data
    )
    if crc32(data[: HEADER.size - CHECKSUM.size]) != checksum:
        raise LogDamaged(path, 0, "the header's checksum is wrong")
    if found_magic != magic or found != number:
        raise LogDamaged(path, 0, "the header belongs to another file")
    if version != FORMAT_VERSION:
        raise LogDamaged(path, 0, f"format version {version} is not known to this twinbus")
    header = Header(magic, found, salt, size)
    header.log_segment = segment
    header.log_offset = offset
    header.log_frame = frame
    return header


def write_note(file: File, salt: int, place: LogPlace) -> None:
    """Leave it in writing that the log has reached this place; durable when this returns."""
    fields = NOTE.pack(NOTE_MAGIC, 0, place.offset, place.segment, place.frame)[CHECKED_FROM:]
    checksum = crc32(fields, crc32(SEED.pack(salt, place.segment, NOTE_OFFSET)))
    note = NOTE_MAGIC + CHECKSUM.pack(checksum) + fields
    file.write([note.ljust(SECTOR_SIZE, b"\x00")], NOTE_OFFSET)
    file.sync()


def read_note(file: File, salt: int, number: int) -> int:
    """The offset that the log had reached in this segment; 0 when there is no valid note."""
    data = file.read(NOTE.size, NOTE_OFFSET)
    if len(data) < NOTE.size:
        return 0
    magic, checksum, offset, segment, _ = NOTE.unpack(data)
    expected = crc32(data[CHECKED_FROM:], crc32(SEED.pack(salt, number, NOTE_OFFSET)))
    if magic != NOTE_MAGIC or checksum != expected or segment != number:
        return 0
    reached: int = offset
    return reached


# --- frames -----------------------------------------------------------------------------------


def encode_frame(
    records: bytes, kind: int, salt: int, number: int, offset: int, frame: int
) -> list[bytes]:
    """A frame for exactly this place, as buffers to write."""
    head = FRAME.pack(FRAME_MAGIC, 0, len(records), number, frame, kind, RESERVED)
    checksum = crc32(head[CHECKED_FROM:], crc32(SEED.pack(salt, number, offset)))
    checksum = crc32(records, checksum)
    head = FRAME_MAGIC + CHECKSUM.pack(checksum) + head[CHECKED_FROM:]
    size = FRAME_SIZE + len(records)
    return [head, records, bytes(aligned(size) - size)]


class Frame:
    """A valid frame as read."""

    __slots__ = ("end", "frame", "kind", "offset", "records")

    def __init__(self, kind: int, frame: int, records: bytes, offset: int, end: int) -> None:
        self.kind = kind
        self.frame = frame
        self.records = records
        self.offset = offset  # of the first record
        self.end = end  # where the next frame begins


class FrameReader:
    """Walks the frames of one file with bounded memory."""

    __slots__ = ("_file", "_number", "_salt", "_size", "_window", "_window_start", "offset")

    def __init__(self, file: File, number: int, salt: int, size: int, offset: int) -> None:
        self._file = file
        self._number = number
        self._salt = salt
        self._size = size
        self._window = b""
        self._window_start = 0
        self.offset = offset  # where the next frame is expected

    def _bytes(self, offset: int, size: int) -> bytes:
        """`size` bytes from `offset`, fewer at the end of the file."""
        start = offset - self._window_start
        if start < 0 or start + size > len(self._window):
            wanted = min(max(size, WINDOW_SIZE), max(self._size - offset, 0))
            self._window = self._file.read(wanted, offset)
            self._window_start = offset
            start = 0
        return self._window[start : start + size]

    def next(self) -> Frame | None:
        """The valid frame at `offset`, and move behind it; None, and stay, if there is none."""
        frame = self._at(self.offset)
        if frame is not None:
            self.offset = frame.end
        return frame

    def _at(self, offset: int) -> Frame | None:
        head = self._bytes(offset, FRAME_SIZE)
        if len(head) < FRAME_SIZE or not head.startswith(FRAME_MAGIC):
            return None
        _, checksum, length, number, frame, kind, reserved = FRAME.unpack(head)
        end = offset + aligned(FRAME_SIZE + length)
        if number != self._number or end > self._size or reserved != RESERVED:
            return None
        if kind not in (RECORDS, SEAL):
            return None
        records = self._bytes(offset, FRAME_SIZE + length)[FRAME_SIZE:]
        if len(records) != length:
            return None
        seed = crc32(SEED.pack(self._salt, self._number, offset))
        if crc32(records, crc32(head[CHECKED_FROM:], seed)) != checksum:
            return None
        return Frame(kind, frame, records, offset + FRAME_SIZE, end)

    def valid_frame_after(self, offset: int) -> int:
        """Offset of the first valid frame behind this place, or −1."""
        at = offset + SECTOR_SIZE
        while at < self._size:
            window = self._file.read(min(WINDOW_SIZE, self._size - at), at)
            found = window.find(FRAME_MAGIC)
            while found >= 0:
                place = at + found
                if place % SECTOR_SIZE == 0 and self._at(place) is not None:
                    return place
                found = window.find(FRAME_MAGIC, found + 1)
            at += max(len(window), SECTOR_SIZE)
        return -1


# --- writing ----------------------------------------------------------------------------------


class Commit:
    """One frame on its way to the disk, and what to do when it is there."""

    __slots__ = (
        "_file",
        "_frame",
        "_log",
        "_offset",
        "_parts",
        "_seal",
        "_segment",
        "end",
        "fact_count",
        "frame_size",
        "kept_bytes",
        "messages",
        "published",
        "size",
        "touched",
    )

    def __init__(self, log: "Log", parts: list[bytes], size: int, fact_count: int) -> None:
        self._log = log
        self._parts = parts
        self.size = size  # bytes of records
        self.fact_count = fact_count
        self.kept_bytes = 0  # of session states and ids against duplicates
        self.messages: list[Message] = []  # whose bodies become durable with it
        self.published: dict[int, int] = {}  # entity id → highest number that becomes visible
        self.touched: dict[int, bool] = {}  # entity ids, in order
        self._segment = log.head_segment
        self._offset = log.head_offset
        self._frame = log.next_frame
        self._file = log.head_file
        self._seal: tuple[File, list[bytes]] | None = log.take_seal()
        self.end = log.advance(size)
        self.frame_size = aligned(FRAME_SIZE + size)

    def begin(self, ring: WriteRing) -> bool:
        """Checksum, and have the ring write and sync it; False: only `write` can do that."""
        if self._seal is not None or self._log.poisoned is not None:
            return False
        return self._file.begin_write_through(ring, self._encode(), self._offset)

    def failed(self, error: OSError) -> LogPoisoned:
        """What the ring says has come of it."""
        return self._log.poison(error)

    def _encode(self) -> list[bytes]:
        records = b"".join(self._parts)
        salt = self._log.salt
        return encode_frame(records, RECORDS, salt, self._segment, self._offset, self._frame)

    def write(self) -> None:
        """Checksum, write, sync.  Any thread; any error poisons the log for good."""
        log = self._log
        log.check_poison()
        try:
            if self._seal is not None:
                file, seal = self._seal
                file.write_through(seal, log.seal_offset)
                file.close()
            self._file.write_through(self._encode(), self._offset)
        except OSError as error:
            raise log.poison(error) from error


class Log:
    """The writing end of the log, and all segments for reading.

    Used by the loop thread, but for `Commit.write`.  `segments` holds the numbers of all segment
    files that may be read; `head_segment` is being written, `ready_segment` is the prepared next
    one (0 while there is none).
    """

    def __init__(self, disk: Disk, salt: int, segment_size: int) -> None:
        self.disk = disk
        self.salt = salt
        self.segment_size = segment_size
        self.end_offset = segment_size - SECTOR_SIZE - FRAME_SIZE  # one sector is the seal's
        self.segments: dict[int, bool] = {}
        self.head_segment = 0
        self.head_offset = 0
        self.next_frame = 1
        self.ready_segment = 0
        self.seal_offset = 0
        self.poisoned: OSError | None = None
        self._pending_seal: tuple[File, list[bytes]] | None = None
        self._head_file: File | None = None
        self._files: dict[int, File] = {}

    def start(self, segment: int, offset: int, frame: int) -> None:
        """Appending begins here."""
        self.head_segment = segment
        self.head_offset = offset
        self.next_frame = frame
        self._head_file = self.disk.open(segment_name(segment))

    @property
    def head_file(self) -> File:
        assert self._head_file is not None, "the log has not been started"
        return self._head_file

    def room(self) -> int:
        """Bytes of records that still fit into the head segment."""
        return self.end_offset - self.head_offset

    def capacity(self) -> int:
        """Bytes of records that fit into an empty segment."""
        return self.end_offset - SEGMENT_HEADER_BYTES

    def records_position(self) -> int:
        """Where the first record of the next frame will lie."""
        return (self.head_segment << 32) + self.head_offset + FRAME_SIZE

    def advance(self, size: int) -> LogPlace:
        """A frame of so many bytes is on its way; returns where the next one will begin."""
        self.head_offset += aligned(FRAME_SIZE + size)
        self.next_frame += 1
        return self.place()

    def place(self) -> LogPlace:
        return LogPlace(self.head_segment, self.head_offset, self.next_frame)

    def rotate(self) -> None:
        """Go on in the ready segment; the next commit seals the old one first."""
        assert self.ready_segment == self.head_segment + 1 and self._pending_seal is None
        seal = encode_frame(
            b"", SEAL, self.salt, self.head_segment, self.head_offset, self.next_frame
        )
        self._pending_seal = (self.head_file, seal)
        self.seal_offset = self.head_offset
        self.start(self.ready_segment, SEGMENT_HEADER_BYTES, self.next_frame + 1)
        self.segments[self.head_segment] = True
        self.ready_segment = 0

    def take_seal(self) -> tuple[File, list[bytes]] | None:
        seal = self._pending_seal
        self._pending_seal = None
        return seal

    def check_poison(self) -> None:
        if self.poisoned is not None:
            raise LogPoisoned(f"an earlier write or sync failed: {self.poisoned}")

    def poison(self, error: OSError) -> LogPoisoned:
        """Remember the failure; the caller raises what this returns."""
        self.poisoned = error
        return LogPoisoned(f"a write or sync failed, nothing more is acknowledged: {error}")

    # -- reading ---------------------------------------------------------------------------------

    def read(self, position: int, size: int) -> bytes:
        """Bytes of a body (or of several neighbours) that are durable."""
        segment = position >> 32
        offset = position & OFFSET_MASK
        if segment not in self.segments:
            raise LogDamaged(segment_name(segment), offset, "the segment of a body is missing")
        data = self._reading(segment).read(size, offset)
        if len(data) != size:
            raise LogDamaged(segment_name(segment), offset, "the segment ends inside a body")
        return data

    def _reading(self, segment: int) -> File:
        if segment == self.head_segment:
            return self.head_file
        file = self._files.get(segment)
        if file is None:
            if len(self._files) >= FILES_OPEN_MAX:
                self.forget(next(iter(self._files)))
            file = self.disk.open(segment_name(segment))
            self._files[segment] = file
        return file

    def forget(self, segment: int) -> None:
        """Close the segment's file if it is open."""
        file = self._files.pop(segment, None)
        if file is not None:
            file.close()

    def abandon(self) -> None:
        """A commit is not going to be written: leave the log as it is."""
        self.poisoned = OSError("a commit was given up")

    def close(self) -> None:
        """Note where the log ends, unless that is unknown, and close all files."""
        if self._head_file is not None:
            if self.poisoned is None and self._pending_seal is None:
                try:
                    write_note(self._head_file, self.salt, self.place())
                except OSError as error:
                    raise self.poison(error) from error
            self._head_file.close()
            self._head_file = None
        for file in self._files.values():
            file.close()
        self._files.clear()
