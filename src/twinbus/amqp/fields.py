"""Reading the typed fields of a composite, and writing composites.

A composite is a described list (OASIS AMQP 1.0 part 1.4).  Missing fields at the end are null.
Integers and texts are taken in any width and kind that fits the range, since clients differ;
anything else in the wrong place raises RemoteProtocolError (amqp:decode-error).
"""

from typing import Final

from twinbus.amqp.decoding import decode_error
from twinbus.amqp.encoding import (
    encode_binary,
    encode_list,
    encode_map,
    encode_string,
    encode_symbol,
    encode_uint,
    encode_ulong,
    encode_value,
)
from twinbus.amqp.types import Array, Symbol

NULL: Final = b"\x40"
UINT_MAX: Final = 0xFFFF_FFFF
ULONG_MAX: Final = 0xFFFF_FFFF_FFFF_FFFF


class Fields:
    """The fields of one composite, read by position."""

    __slots__ = ("name", "values")

    def __init__(self, name: str, values: object, count_max: int) -> None:
        if not isinstance(values, list) or isinstance(values, Array):
            raise decode_error(f"{name} is not a list")
        if len(values) > count_max:
            raise decode_error(f"{name} has more than {count_max} fields")
        self.name = name
        self.values: list[object] = values

    def value(self, index: int) -> object:
        """Any value, or None."""
        return self.values[index] if index < len(self.values) else None

    def missing(self, index: int) -> Exception:
        return decode_error(f"{self.name}: field {index} is missing")

    def wrong(self, index: int) -> Exception:
        return decode_error(f"{self.name}: field {index} has the wrong type or range")

    def optional_number(self, index: int, highest: int = UINT_MAX) -> int | None:
        value = self.value(index)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= highest:
            raise self.wrong(index)
        return int(value)

    def number(self, index: int, default: int = -1, highest: int = UINT_MAX) -> int:
        """An unsigned number; mandatory unless there is a default."""
        value = self.optional_number(index, highest)
        if value is not None:
            return value
        if default < 0:
            raise self.missing(index)
        return default

    def optional_boolean(self, index: int) -> bool | None:
        value = self.value(index)
        if value is None or isinstance(value, bool):
            return value
        raise self.wrong(index)

    def boolean(self, index: int, default: bool = False) -> bool:
        value = self.optional_boolean(index)
        return default if value is None else value

    def mandatory_boolean(self, index: int) -> bool:
        value = self.optional_boolean(index)
        if value is None:
            raise self.missing(index)
        return value

    def optional_text(self, index: int) -> str | None:
        value = self.value(index)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.wrong(index)
        return str(value)

    def text(self, index: int) -> str:
        value = self.optional_text(index)
        if value is None:
            raise self.missing(index)
        return value

    def optional_binary(self, index: int) -> bytes | None:
        value = self.value(index)
        if value is None:
            return None
        if not isinstance(value, bytes):
            raise self.wrong(index)
        return bytes(value)

    def binary(self, index: int) -> bytes:
        value = self.optional_binary(index)
        if value is None:
            raise self.missing(index)
        return value

    def optional_map(self, index: int) -> dict[object, object] | None:
        value = self.value(index)
        if value is None or isinstance(value, dict):
            return value
        raise self.wrong(index)

    def texts(self, index: int) -> list[str]:
        """A field of `multiple` symbols: null, one, or an array (some clients send a list)."""
        value = self.value(index)
        if value is None:
            return []
        if isinstance(value, str):
            return [str(value)]
        if not isinstance(value, list):
            raise self.wrong(index)
        names: list[str] = []
        for name in value:
            if not isinstance(name, str):
                raise self.wrong(index)
            names.append(str(name))
        return names


def composite(code: int, fields: list[bytes]) -> bytes:
    """A described list under a numeric descriptor, the only form every client reads."""
    return b"\x00\x53" + bytes((code,)) + encode_list(fields)


def put_boolean(value: bool | None) -> bytes:
    if value is None:
        return NULL
    return b"\x41" if value else b"\x42"


def put_ubyte(value: int | None) -> bytes:
    return NULL if value is None else b"\x50" + bytes((value,))


def put_ushort(value: int | None) -> bytes:
    return NULL if value is None else b"\x60" + value.to_bytes(2, "big")


def put_uint(value: int | None) -> bytes:
    return NULL if value is None else encode_uint(value)


def put_ulong(value: int | None) -> bytes:
    return NULL if value is None else encode_ulong(value)


def put_string(value: str | None) -> bytes:
    return NULL if value is None else encode_string(value)


def put_symbol(value: str | None) -> bytes:
    return NULL if value is None else encode_symbol(value)


def put_binary(value: bytes | None) -> bytes:
    return NULL if value is None else encode_binary(value)


def put_map(value: dict[object, object] | None) -> bytes:
    return NULL if value is None else encode_map(value)


def put_symbol_map(value: dict[object, object] | None) -> bytes:
    """A map whose plain text keys become symbols, as `fields` and annotations require."""
    if value is None:
        return NULL
    keyed: dict[object, object] = {}
    for key, entry in value.items():
        keyed[Symbol(key) if isinstance(key, str) else key] = entry
    return encode_map(keyed)


def put_symbols(names: list[str]) -> bytes:
    """A field of `multiple` symbols."""
    if not names:
        return NULL
    return encode_value(Array([Symbol(name) for name in names]))
