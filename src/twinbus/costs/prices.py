"""Price tables: TOML in, the monthly cost of operations out.

    date = 2026-11-01
    currency = "USD"

    [standard]
    base_month = 10.00
    included = 13_000_000

    [[standard.tiers]]
    up_to = 100_000_000     # operations a month; the last tier has none
    per_million = 0.80

    [premium]
    unit_hour = 0.928       # for each messaging unit

An unknown key is an error: a misspelt price must not count as missing.
Amounts are decimal and never rounded here.
"""

import datetime as dt
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, NoReturn, cast

from twinbus.errors import ConfigError

MILLION: Final = 1_000_000


@dataclass(frozen=True)
class Tier:
    """A price up to a number of operations a month."""

    up_to: int | None  # None: for all the rest
    per_million: Decimal


@dataclass(frozen=True)
class Prices:
    """One table."""

    date: dt.date
    currency: str
    base_month: Decimal
    included: int
    tiers: tuple[Tier, ...]
    unit_hour: Decimal

    def operations_month(self, units: int) -> Decimal:
        """What so many operations of a month cost beside the base charge, in the standard tier."""
        cost = Decimal(0)
        paid = self.included
        for tier in self.tiers:
            upper = units if tier.up_to is None else min(units, tier.up_to)
            if upper > paid:
                cost += (upper - paid) * tier.per_million / MILLION
                paid = upper
        return cost

    def month(self, units: int) -> Decimal:
        """What a month with so many operations costs in the standard tier."""
        return self.base_month + self.operations_month(units)


def parse_prices(text: str, source: str) -> Prices:
    """Read a table; `source` is only for complaints."""
    try:
        found = tomllib.loads(text, parse_float=Decimal)
    except ValueError as error:
        raise ConfigError(f"{source}: is not TOML ({error}); correct it") from error
    table = _Table(found, source, "")
    standard, premium = table.table("standard"), table.table("premium")
    prices = Prices(
        date=table.date("date"),
        currency=table.text("currency"),
        base_month=standard.amount("base_month"),
        included=standard.count("included"),
        tiers=_tiers(standard),
        unit_hour=premium.amount("unit_hour"),
    )
    for each in (table, standard, premium):
        each.check_nothing_is_left()
    return prices


def _tiers(standard: "_Table") -> tuple[Tier, ...]:
    tiers: list[Tier] = []
    for entry in standard.tables("tiers"):
        up_to = entry.count("up_to") if entry.has("up_to") else None
        tiers.append(Tier(up_to, entry.amount("per_million")))
        entry.check_nothing_is_left()
    ends = [tier.up_to for tier in tiers]
    bounds = [end for end in ends[:-1] if end is not None]
    if not tiers or ends[-1] is not None or len(bounds) < len(ends) - 1:
        standard.fail("tiers: every tier but the last needs up_to, and the last must have none")
    if bounds != sorted(set(bounds)):
        standard.fail("tiers: up_to must grow from tier to tier")
    return tuple(tiers)


class _Table:
    """A TOML table that knows which of its keys were read."""

    def __init__(self, found: Mapping[str, object], source: str, name: str) -> None:
        self._found = found
        self._left = set(found)
        self._source = source
        self._name = name

    def has(self, key: str) -> bool:
        return key in self._found

    def table(self, key: str) -> "_Table":
        value = self._take(key)
        if not isinstance(value, dict):
            self.fail(f"[{key}] is missing")
        return _Table(cast(Mapping[str, object], value), self._source, f"{key}.")

    def tables(self, key: str) -> list["_Table"]:
        value = self._take(key)
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            self.fail(f"[[{self._name}{key}]] is missing")
        name = f"{self._name}{key}."
        return [_Table(each, self._source, name) for each in cast(list[dict[str, object]], value)]

    def text(self, key: str) -> str:
        value = self._take(key)
        if not isinstance(value, str) or not value:
            self.fail(f"{key} must be a text")
        return value

    def date(self, key: str) -> dt.date:
        value = self._take(key)
        if not isinstance(value, dt.date) or isinstance(value, dt.datetime):
            self.fail(f"{key} must be a date, such as 2026-11-01")
        return value

    def amount(self, key: str) -> Decimal:
        value = self._take(key)
        is_number = isinstance(value, int | Decimal) and not isinstance(value, bool)
        number = Decimal(cast(int, value)) if is_number else Decimal(-1)
        if not number.is_finite() or number < 0:
            self.fail(f"{key} must be an amount, 0 or more")
        return number

    def count(self, key: str) -> int:
        value = self._take(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            self.fail(f"{key} must be a whole number, 0 or more")
        return value

    def check_nothing_is_left(self) -> None:
        if self._left:
            self.fail(f"{min(self._left)[:64]} is not known; see docs/operating/cost.md")

    def fail(self, reason: str) -> NoReturn:
        raise ConfigError(f"{self._source}: {self._name}{reason}")

    def _take(self, key: str) -> object:
        self._left.discard(key)
        return self._found.get(key)
