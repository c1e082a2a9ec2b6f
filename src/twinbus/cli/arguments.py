"""Arguments that several commands share, and how their text becomes values."""

import argparse
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

from twinbus.client.connection_string import ConnectionString
from twinbus.errors import ConfigError
from twinbus.metered import parse_iso

# Public in all but name: it is what `add_subparsers` gives back.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001

CONNECTION_STRING: Final = "TWINBUS_CONNECTION_STRING"
_SHORT_DURATION: Final = re.compile(r"(\d+)(ms|s|m|h|d)")
_SHORT_UNITS: Final = {"s": "PT{}S", "m": "PT{}M", "h": "PT{}H", "d": "P{}D"}
_SPAN: Final = re.compile(r"(\d{1,12})(ms|s|m|h|d)", re.ASCII)
_SPAN_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def add_option(
    parser: argparse._ActionsContainer,
    form: str,
    purpose: str,
    read: Callable[[str], Any] = str,
    default: object = None,
    **more: Any,
) -> None:
    """An option with a value, in the form that its help shows: `--port N`."""
    name, metavar = form.split()
    parser.add_argument(name, metavar=metavar, help=purpose, type=read, default=default, **more)


def add_repeated(
    parser: argparse._ActionsContainer, form: str, purpose: str, read: Callable[[str], Any] = str
) -> None:
    """The same for one that may be given several times; without it the list is empty."""
    add_option(parser, form, purpose, read, [], action="append")


def add_data(parser: argparse.ArgumentParser, purpose: str) -> None:
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help=purpose)


def add_connection_string(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--connection-string",
        metavar="TEXT",
        help=f"connection string, as `twinbus serve` prints it (default: ${CONNECTION_STRING})",
    )


def add_json(parser: argparse._ActionsContainer, form: str = "one document") -> None:
    parser.add_argument("--json", action="store_true", help=f"print JSON: {form}")


def connection_string(options: argparse.Namespace) -> str:
    """From the command line or the environment, checked."""
    text: str = options.connection_string or os.environ.get(CONNECTION_STRING, "")
    if not text:
        raise ConfigError(
            f"no connection string; pass --connection-string or set {CONNECTION_STRING}, "
            'for example with eval "$(twinbus env --data DIR)"'
        )
    ConnectionString.parse(text)  # complains early, in words, and without the key
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


# --- what a text on the command line may be -------------------------------------------------------


def moment(text: str) -> int:
    """UTC milliseconds; a time without a zone is UTC."""
    try:
        return parse_iso(text)
    except (ValueError, OverflowError):
        shown = f"'{text[:64]}' is not a time; write 2026-11-16 or 2026-11-16T07:00:00Z"
        raise argparse.ArgumentTypeError(shown) from None


def span_ms(text: str) -> int:
    """A duration, in milliseconds."""
    match = _SPAN.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"'{text[:64]}' is not a time; write 500ms, 30s, 5m, 2h")
    return int(match[1]) * _SPAN_MS[match[2]]


def positive_number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e12:
        raise argparse.ArgumentTypeError(f"'{text[:64]}' is not a number above 0")
    return number


def positive_count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or not 0 < int(text) < 1 << 63:
        raise argparse.ArgumentTypeError(f"'{text[:64]}' is not a whole number above 0")
    return int(text)


def key_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key.strip() or not equals or not value.strip():
        raise argparse.ArgumentTypeError(f"'{text[:64]}' is not of the form NAME=VALUE")
    return key.strip(), value.strip()
