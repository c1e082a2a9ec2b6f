"""What was metered as a bill of the drill, by the price table that comes along."""

import importlib.resources
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

from twinbus.costs.prices import MILLION, Prices, parse_prices
from twinbus.costs.rollup import Pairing, Sum, pairing_of, sums_by
from twinbus.drill.judging import Bill
from twinbus.metered import Metered, decode_line


def shipped_prices() -> Prices:
    shipped = importlib.resources.files("twinbus.costs").joinpath("prices.toml")
    return parse_prices(shipped.read_text(encoding="utf-8"), "prices.toml")


def bill_of(total: Sum, pairing: Pairing, kinds: Mapping[str, int], prices: Prices) -> Bill:
    per_unit = prices.tiers[0].per_million / MILLION
    return Bill(
        operations=total.operations,
        units=total.units,
        pairing_units=pairing.units,
        kinds=dict(kinds),
        currency=prices.currency,
        prices_date=str(prices.date),
        base=float(prices.base_month),
        cost=float(prices.operations_month(total.units)),
        list_price=_amount(total.units * per_unit),
        pairing_list_price=_amount(pairing.units * per_unit),
    )


def bill_of_lines(lines: list[Metered], prices: Prices) -> Bill:
    """Where there is no Spark: all lines at once."""
    total = sums_by(lines, ()).get((), Sum())
    kinds = {key[0]: each.units for key, each in sums_by(lines, ("kind",)).items()}
    return bill_of(total, pairing_of(lines), kinds, prices)


def read_meter(data_dir: Path) -> list[Metered]:
    """Every line of a data directory's meter that is whole."""
    paths = sorted((data_dir / "meter").glob("*.jsonl"))
    lines = [decode_line(line) for path in paths for line in path.read_bytes().splitlines()]
    return [line for line in lines if line is not None]


def _amount(value: Decimal) -> float:
    return float(round(value, 6))
