"""The checksum is CRC-32, whoever computes it: a store written with isal is read without it."""

import importlib
import random
import sys
import zlib

import pytest

from twinbus.storage import checksum


@pytest.mark.parametrize("size", [0, 1, 31, 32, 4_096, 100_000])
def test_it_is_the_number_that_zlib_computes(size: int) -> None:
    data = random.Random(size).randbytes(size)
    for seed in (0, 1, 0xFFFF_FFFF):
        assert checksum.crc32(data, seed) == zlib.crc32(data, seed)


def test_without_isal_it_is_zlibs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal", None)
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    try:
        assert importlib.reload(checksum).crc32 is zlib.crc32
    finally:
        monkeypatch.undo()
        importlib.reload(checksum)
