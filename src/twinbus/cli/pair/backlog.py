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
from twinbus.pairing.options import is_same_namespace
from twinbus.pairing.primary import Primary, indexed, prefix_of, primary_of

CA_FILE: Final = "SSL_CERT_FILE"  # what `twinbus env` sets; the SDK does not look at it by itself


@dataclass(frozen=True)
class BacklogQueue:
    name: str
    active: int  # those that somebody has locked included
    dead_letter: int


class Backlog:
    """The backlog queues that the options name, those of older versions among them."""

    def __init__(self, options: argparse.Namespace) -> None:
        primary = ConnectionString.parse(options.primary).authority
        if is_same_namespace(primary, ConnectionString.parse(options.secondary).authority):
            raise ConfigError(
                f"{primary} is given as primary and as secondary; the backlog of a primary is in "
                "another namespace"
            )
        self.primary: Primary = primary_of(
            primary, options.primary_name, adopts_unmarked=options.adopt_unmarked
        )
        self.prefix = prefix_of(self.primary.name)
        self._count_max: int | None = options.backlog_queues
        self._admin = AdminClient(options.secondary)

    def queues(self) -> list[BacklogQueue]:
        """In the order of their numbers.  None at all is an error: there is no such pair."""
        entries = {entry.name: entry.properties for entry in self._admin.list_queues()}
        found: list[BacklogQueue] = []
        for name in (self.primary.name, self.primary.old_name):
            by_index = {} if name is None else indexed(name, entries)
            for index, queue in sorted(by_index.items()):
                if self._count_max is None or index < self._count_max:
                    counts = entries[queue]
                    found.append(
                        BacklogQueue(
                            queue,
                            int(counts.get("ActiveMessageCount", 0)),
                            int(counts.get("DeadLetterMessageCount", 0)),
                        )
                    )
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
