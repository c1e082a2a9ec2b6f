"""AMQP types that the SDK loses when it reads a message, noted so that they can be written again.

The SDK reads text, binary and symbols all as `bytes`, every whole number and every time as `int`,
and would write them as something else.  `types_of` names the types of a value that is about to be
sent, `recover` gives a value that was read the types back.  Where reading and writing by the
defaults of `recover` comes to the same, which is the rule, nothing has to be noted:

    STRING   bytes that are UTF-8        INT    whole numbers of 32 bits    DOUBLE  floats
    BINARY   other bytes                 LONG   larger ones                 lists and maps likewise

A note is the types from left to right, separated by spaces, runs as `3*BINARY`.  `LIST`, `ARRAY`,
`MAP` and `DESCRIBED` stand before what they hold (of a map: key, value, key, value …).  Decimals
the SDK can write but not read, the whole message fails then: `readable` makes them text.
"""

import datetime as dt
import decimal
import uuid
from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final

# How the SDK lets a caller name the type of a value: {"TYPE": "LONG", "VALUE": 5}.
TYPE: Final = "TYPE"
VALUE: Final = "VALUE"

_PLAIN: Final = frozenset({"NULL", "BOOL", "STRING", "UUID", "DOUBLE", "INT"})
_WRAPPED: Final = frozenset(
    {"UBYTE", "BYTE", "USHORT", "SHORT", "UINT", "ULONG", "LONG", "FLOAT"}
    | {"TIMESTAMP", "BINARY", "SYMBOL"}
)
LEAVES: Final = _PLAIN | _WRAPPED  # what holds nothing else, but for decimals
TEXTS: Final = frozenset({"STRING", "DECIMAL128"})  # what waits as a text
_DEFAULTS: Final = _PLAIN | {"LIST", "MAP"}
_NAMED: Final = _DEFAULTS | _WRAPPED | {"ARRAY", "DESCRIBED", "DECIMAL128"}
_INT_MAX: Final = 2**31
_LONG_MAX: Final = 2**63
EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class TypesError(ValueError):
    """A note does not fit its value."""


def types_of(value: object, *, top: bool = False) -> str:
    """The note for a value, empty where the defaults do.  `top`: it is a whole value body."""
    names = list(_body_names(value) if top else _names(value))
    if all(name in _DEFAULTS for name in names):
        return ""
    runs = ((name, sum(1 for _ in run)) for name, run in groupby(names))
    return " ".join(f"{count}*{name}" if count > 1 else name for name, count in runs)


def readable(value: Any, types: str) -> Any:
    """The value in a form that the SDK can read again; `types` is its note."""
    return _without_decimals(value) if "DECIMAL128" in types else value


def recover(value: object, types: str = "") -> Any:
    """The value with its types back, in a form that the SDK writes as such."""
    if not types:
        return _by_defaults(value)
    names = Names(types)
    recovered = _by_names(value, names)
    names.check_end()
    return recovered


