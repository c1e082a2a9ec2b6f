"""`twinbus queue`: create, list, show and delete queues of a running server."""

from typing import Final

from twinbus.cli.arguments import Commands
from twinbus.cli.entities.actions import (
    AUTO_DELETE,
    DEAD_LETTERING,
    DUPLICATE_WINDOW,
    DUPLICATES,
    FORWARD_DEAD_LETTERS,
    FORWARD_TO,
    LOCK_DURATION,
    MAX_DELIVERY_COUNT,
    MAX_SIZE,
    PARTITIONING,
    SESSIONS,
    TIME_TO_LIVE,
    USER_METADATA,
    EntityCommand,
)
from twinbus.client.admin import QUEUE

_COLUMNS: Final = (
    ("ACTIVE", "ActiveMessageCount"),
    ("SCHEDULED", "ScheduledMessageCount"),
    ("DEAD-LETTER", "DeadLetterMessageCount"),
    ("BYTES", "SizeInBytes"),
    ("STATUS", "Status"),
)


def add_arguments(commands: Commands) -> None:
    EntityCommand(
        QUEUE,
        ("name",),
        _COLUMNS,
        (
            LOCK_DURATION,
            MAX_DELIVERY_COUNT,
            TIME_TO_LIVE,
            DEAD_LETTERING,
            MAX_SIZE,
            PARTITIONING,
            SESSIONS,
            DUPLICATES,
            DUPLICATE_WINDOW,
            FORWARD_TO,
            FORWARD_DEAD_LETTERS,
            AUTO_DELETE,
            USER_METADATA,
        ),
    ).add_actions(commands)
