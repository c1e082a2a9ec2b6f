"""`twinbus pair`: look at the backlog of a pair of namespaces, and bring it home.

The work is done by `twinbus.pairing` on the official SDK, which the base install does without; so
this module only reads arguments, and asks for the extra where it is missing.
"""

import argparse
import importlib
import os
import re
from collections.abc import Callable
from typing import Final

from twinbus.cli.arguments import CONNECTION_STRING, Commands, add_json, add_option
from twinbus.client.connection_string import ConnectionString
from twinbus.errors import ConfigError

PRIMARY: Final = f"{CONNECTION_STRING}_PRIMARY"
SECONDARY: Final = f"{CONNECTION_STRING}_SECONDARY"
# Each action and its module in this package.
_ACTIONS: Final = {
    "status": ("status", "show the messages in the backlog queues, by destination"),
    "syphon": ("syphon", "move the backlog to the primary until Ctrl-C"),
    "drain": ("syphon", "move the backlog to the primary until it is empty"),
}
# Longer than a destination that is down rests, and than two locks of a backlog queue.
PATIENCE_S: Final = 150
_DRAIN_CODES: Final = (
    "Exit code 0: the backlog is empty, everything was delivered.  3: messages were dead-lettered, "
    "or are left because their destination does not accept them, or because they are another "
    "primary's."
)


def add_arguments(commands: Commands) -> None:
    parser = commands.add_parser("pair")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for action, (_, purpose) in _ACTIONS.items():
        epilog = _DRAIN_CODES if action == "drain" else None
        command = actions.add_parser(action, help=purpose, description=purpose, epilog=epilog)
        add_pair(command)
        if action == "status":
            command.set_defaults(adopt_unmarked=False)
        else:
            add_restored_time_to_live(command)
            add_adopt_unmarked(command)
        if action == "drain":
            add_patience(command)
        add_json(command)
        command.set_defaults(run=_run)


def add_restored_time_to_live(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--restored-time-to-live",
        choices=("original", "remaining"),
        default="original",
        help="what messages with a time to live get: all of it again, or the rest",
    )


def add_adopt_unmarked(parser: argparse.ArgumentParser) -> None:
    purpose = "move messages that do not say whose they are, also from queues of older versions"
    parser.add_argument("--adopt-unmarked", action="store_true", help=purpose)


def add_patience(parser: argparse.ArgumentParser) -> None:
    purpose = f"give up when nothing has moved for this long ({PATIENCE_S}s)"
    add_option(parser, "--patience TIME", purpose, _seconds, PATIENCE_S)


def add_pair(parser: argparse.ArgumentParser) -> None:
    """Which pair it is about; `take_connection_strings` follows."""
    for option, variable, purpose in (
        ("--primary", PRIMARY, "the primary"),
        ("--secondary", SECONDARY, "the secondary, which has the backlog"),
    ):
        text = f"connection string of {purpose} (default: ${variable})"
        add_option(parser, f"{option} TEXT", text)
    text = "the primary's name in the names of backlog queues (from its host name)"
    add_option(parser, "--primary-name NAME", text)
    text = "only the first N backlog queues (all of them)"
    add_option(parser, "--backlog-queues N", text, _count)


def take_connection_strings(options: argparse.Namespace) -> None:
    """Both, from the command line or the environment, checked."""
    options.primary = _connection_string(options.primary, "--primary", PRIMARY)
    options.secondary = _connection_string(options.secondary, "--secondary", SECONDARY)


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{count} backlog queues; use 1 or more")
    return count


def _seconds(text: str) -> int:
    match = re.fullmatch(r"(\d{1,9})(s|m|h)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"'{text[:64]}' is not a duration; write 30s, 5m or 2h")
    return int(match[1]) * {"s": 1, "m": 60, "h": 3_600}[match[2]]


def _run(options: argparse.Namespace) -> int:
    take_connection_strings(options)
    module, _ = _ACTIONS[options.action]
    try:
        run: Callable[[argparse.Namespace], int] = importlib.import_module(
            f"twinbus.cli.pair.{module}"
        ).run
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("azure"):
            raise
        raise ConfigError(
            "pairing builds on the official SDK, which is not installed; "
            "pip install 'twinbus[pairing]'"
        ) from error
    return run(options)


def _connection_string(given: str | None, option: str, variable: str) -> str:
    text = given or os.environ.get(variable, "")
    if not text:
        raise ConfigError(f"no connection string; pass {option} or set {variable}")
    ConnectionString.parse(text)  # complains in words, and without the key
    return text
