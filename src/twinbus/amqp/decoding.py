"""Bytes → AMQP 1.0 values (OASIS AMQP 1.0 part 1, Types).

Decoding never trusts a size or a count: each is checked against the bytes at hand and against
`limits` before anything is allocated, so time and memory are linear in the input.  Bad bytes raise
RemoteProtocolError with the condition amqp:decode-error, and nothing else ever.
"""

from typing import Final
from uuid import UUID

from twinbus.amqp.shapes import DESCRIBED, NUMBERS, SIZE_8, SIZE_32, U32, WIDTHS
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
from twinbus.errors import RemoteProtocolError
from twinbus.limits import ELEMENTS_MAX, NESTING_MAX, ZERO_WIDTH_ELEMENTS_MAX

# As what the fixed-width numbers come out.
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
def decode_within(data: bytes, at: int, end: int) -> tuple[object, int]:
    """The value at `at`, which must end at or before `end`, and where it ends."""
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
    number = NUMBERS.get(code)
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
