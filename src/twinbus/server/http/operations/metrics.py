"""`GET /metrics`: all counters, in Prometheus's format.

With ten thousand entities this is several megabytes of text, so it is gathered and written in
slices, and the loop does other work in between; only one request is served at a time.
"""

import asyncio
from typing import Final

from twinbus.entities.commands import Runtime
from twinbus.gateway.directory.directory import Entity
from twinbus.gateway.health.usage import memory_there_is
from twinbus.gateway.namespaces.namespace import Namespace
from twinbus.server.http.exchange import Request, Response
from twinbus.server.http.operations.health import entities_of
from twinbus.server.http.operations.metrics_text import (
    NO_ENTITY,
    EntitySample,
    entity_labels,
    render_brokers,
    render_entities,
    render_partitions,
    render_server,
    render_stores,
    render_traces,
)
from twinbus.server.http.operations.prometheus import CONTENT_TYPE
from twinbus.server.http.operations.running_server import RunningServer
from twinbus.server.http.viewers import Viewers
from twinbus.telemetry.telemetry import Telemetry

ENTITIES_MAX: Final = 10_000  # shown; a namespace of Service Bus has no more
_SLICE: Final = 250


class MetricsRequests:
    """Answers `GET /metrics`."""

    def __init__(self, server: RunningServer, viewers: Viewers, telemetry: Telemetry) -> None:
        self._server = server
        self._viewers = viewers
        self._telemetry = telemetry
        self._mutex = asyncio.Lock()
        self._memory_bytes = memory_there_is()

    async def answer(self, request: Request) -> Response:
        scope = self._viewers.scope(request)
        namespaces = self._server.namespaces.all() if scope is None else [scope]
        async with self._mutex:
            pieces = await self._pieces(namespaces)
        return Response(200, b"".join(pieces), CONTENT_TYPE)

    async def _pieces(self, namespaces: list[Namespace]) -> list[bytes]:
        server, metrics = self._server, self._server.gateway.metrics
        pieces = [
            render_server(metrics, server.throttle, server.usage, self._memory_bytes).encode(),
            render_brokers(server.source.brokers()).encode(),
            render_stores(server.source.stores()).encode(),
            self._traces().encode(),
        ]
        entities = [(each, entity) for each in namespaces for entity in await entities_of(each)]
        entities = entities[:ENTITIES_MAX]
        pieces.append(self._partitions(entities).encode())
        seen = [
            EntitySample(entity_labels(each.name, NO_ENTITY), metrics.of_namespace(each.name))
            for each in namespaces
        ]
        for first in range(0, len(entities), _SLICE):
            seen += await self._look(entities[first : first + _SLICE])
            await asyncio.sleep(0)
        for piece in render_entities(seen):
            pieces.append(piece.encode())
            await asyncio.sleep(0)
        return pieces

    async def _look(self, entities: list[tuple[Namespace, Entity]]) -> list[EntitySample]:
        held = [entity for _, entity in entities]
        runtimes: list[Runtime] = await self._server.changes.runtimes(held)
        return [
            EntitySample(
                entity_labels(namespace.name, namespace.path_of(entity)),
                entity.metrics if entity.metrics.is_used else None,
                runtime,
            )
            for (namespace, entity), runtime in zip(entities, runtimes, strict=True)
        ]

    def _traces(self) -> str:
        counts = self._telemetry.trace_counts
        return "" if counts is None else render_traces(*counts)

    def _partitions(self, entities: list[tuple[Namespace, Entity]]) -> str:
        links = self._server.gateway.links
        return render_partitions(
            (
                entity_labels(namespace.name, namespace.path_of(entity)),
                part.partition,
                part.store,
                links[part.store].health,
            )
            for namespace, entity in entities
            if entity.is_partitioned
            for part in entity.parts
        )
