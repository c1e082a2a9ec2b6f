"""Values by column → Arrow: what a read gives to Spark.  Messages are taken apart in `cells.py`."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from twinbus.entities.partitions import COUNTER_BITS
from twinbus.pipeline.schema import arrow_schema
from twinbus.pipeline.source.cells import DEFAULTS, Cells
from twinbus.pipeline.source.runs import Runs

POSITION_CHARS_MAX: Final = 128  # of a producer key
_COUNTER: Final = (1 << COUNTER_BITS) - 1
_COUNTER_CHARS: Final = 1 + len(str(_COUNTER))
_TIME_MS_MIN: Final = -62_135_596_800_000  # the beginning of the year 1
_TIME_MS_MAX: Final = 253_402_300_799_999  # the end of the year 9999
_LONG: Final = pa.int64()
_NO_NUMBER: Final = pa.scalar(None, _LONG)


def position_prefix(namespace: str, path: str, created_ms: int | None, partition: int) -> str:
    """The name of a producer key that no other partition of any bus has, its slash included."""
    room = POSITION_CHARS_MAX - _COUNTER_CHARS
    end = f"@{created_ms or 0}#{partition}"
    prefix = f"{namespace}/{path}".lower()
    if len(prefix) + len(end) > room:
        prefix = f"{namespace}/~{_short_hash(path)}".lower()
    if len(prefix) + len(end) > room:
        prefix = f"~{_short_hash(namespace)}/~{_short_hash(path)}"
    return f"{prefix}{end}/"


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.lower().encode()).hexdigest()[:24]


class RowBuilder:
    """Takes encoded messages of one entity, gives batches with the wanted columns.

    `wanted`: only these numbers.  `since_ms`, `until_ms`: only what was enqueued then or later, and
    before.
    """

    def __init__(
        self,
        names: Sequence[str],
        namespace: str,
        entity_path: str,
        created_ms: int | None,
        *,
        wanted: Runs | None = None,
        since_ms: int | None = None,
        until_ms: int | None = None,
    ) -> None:
        self._schema = arrow_schema(names)
        self._namespace = namespace
        self._entity_path = entity_path
        self._created_ms = created_ms
        self._cells = Cells(names, wanted, since_ms, until_ms)

    @property
    def row_count(self) -> int:
        return self._cells.row_count

    @property
    def size_bytes(self) -> int:
        return self._cells.size_bytes

    def add(self, encoded: bytes) -> None:
        """One more row, unless it is none of the wanted ones."""
        self._cells.add(encoded)

    def batches(
        self, messages: Sequence[bytes], rows_max: int, bytes_max: int
    ) -> Iterator[pa.RecordBatch]:
        """Add the messages; every batch that is full.  What is left waits for more, or `take`."""
        cells = self._cells
        at = 0
        while True:
            at = cells.fill(messages, at, rows_max, bytes_max)
            if cells.row_count < rows_max and cells.size_bytes < bytes_max:
                return
            yield self.take()

    def take(self) -> pa.RecordBatch:
        """All rows since the last time, in the schema's order and types."""
        batch = _Batch(self._cells, self._namespace, self._entity_path, self._created_ms)
        arrays = [batch.array(field.name, field.type) for field in self._schema]
        self._cells.clear()
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class _Batch:
    """The arrays of one batch; what several columns are made of is made once."""

    def __init__(
        self, cells: Cells, namespace: str, entity_path: str, created_ms: int | None
    ) -> None:
        self._cells = cells
        self._columns = cells.columns()
        self._row_count = cells.row_count
        self._namespace = namespace
        self._entity_path = entity_path
        self._created_ms = created_ms
        self._made: dict[str, pa.Array] = {}

    def array(self, name: str, kind: pa.DataType) -> pa.Array:
        if name == "namespace":
            return pa.repeat(pa.scalar(self._namespace, kind), self._row_count)
        if name == "entity_path":
            return pa.repeat(pa.scalar(self._entity_path, kind), self._row_count)
        if name == "partition_id":
            return pc.shift_right(self._plain("sequence_number", _LONG), COUNTER_BITS).cast(kind)
        if name == "enqueued_time" or name == "scheduled_enqueue_time":
            return _times(self._plain(name, _LONG))
        if name == "expires_at":
            ttls = self._plain("time_to_live_ms", _LONG)
            return _times(pc.add(self._plain("enqueued_time", _LONG), ttls))
        if name == "application_properties":
            return self._maps(kind)
        if name == "body_size":
            return pc.binary_length(self._plain("body", pa.binary()))
        if name == "position":
            return self._positions(self._plain("sequence_number", _LONG))
        return self._plain(name, kind)

    def _plain(self, name: str, kind: pa.DataType) -> pa.Array:
        """The values of a column just as they were given."""
        made = self._made.get(name)
        if made is None:
            values = self._columns[name]
            default = DEFAULTS.get(name)
            if not values:
                made = pa.repeat(pa.scalar(default, kind), self._row_count)
            else:
                values += [default] * (self._row_count - len(values))
                made = pa.array(values, kind)
            self._made[name] = made
        return made

    def _maps(self, kind: pa.DataType) -> pa.Array:
        cells = self._cells
        keys = pa.array(cells.map_keys, pa.string())
        values = pa.array(cells.map_values, pa.string())
        ends = pa.array(cells.map_ends, pa.int32())
        return pa.MapArray.from_arrays(ends, keys, values).cast(kind)

    def _positions(self, numbers: pa.Array) -> pa.Array:
        """The producer's name and the counter; null where there is no number."""
        counters = pc.bit_wise_and(numbers, _COUNTER)
        counters = pc.if_else(pc.equal(counters, 0), _NO_NUMBER, counters)
        partitions = pc.shift_right(numbers, COUNTER_BITS)
        names = {
            partition: self._prefix(partition or 0)
            for partition in pc.unique(partitions).to_pylist()
        }
        if len(names) == 1:  # a task's rows mostly come from one partition
            prefixes: pa.Scalar | pa.Array = pa.scalar(*names.values(), pa.string())
        else:
            prefixes = pa.array([names[each] for each in partitions.to_pylist()], pa.string())
        return pc.binary_join_element_wise(prefixes, counters.cast(pa.string()), "")

    def _prefix(self, partition: int) -> str:
        return position_prefix(self._namespace, self._entity_path, self._created_ms, partition)


def _times(ms: pa.Array) -> pa.Array:
    """A sender may claim any time; what no calendar has is the nearest that it has."""
    bounded = pc.min_element_wise(ms, _TIME_MS_MAX, skip_nulls=False)
    bounded = pc.max_element_wise(bounded, _TIME_MS_MIN, skip_nulls=False)
    return bounded.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))
