"""`twinbus topic`: create, list, show and delete topics of a running server."""

from typing import Final

from twinbus.cli.arguments import Commands
from twinbus.cli.entities.actions import (
    AUTO_DELETE,
    DUPLICATE_WINDOW,
    DUPLICATES,
    MAX_SIZE,
    PARTITIONING,
    TIME_TO_LIVE,
    USER_METADATA,
    EntityCommand,
)
from twinbus.client.admin import TOPIC

_COLUMNS: Final = (
    ("SUBSCRIPTIONS", "SubscriptionCount"),
    ("SCHEDULED", "ScheduledMessageCount"),
    ("BYTES", "SizeInBytes"),
    ("STATUS", "Status"),
)


def add_arguments(commands: Commands) -> None:
    EntityCommand(
        TOPIC,
        ("name",),
        _COLUMNS,
        (
            TIME_TO_LIVE,
            MAX_SIZE,
            PARTITIONING,
            DUPLICATES,
            DUPLICATE_WINDOW,
            AUTO_DELETE,
            USER_METADATA,
        ),
    ).add_actions(commands)
