"""`format("servicebus")`: a data source of Spark that reads and writes the entities of a namespace.

    spark.readStream.format("servicebus").option("connectionString", …).option("entityPath", "q")

Reading plans ranges of sequence numbers and peeks at them: a range can be read again and gives what
is still there of it, and nothing is changed.  Only `settle=delete` changes the bus, and only what
lies below an offset that Spark has committed (docs/reference/spark.md).

Spark pickles readers into other processes and makes new ones as it likes: what a reader learns
stays in its process and is never needed in another.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from twinbus.errors import ConfigError
from twinbus.pipeline.options import SourceOptions
from twinbus.pipeline.schema import BY_NAME, DESTINATION, message_schema
from twinbus.pipeline.sink import writers as sink
from twinbus.pipeline.source.offsets import (
    DataLoss,
    Offset,
    PartitionStock,
    advance,
    capped,
    check_names,
    checked,
    lifted,
    limited,
)
from twinbus.pipeline.source.planning import Task, divided, tasks_between
from twinbus.pipeline.source.rows import RowBuilder
from twinbus.pipeline.source.survey import Survey, reading

FORMAT: Final = "servicebus"
BATCH_ROWS_MAX: Final = 10_000


class ServiceBusDataSource(DataSource):
    """The format `servicebus`, for reading and writing, batch and streaming."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """Asked at `load()`, so this is where a reader learns first what cannot be."""
        options = SourceOptions.parse(self.options)
        Survey(options).stocks()
        return message_schema(options.include_amqp)

    def reader(self, schema: StructType) -> "BatchReader":
        options = SourceOptions.parse(self.options)
        options.check_for_batch(self.options)
        return BatchReader(options, column_names(schema))

    def streamReader(self, schema: StructType) -> "StreamReader":
        options = SourceOptions.parse(self.options)
        options.check_for_stream(self.options)
        return StreamReader(options, column_names(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return sink.batch_writer(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return sink.stream_writer(schema, self.options, overwrite)


def column_names(schema: StructType) -> list[str]:
    """The columns that are asked for; what cannot be given is refused."""
    names: list[str] = []
    for field in schema.fields:
        column = BY_NAME.get(field.name)
        if column is None or column is DESTINATION:
            raise ConfigError(f"a message has no column {field.name[:64]!r}")
        if field.dataType != column.spark:
            raise ConfigError(f"the column {field.name} has the type {column.spark.simpleString()}")
        if not field.nullable:
            raise ConfigError(f"the column {field.name} may be null")
        names.append(field.name)
    if not names:
        raise ConfigError("the schema has no columns")
    return names


def read_task(options: SourceOptions, names: Sequence[str], task: Task) -> Iterator[pa.RecordBatch]:
    """Everything of a task, in batches bounded by bytes and rows."""
    for span in task:
        builder = RowBuilder(
            names,
            options.namespace,
            span.path,
            span.created_ms,
            wanted=span.runs,
            since_ms=options.starting_time_ms,
            until_ms=options.ending_time_ms,
        )
        with reading(options, span.path) as bus:
            for messages in bus.browse(span.path, span.first, span.end):
                yield from builder.batches(messages, BATCH_ROWS_MAX, options.max_batch_bytes)
        if builder.row_count:
            yield builder.take()


class BatchReader(DataSourceReader):
    """A snapshot: what is there when the read is planned, and not settled before it is read."""

    def __init__(self, options: SourceOptions, names: Sequence[str]) -> None:
        self._options = options
        self._names = names

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        survey = Survey(options)
        stocks = survey.all_stocks()
        for given, option in (
            (options.starting, "startingOffsets"),
            (options.ending, "endingOffsets"),
        ):
            if given is not None:
                check_names(given, survey.paths(), option)
        start = checked(options.starting or Offset(), stocks, options.fail_on_data_loss)
        end = limited(advance(start, stocks), options.ending)
        tasks = tasks_between(lifted(start, stocks), end, survey.spelled())
        return [InputPartition(task) for task in divided(tasks, options.task_count, splits=True)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes one partition of None out of no partitions at all.
        return read_task(self._options, self._names, partition.value or [])


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The same, from offset to offset.

    `latestOffset(start)` is called when everything before `start` is committed; `commit` likewise,
    but never for the last batch.  So both settle, and it does not matter which comes first.
    """

    def __init__(self, options: SourceOptions, names: Sequence[str]) -> None:
        self._options = options
        self._names = names
        self._survey = Survey(options)
        self._target: Mapping[str, PartitionStock] | None = None

    def initialOffset(self) -> dict[str, object]:
        """Always the same: Spark does not store it, and asks again after a crash."""
        starting = self._options.starting or Offset()
        if self._options.pattern is None:
            check_names(starting, self._options.paths, "startingOffsets")
        return Offset(starting.positions, starting.created, starting.positions).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_per_trigger
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = {stock.key: stock for stock in self._survey.stocks()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, object]:
        stocks = self._survey.stocks()
        read = self._settled(Offset.from_json(start), stocks)
        if self._target is not None:
            stocks = capped(stocks, self._target)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        return advance(read, stocks, most).to_json()

    def reportLatestOffset(self) -> dict[str, object] | None:
        """For the query's progress: how far it could be."""
        stocks = self._survey.known
        return advance(Offset(), stocks).to_json() if stocks else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        options = self._options
        stocks = self._survey.stocks()
        until = checked(Offset.from_json(end), stocks, options.fail_on_data_loss)
        tasks = tasks_between(Offset.from_json(start), until, self._survey.spelled())
        tasks = self._without_vanished(tasks)
        return [InputPartition(task) for task in divided(tasks, options.task_count, splits=False)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self._options, self._names, partition.value or [])

    def commit(self, end: dict[str, Any]) -> None:
        if self._options.deletes:
            self._settled(Offset.from_json(end), self._survey.stocks())

    def _settled(self, read: Offset, stocks: Sequence[PartitionStock]) -> Offset:
        """What has been read of the entities that are there now, deleted if that is wished."""
        read = checked(read, stocks, self._options.fail_on_data_loss)
        if self._options.deletes:
            self._survey.settle(read)
        return read

    def _without_vanished(self, tasks: Sequence[Task]) -> list[Task]:
        """A batch that is repeated may be about an entity that has matched and is gone since."""
        there = self._survey.spelled()
        kept = [task for task in tasks if task[0].path.lower() in there]
        if len(kept) < len(tasks) and self._options.fail_on_data_loss:
            gone = next(task[0].path for task in tasks if task not in kept)
            raise DataLoss(
                f"{gone[:64]!r} has been deleted before it was read. Begin with a new checkpoint, "
                "or give failOnDataLoss=false to go on without it."
            )
        return kept
