"""AMQP values ⇄ the plain Python values that filters and actions work with.

Known beyond AMQP's own types are the described ones by which the SDKs carry what AMQP lacks:
com.microsoft:timespan, com.microsoft:datetime-offset and com.microsoft:uri.  A value that filters
have no kind for (lists, maps, arrays) is left as null.  Never raises over what it reads.
"""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final
from uuid import UUID

from twinbus.amqp.encoding import encode_value
from twinbus.amqp.types import (
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Symbol,
    Timestamp,
    ULong,
)

TIMESPAN: Final = Symbol("com.microsoft:timespan")
DATETIME_OFFSET: Final = Symbol("com.microsoft:datetime-offset")
URI: Final = Symbol("com.microsoft:uri")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_ONE: Final = datetime(1, 1, 1, tzinfo=UTC)
_LATEST: Final = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_MICROSECOND: Final = timedelta(microseconds=1)
_DURATION_MS_MAX: Final = timedelta.max // _MILLISECOND
_INT64_MAX: Final = (1 << 63) - 1

# What needs no look: the same for AMQP and for filters.
_PLAIN: Final = frozenset((str, int, float, bool, bytes, UUID, type(None)))


def to_plain(value: object) -> object:
    """A decoded AMQP value as filters see it."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Timestamp):
        return time_of(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, (Symbol, Char)):
        return str(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, (Decimal32, Decimal64, Decimal128)):
        return _read_decimal(bytes(value))
    if isinstance(value, Described):
        return _described(value)
    return None


def _described(value: Described) -> object:
    inner = value.value
    if value.descriptor == URI and isinstance(inner, str):
        return str(inner)
    if isinstance(inner, int) and not isinstance(inner, bool):
        ticks = int(inner)  # of 100 nanoseconds
        if value.descriptor == TIMESPAN:
            return timedelta(microseconds=ticks // 10)
        if value.descriptor == DATETIME_OFFSET:
            return _shifted(_YEAR_ONE, ticks // 10)
    return None


def time_of(utc_ms: int) -> datetime:
    """A timestamp; one beyond all dates becomes the first or the last."""
    return _shifted(_EPOCH, int(utc_ms) * 1_000)


def _shifted(start: datetime, microseconds: int) -> datetime:
    try:
        return start + timedelta(microseconds=microseconds)
    except OverflowError:
        return _YEAR_ONE if microseconds < 0 else _LATEST


def duration_of(duration_ms: int) -> timedelta:
    return timedelta(milliseconds=min(duration_ms, _DURATION_MS_MAX))


def milliseconds_of(duration: timedelta) -> int:
    return duration // _MILLISECOND


def to_amqp(value: object) -> bytes:
    """A filter's value as AMQP has it; integers are 64 bits wide."""
    if isinstance(value, datetime):
        return encode_value(Timestamp((value - _EPOCH) // _MILLISECOND))
    if isinstance(value, timedelta):
        ticks = value // _MICROSECOND * 10
        return encode_value(Described(TIMESPAN, max(-_INT64_MAX, min(ticks, _INT64_MAX))))
    if isinstance(value, Decimal):
        return encode_value(Decimal128(_write_decimal(value)))
    if isinstance(value, int) and value > _INT64_MAX:
        return encode_value(ULong(value))
    return encode_value(value)


# --- IEEE 754-2008 decimals, binary integer significand ------------------------------------------
# A sign, an exponent and an integer; where the integer is long, the exponent stands two bits later
# and the integer's first three bits are 100 without being written.
_EXPONENT_BITS: Final = {4: 8, 8: 10, 16: 14}
_BIASES: Final = {4: 101, 8: 398, 16: 6_176}
_DIGITS: Final = {4: 7, 8: 16, 16: 34}
_BIAS_128: Final = 6_176
_EXPONENT_128_MAX: Final = 6_111


def _read_decimal(raw: bytes) -> Decimal | float:
    width = 8 * len(raw)
    exponent_bits = _EXPONENT_BITS[len(raw)]
    number = int.from_bytes(raw, "big")
    negative = number >> (width - 1)
    combination = number >> (width - 6) & 0x1F
    if combination >= 0x1E:  # infinity or NaN
        special = "nan" if combination & 1 else "-inf" if negative else "inf"
        return float(special)
    if combination >> 3 == 3:
        shift = width - 3 - exponent_bits
        integer = 4 << shift | number & ((1 << shift) - 1)
    else:
        shift = width - 1 - exponent_bits
        integer = number & ((1 << shift) - 1)
    exponent = (number >> shift & ((1 << exponent_bits) - 1)) - _BIASES[len(raw)]
    if integer >= 10 ** _DIGITS[len(raw)]:
        integer = 0  # not canonical; the standard reads it so
    return Decimal(f"{'-' if negative else ''}{integer}E{exponent}")


def _write_decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "filters keep infinity and NaN as doubles"
    integer = int("".join(map(str, digits)))
    if exponent > _EXPONENT_128_MAX:
        integer *= 10 ** (exponent - _EXPONENT_128_MAX)
        exponent = _EXPONENT_128_MAX
    number = sign << 127 | (exponent + _BIAS_128) << 113 | integer
    return number.to_bytes(16, "big")
