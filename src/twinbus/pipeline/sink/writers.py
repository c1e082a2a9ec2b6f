"""The sink of `format("servicebus")`: rows of a batch or a stream are sent to queues and topics.

    rows ─▶ encoding ─▶ chunks and producer keys ─▶ sends ─▶ stored: the task is done

Options and columns are checked on the driver, and so is a destination that all rows share.  A task
returns when the bus has stored every row of it; the first that is refused ends it with an error.
What is sent again by another try has the same keys (keys.py), so there is nothing to commit
and nothing to undo.  docs/concepts/pipeline.md says what is promised.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from twinbus.clock import SystemClock
from twinbus.errors import ConfigError, TwinbusError
from twinbus.pipeline.bus.line import may_pass
from twinbus.pipeline.bus.pool import bus_for, forget, using_bus
from twinbus.pipeline.sink.encoding import MessageEncoder
from twinbus.pipeline.sink.keys import Chunks, Outgoing, keys_of_chunk, own_keys, run_name
from twinbus.pipeline.sink.options import SinkOptions
from twinbus.pipeline.sink.refused import RowRefused
from twinbus.pipeline.sink.sends import Sends


@dataclass
class Sent(WriterCommitMessage):
    """What a task has sent: messages and bytes by destination."""

    messages: dict[str, int]
    size_bytes: dict[str, int]


class SinkTask:
    """The work of one task.  Its tries share the name of the run, the batch and the number."""

    def __init__(
        self, options: SinkOptions, schema: StructType, run: str, batch: int, task: int
    ) -> None:
        self._options = options
        self._run = run
        self._batch = batch
        self._task = task
        self._encoder = MessageEncoder(schema, options.entity_path, options.producer_key_column)
        self._chunk_count = 0

    def write(self, batches: Iterator[pa.RecordBatch]) -> Sent:
        """Send all rows; all are stored when it returns."""
        chunks = self._chunks(batches)
        first = next(chunks, None)
        if first is None:
            return Sent({}, {})
        options = self._options
        bus = bus_for(options.connection_string, options.operations)
        sends = Sends(bus, options.send_batch_bytes)
        try:
            try:
                for chunk in chain([first], chunks):
                    sends.send(chunk, self._keys(chunk))
                sends.wait()
            finally:
                sends.close()
        except RowRefused:
            raise
        except TwinbusError:
            forget(bus)  # whatever is wrong with it, the next try begins with a new one
            raise
        counts = sends.counts
        return Sent(
            {path: count.messages for path, count in counts.items()},
            {path: count.size_bytes for path, count in counts.items()},
        )

    def _chunks(self, batches: Iterator[pa.RecordBatch]) -> Iterator[list[Outgoing]]:
        chunks = Chunks()
        for batch in batches:
            yield from chunks.add(self._encoder.encode(batch, SystemClock().now().utc_ms))
        yield from chunks.rest()

    def _keys(self, chunk: list[Outgoing]) -> list[str]:
        if self._options.producer_key_column is None:
            keys = keys_of_chunk(self._run, self._batch, self._task, self._chunk_count, chunk)
            self._chunk_count += 1
            return keys
        keys, twice = own_keys(chunk)
        if twice is not None:
            raise RowRefused(
                twice.row,
                twice.destination,
                f"its producer key '{(twice.key or '')[:64]}' is another row's, too: the bus would "
                "store only one of them",
            )
        return keys


class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("servicebus")`: one write, with a random name."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._run = run_name(secrets.token_hex(16))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        task = _task_context().partitionId()
        return SinkTask(self._options, self._schema, self._run, 0, task).write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing: what a task has sent is there."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing: what a task has sent cannot be taken back."""


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("servicebus")`: the query and the batch name each write."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        context = _task_context()
        # The query keeps its id in the checkpoint, so after a restart the batch has its old name.
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise TwinbusError("Spark does not tell which query and batch this task belongs to")
        task = SinkTask(
            self._options, self._schema, run_name(query), int(batch), context.partitionId()
        )
        return task.write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing: what a task has sent is there."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing: what was sent is known again when the batch is repeated."""


def batch_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> BatchWriter:
    """The writer of a batch; everything that can be known to be wrong is said here."""
    if overwrite:
        raise ConfigError('a bus cannot be overwritten: use mode("append")')
    checked = _checked(schema, options)
    if checked.entity_path is not None:
        _check_destination(checked, checked.entity_path)
    return BatchWriter(checked, schema)


def stream_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> StreamWriter:
    """The writer of one micro-batch; Spark asks for two of them each time."""
    if overwrite:
        raise ConfigError('a bus cannot be overwritten: use outputMode("append")')
    checked = _checked(schema, options)
    if checked.entity_path is not None:
        try:
            _check_destination(checked, checked.entity_path)
        except TwinbusError as error:
            if not may_pass(error):
                raise
            # A bus that is away for a while ends no query: the tasks wait for it, and try again.
    return StreamWriter(checked, schema)


def _checked(schema: StructType, options: Mapping[str, str]) -> SinkOptions:
    checked = SinkOptions.parse(options)
    checked.check_columns(schema)
    return checked


def _check_destination(options: SinkOptions, path: str) -> None:
    """Is it there, and may we send to it?"""
    with using_bus(options.connection_string, options.operations) as bus:
        bus.open_sender(path).close()


def _task_context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise TwinbusError("a sink is written by tasks of Spark")
    return context
