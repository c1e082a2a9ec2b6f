"""Damage to files at rest is found before anything is served, and names its place.

A store that was closed in an orderly way is damaged in one place: a bit flips, a page is zeroed, a
file is cut short or gone, bytes end up elsewhere.  Then either nobody can tell (the place held
nothing any more), and everything is there byte by byte; or the store refuses to open with file and
offset, and has not changed a byte.  There is no third outcome.
"""

import random

import pytest

from tests.simulation.store_workload import Overview, Workload, open_store, overview
from twinbus.errors import LogDamaged
from twinbus.storage.verify import verify
from twinbus.testing.disk import SimDisk

pytestmark = pytest.mark.proves("M-3")

KINDS = ["bit flip", "zeroed page", "cut short", "lost file", "chunk copied", "garbage"]


def closed_store(seed: int) -> tuple[SimDisk, Overview]:
    """A store with a snapshot, moved messages, old and new segments, closed in good order."""
    disk = SimDisk()
    workload = Workload(open_store(disk), seed)
    workload.run(800)
    while sum(name.endswith(".log") for name in disk.names()) < 5:
        workload.run(20)
    workload.commit_all()
    expected = overview(workload.store)
    workload.store.close()
    return disk, expected


def damage(disk: SimDisk, kind: str, rng: random.Random) -> str:
    """Hurt one file; returns which."""
    # Snapshots are few; give them their share.
    snapshots = [name for name in disk.names() if name.endswith(".snapshot")]
    name = rng.choice(snapshots if rng.random() < 0.2 else disk.names())
    size = disk.size(name)
    place = rng.randrange(size)
    if kind == "bit flip":
        byte = disk.contents(name)[place] ^ (1 << rng.randrange(8))
        disk.damage(name, place, bytes([byte]))
    elif kind == "zeroed page":
        disk.damage(name, place - place % 512, bytes(512))
    elif kind == "cut short":
        disk.cut_short(name, place)
    elif kind == "lost file":
        disk.lose(name)
    elif kind == "chunk copied":
        other = rng.choice(disk.names())
        start = rng.randrange(disk.size(other)) // 512 * 512
        chunk = disk.contents(other)[start : start + 1_024]
        place -= place % 512
        disk.damage(name, place, chunk[: size - place])
    else:
        disk.damage(name, place, rng.randbytes(min(64, size - place)))
    return name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_damage_is_found_or_harmless(kind: str, seed: int) -> None:
    whole, expected = closed_store(seed)
    refused = 0
    for attempt in range(25):
        disk = whole.restarted()
        rng = random.Random(f"{kind} {seed} {attempt}")
        name = damage(disk, kind, rng)
        before = {other: disk.contents(other) for other in disk.names()}
        where = f"{kind} of {name}, attempt {attempt}"
        try:
            store = open_store(disk)
        except LogDamaged as error:
            refused += 1
            assert error.path.endswith((".log", ".snapshot")), where
            assert error.offset >= 0, where
            assert {other: disk.contents(other) for other in disk.names()} == before, where
            assert not verify(disk).whole, where
        else:
            assert overview(store) == expected, where
            store.close()
    assert refused > 0, "no damage at all was found"


def test_verify_finds_a_whole_store_whole() -> None:
    disk, expected = closed_store(5)  # its topic is there until the end
    before = {name: disk.contents(name) for name in disk.names()}
    report = verify(disk)
    assert report.whole, str(report)
    assert {entity.name for entity in report.entities} <= expected.keys()
    rules = sum(entity.rules for entity in report.entities)
    assert rules > 0
    assert any(entity.producers for entity in report.entities)
    assert len(report.entities) + rules == len(expected)
    assert {name: disk.contents(name) for name in disk.names()} == before


def test_verify_names_every_damaged_place() -> None:
    disk, _ = closed_store(2)
    segments = [name for name in disk.names() if name.endswith(".log")][:2]
    for name in segments:
        disk.damage(name, 4_100, b"\xff\xff")
    report = verify(disk)
    assert not report.whole
    for name in segments:
        assert f"{name}: damaged at byte 4096" in str(report)
