"""AMQP 1.0 values → bytes (OASIS AMQP 1.0 part 1, Types).

Encoding picks the shortest form, except for the elements of an array, which share one constructor.
A value that AMQP cannot express raises LocalProtocolError.
"""

import struct
from struct import Struct
from typing import Final
from uuid import UUID

from twinbus.amqp.shapes import DESCRIBED, NARROW, NUMBERS, SIZE_8, U32, WIDTHS
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
from twinbus.errors import LocalProtocolError
from twinbus.limits import NESTING_MAX

_U32_TWICE: Final = Struct(">II")
_SIZED_32: Final = Struct(">BI")

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
    return _encode_sized(0xA1, raw)


def encode_symbol(value: str) -> bytes:
    """A symbol; raises LocalProtocolError beyond ASCII."""
    try:
        raw = value.encode("ascii")
    except UnicodeEncodeError:
        raise _cannot(value) from None
    return _encode_sized(0xA3, raw)


def encode_binary(raw: bytes) -> bytes:
    """A binary."""
    return _encode_sized(0xA0, raw)


def _encode_sized(code: int, raw: bytes) -> bytes:
    """A binary (0xA0), string (0xA1) or symbol (0xA3) around its bytes."""
    if len(raw) < 256:
        return bytes((code, len(raw))) + raw
    return _SIZED_32.pack(code + 0x10, len(raw)) + raw


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
    number = NUMBERS.get(code)
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
