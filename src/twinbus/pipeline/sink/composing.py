"""Values by column → encoded messages: the hot loop of every write, compiled like the broker's.

    header      durable, and the time to live
    annotations partition key, scheduled enqueue time
    properties  ids, session, subject, addresses, content type
    application properties, body

A message is a list of pieces until all of it is known, so that a body is copied once.  A column
that is null in every row is an empty list, and costs a row nothing.  The bytes of a row depend on
its own values and on which columns there are, never on the rows beside it: another try may get it
in other company, and must make the same of it.

A row with `amqp` is sent as these bytes, without what its last broker has written into them.  What
cannot be a message raises `RowRefused` with the number of the row; nothing is ever left out of a
message silently.

Knows nothing of Arrow: `encoding.py` takes the values out of it.
"""

from struct import Struct
from typing import Final

from twinbus.amqp.encoding import encode_string, encode_symbol, encode_uint, encode_value
from twinbus.amqp.shapes import U32
from twinbus.errors import ProtocolError
from twinbus.message import wire_names
from twinbus.message.plain import data_head
from twinbus.message.scan import scan
from twinbus.message.sections import (
    APPLICATION_PROPERTIES,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    encode_map_section,
)
from twinbus.message.stored import TTL_UINT_MAX
from twinbus.pipeline.sink.keys import Outgoing
from twinbus.pipeline.sink.refused import RowRefused

Values = list[object]

_NULL: Final = b"\x40"
_TRUE: Final = b"\x41"
_FALSE: Final = b"\x42"
_TIMESTAMP: Final = Struct(">Bq")
_SIZES: Final = Struct(">II")

_DURABLE: Final = b"\x00\x53\x70\xc0\x02\x01\x41"
_PARTITION_KEY: Final = encode_symbol(wire_names.PARTITION_KEY)
_SCHEDULED: Final = encode_symbol(wire_names.SCHEDULED_TIME)
# What stands before a short text or symbol, by its length.
_TEXTS: Final = [bytes((0xA1, size)) for size in range(256)]
_SYMBOLS: Final = [bytes((0xA3, size)) for size in range(256)]

# The columns of the properties section, in AMQP's order; None: a field that no column has.  A time
# to live that the header cannot hold stands in the difference of two of them, of that row alone.
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
_CONTENT_TYPE: Final = "content_type"
# Service Bus's word for "for ever": what a receiver is told of a message without a time to live.
_FOR_EVER_MS: Final = 922_337_203_685_477


class Maps:
    """The application properties of all rows, end to end: where each row's begin and end."""

    __slots__ = ("begins", "ends", "names", "values")

    def __init__(
        self, begins: list[int], ends: list[int], names: list[str], values: Values
    ) -> None:
        self.begins = begins
        self.ends = ends
        self.names = names
        self.values = values


class Layout:
    """The properties section: the fields that columns tell, and the nulls between them."""

    __slots__ = ("_heads", "_leads", "_tail", "_told", "count")

    def __init__(self, columns: dict[str, Values]) -> None:
        self._leads: list[bytes] = []  # the nulls before each field that is told
        self._told: list[Values] = []
        self._heads: list[list[bytes]] = []
        self.count = 0
        nulls = 0
        for field, name in enumerate(_FIELDS):
            values = None if name is None else columns.get(name)
            if values is not None:
                self.count = field + 1
            if values:
                self._leads.append(_NULL * nulls)
                self._told.append(values)
                self._heads.append(_SYMBOLS if name == _CONTENT_TYPE else _TEXTS)
                nulls = 0
            else:
                nulls += 1
        self._tail = _NULL * (nulls - (len(_FIELDS) - self.count))

    def add(self, pieces: list[bytes], place: int) -> None:
        """The section of a row."""
        at = len(pieces)
        pieces.append(b"")  # the head, when the size is known
        size = len(self._tail)
        for index in range(len(self._told)):
            lead = self._leads[index]
            if lead:
                pieces.append(lead)
                size += len(lead)
            value = self._told[index][place]
            if isinstance(value, str):
                size += _add_text(pieces, value, self._heads[index])
            else:
                encoded = value if isinstance(value, bytes) else _NULL
                pieces.append(encoded)
                size += len(encoded)
        pieces.append(self._tail)
        if size < 255:
            pieces[at] = bytes((0x00, 0x53, PROPERTIES, 0xC0, size + 1, self.count))
        else:
            pieces[at] = bytes((0x00, 0x53, PROPERTIES, 0xD0)) + _SIZES.pack(size + 4, self.count)


