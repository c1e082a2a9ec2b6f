"""`GET /health`: whether the server is ready and, on request, what is wrong with which part.

Anyone may ask whether it is ready: the answer reveals only the version.  Details are for viewers
(viewers.py), who ask with a token or `?detail`:

    {"status": "degraded", "message": …, "version": …,
     "brokers": [{"broker": 0, "state": "up", …}],
     "stores": [{"store": 0, "health": "down", …}],
     "entities": [{"namespace": …, "entity": …, "availability": "Limited",
                   "partitions": [{"partition": 3, "store": 1, "health": "down"}],
                   "cannot": {"manage": ["store 1 is down"]}}]}

`entities` lists those with a problem; `cannot` says which of send, receive, manage and contact is
impossible, and why (A-1).
"""

import asyncio
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any, Final

from twinbus import __version__
from twinbus.gateway.directory.directory import Entity
from twinbus.gateway.faults.faults import Fault
from twinbus.gateway.health.health import (
    DEGRADED,
    HEALTH_NAMES,
    HEALTHY,
    UNHEALTHY,
    BrokerReport,
    Obstacles,
    StoreReport,
    server_status,
)
from twinbus.gateway.namespaces.namespace import Namespace
from twinbus.server.http.access import AUTHORIZATION
from twinbus.server.http.exchange import Request, Response, json_response
from twinbus.server.http.operations.running_server import RunningServer
from twinbus.server.http.viewers import Viewers

# The shape of Microsoft's emulator, so that what waits for that one can wait for this one.
_MESSAGES: Final = {
    HEALTHY: "twinbus is ready.",
    DEGRADED: "twinbus is ready, but parts of it are unhealthy.",
    UNHEALTHY: "twinbus has no store to serve from.",
}
ENTITIES_SHOWN_MAX: Final = 1_000
_SLICE: Final = 100  # entities looked at before somebody else may do something


class HealthRequests:
    """Answers `GET /health`."""

    def __init__(
        self, server: RunningServer, faults: Callable[[], list[Fault]], viewers: Viewers
    ) -> None:
        self._server = server
        self._faults = faults
        self._viewers = viewers

    async def answer(self, request: Request) -> Response:
        brokers, stores = self._server.source.brokers(), self._server.source.stores()
        status = server_status(brokers, stores)
        document: dict[str, Any] = {
            "status": status,
            "message": _MESSAGES[status],
            "version": __version__,
        }
        if "detail" in request.query or AUTHORIZATION in request.headers:
            seen = self._viewers.scope(request)
            document["brokers"] = [broker_document(each) for each in brokers]
            document["stores"] = [store_document(each) for each in stores]
            document["throttled"] = self._server.throttle.pressures()
            await self._add_entities(document, stores, seen)
        code = HTTPStatus.SERVICE_UNAVAILABLE if status == UNHEALTHY else HTTPStatus.OK
        return json_response(code, document)

    async def _add_entities(
        self, document: dict[str, Any], stores: Iterable[StoreReport], seen: Namespace | None
    ) -> None:
        journalled = frozenset(each.store for each in stores if each.is_journalled)
        obstacles = Obstacles(
            self._server.gateway.links, self._server.throttle, self._faults(), journalled
        )
        shown: list[dict[str, Any]] = []
        more = 0
        for namespace in [seen] if seen is not None else self._server.namespaces.all():
            for number, entity in enumerate(await entities_of(namespace)):
                if number % _SLICE == _SLICE - 1:
                    await asyncio.sleep(0)
                cannot = obstacles.of(entity, namespace.name)
                partitions = obstacles.sick_partitions(entity)
                if not cannot and not partitions:
                    continue
                if len(shown) < ENTITIES_SHOWN_MAX:
                    shown.append(self._entity(namespace, entity, cannot, partitions))
                else:
                    more += 1
        document["entities"] = shown
        document["entities_not_shown"] = more

    def _entity(
        self,
        namespace: Namespace,
        entity: Entity,
        cannot: dict[str, list[str]],
        partitions: list[tuple[int, int, str]],
    ) -> dict[str, Any]:
        return {
            "namespace": namespace.name,
            "entity": namespace.path_of(entity),
            "availability": self._server.gateway.availability(entity),
            "cannot": cannot,
            "partitions": [
                {"partition": partition, "store": store, "health": health}
                for partition, store, health in partitions
            ],
        }


async def entities_of(namespace: Namespace) -> list[Entity]:
    """Everything of a namespace that messages are sent to or received from."""
    found: list[Entity] = []
    for kind in ("queue", "topic", "subscription"):
        found += namespace.entities(kind)
        await asyncio.sleep(0)
    return found


def broker_document(report: BrokerReport) -> dict[str, Any]:
    return {
        "broker": report.broker,
        "state": report.state,
        "pid": report.pid,
        "restarts": report.restarts,
        "lag_ms": report.lag_ms,
        "cpu_share": round(report.cpu_share, 3),
        "memory_bytes": report.memory_bytes,
        "trouble": report.trouble,
    }


def store_document(report: StoreReport) -> dict[str, Any]:
    return {
        "store": report.store,
        "health": HEALTH_NAMES[report.health],
        "broker": report.broker,
        "is_journalled": report.is_journalled,
        "commit_age_ms": report.commit_age_ms,
        "pending_bytes": report.pending_bytes,
        "disk_free_bytes": report.disk_free_bytes,
        "trouble": report.trouble,
    }
