"""Encoded messages → values by column: the hot loop of every read, compiled like the broker's.

A message is cut at its sections; a section is looked into only if a wanted column needs it.  What
the broker writes in front of every message has a fixed layout (`message/stored.py`), and headers
and annotations repeat, so both are mostly compared rather than decoded; anything else goes the long
way round and gives the same.

Most columns of most messages say nothing, or what they always say.  Such a value costs nothing: a
list of values may be shorter than there are rows, and ends with the last one worth a word.

A section that nobody can read (a broken sender's) leaves its columns null: the row is there and
`amqp` has the bytes.  One bad message must not stop a stream.

Knows nothing of Arrow: `rows.py` makes arrays of this.
"""

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Final

from twinbus.amqp.decoding import decode_within
from twinbus.amqp.encoding import encode_symbol
from twinbus.message import property_fields, wire_names
from twinbus.message.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Outline,
    binary_start,
    place_of,
)
from twinbus.message.stored import TTL_UINT_MAX
from twinbus.pipeline.source.decoding import (
    NOTHING_OWN,
    UNREADABLE,
    Own,
    find_entries,
    read_annotations,
    read_body,
    read_header,
    read_own,
    read_texts,
    ttl_of_times,
)
from twinbus.pipeline.source.runs import Runs, contains
from twinbus.pipeline.source.texts import text_of

Values = list[object]

_HEADER_AT: Final = place_of(HEADER)
_ANNOTATIONS_AT: Final = place_of(MESSAGE_ANNOTATIONS)
_PROPERTIES_AT: Final = place_of(PROPERTIES)
_APPLICATION_AT: Final = place_of(APPLICATION_PROPERTIES)
_DATA_AT: Final = place_of(DATA)

# The annotations as our broker begins them: a map32, then three keys, each with a number.
_MAP32: Final = 0xD1
_NUMBER_KEY: Final = encode_symbol(wire_names.SEQUENCE_NUMBER) + b"\x81"
_TIME_KEY: Final = encode_symbol(wire_names.ENQUEUED_TIME) + b"\x83"
_FIRST_KEY: Final = encode_symbol(wire_names.ENQUEUE_SEQUENCE_NUMBER) + b"\x81"
_NUMBER_AT: Final = 9 + len(_NUMBER_KEY)
_TIME_AT: Final = _NUMBER_AT + 8 + len(_TIME_KEY)
_FIRST_AT: Final = _TIME_AT + 8 + len(_FIRST_KEY)
_OWN_AT: Final = _FIRST_AT + 8
_NUMBERS: Final = Struct(f">{_NUMBER_AT}xq{len(_TIME_KEY)}xq{len(_FIRST_KEY)}xq")

# Headers and annotations that repeat are read once.  Bounded: every sender can make up new ones.
_REMEMBERED_MAX: Final = 1_024
_REMEMBERED_BYTES_MAX: Final = 256

# Columns by the section they come from.
_PROPERTY_COLUMNS: Final[Mapping[str, int]] = {
    "message_id": property_fields.MESSAGE_ID,
    "to": property_fields.TO,
    "subject": property_fields.SUBJECT,
    "reply_to": property_fields.REPLY_TO,
    "correlation_id": property_fields.CORRELATION_ID,
    "content_type": property_fields.CONTENT_TYPE,
    "session_id": property_fields.GROUP_ID,
    "reply_to_session_id": property_fields.REPLY_TO_GROUP_ID,
}
_HEADER_COLUMNS: Final = {"time_to_live_ms", "expires_at", "delivery_count"}
_APPLICATION_COLUMNS: Final = {
    "application_properties",
    "dead_letter_reason",
    "dead_letter_error_description",
}
_BODY_COLUMNS: Final = {"body", "body_type", "body_size"}
_ANNOTATION_COLUMNS: Final = {
    "partition_id",
    "sequence_number",
    "enqueued_sequence_number",
    "enqueued_time",
    "expires_at",
    "position",
    "partition_key",
    "scheduled_enqueue_time",
    "state",
    "dead_letter_source",
}

# What a column says where nothing else is told; where nothing stands here: null.
DEFAULTS: Final[Mapping[str, object]] = {
    "delivery_count": 0,
    "state": "active",
    "body_type": "data",
}


