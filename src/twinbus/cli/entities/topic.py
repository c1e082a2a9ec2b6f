"""`twinbus topic`: create, list, show, update and delete topics of a running server."""

from typing import Final

from twinbus.cli.arguments import Commands
from twinbus.cli.entities.actions import EntityCommand
from twinbus.client.admin import TOPIC

_COLUMNS: Final = (
    ("SUBSCRIPTIONS", "SubscriptionCount"),
    ("SCHEDULED", "ScheduledMessageCount"),
    ("BYTES", "SizeInBytes"),
    ("STATUS", "Status"),
)


def add_arguments(commands: Commands) -> None:
    EntityCommand(TOPIC, ("name",), _COLUMNS).add_actions(commands)
