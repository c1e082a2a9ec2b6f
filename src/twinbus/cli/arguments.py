"""Arguments that several commands share, and how their text becomes values."""

import argparse
import os
import re
from pathlib import Path
from typing import Final, TypeAlias

from twinbus.errors import ConfigError

# Public in all but name: it is what `add_subparsers` gives back.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001

CONNECTION_STRING: Final = "TWINBUS_CONNECTION_STRING"
_SHORT_DURATION: Final = re.compile(r"(\d+)(ms|s|m|h|d)")
_SHORT_UNITS: Final = {"s": "PT{}S", "m": "PT{}M", "h": "PT{}H", "d": "P{}D"}


def add_data(parser: argparse.ArgumentParser, purpose: str) -> None:
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help=purpose)


def add_connection_string(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--connection-string",
        metavar="TEXT",
        help=f"the line that `twinbus serve` printed (default: ${CONNECTION_STRING})",
    )


def connection_string(options: argparse.Namespace) -> str:
    text: str = options.connection_string or os.environ.get(CONNECTION_STRING, "")
    if not text:
        raise ConfigError(
            f"no connection string; give --connection-string or set {CONNECTION_STRING}, "
            'for example by eval "$(twinbus env --data DIR)"'
        )
    return text


def duration(text: str) -> str:
    """An ISO 8601 duration (`PT30S`), or the short form of one (`30s`, `5m`, `2h`, `14d`)."""
    short = _SHORT_DURATION.fullmatch(text)
    if short is None:
        return text.upper()
    count, unit = short.groups()
    if unit == "ms":
        return f"PT{int(count) / 1000}S"
    return _SHORT_UNITS[unit].format(count)
