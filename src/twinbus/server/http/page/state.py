"""The page's document: everything about one namespace, and the server under it, at one moment.

    PageView        what a viewer wants to see: a namespace, and some of its entities
    NamespaceLook   what it held at one moment; several views may share one
    PageText        the document as JSON, in pieces, to tell what has changed

Shows what `/health`, `/metrics` and management know.  With ten thousand entities a look takes a
while, so it is taken in slices, and the loop does other work in between; only one at a time.
"""

import asyncio
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from twinbus import PRODUCT_NAME, __version__, build
from twinbus.clock import Clock
from twinbus.entities.commands import Runtime
from twinbus.entities.descriptions import SUBSCRIPTIONS
from twinbus.entities.partitions import PARTITION_COUNT
from twinbus.gateway.directory.directory import Entity
from twinbus.gateway.faults.acting import ActingFaults
from twinbus.gateway.health.health import HEALTH_NAMES, Obstacles, server_status
from twinbus.gateway.health.survival import survival
from twinbus.gateway.namespaces.namespace import Namespace
from twinbus.links.store_link import DOWN, UP
from twinbus.metered import iso
from twinbus.server.http.operations.faults import fault_document, owns
from twinbus.server.http.operations.health import broker_document, entities_of, store_document
from twinbus.server.http.operations.running_server import RunningServer
from twinbus.server.http.page.cost import CostBook
from twinbus.server.http.page.pair_reports import PairReports
from twinbus.server.http.page.rates import NAMES as RATES
from twinbus.server.http.page.rates import Rates

BACKLOG_MAX: Final = 1_000  # backlog queues shown
COST_PATIENCE_S: Final = 0.5
_SLICE: Final = 100  # entities looked at before somebody else may do something
_MEGABYTE: Final = 1_048_576
_TRANSFER: Final = "/x-servicebus-transfer/"
_BACKLOG: Final = re.compile(rf"(.+){_TRANSFER}([0-9]{{1,9}})", re.IGNORECASE)
_SUBSCRIPTIONS: Final = SUBSCRIPTIONS.lower()
_COUNTS: Final = ("active", "dead_letter", "scheduled", "deferred", "transfer_dead_letter")
# What changes by itself all the time is no reason to show a document again.
_RESTLESS: Final = frozenset(("time", "server", "brokers", "stores", "pairs", "faults"))


@dataclass(frozen=True)
class PageView:
    """What a viewer wants to see."""

    namespace: Namespace
    sees_all: bool  # faults of other namespaces, too, and their names
    prefix: str  # of the paths, in lower case
    skip: int
    top: int


class NamespaceLook:
    """What a namespace held: its entities in the page's order, and their contents."""

    def __init__(self, entities: list[Entity]) -> None:
        self.entities = entities
        self.paths: list[str] = []
        self.runtimes: list[Runtime] = []
        self.totals = dict.fromkeys((*_COUNTS, "size_bytes"), 0)
        self.rates = dict.fromkeys(RATES, 0.0)
        self.backlog: list[dict[str, Any]] = []

    def add(self, entity: Entity, path: str, runtime: Runtime, rates: dict[str, float]) -> None:
        """The next of its entities."""
        self.paths.append(path)
        self.runtimes.append(runtime)
        for name in _COUNTS:
            self.totals[name] += getattr(runtime, name)
        if entity.topic is None:  # a topic's size has its subscriptions' in it
            self.totals["size_bytes"] += runtime.size_bytes
        for name, rate in rates.items():
            self.rates[name] += rate
        found = backlog_of(entity, path)
        if found is not None and len(self.backlog) < BACKLOG_MAX:
            primary, index = found
            counts = {"active": runtime.active, "dead_letter": runtime.dead_letter}
            self.backlog.append({"queue": path, "primary": primary, "index": index, **counts})


class PageText(NamedTuple):
    """A document as text, and the parts whose change is worth showing."""

    data: str
    mark: int


