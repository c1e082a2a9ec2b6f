"""Which primary a backlog belongs to (P-19): the names of its queues, the mark on its messages.

A backlog queue on Azure's own hosts is named after the namespace, as Microsoft's clients name it;
elsewhere after host and port, since the first part of a host name says too little.  Every message
carries its primary's mark, and every syphon compares it before it sends:

    this primary's mark       moved
    another one's             left where it is, and reported once
    none (older versions,     moved out of queues whose name belongs to this primary alone; out of
    Microsoft's clients)      others only if somebody has said so

Queues of others are those of older versions, which used the first part of any host name.  Pure.
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from twinbus.pairing.options import (
    AMQPS_PORT,
    SendAvailabilityPairedNamespaceOptions,
    host_and_port,
    is_same_namespace,
)

# In this cloud a namespace's name is its own; other clouds may have one of the same name.
_AZURE: Final = ".servicebus.windows.net"
_OTHER_CLOUDS: Final = (
    ".servicebus.chinacloudapi.cn",
    ".servicebus.usgovcloudapi.net",
    ".servicebus.cloudapi.de",
)
UNMARKED: Final = ""  # what stands for the mark of a message that has none


def prefix_of(name: str) -> str:
    """How the names of a primary's backlog queues begin; their index follows."""
    return f"{name}/x-servicebus-transfer/"


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose messages may be taken out of one backlog queue."""

    mark: str
    takes_unmarked: bool

    def owns(self, mark: str | None) -> bool:
        """None: the message has no mark, or one that nobody can read."""
        if mark is None:
            return self.takes_unmarked
        return mark.casefold() == self.mark.casefold()


@dataclass(frozen=True, slots=True)
class Primary:
    """A primary as its backlog knows it."""

    name: str  # in the names of its backlog queues
    mark: str  # on its messages
    old_name: str | None = None  # by which versions without marks named its queues
    adopts_unmarked: bool = False

    def is_own(self, queue: str) -> bool:
        """Whether the name of this queue belongs to this primary alone."""
        return queue.casefold().startswith(prefix_of(self.name).casefold())

    def owner_of(self, queue: str) -> Owner:
        return Owner(self.mark, self.adopts_unmarked or self.is_own(queue))

    def old_queues(self, names: Iterable[str]) -> list[str]:
        """Those that an older version may have made for it, in the order of their index."""
        if self.old_name is None:
            return []
        return [name for _, name in sorted(indexed(self.old_name, names).items())]


def indexed(name: str, queues: Iterable[str]) -> dict[int, str]:
    """The backlog queues of this name by their index; Service Bus's names compare without case."""
    pattern = re.compile(re.escape(prefix_of(name)) + r"([0-9]{1,9})", re.IGNORECASE)
    found = ((pattern.fullmatch(queue), queue) for queue in queues)
    return {int(match[1]): queue for match, queue in found if match is not None}


def primary_of(
    namespace: str, primary_name: str | None = None, *, adopts_unmarked: bool = False
) -> Primary:
    """The primary at this host; `primary_name` if its owner has given it one.

    `ValueError` if it is no namespace.
    """
    if primary_name is not None:
        return Primary(primary_name, primary_name, None, adopts_unmarked)
    host, port = host_and_port(namespace)
    label = host.partition(".")[0]
    if host.endswith(_AZURE):
        return Primary(label, label, None, adopts_unmarked)
    if host.endswith(_OTHER_CLOUDS):
        return Primary(label, host, None, adopts_unmarked)
    if host == "localhost" or _is_address(host):
        # Older versions have told these apart, too.
        name = "-".join([host.replace(":", "-"), *([str(port)] if port else [])])
        return Primary(name, name, None, adopts_unmarked)
    name = f"{host}-{port or AMQPS_PORT}"
    return Primary(name, name, label, adopts_unmarked)


def primary_in(
    options: SendAvailabilityPairedNamespaceOptions, primary: Any, secondary: Any
) -> Primary:
    """From a pair's two clients; `ValueError` if they share a namespace."""
    namespace: str = primary.fully_qualified_namespace
    if is_same_namespace(namespace, secondary.fully_qualified_namespace):
        raise ValueError(f"{namespace} cannot be paired with itself.")
    return primary_of(namespace, options.primary_name, adopts_unmarked=options.adopt_unmarked)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
