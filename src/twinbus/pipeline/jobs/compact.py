"""Compaction: the many small files of hours that are over become few large ones, in order of time.

For a folder `hour=09`, with everything that is not yet visible under names that readers skip:

    1. write    `_new-hour=09`: the merged files, and at last `_merged`, their names and those of
                the files that they replace; if others have come meanwhile, nothing has happened
    2. swap     `hour=09` and `_new-hour=09` change places in one step (local disks of Linux), or
                by two renames with `_old-hour=09` in between (where there is no such step)
    3. finish   should a file have come just before the swap, it moves over; the old folder goes,
                and `_merged` last

What the next run finds tells how far it had come: before the swap the old files stand and the new
ones go, after it the rest is done.  Messages are never in two visible places, and on local disks
never in none; elsewhere an hour is invisible for the moment between two renames, or until the next
run (of compaction or replay) if a crash hits just that moment.

Never merges what it has not counted: as many messages must have been written as were read.  Never
deletes old files unless all new ones are in their place.  Two runs at a time would disturb each
other; the one that began earlier notices, and ends.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from secrets import token_hex
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from twinbus.errors import TwinbusError
from twinbus.pipeline.jobs.capture import format_options
from twinbus.pipeline.jobs.file_layout import (
    CAPTURE,
    Files,
    files_for,
    folders,
    hour_end,
    hour_folders,
    read_format,
    visible,
)
from twinbus.pipeline.schema import message_schema

MEBIBYTE: Final = 1024 * 1024
FILE_MIB_DEFAULT: Final = 128
GRACE: Final = timedelta(minutes=15)  # a capture writes an hour's last messages a little later
_NEW: Final = "_new-"
_OLD: Final = "_old-"
_MERGED: Final = "_merged"

Merge = Callable[[list[str], str, int], None]  # files to read, folder to write, how many files


class CompactionFailed(TwinbusError):
    """What was written is not what was read; the old files stand."""


@dataclass(frozen=True)
class Compacted:
    """What became of one hour."""

    folder: str
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True)
class Plan:
    """One hour's files, and how many they will be."""

    folder: str
    names: list[str]
    file_count: int


