"""A message of the backlog gets its form back (P-11), as bytes: what need not change is copied.

The rules are those of `pairing/rules.py`; this is the second way to apply them, beside the SDK's
messages in `pairing/rewriting.py`.  On the wire types are right already, but for decimals, which
wait as texts (retyping.py).  What becomes of each section:

    header                  durable and priority stay, time to live comes back, the rest goes
    delivery annotations    only the producer key
    message annotations     without the broker's, with the scheduled time
    properties              with session id and times; otherwise copied
    application properties  without the pair's
    body, footer            copied

Must never look into a body that needs no change.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

from twinbus.amqp.decoding import decode_error, decode_within, skip_within
from twinbus.amqp.encoding import encode_compound, encode_string, encode_symbol, encode_uint
from twinbus.amqp.shapes import WIDTHS
from twinbus.amqp.types import Described
from twinbus.entities.partitions import COUNTER_BITS
from twinbus.errors import RemoteProtocolError
from twinbus.message import wire_names
from twinbus.message.sections import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    Entries,
    encode_map_section,
    entry_name,
    read_section,
)
from twinbus.pairing import rules
from twinbus.pairing.errors import UnrestorableMessageError
from twinbus.pairing.options import RestoredTimeToLive
from twinbus.pairing.rules import DAMAGED, Lifetime, Waiting
from twinbus.pairing.value_types import TypesError, text_of
from twinbus.pipeline.syphon.retyping import retyped, retyped_entries, retyped_sequences

_RESERVED: Final = {name.encode(): name for name in rules.RESERVED}
_BROKER: Final = frozenset(name.encode() for name in wire_names.BROKER_ANNOTATIONS)
_SEQUENCE_NUMBER: Final = wire_names.SEQUENCE_NUMBER.encode()
_ENQUEUED: Final = wire_names.ENQUEUED_TIME.encode()
_SCHEDULED: Final = wire_names.SCHEDULED_TIME.encode()
_PARTITION_KEY: Final = wire_names.PARTITION_KEY.encode()
_SCHEDULED_KEY: Final = encode_symbol(wire_names.SCHEDULED_TIME)
_STAMP_KEY: Final = encode_symbol(wire_names.PRODUCER_KEY)
_TIMESPAN: Final = rules.TIMESPAN.decode()
_NULL: Final = b"\x40"
_COUNTER: Final = (1 << COUNTER_BITS) - 1  # of a sequence number, without its partition

# Fields of the properties list.
_MESSAGE_ID: Final = 0
_CORRELATION_ID: Final = 5
_EXPIRY: Final = 8
_CREATION: Final = 9
_GROUP_ID: Final = 10
# What the SDK writes at most as an absolute expiry time: the end of the year 9999.
_EXPIRY_MS_MAX: Final = 253402243199000


_SHORT_STRING: Final = 0xA1
_SHORT_TEXTS: Final = (_SHORT_STRING, 0xA3)
_LONG: Final = 0x81
_TIMESTAMP: Final = 0x83

_Entry: TypeAlias = tuple[bytes, bytes, int]


@dataclass(slots=True, eq=False)
class RestoredBytes:
    """A message as it was before, encoded, ready for a sender of `path`."""

    number: int  # of its place in the backlog
    enqueued_ms: int  # when it came there
    path: str
    data: bytes
    session_id: str | None
    partition_key: str | None
    key: str | None  # its producer key, which the delivery annotation carries


class _Parts:
    """The sections of a message in the backlog, found but not decoded; 0, 0 = not there."""

    __slots__ = (
        "annotations",
        "application_properties",
        "body",
        "data",
        "footer",
        "header",
        "properties",
    )

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.header = self.annotations = self.properties = (0, 0)
        self.application_properties = self.footer = (0, 0)
        self.body: list[tuple[int, int, int]] = []  # code, where its value begins, and ends
        at, end = 0, len(data)
        while at < end:
            if end - at > 3 and data[at] == 0 and data[at + 1] == 0x53:
                code, start = data[at + 2], at + 3
                at = skip_within(data, start, end)
            else:
                section = read_section(data, at)
                code, start, at = section.code, section.start, section.end
            if code == HEADER:
                self.header = (start, at)
            elif code == MESSAGE_ANNOTATIONS:
                self.annotations = (start, at)
            elif code == PROPERTIES:
                self.properties = (start, at)
            elif code == APPLICATION_PROPERTIES:
                self.application_properties = (start, at)
            elif code == FOOTER:
                self.footer = (start, at)
            elif code != DELIVERY_ANNOTATIONS:
                self.body.append((code, start, at))

    def entries(self, place: tuple[int, int]) -> list[_Entry]:
        """Name and raw key and value of each entry of a map, and where in them the value begins.

        As `sections.map_entries`, with a short way for what nearly all entries are.
        """
        start, end = place
        if not end:
            return []
        data = self.data
        entries = Entries(data, start, end)
        at = entries.start
        found: list[_Entry] = []
        for _ in range(entries.count >> 1):
            if data[at] in _SHORT_TEXTS:
                middle = at + 2 + data[at + 1]
                name = data[at + 2 : middle]
            else:
                middle = skip_within(data, at, end)
                name = entry_name(data, at, middle)
            if middle >= end:
                raise decode_error("map ends within an entry")
            width = WIDTHS[data[middle]]
            stop = middle + 1 + width if width <= 16 else skip_within(data, middle, end)
            found.append((name, data[at:stop], middle - at))
            at = stop
        if at != end or entries.count & 1:
            raise decode_error("map that does not end where its size says")
        return found


def restore_bytes(
    data: bytes,
    now_ms: int,
    time_to_live: RestoredTimeToLive = "original",
    position: str | None = None,
) -> RestoredBytes:
    """The message as it was before it was rewritten, from what a receiver of the backlog gets.

    `position` begins the producer key of a message that has none; its place in the backlog ends it.

    Raises UnrestorableMessageError for what is no message of a pair, damaged or expired.
    """
    try:
        return _restored(_Parts(data), now_ms, time_to_live, position)
    except TypesError as error:
        raise rules.does_not_fit(error) from error
    except (RemoteProtocolError, IndexError) as error:
        raise UnrestorableMessageError(DAMAGED, f"It is no AMQP message: {error}.") from error


def sequence_number_of(data: bytes) -> int:
    """The number that the broker has put on a message; 0 if there is none."""
    parts = _Parts(data)
    for entry in parts.entries(parts.annotations):
        if entry[0] == _SEQUENCE_NUMBER:
            return _number(_value(entry))
    return 0


def _restored(
    parts: _Parts, now_ms: int, mode: RestoredTimeToLive, position: str | None
) -> RestoredBytes:
    given: dict[str, object] = {}
    others: list[_Entry] = []
    for entry in parts.entries(parts.application_properties):
        name = _RESERVED.get(entry[0])
        if name is None:
            others.append(entry)
        else:
            given[name] = _value(entry)
    number = enqueued_ms = 0
    partition_key: str | None = None
    annotations: list[_Entry] = []
    for entry in parts.entries(parts.annotations):
        if entry[0] not in _BROKER:
            annotations.append(entry)
            if entry[0] == _PARTITION_KEY:
                partition_key = text_of(_value(entry))
        elif entry[0] == _SEQUENCE_NUMBER:
            number = _number(_value(entry))
        elif entry[0] == _ENQUEUED:
            enqueued_ms = _number(_value(entry))
    waiting = rules.read_waiting(given)
    fields = _Fields(parts.data, *parts.properties)
    lifetime = rules.restored_lifetime(
        waiting, mode, enqueued_ms or None, _creation_ms(waiting, fields), now_ms
    )
    footer = _copied(parts, FOOTER, *parts.footer)
    body = b"".join([_copied(parts, *each) for each in parts.body])
    if waiting.types:
        fields.check_ids(waiting.types)
        annotations = retyped_entries(annotations, waiting.types, "annotations")
        others = retyped_entries(others, waiting.types, "application_properties")
        last = retyped_entries(parts.entries(parts.footer), waiting.types, "footer")
        footer = _map_section(FOOTER, last)
        body = _retyped_body(parts, waiting.types, body)
    if waiting.scheduled_ms is not None:
        annotations = [entry for entry in annotations if entry[0] != _SCHEDULED]
        time = _timestamp(waiting.scheduled_ms)
        annotations.append((_SCHEDULED, _SCHEDULED_KEY + time, 0))
    key = waiting.key or (f"{position}{number & _COUNTER}" if position and number else None)
    whole = [
        _header(parts, lifetime),
        _stamp(key) if key else b"",
        _map_section(MESSAGE_ANNOTATIONS, annotations),
        fields.restored(waiting, lifetime, now_ms),
        _map_section(APPLICATION_PROPERTIES, others),
        body,
        footer,
    ]
    return RestoredBytes(
        number, enqueued_ms, waiting.path, b"".join(whole), waiting.session_id, partition_key, key
    )


class _Fields:
    """The properties of a message: a list, of which few fields have to change."""

    __slots__ = ("_count", "_data", "_end", "_start", "_whole")

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self._data = data
        self._whole = (at, end)
        self._start = self._count = 0
        self._end = end
        if end:
            entries = Entries(data, at, end)
            self._start, self._count = entries.start, entries.count

    def value(self, index: int) -> object:
        if index >= self._count:
            return None
        return decode_within(self._data, self._skip(self._start, index), self._end)[0]

    def check_ids(self, types: dict[str, object]) -> None:
        """Their types are right on the wire; a note that does not fit still tells of damage."""
        for index, name in ((_MESSAGE_ID, "message_id"), (_CORRELATION_ID, "correlation_id")):
            note = str(types.get(name, ""))
            if note and index < self._count:
                at = self._skip(self._start, index)
                raw = self._data[at : skip_within(self._data, at, self._end)]
                if raw[0] in (0xA0, 0xA1, 0xB0, 0xB1):
                    retyped(raw, note)

    def restored(self, waiting: Waiting, lifetime: Lifetime, now_ms: int) -> bytes:
        """The section with session id, expiry and creation time; empty if it would say nothing."""
        changes: dict[int, bytes] = {}
        if waiting.session_id is not None:
            changes[_GROUP_ID] = encode_string(waiting.session_id)
        if lifetime.expiry_ms is not None:  # the SDK leaves out a time of 0
            changes[_EXPIRY] = _timestamp(lifetime.expiry_ms) if lifetime.expiry_ms else _NULL
        if not rules.is_lasting(lifetime.time_to_live_ms):
            # As every client of Service Bus writes them beside a time to live.
            assert lifetime.time_to_live_ms is not None
            expiry_ms = min(now_ms + lifetime.time_to_live_ms, _EXPIRY_MS_MAX)
            changes[_EXPIRY] = _timestamp(expiry_ms)
            changes[_CREATION] = _timestamp(now_ms)
        at, end = self._whole
        if not changes:
            return b"\x00\x53\x73" + self._data[at:end] if end else b""
        return self._changed(changes)

    def _changed(self, changes: dict[int, bytes]) -> bytes:
        """All of these are among the fields from the eighth to the tenth."""
        data, count = self._data, self._count
        known = min(count, _EXPIRY)
        at = self._skip(self._start, known)
        parts = [data[self._start : at], _NULL * (_EXPIRY - known)]
        for index in (_EXPIRY, _CREATION, _GROUP_ID):
            raw = _NULL
            if index < count:
                after = self._skip(at, 1)
                raw, at = data[at:after], after
            parts.append(changes.get(index, raw))
        if count > _GROUP_ID + 1:
            parts.append(data[at : self._end])
        return b"\x00\x53\x73" + encode_compound(0xC0, max(count, _GROUP_ID + 1), b"".join(parts))

    def _skip(self, at: int, count: int) -> int:
        data, end = self._data, self._end
        for _ in range(count):
            if at < end and data[at] == 0x40:
                at += 1
            else:
                at = skip_within(data, at, end)
        return at


def _creation_ms(waiting: Waiting, fields: _Fields) -> int | None:
    """Only asked for where the rules need it."""
    if waiting.expiry_ms is None:
        return None
    return _number(fields.value(_CREATION)) or None


def _header(parts: _Parts, lifetime: Lifetime) -> bytes:
    """Without the delivery count: deliveries from the backlog are nobody else's business."""
    start, end = parts.header
    durable = priority = _NULL
    if end:
        data = parts.data
        entries = Entries(data, start, end)
        at = entries.start
        if entries.count > 0:
            middle = skip_within(data, at, end)
            durable, at = data[at:middle], middle
        if entries.count > 1:
            priority = data[at : skip_within(data, at, end)]
    time_to_live_ms = lifetime.time_to_live_ms
    ttl = _NULL if time_to_live_ms is None else encode_uint(time_to_live_ms)
    fields = durable + priority + ttl
    if fields == b"\x40\x40\x40":
        return b""
    return b"\x00\x53\x70" + encode_compound(0xC0, 3, fields)


