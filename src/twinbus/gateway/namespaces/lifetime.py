"""Creating and deleting namespaces while the server runs, for tests for example.

    create   make it durable, show it to clients, create its declared entities
    delete   hide it, turn its clients away, delete its entities, then forget it

So after a crash the namespace exists and can be deleted again.  There are never entities without an
owner, and never a connection into a namespace that was deleted and created again.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from twinbus.clock import Clock
from twinbus.config import (
    NAMESPACES_MAX,
    Declared,
    Identity,
    check_namespace,
    new_identity,
    store_identity,
)
from twinbus.errors import (
    ArgumentInvalid,
    ConfigError,
    EntityAlreadyExists,
    EntityNotFound,
    InvalidOperation,
    QuotaExceeded,
    ServiceError,
)
from twinbus.gateway.namespaces.declared import declare
from twinbus.gateway.namespaces.namespace import Namespace
from twinbus.gateway.namespaces.registry import Namespaces


class NamespaceLifetimes:
    """Makes and deletes the namespaces of a server, all but the first."""

    def __init__(
        self,
        data_dir: Path,
        identities: list[Identity],
        namespaces: Namespaces,
        make: Callable[[Identity], Namespace],
        leave: Callable[[Namespace], None],
        clock: Clock,
    ) -> None:
        """`leave` ends the connections and the faults of a namespace."""
        self._data_dir = data_dir
        self._identities = identities
        self.namespaces = namespaces
        self._make = make
        self._leave = leave
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()

    async def create(self, name: str, declared: Declared) -> Identity:
        """A new namespace with these entities, or none at all."""
        try:
            check_namespace(name)
        except ConfigError as error:
            raise ArgumentInvalid(str(error)) from error
        async with self._one_at_a_time:
            if self._find(name) is not None:
                raise EntityAlreadyExists(f"A namespace named '{name[:64]}' exists already.")
            if len(self._identities) >= NAMESPACES_MAX:
                raise QuotaExceeded(f"A server has at most {NAMESPACES_MAX} namespaces.")
            identity = new_identity(name, self._clock.now().utc_ms)
            await self._store([*self._identities, identity])
            namespace = self._make(identity)
            self.namespaces.add(namespace)
            try:
                await declare(namespace, declared)
            except ServiceError:
                await self._delete(namespace)
                raise
            return identity

    async def delete(self, name: str) -> None:
        """The namespace goes, with its entities and every message in them."""
        async with self._one_at_a_time:
            namespace = self._find(name)
            if namespace is None:
                raise EntityNotFound(f"There is no namespace '{name[:64]}'.")
            if namespace is self.namespaces.default:
                raise InvalidOperation("The first namespace of a server cannot be deleted.")
            await self._delete(namespace)

    async def _delete(self, namespace: Namespace) -> None:
        self.namespaces.remove(namespace)
        self._leave(namespace)
        try:
            await namespace.retire()  # a client that is gone may have asked for something before
            await _delete_entities(namespace)
        except BaseException:
            namespace.reinstate()
            self.namespaces.add(namespace)  # what is left of it must not be without an owner
            raise
        name = namespace.name.lower()
        await self._store([each for each in self._identities if each.namespace.lower() != name])

    def _find(self, name: str) -> Namespace | None:
        for namespace in self.namespaces.all():
            if namespace.name.lower() == name.lower():
                return namespace
        return None

    async def _store(self, identities: list[Identity]) -> None:
        """What is there at the next start; written elsewhere, since a disk may take its time."""
        await asyncio.to_thread(store_identity, self._data_dir, *identities)
        self._identities = identities


async def _delete_entities(namespace: Namespace) -> None:
    """Together, so that the store writes them down together."""
    entities = [*namespace.entities("topic"), *namespace.entities("queue")]
    paths = [namespace.path_of(entity) for entity in entities]
    results = await asyncio.gather(
        *(namespace.delete_entity(path) for path in paths), return_exceptions=True
    )
    for result in results:
        if isinstance(result, BaseException):
            raise result
