"""A server that is looked at: two namespaces on a real broker, on a simulated disk."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.unit.broker.harness import BrokerHarness
from twinbus.client.sas import make_sas_token
from twinbus.entities.descriptions import QueueDescription
from twinbus.gateway.access.shared_access import LISTEN, MANAGE, SEND, AuthorizationRule, Authorizer
from twinbus.gateway.directory.directory import Entity
from twinbus.gateway.faults.faults import Faults
from twinbus.gateway.health.health import BrokerReport, StoreReport
from twinbus.gateway.health.survival import Deployment
from twinbus.gateway.health.usage import Sampler
from twinbus.gateway.namespaces.namespace import Namespace
from twinbus.gateway.namespaces.registry import Namespaces
from twinbus.gateway.throttling.throttle import Throttle, Usage
from twinbus.limits import PROFILE_DEFAULT, THRESHOLDS_DEFAULT
from twinbus.links.store_link import UP
from twinbus.server.http.access import HttpAccess
from twinbus.server.http.exchange import Request, Response
from twinbus.server.http.operations.front import FrontRequests
from twinbus.server.http.operations.health import HealthRequests
from twinbus.server.http.operations.metrics import MetricsRequests
from twinbus.server.http.operations.running_server import RunningServer
from twinbus.server.http.viewers import Viewers
from twinbus.telemetry.telemetry import Telemetry

T = TypeVar("T")


class Source:
    """One broker and one store, as healthy as the test says."""

    def __init__(self) -> None:
        self.health = UP
        self.store = StoreReport(0, 0, UP)
        self.broker = BrokerReport(0, "up")

    def brokers(self) -> list[BrokerReport]:
        return [self.broker]

    def stores(self) -> list[StoreReport]:
        self.store.health = self.health
        return [self.store]


class Known:
    """What faults can be about."""

    store_count = 1
    broker_count = 0

    def __init__(self, harness: BrokerHarness) -> None:
        self._directory = harness.gateway.directory

    def prefix(self, namespace: str) -> str | None:
        return {"first": "", "other": "other:"}.get(namespace)

    def find(self, name: str) -> Entity | None:
        return self._directory.find(name)


def get(path: str, peer: str = "", host: str = "localhost", **headers: str) -> Request:
    request = Request("GET", path, {}, {"host": host, **headers}, b"")
    request.peer = peer
    return request


class Observed:
    """The queue `orders` in `first`, the queue `news` in `other`."""

    def __init__(self, is_open: bool) -> None:
        self.harness = BrokerHarness()
        self.first = self._namespace("first", "")
        self.other = self._namespace("other", "other:")
        namespaces = Namespaces([self.first, self.other])
        self.source = Source()
        self.throttle = Throttle(THRESHOLDS_DEFAULT, PROFILE_DEFAULT)
        self.faults = Faults(Known(self.harness), lambda: 0.0)
        gateway, clock = self.harness.gateway, self.harness.clock
        sampler = Sampler(self.throttle, self.source, clock, Usage(), gateway.look_at_throttle)
        viewers = Viewers(HttpAccess(namespaces, clock), is_open)
        changes = self.harness.changes
        server = RunningServer(
            self.source,
            gateway,
            changes,
            namespaces,
            self.throttle,
            sampler.usage,
            Deployment(brokers=0, stores=1, disks=1),
        )
        health = HealthRequests(server, self.faults.all, viewers)
        self._reports = FrontRequests(health, MetricsRequests(server, viewers, Telemetry()))

    @classmethod
    async def make(cls, is_open: bool = False) -> "Observed":
        scene = cls(is_open)
        await scene.run(scene.first.create_queue("orders", QueueDescription()))
        await scene.run(scene.other.create_queue("news", QueueDescription()))
        return scene

    def _namespace(self, name: str, prefix: str) -> Namespace:
        rules = [
            AuthorizationRule("Root", [MANAGE], f"{name} key", "second"),
            AuthorizationRule("worker", [LISTEN], f"{name} key", "second"),
            AuthorizationRule("sender", [SEND], f"{name} key", "second"),
        ]
        harness = self.harness
        return Namespace(
            name, harness.gateway, harness.changes, Authorizer(rules), harness.clock, 0, prefix
        )

    def sign(self, rule: str, key: str) -> str:
        expires_s = self.harness.clock.now().utc_ms // 1_000 + 60
        return make_sas_token("https://localhost/", rule, key, expires_s)

    async def ask(self, request: Request) -> Response:
        return await self.run(self._reports.answer(request))

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Drive the broker until the work is done."""
        task = asyncio.ensure_future(work)
        while not task.done():
            await asyncio.sleep(0)
            self.harness.run()
        return task.result()
