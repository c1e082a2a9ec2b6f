"""The rounds of auto-delete: every few seconds, ask the stores about partitioned entities with
auto-delete, and delete those that have been idle for too long (auto_delete.py).
"""

import contextlib
from collections.abc import Callable

from twinbus.clock import Clock
from twinbus.entities.commands import GetRuntime, Runtime
from twinbus.errors import EntityNotFound, OperationTimeout, Unavailable
from twinbus.gateway.directory.directory import Entity, Part
from twinbus.gateway.gateway import Gateway
from twinbus.gateway.namespaces.auto_delete import IdleEntities, parts_of
from twinbus.gateway.namespaces.entity_changes import EntityChanges
from twinbus.gateway.namespaces.entity_locks import place_of_entity
from twinbus.links.request import ask
from twinbus.links.store_link import DOWN


class IdleRounds:
    """Runs the rounds, and remembers state between them."""

    def __init__(
        self, gateway: Gateway, changes: EntityChanges, is_relayed: Callable[[Entity], bool]
    ) -> None:
        self._gateway = gateway
        self._changes = changes
        self._is_relayed = is_relayed  # does a relay carry messages from or to it?
        self._idle = IdleEntities()

    async def go(self, clock: Clock) -> list[str]:
        """Delete what nobody has used for too long; returns the names."""
        deleted: list[str] = []
        directory = self._gateway.directory
        for entity in self._idle.watched(directory):
            runtimes = await self._runtimes(parts_of(entity))
            if directory.by_id.get(entity.entity_id) is not entity:
                continue  # it has gone meanwhile, or with its topic
            place = place_of_entity(entity.name)
            if self._changes.entity_locks.are_taken(place):
                continue  # who changes it uses it
            if self._idle.is_over(entity, runtimes, self._is_relayed(entity), clock.now()):
                # A store went down, or its topic goes: another time.
                with contextlib.suppress(Unavailable, OperationTimeout, EntityNotFound):
                    async with self._changes.entity_locks.change(place):
                        await self._changes.delete(entity)
                    deleted.append(entity.name)
        return deleted

    async def _runtimes(self, parts: list[Part]) -> list[Runtime | None]:
        """What each part says, in their order; None where a store is down."""
        found: dict[tuple[int, int], Runtime | None] = {}
        for store in sorted({part.store for part in parts}):
            link = self._gateway.links[store]
            numbers = [part.entity_id for part in parts if part.store == store]
            if link.health == DOWN:
                continue
            try:
                runtimes = await ask(link, GetRuntime(numbers))
            except Unavailable:
                continue
            for number, runtime in zip(numbers, runtimes, strict=True):
                found[store, number] = runtime
        return [found.get((part.store, part.entity_id)) for part in parts]
