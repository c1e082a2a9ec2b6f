"""Notes of types (`x-twinbus-types`, pairing/value_types.py), applied to encoded values.

On the wire every value has its type.  Decimals alone wait as texts, since the SDK cannot read them;
so a note changes nothing but those.  It is walked through all the same: one that does not fit its
value tells that the message is damaged, and is refused for the same reasons as elsewhere.
"""

import decimal
from collections.abc import Mapping
from typing import Any, Final

from twinbus.amqp.decoding import decode_whole, skip_within
from twinbus.amqp.encoding import encode_compound, encode_value
from twinbus.amqp.types import Array, Decimal128
from twinbus.message.sections import Entries
from twinbus.pairing.rules import note_of, notes_of
from twinbus.pairing.value_types import LEAVES, TEXTS, Names, TypesError, text_leaf

_LISTS: Final = (0x45, 0xC0, 0xD0)
_MAPS: Final = (0xC1, 0xD1)
_ARRAYS: Final = (0xE0, 0xF0)
_EXPONENT_BIAS: Final = 6176  # of decimal128
_EXPONENT_END: Final = 3 << 12  # larger ones would mean another layout
_SIGNIFICAND_BITS: Final = 113


def retyped(raw: bytes, note: str) -> bytes:
    """An encoded value by its note.  Raises TypesError if it does not fit."""
    if note in LEAVES and note != "STRING":
        return raw
    names = Names(note)
    made, _ = _walk(raw, 0, names)
    names.check_end()
    return made if "DECIMAL128" in note else raw


def retyped_sequences(sections: list[bytes], note: str) -> list[bytes]:
    """The lists of a sequence body: their note begins with the list of them."""
    names = Names(note)
    if names.take() != "LIST":
        raise TypesError("a body of sequences is a list")
    made = [_walk(raw, 0, names)[0] for raw in sections]
    names.check_end()
    return made if "DECIMAL128" in note else sections


def retyped_entries(
    entries: list[tuple[bytes, bytes, int]], types: Mapping[str, Any], place: str
) -> list[tuple[bytes, bytes, int]]:
    """The entries of a map (name, raw key and value, where its value begins) by their notes."""
    notes = notes_of(types, place)
    if not notes:
        return entries
    made: list[tuple[bytes, bytes, int]] = []
    for entry in entries:
        name, raw, middle = entry
        note = note_of(notes, name.decode(errors="replace"))
        made.append((name, raw[:middle] + retyped(raw[middle:], note), middle) if note else entry)
    return made


def _walk(data: bytes, at: int, names: Names) -> tuple[bytes, int]:
    """The value at `at` by the next names, and where it ends."""
    start, after = at, skip_within(data, at, len(data))
    name = names.take()
    while data[at] == 0x00:  # what describes it stays
        at = skip_within(data, at + 1, after)
    code = data[at]
    if (code in _LISTS and name in {"LIST", "ARRAY"}) or (code in _MAPS and name == "MAP"):
        made = _walk_elements(data, at, after, names)
    elif code in _ARRAYS and name in {"LIST", "ARRAY"}:
        made = _walk_array(data[at:after], names)
    else:
        made = _leaf(data[at:after], name)
    return data[start:at] + made, after


def _walk_elements(data: bytes, at: int, end: int, names: Names) -> bytes:
    """Of a list, or keys and values of a map."""
    entries = Entries(data, at, end)
    kind = 0xC1 if data[at] in _MAPS else 0xC0
    if not entries.count:
        return data[at:end]
    parts: list[bytes] = []
    at = entries.start
    for _ in range(entries.count):
        made, at = _walk(data, at, names)
        parts.append(made)
    return encode_compound(kind, entries.count, b"".join(parts))


def _walk_array(raw: bytes, names: Names) -> bytes:
    """Its elements share one type, so they are taken out of it and put into a new one."""
    array = decode_whole(raw)
    assert isinstance(array, Array)
    whole = [encode_value(each) for each in array]
    made = [_walk(each, 0, names)[0] for each in whole]
    if made == whole:
        return raw
    return encode_value(Array([decode_whole(each) for each in made], -1, array.descriptor))


def _leaf(raw: bytes, name: str) -> bytes:
    if name in TEXTS:
        value = decode_whole(raw) if raw[0] in (0xA0, 0xA1, 0xA3, 0xB0, 0xB1, 0xB3) else None
        leaf = text_leaf(value, name)
        return encode_value(decimal128(leaf)) if isinstance(leaf, decimal.Decimal) else raw
    if name not in LEAVES:
        raise TypesError(f"no type: {name[:64]}")
    return raw


def decimal128(value: decimal.Decimal) -> Decimal128:
    """IEEE 754-2008 with a binary significand, in the layout that the SDK writes."""
    sign, digits, exponent = value.as_tuple()
    biased = exponent + _EXPONENT_BIAS if isinstance(exponent, int) else -1
    significand = int("".join(map(str, digits)) or "0")
    if not 0 <= biased < _EXPONENT_END or significand >> _SIGNIFICAND_BITS:
        raise TypesError(f"no decimal of 128 bits: {str(value)[:64]}")
    whole = sign << 127 | biased << _SIGNIFICAND_BITS | significand
    return Decimal128(whole.to_bytes(16))
