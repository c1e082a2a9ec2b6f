"""Tables of prices: tiers, and what is no table."""

from decimal import Decimal

import pytest

from twinbus.cli.cost.price_table import read_prices
from twinbus.costs.prices import parse_prices
from twinbus.errors import ConfigError

TABLE = """
date = 2026-11-01
currency = "EUR"
[standard]
base_month = 10
included = 13_000_000
[[standard.tiers]]
up_to = 100_000_000
per_million = 0.80
[[standard.tiers]]
up_to = 2_500_000_000
per_million = 0.50
[[standard.tiers]]
per_million = 0.20
[premium]
unit_hour = 0.9
"""


@pytest.mark.parametrize(
    "operations, cost",
    [
        (0, "0"),
        (13_000_000, "0"),
        (14_000_000, "0.8"),
        (100_000_000, "69.6"),
        (101_000_000, "70.1"),
        (2_500_000_000, "1269.6"),
        (2_600_000_000, "1289.6"),
    ],
)
def test_each_tier_has_its_price(operations: int, cost: str) -> None:
    prices = parse_prices(TABLE, "mine")
    assert prices.operations_month(operations) == Decimal(cost)
    assert prices.month(operations) == Decimal(cost) + 10


def test_the_table_that_comes_along() -> None:
    prices = read_prices(None)
    assert prices.currency == "USD"
    assert prices.month(14_000_000) == Decimal("10.80")
    assert prices.unit_hour > 0


@pytest.mark.parametrize(
    "old, new, reason",
    [
        ("date", "[date", "mine: is not TOML"),
        ("date = 2026-11-01", "", "mine: date must be a date"),
        ("2026-11-01", "2026-11-01T07:00:00Z", "mine: date must be a date"),
        ('"EUR"', "7", "mine: currency must be a text"),
        ("base_month = 10", "base_month = -1", "mine: standard.base_month must be an amount"),
        ("base_month = 10", "base_month = true", "mine: standard.base_month must be an amount"),
        ("base_month = 10", "base_month = nan", "mine: standard.base_month must be an amount"),
        ("13_000_000", "1.5", "mine: standard.included must be a whole number"),
        ("base_month = 10", "base_month = 10\nbonus = 1", "mine: standard.bonus is not known"),
        ("[premium]", "[premium]\nunits = 1", "mine: premium.units is not known"),
        ('currency = "EUR"', 'currency = "EUR"\ntax = 1', "mine: tax is not known"),
        ("per_million = 0.20", "per_million = 0.20\nx = 1", "mine: standard.tiers.x is not known"),
        ("[premium]\nunit_hour = 0.9", "", "mine: [premium] is missing"),
        ("per_million = 0.20", "per_million = 0.20\nup_to = 1", "the last must have none"),
        ("up_to = 100_000_000\n", "", "every tier but the last needs up_to"),
        ("up_to = 100_000_000", "up_to = 9_000_000_000", "up_to must grow"),
    ],
)
def test_what_is_no_table_is_refused_with_a_reason(old: str, new: str, reason: str) -> None:
    assert old in TABLE
    with pytest.raises(ConfigError) as caught:
        parse_prices(TABLE.replace(old, new, 1), "mine")
    assert reason in str(caught.value)
