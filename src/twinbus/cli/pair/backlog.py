"""The backlog queues of a pair as its secondary's administration shows them.

Only looks: a pair makes its queues when it is set up, the command line never does.
"""

import argparse
import os
import re
from dataclasses import dataclass
from typing import Any, Final

from twinbus.client.admin import AdminClient
from twinbus.client.connection_string import ConnectionString
from twinbus.errors import ConfigError
from twinbus.pairing.backlog_queues import prefix_of
from twinbus.pairing.options import primary_name_of

CA_FILE: Final = "SSL_CERT_FILE"  # what `twinbus env` sets; the SDK does not look at it by itself


@dataclass(frozen=True)
class BacklogQueue:
    name: str
    active: int  # those that somebody has locked included
    dead_letter: int


class Backlog:
    """The backlog queues that the options name."""

    def __init__(self, options: argparse.Namespace) -> None:
        target = ConnectionString.parse(options.primary)
        self.prefix = prefix_of(options.primary_name or primary_name_of(target.authority))
        self._count_max: int | None = options.backlog_queues
        self._admin = AdminClient(options.secondary)

    def queues(self) -> list[BacklogQueue]:
        """In the order of their numbers.  None at all is an error: there is no such pair."""
        # Names compare without case, and the secondary may have kept another one than ours.
        pattern = re.compile(re.escape(self.prefix) + r"(\d{1,9})", re.IGNORECASE)
        found: dict[int, BacklogQueue] = {}
        for entry in self._admin.list_queues():
            match = pattern.fullmatch(entry.name)
            if match is not None and (self._count_max is None or int(match[1]) < self._count_max):
                properties = entry.properties
                found[int(match[1])] = BacklogQueue(
                    entry.name,
                    int(properties.get("ActiveMessageCount", 0)),
                    int(properties.get("DeadLetterMessageCount", 0)),
                )
        if not found:
            raise ConfigError(
                f"the secondary has no queue {self.prefix}0: no pair was set up for this primary; "
                "if it has another name there, pass --primary-name"
            )
        return [found[index] for index in sorted(found)]


def sdk_options() -> dict[str, Any]:
    """Keywords for the SDK's clients: which certificates to trust."""
    path = os.environ.get(CA_FILE)
    return {"connection_verify": path} if path else {}
