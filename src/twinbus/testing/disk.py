"""SimDisk: a disk in memory that forgets, tears, fails and fills up on demand.

The fault model is what the storage room must survive, and it is harsher than most disks:

- A write is in the cache until `sync` of its file.  At a power cut every such write may be there or
  not, each on its own, in any order (`SUBSET`); or any of its sectors of 512 bytes may be there or
  not (`TEAR`); or on top of that one of its sectors holds garbage (`GARBAGE`).  `DROP` and `KEEP`
  are the two ends: nothing unsynced survives, everything does.
- Sectors that no unsynced write touched stay as they were.  A sector is written whole or not at
  all, but for that garbage one.
- A created, renamed or removed name is in the cache until `sync_directory`; syncing the file does
  not help.  At a power cut each such change may have happened or not, on its own.
- What was synced stays, until `damage` (a bit flips, a page is zeroed ...) is asked for.
- `fail` lets the n-th operation of a kind fail, once or for ever, with any errno.  After a failed
  sync the writes it was to make durable are gone for good: that is what Linux does.
- `capacity` limits the bytes of all files together; only `preallocate` and `reserve` find out.

`cut_power_after` counts operations and raises `PowerCut` at the given one, before it is done; then
`after_power_cut` gives the disk as the next process finds it.
"""

import enum
import errno
import os
import random
from typing import Final

from twinbus.errors import DirectoryInUse
from twinbus.storage.ring import WriteRing

SECTOR_SIZE: Final = 512
MUTATIONS: Final = frozenset(
    {"write", "sync", "reserve", "truncate", "create", "preallocate", "rename", "remove"}
    | {"sync_directory"}
)


class CrashMode(enum.Enum):
    """What becomes of unsynced changes; see above."""

    DROP = "drop"
    KEEP = "keep"
    SUBSET = "subset"
    TEAR = "tear"
    GARBAGE = "garbage"


class PowerCut(BaseException):
    """The power is off: every operation fails.  No `except Exception` may catch it."""


class _Inode:
    """Contents of a file, as seen and as durable."""

    def __init__(self, data: bytes = b"") -> None:
        self.seen = bytearray(data)
        self.durable = bytearray(data)
        self.writes: list[tuple[int, bytes]] = []  # unsynced

    def write(self, offset: int, data: bytes) -> None:
        _splice(self.seen, offset, data)
        self.writes.append((offset, data))

    def sync(self) -> None:
        self.durable[:] = self.seen
        self.writes.clear()

    def forget(self) -> None:
        """A sync failed: the kernel drops the dirty pages and never mentions them again."""
        self.seen[:] = self.durable
        self.writes.clear()

    def survivor(self, rng: random.Random, mode: CrashMode) -> bytes:
        """The contents after a power cut."""
        if mode is CrashMode.DROP:
            return bytes(self.durable)
        if mode is CrashMode.KEEP:
            return bytes(self.seen)
        data = bytearray(self.durable)
        writes = list(self.writes)
        rng.shuffle(writes)
        for offset, written in writes:
            if mode is CrashMode.SUBSET:
                if rng.random() < 0.5:
                    _splice(data, offset, written)
            else:
                _tear(data, offset, written, rng, mode is CrashMode.GARBAGE)
        return bytes(data)


def _splice(target: bytearray, offset: int, data: bytes) -> None:
    if len(target) < offset:
        target.extend(bytes(offset - len(target)))
    target[offset : offset + len(data)] = data


def _tear(
    target: bytearray, offset: int, data: bytes, rng: random.Random, with_garbage: bool
) -> None:
    """Some sectors of the write get through; a prefix more often than a scattered set."""
    starts = list(range(offset - offset % SECTOR_SIZE, offset + len(data), SECTOR_SIZE))
    if rng.random() < 0.5:
        through = set(starts[: rng.randrange(len(starts) + 1)])
    else:
        through = {start for start in starts if rng.random() < 0.5}
    garbage = rng.choice(starts) if with_garbage else -1
    for start in starts:
        low = max(start, offset)
        high = min(start + SECTOR_SIZE, offset + len(data))
        if start == garbage:
            _splice(target, low, rng.randbytes(high - low))
        elif start in through:
            _splice(target, low, data[low - offset : high - offset])


