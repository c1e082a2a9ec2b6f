"""Rows → encoded AMQP messages, column by column.

    header      durable, and the time to live
    annotations partition key, scheduled enqueue time
    properties  ids, session, subject, addresses, content type
    application properties, body

A row with `amqp` is sent as these bytes, without what its last broker has written into them.  What
cannot be a message raises `RowRefused` with the number of the row; nothing is ever left out of a
message silently.  Equal rows give equal bytes (`Outgoing.steady`), in every try.
"""

from collections.abc import Callable, Iterable
from itertools import repeat
from struct import Struct
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import StructType

from twinbus.amqp.codec import (
    encode_binary,
    encode_string,
    encode_symbol,
    encode_uint,
    encode_value,
)
from twinbus.amqp.message import scan
from twinbus.amqp.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    encode_map_section,
)
from twinbus.amqp.stored import TTL_UINT_MAX
from twinbus.errors import ProtocolError, TwinbusError
from twinbus.pipeline.schema import BY_NAME
from twinbus.pipeline.sink.keys import Outgoing, fault_of

_NULL: Final = b"\x40"
_TRUE: Final = b"\x41"
_FALSE: Final = b"\x42"
_TIMESTAMP: Final = Struct(">Bq")
_SIZE_32: Final = Struct(">II")

_DURABLE: Final = b"\x00\x53\x70\xc0\x02\x01\x41"
_PARTITION_KEY_NAME: Final = "x-opt-partition-key"
_PARTITION_KEY: Final = encode_symbol(_PARTITION_KEY_NAME)
_SCHEDULED: Final = encode_symbol("x-opt-scheduled-enqueue-time")
_DATA_SECTION: Final = bytes((0x00, 0x53, DATA))

# The columns of the properties section, in AMQP's order; None: a field that no column has.  A time
# to live that the header cannot hold stands in the difference of two of them.
_EXPIRY: Final = "absolute-expiry-time"
_CREATION: Final = "creation-time"
_FIELDS: Final[tuple[str | None, ...]] = (
    "message_id",
    None,
    "to",
    "subject",
    "reply_to",
    "correlation_id",
    "content_type",
    None,
    _EXPIRY,
    _CREATION,
    "session_id",
    None,
    "reply_to_session_id",
)
_SYMBOLS: Final = frozenset(("content_type",))
# Service Bus's word for "for ever": what a receiver is told of a message without a time to live.
_FOR_EVER_MS: Final = 922_337_203_685_477


class RowRefused(TwinbusError):
    """A row that cannot be sent: its number in the task, where it was to go, and why."""

    def __init__(self, row: int, destination: str | None, reason: object) -> None:
        where = "" if destination is None else f" to '{destination[:64]}'"
        super().__init__(f"row {row} of the task{where}: {reason}")
        self.row = row
        self.destination = destination


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
        columns = {name: _values(batch.column(place)) for name, place in self._places.items()}
        rows = _Rows(columns, batch.num_rows, self._row, self._entity_path)
        self._row += batch.num_rows
        destinations = self._destinations(rows)
        orders = rows.orders()
        data = rows.encode(now_ms)
        # A time of creation is another one in the next try, so it is no part of what is compared.
        steady = rows.encode(0) if rows.has_long_ttl else data
        keys = self._keys(rows)
        return [
            Outgoing(row, *found)
            for row, found in enumerate(
                zip(destinations, data, orders, keys, steady, strict=True), rows.first
            )
        ]

    def _destinations(self, rows: "_Rows") -> list[str]:
        found = rows.destinations
        for row, destination in enumerate(found, rows.first):
            if not destination:
                raise RowRefused(row, None, "the destination is missing")
        return found

    def _keys(self, rows: "_Rows") -> Iterable[str | None]:
        if self._producer_key_column is None:
            return repeat(None, rows.count)
        keys = rows.column(self._producer_key_column)
        for row, key in enumerate(keys, rows.first):
            fault = fault_of(key)
            if fault is not None:
                raise RowRefused(row, rows.destinations[row - rows.first], fault)
        return keys


