"""Operators on values: kinds, promotions, bounds, and three-valued comparison."""

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from twinbus.entities.sql.values import (
    ADD,
    DIVIDE,
    EQUAL,
    GREATER,
    GREATER_EQUAL,
    LESS,
    LESS_EQUAL,
    MULTIPLY,
    NOT_EQUAL,
    REMAINDER,
    SUBTRACT,
    FilterError,
    calculate,
    compare,
    fits_rule,
    signed,
)

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
ID = UUID(int=7)
LARGEST = 2**63 - 1


@pytest.mark.parametrize(
    "left,right,sign",
    [
        (1, 2, -1),
        (2, 2, 0),
        (2, 1.5, 1),
        (1, 1.0, 0),
        (2**63, 2.0**63, 0),
        (LARGEST, 2.0**63, -1),  # exact: as doubles they would be equal
        (Decimal("1.10"), Decimal("1.1"), 0),
        (Decimal("0.1"), 0.1, -1),  # the double is a little more
        (Decimal(3), 3, 0),
        ("a", "b", -1),
        ("B", "a", -1),
        (b"\x01", b"\x02", -1),
        (NOON, NOON + HOUR, -1),
        (HOUR, HOUR, 0),
    ],
)
def test_order(left: object, right: object, sign: int) -> None:
    for a, b, way in ((left, right, sign), (right, left, -sign)):
        assert compare(EQUAL, a, b) is (way == 0)
        assert compare(NOT_EQUAL, a, b) is (way != 0)
        assert compare(LESS, a, b) is (way < 0)
        assert compare(LESS_EQUAL, a, b) is (way <= 0)
        assert compare(GREATER, a, b) is (way > 0)
        assert compare(GREATER_EQUAL, a, b) is (way >= 0)


@pytest.mark.parametrize("operator", [EQUAL, NOT_EQUAL, LESS, LESS_EQUAL, GREATER, GREATER_EQUAL])
@pytest.mark.parametrize(
    "left,right",
    [
        (None, 1),
        (None, None),
        ("1", 1),
        (True, 1),
        (True, "True"),
        (ID, str(ID)),
        (NOON, "2026-11-01"),
        (b"a", "a"),
        (NOON, HOUR),
    ],
)
def test_different_kinds_are_unknown(operator: int, left: object, right: object) -> None:
    assert compare(operator, left, right) is None
    assert compare(operator, right, left) is None


def test_booleans_and_ids_are_equal_or_not_but_have_no_order() -> None:
    assert compare(EQUAL, True, True) is True
    assert compare(EQUAL, True, False) is False
    assert compare(NOT_EQUAL, True, False) is True
    assert compare(LESS, False, True) is None
    assert compare(EQUAL, ID, UUID(int=7)) is True
    assert compare(GREATER_EQUAL, ID, ID) is None


def test_nan_is_neither_less_equal_nor_greater() -> None:
    for other in (1, 1.0, math.nan, Decimal(1)):
        assert compare(EQUAL, math.nan, other) is False
        assert compare(NOT_EQUAL, math.nan, other) is True
        for operator in (LESS, LESS_EQUAL, GREATER, GREATER_EQUAL):
            assert compare(operator, math.nan, other) is False
            assert compare(operator, other, math.nan) is False


