"""The catalog file: what it keeps, how it ends, what it refuses, and that it does not grow."""

import errno
from pathlib import Path

import pytest

from twinbus.entities.catalog_entry import MAKING, REMOVING, THERE, CatalogEntry
from twinbus.entities.descriptions import QueueDescription
from twinbus.errors import DirectoryInUse, LogDamaged, StorageError, Unavailable
from twinbus.storage.catalog import FILE_NAME, NEW_FILE_NAME, SUPERSEDED_BYTES_MAX, CatalogFile
from twinbus.storage.disk import OsDisk
from twinbus.storage.log import SECTOR_SIZE
from twinbus.testing.disk import SimDisk

TEXT = QueueDescription(user_metadata="für später").to_json()
STORES = [partition % 3 for partition in range(16)]
Known = tuple[str, str, str, tuple[int, ...], str, tuple[int, ...]]


def known(catalog: CatalogFile) -> dict[str, Known]:
    return {
        name: (
            entry.kind,
            entry.name,
            entry.description,
            tuple(entry.stores),
            entry.state,
            tuple(entry.entity_ids),
        )
        for name, entry in catalog.entries.items()
    }


def reopened(disk: SimDisk) -> CatalogFile:
    return CatalogFile(disk.restarted())


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def catalog(disk: SimDisk) -> CatalogFile:
    catalog = CatalogFile(disk)
    catalog.making("queue", "Orders", TEXT, [2])
    catalog.there("Orders", TEXT, [41])
    return catalog


def test_an_empty_catalog(disk: SimDisk) -> None:
    CatalogFile(disk)
    assert disk.names() == [FILE_NAME]
    assert known(reopened(disk)) == {}


def test_the_life_of_an_entity(disk: SimDisk) -> None:
    catalog = CatalogFile(disk)
    catalog.making("topic", "News", TEXT, STORES)
    zeros = tuple([0] * 16)
    expected: Known = ("topic", "News", TEXT, tuple(STORES), MAKING, zeros)
    assert known(reopened(disk)) == known(catalog) == {"news": expected}
    catalog.there("news", TEXT)
    assert known(reopened(disk))["news"] == (*expected[:4], THERE, zeros)
    changed = QueueDescription().to_json()
    catalog.there("news", changed, range(1, 17))
    numbers = tuple(range(1, 17))
    expected = ("topic", "News", changed, tuple(STORES), THERE, numbers)
    assert known(reopened(disk)) == {"news": expected}
    catalog.removing("NEWS")
    assert known(reopened(disk))["news"] == (*expected[:4], REMOVING, numbers)
    catalog.removed("News")
    assert known(reopened(disk)) == known(catalog) == {}


def test_what_was_never_known_can_be_gone(catalog: CatalogFile, disk: SimDisk) -> None:
    before = disk.operation_count
    catalog.removing("nobody")
    catalog.removed("nobody")
    assert disk.operation_count == before


@pytest.mark.proves("E-12")
@pytest.mark.parametrize("state", [MAKING, REMOVING])
def test_a_name_is_taken_while_something_is_left(catalog: CatalogFile, state: str) -> None:
    catalog.put_right([CatalogEntry("queue", "ns:left", TEXT, [1], state)], [])
    with pytest.raises(Unavailable, match="an earlier 'Left'"):
        catalog.making("queue", "ns:Left", TEXT, [0])
    assert catalog.entries["ns:left"].stores == [1]


def test_many_changes_at_once(catalog: CatalogFile, disk: SimDisk) -> None:
    fresh = [CatalogEntry("queue", f"q{i}", TEXT, [i], THERE, [i + 1]) for i in range(100)]
    before = disk.operation_count
    catalog.put_right(fresh, ["orders", "nobody"])
    assert disk.operation_count - before < 10
    assert set(catalog.entries) == {entry.name for entry in fresh}
    assert known(reopened(disk)) == known(catalog)
    catalog.making("queue", "one more", TEXT, [0])
    assert known(reopened(disk)) == known(catalog)


def test_it_is_written_anew_at_opening(catalog: CatalogFile, disk: SimDisk) -> None:
    for _ in range(50):
        catalog.there("orders", TEXT)
    grown = disk.size(FILE_NAME)
    again = disk.restarted()
    assert known(CatalogFile(again)) == known(catalog)
    assert again.size(FILE_NAME) < grown // 10


def test_it_does_not_grow_for_ever(catalog: CatalogFile, disk: SimDisk) -> None:
    most = 0
    for round_number in range(3_000):
        catalog.making("queue", f"short-lived-{round_number}", TEXT, [0])
        catalog.removed(f"short-lived-{round_number}")
        most = max(most, disk.size(FILE_NAME))
    assert SUPERSEDED_BYTES_MAX // 2 < most < 2 * SUPERSEDED_BYTES_MAX
    assert known(reopened(disk)) == known(catalog)
    assert set(catalog.entries) == {"orders"}


# --- failing disks --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_failed_write_is_told_and_the_next_goes_to_a_new_file(
    catalog: CatalogFile, disk: SimDisk, kind: str
) -> None:
    before = known(catalog)
    disk.fail(kind)
    with pytest.raises(Unavailable, match="catalog could not be written"):
        catalog.making("queue", "invoices", TEXT, [0])
    assert known(catalog) == before
    mark = len(disk.log)
    catalog.making("queue", "invoices", TEXT, [1])
    assert disk.log[mark] == f"create {NEW_FILE_NAME}"
    assert catalog.entries["invoices"].stores == [1]
    assert known(reopened(disk)) == known(catalog)