class PageState:
    """Makes documents."""

    def __init__(
        self,
        server: RunningServer,
        faults: ActingFaults,
        rates: Rates,
        cost: CostBook,
        pairs: PairReports,
        clock: Clock,
    ) -> None:
        self._server = server
        self._faults = faults
        self._rates = rates
        self._cost = cost
        self._pairs = pairs
        self._clock = clock
        self._started = clock.now()
        self._mutex = asyncio.Lock()

    async def text(self, view: PageView) -> PageText:
        """The document, fresh."""
        await self._cost.begin(COST_PATIENCE_S)
        async with self._mutex:
            return await self.text_of(view, await self.look(view.namespace))

    async def look(self, namespace: Namespace) -> NamespaceLook:
        entities = await entities_of(namespace)
        entities.sort(key=_sort_key)
        look = NamespaceLook(entities)
        for first in range(0, len(entities), _SLICE):
            some = entities[first : first + _SLICE]
            for entity, runtime in zip(
                some, await self._server.changes.runtimes(some), strict=True
            ):
                rates = self._rates.of(entity) if entity.metrics.is_used else {}
                look.add(entity, namespace.path_of(entity), runtime, rates)
            await asyncio.sleep(0)
        return look

    async def text_of(self, view: PageView, look: NamespaceLook) -> PageText:
        """Each part of the document is written once; between large ones others have their turn."""
        pieces: dict[str, str] = {}
        for name, make in self._parts(view, look):
            pieces[name] = json.dumps(make())
            await asyncio.sleep(0)
        pieces.update(await self._page(view, look))
        data = "{" + ",".join(f'"{name}":{piece}' for name, piece in pieces.items()) + "}"
        mark = hash(
            (
                *(piece for name, piece in pieces.items() if name not in _RESTLESS),
                *(
                    (each.broker, each.state, each.restarts)
                    for each in self._server.source.brokers()
                ),
                *((each.store, each.health, each.trouble) for each in self._server.source.stores()),
                *(fault.fault_id for fault in self._faults.faults.all()),
                self._pairs.changes,
            )
        )
        return PageText(data, mark)

    # -- the server ------------------------------------------------------------------------------

    def _parts(self, view: PageView, look: NamespaceLook) -> list[tuple[str, Callable[[], object]]]:
        namespace = view.namespace
        return [
            ("time", lambda: iso(self._clock.now().utc_ms)),
            ("server", lambda: self._about(view)),
            ("namespace", lambda: namespace.name),
            ("totals", lambda: self._totals(look)),
            ("brokers", lambda: [broker_document(each) for each in self._server.source.brokers()]),
            ("stores", lambda: [store_document(each) for each in self._server.source.stores()]),
            ("survives", lambda: [asdict(each) for each in survival(self._server.deployment)]),
            ("backlog", lambda: sorted(look.backlog, key=_backlog_key)),
            ("pairs", lambda: self._pairs.documents(namespace.name)),
            ("faults", lambda: self._fault_documents(view)),
            ("throttled", self._server.throttle.pressures),
            ("cost", lambda: self._cost.document(namespace.name)),
        ]

    def _about(self, view: PageView) -> dict[str, Any]:
        metrics, usage, now = self._server.gateway.metrics, self._server.usage, self._clock.now()
        names = [each.name for each in self._server.namespaces.all()]
        return {
            "product": PRODUCT_NAME,
            "version": __version__,
            "build": build(),
            "python": sys.version.split()[0],
            "started": iso(self._started.utc_ms),
            "uptime_s": (now.mono_ms - self._started.mono_ms) // 1_000,
            "status": server_status(self._server.source.brokers(), self._server.source.stores()),
            "profile": view.namespace.limits.name,
            "namespaces": names if view.sees_all else [view.namespace.name],
            "connections": metrics.connections_opened - metrics.connections_closed,
            "cpu_share": round(usage.cpu_share, 3),
            "memory_bytes": usage.memory_bytes,
            "lag_ms": usage.lag_ms,
        }

    def _fault_documents(self, view: PageView) -> list[dict[str, object]]:
        first = self._server.namespaces.default
        return [
            fault_document(self._faults, fault)
            for fault in self._faults.faults.all()
            if view.sees_all or owns(view.namespace, first, fault)
        ]

    def _totals(self, look: NamespaceLook) -> dict[str, Any]:
        kinds = [entity.kind for entity in look.entities]
        rates = {name: round(rate, 2) for name, rate in look.rates.items()}
        counted = {f"{kind}s": kinds.count(kind) for kind in ("queue", "topic", "subscription")}
        return {**counted, **look.totals, "rates": rates}

    # -- entities --------------------------------------------------------------------------------

    async def _page(self, view: PageView, look: NamespaceLook) -> dict[str, str]:
        """The entities that are wanted, written."""
        matching: Sequence[int] = range(len(look.paths))
        if view.prefix:
            lowered = [path.lower() for path in look.paths]
            matching = [number for number in matching if lowered[number].startswith(view.prefix)]
        stores = self._server.source.stores()
        journalled = frozenset(each.store for each in stores if each.is_journalled)
        links = self._server.gateway.links
        obstacles = Obstacles(links, self._server.throttle, self._faults.faults.all(), journalled)
        shown: list[str] = []
        for count, number in enumerate(matching[view.skip : view.skip + view.top], 1):
            entity = look.entities[number]
            document = self._entity(entity, look.paths[number], look.runtimes[number])
            document["cannot"] = obstacles.of(entity, view.namespace.name)
            document["partitions"] = self._partitions(entity, obstacles)
            shown.append(json.dumps(document))
            if count % _SLICE == 0:
                await asyncio.sleep(0)
        return {
            "entities": f"[{','.join(shown)}]",
            "entities_matching": str(len(matching)),
            "entities_skipped": str(min(view.skip, len(matching))),
            "is_truncated": json.dumps(len(matching) > view.skip + view.top),
        }

    def _entity(self, entity: Entity, path: str, runtime: Runtime) -> dict[str, Any]:
        description = entity.description
        topic, _, name = path.partition(SUBSCRIPTIONS) if entity.topic else ("", "", path)
        size_bytes = description.max_size_megabytes * _MEGABYTE
        backlog = backlog_of(entity, path)
        rates: dict[str, float | None] = {**self._rates.of(entity)}
        if entity.topic is not None:
            rates["incoming"] = None  # what its topic puts into it is not counted
        return {
            "kind": entity.kind,
            "path": path,
            "name": name,
            "topic": topic or None,
            "status": description.status,
            "availability": self._server.gateway.availability(entity),
            "counts": {each: getattr(runtime, each) for each in _COUNTS},
            "size_bytes": runtime.size_bytes,
            "max_size_bytes": size_bytes * (PARTITION_COUNT if entity.is_partitioned else 1),
            "rates": rates,
            "requires_session": description.requires_session,
            "is_partitioned": entity.is_partitioned,
            "forward_to": description.forward_to,
            "subscriptions": len(entity.subscriptions) if entity.kind == "topic" else None,
            "rules": None if entity.kind == "queue" else runtime.rule_count,
            "created": iso(description.created_utc_ms),
            "accessed": iso(runtime.accessed_utc_ms) if runtime.accessed_utc_ms else None,
            "backlog_of": backlog[0] if backlog else None,
        }

    def _partitions(self, entity: Entity, obstacles: Obstacles) -> list[dict[str, Any]]:
        """A partition is as its store is, unless a fault keeps everybody from it."""
        sick = {partition for partition, _, _ in obstacles.sick_partitions(entity)}
        links, found = self._server.gateway.links, []
        for part in entity.parts:
            health = links[part.store].health
            if health == UP and part.partition in sick:
                health = DOWN
            name = HEALTH_NAMES[health]
            found.append({"partition": part.partition, "store": part.store, "health": name})
        return found


def _sort_key(entity: Entity) -> tuple[str, str]:
    """By name, a topic's subscriptions behind it."""
    own, _, subscription = entity.name.lower().partition(_SUBSCRIPTIONS)
    return own, subscription


def _backlog_key(entry: dict[str, Any]) -> tuple[str, int]:
    return entry["primary"].lower(), entry["index"]


def backlog_of(entity: Entity, path: str) -> tuple[str, int] | None:
    """Of a queue in which messages of another namespace wait: that one's name, and which it is."""
    if entity.kind != "queue" or _TRANSFER not in path.lower():
        return None
    parts = _BACKLOG.fullmatch(path)
    return None if parts is None else (parts[1], int(parts[2]))
