"""Page and pairs of one server, put together.

counters, meter, health ─▶ PageState ─┬▶ requests    for /, /$page
                                      └▶ Live        for /$page/live
reports of paired clients ────────────▶ pairs        for /$pairs
"""

from twinbus.clock import Clock
from twinbus.gateway.gateway import Gateway
from twinbus.gateway.health import HealthSource
from twinbus.gateway.making import Maker
from twinbus.gateway.namespaces import Namespaces
from twinbus.gateway.throttle import Throttle, Usage
from twinbus.server.fault_effects import ActingFaults
from twinbus.server.http_access import HttpAccess
from twinbus.server.observers import Observers
from twinbus.server.page_cost import CostBook, Reader
from twinbus.server.page_live import Live
from twinbus.server.page_messages import PageMessages
from twinbus.server.page_rates import Rates
from twinbus.server.page_requests import PageRequests
from twinbus.server.page_scope import PageScope
from twinbus.server.page_state import PageState
from twinbus.server.pair_reports import PairReports, PairRequests


class Page:
    """What answers the page, and what works for it in the background."""

    def __init__(
        self,
        source: HealthSource,
        gateway: Gateway,
        maker: Maker,
        namespaces: Namespaces,
        throttle: Throttle,
        usage: Usage,
        faults: ActingFaults,
        metered: Reader,
        access: HttpAccess,
        observers: Observers,
        clock: Clock,
    ) -> None:
        self._rates = Rates(gateway.directory, clock)
        self._cost = CostBook(metered, clock)
        scope = PageScope(observers, namespaces)
        reports = PairReports(clock)
        state = PageState(
            source,
            gateway,
            maker,
            namespaces,
            throttle,
            usage,
            faults,
            self._rates,
            self._cost,
            reports,
            clock,
        )
        self._live = Live(state)
        messages = PageMessages(access, faults.faults.refuses_connection)
        self.requests = PageRequests(scope, state, self._live, messages)
        self.pairs = PairRequests(access, scope, reports)

    def start(self) -> None:
        self._rates.start()

    def stop(self) -> None:
        self._rates.stop()
        self._live.close()
        self._cost.close()
