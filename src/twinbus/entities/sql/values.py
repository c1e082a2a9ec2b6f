"""What the operators of SQL filters do with values.

Values are plain Python: None, bool, int, float, Decimal, str, bytes, UUID, datetime (UTC) and
timedelta.  None is SQL's unknown: whatever is done with it is unknown again.  Comparing values of
different kinds is unknown too; calculating with what is no number is a FilterError.  Results are
bounded: 64 bits for integers, FILTER_TEXT_CHARS_MAX for texts.  Takes no time that is not linear.
"""

import math
from datetime import datetime, timedelta
from decimal import Context, Decimal, DivisionByZero, InvalidOperation, Overflow
from typing import Final
from uuid import UUID

from twinbus.errors import TwinbusError
from twinbus.limits import FILTER_TEXT_CHARS_MAX

_Number = int | float | Decimal

INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1
UINT64_MAX: Final = (1 << 64) - 1
# What AMQP's decimal128 can hold.
DECIMAL_DIGITS_MAX: Final = 34
DECIMAL_EXPONENT_MAX: Final = 6_144

# .NET's decimal has 28 to 29 digits.  A context of our own: the thread's may be set to anything.
_DECIMALS: Final = Context(
    prec=28,
    Emin=-DECIMAL_EXPONENT_MAX + 1,
    Emax=DECIMAL_EXPONENT_MAX,
    traps=[InvalidOperation, DivisionByZero, Overflow],
)

# Comparisons.
EQUAL: Final = 0
NOT_EQUAL: Final = 1
LESS: Final = 2
LESS_EQUAL: Final = 3
GREATER: Final = 4
GREATER_EQUAL: Final = 5

# Calculations.
ADD: Final = 0
SUBTRACT: Final = 1
MULTIPLY: Final = 2
DIVIDE: Final = 3
REMAINDER: Final = 4
_NAMES: Final = ("+", "-", "*", "/", "%")

# The dead-letter reason of a message that a filter or an action could not deal with.
FILTER_ERROR_REASON: Final = "FilterException"


class FilterError(TwinbusError):
    """A filter or an action cannot be evaluated for a message.

    No answer to a request: the message may end in the dead-letter queue for it, with this text.
    """


