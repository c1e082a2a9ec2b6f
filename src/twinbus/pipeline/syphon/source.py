"""`format("servicebus-syphon")`: a stream that brings a backlog home and tells what it did (D-2).

Spark plans, tasks move.  A micro-batch is a round through all backlog queues: one task for each
partition in which something waits, which does the work (mover.py) and gives a row for each
destination and outcome.  Bodies never enter the JVM.

The offset, `{"round": 7, "<queue>/<partition>": next number}`, only tells rounds from each other:
what is still to be done is what is still in the backlog, so a round that is repeated after a crash
finds what is left of it.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from twinbus.client.connection_string import ConnectionString
from twinbus.clock import SystemClock
from twinbus.errors import ConfigError
from twinbus.pairing.options import RestoredTimeToLive
from twinbus.pairing.primary import Primary, primary_of
from twinbus.pipeline.bus.pool import bus_for, using_bus
from twinbus.pipeline.bus.protocol import Bus
from twinbus.pipeline.options import OPERATIONS, GivenOptions
from twinbus.pipeline.source.offsets import split_key
from twinbus.pipeline.source.rows import position_prefix
from twinbus.pipeline.syphon.mover import Memory, Mover
from twinbus.pipeline.syphon.rounds import ROUND, BacklogStock, Rounds, next_offset

FORMAT: Final = "servicebus-syphon"
MAX_PER_TASK_DEFAULT: Final = 50_000
PATIENCE_S_DEFAULT: Final = 150
_PATIENCE_S_MAX: Final = 30 * 24 * 3_600
_SLICE_S: Final = 0.2

SYPHON_OPTIONS: Final[Mapping[str, str]] = {
    "primary": "connection string of where messages belong; required",
    "secondary": "connection string of where their backlog is; required",
    "queues": "the backlog queues, with commas between; required",
    "primaryName": "what the pair calls its primary, if it does not go by its host name",
    "adoptUnmarked": "`true`: queues that several primaries may have used have only this one's",
    "restoredTimeToLive": "`original`: all of it again, or `remaining`: what is left",
    "maxPerTask": "messages that a task brings home before its round ends",
    "patience": "`availableNow` only: seconds without any progress after which it ends",
    "operations": "`auto`, `twinbus` or `standard` (any Service Bus), of the secondary",
}

_COLUMNS: Final = (
    ("queue", StringType(), pa.string()),
    ("partition", IntegerType(), pa.int32()),
    ("destination", StringType(), pa.string()),
    ("outcome", StringType(), pa.string()),
    ("reason", StringType(), pa.string()),
    ("count", LongType(), pa.int64()),
    ("bytes", LongType(), pa.int64()),
    ("first_sequence_number", LongType(), pa.int64()),
    ("last_sequence_number", LongType(), pa.int64()),
)
_ARROW: Final = pa.schema([(name, kind) for name, _, kind in _COLUMNS])


@dataclass(frozen=True)
class SyphonOptions:
    """What a syphon is asked to do, checked.  Pickled into the tasks."""

    primary: str
    secondary: str
    queues: tuple[str, ...]
    identity: Primary
    time_to_live: RestoredTimeToLive
    max_per_task: int
    patience_s: int
    operations: str

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        options = GivenOptions(given, list(SYPHON_OPTIONS))
        primary = options.required("primary", "it says where messages belong")
        secondary = options.required("secondary", "it says where their backlog is")
        hosts = [ConnectionString.parse(text).authority for text in (primary, secondary)]
        primary_name = options.text("primaryName")
        if primary_name is not None and "/" in primary_name:
            raise ConfigError("the option primaryName is a text without '/'")
        queues = options.required("queues", "the names of the backlog queues")
        time_to_live: RestoredTimeToLive = "original"
        if options.choice("restoredTimeToLive", ("original", "remaining")) == "remaining":
            time_to_live = "remaining"
        adopts = options.choice("adoptUnmarked", ("false", "true")) == "true"
        try:
            identity = primary_of(
                hosts[0], primary_name, secondary=hosts[1], adopts_unmarked=adopts
            )
        except ValueError as error:
            raise ConfigError(f"{error} Check the options primary and secondary") from None
        return cls(
            primary,
            secondary,
            tuple(name.strip() for name in queues.split(",") if name.strip()),
            identity,
            time_to_live,
            options.number("maxPerTask", MAX_PER_TASK_DEFAULT, 1, 1 << 40),
            options.number("patience", PATIENCE_S_DEFAULT, 0, _PATIENCE_S_MAX),
            options.choice("operations", OPERATIONS),
        )


class SyphonDataSource(DataSource):
    """The format `servicebus-syphon`; only for streams."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        SyphonOptions.parse(self.options)
        return StructType([StructField(name, kind) for name, kind, _ in _COLUMNS])

    def streamReader(self, schema: StructType) -> "SyphonReader":
        del schema  # there is one
        return SyphonReader(SyphonOptions.parse(self.options))


class SyphonReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans rounds; `read` is the one that works."""

    def __init__(self, options: SyphonOptions) -> None:
        self._options = options
        self._rounds = Rounds()
        self._is_once = False

    def initialOffset(self) -> dict[str, int]:
        return {ROUND: 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._is_once = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, int]:
        """A new round, or `start` if there is nothing to do now; with `availableNow` at all."""
        del limit
        while True:
            now_ms = SystemClock().now().mono_ms
            if self._rounds.should_look(now_ms):
                stocks = self._stocks()
                if self._rounds.should_go(stocks, now_ms):
                    return next_offset(start, stocks)
            if not self._is_once or self._rounds.is_empty:
                return start
            if self._rounds.is_hopeless(now_ms, 1_000 * self._options.patience_s):
                return start
            time.sleep(_SLICE_S)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        del start
        waiting = {stock.key: stock for stock in self._stocks() if stock.is_up and stock.count}
        return [
            InputPartition((*split_key(key), end[key]))
            for key in sorted(end)
            if key != ROUND and key in waiting
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is not None:
            yield moved(self._options, *partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """Tasks have settled what there was to settle."""

    def _stocks(self) -> list[BacklogStock]:
        with using_bus(self._options.secondary, self._options.operations) as backlog:
            return [
                BacklogStock(queue, each.partition, each.is_up, each.next, each.count)
                for queue in self._options.queues
                for each in backlog.entity(queue).partitions
            ]


class _Memories:
    """What this process knows of pairs; a forked one begins with nothing."""

    def __init__(self) -> None:
        self._by_pair: dict[tuple[int, str, str], Memory] = {}

    def of(self, options: SyphonOptions) -> Memory:
        key = (os.getpid(), options.primary, options.secondary)
        return self._by_pair.setdefault(key, Memory())


_MEMORIES: Final = _Memories()


def moved(options: SyphonOptions, queue: str, partition: int, end: int) -> pa.RecordBatch:
    """Bring home what is there of a partition below `end`; what became of it."""
    with using_bus(options.secondary, options.operations) as backlog:
        return _moved(options, backlog, queue, partition, end)


def _moved(
    options: SyphonOptions, backlog: Bus, queue: str, partition: int, end: int
) -> pa.RecordBatch:
    state = backlog.entity(queue)
    position = None
    # Without a time of creation a queue that was made anew would have the same positions again.
    if state.created_ms is not None:
        namespace = ConnectionString.parse(options.secondary).authority
        position = position_prefix(namespace, queue, state.created_ms, partition)
    mover = Mover(
        backlog,
        lambda: bus_for(options.primary, "twinbus"),
        queue,
        options.identity.owner_of(queue),
        _MEMORIES.of(options),
        SystemClock().now,
        time_to_live=options.time_to_live,
        position=position,
    )
    firsts = [each.first for each in state.partitions if each.partition == partition]
    if firsts:
        mover.move(firsts[0], end, options.max_per_task)
    rows = [
        (queue, partition, *key, tally.count, tally.size_bytes, tally.first, tally.last)
        for key, tally in mover.tallies.items()
    ]
    names = [name for name, _, _ in _COLUMNS]
    return pa.RecordBatch.from_pylist([dict(zip(names, row, strict=True)) for row in rows], _ARROW)
