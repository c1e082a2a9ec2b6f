"""A message of the backlog gets its form back (P-11), as bytes: what need not change is copied.

The rules are those of `pairing/rules.py`; this is the second way to apply them, beside the SDK's
messages in `pairing/rewriting.py`.  On the wire types are right already, but for decimals, which
wait as texts (retyping.py).  What becomes of each section:

    header                  durable and priority are copied, the rest goes
    delivery annotations    all go
    message annotations     copied without the broker's
    properties              copied
    application properties  copied without the pair's
    body, footer            copied

Then the rules put back what belongs there.  Must never look into a body that needs no change.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from twinbus.amqp.decoding import decode_error, decode_within, skip_within
from twinbus.amqp.encoding import encode_compound, encode_string, encode_symbol, encode_uint
from twinbus.amqp.shapes import WIDTHS
from twinbus.amqp.types import Described
from twinbus.entities.partitions import COUNTER_BITS
from twinbus.errors import RemoteProtocolError
from twinbus.message import property_fields, wire_names
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
    Outline,
    descriptor,
    encode_map_section,
    entry_name,
)
from twinbus.pairing import rules
from twinbus.pairing.errors import UnrestorableMessageError
from twinbus.pairing.options import RestoredTimeToLive
from twinbus.pairing.value_types import TypesError, text_of
from twinbus.pipeline.syphon.retyping import retyped, retyped_entries, retyped_sequences

_RESERVED: Final = {name.encode(): name for name in rules.RESERVED}
_BROKER: Final = frozenset(name.encode() for name in wire_names.BROKER_ANNOTATIONS)
_PRIMARY: Final = rules.PRIMARY.encode()
_NAMESPACE: Final = rules.NAMESPACE.encode()
_SEQUENCE_NUMBER: Final = wire_names.SEQUENCE_NUMBER.encode()
_ENQUEUED: Final = wire_names.ENQUEUED_TIME.encode()
_PARTITION_KEY: Final = wire_names.PARTITION_KEY.encode()
_TIMESPAN: Final = rules.TIMESPAN.decode()
_NULL: Final = b"\x40"
_COUNTER: Final = (1 << COUNTER_BITS) - 1  # of a sequence number, without its partition

_EXPIRY: Final = "absolute_expiry_time"
_CREATION: Final = "creation_time"
_FIELDS: Final = property_fields.NAMES
# From the first to the last that the rules write.
_MOVED: Final = [_FIELDS.index(rule.field) for rule in rules.RULES if rule.field in _FIELDS]
_FIRST: Final = min(_MOVED)
_END: Final = max(_MOVED) + 1
_KEYS: Final = {rule.field: encode_symbol(rule.field) for rule in rules.RULES}
# What the SDK writes at most as an absolute expiry time: the end of the year 9999.
_EXPIRY_MS_MAX: Final = 253402243199000

_SHORT_STRING: Final = 0xA1
_SHORT_TEXTS: Final = (_SHORT_STRING, 0xA3)
_LONG: Final = 0x81
_TIMESTAMP: Final = 0x83

_Entry: TypeAlias = tuple[bytes, bytes, int]
_Changes: TypeAlias = dict[str, dict[str, bytes]]  # encoded, by section and field


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
    primary: str | None = None  # the mark of the primary that it belongs to
    namespace: str | None = None  # that primary's id, if it has told one


def _entries_of(outline: Outline, code: int) -> list[_Entry]:
    """Name and raw key and value of each entry of a map, and where in them the value begins.

    As `sections.map_entries`, with a short way for what nearly all entries are.
    """
    start, end = outline.borders(code)
    if not end:
        return []
    data = outline.data
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
        return _restored(Outline(data), now_ms, time_to_live, position)
    except TypesError as error:
        raise rules.does_not_fit(error) from error
    except (RemoteProtocolError, IndexError) as error:
        raise UnrestorableMessageError(rules.DAMAGED, f"Not an AMQP message: {error}.") from error


def sequence_number_of(data: bytes) -> int:
    """The number that the broker has put on a message; 0 if there is none."""
    for entry in _entries_of(Outline(data), MESSAGE_ANNOTATIONS):
        if entry[0] == _SEQUENCE_NUMBER:
            return _number(_value(entry))
    return 0


def marks_in(data: bytes) -> tuple[str | None, str | None]:
    """The mark and the id of the primary that a message of the backlog belongs to.

    None for what it does not have, or what cannot be read.
    """
    found: dict[bytes, str | None] = {}
    try:
        for entry in _entries_of(Outline(data), APPLICATION_PROPERTIES):
            if entry[0] in (_PRIMARY, _NAMESPACE):
                found[entry[0]] = text_of(_value(entry))
    except (RemoteProtocolError, IndexError):
        pass
    return found.get(_PRIMARY), found.get(_NAMESPACE)


def _restored(
    outline: Outline, now_ms: int, mode: RestoredTimeToLive, position: str | None
) -> RestoredBytes:
    given: dict[str, object] = {}
    others: list[_Entry] = []
    for entry in _entries_of(outline, APPLICATION_PROPERTIES):
        name = _RESERVED.get(entry[0])
        if name is None:
            others.append(entry)
        else:
            given[name] = _value(entry)
    number = enqueued_ms = 0
    partition_key: str | None = None
    annotations: list[_Entry] = []
    for entry in _entries_of(outline, MESSAGE_ANNOTATIONS):
        mark = entry[0]
        if mark not in _BROKER:
            annotations.append(entry)
            if mark == _PARTITION_KEY:
                partition_key = text_of(_value(entry))
        elif mark == _SEQUENCE_NUMBER:
            number = _number(_value(entry))
        elif mark == _ENQUEUED:
            enqueued_ms = _number(_value(entry))
    fields = _Fields(outline.data, *outline.borders(PROPERTIES))
    key = f"{position}{number & _COUNTER}" if position and number else None
    back = rules.restoration(given, mode, now_ms, enqueued_ms or None, fields.created_ms, key)
    footer = _section(FOOTER, outline.value(FOOTER))
    body = [outline.data[start:end] for start, end in outline.body_borders()]
    if back.types:
        fields.check_ids(back.types)
        maps = {
            rules.ANNOTATIONS: annotations,
            rules.APPLICATION_PROPERTIES: others,
            rules.FOOTER: _entries_of(outline, FOOTER),
        }
        for place in rules.NOTED_MAPS:
            maps[place] = retyped_entries(maps[place], back.types, place)
        annotations, others = maps[rules.ANNOTATIONS], maps[rules.APPLICATION_PROPERTIES]
        footer = _map_section(FOOTER, maps[rules.FOOTER])
        body = _retyped_body(outline.body, body, rules.note_of(back.types, rules.BODY))
    changes = _changes(back, now_ms)
    again = _entries(changes[rules.ANNOTATIONS])
    if again:
        names = {entry[0] for entry in again}
        annotations = [entry for entry in annotations if entry[0] not in names] + again
    whole = [
        _header(outline, changes[rules.HEADER]),
        _map_section(DELIVERY_ANNOTATIONS, _entries(changes[rules.DELIVERY_ANNOTATIONS])),
        _map_section(MESSAGE_ANNOTATIONS, annotations),
        fields.restored(changes[rules.PROPERTIES]),
        _map_section(APPLICATION_PROPERTIES, others),
        *[_section(outline.body, each) for each in body],
        footer,
    ]
    return RestoredBytes(
        number,
        enqueued_ms,
        back.path,
        b"".join(whole),
        back.session_id,
        partition_key,
        back.key,
        back.primary,
        back.namespace,
    )


def _changes(back: rules.Restoration, now_ms: int) -> _Changes:
    """What the rules put back, and what has to be written beside it."""
    made: _Changes = {section: {} for section in rules.SECTIONS}
    lives_ms = 0
    for section, field, form, value in back.changes:
        made[section][field] = _ENCODERS[form](value)
        if value == 0 and section == rules.PROPERTIES:  # the SDK leaves out a time of 0
            made[section][field] = _NULL
        if form == rules.SPAN:
            lives_ms = value
    if not rules.is_lasting(lives_ms):
        # As every client of Service Bus writes them beside a time to live.
        expiry_ms = min(now_ms + lives_ms, _EXPIRY_MS_MAX)
        made[rules.PROPERTIES][_EXPIRY] = _timestamp(expiry_ms)
        made[rules.PROPERTIES][_CREATION] = _timestamp(now_ms)
    return made


class _Fields:
    """Header or properties of a message: a list, of which few fields have to change."""

    __slots__ = ("_count", "_data", "_end", "_start", "_whole")

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self._data = data
        self._whole = (at, end)
        self._start = self._count = 0
        self._end = end
        if end:
            entries = Entries(data, at, end)
            self._start, self._count = entries.start, entries.count

    def first(self, count: int) -> tuple[bytes, int]:
        """The first `count` fields, and where the next one begins."""
        known = min(count, self._count)
        at = self._skip(self._start, known)
        return self._data[self._start : at] + _NULL * (count - known), at

    def created_ms(self) -> int | None:
        index = _FIELDS.index(_CREATION)
        if index >= self._count:
            return None
        at = self._skip(self._start, index)
        return _number(decode_within(self._data, at, self._end)[0]) or None

    def check_ids(self, types: dict[str, object]) -> None:
        """Their types are right on the wire; a note that does not fit still tells of damage."""
        for name in rules.NOTED_FIELDS:
            index, note = _FIELDS.index(name), rules.note_of(types, name)
            if note and index < self._count:
                at = self._skip(self._start, index)
                raw = self._data[at : skip_within(self._data, at, self._end)]
                if raw[0] in (0xA0, 0xA1, 0xB0, 0xB1):
                    retyped(raw, note)

    def restored(self, changes: dict[str, bytes]) -> bytes:
        """The section with these; empty if it would say nothing."""
        data, count = self._data, self._count
        if not changes:
            at, end = self._whole
            return _section(PROPERTIES, data[at:end])
        before, at = self.first(_FIRST)
        parts = [before]
        for index in range(_FIRST, _END):
            raw = _NULL
            if index < count:
                after = self._skip(at, 1)
                raw, at = data[at:after], after
            parts.append(changes.get(_FIELDS[index], raw))
        if count > _END:
            parts.append(data[at : self._end])
        return _section(PROPERTIES, encode_compound(0xC0, max(count, _END), b"".join(parts)))

    def _skip(self, at: int, count: int) -> int:
        data, end = self._data, self._end
        for _ in range(count):
            if at < end and data[at] == 0x40:
                at += 1
            else:
                at = skip_within(data, at, end)
        return at


def _header(outline: Outline, changes: dict[str, bytes]) -> bytes:
    """The first two fields stay; the third is the time to live."""
    stays, _ = _Fields(outline.data, *outline.borders(HEADER)).first(len(rules.HEADER_STAYS))
    fields = stays + changes.get("time_to_live", _NULL)
    if fields == b"\x40\x40\x40":
        return b""
    return _section(HEADER, encode_compound(0xC0, 3, fields))


def _entries(changes: dict[str, bytes]) -> list[_Entry]:
    return [(name.encode(), _KEYS[name] + raw, 0) for name, raw in changes.items()]


def _map_section(code: int, entries: list[_Entry]) -> bytes:
    if not entries:
        return b""
    return encode_map_section(code, 2 * len(entries), b"".join([entry[1] for entry in entries]))


def _section(code: int, value: bytes) -> bytes:
    return descriptor(code) + value if value else b""


def _retyped_body(code: int, values: list[bytes], note: str) -> list[bytes]:
    if not note:
        return values
    if not values:  # to AMQP's clients that is a null
        retyped(_NULL, note)
        return values
    if code == SEQUENCE:
        return retyped_sequences(values, note)
    return [retyped(each, note) for each in values] if code == VALUE else values


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


_ENCODERS: Final[dict[str, Callable[[Any], bytes]]] = {
    rules.TEXT: encode_string,
    rules.TIME: _timestamp,
    rules.SPAN: encode_uint,
}


def _number(value: object) -> int:
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else 0
