"""Metered usage on disk: one file a day, `2026-11-16.jsonl`, a line for each sum (metered.py).

Lines are appended, and durable when `append` returns.  Within an hour they are sums of seconds;
when the hour is over, or they take too much room, they are gathered: one line for each entity and
kind takes their place.  For that the file is written anew (`….jsonl.new`, synced, then renamed), so
that the meter of a busy server stays small.  What is appended ends, by spaces, where a sector ends:
a torn write never touches what was durable before.

No message may be lost over this.  A torn end of a file is cut off when it is opened, and damaged
lines elsewhere are skipped.  After an OSError the state of the file is unknown: it is opened again
and cut back to what was durable, and the caller has to append its lines again.
"""

import contextlib
import re
from collections.abc import Callable
from typing import Final

from twinbus.metered import DAY_MS, HOUR_MS, Metered, Sums, decode_line, encode_line, iso
from twinbus.storage.disk import Disk, File
from twinbus.storage.log import SECTOR_SIZE

LOOSE_BYTES_MAX: Final = 4 << 20  # lines of one hour that have not been gathered
_NAME: Final = re.compile(r"\d{4}-\d{2}-\d{2}\.jsonl", re.ASCII)
_SUFFIX: Final = ".jsonl"
_NEW: Final = ".new"


class MeterLog:
    """The files of a meter.  For one thread at a time."""

    def __init__(self, open_disk: Callable[[], Disk], days: int = 0) -> None:
        """Nothing is touched before the first `append`.  `days`: older files go; 0 keeps all."""
        self._open_disk = open_disk
        self._days = days
        self._disk: Disk | None = None
        self._file: File | None = None
        self._name = ""
        self._size = 0  # what is durable of it
        self._durable: dict[str, int] = {}  # the same of files that were let go after an error
        self._hour = -1
        self._hour_start = 0  # where the lines of this hour begin
        self._hour_sums = Sums()  # what they come to
        self._loose_bytes_max = LOOSE_BYTES_MAX

    def append(self, lines: list[Metered]) -> None:
        """Make these durable, or OSError: then none of them is.  All began in the same hour."""
        try:
            self._turn_to(lines[0])
            self._write(lines)
        except OSError:
            self._let_go()
            raise
        if self._size - self._hour_start > self._loose_bytes_max:
            try:
                self._gather()
            except OSError:  # these lines are durable all the same
                self._let_go()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._disk is not None:
            self._disk.close()
        self._file = self._disk = None

    def _write(self, lines: list[Metered]) -> None:
        assert self._file is not None
        data = _encode(lines, self._size)
        self._file.write([data], self._size)
        self._file.sync()
        self._size += len(data)
        self._hour_sums.add(lines)

    def _turn_to(self, line: Metered) -> None:
        """Have the file of this day open, and be in this hour of it."""
        name, hour = line.day + _SUFFIX, line.from_ms // HOUR_MS
        if self._file is not None and name != self._name:
            self._gather()
            self._close_file()
        if self._file is None:
            self._open(name)
            self._remove_old(line.from_ms)
        if hour != self._hour:
            self._gather()
            self._begin_hour(hour, self._size, [])

    def _begin_hour(self, hour: int, start: int, lines: list[Metered]) -> None:
        self._hour, self._hour_start, self._hour_sums = hour, start, Sums()
        self._hour_sums.add(lines)
        self._loose_bytes_max = LOOSE_BYTES_MAX

    # -- files -------------------------------------------------------------------------------------

    def _open(self, name: str) -> None:
        if self._disk is None:
            self._disk = self._open_disk()
        disk = self._disk
        if name not in disk.names():
            self._file, self._name, self._size = disk.create(name), name, 0
            disk.sync_directory()
            self._begin_hour(-1, 0, [])
            return
        self._file, self._name = disk.open(name), name
        disk.sync_directory()  # it may have been given this name just before something failed
        content = self._file.read(disk.size(name), 0)[: self._durable.pop(name, None)]
        found = _lines_of(content)
        self._size = found[-1][1] if found else 0
        self._file.truncate(self._size)
        hour = found[-1][2].from_ms // HOUR_MS if found else -1
        first = len(found)
        while first > 0 and found[first - 1][2].from_ms // HOUR_MS == hour:
            first -= 1
        start = found[first][0] if first < len(found) else self._size
        self._begin_hour(hour, start, [line for _, _, line in found[first:]])

    def _gather(self) -> None:
        """Write one line for each sum of the hour in place of many; if there is no room they stay.

        OSError when nobody knows which of the two is there after a power cut.
        """
        gathered = _encode(self._hour_sums.lines(), self._hour_start)
        # Where hardly any room is gained, wait until there is more to gain.
        self._loose_bytes_max = max(LOOSE_BYTES_MAX, 2 * len(gathered))
        if self._size - self._hour_start <= len(gathered):
            return
        assert self._file is not None and self._disk is not None
        new = self._rewritten(self._file, self._disk, gathered)
        if new is not None:
            self._file.close()
            self._file, self._size = new, self._hour_start + len(gathered)
            self._disk.sync_directory()

    def _rewritten(self, file: File, disk: Disk, gathered: bytes) -> File | None:
        """The same file with the hour gathered, under its name; None if that was not possible."""
        new_name = self._name + _NEW
        new: File | None = None
        try:
            kept = file.read(self._hour_start, 0)
            new = disk.create(new_name)
            new.write([kept, gathered], 0)
            new.sync()
            disk.rename(new_name, self._name)
        except OSError:
            if new is not None:
                with contextlib.suppress(OSError):
                    new.close()
                    disk.remove(new_name)
            return None
        return new

    def _remove_old(self, now_ms: int) -> None:
        """Files that are too old, and what a gathering has left behind that came to no end."""
        assert self._disk is not None
        oldest = iso(now_ms - self._days * DAY_MS)[:10] if self._days else ""
        for name in self._disk.names():
            if name.endswith(_NEW) or (_NAME.fullmatch(name) and name < oldest):
                with contextlib.suppress(OSError):
                    self._disk.remove(name)

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _let_go(self) -> None:
        """Something has failed: the next one opens everything again."""
        if self._file is not None:
            self._durable[self._name] = self._size
        with contextlib.suppress(OSError):
            self.close()
        self._file = self._disk = None


