"""Throttle, samples, health, metrics and page of one server, put together."""

from collections.abc import Callable, Sequence
from pathlib import Path

from twinbus.clock import Clock
from twinbus.config import ServerConfig
from twinbus.gateway.faults.acting import ActingFaults
from twinbus.gateway.faults.faults import Fault
from twinbus.gateway.gateway import Gateway
from twinbus.gateway.health.health import HealthSource
from twinbus.gateway.health.survival import Deployment
from twinbus.gateway.health.usage import Sampler, fitted
from twinbus.gateway.namespaces.entity_changes import EntityChanges
from twinbus.gateway.namespaces.registry import Namespaces
from twinbus.gateway.throttling.throttle import Throttle, Usage
from twinbus.server.http.access import HttpAccess
from twinbus.server.http.operations.front import FrontRequests
from twinbus.server.http.operations.health import HealthRequests
from twinbus.server.http.operations.metrics import MetricsRequests
from twinbus.server.http.operations.running_server import RunningServer
from twinbus.server.http.page.assembly import Page
from twinbus.server.http.page.cost import Reader
from twinbus.server.http.viewers import Viewers
from twinbus.telemetry.telemetry import Telemetry


class Observability:
    """What watches a server.  The gateway gets its throttle, the router its requests."""

    def __init__(
        self,
        config: ServerConfig,
        gateway: Gateway,
        source: HealthSource,
        clock: Clock,
        usage: Usage,
        telemetry: Telemetry,
    ) -> None:
        self.throttle = Throttle(fitted(config.thresholds), config.limits)
        gateway.set_throttle(self.throttle)
        self._gateway = gateway
        self._telemetry = telemetry
        self._source = source
        self._deployment = _deployment(config)
        self._sampler = Sampler(self.throttle, source, clock, usage, gateway.look_at_throttle)
        self._is_open = config.open_metrics
        self._clock = clock
        self._page: Page | None = None

    def start(self) -> None:
        self._sampler.start()
        if self._page is not None:
            self._page.start()

    def stop(self) -> None:
        self._sampler.stop()
        if self._page is not None:
            self._page.stop()

    def front(
        self,
        changes: EntityChanges,
        namespaces: Namespaces,
        faults: Callable[[], list[Fault]],
        access: HttpAccess,
    ) -> FrontRequests:
        """What answers requests about the server; `faults` lists those in force."""
        viewers = Viewers(access, self._is_open)
        server = self._server(changes, namespaces)
        health = HealthRequests(server, faults, viewers)
        return FrontRequests(health, MetricsRequests(server, viewers, self._telemetry))

    def page(
        self,
        changes: EntityChanges,
        namespaces: Namespaces,
        faults: ActingFaults,
        metered: Reader,
        access: HttpAccess,
    ) -> Page:
        """What answers the page; it works for as long as this does."""
        server, viewers = self._server(changes, namespaces), Viewers(access, self._is_open)
        self._page = Page(server, faults, metered, access, viewers, self._clock)
        return self._page

    def _server(self, changes: EntityChanges, namespaces: Namespaces) -> RunningServer:
        usage = self._sampler.usage
        return RunningServer(
            self._source, self._gateway, changes, namespaces, self.throttle, usage, self._deployment
        )


def _deployment(config: ServerConfig) -> Deployment:
    paths = config.store_paths
    brokers = 0 if config.is_in_process else config.brokers
    return Deployment(brokers, len(paths), _disk_count(paths))


def _disk_count(paths: Sequence[Path]) -> int:
    """File systems, which is as near as one can come: two may still be on one disk."""
    return len({_device(path) for path in paths})


def _device(path: Path) -> int:
    """Of the file system that a store is on, or will be when it is made."""
    for place in (path, *path.parents):
        try:
            return place.stat().st_dev
        except OSError:
            continue
    return 0
