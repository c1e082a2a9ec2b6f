"""Health: which parts of the bus are available, and what an entity cannot do (A-1).

There are four ways to be unavailable, kept apart because each can happen alone:

    send       nothing can be sent: status, a store that is down, throttling, a fault
    receive    nothing can be received: the same
    manage     it cannot be shown as a whole, changed or deleted: a part of it is down
    contact    no request gets through: the namespace is cut off

Pure: reads what others know and changes nothing.  Must never roll a fault's dice: a fault that only
acts sometimes is listed, and does not hit the request for health itself.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from twinbus.entities.descriptions import DISABLED, RECEIVE_DISABLED, SEND_DISABLED, STATUS_ACTIVE
from twinbus.gateway.directory.directory import Entity
from twinbus.gateway.faults.faults import Fault
from twinbus.gateway.faults.kinds import (
    CUT_NAMESPACE,
    MANAGEMENT,
    PARTITION_DOWN,
    RECEIVES,
    REFUSE_CONNECTIONS,
    SENDS,
)
from twinbus.gateway.throttling import throttle as throttling
from twinbus.gateway.throttling.throttle import FULL, Throttle
from twinbus.links.store_link import DOWN, SLOW, UP, StoreLink

HEALTH_NAMES: Final = {UP: "up", SLOW: "slow", DOWN: "down"}

# What Service Bus calls the availability of an entity.
AVAILABLE: Final = "Available"
LIMITED: Final = "Limited"  # some of its partitions are not well
RESTORING: Final = "Restoring"  # all of it is down, and on its way back

# Of a whole server.
HEALTHY: Final = "healthy"
DEGRADED: Final = "degraded"  # it serves, but not everything
UNHEALTHY: Final = "unhealthy"  # there is no store to serve from

_WAYS: Final = (
    ("send", SENDS, throttling.SEND, (DISABLED, SEND_DISABLED)),
    ("receive", RECEIVES, throttling.RECEIVE, (DISABLED, RECEIVE_DISABLED)),
    ("manage", MANAGEMENT, throttling.MANAGE, ()),
)


@dataclass
class BrokerReport:
    """The health of one broker process; without any, this process is broker 0."""

    broker: int
    state: str  # "up", or what it is instead (supervisor.py)
    pid: int = 0
    restarts: int = 0
    lag_ms: int = 0
    cpu_share: float = 0.0
    memory_bytes: int = 0
    trouble: str = ""  # the latest, for people


@dataclass
class StoreReport:
    """The health of one store."""

    store: int
    broker: int  # who runs it; -1: nobody
    health: int
    is_journalled: bool = False  # sends to it are taken elsewhere meanwhile
    commit_age_ms: int = 0  # of the oldest commit that is not durable yet
    open_count: int = 0  # operations that wait for it, or in it
    pending_bytes: int = 0
    disk_free_bytes: int = -1  # -1: not known
    trouble: str = ""  # the latest, for people

    def troubled(self, trouble: str) -> None:
        """It has noticed by itself that it does not do what it should."""
        self.trouble = trouble
        self.health = max(self.health, SLOW)


class HealthSource(Protocol):
    """Knows the health of brokers and stores."""

    def brokers(self) -> list[BrokerReport]: ...

    def stores(self) -> list[StoreReport]: ...


def server_status(brokers: Iterable[BrokerReport], stores: Sequence[StoreReport]) -> str:
    """The whole server in one word."""
    if all(store.health == DOWN for store in stores):
        return UNHEALTHY
    if any(store.health != UP for store in stores) or any(each.state != "up" for each in brokers):
        return DEGRADED
    return HEALTHY


def availability(entity: Entity, links: Sequence[StoreLink]) -> str:
    """What management says of an entity: is all of it there?"""
    healths = [links[part.store].health for part in entity.parts]
    if healths.count(DOWN) == len(healths):
        return RESTORING
    return AVAILABLE if healths.count(UP) == len(healths) else LIMITED


class Obstacles:
    """What is currently wrong with entities.

    `journalled` are the stores that are down while another store accepts their sends.
    """

    def __init__(
        self,
        links: Sequence[StoreLink],
        throttle: Throttle,
        faults: list[Fault],
        journalled: frozenset[int] = frozenset(),
    ) -> None:
        self._throttle = throttle
        self._journalled = journalled
        self._healths = [link.health for link in links]
        self._faults = faults
        self._is_all_well = not self._faults and not any(self._healths) and not throttle.is_pressed

    def of(self, entity: Entity, namespace: str) -> dict[str, list[str]]:
        """The ways in which an entity is unavailable, each with its reasons; empty: it is well."""
        if self._is_all_well and entity.description.status == STATUS_ACTIVE:
            return {}
        found: dict[str, list[str]] = {}
        for way, role, kind, statuses in _WAYS:
            reasons: list[str] = []
            if entity.description.status in statuses:
                reasons.append(f"its status is {entity.description.status}")
            reasons += self._down(entity, role)
            reasons += self._throttled(entity, kind)
            reasons += self._on_purpose(entity, role)
            if reasons:
                found[way] = reasons
        cut = [_text(fault) for fault in self._faults if _cuts(fault, namespace)]
        if cut:
            found["contact"] = cut
        return found

    def sick_partitions(self, entity: Entity) -> list[tuple[int, int, str]]:
        """Of a partitioned entity: partition, store, and how that is doing."""
        if not entity.is_partitioned or self._is_all_well:
            return []
        return [
            (part.partition, part.store, HEALTH_NAMES[self._healths[part.store]])
            for part in entity.parts
            if self._healths[part.store] != UP
        ] + [
            (part.partition, part.store, _text(fault))
            for fault in self._faults
            if fault.kind is PARTITION_DOWN
            for part in entity.parts
            if fault.covers(entity, part.partition) and self._healths[part.store] == UP
        ]

    def _down(self, entity: Entity, role: int) -> list[str]:
        """Sending and receiving go on while a part is there; managing needs all of them."""
        stores = {part.store for part in entity.parts}
        down = {store for store in stores if self._healths[store] == DOWN}
        if role == SENDS:
            down -= self._journalled
        if down and (role == MANAGEMENT or down == stores):
            return [f"store {store} is down" for store in sorted(down)]
        return []

    def _throttled(self, entity: Entity, kind: int) -> list[str]:
        shortages = [self._throttle.shortage(part.store, kind) for part in entity.parts]
        if all(level == FULL for level, _ in shortages):
            return [f"throttled ({shortages[0][1]})"]
        return []

    def _on_purpose(self, entity: Entity, role: int) -> list[str]:
        found = []
        for fault in self._faults:
            is_whole = fault.kind is PARTITION_DOWN and not fault.partitions
            if (fault.kind.roles & role or is_whole) and all(
                fault.covers(entity, part.partition) for part in entity.parts
            ):
                found.append(_text(fault))
        return found


def _cuts(fault: Fault, namespace: str) -> bool:
    is_cut = fault.kind in (CUT_NAMESPACE, REFUSE_CONNECTIONS)
    return is_cut and fault.covers_namespace(namespace.lower())


def _text(fault: Fault) -> str:
    sometimes = "" if fault.probability >= 1.0 else f", in {fault.probability:.0%} of cases"
    return f"fault {fault.fault_id} ({fault.kind.name}{sometimes})"
