"""Creating, changing and deleting entities: in all stores that have a part of them, or in none.

    create   every store creates its parts in one frame; if one cannot, the others delete theirs
    update   every store updates; if one cannot, the others undo it
    delete   every store deletes; refused while one of them is down

Differences that a crash leaves between two stores are reconciled at the next start (reconcile.py).
An entity enters the directory when all of it is durable, and leaves it before it is deleted.

The caller holds the entity's lock (entity_locks.py) until it is done.
"""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from twinbus.entities.commands import (
    Command,
    CreateEntities,
    DeleteEntities,
    GetRuntime,
    NewEntity,
    Runtime,
    UpdateEntities,
)
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.partitions import PARTITION_COUNT, partition_name, shown_name
from twinbus.entities.rule_descriptions import RuleDescription
from twinbus.errors import EntityAlreadyExists, EntityNotFound, ServiceError, Unavailable
from twinbus.gateway.directory.directory import Entity, Part, plain_id
from twinbus.gateway.directory.placement import store_of_plain, stores_of_partitions
from twinbus.gateway.gateway import Gateway
from twinbus.gateway.namespaces.change_lock import ChangeLock
from twinbus.gateway.namespaces.entity_locks import EntityLocks
from twinbus.links.request import ask
from twinbus.links.store_link import DOWN


class Catalog(Protocol):
    """The record of entities outside the stores (storage/catalog.py)."""

    def making(self, kind: str, name: str, description: str, stores: list[int]) -> None: ...

    def there(self, name: str, description: str, entity_ids: Sequence[int]) -> None: ...

    def removing(self, name: str) -> None: ...

    def removed(self, name: str) -> None: ...


class NoCatalog:
    """Where one store holds everything, it says all there is to say."""

    def making(self, kind: str, name: str, description: str, stores: list[int]) -> None:
        """Nothing to remember."""

    def there(self, name: str, description: str, entity_ids: Sequence[int]) -> None:
        """Nothing to remember."""

    def removing(self, name: str) -> None:
        """Nothing to remember."""

    def removed(self, name: str) -> None:
        """Nothing to remember."""


