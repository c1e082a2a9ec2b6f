"""AMQP 1.0 values ⇄ bytes (OASIS AMQP 1.0 part 1, Types).

Decoding never trusts a size or a count: each is checked against the bytes at hand and against
`limits` before anything is allocated, so time and memory are linear in the input.  Bad bytes raise
RemoteProtocolError with the condition amqp:decode-error, and nothing else ever.

Encoding picks the shortest form, except for the elements of an array, which share one constructor.
A value that AMQP cannot express raises LocalProtocolError.
"""

import struct
from struct import Struct
from typing import Final
from uuid import UUID

from twinbus.amqp.types import (
    NOT_DESCRIBED,
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from twinbus.errors import LocalProtocolError, RemoteProtocolError
from twinbus.limits import ELEMENTS_MAX, NESTING_MAX, ZERO_WIDTH_ELEMENTS_MAX

# --- the shape of every type, by its constructor byte --------------------------------------------
SIZE_8: Final = 0xF0  # a one-byte size follows, then that many bytes
SIZE_32: Final = 0xF1  # a four-byte size follows, then that many bytes
DESCRIBED: Final = 0xF2  # two values follow
INVALID: Final = 0xFF
NARROW: Final = 0xEF  # masks the bit that tells 32-bit sizes from 8-bit ones


def _width_table() -> bytes:
    widths = bytearray([INVALID] * 256)
    widths[0x00] = DESCRIBED
    for codes, width in (
        ((0x40, 0x41, 0x42, 0x43, 0x44, 0x45), 0),
        ((0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56), 1),
        ((0x60, 0x61), 2),
        ((0x70, 0x71, 0x72, 0x73, 0x74), 4),
        ((0x80, 0x81, 0x82, 0x83, 0x84), 8),
        ((0x94, 0x98), 16),
        ((0xA0, 0xA1, 0xA3, 0xC0, 0xC1, 0xE0), SIZE_8),
        ((0xB0, 0xB1, 0xB3, 0xD0, 0xD1, 0xF0), SIZE_32),
    ):
        for code in codes:
            widths[code] = width
    return bytes(widths)


WIDTHS: Final[bytes] = _width_table()

U32: Final = Struct(">I")
_U32_TWICE: Final = Struct(">II")

# How the fixed-width numbers are packed, and as what they come out.
_NUMBERS: Final[dict[int, Struct]] = {
    0x50: Struct(">B"),
    0x51: Struct(">b"),
    0x52: Struct(">B"),
    0x53: Struct(">B"),
    0x54: Struct(">b"),
    0x55: Struct(">b"),
    0x60: Struct(">H"),
    0x61: Struct(">h"),
    0x70: Struct(">I"),
    0x71: Struct(">i"),
    0x72: Struct(">f"),
    0x80: Struct(">Q"),
    0x81: Struct(">q"),
    0x82: Struct(">d"),
    0x83: Struct(">q"),
}
_NUMBER_TYPES: Final[dict[int, type]] = {
    0x50: UByte,
    0x51: Byte,
    0x52: UInt,
    0x53: ULong,
    0x54: Int,
    0x55: int,
    0x60: UShort,
    0x61: Short,
    0x70: UInt,
    0x71: Int,
    0x72: Float,
    0x80: ULong,
    0x81: int,
    0x82: float,
    0x83: Timestamp,
}
_NUMBER_CODES: Final[dict[type, int]] = {
    UByte: 0x50,
    Byte: 0x51,
    UShort: 0x60,
    Short: 0x61,
    UInt: 0x70,
    Int: 0x71,
    Float: 0x72,
    ULong: 0x80,
    int: 0x81,
    float: 0x82,
    Timestamp: 0x83,
}


def decode_error(text: str) -> RemoteProtocolError:
    """What every malformed value raises."""
    return RemoteProtocolError(text, "amqp:decode-error")


# --- skipping ------------------------------------------------------------------------------------
def skip_value(data: bytes, at: int) -> int:
    """Where the value at `at` ends.  Only its outline is checked, not what is inside."""
    return skip_within(data, at, len(data))


def skip_within(data: bytes, at: int, end: int) -> int:
    """As skip_value, for a value that must end at or before `end`."""
    owed = 1  # values still to skip; a descriptor adds one, so no recursion is needed
    descriptors = 0
    while owed:
        if at >= end:
            raise decode_error("value cut short")
        width = WIDTHS[data[at]]
        at += 1
        owed -= 1
        if width <= 16:
            at += width
        elif width == SIZE_8:
            if at >= end:
                raise decode_error("size cut short")
            at += 1 + data[at]
        elif width == SIZE_32:
            if at + 4 > end:
                raise decode_error("size cut short")
            size: int = U32.unpack_from(data, at)[0]
            at += 4 + size
        elif width == DESCRIBED:
            descriptors += 1
            if descriptors > NESTING_MAX:
                raise decode_error("descriptors nested too deep")
            owed += 2
        else:
            raise decode_error(f"unknown type code 0x{data[at - 1]:02x}")
        if at > end:
            raise decode_error("value longer than what holds it")
    return at


# --- decoding ------------------------------------------------------------------------------------
def decode_value(data: bytes, at: int) -> tuple[object, int]:
    """The value at `at`, and where it ends."""
    return _decode(data, at, len(data), 0, [ELEMENTS_MAX])


def decode_within(data: bytes, at: int, end: int) -> tuple[object, int]:
    """As decode_value, for a value that must end at or before `end`."""
    return _decode(data, at, end, 0, [ELEMENTS_MAX])


def decode_whole(data: bytes) -> object:
    """The one value that `data` consists of."""
    value, at = _decode(data, 0, len(data), 0, [ELEMENTS_MAX])
    if at != len(data):
        raise decode_error("bytes left over after the value")
    return value


def _decode(data: bytes, at: int, end: int, depth: int, budget: list[int]) -> tuple[object, int]:
    # `budget` counts down the elements of all lists, maps and arrays in one value together: one
    # byte can stand for a whole empty list, so a bound per list alone would let memory multiply.
    if at >= end:
        raise decode_error("value cut short")
    code = data[at]
    if code == 0x00:
        if depth >= NESTING_MAX:
            raise decode_error("values nested too deep")
        descriptor, at = _decode(data, at + 1, end, depth + 1, budget)
        value, at = _decode(data, at, end, depth + 1, budget)
        return Described(descriptor, value), at
    return _decode_content(data, at + 1, end, code, depth, budget)


def _decode_content(
    data: bytes, at: int, end: int, code: int, depth: int, budget: list[int]
) -> tuple[object, int]:
    """A value whose constructor has been read, or an array's element, which has none."""
    width = WIDTHS[code]
    if width <= 16:
        if at + width > end:
            raise decode_error("value cut short")
        return _decode_fixed(data, at, code), at + width
    if width == SIZE_8:
        if at >= end:
            raise decode_error("size cut short")
        start = at + 1
        stop = start + data[at]
    elif width == SIZE_32:
        start = at + 4
        if start > end:
            raise decode_error("size cut short")
        size: int = U32.unpack_from(data, at)[0]
        stop = start + size
    else:
        raise decode_error(f"unknown type code 0x{code:02x}")
    if stop > end:
        raise decode_error("value longer than what holds it")
    if code < 0xC0:
        return _decode_text(data[start:stop], code), stop
    if depth >= NESTING_MAX:
        raise decode_error("values nested too deep")
    start, count = _count(data, start, stop, width, budget)
    if code in (0xC0, 0xD0):
        return _decode_list(data, start, stop, count, depth + 1, budget), stop
    if code in (0xC1, 0xD1):
        return _decode_map(data, start, stop, count, depth + 1, budget), stop
    return _decode_array(data, start, stop, count, depth + 1, budget), stop


def _decode_fixed(data: bytes, at: int, code: int) -> object:
    number = _NUMBERS.get(code)
    if number is not None:
        return _NUMBER_TYPES[code](number.unpack_from(data, at)[0])
    if code == 0x40:
        return None
    if code == 0x41:
        return True
    if code == 0x42:
        return False
    if code == 0x43:
        return UInt(0)
    if code == 0x44:
        return ULong(0)
    if code == 0x45:
        return []
    if code == 0x56:
        if data[at] > 1:
            raise decode_error("boolean is neither 0 nor 1")
        return data[at] == 1
    if code == 0x98:
        return UUID(bytes=data[at : at + 16])
    if code == 0x73:
        point: int = U32.unpack_from(data, at)[0]
        if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
            raise decode_error("not a Unicode character")
        return Char(chr(point))
    if code == 0x74:
        return Decimal32(data[at : at + 4])
    if code == 0x84:
        return Decimal64(data[at : at + 8])
    return Decimal128(data[at : at + 16])


def _decode_text(raw: bytes, code: int) -> object:
    if code & 0x0F == 0:
        return raw
    try:
        if code & 0x0F == 1:
            return raw.decode("utf-8")
        return Symbol(raw.decode("ascii"))
    except UnicodeDecodeError:
        raise decode_error("text that is not UTF-8 (string) or ASCII (symbol)") from None


def _count(data: bytes, start: int, stop: int, width: int, budget: list[int]) -> tuple[int, int]:
    """Read the element count of a list, map or array, and check it before it is believed."""
    if width == SIZE_8:
        if start >= stop:
            raise decode_error("count cut short")
        count = data[start]
        start += 1
    else:
        if start + 4 > stop:
            raise decode_error("count cut short")
        count = U32.unpack_from(data, start)[0]
        start += 4
    if count > budget[0]:
        raise decode_error("too many elements")
    budget[0] -= count
    return start, count


def _decode_list(
    data: bytes, at: int, stop: int, count: int, depth: int, budget: list[int]
) -> list[object]:
    if count > stop - at:
        raise decode_error("more elements than bytes")
    values: list[object] = []
    for _ in range(count):
        value, at = _decode(data, at, stop, depth, budget)
        values.append(value)
    if at != stop:
        raise decode_error("list ends before its size says")
    return values


def _decode_map(
    data: bytes, at: int, stop: int, count: int, depth: int, budget: list[int]
) -> dict[object, object]:
    if count & 1 or count > stop - at:
        raise decode_error("map with half a pair, or more elements than bytes")
    values: dict[object, object] = {}
    for _ in range(count >> 1):
        key, at = _decode(data, at, stop, depth, budget)
        # A list or map as key has no meaning in Python.  A uuid hashes without a secret: whoever
        # picks many that collide would make us compare each with each.
        if isinstance(key, (list, dict, Described, UUID)):
            raise decode_error("map key of a type that is not supported")
        values[key], at = _decode(data, at, stop, depth, budget)
    if at != stop:
        raise decode_error("map ends before its size says")
    if len(values) != count >> 1:
        raise decode_error("map with a key twice")
    return values


def _decode_array(
    data: bytes, at: int, stop: int, count: int, depth: int, budget: list[int]
) -> Array:
    if at >= stop:
        raise decode_error("array without constructor")
    descriptor: object = NOT_DESCRIBED
    if data[at] == 0x00:
        descriptor, at = _decode(data, at + 1, stop, depth, budget)
        if at >= stop:
            raise decode_error("array without constructor")
    code = data[at]
    at += 1
    width = WIDTHS[code]
    if width == 0:
        # Elements that take no bytes: the count is all there is to hold them back.
        if count > ZERO_WIDTH_ELEMENTS_MAX:
            raise decode_error("too many elements of no width")
    elif width >= DESCRIBED or count > stop - at:
        raise decode_error("array of an unknown type, or with more elements than bytes")
    values: list[object] = []
    for _ in range(count):
        value, at = _decode_content(data, at, stop, code, depth, budget)
        values.append(value)
    if at != stop:
        raise decode_error("array ends before its size says")
    return Array(values, code, descriptor)


# --- encoding ------------------------------------------------------------------------------------
def encode_value(value: object) -> bytes:
    """The shortest encoding of a value."""
    return _encode(value, 0)


def _cannot(value: object) -> LocalProtocolError:
    return LocalProtocolError(f"no AMQP encoding for this {type(value).__name__}")


def _encode(value: object, depth: int) -> bytes:
    if value is None:
        return b"\x40"
    if isinstance(value, str):
        return _encode_text(value)
    if isinstance(value, bool):
        return b"\x41" if value else b"\x42"
    # By its exact type: a compiled isinstance(value, int) would make it a plain number.
    code = _NUMBER_CODES.get(type(value), 0)
    if code:
        return _encode_number(value, code)
    if isinstance(value, bytes):
        return _encode_bytes(value)
    if isinstance(value, UUID):
        return b"\x98" + value.bytes
    if depth >= NESTING_MAX:
        raise LocalProtocolError("value nested too deep to encode")
    if isinstance(value, Array):
        body = _encode_array(value, depth + 1)
        return encode_compound(0xE0, len(value), body)
    if isinstance(value, list):
        return encode_list([_encode(element, depth + 1) for element in value])
    if isinstance(value, dict):
        return encode_map(value, depth + 1)
    if isinstance(value, Described):
        return b"\x00" + _encode(value.descriptor, depth + 1) + _encode(value.value, depth + 1)
    raise _cannot(value)


def _encode_text(value: str) -> bytes:
    if isinstance(value, Symbol):
        return encode_symbol(value)
    if isinstance(value, Char):
        return b"\x73" + _encode_as(value, 0x73, 0)
    return encode_string(value)


def encode_string(value: str) -> bytes:
    """A string; raises LocalProtocolError on lone surrogates."""
    try:
        raw = value.encode("utf-8")
    except UnicodeEncodeError:
        raise _cannot(value) from None
    if len(raw) < 256:
        return b"\xa1" + bytes((len(raw),)) + raw
    return b"\xb1" + U32.pack(len(raw)) + raw


def encode_symbol(value: str) -> bytes:
    """A symbol; raises LocalProtocolError beyond ASCII."""
    try:
        raw = value.encode("ascii")
    except UnicodeEncodeError:
        raise _cannot(value) from None
    if len(raw) < 256:
        return b"\xa3" + bytes((len(raw),)) + raw
    return b"\xb3" + U32.pack(len(raw)) + raw


def encode_binary(raw: bytes) -> bytes:
    """A binary."""
    if len(raw) < 256:
        return b"\xa0" + bytes((len(raw),)) + raw
    return b"\xb0" + U32.pack(len(raw)) + raw


def encode_uint(value: int) -> bytes:
    """An unsigned 32-bit number."""
    if value == 0:
        return b"\x43"
    if 0 < value < 256:
        return b"\x52" + bytes((value,))
    return b"\x70" + _encode_as(value, 0x70, 0)


def encode_ulong(value: int) -> bytes:
    """An unsigned 64-bit number."""
    if value == 0:
        return b"\x44"
    if 0 < value < 256:
        return b"\x53" + bytes((value,))
    return b"\x80" + _encode_as(value, 0x80, 0)


def _encode_number(value: object, code: int) -> bytes:
    if isinstance(value, int):
        if code == 0x70:
            return encode_uint(value)
        if code == 0x80:
            return encode_ulong(value)
        if code in (0x71, 0x81) and -128 <= value < 128:
            return (b"\x54" if code == 0x71 else b"\x55") + bytes((value & 0xFF,))
    return bytes((code,)) + _encode_as(value, code, 0)


def _encode_bytes(value: bytes) -> bytes:
    kind = type(value)
    if kind is bytes:
        return encode_binary(value)
    if kind is Decimal32:
        return b"\x74" + _encode_as(value, 0x74, 0)
    if kind is Decimal64:
        return b"\x84" + _encode_as(value, 0x84, 0)
    if kind is Decimal128:
        return b"\x94" + _encode_as(value, 0x94, 0)
    raise _cannot(value)


def encode_list(fields: list[bytes]) -> bytes:
    """A list of values that are encoded already."""
    if not fields:
        return b"\x45"
    return encode_compound(0xC0, len(fields), b"".join(fields))


def encode_map(values: dict[object, object], depth: int = 1) -> bytes:
    """A map of plain values."""
    parts: list[bytes] = []
    for key, value in values.items():
        parts.append(_encode(key, depth))
        parts.append(_encode(value, depth))
    return encode_compound(0xC1, len(parts), b"".join(parts))


def encode_compound(code: int, count: int, body: bytes) -> bytes:
    """A list (0xC0), map (0xC1) or array (0xE0) around its encoded elements."""
    if count < 256 and len(body) < 255:
        return bytes((code, len(body) + 1, count)) + body
    return bytes((code + 0x10,)) + _U32_TWICE.pack(len(body) + 4, count) + body


def _encode_array(array: Array, depth: int) -> bytes:
    code = array.code
    if not 0 < code < 256 or WIDTHS[code] >= DESCRIBED:
        raise LocalProtocolError(f"array of unknown type code 0x{code:02x}")
    parts: list[bytes] = []
    if array.descriptor is not NOT_DESCRIBED:
        parts.append(b"\x00" + _encode(array.descriptor, depth))
    parts.append(bytes((code,)))
    parts += [_encode_as(value, code, depth) for value in array]
    return b"".join(parts)


def _encode_as(value: object, code: int, depth: int) -> bytes:
    """The content of a value in one given form, without its constructor."""
    number = _NUMBERS.get(code)
    if number is not None:
        if not isinstance(value, (int, float)):
            raise _cannot(value)
        try:
            return number.pack(value)
        except (struct.error, OverflowError):
            raise LocalProtocolError(f"number does not fit type 0x{code:02x}") from None
    width = WIDTHS[code]
    if width <= 16:
        return _encode_fixed_as(value, code, width)
    if depth >= NESTING_MAX:
        raise LocalProtocolError("value nested too deep to encode")
    whole = _encode(value, depth)
    if whole == b"\x45":
        whole = b"\xc0\x01\x00"  # an empty list takes bytes in an array of lists
    have = whole[0]
    if have & NARROW != code & NARROW:
        raise LocalProtocolError(f"element does not fit type 0x{code:02x}")
    if have == code:
        return whole[1:]
    if width == SIZE_8:
        raise LocalProtocolError(f"element too long for type 0x{code:02x}")
    if have < 0xC0:
        return U32.pack(whole[1]) + whole[2:]
    return _U32_TWICE.pack(whole[1] + 3, whole[2]) + whole[3:]


def _encode_fixed_as(value: object, code: int, width: int) -> bytes:
    if width == 0:
        if _encode(value, 0) != bytes((code,)):
            raise LocalProtocolError(f"element does not fit type 0x{code:02x}")
        return b""
    if code == 0x56 and isinstance(value, bool):
        return b"\x01" if value else b"\x00"
    if code == 0x73 and isinstance(value, str) and len(value) == 1:
        if 0xD800 <= ord(value) <= 0xDFFF:
            raise _cannot(value)
        return U32.pack(ord(value))
    if code == 0x98 and isinstance(value, UUID):
        return value.bytes
    if code in (0x74, 0x84, 0x94) and isinstance(value, bytes) and len(value) == width:
        return bytes(value)
    raise _cannot(value)
