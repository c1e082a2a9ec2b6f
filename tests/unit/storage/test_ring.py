"""Writes by the kernel alone, on real files.  Where the system forbids them, there is no ring."""

import errno
import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from twinbus.storage.disk import OsDisk
from twinbus.storage.ring import WriteRing, open_ring

FORBIDDEN = {errno.ENOSYS, errno.EPERM, errno.EACCES}


@pytest.fixture
def ring() -> Iterator[WriteRing | None]:
    found = open_ring()
    yield found
    if found is not None:
        found.close()


def result_of(ring: WriteRing) -> int:
    while (result := ring.result()) is None:
        select.select([ring.fileno()], [], [])
    return result


def test_without_one_the_system_says_why(ring: WriteRing | None) -> None:
    if ring is None:
        with pytest.raises(OSError) as caught:
            WriteRing()
        assert caught.value.errno in FORBIDDEN
    else:
        assert ring.fileno() > 2
        assert ring.result() is None, "nothing is under way"


def test_what_was_written_is_there(ring: WriteRing | None, tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    file = disk.create("log")
    written = []
    for number in range(5):  # both rings have gone round several times
        buffers = [b"head%d" % number, os.urandom(300_000), b"", bytes(3)]
        data = b"".join(buffers)
        if ring is None:
            file.write_through(buffers, number * len(data))
        else:
            assert file.begin_write_through(ring, buffers, number * len(data))
            assert result_of(ring) == len(data)
        written.append(data)
    assert file.read(10_000_000, 0) == b"".join(written)
    file.close()
    disk.close()


def test_errors_are_told(ring: WriteRing | None) -> None:
    if ring is None:
        assert open_ring() is None  # nothing to tell
        return
    full = os.open("/dev/full", os.O_WRONLY)
    ring.begin(full, [b"no room"], 0)
    assert result_of(ring) == -errno.ENOSPC
    os.close(full)
    ring.begin(full, [b"no file"], 0)
    assert result_of(ring) == -errno.EBADF


def test_a_closed_ring_begins_nothing(tmp_path: Path) -> None:
    ring = open_ring()
    disk = OsDisk(tmp_path)
    file = disk.create("log")
    if ring is not None:
        ring.close()
        assert not file.begin_write_through(ring, [b"late"], 0)
    file.close()
    disk.close()
