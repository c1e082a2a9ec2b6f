"""The table of prices that a command works with, and how amounts are shown."""

import argparse
import importlib.resources
from decimal import Decimal
from pathlib import Path

from twinbus.costs.prices import Prices, parse_prices
from twinbus.errors import ConfigError


def add_prices(parser: argparse.ArgumentParser, purpose: str) -> None:
    parser.add_argument("--prices", type=Path, metavar="FILE", help=purpose)


def read_prices(path: Path | None) -> Prices:
    """The user's table, or the one that comes along."""
    if path is None:
        shipped = importlib.resources.files("twinbus.costs").joinpath("prices.toml")
        return parse_prices(shipped.read_text(encoding="utf-8"), "prices.toml")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path} ({error}); check --prices") from error
    return parse_prices(text, str(path))


def origin(prices: Prices) -> str:
    return f"prices in {prices.currency} as of {prices.date}: check the current price list"


def money(amount: Decimal) -> str:
    """To the cent, or as exact as small amounts need it."""
    return f"{amount:,.2f}" if amount == 0 or amount >= 1 else f"{amount:,.4f}"
