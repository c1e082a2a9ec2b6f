"""The meter's files: durable, cut off where they were torn, gathered by the hour."""

import errno
import random

import pytest

from twinbus.metered import DAY_MS, HOUR_MS, Metered, parse_iso
from twinbus.storage import meter_log
from twinbus.storage.meter_log import MeterLog, read_meter
from twinbus.testing.disk import CrashMode, PowerCut, SimDisk

pytestmark = pytest.mark.proves("C-1")

START_MS = parse_iso("2026-11-16T07:00:00Z")
NAME = "2026-11-16.jsonl"
END_MS = START_MS + 1_000 * DAY_MS


def line(at_ms: int, entity: str = "q", operations: int = 1) -> Metered:
    return Metered(at_ms, at_ms + 1_000, "ns", entity, "send", operations, operations)


def log_on(disk: SimDisk, days: int = 0) -> MeterLog:
    return MeterLog(lambda: disk, days)


def total(disk: SimDisk) -> int:
    return sum(each.operations for each in read_meter(disk, 0, END_MS)[0])


def line_count(disk: SimDisk, name: str = NAME) -> int:
    return disk.contents(name).count(b"\n")


@pytest.mark.proves("C-1")
def test_lines_are_there_after_the_power_was_cut() -> None:
    """Durable when `append` has returned."""
    disk = SimDisk()
    log = log_on(disk)
    log.append([line(START_MS), line(START_MS, "other")])
    log.append([line(START_MS + 1_000)])
    found = disk.after_power_cut(random.Random(1), CrashMode.DROP)
    assert total(found) == 3
    assert found.names() == [NAME]


@pytest.mark.proves("C-1")
@pytest.mark.parametrize("mode", list(CrashMode))
@pytest.mark.parametrize("seed", range(5))
def test_a_power_cut_at_any_moment(mode: CrashMode, seed: int) -> None:
    """What was appended is there; what was under way is there or not, and nothing twice."""
    rng = random.Random(seed)
    for cut in range(60):
        disk = SimDisk()
        disk.cut_power_after(cut)
        log = log_on(disk)
        done = begun = 0
        try:
            for second in range(12):  # over the border of an hour, which gathers
                begun += 2
                at_ms = START_MS + HOUR_MS - 6_000 + second * 1_000
                log.append([line(at_ms), line(at_ms, "other")])
                done += 2
        except PowerCut:
            pass
        found = disk.after_power_cut(rng, mode)
        assert done <= total(found) <= begun
        log = log_on(found)
        log.append([line(START_MS + 2 * HOUR_MS)])
        assert done + 1 <= total(found) <= begun + 1


def test_what_was_torn_is_cut_off_and_what_is_damaged_passed_over() -> None:
    disk = SimDisk()
    log = log_on(disk)
    for second in range(3):
        log.append([line(START_MS + second * 1_000)])
    log.close()
    size = disk.size(NAME)
    disk.damage(NAME, 10, b"?")
    disk.damage(NAME, size, b'{"v":1,"from":"2026')
    lines, damaged = read_meter(disk, 0, END_MS)
    assert (len(lines), damaged) == (2, 1)
    disk = disk.restarted()
    log_on(disk).append([line(START_MS + 5_000)])
    lines, damaged = read_meter(disk, 0, END_MS)
    assert (len(lines), damaged) == (3, 1)


def test_an_hour_that_is_over_is_gathered() -> None:
    disk = SimDisk()
    log = log_on(disk)
    for second in range(100):
        log.append([line(START_MS + second * 1_000), line(START_MS + second * 1_000, "other")])
    assert line_count(disk) == 200
    log.append([line(START_MS + HOUR_MS)])
    assert line_count(disk) == 3
    assert total(disk) == 201
    assert [each.operations for each in read_meter(disk, 0, END_MS)[0]] == [100, 100, 1]
    assert disk.names() == [NAME]
    log.append([line(START_MS + HOUR_MS + 1_000)])
    log.append([line(START_MS + DAY_MS)])
    assert disk.names() == [NAME, "2026-11-17.jsonl"]
    assert (line_count(disk), total(disk)) == (3, 203)


def test_a_busy_hour_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter_log, "LOOSE_BYTES_MAX", 2_048)
    disk = SimDisk()
    log = log_on(disk)
    for second in range(500):
        log.append([line(START_MS + second * 1_000)])
        assert disk.size(NAME) < 4_000
    assert total(disk) == 500


def test_a_server_that_starts_again_goes_on_in_the_same_file() -> None:
    disk = SimDisk()
    for second in range(3):
        log = log_on(disk)
        log.append([line(START_MS + second * 1_000)])
        log.close()
        disk = disk.restarted()
    assert (line_count(disk), total(disk)) == (3, 3)
    log_on(disk).append([line(START_MS + HOUR_MS)])
    assert (line_count(disk), total(disk)) == (2, 4)


@pytest.mark.proves("C-1")
@pytest.mark.parametrize("kind", ["write", "sync", "create", "sync_directory", "truncate"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_what_could_not_be_written_is_brought_again(kind: str, nth: int) -> None:
    """A full disk loses nothing and counts nothing twice."""
    disk = SimDisk()
    disk.fail(kind, nth, errno.ENOSPC)
    log = log_on(disk)
    for second in range(8):
        at_ms = START_MS + HOUR_MS - 4_000 + second * 1_000
        for _ in range(2):
            try:
                log.append([line(at_ms)])
            except OSError:
                continue
            break
    assert total(disk) == 8
    assert total(disk.after_power_cut(random.Random(nth), CrashMode.DROP)) == 8


@pytest.mark.parametrize("kind", ["rename", "create", "write", "sync", "sync_directory"])
def test_gathering_that_fails_loses_nothing(kind: str) -> None:
    disk = SimDisk()
    log = log_on(disk)
    log.append([line(START_MS)])
    log.append([line(START_MS + 1_000)])
    disk.fail(kind)
    try:
        log.append([line(START_MS + HOUR_MS)])
    except OSError:
        log.append([line(START_MS + HOUR_MS)])
    assert total(disk) == 3
    log.append([line(START_MS + 2 * HOUR_MS)])
    assert total(disk) == 4
    assert disk.names() == [NAME]


def test_files_that_are_too_old_go() -> None:
    disk = SimDisk()
    log = log_on(disk, days=2)
    for day in range(5):
        log.append([line(START_MS + day * DAY_MS)])
    assert disk.names() == ["2026-11-18.jsonl", "2026-11-19.jsonl", "2026-11-20.jsonl"]


def test_only_what_was_asked_for_is_read() -> None:
    disk = SimDisk()
    log = log_on(disk)
    for day in range(3):
        log.append([line(START_MS + day * DAY_MS, operations=10**day)])
    disk.create("notes.txt").close()
    assert [each.operations for each in read_meter(disk, START_MS, START_MS + DAY_MS)[0]] == [1]
    lines, _ = read_meter(disk, START_MS + DAY_MS, END_MS)
    assert [each.operations for each in lines] == [10, 100]
