"""How captures put batches into place and compaction swaps hours, interrupted at every step.

The data files here hold lines, a message each; what counts is which of them a reader sees, when.
"""

import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from twinbus.errors import ConfigError
from twinbus.pipeline.jobs.capture import BatchPlacer
from twinbus.pipeline.jobs.compact import HourSwapper, plan_hour, recover_hours, show_hours
from twinbus.pipeline.jobs.file_layout import (
    Files,
    LocalFiles,
    check_format,
    check_name,
    claim_format,
    hour_end,
    hour_folders,
    read_format,
    visible,
)

HOUR = "entity=orders/date=2026-11-16/hour=09"
STEPS_MAX = 60


class Killed(BaseException):
    """The process is gone."""


class MortalFiles(LocalFiles):
    """Dies before its nth change; `can_exchange` is whether the file system can."""

    def __init__(self, steps: int, can_exchange: bool = True) -> None:
        self._left = steps
        self._can_exchange = can_exchange

    def _step(self) -> None:
        if self._left == 0:
            raise Killed
        self._left -= 1

    def rename(self, old: str, new: str) -> None:
        self._step()
        super().rename(old, new)

    def exchange(self, one: str, other: str) -> bool:
        if not self._can_exchange:
            return False
        self._step()
        return super().exchange(one, other)

    def delete(self, path: str) -> None:
        # One file after the other, as it is in truth.
        if Path(path).is_dir():
            for entry in sorted(Path(path).iterdir()):
                self.delete(str(entry))
        if Path(path).exists():
            self._step()
            super().delete(path)

    def write_text(self, path: str, text: str) -> None:
        self._step()
        super().write_text(path, text)


def seen(directory: Path) -> Counter[str]:
    """The messages that a reader finds who knows nothing but the layout and hidden names."""
    found: Counter[str] = Counter()
    for path in directory.rglob("*"):
        parts = path.relative_to(directory).parts
        if path.is_file() and not any(part[0] in "_." for part in parts):
            found.update(path.read_text().split())
    return found


def write(folder: str, name: str, *messages: str) -> None:
    path = Path(folder) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(messages))


def write_batch(staging: str) -> None:
    write(f"{staging}/{HOUR}", "part-0.parquet", "a", "b")
    write(f"{staging}/{HOUR}", "part-1.parquet", "c")
    write(f"{staging}/entity=%24x/date=2026-11-16/hour=10", "part-0.parquet", "d")
    write(staging, "_SUCCESS")


def place(files: Files, directory: Path, write: Callable[[str], None]) -> bool:
    return BatchPlacer(files, str(directory), "capture").place(7, write)


@pytest.mark.proves("D-3")
def test_a_batch_is_captured_once_wherever_the_driver_dies(tmp_path: Path) -> None:
    """No message twice, none missing, and done is done."""
    is_over = False
    for steps in range(STEPS_MAX):
        directory = tmp_path / str(steps)
        calls: list[str] = []

        def count_and_write(staging: str, calls: list[str] = calls) -> None:
            calls.append(staging)
            write_batch(staging)

        try:
            place(MortalFiles(steps), directory, count_and_write)
            is_over = True
        except Killed:
            pass
        assert max(seen(directory).values(), default=1) == 1

        place(LocalFiles(), directory, count_and_write)
        assert seen(directory) == Counter("abcd")
        assert not place(LocalFiles(), directory, count_and_write)
        assert seen(directory) == Counter("abcd")
        assert len(calls) <= 2
        assert not list(directory.rglob("staging"))
        if is_over:
            break
    assert is_over


def test_a_batch_that_was_ready_is_carried_on_with_and_not_read_again(tmp_path: Path) -> None:
    """Meanwhile others may have received its messages: what was written is all there is."""
    with pytest.raises(Killed):
        place(MortalFiles(2), tmp_path, write_batch)
    assert sum(seen(tmp_path).values()) in range(1, 4)
    place(LocalFiles(), tmp_path, lambda _: pytest.fail("written again"))
    assert seen(tmp_path) == Counter("abcd")


def test_a_batch_from_other_offsets_is_not_taken_for_done(tmp_path: Path) -> None:
    placer = BatchPlacer(LocalFiles(), str(tmp_path), "capture")
    write(f"{placer.checkpoint}/offsets", "7", "v1", "orders/0:100")
    placer.place(7, write_batch)
    write(f"{placer.checkpoint}/offsets", "7", "v1", "orders/0:90")
    with pytest.raises(ConfigError, match="other offsets"):
        placer.place(7, write_batch)


def test_a_new_batch_clears_what_the_one_before_has_left(tmp_path: Path) -> None:
    placer = BatchPlacer(LocalFiles(), str(tmp_path), "capture")
    placer.place(7, write_batch)
    placer.place(8, lambda staging: write(f"{staging}/{HOUR}", "part-9.parquet", "e"))
    assert seen(tmp_path) == Counter("abcde")
    assert [path.name for path in (tmp_path / "_capture/capture/done").iterdir()] == ["8"]


# --- compaction -----------------------------------------------------------------------------------


def capture_hour(directory: Path) -> None:
    for at, message in enumerate("abcd"):
        write(str(directory / HOUR), f"0000000{at}-part.parquet", message)


def merge(paths: list[str], folder: str, file_count: int) -> None:
    assert file_count == 1
    texts = [Path(path).read_text() for path in paths]
    write(folder, "merged.parquet", *texts)
    write(folder, "_SUCCESS")


def compact(files: Files, directory: Path) -> bool:
    names = files.names(f"{directory}/{HOUR}")
    plan = plan_hour(HOUR, names, file_bytes=100)
    assert plan is not None
    return HourSwapper(files, str(directory), HOUR).replace(plan, merge)


