"""Sums of what was metered, with pairing shown apart."""

from decimal import Decimal

import pytest

from twinbus.cli.cost.price_table import read_prices
from twinbus.costs.rollup import month_bills, pairing_of, sums_by
from twinbus.metered import DAY_MS, Metered, parse_iso

pytestmark = pytest.mark.proves("P-18", "D-5")

NOON_MS = parse_iso("2026-11-30T12:00:00Z")
BACKLOG = "main/x-servicebus-transfer/3"


def line(entity: str, kind: str, units: int, empty: int = 0, at_ms: int = NOON_MS) -> Metered:
    return Metered(at_ms, at_ms + 1, "ns", entity, kind, units, units, empty)


LINES = [
    line("orders", "send", 10),
    line("orders", "receive", 12, 2),
    line("orders", "ping", 3),
    line(BACKLOG, "send", 7),
    line(BACKLOG, "receive", 47, 40),
    line(BACKLOG, "management", 1),
    line("orders", "send", 5, at_ms=NOON_MS + DAY_MS),
]


def test_sums_by_anything() -> None:
    by_kind = sums_by(LINES, ("kind",))
    assert {key[0]: each.units for key, each in by_kind.items()} == {
        "management": 1,
        "ping": 3,
        "receive": 59,
        "send": 22,
    }
    by_day = sums_by(LINES, ("day", "namespace"))
    assert [(key, each.operations) for key, each in by_day.items()] == [
        (("2026-11-30", "ns"), 80),
        (("2026-12-01", "ns"), 5),
    ]
    assert by_kind["receive",].empty == 42
    assert sums_by([], ("day",)) == {}


@pytest.mark.proves("P-18")
def test_pings_polls_and_moved_messages_are_recognised() -> None:
    pairing = pairing_of(LINES)
    assert vars(pairing) == {
        "into_backlog": 7,
        "out_of_backlog": 7,
        "polls": 40,
        "pings": 3,
        "management": 1,
    }
    assert pairing.units == 58


def test_tiers_begin_anew_every_month() -> None:
    prices = read_prices(None)
    lines = [
        line("orders", "send", 13_000_000),
        line("orders", "ping", 1_000_000),
        line("orders", "send", 13_000_000, at_ms=NOON_MS + DAY_MS),
    ]
    first, second = month_bills(lines, prices)
    assert (first.month, first.units) == ("2026-11", 14_000_000)
    assert first.operations == first.pairing == Decimal("0.80")
    assert second.month == "2026-12"
    assert second.operations == second.pairing == 0
