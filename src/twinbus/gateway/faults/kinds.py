"""The kinds of faults: what each does, its scope, and its options.

The registry checks against this table; the command line and the reference show it.
"""

from dataclasses import dataclass
from typing import Final

# What an operation is for; a fault names the ones it acts on.
SENDS: Final = 1
RECEIVES: Final = 2
MANAGEMENT: Final = 4

SCOPE_KEYS: Final = ("namespace", "entity", "partition", "store", "broker")

_ENTITIES: Final = frozenset({"namespace", "entity"})
_PARTITIONS: Final = _ENTITIES | {"partition"}
_NAMESPACE: Final = frozenset({"namespace"})
_STORE: Final = frozenset({"store"})
_BROKER: Final = frozenset({"broker"})


@dataclass(frozen=True)
class Kind:
    """One kind of fault."""

    name: str
    sentence: str  # what it does, for people
    scope: frozenset[str]  # where it may be put
    needs: str = ""  # the part of the scope that it cannot do without
    roles: int = 0  # the operations it refuses
    is_likely: bool = True  # takes a probability; others act always
    has_delay: bool = False
    is_once: bool = False  # it acts when it is added, and that is all

    @property
    def reaches_further(self) -> bool:
        """It hits what all namespaces share."""
        return "namespace" not in self.scope


THROTTLE: Final = Kind(
    "throttle",
    "Sends, receives and management are refused with server-busy and a hint to wait 10 s.",
    _PARTITIONS,
    roles=SENDS | RECEIVES | MANAGEMENT,
)
REFUSE_SENDS: Final = Kind(
    "refuse-sends", "Sending fails; receiving works.", _PARTITIONS, roles=SENDS
)
REFUSE_RECEIVES: Final = Kind(
    "refuse-receives",
    "Receiving, peeking and settling fail; sending works.",
    _PARTITIONS,
    roles=RECEIVES,
)
REFUSE_MANAGEMENT: Final = Kind(
    "refuse-management",
    "Reading, creating, changing and deleting entities and rules fails; messages still flow.",
    _ENTITIES,
    roles=MANAGEMENT,
)
PARTITION_DOWN: Final = Kind(
    "partition-down",
    "Partitions of a partitioned entity are unreachable: the named ones, or all.",
    _PARTITIONS,
    needs="entity",
    is_likely=False,
)
SLOW_STORE: Final = Kind(
    "slow-store", "Each write and sync of a store takes longer by the delay.", _STORE,
    has_delay=True,
)  # fmt: skip
FAIL_STORE: Final = Kind(
    "fail-store", "Writes and syncs of a store fail, as on a broken disk.", _STORE
)
FULL_STORE: Final = Kind(
    "full-store", "A store gets no more space, as on a full disk.", _STORE
)  # fmt: skip
HANG_BROKER: Final = Kind(
    "hang-broker",
    "A broker process hangs (SIGSTOP) until the server kills it or the fault ends.",
    _BROKER,
    needs="broker",
    is_likely=False,
)
KILL_BROKER: Final = Kind(
    "kill-broker",
    "A broker process is killed (SIGKILL), once.",
    _BROKER,
    needs="broker",
    is_likely=False,
    is_once=True,
)
CUT_NAMESPACE: Final = Kind(
    "cut-namespace",
    "A data centre is lost: open and new connections to the namespace are reset.",
    _NAMESPACE,
    is_likely=False,
)
DROP_CONNECTIONS: Final = Kind(
    "drop-connections",
    "Open connections are reset, once; new ones are accepted.",
    _NAMESPACE,
    is_once=True,
)
DELAY_CONNECTIONS: Final = Kind(
    "delay-connections",
    "All traffic on connections is late by the delay.",
    _NAMESPACE,
    has_delay=True,
)
REFUSE_CONNECTIONS: Final = Kind(
    "refuse-connections",
    "The service is unreachable: new connections are reset, open ones stay.",
    _NAMESPACE,
)

KINDS: Final = {
    kind.name: kind
    for kind in (
        THROTTLE,
        REFUSE_SENDS,
        REFUSE_RECEIVES,
        REFUSE_MANAGEMENT,
        PARTITION_DOWN,
        SLOW_STORE,
        FAIL_STORE,
        FULL_STORE,
        HANG_BROKER,
        KILL_BROKER,
        CUT_NAMESPACE,
        REFUSE_CONNECTIONS,
        DROP_CONNECTIONS,
        DELAY_CONNECTIONS,
    )
}