def plan_hour(folder: str, names: dict[str, int], file_bytes: int) -> Plan | None:
    """What to merge; None if it would win nothing."""
    found = visible(names)
    count = max(1, ceil(sum(names[name] for name in found) / file_bytes))
    # Files of nearly the right size are not written again for every small one that comes late.
    small = [name for name in found if names[name] < file_bytes // 2]
    return Plan(folder, found, count) if len(small) > 1 and len(found) > count else None


class HourSwapper:
    """Replaces files of one hour's folder by merged ones; the three steps above."""

    def __init__(self, files: Files, directory: str, folder: str) -> None:
        self._files = files
        parent, _, name = f"{directory}/{folder}".rpartition("/")
        self.current = f"{parent}/{name}"
        self._new = f"{parent}/{_NEW}{name}"
        self._old = f"{parent}/{_OLD}{name}"

    def replace(self, plan: Plan, merge: Merge) -> bool:
        """All three steps; False if the hour has changed meanwhile, and nothing has happened."""
        files = self._files
        merge([f"{self.current}/{name}" for name in plan.names], self._new, plan.file_count)
        for name in files.names(self._new):
            if name.startswith("_"):  # Spark's `_SUCCESS`
                files.delete(f"{self._new}/{name}")
        if visible(files.names(self.current)) != plan.names:
            files.delete(self._new)
            return False
        made = visible(files.names(self._new))
        files.write_text(f"{self._new}/{_MERGED}", json.dumps({"old": plan.names, "new": made}))
        self._swap()
        self._finish()
        return True

    def recover(self) -> None:
        """Finish, or throw away, what an earlier run had begun."""
        files = self._files
        if files.names(self._old):
            self.show()
            self._finish()
        elif _MERGED in files.names(self.current):  # after the swap
            self._finish()
        else:  # before it
            files.delete(self._new)
            files.delete(self._old)

    def show(self) -> None:
        """Only what cannot disturb a run that is under way: an hour between two renames is seen."""
        if self._files.names(self._old) and _MERGED in self._files.names(self._new):
            self._show_new()

    def _swap(self) -> None:
        if self._files.exchange(self.current, self._new):
            return
        self._files.rename(self.current, self._old)
        self._show_new()

    def _show_new(self) -> None:
        # A capture may have made the folder again since it was renamed.
        for name in self._files.names(self.current):
            self._files.rename(f"{self.current}/{name}", f"{self._old}/{name}")
        self._files.delete(self.current)
        self._files.rename(self._new, self.current)

    def _finish(self) -> None:
        files = self._files
        notes = json.loads(files.read_text(f"{self.current}/{_MERGED}") or "{}")
        merged = set(notes.get("old", ()))
        if not set(notes.get("new", ())) <= set(files.names(self.current)):
            merged = set()  # somebody has meddled with the new files: the old ones come back
            for name in notes["new"]:
                files.delete(f"{self.current}/{name}")
        # After an exchange the old files are where the new ones were.
        for place in (self._new, self._old):
            for name in visible(files.names(place)):
                if name not in merged:
                    files.rename(f"{place}/{name}", f"{self.current}/{name}")
            files.delete(place)
        files.delete(f"{self.current}/{_MERGED}")


class Compaction:
    """Goes through a capture, hour by hour."""

    def __init__(self, spark: SparkSession, directory: str, file_mib: int) -> None:
        self._spark = spark
        self._files, self._directory = files_for(spark, directory)
        self._format = read_format(self._files, self._directory)
        self._file_bytes = file_mib * MEBIBYTE
        self._claim = f"{self._directory}/{CAPTURE}/compacting"
        self._token = token_hex(8)

    def recover(self) -> None:
        """To be called first: takes over from an earlier run, and finishes what it had begun."""
        self._files.write_text(self._claim, self._token)
        recover_hours(self._files, self._directory)

    def plans(self, now: datetime) -> list[Plan]:
        """What there is to do in hours that are over."""
        found: list[Plan] = []
        for folder in hour_folders(self._files, self._directory):
            end = hour_end(folder)
            if end is not None and end + GRACE > now:
                continue
            names = self._files.names(f"{self._directory}/{folder}")
            plan = plan_hour(folder, names, self._file_bytes)
            if plan is not None:
                found.append(plan)
        return found

    def compact(self, plan: Plan) -> Compacted | None:
        """Merge one hour; None if it has changed meanwhile, and is left for the next run."""
        swapper = HourSwapper(self._files, self._directory, plan.folder)
        before = self._files.names(swapper.current)
        if not swapper.replace(plan, self._merge):
            return None
        after = self._files.names(swapper.current)
        names, left = visible(before), visible(after)
        return Compacted(
            plan.folder,
            len(names),
            len(left),
            sum(before[name] for name in names),
            sum(after[name] for name in left),
        )

    def _merge(self, paths: list[str], folder: str, file_count: int) -> None:
        messages = self._read(paths)
        writer = in_order(messages, file_count).write.mode("overwrite").format(self._format)
        writer.options(**format_options(self._format)).save(folder)
        read, written = messages.count(), self._read([folder]).count()
        if read != written:
            raise CompactionFailed(f"{folder}: {written} messages written, but {read} were read")
        if self._files.read_text(self._claim) != self._token:
            raise CompactionFailed("another compaction of this directory has begun")

    def _read(self, paths: list[str]) -> DataFrame:
        schema = message_schema(include_amqp=True)
        return self._spark.read.schema(schema).format(self._format).load(paths)


def recover_hours(files: Files, directory: str) -> None:
    """Look for traces of a compaction that was interrupted, and put them right."""
    for swapper in _swappers(files, directory):
        swapper.recover()


def show_hours(files: Files, directory: str) -> None:
    """For readers: no hour is invisible because a compaction was interrupted."""
    for swapper in _swappers(files, directory):
        swapper.show()


def _swappers(files: Files, directory: str) -> Iterator[HourSwapper]:
    for entity in folders(files, directory, "entity="):
        for date in folders(files, f"{directory}/{entity}", "date="):
            names = files.names(f"{directory}/{entity}/{date}")
            hours = {name.partition("-")[2] if name[0] == "_" else name for name in names}
            for hour in sorted(hours):
                yield HourSwapper(files, directory, f"{entity}/{date}/{hour}")


def in_order(messages: DataFrame, file_count: int) -> DataFrame:
    """In so many pieces, one after the other in time, so that readers of a time skip the others."""
    order = ("enqueued_time", "sequence_number")
    if file_count == 1:
        return messages.coalesce(1).sortWithinPartitions(*order)
    return messages.repartitionByRange(file_count, *order).sortWithinPartitions(*order)