def read_meter(disk: Disk, from_ms: int, to_ms: int) -> tuple[list[Metered], int]:
    """Everything that began in this span of time, and how many damaged lines were passed over.

    Of hours that are over only the hour is known, not the second.  A server may be writing.
    """
    found: list[Metered] = []
    damaged = 0
    for name in disk.names():
        day = name.removesuffix(_SUFFIX)
        if not _NAME.fullmatch(name) or not iso(from_ms)[:10] <= day <= iso(to_ms)[:10]:
            continue
        content = _content(disk, name)
        lines = _lines_of(content)
        damaged += content.count(b"\n") - len(lines)
        found += [line for _, _, line in lines if from_ms <= line.from_ms < to_ms]
    return found, damaged


def _content(disk: Disk, name: str) -> bytes:
    try:
        file = disk.open(name)
    except FileNotFoundError:  # it has just become too old
        return b""
    try:
        return file.read(disk.size(name), 0)
    finally:
        file.close()


def _encode(lines: list[Metered], start: int) -> bytes:
    """Lines that are written at this place, filled up to the end of a sector."""
    data = b"".join([encode_line(line) for line in lines])
    if not data:
        return b""
    room = -(start + len(data)) % SECTOR_SIZE
    return data[:-1] + b" " * room + b"\n"


def _lines_of(content: bytes) -> list[tuple[int, int, Metered]]:
    """The lines that can be trusted, each with its beginning and its end."""
    found: list[tuple[int, int, Metered]] = []
    start = 0
    while (end := content.find(b"\n", start)) >= 0:
        line = decode_line(content[start:end].rstrip(b" "))
        if line is not None:
            found.append((start, end + 1, line))
        start = end + 1
    return found