class Rows:
    """The columns of some rows, and what becomes of them.  `first` is the number of the first."""

    def __init__(
        self,
        columns: dict[str, Values],
        maps: Maps | None,
        count: int,
        first: int,
        entity_path: str | None,
    ) -> None:
        self._columns = columns
        self._maps = maps
        self._count = count
        self._first = first
        self._destinations = self._found_destinations(entity_path)
        self._ttls: Values = columns.get("time_to_live_ms", [])
        self._has_long_ttl = False
        for ttl in self._ttls:
            if _is_long(ttl):
                self._has_long_ttl = True
        self._names: dict[str, bytes] = {}  # encoded once: rows have the same names, mostly
        # Of rows with `amqp`: the message, and its session id or partition key.
        self._copies: dict[int, tuple[bytes, str | None]] = {}
        for place, encoded in enumerate(columns.get("amqp", [])):
            if isinstance(encoded, bytes):
                self._copies[place] = self._copied(place, encoded)

    def outgoing(self, now_ms: int, keys: list[str]) -> list[Outgoing]:
        """A message for each row, in order; `keys` are their producer keys, or nothing."""
        orders = self._orders()
        data = self._encoded(now_ms)
        # A time of creation is another one in the next try, so it is no part of what is compared.
        steady = self._encoded(0) if self._has_long_ttl else data
        found: list[Outgoing] = []
        for place in range(self._count):
            key = keys[place] if keys else None
            destination = self._destinations[place]
            row = self._first + place
            found.append(Outgoing(row, destination, data[place], orders[place], key, steady[place]))
        return found

    def refused(self, place: int, reason: str) -> RowRefused:
        return RowRefused(self._first + place, self._destinations[place], reason)

    def _column(self, name: str) -> Values:
        found = self._columns.get(name)
        return found or [None] * self._count

    def _found_destinations(self, entity_path: str | None) -> list[str]:
        if entity_path is not None:
            return [entity_path] * self._count
        found: list[str] = []
        for place, destination in enumerate(self._column("destination")):
            if not isinstance(destination, str) or not destination:
                raise RowRefused(self._first + place, None, "the destination is missing")
            found.append(destination)
        return found

    def _orders(self) -> list[str | None]:
        """Session id or partition key of each row."""
        orders: list[str | None] = [None] * self._count
        sessions = self._columns.get("session_id")
        keys = self._columns.get("partition_key")
        if sessions or keys:
            sessions, keys = self._column("session_id"), self._column("partition_key")
            for place in range(self._count):
                if place in self._copies:
                    continue
                session, key = sessions[place], keys[place]
                if session is not None and key is not None and session != key:
                    raise self.refused(place, "session id and partition key differ")
                order = key if session is None else session
                orders[place] = order if isinstance(order, str) else None
        for place, (_, copied) in self._copies.items():
            orders[place] = copied
        return orders

    # --- messages ---------------------------------------------------------------------------------

    def _encoded(self, now_ms: int) -> list[bytes]:
        layout = Layout(self._columns)
        longer = Layout(self._columns | self._times(now_ms)) if self._has_long_ttl else layout
        self._check_symbols(self._columns.get(_CONTENT_TYPE, []))
        partition_keys = self._columns.get("partition_key", [])
        times = self._columns.get("scheduled_enqueue_time", [])
        bodies = self._column("body")
        ttls, maps, copies = self._ttls, self._maps, self._copies
        found: list[bytes] = []
        for place in range(self._count):
            if copies and place in copies:
                found.append(copies[place][0])
                continue
            pieces = [self._header(place) if ttls else _DURABLE]
            if partition_keys or times:
                key = partition_keys[place] if partition_keys else None
                _add_annotations(pieces, key, times[place] if times else None)
            if self._has_long_ttl and _is_long(ttls[place]):
                longer.add(pieces, place)
            elif layout.count:
                layout.add(pieces, place)
            if maps is not None and maps.begins[place] < maps.ends[place]:
                self._add_application(pieces, maps, maps.begins[place], maps.ends[place])
            self._add_body(pieces, place, bodies[place])
            found.append(b"".join(pieces))
        return found

    def _header(self, place: int) -> bytes:
        ttl = self._ttls[place]
        if not isinstance(ttl, int) or ttl >= _FOR_EVER_MS:
            return _DURABLE
        if ttl <= 0:
            raise self.refused(place, f"the time to live is {ttl} ms; it must be positive")
        return _header(True, None, ttl)

    def _times(self, now_ms: int) -> dict[str, Values]:
        """Of rows whose time to live the header cannot hold; encoded already."""
        expiries: Values = []
        for ttl in self._ttls:
            if isinstance(ttl, int) and _is_long(ttl):
                expiries.append(_TIMESTAMP.pack(0x83, now_ms + ttl))
            else:
                expiries.append(None)
        creation: object = _TIMESTAMP.pack(0x83, now_ms)
        return {_EXPIRY: expiries, _CREATION: [creation] * self._count}

    def _check_symbols(self, values: Values) -> None:
        for place, value in enumerate(values):
            if isinstance(value, str) and not value.isascii() and place not in self._copies:
                raise self.refused(place, f"the {_CONTENT_TYPE} has characters beyond ASCII")

    def _add_application(self, pieces: list[bytes], maps: Maps, begin: int, end: int) -> None:
        at = len(pieces)
        pieces.append(b"")
        size = 0
        for entry in range(begin, end):
            name = maps.names[entry]
            encoded = self._names.get(name)
            if encoded is None:
                encoded = self._names[name] = encode_string(name)
            pieces.append(encoded)
            size += len(encoded)
            value = maps.values[entry]
            if isinstance(value, str):
                size += _add_text(pieces, value, _TEXTS)
            else:
                other = _NULL if value is None else encode_value(value)
                pieces.append(other)
                size += len(other)
        count = 2 * (end - begin)
        if size < 255 and count < 256:
            pieces[at] = bytes((0x00, 0x53, APPLICATION_PROPERTIES, 0xC1, size + 1, count))
        else:
            head = bytes((0x00, 0x53, APPLICATION_PROPERTIES, 0xD1))
            pieces[at] = head + _SIZES.pack(size + 4, count)

    def _add_body(self, pieces: list[bytes], place: int, body: object) -> None:
        if isinstance(body, str):
            raw = body.encode()
        elif isinstance(body, bytes):
            raw = body
        else:
            raise self.refused(place, "the body is null")
        pieces.append(data_head(len(raw)))
        pieces.append(raw)

    def _copied(self, place: int, encoded: bytes) -> tuple[bytes, str | None]:
        """An encoded message as it was sent first, and its session id or partition key."""
        try:
            found = scan(encoded)
            order = found.group_id()
            if order is None:
                key = found.annotation(wire_names.PARTITION_KEY)
                order = key if isinstance(key, str) else None
        except ProtocolError as error:
            raise self.refused(place, f"the column amqp holds no message: {error}") from None
        parts = [_header(found.durable, found.priority, found.ttl_ms)]
        if found.annotation_count:
            count, entries = found.annotation_count, found.annotations
            parts.append(encode_map_section(MESSAGE_ANNOTATIONS, count, entries))
        parts.append(found.bare)
        return b"".join(parts), order


