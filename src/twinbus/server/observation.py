"""Throttle, samples and reports of one server, put together."""

from collections.abc import Callable

from twinbus.clock import Clock
from twinbus.config import ServerConfig
from twinbus.gateway.faults import Fault
from twinbus.gateway.gateway import Gateway
from twinbus.gateway.health import HealthSource
from twinbus.gateway.making import Maker
from twinbus.gateway.namespaces import Namespaces
from twinbus.gateway.throttle import Throttle, Usage
from twinbus.server.health import HealthRequests
from twinbus.server.http_access import HttpAccess
from twinbus.server.metrics_requests import MetricsRequests
from twinbus.server.observers import Observers
from twinbus.server.reports import Reports
from twinbus.server.usage import Sampler, fitted


class Observation:
    """What watches a server.  The gateway gets its throttle, the router its reports."""

    def __init__(
        self,
        config: ServerConfig,
        gateway: Gateway,
        source: HealthSource,
        clock: Clock,
        usage: Usage,
    ) -> None:
        self.throttle = Throttle(fitted(config.thresholds), config.limits)
        gateway.set_throttle(self.throttle)
        self._gateway = gateway
        self._source = source
        self._sampler = Sampler(self.throttle, source, clock, usage, gateway.look_at_throttle)
        gateway.set_throttle(self.throttle)
        self._is_open = config.open_metrics

    def start(self) -> None:
        self._sampler.start()

    def stop(self) -> None:
        self._sampler.stop()

    def reports(
        self,
        maker: Maker,
        namespaces: Namespaces,
        faults: Callable[[], list[Fault]],
        access: HttpAccess,
    ) -> Reports:
        """What answers requests about the server; `faults` lists those in force."""
        observers = Observers(access, self._is_open)
        gateway, source, throttle = self._gateway, self._source, self.throttle
        health = HealthRequests(source, gateway, namespaces, throttle, faults, observers)
        metrics = MetricsRequests(
            source, gateway, maker, namespaces, throttle, self._sampler, observers
        )
        return Reports(health, metrics)
