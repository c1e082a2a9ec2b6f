"""The backlog queues of a pair as its secondary's administration shows them.

Only looks: a pair makes its queues when it is set up, the command line never does.
"""

import argparse
import os
from dataclasses import dataclass
from typing import Any, Final

from twinbus.client.admin import AdminClient
from twinbus.client.connection_string import ConnectionString
from twinbus.errors import ConfigError
from twinbus.pairing.primary import primary_of

CA_FILE: Final = "SSL_CERT_FILE"  # what `twinbus env` sets; the SDK does not look at it by itself


@dataclass(frozen=True)
class BacklogQueue:
    name: str
    active: int  # those that somebody has locked included
    dead_letter: int


class Backlog:
    """The backlog queues that the options name, those of older versions among them."""

    def __init__(self, options: argparse.Namespace) -> None:
        hosts = [ConnectionString.parse(t).authority for t in (options.primary, options.secondary)]
        try:
            self.primary = primary_of(
                hosts[0],
                options.primary_name,
                secondary=hosts[1],
                adopts_unmarked=options.adopt_unmarked,
            )
        except ValueError as error:
            raise ConfigError(
                f"{error} The backlog of a primary is in another namespace; check --secondary"
            ) from None
        self.prefix = self.primary.prefix
        self._count_max: int | None = options.backlog_queues
        self._admin = AdminClient(options.secondary)

    def queues(self) -> list[BacklogQueue]:
        """In the order of their numbers.  None at all is an error: there is no such pair."""
        entries = {entry.name: entry.properties for entry in self._admin.list_queues()}
        own = self.primary.own_queues(entries, self._count_max)
        found = [
            BacklogQueue(
                name,
                int(entries[name].get("ActiveMessageCount", 0)),
                int(entries[name].get("DeadLetterMessageCount", 0)),
            )
            for name in (*own, *self.primary.old_queues(entries, self._count_max))
        ]
        if not found:
            raise ConfigError(
                f"the secondary has no queue {self.prefix}0: no pair was set up for this primary; "
                "if it has another name there, pass --primary-name"
            )
        return found


def sdk_options() -> dict[str, Any]:
    """Keywords for the SDK's clients: which certificates to trust."""
    path = os.environ.get(CA_FILE)
    return {"connection_verify": path} if path else {}
