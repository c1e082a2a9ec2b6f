"""A real `twinbus serve` for tests, which use it and never reach inside it."""

from collections.abc import Mapping
from datetime import timedelta
from typing import TypeAlias

from twinbus import launch
from twinbus.client.admin import Entry
from twinbus.entities.descriptions import format_duration
from twinbus.launch import ServerFailed

__all__ = ["ServerFailed", "ServerProcess"]

Setting: TypeAlias = str | int | timedelta  # bool is an int


class ServerProcess(launch.ServerProcess):
    """A server with small log files: most tests write little, and files are preallocated."""

    own_arguments = ("--segment-size", "16")

    def create_queue(self, name: str, **settings: Setting) -> Entry:
        """Create a queue; settings as in the SDK: `lock_duration="PT5S", max_delivery_count=3`."""
        return self.admin.create_queue(name, entity_properties(settings))


def entity_properties(settings: Mapping[str, Setting]) -> dict[str, str]:
    """`lock_duration` → `LockDuration`, and values as text."""
    return {
        "".join(word.capitalize() for word in setting.split("_")): _text(value)
        for setting, value in settings.items()
    }


def _text(value: Setting) -> str:
    if isinstance(value, timedelta):
        return format_duration(value // timedelta(milliseconds=1))
    return str(value).lower() if isinstance(value, bool) else str(value)
