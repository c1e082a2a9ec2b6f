"""Encoded messages → columns → Arrow: the hot loop of every read.

A message is cut at its sections; a section is looked into only if a wanted column needs it.  What
the broker writes in front of every message has a fixed layout (`amqp/stored.py`), and headers and
annotations repeat, so both are mostly compared rather than decoded; anything else goes the long way
round and gives the same.

A section that nobody can read (a broken sender's) leaves its columns null: the row is there and
`amqp` has the bytes.  One bad message must not stop a stream.
"""

import hashlib
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from twinbus.amqp.codec import U32, encode_symbol
from twinbus.amqp.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
)
from twinbus.amqp.stored import (
    ENQUEUE_SEQUENCE_NUMBER,
    ENQUEUED_TIME,
    SEQUENCE_NUMBER,
    TTL_UINT_MAX,
)
from twinbus.entities.partitions import COUNTER_BITS
from twinbus.pipeline.schema import arrow_schema
from twinbus.pipeline.source.decoding import (
    NOTHING_OWN,
    PLACE_COUNT,
    SEQUENCE_AT,
    UNREADABLE,
    VALUE_AT,
    Own,
    Places,
    find_places,
    read_annotations,
    read_body,
    read_fields,
    read_header,
    read_own,
    read_texts,
    ttl_of_times,
)
from twinbus.pipeline.source.runs import Runs, contains

POSITION_CHARS_MAX: Final = 128  # of a producer key
_COUNTER: Final = (1 << COUNTER_BITS) - 1
_COUNTER_CHARS: Final = 1 + len(str(_COUNTER))
_TIME_MS_MIN: Final = -62_135_596_800_000  # the beginning of the year 1
_TIME_MS_MAX: Final = 253_402_300_799_999  # the end of the year 9999

_ANNOTATIONS_AT: Final = 2 * (MESSAGE_ANNOTATIONS - HEADER)
_PROPERTIES_AT: Final = 2 * (PROPERTIES - HEADER)
_APPLICATION_AT: Final = 2 * (APPLICATION_PROPERTIES - HEADER)
_DATA_AT: Final = 2 * (DATA - HEADER)

# A described value with a short descriptor: its start, the descriptor, the constructor, a size.
_SECTION: Final = Struct(">HBBB")

# The annotations as our broker begins them: a map32, then three keys and values.
_KEYS: Final = (
    encode_symbol(SEQUENCE_NUMBER) + b"\x81",
    encode_symbol(ENQUEUED_TIME) + b"\x83",
    encode_symbol(ENQUEUE_SEQUENCE_NUMBER) + b"\x81",
)
_MAP32: Final = 0xD1
_BROKER: Final = Struct(f">9x{len(_KEYS[0])}sq{len(_KEYS[1])}sq{len(_KEYS[2])}sq")
_OWN_AT: Final = _BROKER.size

# Headers and annotations that repeat are read once.  Bounded: every sender can make up new ones.
_REMEMBERED_MAX: Final = 1_024
_REMEMBERED_BYTES_MAX: Final = 256