def text_of(value: object) -> str | None:
    """A text that the SDK has read, or that a caller has given; none if it is something else."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    return value if isinstance(value, str) else None


def time_of(value: object) -> int | None:
    """Milliseconds since 1970 of a time in any form that the SDK reads or writes."""
    if isinstance(value, dict) and VALUE in value:
        value = value[VALUE]
    if isinstance(value, dt.datetime):
        value = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
        return (value - EPOCH) // dt.timedelta(milliseconds=1)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return None


def timestamp(milliseconds: int) -> Any:
    """What the SDK writes as an AMQP timestamp."""
    try:
        return EPOCH + dt.timedelta(milliseconds=milliseconds)
    except OverflowError:  # beyond the year 9999
        return {TYPE: "TIMESTAMP", VALUE: milliseconds}


def _names(value: object) -> Iterator[str]:
    """As the SDK's encoder sees it: it decides by Python's types, unless a type is named."""
    if isinstance(value, dict) and VALUE in value and value.get(TYPE) in _NAMED:
        yield from _named(value[TYPE], value[VALUE])
    else:
        yield from _body_names(value)


def _named(name: str, value: Any) -> Iterator[str]:
    yield name
    if name in {"LIST", "ARRAY"}:
        for element in value:
            yield from _names(element)
    elif name == "MAP":
        for key, element in value.items() if isinstance(value, dict) else value:
            yield from _names(key)
            yield from _names(element)
    elif name == "DESCRIBED":
        yield from _names(value[1])


def _body_names(value: object) -> Iterator[str]:
    match value:
        case None:
            yield "NULL"
        case bool():
            yield "BOOL"
        case str():
            yield "STRING"
        case uuid.UUID():
            yield "UUID"
        case bytes() | bytearray():
            yield "BINARY"
        case float():
            yield "DOUBLE"
        case int():
            yield "INT"
        case dt.datetime():
            yield "TIMESTAMP"
        case list():
            yield from _named("LIST", value)
        case dict():
            yield from _named("MAP", value)
        case tuple() if len(value) == 2:
            yield from _named("DESCRIBED", value)
        case decimal.Decimal():
            yield from _named("DECIMAL128", value)
        case _:  # the SDK refuses it when it is sent
            yield "NULL"


def _without_decimals(value: Any) -> Any:
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, dict) and value.get(TYPE) == "DECIMAL128" and VALUE in value:
        return str(value[VALUE])
    if isinstance(value, list):
        return [_without_decimals(element) for element in value]
    if isinstance(value, tuple):
        return tuple(_without_decimals(element) for element in value)
    if isinstance(value, dict):
        return {_without_decimals(key): _without_decimals(value[key]) for key in value}
    return value


class Names:
    """The names of a note, one after the other."""

    def __init__(self, types: str) -> None:
        self._types = types
        self._names = self._expanded()

    def take(self) -> str:
        """The next one; of a described value, what is described."""
        name = next(self._names, None)
        if name == "DESCRIBED":
            name = next(self._names, None)
        if name is None:
            raise TypesError("fewer types than values")
        return name

    def check_end(self) -> None:
        if next(self._names, None) is not None:
            raise TypesError(f"more types than values: {self._types[:64]}")

    def _expanded(self) -> Iterator[str]:
        for run in self._types.split(" "):
            count, star, name = run.rpartition("*")
            if star and not count.isdecimal():
                raise TypesError(f"no types: {self._types[:64]}")
            for _ in range(int(count) if star else 1):
                yield name


def _by_names(value: object, names: Names) -> Any:
    name = names.take()
    if isinstance(value, list) and name in {"LIST", "ARRAY"}:
        elements = [_by_names(element, names) for element in value]
        return _described(value, elements if name == "LIST" else {TYPE: name, VALUE: elements})
    if isinstance(value, dict) and name == "MAP":
        pairs = [(_by_names(key, names), _by_names(value[key], names)) for key in value]
        return _described(value, _map(pairs))
    return _described(value, _leaf(value, name))


def _leaf(value: Any, name: str) -> Any:
    if name in TEXTS:
        return text_leaf(value, name)
    if name == "BINARY" and isinstance(value, bytes):
        return bytes(value)
    if name == "TIMESTAMP" and isinstance(value, int):
        return timestamp(int(value))
    if name in _PLAIN:
        return _plain(value)
    if name in _WRAPPED:
        return {TYPE: name, VALUE: _plain(value)}
    raise TypesError(f"no type: {name[:64]}")


def text_leaf(value: object, name: str) -> str | decimal.Decimal:
    """What waits as a text, by its name: a text, or a decimal."""
    text = text_of(value)
    if text is None:
        raise TypesError("a value that should be a text is none")
    try:
        return text if name == "STRING" else decimal.Decimal(text)
    except decimal.InvalidOperation:
        raise TypesError(f"no decimal: {text[:64]}") from None


def _by_defaults(value: object) -> Any:
    if isinstance(value, list):
        return _described(value, [_by_defaults(element) for element in value])
    if isinstance(value, dict):
        pairs = [(_by_defaults(key), _by_defaults(element)) for key, element in value.items()]
        return _described(value, _map(pairs))
    if isinstance(value, bytes):
        text = text_of(value)
        return _described(value, bytes(value) if text is None else text)
    if isinstance(value, int) and not isinstance(value, bool):
        # Described numbers are 64 bits wide where Microsoft's clients make them: ticks.
        if not -_INT_MAX <= value < _INT_MAX or _descriptor(value) is not None:
            name = "LONG" if value < _LONG_MAX else "ULONG"
            return _described(value, {TYPE: name, VALUE: int(value)})
        return int(value)
    return _described(value, _plain(value))


def _map(pairs: list[tuple[Any, Any]]) -> Any:
    """A dict if its keys can be a dict's, and the SDK would not take it for a named type."""
    try:
        entries = dict(pairs)
    except TypeError:
        return {TYPE: "MAP", VALUE: pairs}
    return {TYPE: "MAP", VALUE: pairs} if len(entries) < len(pairs) else entries


def _descriptor(value: object) -> object:
    return getattr(value, "descriptor", None)


def _described(read: object, recovered: Any) -> Any:
    """A described value is written as a tuple of descriptor and value."""
    descriptor = _descriptor(read)
    if descriptor is None:
        return recovered
    name = "ULONG" if isinstance(descriptor, int) else "SYMBOL"
    return ({TYPE: name, VALUE: descriptor}, recovered)


def _plain(value: object) -> object:
    """Without the SDK's subclass for described values."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    return bytes(value) if isinstance(value, bytes) else value