class Cells:
    """The values of some messages, by column.

    `wanted`: only these numbers.  `since_ms`, `until_ms`: only what was enqueued then or later, and
    before.
    """

    def __init__(
        self, names: Sequence[str], wanted: Runs | None, since_ms: int | None, until_ms: int | None
    ) -> None:
        self._wanted = wanted
        self._since_ms = since_ms
        self._until_ms = until_ms
        asked = set(names)
        is_choosy = wanted is not None or since_ms is not None or until_ms is not None
        self._needs_annotations = is_choosy or bool(asked & _ANNOTATION_COLUMNS)
        self._needs_header = bool(asked & _HEADER_COLUMNS)
        self._needs_application = bool(asked & _APPLICATION_COLUMNS)
        self._needs_body = bool(asked & _BODY_COLUMNS)
        self._needs_amqp = "amqp" in asked
        self._property_names = {
            field: name for name, field in _PROPERTY_COLUMNS.items() if name in asked
        }
        self._headers: dict[bytes, tuple[int | None, int]] = {}
        self._own_known: dict[bytes, Own] = {}
        self.clear()

    def clear(self) -> None:
        """Begin anew, with no rows."""
        self.row_count = 0
        self.size_bytes = 0
        self._numbers: Values = []
        self._first_numbers: Values = []
        self._enqueued: Values = []
        self._partition_keys: Values = []
        self._scheduled: Values = []
        self._states: Values = []
        self._sources: Values = []
        self._ttls: Values = []
        self._delivery_counts: Values = []
        self._reasons: Values = []
        self._descriptions: Values = []
        self._bodies: Values = []
        self._body_types: Values = []
        self._amqp: Values = []
        self.map_ends: list[int | None] = [0]
        self.map_keys: list[str] = []
        self.map_values: list[str | None] = []
        # By the place of the field in its list; None: nobody wants it.
        self._fields: list[Values | None] = []
        if self._property_names:
            last = max(self._property_names)
            self._fields = [
                [] if field in self._property_names else None for field in range(last + 1)
            ]

    def columns(self) -> dict[str, Values]:
        """The lists by name; one that is too short goes on with the column's default."""
        columns = {
            "sequence_number": self._numbers,
            "enqueued_sequence_number": self._first_numbers,
            "enqueued_time": self._enqueued,
            "partition_key": self._partition_keys,
            "scheduled_enqueue_time": self._scheduled,
            "state": self._states,
            "dead_letter_source": self._sources,
            "time_to_live_ms": self._ttls,
            "delivery_count": self._delivery_counts,
            "dead_letter_reason": self._reasons,
            "dead_letter_error_description": self._descriptions,
            "body": self._bodies,
            "body_type": self._body_types,
            "amqp": self._amqp,
        }
        for field, name in self._property_names.items():
            values = self._fields[field]
            assert values is not None
            columns[name] = values
        return columns

    def fill(self, messages: Sequence[bytes], at: int, rows_max: int, bytes_max: int) -> int:
        """Add messages from this index on until there is enough; the index to go on with."""
        while at < len(messages) and self.row_count < rows_max and self.size_bytes < bytes_max:
            self.add(messages[at])
            at += 1
        return at

    def add(self, encoded: bytes) -> None:
        """One more row, unless it is none of the wanted ones."""
        try:
            outline = Outline(encoded)
        except UNREADABLE:
            outline = Outline(b"")
        places = outline.places
        if self._needs_annotations and not self._add_annotations(
            encoded, places[_ANNOTATIONS_AT], places[_ANNOTATIONS_AT + 1]
        ):
            return
        if self._needs_header and places[_HEADER_AT]:
            self._add_header(encoded, places)
        if self._fields and places[_PROPERTIES_AT]:
            self._add_properties(encoded, places[_PROPERTIES_AT], places[_PROPERTIES_AT + 1])
        if self._needs_application:
            self._add_application(encoded, places[_APPLICATION_AT], places[_APPLICATION_AT + 1])
        if self._needs_body:
            self._add_body(outline)
        if self._needs_amqp:
            self._amqp.append(encoded)
        self.row_count += 1
        self.size_bytes += len(encoded)

    def _add_annotations(self, encoded: bytes, at: int, end: int) -> bool:
        """What the broker says of it; False if it is none of the wanted."""
        number: int | None
        first_number: int | None
        enqueued: int | None
        if (
            end - at >= _OWN_AT
            and encoded[at] == _MAP32
            and encoded[at + 9 : at + _NUMBER_AT] == _NUMBER_KEY
            and encoded[at + _NUMBER_AT + 8 : at + _TIME_AT] == _TIME_KEY
            and encoded[at + _TIME_AT + 8 : at + _FIRST_AT] == _FIRST_KEY
        ):
            number, enqueued, first_number = _NUMBERS.unpack_from(encoded, at)
            own = self._own(encoded[at + _OWN_AT : end]) if end - at > _OWN_AT else NOTHING_OWN
        else:
            number, first_number, enqueued, own = read_annotations(encoded, at, end)
        if self._wanted is not None and (number is None or not contains(self._wanted, number)):
            return False
        if self._since_ms is not None and (enqueued or 0) < self._since_ms:
            return False
        if self._until_ms is not None and (enqueued or 0) >= self._until_ms:
            return False
        self._numbers.append(number)
        self._first_numbers.append(first_number)
        self._enqueued.append(enqueued)
        if own is not NOTHING_OWN:
            self._add_own(own)
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

    def _add_own(self, own: Own) -> None:
        partition_key, scheduled, state, source = own
        row = self.row_count
        if partition_key is not None:
            _put(self._partition_keys, row, partition_key)
        if scheduled is not None:
            _put(self._scheduled, row, scheduled)
        if state != "active":
            _put(self._states, row, state, "active")
        if source is not None:
            _put(self._sources, row, source)

    def _add_header(self, encoded: bytes, places: list[int]) -> None:
        raw = encoded[places[_HEADER_AT] : places[_HEADER_AT + 1]]
        known = self._headers.get(raw)
        if known is None:
            known = read_header(raw)
            if len(self._headers) >= _REMEMBERED_MAX:
                self._headers.clear()
            self._headers[raw] = known
        ttl, delivery_count = known
        if ttl == TTL_UINT_MAX:  # longer than the header can say: the times tell
            ttl = ttl_of_times(encoded, places[_PROPERTIES_AT], places[_PROPERTIES_AT + 1])
        if ttl is not None:
            _put(self._ttls, self.row_count, ttl)
        if delivery_count:
            _put(self._delivery_counts, self.row_count, delivery_count, 0)

    def _add_properties(self, encoded: bytes, at: int, end: int) -> None:
        """The first fields of a list, as texts; most are short texts or nothing."""
        row = self.row_count
        fields = self._fields
        try:
            at, count = find_entries(encoded, at, end)
            for field in range(min(count, len(fields))):
                values = fields[field]
                code = encoded[at]
                if code == 0x40:
                    at += 1
                elif code == 0xA1 or code == 0xA3:
                    stop = at + 2 + encoded[at + 1]
                    if values is not None:
                        _put(values, row, encoded[at + 2 : stop].decode())
                    at = stop
                else:
                    value, at = decode_within(encoded, at, end)
                    if values is not None:
                        _put(values, row, text_of(value))
            if at > end:
                raise IndexError("a field is longer than its list")
        except UNREADABLE:
            for values in fields:
                if values is not None:
                    del values[row:]

    def _add_application(self, encoded: bytes, at: int, end: int) -> None:
        keys = self.map_keys
        values = self.map_values
        began = len(keys)
        is_there = at > 0
        if is_there:
            try:
                read_texts(encoded, at, end, keys, values)
            except UNREADABLE:
                is_there = False
                del keys[began:], values[began:]
        if not is_there:
            self.map_ends[-1] = None  # a map that begins nowhere is null
        elif encoded.find(b"DeadLetter", at, end) >= 0:
            for place in range(began, len(keys)):
                if keys[place] == wire_names.DEAD_LETTER_REASON:
                    _put(self._reasons, self.row_count, values[place])
                elif keys[place] == wire_names.DEAD_LETTER_DESCRIPTION:
                    _put(self._descriptions, self.row_count, values[place])
        self.map_ends.append(len(keys))

    def _add_body(self, outline: Outline) -> None:
        body: bytes | None = None
        kind: str | None = None
        if outline.body == DATA:
            kind = "data"
            encoded = outline.data
            at = outline.places[_DATA_AT]
            body = encoded[binary_start(encoded, at) : outline.places[_DATA_AT + 1]]
            for start, end in outline.more:
                body += encoded[binary_start(encoded, start) : end]
        elif outline.body:
            try:
                body, kind = read_body(outline)
            except UNREADABLE:
                body = kind = None
        self._bodies.append(body)
        if kind != "data":
            _put(self._body_types, self.row_count, kind, "data")


def _put(values: Values, row: int, value: object, default: object = None) -> None:
    """This value for this row, and the default for those that had nothing to say before it."""
    while len(values) < row:
        values.append(default)
    if len(values) > row:
        values[row] = value  # said twice: the last word counts
    else:
        values.append(value)