class _Rows:
    """The columns of one record batch as Python values, and what becomes of them."""

    def __init__(
        self, columns: dict[str, list[Any]], count: int, first: int, entity_path: str | None
    ) -> None:
        self._columns = columns
        self.count = count
        self.first = first  # the number of the first row
        self.destinations: list[Any] = (
            self.column("destination") if entity_path is None else [entity_path] * count
        )
        self.has_long_ttl = any(
            ttl is not None and TTL_UINT_MAX <= ttl < _FOR_EVER_MS
            for ttl in columns.get("time_to_live_ms", ())
        )
        self._copies: dict[int, tuple[bytes, str | None]] = {}  # of rows with `amqp`
        for place, encoded in enumerate(columns.get("amqp", ())):
            if encoded is not None:
                self._copies[place] = self._copied(place, encoded)

    def column(self, name: str) -> list[Any]:
        return self._columns.get(name) or [None] * self.count

    def orders(self) -> list[str | None]:
        """Session id or partition key of each row."""
        sessions, keys = self.column("session_id"), self.column("partition_key")
        orders: list[str | None] = sessions
        if "partition_key" in self._columns:
            orders = []
            for place, (session, key) in enumerate(zip(sessions, keys, strict=True)):
                if session is not None and key is not None and session != key:
                    raise self._refused(place, "session id and partition key differ")
                orders.append(key if session is None else session)
        if self._copies:
            orders = list(orders)
            for place, (_, order) in self._copies.items():
                orders[place] = order
        return orders

    def encode(self, now_ms: int) -> list[bytes]:
        parts = [self._headers()]
        if self._columns.keys() & {"partition_key", "scheduled_enqueue_time"}:
            parts.append(self._annotations())
        properties = self._properties(now_ms)
        if properties is not None:
            parts.append(properties)
        if "application_properties" in self._columns:
            parts.append(self._application_properties())
        parts.append(self._bodies())
        joined = list(map(b"".join, zip(*parts, strict=True)))
        for place, (data, _) in self._copies.items():
            joined[place] = data
        return joined

    def _headers(self) -> Iterable[bytes]:
        if "time_to_live_ms" not in self._columns:
            return repeat(_DURABLE, self.count)
        headers = []
        for place, ttl in enumerate(self._columns["time_to_live_ms"]):
            if ttl is None or ttl >= _FOR_EVER_MS:
                headers.append(_DURABLE)
            elif ttl > 0:
                headers.append(_header(True, None, ttl))
            else:
                raise self._refused(place, f"the time to live is {ttl} ms; it must be positive")
        return headers

    def _annotations(self) -> Iterable[bytes]:
        keys, times = self.column("partition_key"), self.column("scheduled_enqueue_time")
        sections = []
        for key, time_ms in zip(keys, times, strict=True):
            entries, count = b"", 0
            if key is not None:
                entries, count = _PARTITION_KEY + encode_string(key), 2
            if time_ms is not None:
                entries += _SCHEDULED + _TIMESTAMP.pack(0x83, time_ms)
                count += 2
            sections.append(
                encode_map_section(MESSAGE_ANNOTATIONS, count, entries) if count else b""
            )
        return sections

    def _properties(self, now_ms: int) -> Iterable[bytes] | None:
        """The sections; None if no column belongs there."""
        there = set(self._columns)
        if self.has_long_ttl:
            there |= {_EXPIRY, _CREATION}
        places = [place for place, name in enumerate(_FIELDS) if name in there]
        if not places:
            return None
        count = places[-1] + 1
        fields = [self._field(name, now_ms) for name in _FIELDS[:count]]
        return [_list_section(count, b"".join(row)) for row in zip(*fields, strict=True)]

    def _field(self, name: str | None, now_ms: int) -> Iterable[bytes]:
        if name in {_EXPIRY, _CREATION} and self.has_long_ttl:
            is_expiry = name == _EXPIRY
            return [
                _TIMESTAMP.pack(0x83, now_ms + (ttl if is_expiry else 0))
                if ttl is not None and TTL_UINT_MAX <= ttl < _FOR_EVER_MS
                else _NULL
                for ttl in self._columns["time_to_live_ms"]
            ]
        if name not in self._columns:
            return repeat(_NULL, self.count)
        values = self._columns[name]
        if name not in _SYMBOLS:
            return [_NULL if value is None else _string(value) for value in values]
        for place, value in enumerate(values):
            if value is not None and not value.isascii():
                raise self._refused(place, f"the {name} has characters beyond ASCII")
        return [_NULL if value is None else encode_symbol(value) for value in values]

    def _application_properties(self) -> Iterable[bytes]:
        names: dict[str, bytes] = {}  # encoded once: rows have the same names, mostly
        encode: Callable[[Any], bytes] | None = None
        sections = []
        for properties in self._columns["application_properties"]:
            if not properties:
                sections.append(b"")
                continue
            entries = []
            for name, value in properties:
                encoded = names.get(name)
                if encoded is None:
                    encoded = names[name] = encode_string(name)
                entries.append(encoded)
                if value is None:
                    entries.append(_NULL)
                    continue
                if encode is None:  # all values of a column are of one type
                    encode = _string if isinstance(value, str) else encode_value
                entries.append(encode(value))
            sections.append(
                encode_map_section(APPLICATION_PROPERTIES, len(entries), b"".join(entries))
            )
        return sections

    def _bodies(self) -> Iterable[bytes]:
        bodies = self.column("body")
        sections = []
        for place, body in enumerate(bodies):
            if body is None:
                if place not in self._copies:
                    raise self._refused(place, "the body is null")
                sections.append(b"")
                continue
            raw = body.encode() if isinstance(body, str) else body
            sections.append(_DATA_SECTION + encode_binary(raw))
        return sections

    def _copied(self, place: int, encoded: bytes) -> tuple[bytes, str | None]:
        """An encoded message as it was sent first, and its session id or partition key."""
        try:
            found = scan(encoded)
            order = found.group_id()
            if order is None:
                key = found.annotation(_PARTITION_KEY_NAME)
                order = key if isinstance(key, str) else None
        except ProtocolError as error:
            raise self._refused(place, f"the column amqp holds no message: {error}") from None
        parts = [_header(found.durable, found.priority, found.ttl_ms)]
        if found.annotation_count:
            count, entries = found.annotation_count, found.annotations
            parts.append(encode_map_section(MESSAGE_ANNOTATIONS, count, entries))
        parts.append(found.bare)
        return b"".join(parts), order

    def _refused(self, place: int, reason: str) -> RowRefused:
        return RowRefused(self.first + place, self.destinations[place], reason)