# Columns by the section they come from.
_PROPERTY_COLUMNS: Final[Mapping[str, int]] = {
    "message_id": 0,
    "to": 2,
    "subject": 3,
    "reply_to": 4,
    "correlation_id": 5,
    "content_type": 6,
    "session_id": 10,
    "reply_to_session_id": 12,
}
_OWN_COLUMNS: Final = {
    "partition_key": 0,
    "scheduled_enqueue_time": 1,
    "state": 2,
    "dead_letter_source": 3,
}
_HEADER_COLUMNS: Final = {"time_to_live_ms", "expires_at", "delivery_count"}
_APPLICATION_COLUMNS: Final = {
    "application_properties",
    "dead_letter_reason",
    "dead_letter_error_description",
}
_BODY_COLUMNS: Final = {"body", "body_type", "body_size"}


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
        self._wanted = wanted
        self._since_ms = since_ms if since_ms is not None else -(1 << 63)
        self._until_ms = until_ms if until_ms is not None else 1 << 63
        self._prefixes: dict[int, str] = {}

        asked = set(names)
        self._needs_header = bool(asked & _HEADER_COLUMNS)
        self._field_count = max(
            (1 + field for name, field in _PROPERTY_COLUMNS.items() if name in asked), default=0
        )
        self._needs_application = bool(asked & _APPLICATION_COLUMNS)
        self._needs_body = bool(asked & _BODY_COLUMNS)
        self._needs_amqp = "amqp" in asked
        self._no_fields = (None,) * self._field_count

        self._headers: dict[bytes, tuple[int | None, int]] = {}
        self._own_known: dict[bytes, Own] = {}
        self._clear()

    def _clear(self) -> None:
        self.size_bytes = 0
        self.row_count = 0
        self._numbers: list[int | None] = []
        self._first_numbers: list[int | None] = []
        self._enqueued: list[int | None] = []
        self._owns: list[Own] = []
        self._ttls: list[int | None] = []
        self._delivery_counts: list[int | None] = []
        # One row's fields after the other's: a list for each would keep the collector busy.
        self._fields: list[str | None] = []
        self._map_ends: list[int | None] = [0]
        self._map_keys: list[str] = []
        self._map_values: list[str | None] = []
        self._reasons: list[str | None] = []
        self._descriptions: list[str | None] = []
        self._bodies: list[bytes | None] = []
        self._body_types: list[str | None] = []
        self._amqp: list[bytes] = []
        # Columns that are kept just as they are given.
        self._kept: dict[str, Sequence[object]] = {
            "sequence_number": self._numbers,
            "enqueued_sequence_number": self._first_numbers,
            "time_to_live_ms": self._ttls,
            "delivery_count": self._delivery_counts,
            "dead_letter_reason": self._reasons,
            "dead_letter_error_description": self._descriptions,
            "body": self._bodies,
            "body_type": self._body_types,
            "amqp": self._amqp,
        }

    # --- taking messages ----------------------------------------------------------------------

    def add(self, encoded: bytes) -> None:
        """One more row, unless it is none of the wanted ones."""
        places = [0] * PLACE_COUNT
        more: list[tuple[int, int]] = []
        at = 0
        end = len(encoded)
        while end - at > 8:  # the short way: sections with short descriptors, in any order
            start, section, code, size = _SECTION.unpack_from(encoded, at)
            place = 2 * (section - HEADER)
            form = code & 0xF0
            if start != 0x0053 or not 0 <= place < PLACE_COUNT:
                break
            if form == 0xA0 or form == 0xC0:
                following = at + 5 + size
            elif form == 0xB0 or form == 0xD0:
                following = at + 8 + U32.unpack_from(encoded, at + 4)[0]
            else:
                break
            if not places[place]:
                places[place] = at + 3
                places[place + 1] = following
            elif place in (_DATA_AT, SEQUENCE_AT):
                more.append((at + 3, following))
            else:
                break
            at = following
        if at != end:
            places, more = find_places(encoded)

        if not self._add_annotations(encoded, places[_ANNOTATIONS_AT], places[_ANNOTATIONS_AT + 1]):
            return
        if self._needs_header:
            self._add_header(encoded, places)
        if self._field_count:
            self._add_properties(encoded, places[_PROPERTIES_AT], places[_PROPERTIES_AT + 1])
        if self._needs_application:
            self._add_application(encoded, places[_APPLICATION_AT], places[_APPLICATION_AT + 1])
        if self._needs_body:
            self._add_body(encoded, places, more)
        if self._needs_amqp:
            self._amqp.append(encoded)
        self.row_count += 1
        self.size_bytes += end

    def _add_annotations(self, encoded: bytes, at: int, end: int) -> bool:
        """What the broker says of it; False if it is none of the wanted."""
        if end - at >= _OWN_AT and encoded[at] == _MAP32:
            key, number, time_key, enqueued, first_key, first_number = _BROKER.unpack_from(
                encoded, at
            )
            if (key, time_key, first_key) == _KEYS:
                raw = encoded[at + _OWN_AT : end]
                own = self._own(raw) if raw else NOTHING_OWN
            else:
                number, first_number, enqueued, own = read_annotations(encoded, at, end)
        else:
            number, first_number, enqueued, own = read_annotations(encoded, at, end)
        if self._wanted is not None and (number is None or not contains(self._wanted, number)):
            return False
        if not self._since_ms <= (enqueued or 0) < self._until_ms:
            return False
        self._numbers.append(number)
        self._first_numbers.append(first_number)
        self._enqueued.append(enqueued)
        self._owns.append(own)
        return True

    def _own(self, raw: bytes) -> Own:
        known = self._own_known.get(raw)
        if known is None:
            known = read_own(raw)
            if len(self._own_known) >= _REMEMBERED_MAX:
                self._own_known.clear()
            if len(raw) <= _REMEMBERED_BYTES_MAX:
                self._own_known[raw] = known
        return known

    def _add_header(self, encoded: bytes, places: Places) -> None:
        raw = encoded[places[0] : places[1]]
        known = self._headers.get(raw)
        if known is None:
            known = read_header(raw)
            if len(self._headers) >= _REMEMBERED_MAX:
                self._headers.clear()
            self._headers[raw] = known
        ttl, delivery_count = known
        if ttl == TTL_UINT_MAX:  # longer than the header can say: the times tell
            ttl = ttl_of_times(encoded, places[_PROPERTIES_AT], places[_PROPERTIES_AT + 1])
        self._ttls.append(ttl)
        self._delivery_counts.append(delivery_count)

    def _add_properties(self, encoded: bytes, at: int, end: int) -> None:
        values: list[str | None] = []
        if at:
            try:
                values = read_fields(encoded, at, end, self._field_count)
            except UNREADABLE:
                pass
        self._fields += values
        if len(values) < self._field_count:
            self._fields += self._no_fields[len(values) :]

    def _add_application(self, encoded: bytes, at: int, end: int) -> None:
        keys = self._map_keys
        values = self._map_values
        began = len(keys)
        is_there = at > 0
        if is_there:
            try:
                read_texts(encoded, at, end, keys, values)
            except UNREADABLE:
                is_there = False
                del keys[began:], values[began:]
        if not is_there:
            self._map_ends[-1] = None  # a map that begins nowhere is null
        self._map_ends.append(len(keys))
        reason = description = None
        if is_there and encoded.find(b"DeadLetter", at, end) >= 0:
            found = dict(zip(keys[began:], values[began:], strict=True))
            reason = found.get("DeadLetterReason")
            description = found.get("DeadLetterErrorDescription")
        self._reasons.append(reason)
        self._descriptions.append(description)

    def _add_body(self, encoded: bytes, places: Places, more: list[tuple[int, int]]) -> None:
        body: bytes | None = None
        kind: str | None = None
        at = places[_DATA_AT]
        if at:
            kind = "data"
            body = encoded[at + (2 if encoded[at] == 0xA0 else 5) : places[_DATA_AT + 1]]
            for start, end in more:
                body += encoded[start + (2 if encoded[start] == 0xA0 else 5) : end]
        elif places[VALUE_AT] or places[SEQUENCE_AT]:
            try:
                body, kind = read_body(encoded, places, more)
            except UNREADABLE:
                body = kind = None
        self._bodies.append(body)
        self._body_types.append(kind)

    # --- giving batches -----------------------------------------------------------------------

    def take(self) -> pa.RecordBatch:
        """All rows since the last time, in the schema's order and types."""
        arrays = [self._array(field.name, field.type) for field in self._schema]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._clear()
        return batch

    def _array(self, name: str, kind: pa.DataType) -> pa.Array:
        if name in _PROPERTY_COLUMNS:
            return pa.array(self._fields[_PROPERTY_COLUMNS[name] :: self._field_count], kind)
        if name in _OWN_COLUMNS:
            if name == "scheduled_enqueue_time":
                return _times(pa.array([own[1] for own in self._owns], pa.int64()))
            place = _OWN_COLUMNS[name]
            return pa.array([own[place] for own in self._owns], kind)
        if name == "namespace":
            return pa.repeat(pa.scalar(self._namespace, kind), self.row_count)
        if name == "entity_path":
            return pa.repeat(pa.scalar(self._entity_path, kind), self.row_count)
        if name == "partition_id":
            numbers = pa.array(self._numbers, pa.int64())
            return pc.shift_right(numbers, COUNTER_BITS).cast(kind)
        if name == "enqueued_time":
            return _times(pa.array(self._enqueued, pa.int64()))
        if name == "expires_at":
            return self._expiries()
        if name == "application_properties":
            return self._maps(kind)
        if name == "body_size":
            return pc.binary_length(pa.array(self._bodies, pa.binary()))
        if name == "position":
            return pa.array([self._position(number) for number in self._numbers], kind)
        return pa.array(self._kept[name], kind)

    def _expiries(self) -> pa.Array:
        """Enqueued time and time to live together."""
        enqueued = pa.array(self._enqueued, pa.int64())
        return _times(pc.add(enqueued, pa.array(self._ttls, pa.int64())))

    def _maps(self, kind: pa.DataType) -> pa.Array:
        keys = pa.array(self._map_keys, pa.string())
        values = pa.array(self._map_values, pa.string())
        ends = pa.array(self._map_ends, pa.int32())
        return pa.MapArray.from_arrays(ends, keys, values).cast(kind)

    def _position(self, number: int | None) -> str | None:
        if number is None or not number & _COUNTER:
            return None
        partition = number >> COUNTER_BITS
        prefix = self._prefixes.get(partition)
        if prefix is None:
            prefix = position_prefix(
                self._namespace, self._entity_path, self._created_ms, partition
            )
            self._prefixes[partition] = prefix
        return f"{prefix}{number & _COUNTER}"


def _times(ms: pa.Array) -> pa.Array:
    """A sender may claim any time; what no calendar has is the nearest that it has."""
    bounded = pc.min_element_wise(ms, _TIME_MS_MAX, skip_nulls=False)
    bounded = pc.max_element_wise(bounded, _TIME_MS_MIN, skip_nulls=False)
    return bounded.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))