def _is_long(ttl: object) -> bool:
    """Whether the header cannot hold it."""
    return isinstance(ttl, int) and TTL_UINT_MAX <= ttl < _FOR_EVER_MS


def _header(durable: bool, priority: int | None, ttl_ms: int) -> bytes:
    """What a sender may say in it; no `ttl_ms` if it is negative."""
    fields = _TRUE if durable else _FALSE
    fields += _NULL if priority is None else bytes((0x50, priority))
    fields += _NULL if ttl_ms < 0 else encode_uint(min(ttl_ms, TTL_UINT_MAX))
    return bytes((0x00, 0x53, HEADER, 0xC0, len(fields) + 1, 3)) + fields


def _add_annotations(pieces: list[bytes], key: object, time_ms: object) -> None:
    entries, count = b"", 0
    if isinstance(key, str):
        entries, count = _PARTITION_KEY + encode_string(key), 2
    if isinstance(time_ms, int):
        entries += _SCHEDULED + _TIMESTAMP.pack(0x83, time_ms)
        count += 2
    if count:
        pieces.append(encode_map_section(MESSAGE_ANNOTATIONS, count, entries))


def _add_text(pieces: list[bytes], value: str, heads: list[bytes]) -> int:
    """A text or symbol; how many bytes it has."""
    raw = value.encode()
    size = len(raw)
    head = heads[size] if size < 256 else bytes((heads[0][0] + 0x10,)) + U32.pack(size)
    pieces.append(head)
    pieces.append(raw)
    return len(head) + size
