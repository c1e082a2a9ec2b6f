"""The kinds of faults: what each does, where it may be put, and what else it takes.

One table for everybody: the registry checks by it, the command line and the reference show it.
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
    "Sends, receives and management are answered with server-busy and the advice to wait 10 s.",
    _PARTITIONS,
    roles=SENDS | RECEIVES | MANAGEMENT,
)
REFUSE_SENDS: Final = Kind(
    "refuse-sends", "Nothing can be sent; receiving goes on.", _PARTITIONS, roles=SENDS
)
REFUSE_RECEIVES: Final = Kind(
    "refuse-receives",
    "Nothing can be received, peeked at or settled; sending goes on.",
    _PARTITIONS,
    roles=RECEIVES,
)
REFUSE_MANAGEMENT: Final = Kind(
    "refuse-management",
    "Entities and rules cannot be looked at, made, changed or deleted; messages go on.",
    _ENTITIES,
    roles=MANAGEMENT,
)
PARTITION_DOWN: Final = Kind(
    "partition-down",
    "Partitions of a partitioned entity cannot be reached: the named ones, or all of them.",
    _PARTITIONS,
    needs="entity",
    is_likely=False,
)
SLOW_STORE: Final = Kind(
    "slow-store", "Every write and sync of a store takes longer by the delay.", _STORE,
    has_delay=True,
)  # fmt: skip
FAIL_STORE: Final = Kind(
    "fail-store", "Writes and syncs of a store fail, as those of a broken disk do.", _STORE
)
FULL_STORE: Final = Kind(
    "full-store", "A store gets no new room, as on a full disk.", _STORE
)  # fmt: skip
HANG_BROKER: Final = Kind(
    "hang-broker",
    "A broker process stands still (SIGSTOP), until it is killed for it or the fault ends.",
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
    "A data centre is lost: every connection to the namespace is reset, and so is every new one.",
    _NAMESPACE,
    is_likely=False,
)
DROP_CONNECTIONS: Final = Kind(
    "drop-connections",
    "Connections that are open now are reset, once; new ones are welcome.",
    _NAMESPACE,
    is_once=True,
)
DELAY_CONNECTIONS: Final = Kind(
    "delay-connections",
    "Whatever comes in and goes out on connections is late by the delay.",
    _NAMESPACE,
    has_delay=True,
)
REFUSE_CONNECTIONS: Final = Kind(
    "refuse-connections",
    "The service cannot be contacted: new connections are reset, open ones stay.",
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