def _values(column: pa.Array) -> list[Any]:
    """A column as Python values; times as milliseconds since 1970."""
    if pa.types.is_timestamp(column.type):
        unit_us = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
        return [None if value is None else value // 1_000 for value in unit_us.to_pylist()]
    found: list[Any] = column.to_pylist()
    return found


def _header(durable: bool, priority: int | None, ttl_ms: int) -> bytes:
    """What a sender may say in it; no `ttl_ms` if it is negative."""
    fields = _TRUE if durable else _FALSE
    fields += _NULL if priority is None else bytes((0x50, priority))
    fields += _NULL if ttl_ms < 0 else encode_uint(min(ttl_ms, TTL_UINT_MAX))
    return bytes((0x00, 0x53, HEADER, 0xC0, len(fields) + 1, 3)) + fields


def _string(value: str) -> bytes:
    raw = value.encode()
    size = len(raw)
    return (b"\xa1%c" % size) + raw if size < 256 else encode_string(value)


def _list_section(count: int, fields: bytes) -> bytes:
    size = len(fields)
    if size < 255:
        return bytes((0x00, 0x53, PROPERTIES, 0xC0, size + 1, count)) + fields
    return bytes((0x00, 0x53, PROPERTIES, 0xD0)) + _SIZE_32.pack(size + 4, count) + fields
