"""`twinbus subscription`: create, list, show, update and delete a topic's subscriptions."""

from typing import Final

from twinbus.cli.arguments import Commands
from twinbus.cli.entities.actions import EntityCommand
from twinbus.client.admin import SUBSCRIPTION

_COLUMNS: Final = (
    ("ACTIVE", "ActiveMessageCount"),
    ("DEAD-LETTER", "DeadLetterMessageCount"),
    ("STATUS", "Status"),
)


def add_arguments(commands: Commands) -> None:
    EntityCommand(SUBSCRIPTION, ("topic", "name"), _COLUMNS).add_actions(commands)
