"""Disks: the operating system's, and the simulated one with its fault model."""

import errno
import os
import random
from pathlib import Path

import pytest

from tests.unit.storage.scene import Scene
from twinbus.errors import DirectoryInUse
from twinbus.storage.disk import Disk, OsDisk
from twinbus.testing.disk import CrashMode, PowerCut, SimDisk


@pytest.fixture(params=["os", "sim"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return OsDisk(tmp_path / "store") if request.param == "os" else SimDisk()


def test_files_are_read_back_as_written(disk: Disk) -> None:
    file = disk.create("a")
    file.write([b"hello ", b"world"], 3)
    assert file.read(100, 0) == b"\0\0\0hello world"
    assert file.read(5, 3) == b"hello"
    file.truncate(5)
    file.sync()
    file.close()
    assert disk.size("a") == 5
    again = disk.open("a")
    again.write([b"H"], 3)
    assert again.read(9, 0) == b"\0\0\0He"
    again.reserve(20)
    assert disk.size("a") == 20
    again.close()
    disk.close()


def test_many_buffers_go_in_one_write(disk: Disk) -> None:
    file = disk.create("a")
    file.write([bytes([index % 256]) for index in range(3_000)], 0)
    assert file.read(3_000, 0) == bytes(index % 256 for index in range(3_000))
    file.close()
    disk.close()


@pytest.mark.parametrize("count", [1, 3, 3_000])
def test_written_through_is_there_and_durable(disk: Disk, count: int) -> None:
    file = disk.create("a")
    disk.sync_directory()
    file.write_through([bytes([index % 256]) * 3 for index in range(count)], 5)
    expected = bytes(5) + b"".join(bytes([index % 256]) * 3 for index in range(count))
    assert file.read(10_000, 0) == expected
    if isinstance(disk, SimDisk):
        after = disk.after_power_cut(random.Random(1), CrashMode.DROP)
        assert after.open("a").read(10_000, 0) == expected
    file.close()
    disk.close()


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EINVAL, 0, errno.EIO])
def test_where_the_system_cannot_write_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Then it is written and synced; 0: a part was written.  Any other error is one."""
    disk = OsDisk(tmp_path / "store")
    file = disk.create("a")
    real = os.pwritev
    synced: list[int] = []

    def pwritev(fd: int, buffers: list[bytes], offset: int, flags: int = 0) -> int:
        if flags and code:
            raise OSError(code, os.strerror(code))
        return real(fd, [b"".join(buffers)[:4]] if flags else buffers, offset)

    monkeypatch.setattr(os, "pwritev", pwritev)
    monkeypatch.setattr(os, "fdatasync", synced.append)
    if code == errno.EIO:
        with pytest.raises(OSError, match="Input/output error"):
            file.write_through([b"hello ", b"world"], 0)
    else:
        file.write_through([b"hello ", b"world"], 0)
        assert file.read(100, 0) == b"hello world"
        assert len(synced) == 1
    file.close()
    disk.close()


def test_names_change_as_told(disk: Disk) -> None:
    disk.preallocate("new", 10_000)
    assert disk.size("new") == 10_000
    disk.rename("new", "log")
    disk.create("other").close()
    assert disk.names() == ["log", "other"]
    disk.remove("other")
    disk.sync_directory()
    assert disk.names() == ["log"]
    with pytest.raises(FileNotFoundError):
        disk.open("other")
    assert disk.free_bytes() > 0
    disk.close()


def test_a_directory_has_one_owner(tmp_path: Path) -> None:
    first, second = OsDisk(tmp_path), OsDisk(tmp_path)
    first.lock()
    with pytest.raises(DirectoryInUse, match="another server"):
        second.lock()
    assert first.names() == [], "the lock is none of the store's files"
    first.close()
    second.lock()
    second.close()


def test_a_store_on_a_real_disk(tmp_path: Path) -> None:
    scene = Scene(OsDisk(tmp_path))
    scene.keep(b"kept")
    scene.turn_over(12)
    scene.send(b"last")
    scene.store.close()
    found = Scene(OsDisk(tmp_path))
    assert found.kept() == [b"kept"]
    assert found.bodies() == [b"last"]
    found.store.close()


# --- the simulated one ------------------------------------------------------------------------


def torn_by(mode: CrashMode, seed: int) -> bytes:
    disk = SimDisk()
    file = disk.create("a")
    file.write([b"o" * 2_048], 0)
    file.sync()
    disk.sync_directory()
    file.write([b"n" * 1_024], 512)
    return disk.after_power_cut(random.Random(seed), mode).contents("a")


def test_what_is_synced_stays_and_the_rest_is_as_the_mode_says() -> None:
    old, new = b"o" * 2_048, b"o" * 512 + b"n" * 1_024 + b"o" * 512
    assert torn_by(CrashMode.DROP, 1) == old
    assert torn_by(CrashMode.KEEP, 1) == new
    assert {torn_by(CrashMode.SUBSET, seed) for seed in range(20)} == {old, new}
    torn = {torn_by(CrashMode.TEAR, seed) for seed in range(50)}
    half = b"o" * 512 + b"n" * 512 + b"o" * 1_024
    assert {old, new, half} <= torn
    for found in {torn_by(CrashMode.GARBAGE, seed) for seed in range(20)}:
        assert found[:512] == found[1_536:] == b"o" * 512, "nobody wrote there"
        assert set(found) - {ord("o"), ord("n")}, "no garbage anywhere"


def test_names_are_durable_only_with_the_directory() -> None:
    disk = SimDisk()
    disk.create("a").sync()
    assert disk.after_power_cut(random.Random(1), CrashMode.DROP).names() == []
    disk.sync_directory()
    disk.rename("a", "b")
    assert disk.after_power_cut(random.Random(1), CrashMode.DROP).names() == ["a"]
    assert disk.after_power_cut(random.Random(1), CrashMode.KEEP).names() == ["b"]
    found = {
        tuple(disk.after_power_cut(random.Random(seed), CrashMode.TEAR).names())
        for seed in range(20)
    }
    assert found == {("a",), ("b",)}


def test_after_a_failed_sync_the_data_is_gone_and_the_next_sync_lies() -> None:
    disk = SimDisk()
    file = disk.create("a")
    file.write([b"old"], 0)
    file.sync()
    file.write([b"new"], 0)
    disk.fail("sync")
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.sync()
    assert file.read(3, 0) == b"old"


def test_failures_come_when_told() -> None:
    disk = SimDisk()
    disk.fail("create", nth=2, code=errno.EMFILE)
    disk.create("a")
    with pytest.raises(OSError, match="Too many"):
        disk.create("b")
    disk.create("c")
    disk.fail("create", for_ever=True)
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output"):
            disk.create("d")


def test_no_power_no_operation() -> None:
    disk = SimDisk()
    disk.cut_power_after(1)
    file = disk.create("a")
    with pytest.raises(PowerCut):
        file.write([b"x"], 0)
    with pytest.raises(PowerCut):
        file.read(1, 0)
    assert disk.operation_count == 1


def test_a_small_disk_fills_up() -> None:
    disk = SimDisk(capacity=1_000)
    disk.preallocate("a", 900)
    with pytest.raises(OSError, match="No space"):
        disk.preallocate("b", 200)
    assert disk.names() == ["a"]
    with pytest.raises(OSError, match="No space"):
        disk.open("a").reserve(2_000)