class EntityChanges:
    """Makes, changes and removes the entities of a gateway."""

    def __init__(self, gateway: Gateway, catalog: Catalog) -> None:
        self._gateway = gateway
        self._directory = gateway.directory
        self._catalog = catalog
        self.entity_locks = EntityLocks()
        self.lock = ChangeLock()

    async def create(
        self,
        kind: str,
        name: str,
        description: QueueDescription,
        rule: RuleDescription | None = None,
    ) -> Entity:
        """A new entity; a subscription comes with its first rule."""
        async with self.lock.with_others():
            if self._directory.find(name) is not None:
                raise EntityAlreadyExists(
                    f"An entity named '{shown_name(name)[:64]}' exists already."
                )
            stores = self._stores(kind, name, description)
            self._check_up(stores, "Nothing was created")
            self._catalog.making(kind, name, description.to_json(), stores)
            parts = await self._create_parts(kind, name, description, rule, stores)
            if kind == "subscription" and self._directory.topic_of(name) is None:
                self._catalog.removed(name)  # its broker has deleted the idle topic, and this too
                raise _no_topic(name)
            self._catalog.there(name, description.to_json(), list(map(_number, parts)))
            return self._directory.add(kind, name, description, parts)

    def _stores(self, kind: str, name: str, description: QueueDescription) -> list[int]:
        """Where the parts go, one of them or sixteen; those of a subscription to its topic's."""
        if kind == "subscription":
            topic = self._directory.topic_of(name)
            if topic is None:
                raise _no_topic(name)
            return [part.store for part in topic.parts]
        healths = [link.health for link in self._gateway.links]
        if description.enable_partitioning:
            return stores_of_partitions(name, healths)
        if len(healths) == 1:
            return [0]
        return [store_of_plain(self._directory.plain_counts(len(healths)), healths)]

    async def _create_parts(
        self,
        kind: str,
        name: str,
        description: QueueDescription,
        rule: RuleDescription | None,
        stores: list[int],
    ) -> list[Part]:
        parts: list[Part] = []
        is_partitioned = len(stores) == PARTITION_COUNT
        try:
            for store in sorted(set(stores)):
                here = [index for index, each in enumerate(stores) if each == store]
                names = [partition_name(name, i) if is_partitioned else name for i in here]
                news = [NewEntity(kind, each, description, rule) for each in names]
                ids: list[int] = await ask(self._gateway.links[store], CreateEntities(news))
                parts += [Part(store, each, i) for each, i in zip(ids, here, strict=True)]
        except ServiceError as error:
            await self._take_back(name, parts, not isinstance(error, Unavailable))
            raise
        parts.sort(key=_partition)
        return parts

    async def _take_back(self, name: str, parts: list[Part], is_sure: bool) -> None:
        """Some store could not: the others let go of what they have made.

        Of a store that was lost nobody knows what it has: then the catalog keeps the name until
        that store has been asked (reconcile.py).
        """
        with contextlib.suppress(ServiceError):  # then that does it
            await self._each_store(parts, DeleteEntities)
            if is_sure:
                self._catalog.removed(name)

    async def update(self, entity: Entity, description: QueueDescription) -> Entity:
        """Change the settings of an entity; returns it as it is in the directory then."""
        async with self.lock.with_others():
            entity = self._there(entity)
            self._check_up([part.store for part in entity.parts], "Nothing was changed")
            before = entity.description
            try:
                await self._each_store(entity.parts, partial(_update, description))
            except ServiceError:
                with contextlib.suppress(ServiceError):
                    await self._each_store(entity.parts, partial(_update, before))
                raise
            numbers = list(map(_number, entity.parts))
            self._catalog.there(entity.name, description.to_json(), numbers)
            self._directory.describe(entity, description)
            return entity

    async def delete(self, entity: Entity) -> None:
        """The entity goes; a topic with its subscriptions, a subscription with its rules."""
        async with self.lock.with_others():
            entity = self._there(entity)
            self._check_up([part.store for part in entity.parts], "Nothing was deleted")
            family = [entity, *entity.subscriptions.values()]
            for each in family:
                self._catalog.removing(each.name)
            self._directory.remove(entity)
            await self._each_store(entity.parts, DeleteEntities)
            for each in family:
                self._catalog.removed(each.name)

    def forget(self, store: int, entity_id: int) -> None:
        """A broker has deleted a plain entity for being idle."""
        entity = self._directory.by_id.get(plain_id(store, entity_id))
        if entity is not None:
            family = [entity, *entity.subscriptions.values()]
            self._directory.remove(entity)
            with contextlib.suppress(ServiceError):  # then reconcile.py finds out
                for each in family:
                    self._catalog.removed(each.name)

    async def runtimes(self, entities: list[Entity]) -> list[Runtime]:
        """What each holds, summed up over its partitions; parts that are down are left out."""
        sums = {entity.entity_id: Runtime() for entity in entities}
        wanted: dict[int, list[tuple[Entity, Part]]] = {}
        for entity in entities:
            for part in entity.parts:
                if self._gateway.links[part.store].health != DOWN:
                    wanted.setdefault(part.store, []).append((entity, part))
        for store, pairs in wanted.items():
            command = GetRuntime([part.entity_id for _, part in pairs])
            with contextlib.suppress(Unavailable):
                found: list[Runtime | None] = await ask(self._gateway.links[store], command)
                for (entity, _), runtime in zip(pairs, found, strict=True):
                    if runtime is not None:
                        _add(sums[entity.entity_id], runtime)
        return [sums[entity.entity_id] for entity in entities]

    # -- all stores ------------------------------------------------------------------------------

    def _there(self, entity: Entity) -> Entity:
        """The entity as it is known now: before the lock was ours its parts may have got other
        numbers, and a broker may have deleted it for being idle."""
        found = self._directory.find(entity.name)
        if found is None:
            raise EntityNotFound(
                f"The messaging entity '{shown_name(entity.name)[:64]}' could not be found."
            )
        return found

    def _check_up(self, stores: list[int], consequence: str) -> None:
        down = sorted({store for store in stores if self._gateway.links[store].health == DOWN})
        if down:
            raise Unavailable(
                f"{consequence}: store {down[0]}, where a part of the entity is, is down. "
                "Try again when it is back."
            )

    async def _each_store(self, parts: list[Part], command: Callable[[list[int]], Command]) -> None:
        for store in sorted({part.store for part in parts}):
            here = [part.entity_id for part in parts if part.store == store]
            await ask(self._gateway.links[store], command(here))


def _update(description: QueueDescription, entity_ids: list[int]) -> Command:
    return UpdateEntities(entity_ids, description)


def _no_topic(name: str) -> EntityNotFound:
    return EntityNotFound(f"There is no topic for '{shown_name(name)[:64]}'.")


def _partition(part: Part) -> int:
    return part.partition


def _number(part: Part) -> int:
    return part.entity_id


def _add(total: Runtime, one: Runtime) -> None:
    total.active += one.active
    total.deferred += one.deferred
    total.scheduled += one.scheduled
    total.dead_letter += one.dead_letter
    total.transfer_dead_letter += one.transfer_dead_letter
    total.size_bytes += one.size_bytes
    total.accessed_utc_ms = max(total.accessed_utc_ms, one.accessed_utc_ms)
    total.is_busy = total.is_busy or one.is_busy
    total.last_sequence_number = max(total.last_sequence_number, one.last_sequence_number)
    # Every partition of a topic has all rules.
    total.sql_filter_count = max(total.sql_filter_count, one.sql_filter_count)
    total.correlation_filter_count = max(
        total.correlation_filter_count, one.correlation_filter_count
    )
    total.rule_count = max(total.rule_count, one.rule_count)
