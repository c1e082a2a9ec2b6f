"""Rows of Arrow → messages: the values of each column; `composing.py` makes messages of them.

Equal rows give equal bytes (`Outgoing.steady`), in every try.
"""

from typing import Final

import pyarrow as pa
from pyspark.sql.types import StructType

from twinbus.pipeline.schema import BY_NAME
from twinbus.pipeline.sink.composing import Maps, Rows, Values
from twinbus.pipeline.sink.keys import Outgoing, fault_of

_APPLICATION: Final = "application_properties"


class MessageEncoder:
    """Encodes the rows of one task; counts them from 1, for what it has to say about them."""

    def __init__(
        self,
        schema: StructType,
        entity_path: str | None = None,
        producer_key_column: str | None = None,
    ) -> None:
        self._places = {
            name: place
            for place, name in enumerate(schema.fieldNames())
            if name == producer_key_column or BY_NAME[name].is_sent
        }
        self._entity_path = entity_path
        self._producer_key_column = producer_key_column
        self._row = 1

    def encode(self, batch: pa.RecordBatch, now_ms: int) -> list[Outgoing]:
        """One message for each row, in order."""
        columns = {
            name: _values(batch.column(place))
            for name, place in self._places.items()
            if name != _APPLICATION
        }
        maps = None
        if _APPLICATION in self._places:
            maps = _maps(batch.column(self._places[_APPLICATION]))
        rows = Rows(columns, maps, batch.num_rows, self._row, self._entity_path)
        self._row += batch.num_rows
        return rows.outgoing(now_ms, self._keys(rows, columns, batch.num_rows))

    def _keys(self, rows: Rows, columns: dict[str, Values], count: int) -> list[str]:
        """The producer keys that the rows have; nothing if they have none."""
        name = self._producer_key_column
        keys: list[str] = []
        if name is not None:
            for place, key in enumerate(columns[name] or [None] * count):
                text = key if isinstance(key, str) else None
                fault = fault_of(text)
                if fault is not None:
                    raise rows.refused(place, fault)
                keys.append(text or "")
        return keys


def _values(column: pa.Array) -> Values:
    """A column as Python values, times as milliseconds since 1970; nothing if all are null."""
    if column.null_count == len(column):
        return []
    if pa.types.is_timestamp(column.type):
        unit_us = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
        return [None if value is None else value // 1_000 for value in unit_us.to_pylist()]
    found: Values = column.to_pylist()
    return found


def _maps(column: pa.MapArray) -> Maps | None:
    """A column of maps, as it is stored: all entries, and where each row's are."""
    if column.null_count == len(column):
        return None
    offsets = column.offsets.to_pylist()
    begins, ends = offsets[:-1], offsets[1:]
    if column.null_count:  # what stands where a map is null does not count
        for place, is_there in enumerate(column.is_valid().to_pylist()):
            if not is_there:
                ends[place] = begins[place]
    return Maps(begins, ends, column.keys.to_pylist(), column.items.to_pylist())
