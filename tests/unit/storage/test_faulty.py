"""A disk with faults on purpose: what fails, what waits, and that nothing else changes."""

import errno
import threading
from collections.abc import Callable

import pytest

from twinbus.storage.faulty import DiskFaults, FaultyDisk
from twinbus.testing.disk import SimDisk

pytestmark = pytest.mark.proves("A-6")

SIZE = 4_096


def always() -> float:
    return 0.0


class Chances:
    """One after the other, as told."""

    def __init__(self, *chances: float) -> None:
        self._left = list(chances)

    def __call__(self) -> float:
        return self._left.pop(0)


def faulty(chance: Callable[[], float] = always) -> tuple[FaultyDisk, SimDisk]:
    inner = SimDisk()
    return FaultyDisk(inner, DiskFaults(chance)), inner


def failing(code: int, work: Callable[[], object]) -> None:
    with pytest.raises(OSError, match="fault is in force") as raised:
        work()
    assert raised.value.errno == code


def test_without_faults_it_is_the_disk_itself() -> None:
    disk, inner = faulty()
    disk.lock()
    disk.preallocate("a", SIZE)
    file = disk.create("b")
    file.reserve(8)
    file.write([b"ab", b"cd"], 2)
    file.sync()
    file.truncate(6)
    disk.rename("b", "c")
    disk.sync_directory()
    assert disk.names() == inner.names() == ["a", "c"]
    assert disk.size("c") == 6
    assert disk.open("c").read(10, 0) == b"\x00\x00abcd"
    assert disk.free_bytes() == inner.free_bytes()
    disk.remove("a")
    file.close()
    disk.close()
    assert inner.names() == ["c"]
    assert disk.faults.counts == (0, 0, 0)


@pytest.mark.proves("A-6")
def test_failing() -> None:
    disk, inner = faulty()
    file = disk.create("a")
    file.write([b"kept"], 0)
    file.sync()
    done = inner.operation_count
    disk.faults.set(0, 0.0, 1.0, 0.0)
    for work in (
        lambda: file.write([b"lost"], 0),
        file.sync,
        lambda: file.reserve(SIZE),
        lambda: file.truncate(0),
        lambda: disk.create("b"),
        lambda: disk.preallocate("b", SIZE),
        lambda: disk.rename("a", "b"),
        disk.sync_directory,
    ):
        failing(errno.EIO, work)
    assert inner.operation_count == done  # nothing of it has reached the disk
    assert file.read(4, 0) == b"kept"
    assert disk.faults.counts == (0, 8, 0)
    disk.faults.set(0, 0.0, 0.0, 0.0)
    assert not disk.faults.active
    file.write([b"more"], 0)
    assert inner.contents("a") == b"more"


@pytest.mark.proves("A-6")
def test_full() -> None:
    disk, inner = faulty()
    disk.preallocate("a", SIZE)
    file = disk.open("a")
    disk.faults.set(0, 0.0, 0.0, 1.0)
    failing(errno.ENOSPC, lambda: file.reserve(2 * SIZE))
    failing(errno.ENOSPC, lambda: disk.preallocate("b", SIZE))
    assert disk.free_bytes() == 0
    file.write([b"into what is there"], 0)
    file.sync()
    assert inner.names() == ["a"]
    assert disk.faults.counts == (0, 0, 2)


@pytest.mark.proves("A-6")
def test_slow_and_awake_at_once_when_it_ends() -> None:
    disk, inner = faulty()
    file = disk.create("a")
    disk.faults.set(600_000, 1.0, 0.0, 0.0)
    writing = threading.Thread(target=file.write, args=([b"late"], 0))
    writing.start()
    while disk.faults.counts != (1, 0, 0):
        pass
    assert inner.contents("a") == b""
    disk.faults.set(0, 0.0, 0.0, 0.0)
    writing.join(60)
    assert inner.contents("a") == b"late"


def test_a_short_delay_ends_by_itself() -> None:
    disk, inner = faulty()
    disk.faults.set(1, 1.0, 0.0, 0.0)
    disk.create("a").write([b"late"], 0)
    assert inner.contents("a") == b"late"
    assert disk.faults.counts == (2, 0, 0)


def test_how_likely() -> None:
    disk, inner = faulty(Chances(0.5, 0.4, 0.6, 0.2))
    file = disk.create("a")
    disk.faults.set(0, 0.0, 0.5, 0.0)
    file.write([b"1"], 0)
    failing(errno.EIO, lambda: file.write([b"2"], 0))
    file.write([b"3"], 0)
    failing(errno.EIO, file.sync)
    assert inner.contents("a") == b"3"


def test_room_may_fail_as_well() -> None:
    disk, _ = faulty()
    disk.faults.set(0, 0.0, 1.0, 0.0)
    failing(errno.EIO, lambda: disk.preallocate("a", SIZE))
    assert disk.free_bytes() > 0