@pytest.mark.parametrize("kind", ["create", "write", "sync", "rename", "sync_directory"])
def test_a_disk_that_does_not_recover(catalog: CatalogFile, disk: SimDisk, kind: str) -> None:
    before = known(catalog)
    disk.fail("write", code=errno.ENOSPC)
    with pytest.raises(Unavailable):
        catalog.removing("orders")
    disk.fail(kind, code=errno.ENOSPC, for_ever=True)
    for _ in range(3):
        with pytest.raises(Unavailable, match="No space left"):
            catalog.removing("orders")
        assert known(catalog) == before
    disk.fail(kind, nth=1_000)  # there is room again
    catalog.removing("orders")
    assert known(reopened(disk)) == known(catalog)
    assert catalog.entries["orders"].state == REMOVING


def test_many_changes_that_cannot_be_written(catalog: CatalogFile, disk: SimDisk) -> None:
    before = known(catalog)
    disk.fail("sync")
    with pytest.raises(Unavailable):
        catalog.put_right([CatalogEntry("queue", "new", TEXT, [0], THERE)], ["orders"])
    assert known(catalog) == before
    assert known(reopened(disk)) == before
    catalog.there("orders", TEXT)
    assert known(reopened(disk)) == before


def test_a_disk_that_fails_at_opening(disk: SimDisk) -> None:
    disk.fail("sync")
    with pytest.raises(StorageError, match="catalog cannot be written"):
        CatalogFile(disk)


# --- what is found on the disk --------------------------------------------------------------------


def test_a_torn_end_is_cut(catalog: CatalogFile, disk: SimDisk) -> None:
    before = known(catalog)
    start = disk.size(FILE_NAME)
    catalog.making("queue", "torn", TEXT, [0])
    end = len(disk.contents(FILE_NAME).rstrip(b"\x00"))
    assert end - start > SECTOR_SIZE
    for size in (*range(start, end, 100), end - 1):
        found = disk.restarted()
        found.cut_short(FILE_NAME, size)
        again = CatalogFile(found)
        assert known(again) == before
        again.making("queue", "next", TEXT, [0])
        assert set(known(reopened(found))) == {"orders", "next"}


def test_a_damaged_record_with_valid_ones_behind_it_is_refused(
    catalog: CatalogFile, disk: SimDisk
) -> None:
    catalog.making("queue", "later", TEXT, [0])
    damaged = disk.restarted()
    damaged.damage(FILE_NAME, SECTOR_SIZE + 60, b"#")
    contents = damaged.contents(FILE_NAME)
    with pytest.raises(LogDamaged, match=f"byte {SECTOR_SIZE}"):
        CatalogFile(damaged)
    assert damaged.contents(FILE_NAME) == contents


def test_a_record_in_the_wrong_place_is_none(catalog: CatalogFile, disk: SimDisk) -> None:
    """What a misdirected write put there does not count, though it was valid where it belonged."""
    catalog.making("queue", "again", TEXT, [0])
    again = disk.restarted()
    contents = again.contents(FILE_NAME)
    again.damage(FILE_NAME, len(contents), contents[SECTOR_SIZE:])
    assert known(CatalogFile(again)) == known(catalog)


@pytest.mark.parametrize(
    ("at", "data", "reason"),
    [
        (0, b"X", "not the header"),
        (8, b"\x02", "not the header"),
        (12, b"\xff\xff", "not the header"),
    ],
)
def test_a_header_that_is_none(
    catalog: CatalogFile, disk: SimDisk, at: int, data: bytes, reason: str
) -> None:
    found = disk.restarted()
    found.damage(FILE_NAME, at, data)
    with pytest.raises(LogDamaged, match=reason):
        CatalogFile(found)


def test_a_newer_version_is_not_read(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("twinbus.storage.catalog.FORMAT_VERSION", 9)
        CatalogFile(disk)
    with pytest.raises(LogDamaged, match="version 9"):
        reopened(disk)


def test_a_file_without_a_header(catalog: CatalogFile, disk: SimDisk) -> None:
    found = disk.restarted()
    found.cut_short(FILE_NAME, 100)
    with pytest.raises(LogDamaged, match="too short"):
        CatalogFile(found)


def test_a_new_file_that_was_never_finished_does_not_count(disk: SimDisk) -> None:
    disk.create(NEW_FILE_NAME).write([b"half of it"], 0)
    catalog = CatalogFile(disk)
    assert disk.names() == [FILE_NAME]
    assert known(catalog) == {}


def test_on_a_real_disk(tmp_path: Path) -> None:
    catalog = CatalogFile(OsDisk(tmp_path / "catalog"))
    catalog.making("queue", "orders", TEXT, STORES)
    catalog.there("orders", TEXT, range(1, 17))
    before = known(catalog)
    second = OsDisk(tmp_path / "catalog")
    with pytest.raises(DirectoryInUse):
        CatalogFile(second)
    second.close()
    catalog.close()
    again = CatalogFile(OsDisk(tmp_path / "catalog"))
    assert known(again) == before
    again.close()
