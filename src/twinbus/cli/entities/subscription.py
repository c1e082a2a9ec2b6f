"""`twinbus subscription`: create, list, show and delete a topic's subscriptions."""

from typing import Final

from twinbus.cli.arguments import Commands
from twinbus.cli.entities.actions import (
    AUTO_DELETE,
    DEAD_LETTERING,
    FORWARD_DEAD_LETTERS,
    FORWARD_TO,
    LOCK_DURATION,
    MAX_DELIVERY_COUNT,
    SESSIONS,
    TIME_TO_LIVE,
    USER_METADATA,
    EntityCommand,
)
from twinbus.client.admin import SUBSCRIPTION

_COLUMNS: Final = (
    ("ACTIVE", "ActiveMessageCount"),
    ("DEAD-LETTER", "DeadLetterMessageCount"),
    ("STATUS", "Status"),
)


def add_arguments(commands: Commands) -> None:
    EntityCommand(
        SUBSCRIPTION,
        ("topic", "name"),
        _COLUMNS,
        (
            LOCK_DURATION,
            MAX_DELIVERY_COUNT,
            TIME_TO_LIVE,
            DEAD_LETTERING,
            SESSIONS,
            FORWARD_TO,
            FORWARD_DEAD_LETTERS,
            AUTO_DELETE,
            USER_METADATA,
        ),
    ).add_actions(commands)