class SimDisk:
    """Implements `twinbus.storage.disk.Disk`."""

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.operation_count = 0  # that change something
        self.log: list[str] = []  # what was done, for the message of a failing test
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        # Unsynced changes of the directory: old name or None, new name or None, file.
        self._changes: list[tuple[str | None, str | None, _Inode]] = []
        self._cut_at = -1
        self._off = False
        self._locked = False
        self._failures: dict[str, tuple[int, int, bool]] = {}  # kind → (countdown, errno, for ever)

    # -- what tests do with it -------------------------------------------------------------------

    def cut_power_after(self, operations: int) -> None:
        """Allow this many more operations, and cut the power at the next one."""
        self._cut_at = self.operation_count + operations

    def after_power_cut(self, rng: random.Random, mode: CrashMode) -> "SimDisk":
        """The disk as found when the power is back."""
        found = SimDisk(self.capacity)
        names = dict(self._names if mode is CrashMode.KEEP else self._durable_names)
        if mode not in (CrashMode.DROP, CrashMode.KEEP):
            for old, new, inode in self._changes:
                if rng.random() < 0.5:
                    if old is not None:
                        names.pop(old, None)
                    if new is not None:
                        names[new] = inode
        survivors: dict[int, _Inode] = {}
        for name, inode in names.items():
            if id(inode) not in survivors:
                survivors[id(inode)] = _Inode(inode.survivor(rng, mode))
            found._names[name] = survivors[id(inode)]
        found._durable_names = dict(found._names)
        return found

    @property
    def unsynced_name_count(self) -> int:
        """How many name changes a power cut could undo right now."""
        return len(self._changes)

    def restarted(self) -> "SimDisk":
        """A copy as the next process finds it when this one is killed, without a power cut."""
        return self.after_power_cut(random.Random(0), CrashMode.KEEP)

    def revive(self) -> None:
        """The process was killed, not the power cut: the next one meets the same cache."""
        self._cut_at = -1
        self._off = False
        self._locked = False

    def fail(self, kind: str, nth: int = 1, code: int = errno.EIO, for_ever: bool = False) -> None:
        """Let the n-th operation of this kind from now on fail."""
        self._failures[kind] = (nth, code, for_ever)

    def heal(self) -> None:
        """Cancel all planned failures and power cuts."""
        self._failures.clear()
        self._cut_at = -1

    def damage(self, name: str, offset: int, data: bytes) -> None:
        """Change durable bytes behind everybody's back."""
        inode = self._names[name]
        _splice(inode.seen, offset, data)
        _splice(inode.durable, offset, data)

    def cut_short(self, name: str, size: int) -> None:
        """Truncate a file behind everybody's back."""
        inode = self._names[name]
        del inode.seen[size:]
        del inode.durable[size:]

    def lose(self, name: str) -> None:
        """Remove a file behind everybody's back."""
        del self._names[name]
        self._durable_names.pop(name, None)

    def contents(self, name: str) -> bytes:
        return bytes(self._names[name].seen)

    # -- operations ------------------------------------------------------------------------------

    def _operation(self, kind: str, what: str) -> None:
        if self._off or self.operation_count == self._cut_at:
            self._off = True
            raise PowerCut
        if kind in MUTATIONS:
            self.operation_count += 1
            self.log.append(f"{kind} {what}")
        failure = self._failures.get(kind)
        if failure is not None:
            countdown, code, for_ever = failure
            if countdown <= 1:
                if not for_ever:
                    del self._failures[kind]
                raise OSError(code, os.strerror(code))
            self._failures[kind] = (countdown - 1, code, for_ever)

    def lock(self) -> None:
        if self._locked:
            message = "another server is using this directory"
            raise DirectoryInUse(message)
        self._locked = True

    def names(self) -> list[str]:
        return sorted(self._names)

    def size(self, name: str) -> int:
        return len(self._names[name].seen)

    def open(self, name: str) -> "SimFile":
        if name not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return SimFile(self, name, self._names[name])

    def create(self, name: str) -> "SimFile":
        self._operation("create", name)
        inode = _Inode()
        self._change(None, name, inode)
        return SimFile(self, name, inode)

    def preallocate(self, name: str, size: int) -> None:
        self._operation("preallocate", name)
        there = self._names.get(name)
        self._check_capacity(size - (0 if there is None else len(there.seen)))
        self._change(None, name, _Inode(bytes(size)))

    def rename(self, old: str, new: str) -> None:
        self._operation("rename", f"{old} {new}")
        self._change(old, new, self._names[old])

    def remove(self, name: str) -> None:
        self._operation("remove", name)
        self._change(name, None, self._names[name])

    def _change(self, old: str | None, new: str | None, inode: _Inode) -> None:
        if old is not None:
            del self._names[old]
        if new is not None:
            self._names[new] = inode
        self._changes.append((old, new, inode))

    def sync_directory(self) -> None:
        self._operation("sync_directory", "")
        self._durable_names = dict(self._names)
        self._changes.clear()

    def ring(self) -> None:
        """The kernel does not know these files."""

    def free_bytes(self) -> int:
        if self.capacity is None:
            return 1 << 40
        return self.capacity - sum(len(inode.seen) for inode in self._names.values())

    def _check_capacity(self, size: int) -> None:
        if size > self.free_bytes():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        self._locked = False


class SimFile:
    """Implements `twinbus.storage.disk.File`."""

    def __init__(self, disk: SimDisk, name: str, inode: _Inode) -> None:
        self._disk = disk
        self._name = name
        self._inode = inode

    def read(self, size: int, offset: int) -> bytes:
        self._disk._operation("read", self._name)
        return bytes(self._inode.seen[offset : offset + size])

    def write(self, buffers: list[bytes], offset: int) -> None:
        self._disk._operation("write", self._name)
        self._inode.write(offset, b"".join(buffers))

    def sync(self) -> None:
        try:
            self._disk._operation("sync", self._name)
        except OSError:
            self._inode.forget()
            raise
        self._inode.sync()

    def write_through(self, buffers: list[bytes], offset: int) -> None:
        """Power may fail in between."""
        self.write(buffers, offset)
        self.sync()

    def begin_write_through(self, ring: WriteRing, buffers: list[bytes], offset: int) -> bool:
        """The kernel does not know these files."""
        return False

    def reserve(self, size: int) -> None:
        self._disk._operation("reserve", self._name)
        missing = size - len(self._inode.seen)
        if missing > 0:
            self._disk._check_capacity(missing)
            self._inode.write(len(self._inode.seen), bytes(missing))

    def truncate(self, size: int) -> None:
        """As if durable at once: a torn snapshot is unnamed anyway, and never read."""
        self._disk._operation("truncate", self._name)
        del self._inode.seen[size:]
        del self._inode.durable[size:]
        kept = [
            (offset, data[: size - offset]) for offset, data in self._inode.writes if offset < size
        ]
        self._inode.writes = kept

    def close(self) -> None:
        """Nothing is lost or made durable by closing."""
