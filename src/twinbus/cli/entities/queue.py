"""`twinbus queue`: create, list, show, update and delete queues of a running server."""

from typing import Final

from twinbus.cli.arguments import Commands
from twinbus.cli.entities.actions import EntityCommand
from twinbus.client.admin import QUEUE

_COLUMNS: Final = (
    ("ACTIVE", "ActiveMessageCount"),
    ("SCHEDULED", "ScheduledMessageCount"),
    ("DEAD-LETTER", "DeadLetterMessageCount"),
    ("BYTES", "SizeInBytes"),
    ("STATUS", "Status"),
)


def add_arguments(commands: Commands) -> None:
    EntityCommand(QUEUE, ("name",), _COLUMNS).add_actions(commands)
