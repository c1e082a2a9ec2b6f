"""Everything a server needs for injected faults, put together.

    links of the stores ─▶ ServerFaults ─┬▶ links        for the gateway
                                         ├▶ connections  for the listener
                                         ├▶ router       for /$faults
                                         └▶ faults       which faults are in force

All of it is created before the gateway, so what faults can hit is added later (`watch`).
"""

import random
from collections.abc import Callable, Sequence

from twinbus.clock import Clock
from twinbus.gateway.directory.directory import Directory, Entity
from twinbus.gateway.faults.acting import ActingFaults, FaultEffects
from twinbus.gateway.faults.faults import Fault, Faults
from twinbus.gateway.faults.link import FaultyLink
from twinbus.gateway.namespaces.registry import Namespaces
from twinbus.links.store_link import StoreLink
from twinbus.server.http.access import HttpAccess
from twinbus.server.http.operations.faults import FaultRouter
from twinbus.server.port.connections import ClientConnections


class Targets:
    """What faults can be about in a running server."""

    def __init__(self, store_count: int, broker_count: int) -> None:
        self.store_count = store_count
        self.broker_count = broker_count  # processes; 0: the broker is in this one
        self.namespaces: Namespaces | None = None
        self.directory = Directory()

    def prefix(self, namespace: str) -> str | None:
        for each in [] if self.namespaces is None else self.namespaces.all():
            if each.name.lower() == namespace.lower():
                return each.prefix
        return None

    def find(self, name: str) -> Entity | None:
        return self.directory.find(name)

    def by_host(self, host: str | None) -> str | None:
        """Which namespace a host name means; without one, the only one that there is."""
        if self.namespaces is None:
            return None
        if host is not None:
            found = self.namespaces.by_host(host)
            return None if found is None else found.name.lower()
        every = self.namespaces.all()
        return every[0].name.lower() if len(every) == 1 else None


class ServerFaults:
    """The faults of one server and everything they act on."""

    def __init__(
        self,
        links: Sequence[StoreLink],
        broker_count: int,
        effects: FaultEffects,
        detach: Callable[[Fault], None],
        lose_parts: Callable[[Fault], None],
        clock: Clock,
    ) -> None:
        self._targets = Targets(len(links), broker_count)
        self.faults = Faults(self._targets, random.random)
        self.links = [FaultyLink(link, store, self.faults) for store, link in enumerate(links)]
        self.connections = ClientConnections(self.faults, self._targets.by_host)
        self.acting = ActingFaults(
            self.faults, effects, self.links, self.connections, detach, lose_parts, clock
        )

    def watch(self, namespaces: Namespaces, directory: Directory) -> None:
        """This is what there is from now on."""
        self._targets.namespaces = namespaces
        self._targets.directory = directory
        for link in self.links:
            link.watch(directory)

    def router(self, access: HttpAccess) -> FaultRouter:
        assert self._targets.namespaces is not None
        return FaultRouter(access, self.acting, self._targets.namespaces.default)

    def close(self) -> None:
        self.acting.close()