@pytest.mark.proves("D-3")
@pytest.mark.parametrize("can_exchange", [True, False])
def test_an_hour_is_compacted_wherever_it_is_interrupted(
    tmp_path: Path, can_exchange: bool
) -> None:
    """Readers see every message once; where two folders cannot change places, or none."""
    is_over = False
    for steps in range(STEPS_MAX):
        directory = tmp_path / str(steps)
        capture_hour(directory)
        try:
            compact(MortalFiles(steps, can_exchange), directory)
            is_over = True
        except Killed:
            pass
        found = seen(directory)
        assert found == Counter("abcd") or (not can_exchange and not found)

        # The next run may die, too, anywhere.
        for later in range(STEPS_MAX):
            try:
                recover_hours(MortalFiles(later, can_exchange), str(directory))
            except Killed:
                found = seen(directory)
                assert found == Counter("abcd") or (not can_exchange and not found)
            else:
                break
        assert seen(directory) == Counter("abcd")
        left = {path.name for path in directory.rglob("*") if path.name[0] == "_"}
        assert not left
        if is_over:
            break
    assert is_over


def test_files_that_come_during_compaction_stay(tmp_path: Path) -> None:
    capture_hour(tmp_path)

    def merge_slowly(paths: list[str], folder: str, file_count: int) -> None:
        merge(paths, folder, file_count)
        write(str(tmp_path / HOUR), "late.parquet", "e")

    plan = plan_hour(HOUR, LocalFiles().names(f"{tmp_path}/{HOUR}"), 100)
    assert plan is not None
    swapper = HourSwapper(LocalFiles(), str(tmp_path), HOUR)
    assert not swapper.replace(plan, merge_slowly)
    assert seen(tmp_path) == Counter("abcde")
    assert compact(LocalFiles(), tmp_path)
    assert seen(tmp_path) == Counter("abcde")


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_file_that_comes_just_before_the_swap_moves_over(
    tmp_path: Path, can_exchange: bool
) -> None:
    class LateFiles(MortalFiles):
        def exchange(self, one: str, other: str) -> bool:
            write(one, "late.parquet", "e")
            return super().exchange(one, other)

    capture_hour(tmp_path)
    assert compact(LateFiles(STEPS_MAX, can_exchange), tmp_path)
    assert seen(tmp_path) == Counter("abcde")


def test_old_files_come_back_if_new_ones_are_missing(tmp_path: Path) -> None:
    class MeddledFiles(LocalFiles):
        def exchange(self, one: str, other: str) -> bool:
            (Path(other) / "merged.parquet").unlink()
            return super().exchange(one, other)

    capture_hour(tmp_path)
    compact(MeddledFiles(), tmp_path)
    assert seen(tmp_path) == Counter("abcd")


def test_a_reader_shows_an_hour_that_was_left_between_two_renames(tmp_path: Path) -> None:
    capture_hour(tmp_path)
    hidden = 0
    for steps in range(STEPS_MAX):
        directory = tmp_path / str(steps)
        capture_hour(directory)
        try:
            compact(MortalFiles(steps, can_exchange=False), directory)
            break
        except Killed:
            hidden += not seen(directory)
            show_hours(LocalFiles(), str(directory))
            assert seen(directory) == Counter("abcd")
    assert hidden == 1


def test_only_what_wins_something_is_merged() -> None:
    assert plan_hour(HOUR, {"a": 10}, 100) is None
    assert plan_hour(HOUR, {"a": 90, "b": 95, "c": 10}, 100) is None
    assert plan_hour(HOUR, {"_merged": 1, "a": 10, "folder": -1}, 100) is None
    plan = plan_hour(HOUR, {"a": 90, "b": 20, "c": 10}, 100)
    assert plan is not None
    assert (plan.names, plan.file_count) == (["a", "b", "c"], 2)


# --- layout ---------------------------------------------------------------------------------------


def test_hours_are_found_and_know_when_they_end(tmp_path: Path) -> None:
    capture_hour(tmp_path)
    assert hour_folders(LocalFiles(), str(tmp_path)) == [HOUR]
    assert hour_end(HOUR) == datetime(2026, 11, 16, 10, tzinfo=UTC)
    assert hour_end("entity=x/date=__HIVE_DEFAULT_PARTITION__/hour=00") is None
    assert visible({"b": 1, "a": 2, "_x": 1, "folder": -1}) == ["a", "b"]


def test_a_capture_keeps_its_format(tmp_path: Path) -> None:
    files, directory = LocalFiles(), str(tmp_path / "captured")
    with pytest.raises(ConfigError, match="nothing at"):
        read_format(files, directory)
    assert claim_format(files, directory, "orc") == "orc"
    assert claim_format(files, directory, None) == read_format(files, directory) == "orc"
    with pytest.raises(ConfigError, match="a capture in orc, not in json"):
        claim_format(files, directory, "json")


def test_a_capture_without_its_checkpoint_is_not_begun_anew(tmp_path: Path) -> None:
    capture_hour(tmp_path)
    with pytest.raises(ConfigError, match="capture them once more"):
        claim_format(LocalFiles(), str(tmp_path), None)


@pytest.mark.parametrize("name", ["", "../x", "a/b", "_x", "x" * 65])
def test_names_cannot_lead_elsewhere(name: str) -> None:
    with pytest.raises(ConfigError):
        check_name(name, "--name")
    with pytest.raises(ConfigError):
        check_format(name or "/")


def test_notes_are_replaced_whole(tmp_path: Path) -> None:
    files, path = LocalFiles(), str(tmp_path / "deep" / "note.json")
    assert files.read_text(path) is None
    for number in range(2):
        files.write_text(path, json.dumps(number))
        assert files.read_text(path) == str(number)
    assert files.names(str(tmp_path / "deep")) == {"note.json": 1}
