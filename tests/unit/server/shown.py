"""What the page shows, on a real broker, on a simulated disk: two namespaces, faults, pairs."""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.unit.broker.harness import BrokerHarness
from tests.unit.server.observed import Source
from twinbus.gateway.access.shared_access import MANAGE, AuthorizationRule, Authorizer
from twinbus.gateway.health.survival import Deployment
from twinbus.gateway.namespaces.namespace import Namespace
from twinbus.gateway.namespaces.registry import Namespaces
from twinbus.gateway.throttling.throttle import Throttle, Usage
from twinbus.host.brokers.in_process import LocalEffects
from twinbus.host.fault_injection import ServerFaults
from twinbus.limits import PROFILE_DEFAULT, THRESHOLDS_DEFAULT
from twinbus.metered import Metered
from twinbus.server.http.operations.running_server import RunningServer
from twinbus.server.http.page.cost import CostBook
from twinbus.server.http.page.pair_reports import PairReports
from twinbus.server.http.page.rates import Rates
from twinbus.server.http.page.state import PageState, PageText, PageView
from twinbus.storage.faulty import DiskFaults

T = TypeVar("T")


class Shown:
    """Namespaces `first` and `other`, and everything that makes a document of them."""

    def __init__(self) -> None:
        harness = self.harness = BrokerHarness()
        self.first = self._namespace("first", "")
        self.other = self._namespace("other", "other:")
        self.source = Source()
        namespaces = Namespaces([self.first, self.other])
        effects = LocalEffects(DiskFaults(lambda: 0.0), lambda is_slow: None)
        faults = ServerFaults(
            [harness.gateway.links[0]], 0, effects, lambda _: None, lambda _: None, harness.clock
        )
        faults.watch(namespaces, harness.gateway.directory)
        self.faults = faults.acting
        self.metered: list[Metered] = []
        self.rates = Rates(harness.gateway.directory, harness.clock)
        self.pairs = PairReports(harness.clock)
        throttle = Throttle(THRESHOLDS_DEFAULT, PROFILE_DEFAULT)
        server = RunningServer(
            self.source,
            harness.gateway,
            harness.changes,
            namespaces,
            throttle,
            Usage(),
            Deployment(brokers=2, stores=2, disks=1),
        )
        self.state = PageState(
            server,
            self.faults,
            self.rates,
            CostBook(self._read, harness.clock),
            self.pairs,
            harness.clock,
        )

    def _namespace(self, name: str, prefix: str) -> Namespace:
        harness = self.harness
        rules = [AuthorizationRule("Root", [MANAGE], f"{name} key", "second")]
        return Namespace(
            name, harness.gateway, harness.changes, Authorizer(rules), harness.clock, 0, prefix
        )

    async def _read(self, from_ms: int, to_ms: int) -> list[Metered]:
        return [line for line in self.metered if from_ms <= line.from_ms < to_ms]

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Drive the broker until the work is done."""
        task = asyncio.ensure_future(work)
        while not task.done():
            await asyncio.sleep(0)
            self.harness.run()
        return task.result()

    def view(
        self,
        namespace: Namespace,
        *,
        sees_all: bool = True,
        prefix: str = "",
        skip: int = 0,
        top: int = 200,
    ) -> PageView:
        return PageView(namespace, sees_all, prefix, skip, top)

    async def text(self, view: PageView) -> PageText:
        return await self.run(self.state.text(view))

    async def document(self, namespace: Namespace, **wanted: Any) -> dict[str, Any]:
        text = await self.text(self.view(namespace, **wanted))
        document: dict[str, Any] = json.loads(text.data)
        return document