def kind_of(value: object) -> str:
    """A value's kind, as errors name it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float, Decimal)):
        return "number"
    if isinstance(value, str):
        return "text"
    if isinstance(value, bytes):
        return "binary"
    return type(value).__name__


# --- comparing ------------------------------------------------------------------------------------
def compare(operator: int, left: object, right: object) -> bool | None:
    """True, False, or None for unknown."""
    if isinstance(left, str):
        if not isinstance(right, str):
            return None
        if operator == EQUAL:
            return left == right
        if operator == NOT_EQUAL:
            return left != right
        return _ordered(operator, (left > right) - (left < right))
    if left is None or right is None:
        return None
    if isinstance(left, bool) or isinstance(right, bool):
        if not (isinstance(left, bool) and isinstance(right, bool)):
            return None
        return _same(operator, left is right)
    if isinstance(left, int) and isinstance(right, int):
        return _ordered(operator, (left > right) - (left < right))
    if isinstance(left, (int, float, Decimal)) and isinstance(right, (int, float, Decimal)):
        return _compare_numbers(operator, left, right)
    if isinstance(left, datetime) and isinstance(right, datetime):
        return _ordered(operator, (left > right) - (left < right))
    if isinstance(left, timedelta) and isinstance(right, timedelta):
        return _ordered(operator, (left > right) - (left < right))
    if isinstance(left, bytes) and isinstance(right, bytes):
        return _ordered(operator, (left > right) - (left < right))
    if isinstance(left, UUID) and isinstance(right, UUID):
        return _same(operator, left == right)
    return None


def _ordered(operator: int, sign: int) -> bool:
    if operator == LESS:
        return sign < 0
    if operator == LESS_EQUAL:
        return sign <= 0
    if operator == GREATER:
        return sign > 0
    if operator == GREATER_EQUAL:
        return sign >= 0
    return (sign == 0) == (operator == EQUAL)


def _same(operator: int, same: bool) -> bool | None:
    """For values without an order."""
    if operator == EQUAL:
        return same
    return not same if operator == NOT_EQUAL else None


def _compare_numbers(operator: int, left: _Number, right: _Number) -> bool:
    # Exact, whatever the types.  Not by sign: NaN is neither less, equal nor greater.
    if operator == EQUAL:
        return left == right
    if operator == NOT_EQUAL:
        return left != right
    try:
        if operator == LESS:
            return left < right
        if operator == LESS_EQUAL:
            return left <= right
        if operator == GREATER:
            return left > right
        return left >= right
    except InvalidOperation:  # a decimal and NaN
        return False


# --- calculating ----------------------------------------------------------------------------------
def calculate(operator: int, left: object, right: object) -> object:
    """The result, or None for unknown; FilterError when there is none."""
    if left is None or right is None:
        return None
    if operator == ADD and (isinstance(left, str) or isinstance(right, str)):
        text = to_text(left) + to_text(right)
        if len(text) > FILTER_TEXT_CHARS_MAX:
            raise FilterError(f"A text has more than {FILTER_TEXT_CHARS_MAX} characters.")
        return text
    if isinstance(left, bool) or isinstance(right, bool):
        raise _no_operator(operator, left, right)
    if isinstance(left, int) and isinstance(right, int):
        return _integers(operator, left, right)
    if isinstance(left, (int, float, Decimal)) and isinstance(right, (int, float, Decimal)):
        if isinstance(left, float) or isinstance(right, float):
            return _doubles(operator, float(left), float(right))
        return _decimals(operator, Decimal(left), Decimal(right))
    return _times(operator, left, right)


def _no_operator(operator: int, left: object, right: object) -> FilterError:
    return FilterError(
        f"The operator {_NAMES[operator]} cannot be applied to "
        f"{kind_of(left)} and {kind_of(right)}."
    )


def _integers(operator: int, left: int, right: int) -> int:
    if operator == ADD:
        result = left + right
    elif operator == SUBTRACT:
        result = left - right
    elif operator == MULTIPLY:
        result = left * right
    elif right == 0:
        raise FilterError("Division by zero.")
    else:
        # Towards zero, and the remainder takes the dividend's sign; Python rounds down instead.
        quotient = abs(left) // abs(right)
        if (left < 0) != (right < 0):
            quotient = -quotient
        result = quotient if operator == DIVIDE else left - quotient * right
    if not INT64_MIN <= result <= INT64_MAX:
        raise FilterError("The result does not fit into 64 bits.")
    return result


def _doubles(operator: int, left: float, right: float) -> float:
    if operator == ADD:
        result = left + right
    elif operator == SUBTRACT:
        result = left - right
    elif operator == MULTIPLY:
        result = left * right
    elif right == 0.0:
        raise FilterError("Division by zero.")
    else:
        try:
            result = left / right if operator == DIVIDE else math.fmod(left, right)
        except ValueError:  # the remainder of infinity
            result = math.nan
    if not math.isfinite(result):
        raise FilterError("The result is not a finite number.")
    return result


def _decimals(operator: int, left: Decimal, right: Decimal) -> Decimal:
    try:
        if operator == ADD:
            return _DECIMALS.add(left, right)
        if operator == SUBTRACT:
            return _DECIMALS.subtract(left, right)
        if operator == MULTIPLY:
            return _DECIMALS.multiply(left, right)
        if operator == DIVIDE:
            return _DECIMALS.divide(left, right)
        return _DECIMALS.remainder(left, right)
    except (InvalidOperation, DivisionByZero, Overflow):
        raise FilterError("Division by zero, or a result too large for a decimal.") from None


def _times(operator: int, left: object, right: object) -> object:
    try:
        if isinstance(left, datetime) and isinstance(right, timedelta):
            if operator == ADD:
                return left + right
            if operator == SUBTRACT:
                return left - right
        elif isinstance(left, datetime) and isinstance(right, datetime):
            if operator == SUBTRACT:
                return left - right
        elif isinstance(left, timedelta) and isinstance(right, timedelta):
            if operator == ADD:
                return left + right
            if operator == SUBTRACT:
                return left - right
    except OverflowError:
        raise FilterError("The result is beyond the range of dates and durations.") from None
    raise _no_operator(operator, left, right)


def signed(value: object, negative: bool) -> object:
    """A value behind + or -."""
    if value is None:
        return None
    if not isinstance(value, bool):
        if isinstance(value, int):
            return _integers(SUBTRACT, 0, value) if negative else value
        if isinstance(value, float):
            return -value if negative else value
        if isinstance(value, Decimal):
            return value.copy_negate() if negative else value
        if isinstance(value, timedelta):
            return _times(SUBTRACT, timedelta(), value) if negative else value
    raise FilterError(f"A sign cannot be applied to {kind_of(value)}.")


def to_text(value: object) -> str:
    """A value joined to a text, or put where only text may be."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, (int, Decimal, UUID)):
        return str(value)
    raise FilterError(f"There is no text for a value of kind {kind_of(value)}.")


def fits_rule(value: object) -> bool:
    """May a parameter or a correlation filter have this value?"""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Decimal):
        return (
            value.is_finite()
            and len(value.as_tuple().digits) <= DECIMAL_DIGITS_MAX
            and abs(value.adjusted()) <= DECIMAL_EXPONENT_MAX - DECIMAL_DIGITS_MAX
        )
    if isinstance(value, int):
        return INT64_MIN <= value <= UINT64_MAX
    if isinstance(value, str):
        return len(value) <= FILTER_TEXT_CHARS_MAX and is_unicode(value)
    if isinstance(value, bytes):
        return len(value) <= FILTER_TEXT_CHARS_MAX
    return value is None or isinstance(value, (UUID, datetime, timedelta))


def is_unicode(text: str) -> bool:
    """No lone surrogates, which no encoding on the wire has."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