def _stamp(key: str) -> bytes:
    return encode_map_section(DELIVERY_ANNOTATIONS, 2, _STAMP_KEY + encode_string(key))


def _map_section(code: int, entries: list[_Entry]) -> bytes:
    if not entries:
        return b""
    return encode_map_section(code, 2 * len(entries), b"".join([entry[1] for entry in entries]))


def _copied(parts: _Parts, code: int, start: int, end: int) -> bytes:
    return b"\x00\x53" + bytes((code,)) + parts.data[start:end] if end else b""


def _retyped_body(parts: _Parts, types: dict[str, object], body: bytes) -> bytes:
    note = str(types.get("body", ""))
    if not note:
        return body
    if not parts.body:  # to AMQP's clients that is a null
        retyped(_NULL, note)
        return body
    values = [parts.data[start:end] for code, start, end in parts.body if code in (SEQUENCE, VALUE)]
    if parts.body[0][0] == SEQUENCE:
        return b"".join([b"\x00\x53\x76" + each for each in retyped_sequences(values, note)])
    return b"".join([b"\x00\x53\x77" + retyped(each, note) for each in values]) or body


def _value(entry: _Entry) -> object:
    """Of a raw entry, as the rules take it."""
    _, raw, at = entry
    code = raw[at]
    if code == _SHORT_STRING:
        try:
            return raw[at + 2 :].decode()
        except UnicodeDecodeError:
            raise decode_error("text that is not UTF-8") from None
    if code in (_LONG, _TIMESTAMP):
        return int.from_bytes(raw[at + 1 :], signed=True)
    value = decode_within(raw, at, len(raw))[0]
    if isinstance(value, Described):
        if isinstance(value.value, int) and value.descriptor == _TIMESPAN:
            return rules.time_span(value.value)
        return value.value
    return value


def _timestamp(milliseconds: int) -> bytes:
    return b"\x83" + milliseconds.to_bytes(8, signed=True)


def _number(value: object) -> int:
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else 0
