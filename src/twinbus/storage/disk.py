"""Files: the only module that opens, writes, syncs, renames or removes any.

Everything above speaks to the two protocols here, so that `twinbus.testing.SimDisk` can take the
place of the operating system and cut the power at every single call.  A directory is flat; names
are chosen by the storage room and never come from a user.

What callers may rely on, and nothing more:

- a write is durable when `File.sync` has returned after it;
- a created, renamed or removed name is durable when `Disk.sync_directory` has returned after it;
- room that `preallocate` or `File.reserve` made is there: writing into it never meets a full disk.

An `OSError` of a write or a sync must never be answered by trying again: after a failed sync the
kernel may have dropped the data and report success the next time.
"""

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import Final, Protocol

from twinbus.errors import DirectoryInUse
from twinbus.storage.ring import WriteRing, open_ring

LOCK_NAME: Final = "lock"
ZEROS: Final = bytes(1 << 20)
BUFFERS_MAX: Final = 1_024  # IOV_MAX of Linux: more buffers than this no call takes

_DSYNC: Final[int] = getattr(os, "RWF_DSYNC", 0)
UNSUPPORTED: Final = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


class File(Protocol):
    """One open file; positions are absolute, there is no cursor."""

    def read(self, size: int, offset: int) -> bytes: ...

    def write(self, buffers: list[bytes], offset: int) -> None: ...

    def sync(self) -> None: ...

    def write_through(self, buffers: list[bytes], offset: int) -> None: ...

    def begin_write_through(self, ring: WriteRing, buffers: list[bytes], offset: int) -> bool: ...

    def reserve(self, size: int) -> None: ...

    def truncate(self, size: int) -> None: ...

    def close(self) -> None: ...


class Disk(Protocol):
    """One flat directory of files."""

    def lock(self) -> None: ...

    def names(self) -> list[str]: ...

    def size(self, name: str) -> int: ...

    def open(self, name: str) -> File: ...

    def create(self, name: str) -> File: ...

    def preallocate(self, name: str, size: int) -> None: ...

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, name: str) -> None: ...

    def sync_directory(self) -> None: ...

    def free_bytes(self) -> int: ...

    def ring(self) -> WriteRing | None: ...

    def close(self) -> None: ...


class OsFile:
    """A file of the operating system."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""
        data = os.pread(self._fd, size, offset)
        while len(data) < size:
            more = os.pread(self._fd, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def write(self, buffers: list[bytes], offset: int) -> None:
        """All of it, or OSError."""
        if len(buffers) > BUFFERS_MAX:
            buffers = [b"".join(buffers)]
        size = sum(map(len, buffers))
        written = os.pwritev(self._fd, buffers, offset)
        if written < size:
            rest = memoryview(b"".join(buffers))
            while written < size:
                written += os.pwrite(self._fd, rest[written:], offset + written)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def write_through(self, buffers: list[bytes], offset: int) -> None:
        """`write` and `sync` in one call, where the system can: after each call a thread has to get
        Python's lock back."""
        try:
            written = os.pwritev(self._fd, buffers, offset, _DSYNC) if _DSYNC else 0
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            written = 0
        if written != sum(map(len, buffers)):
            self.write(buffers, offset)
            self.sync()

    def begin_write_through(self, ring: WriteRing, buffers: list[bytes], offset: int) -> bool:
        """Have the ring do so; False: it has not begun."""
        try:
            ring.begin(self._fd, buffers, offset)
        except OSError:
            return False
        return True

    def reserve(self, size: int) -> None:
        """Make room up to `size` bytes; ENOSPC when there is none."""
        os.posix_fallocate(self._fd, 0, size)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class OsDisk:
    """A directory of the operating system."""

    def __init__(self, directory: Path | str) -> None:
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._directory_fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        self._lock_fd = -1

    def lock(self) -> None:
        """Keep every other process out until `close`, or until this one ends however it ends."""
        path = self._directory / LOCK_NAME
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            message = f"{self._directory}: another server is using this directory"
            raise DirectoryInUse(message) from None
        self._lock_fd = fd

    def names(self) -> list[str]:
        return sorted(name for name in os.listdir(self._directory_fd) if name != LOCK_NAME)

    def size(self, name: str) -> int:
        return os.stat(name, dir_fd=self._directory_fd).st_size

    def open(self, name: str) -> OsFile:
        return OsFile(os.open(name, os.O_RDWR | os.O_CLOEXEC, dir_fd=self._directory_fd))

    def create(self, name: str) -> OsFile:
        """An empty file; one that is there under this name is emptied."""
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        return OsFile(os.open(name, flags, 0o600, dir_fd=self._directory_fd))

    def preallocate(self, name: str, size: int) -> None:
        """A file of zeros, written and synced, so that later writes change no metadata.

        That halves the time of every later sync.  One that is there under this name keeps its room;
        when there is none nothing is left behind.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        file = OsFile(os.open(name, flags, 0o600, dir_fd=self._directory_fd))
        try:
            file.reserve(size)
            for start in range(0, size, len(ZEROS)):
                file.write([ZEROS[: min(len(ZEROS), size - start)]], start)
            file.sync()
        except OSError:
            file.close()
            with contextlib.suppress(OSError):
                self.remove(name)
            raise
        file.close()

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new, src_dir_fd=self._directory_fd, dst_dir_fd=self._directory_fd)

    def remove(self, name: str) -> None:
        os.unlink(name, dir_fd=self._directory_fd)

    def sync_directory(self) -> None:
        os.fsync(self._directory_fd)

    def free_bytes(self) -> int:
        status = os.fstatvfs(self._directory_fd)
        return status.f_bavail * status.f_frsize

    def ring(self) -> WriteRing | None:
        """For writes without a thread, where the system has such."""
        return open_ring()

    def close(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)  # gives the lock back
            self._lock_fd = -1
        if self._directory_fd >= 0:
            os.close(self._directory_fd)
            self._directory_fd = -1