@pytest.mark.parametrize(
    "left,operator,right,result",
    [
        (7, ADD, 2, 9),
        (7, SUBTRACT, 9, -2),
        (7, MULTIPLY, 2, 14),
        (7, DIVIDE, 2, 3),
        (-7, DIVIDE, 2, -3),
        (7, DIVIDE, -2, -3),
        (7, REMAINDER, 3, 1),
        (-7, REMAINDER, 3, -1),
        (7, REMAINDER, -3, 1),
        (LARGEST - 1, ADD, 1, LARGEST),
        (7, ADD, 0.5, 7.5),
        (7.0, DIVIDE, 2, 3.5),
        (-7.5, REMAINDER, 2.0, -1.5),
        (Decimal("0.1"), ADD, Decimal("0.2"), Decimal("0.3")),
        (Decimal("1.5"), MULTIPLY, 2, Decimal("3.0")),
        (Decimal(1), DIVIDE, Decimal(8), Decimal("0.125")),
        (Decimal("7.5"), REMAINDER, Decimal(2), Decimal("1.5")),
        (Decimal("0.5"), ADD, 0.5, 1.0),
        ("a", ADD, "b", "ab"),
        ("a", ADD, 1, "a1"),
        (1, ADD, "a", "1a"),
        ("a", ADD, True, "aTrue"),
        ("a", ADD, 1.5, "a1.5"),
        ("", ADD, ID, str(ID)),
        (NOON, ADD, HOUR, NOON + HOUR),
        (NOON, SUBTRACT, HOUR, NOON - HOUR),
        (NOON, SUBTRACT, NOON - HOUR, HOUR),
        (HOUR, ADD, HOUR, 2 * HOUR),
        (HOUR, SUBTRACT, HOUR, timedelta()),
        (None, ADD, 1, None),
        ("a", MULTIPLY, None, None),
        (None, DIVIDE, 0, None),
    ],
)
def test_calculation(left: object, operator: int, right: object, result: object) -> None:
    found = calculate(operator, left, right)
    assert found == result
    assert type(found) is type(result)


@pytest.mark.parametrize(
    "left,operator,right",
    [
        (1, DIVIDE, 0),
        (1, REMAINDER, 0),
        (1.0, DIVIDE, 0),
        (1, REMAINDER, 0.0),
        (math.inf, REMAINDER, 2.0),
        (Decimal(1), DIVIDE, Decimal(0)),
        (Decimal(0), DIVIDE, 0),
        (Decimal("9E6144"), MULTIPLY, Decimal(10)),
        (LARGEST, ADD, 1),
        (-LARGEST, SUBTRACT, 2),
        (LARGEST, MULTIPLY, LARGEST),
        (-(2**63), DIVIDE, -1),
        (1e308, MULTIPLY, 10),
        (Decimal("1E6000"), MULTIPLY, 1.0),
        ("a", SUBTRACT, "b"),
        ("a", MULTIPLY, 2),
        (True, ADD, 1),
        (NOON, ADD, NOON),
        (NOON, ADD, 1),
        (HOUR, MULTIPLY, 2),
        (HOUR, SUBTRACT, NOON),
        (NOON, ADD, timedelta.max),
        (timedelta.max, ADD, HOUR),
        (b"a", ADD, b"b"),
        ("a", ADD, b"b"),
        ("a", ADD, NOON),
        ("a" * 20_000, ADD, "b" * 20_000),
    ],
)
def test_no_result(left: object, operator: int, right: object) -> None:
    with pytest.raises(FilterError):
        calculate(operator, left, right)


def test_signs() -> None:
    assert signed(5, True) == -5
    assert signed(5, False) == 5
    assert signed(1.5, True) == -1.5
    assert signed(Decimal("1.5"), True) == Decimal("-1.5")
    assert signed(HOUR, True) == -HOUR
    assert signed(None, True) is None
    for value in ("a", True, ID, -(2**63), timedelta.max):
        with pytest.raises(FilterError):
            signed(value, True)


def test_what_a_rule_may_hold() -> None:
    for value in (None, True, 0, -(2**63), 2**64 - 1, 1.5, Decimal("1E6000"), "ä", "", b""):
        assert fits_rule(value), value
    for other in (ID, NOON, HOUR, "a" * 32_768):
        assert fits_rule(other), other


def test_what_a_rule_cannot_hold() -> None:
    for value in (2**64, -(2**63) - 1, math.nan, math.inf, "a" * 32_769, b"a" * 32_769, "\ud800"):
        assert not fits_rule(value), value
    for text in ("NaN", "Infinity", "1E9999", "1E-9999", "0E9999", "0." + "3" * 35):
        assert not fits_rule(Decimal(text)), text
    for other in ([], {}, object()):
        assert not fits_rule(other), other
