"""Which primary a backlog belongs to (P-19): the names of its queues, the mark on its messages.

A backlog queue on Azure's own hosts is named after the namespace, as Microsoft's clients name it;
elsewhere after host and port, since the first part of a host name says too little.  Every message
carries its primary's mark, and every syphon compares it before it sends:

    this primary's mark       moved
    another one's             left where it is, and reported once
    none (older versions,     moved out of queues whose name belongs to this primary alone; out of
    Microsoft's clients)      others only if somebody has said so

Queues of others are those of older versions, which used the first part of any host name.

The same address may be another server tomorrow, or on another machine.  A twinbus tells the id of
its namespace to every sender (namespace_ids.py); messages carry it beside the mark once their pair
has heard it, and then it has to be the same, too.  It only ever keeps messages from being moved:
where one side does not know it the mark decides, and a `primary_name` vouches for itself.  Pure.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from twinbus.pairing import rules
from twinbus.pairing.options import AMQPS_PORT, host_and_port, is_same_namespace
from twinbus.pairing.value_types import text_of

# In this cloud a namespace's name is its own; other clouds may have one of the same name.
_AZURE: Final = ".servicebus.windows.net"
_OTHER_CLOUDS: Final = (
    ".servicebus.chinacloudapi.cn",
    ".servicebus.usgovcloudapi.net",
    ".servicebus.cloudapi.de",
)
UNMARKED: Final = ""  # what stands for the mark of a message that has none
_ID_SIGN: Final = "#"  # between mark and id; no entity's name has one
_CHARS_MAX: Final = 260  # of an entity's path


def prefix_of(name: str) -> str:
    """How the names of a primary's backlog queues begin; their index follows."""
    return f"{name}/x-servicebus-transfer/"


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose messages may be taken out of one backlog queue."""

    mark: str
    takes_unmarked: bool
    compares_ids: bool = True

    def owns(self, mark: str | None, namespace: str | None = None, here: str | None = None) -> bool:
        """`mark`, `namespace`: what the message has; `here`: the id that the primary tells.

        None: there is none, or nobody can read it.
        """
        if self.compares_ids and namespace and here and namespace != here:
            return False
        if mark is None:
            return self.takes_unmarked
        return mark.casefold() == self.mark.casefold()

    def whose(self, mark: str | None, namespace: str | None) -> str:
        """What a stranger's primary is called, to people; no mark: UNMARKED."""
        if namespace is not None and self.owns(mark):
            return f"{mark or self.mark}{_ID_SIGN}{namespace}"
        return UNMARKED if mark is None else mark


@dataclass(frozen=True, slots=True)
class Primary:
    """A primary as its backlog knows it."""

    name: str  # in the names of its backlog queues
    mark: str  # on its messages
    old_name: str | None = None  # by which versions without marks named its queues
    adopts_unmarked: bool = False
    compares_ids: bool = True  # False: its owner has said which primary it is

    def is_own(self, queue: str) -> bool:
        """Whether the name of this queue belongs to this primary alone."""
        return queue.casefold().startswith(prefix_of(self.name).casefold())

    def owner_of(self, queue: str) -> Owner:
        takes_unmarked = self.adopts_unmarked or self.is_own(queue)
        return Owner(self.mark, takes_unmarked, self.compares_ids)

    def stranger_in(self, queue: str, properties: Mapping[str, object]) -> str | None:
        """Whose a message is, by its application properties; None: this primary's to move."""
        mark = text_of(properties.get(rules.PRIMARY))
        return None if self.owner_of(queue).owns(mark) else mark or UNMARKED

    @property
    def prefix(self) -> str:
        """How the names of its backlog queues begin."""
        return prefix_of(self.name)

    def own_queues(self, names: Iterable[str], count_max: int | None = None) -> list[str]:
        """The backlog queues among these, in the order of their index, below the count."""
        return _indexed(self.name, names, count_max)

    def old_queues(self, names: Iterable[str], count_max: int | None = None) -> list[str]:
        """Those that an older version may have made for it."""
        return [] if self.old_name is None else _indexed(self.old_name, names, count_max)


def _indexed(name: str, queues: Iterable[str], count_max: int | None) -> list[str]:
    """Service Bus's names compare without case, and the secondary may have kept another one."""
    pattern = re.compile(re.escape(prefix_of(name)) + r"([0-9]{1,9})", re.IGNORECASE)
    found = ((pattern.fullmatch(queue), queue) for queue in queues)
    by_index = {int(match[1]): queue for match, queue in found if match is not None}
    return [by_index[each] for each in sorted(by_index) if count_max is None or each < count_max]


def primary_of(
    namespace: str,
    primary_name: str | None = None,
    *,
    secondary: str | None = None,
    adopts_unmarked: bool = False,
) -> Primary:
    """The primary at this host; `primary_name` if its owner has given it one.

    `ValueError` if it is no namespace, or the same as its secondary.
    """
    if secondary is not None and is_same_namespace(namespace, secondary):
        raise ValueError(f"{namespace} cannot be paired with itself.")
    if primary_name is not None:
        return Primary(primary_name, primary_name, None, adopts_unmarked, compares_ids=False)
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


def strangers_told(queue: str, primary: str, count: int) -> str:
    """What people are told of messages that are left in a backlog queue; no mark: UNMARKED."""
    mark, sign, _ = primary.partition(_ID_SIGN)
    if sign:
        whose = f"of {one_line(primary)}"
        reason = (
            "another namespace answers at this address now; if it is to have them, because it was "
            f"set up anew, run `twinbus pair drain --primary-name {one_line(mark)}`"
        )
    elif primary:
        whose = f"of {one_line(primary)}"
        reason = "they belong to another primary, and wait for its own syphon"
    else:
        whose = "without a mark"
        reason = (
            "they do not say whose they are, and other primaries may have used this queue; if they "
            "are all of this primary, run `twinbus pair drain --adopt-unmarked`"
        )
    return f"{queue}: {count:,} messages {whose} are left: {reason}"


def one_line(text: str) -> str:
    """Anybody may have written it: no message breaks out of its line."""
    return text if text.isprintable() and len(text) <= _CHARS_MAX else repr(text[:64])


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
