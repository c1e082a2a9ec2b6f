"""AMQP 1.0 types that Python has no word for.

What is unambiguous stays plain Python: None, bool, int (AMQP long), float (double), bytes (binary),
str (string), uuid.UUID, list and dict.  Everything else is one of the thin classes below, so that
a value keeps its AMQP type on the way in and out.  They compare equal to what they wrap:
`Symbol("a") == "a"`, `UInt(1) == 1`.

This module is never compiled: mypyc cannot subclass int, str, bytes and list.
"""

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from twinbus.errors import LocalProtocolError


class UByte(int):
    """Unsigned, 8 bits."""

    __slots__ = ()


class UShort(int):
    """Unsigned, 16 bits."""

    __slots__ = ()


class UInt(int):
    """Unsigned, 32 bits."""

    __slots__ = ()


class ULong(int):
    """Unsigned, 64 bits."""

    __slots__ = ()


class Byte(int):
    """Signed, 8 bits."""

    __slots__ = ()


class Short(int):
    """Signed, 16 bits."""

    __slots__ = ()


class Int(int):
    """Signed, 32 bits.  (A plain int is AMQP's long, 64 bits.)"""

    __slots__ = ()


class Timestamp(int):
    """Milliseconds since 1970 in UTC, signed."""

    __slots__ = ()


class Float(float):
    """32-bit floating point.  (A plain float is AMQP's double.)"""

    __slots__ = ()


class Char(str):
    """One Unicode character."""

    __slots__ = ()


class Symbol(str):
    """A name from a bounded domain, ASCII."""

    __slots__ = ()


class Decimal32(bytes):
    """IEEE 754-2008 decimal32, four bytes nobody here looks into."""

    __slots__ = ()


class Decimal64(bytes):
    """IEEE 754-2008 decimal64, eight bytes nobody here looks into."""

    __slots__ = ()


class Decimal128(bytes):
    """IEEE 754-2008 decimal128, sixteen bytes nobody here looks into."""

    __slots__ = ()


class Described:
    """A value with a descriptor that says what it means."""

    __slots__ = ("descriptor", "value")

    def __init__(self, descriptor: object, value: object) -> None:
        self.descriptor = descriptor
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Described):
            return NotImplemented
        return self.descriptor == other.descriptor and self.value == other.value

    __hash__ = None  # type: ignore[assignment]  # holds mutable values

    def __repr__(self) -> str:
        return f"Described({self.descriptor!r}, {self.value!r})"


NOT_DESCRIBED: Final = object()  # None would be a descriptor, if a strange one


class Array(list[object]):
    """Values of one type.  `code` is the constructor all elements share.

    Without a code the type of the first element decides.  `descriptor` is for arrays of
    described values, which share it as well; their elements are kept without it.
    """

    __slots__ = ("code", "descriptor")

    def __init__(
        self, values: Iterable[object] = (), code: int = -1, descriptor: object = NOT_DESCRIBED
    ) -> None:
        super().__init__(values)
        self.code = code if code >= 0 else _element_code(self)
        self.descriptor = descriptor

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Array):
            return NotImplemented
        return (
            self.code == other.code
            and self.descriptor == other.descriptor
            and list.__eq__(self, other)
        )

    def __ne__(self, other: object) -> bool:
        return not self == other  # list brings its own, which knows nothing of codes

    __hash__ = None  # mutable

    def __repr__(self) -> str:
        return f"Array({list.__repr__(self)}, 0x{self.code:02x})"


# The full-width constructor of each class: the one form that fits every value of the type.
ELEMENT_CODES: Final[dict[type, int]] = {
    type(None): 0x40,
    bool: 0x56,
    UByte: 0x50,
    UShort: 0x60,
    UInt: 0x70,
    ULong: 0x80,
    Byte: 0x51,
    Short: 0x61,
    Int: 0x71,
    int: 0x81,
    Float: 0x72,
    float: 0x82,
    Decimal32: 0x74,
    Decimal64: 0x84,
    Decimal128: 0x94,
    Char: 0x73,
    Timestamp: 0x83,
    bytes: 0xB0,
    str: 0xB1,
    Symbol: 0xB3,
    list: 0xD0,
    dict: 0xD1,
    UUID: 0x98,
    Array: 0xF0,
}


def _element_code(values: list[object]) -> int:
    if not values:
        return ELEMENT_CODES[type(None)]
    code = ELEMENT_CODES.get(type(values[0]))
    if code is None:
        raise LocalProtocolError(f"no AMQP array of {type(values[0]).__name__}")
    return code
