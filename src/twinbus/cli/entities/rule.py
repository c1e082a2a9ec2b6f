"""`twinbus rule`: create, list, show and delete the rules of a subscription."""

import argparse
from typing import Final

from twinbus.cli.arguments import Commands, add_option, add_repeated
from twinbus.cli.entities.actions import EntityCommand, client
from twinbus.client.admin import RULE
from twinbus.client.rules import CORRELATION_NAMES, RuleSettings

_COLUMNS: Final = (("FILTER", "Filter"), ("EXPRESSION", "Expression"), ("ACTION", "Action"))
_SYSTEM_NAMES: Final = {name.lower(): name for name in CORRELATION_NAMES} | {"subject": "Label"}


class RuleCommand(EntityCommand):
    """Rules are created from a filter and an action instead of settings."""

    def __init__(self) -> None:
        super().__init__(RULE, ("topic", "subscription", "name"), _COLUMNS)

    def add_settings(self, parser: argparse.ArgumentParser) -> None:
        add_option(parser, "--sql EXPRESSION", "a SQL filter", default="")
        add_repeated(
            parser,
            "--correlation NAME=VALUE",
            f"a property that must have this value: {', '.join(CORRELATION_NAMES)}",
            _system_pair,
        )
        add_repeated(
            parser, "--property NAME=VALUE", "an application property that must equal this", _pair
        )
        parser.add_argument("--false", action="store_true", help="match no message")
        parser.add_argument(
            "--action",
            dest="sql_action",
            default="",
            metavar="STATEMENTS",
            help="change matching messages: SET and REMOVE",
        )

    def create(self, options: argparse.Namespace) -> int:
        rule = RuleSettings(
            options.sql,
            dict(options.correlation),
            dict(options.property),
            options.false,
            options.sql_action,
        )
        self.done(options, "created", client(options).create_rule(self.names_of(options), rule))
        return 0


def add_arguments(commands: Commands) -> None:
    RuleCommand().add_actions(commands)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"'{text}' is not of the form NAME=VALUE")
    return name, value


def _system_pair(text: str) -> tuple[str, str]:
    name, value = _pair(text)
    known = _SYSTEM_NAMES.get(name.lower())
    if known is None:
        raise argparse.ArgumentTypeError(
            f"'{name}' is not one of {', '.join(CORRELATION_NAMES)}; for others use --property"
        )
    return known, value
