"""A disk made slow, failing or full on purpose: wraps any `Disk`, and its files.

The plan says what goes wrong.  The loop changes it and writing threads read it, so it is one value
that is replaced as a whole; while it is empty, it costs every operation one look.  Nothing here
touches a file: operations that do not fail are passed on.

- slow: every write and sync waits first.  Changing the plan wakes the waiting ones.
- fail: every write and sync fails with EIO, and nothing of it reaches the disk.
- full: there is no more space.  Writes into reserved space still work, as `disk.py` promises.
"""

import errno
import threading
from collections.abc import Callable
from typing import NamedTuple
from weakref import WeakSet

from twinbus.storage.disk import Disk, File
from twinbus.storage.ring import WriteRing


class _Settings(NamedTuple):
    slow_ms: int
    slow_probability: float
    fail_probability: float
    full_probability: float
    changed: threading.Event  # set when these do not count any more


class DiskFaults:
    """What the disk of one store is to suffer."""

    def __init__(self, chance: Callable[[], float]) -> None:
        self._chance = chance  # between 0 and 1, 1 excluded
        self._mutex = threading.Lock()
        self._settings: _Settings | None = None
        self._files: WeakSet[FaultyFile] = WeakSet()
        self.active = False
        self.slowed = 0  # how often, since the beginning
        self.failed = 0
        self.refused = 0

    def set(
        self,
        slow_ms: int,
        slow_probability: float,
        fail_probability: float,
        full_probability: float,
    ) -> None:
        """From now on this, and nothing of what was before; all zeros: nothing."""
        former = self._settings
        is_empty = not (slow_ms or fail_probability or full_probability)
        settings = _Settings(
            slow_ms, slow_probability, fail_probability, full_probability, threading.Event()
        )
        self._settings = None if is_empty else settings
        self.active = not is_empty
        with self._mutex:
            files = list(self._files)
        for file in files:
            file.faults_changed()
        if former is not None:
            former.changed.set()

    def watch(self, file: "FaultyFile") -> None:
        """This file is told of every change; threads open files, too."""
        with self._mutex:
            self._files.add(file)
        file.faults_changed()

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many operations were slowed, failed, and refused for want of room."""
        with self._mutex:
            return self.slowed, self.failed, self.refused

    def before_writing(self) -> None:
        """A write or sync is about to happen."""
        settings = self._settings
        if settings is None:
            return
        if settings.slow_ms and self._chance() < settings.slow_probability:
            with self._mutex:
                self.slowed += 1
            settings.changed.wait(settings.slow_ms / 1_000)
        if self._chance() < settings.fail_probability:
            with self._mutex:
                self.failed += 1
            raise OSError(errno.EIO, "a fail-store fault is in force")

    def before_taking_room(self) -> None:
        """Room is about to be taken; making it is writing."""
        settings = self._settings
        if settings is None:
            return
        if self._chance() < settings.full_probability:
            with self._mutex:
                self.refused += 1
            raise OSError(errno.ENOSPC, "a full-store fault is in force")
        self.before_writing()

    def has_no_room(self) -> bool:
        settings = self._settings
        return settings is not None and self._chance() < settings.full_probability


class FaultyFile:
    """A file of a faulty disk.  Without a fault, commits go straight to the file that it wraps."""

    __slots__ = (
        "__weakref__",
        "_faults",
        "_file",
        "begin_write_through",
        "close",
        "read",
        "write_through",
    )

    def __init__(self, file: File, faults: DiskFaults) -> None:
        self._file = file
        self._faults = faults
        # No fault is about these, so there is nothing to go through.
        self.read = file.read
        self.close = file.close
        faults.watch(self)

    def faults_changed(self) -> None:
        """Some begin, or there are none any more."""
        is_active = self._faults.active
        self.write_through = self._write_through if is_active else self._file.write_through
        # While there are faults, a thread has to meet them: some take their time.
        self.begin_write_through = _refuse if is_active else self._file.begin_write_through

    def write(self, buffers: list[bytes], offset: int) -> None:
        if self._faults.active:
            self._faults.before_writing()
        self._file.write(buffers, offset)

    def sync(self) -> None:
        if self._faults.active:
            self._faults.before_writing()
        self._file.sync()

    def _write_through(self, buffers: list[bytes], offset: int) -> None:
        self._faults.before_writing()  # a write and a sync
        self._faults.before_writing()
        self._file.write_through(buffers, offset)

    def reserve(self, size: int) -> None:
        if self._faults.active:
            self._faults.before_taking_room()
        self._file.reserve(size)

    def truncate(self, size: int) -> None:
        if self._faults.active:
            self._faults.before_writing()
        self._file.truncate(size)


def _refuse(ring: WriteRing, buffers: list[bytes], offset: int) -> bool:
    return False


class FaultyDisk:
    """A disk with faults."""

    def __init__(self, disk: Disk, faults: DiskFaults) -> None:
        self._disk = disk
        self.faults = faults
        # No fault is about these, so there is nothing to go through.
        self.lock = disk.lock
        self.names = disk.names
        self.size = disk.size
        self.remove = disk.remove
        self.ring = disk.ring
        self.close = disk.close

    def open(self, name: str) -> FaultyFile:
        return FaultyFile(self._disk.open(name), self.faults)

    def create(self, name: str) -> FaultyFile:
        self.faults.before_writing()
        return FaultyFile(self._disk.create(name), self.faults)

    def preallocate(self, name: str, size: int) -> None:
        self.faults.before_taking_room()
        self._disk.preallocate(name, size)

    def rename(self, old: str, new: str) -> None:
        self.faults.before_writing()
        self._disk.rename(old, new)

    def sync_directory(self) -> None:
        self.faults.before_writing()
        self._disk.sync_directory()

    def free_bytes(self) -> int:
        return 0 if self.faults.has_no_room() else self._disk.free_bytes()
