"""Sections of an encoded message → the plain values that columns are made of.

Everything here takes the bytes and the borders of one section; bad bytes raise one of `UNREADABLE`
or, where that is all there is to say, give nothing.  How rows are kept is `rows.py`.
"""

from collections.abc import Mapping
from struct import Struct
from struct import error as StructError  # noqa: N812 - an exception by any name
from typing import Final

from twinbus.amqp.decoding import decode_within, skip_within
from twinbus.errors import RemoteProtocolError
from twinbus.message import wire_names
from twinbus.message.scan import list_field, ttl_from_times
from twinbus.message.sections import VALUE, Entries, Outline, entry_name
from twinbus.pipeline.source.texts import json_of, text_of

UNREADABLE: Final = (RemoteProtocolError, UnicodeDecodeError, IndexError, StructError)

# What senders and brokers say in annotations besides the numbers: partition key, scheduled time,
# state, dead-letter source.
Own = tuple[str | None, int | None, str, str | None]
NOTHING_OWN: Final[Own] = (None, None, "active", None)
_STATES: Final[Mapping[object, str]] = {0: "active", 1: "deferred", 2: "scheduled"}

# A column holds no more, whatever a sender claims.
_INT_MAX: Final = (1 << 31) - 1
_LONG_END: Final = 1 << 63

# Whole numbers by their constructor; small ones are read in place, and others are rare.
_WHOLE: Final = {0x71: Struct(">i"), 0x81: Struct(">q")}
_TRUTHS: Final = ("false", "true")


def read_header(raw: bytes) -> tuple[int | None, int]:
    """Time to live in ms, and the delivery count."""
    try:
        ttl = list_field(raw, 0, len(raw), 2) if raw else None
        delivery_count = list_field(raw, 0, len(raw), 4) if raw else None
    except UNREADABLE:
        return None, 0
    return (
        int(ttl) if isinstance(ttl, int) else None,
        min(int(delivery_count), _INT_MAX) if isinstance(delivery_count, int) else 0,
    )


def ttl_of_times(encoded: bytes, at: int, end: int) -> int | None:
    """What the properties say of the time to live; None if they say nothing readable."""
    try:
        ttl_ms = ttl_from_times(encoded, at, end) if at else -1
    except UNREADABLE:
        return None
    return None if ttl_ms < 0 else ttl_ms


def read_annotations(
    encoded: bytes, at: int, end: int
) -> tuple[int | None, int | None, int | None, Own]:
    """Number, first number, enqueued time and the rest, of annotations in any order."""
    try:
        if not at:
            return None, None, None, NOTHING_OWN
        entries = Entries(encoded, at, end)
        found = _read_pairs(encoded, entries.start, end)
    except UNREADABLE:
        return None, None, None, NOTHING_OWN
    return (
        _number(found.get(wire_names.SEQUENCE_NUMBER)),
        _number(found.get(wire_names.ENQUEUE_SEQUENCE_NUMBER)),
        _number(found.get(wire_names.ENQUEUED_TIME)),
        _own_of(found),
    )


def read_own(raw: bytes) -> Own:
    """The rest, from the keys and values that follow the broker's numbers."""
    try:
        return _own_of(_read_pairs(raw, 0, len(raw)))
    except UNREADABLE:
        return NOTHING_OWN


def _read_pairs(data: bytes, at: int, end: int) -> dict[str, object]:
    found: dict[str, object] = {}
    while at < end:
        middle = skip_within(data, at, end)
        name = entry_name(data, at, middle).decode("utf-8", "replace")
        found[name], at = decode_within(data, middle, end)
    return found


def _own_of(found: Mapping[str, object]) -> Own:
    state = found.get(wire_names.MESSAGE_STATE, 0)
    return (
        text_of(found.get(wire_names.PARTITION_KEY)),
        _number(found.get(wire_names.SCHEDULED_TIME)),
        _STATES.get(state if isinstance(state, int) else 0, "active"),
        text_of(found.get(wire_names.DEADLETTER_SOURCE)),
    )


def _number(value: object) -> int | None:
    return int(value) if isinstance(value, int) and -_LONG_END <= value < _LONG_END else None


def find_entries(encoded: bytes, at: int, end: int) -> tuple[int, int]:
    """Where the elements of a list or map begin, and how many there are."""
    if encoded[at] & 0xF0 == 0xC0:
        return at + 3, encoded[at + 2]
    entries = Entries(encoded, at, end)
    return entries.start, entries.count


def read_texts(
    encoded: bytes, at: int, end: int, keys: list[str], values: list[str | None]
) -> None:
    """The entries of a map, appended as texts; the types that SDKs send most without detour."""
    at, count = find_entries(encoded, at, end)
    for _ in range(count >> 1):
        if encoded[at] == 0xA1:
            stop = at + 2 + encoded[at + 1]
            keys.append(encoded[at + 2 : stop].decode())
            at = stop
        else:
            key, at = decode_within(encoded, at, end)
            keys.append(text_of(key) or "")
        code = encoded[at]
        if code == 0xA1:
            stop = at + 2 + encoded[at + 1]
            values.append(encoded[at + 2 : stop].decode())
            at = stop
        elif code == 0x54 or code == 0x55:
            small = encoded[at + 1]
            values.append(str(small if small < 0x80 else small - 0x100))
            at += 2
        elif code == 0x41 or code == 0x42:
            values.append(_TRUTHS[0x42 - code])
            at += 1
        elif code in _WHOLE:
            number = _WHOLE[code]
            values.append(str(number.unpack_from(encoded, at + 1)[0]))
            at += 1 + number.size
        elif code == 0x56:
            values.append(_TRUTHS[encoded[at + 1]])
            at += 2
        else:
            value, at = decode_within(encoded, at, end)
            values.append(text_of(value))
    if at != end:
        raise IndexError("a map ends elsewhere than its size says")


def read_body(outline: Outline) -> tuple[bytes, str]:
    """A value or sequence as bytes, and which it was."""
    values = [decode_within(outline.data, start, end)[0] for start, end in outline.body_borders()]
    if outline.body == VALUE:
        value = values[0]
        if isinstance(value, str):
            return value.encode("utf-8", "replace"), "value"
        return bytes(value) if isinstance(value, bytes) else json_of(value), "value"
    lists = [value for value in values if isinstance(value, list)]
    return json_of([element for each in lists for element in each]), "sequence"
