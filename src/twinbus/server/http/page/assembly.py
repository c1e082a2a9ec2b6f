"""Page and pairs of one server, put together.

counters, meter, health ─▶ PageState ─┬▶ requests    for /, /$page
                                      └▶ LivePage    for /$page/live
reports of paired clients ────────────▶ pairs        for /$pairs
"""

from twinbus.clock import Clock
from twinbus.gateway.faults.acting import ActingFaults
from twinbus.server.http.access import HttpAccess
from twinbus.server.http.operations.running_server import RunningServer
from twinbus.server.http.page.cost import CostBook, Reader
from twinbus.server.http.page.live import LivePage
from twinbus.server.http.page.messages import PageMessages
from twinbus.server.http.page.pair_reports import PairReports, PairRequests
from twinbus.server.http.page.rates import Rates
from twinbus.server.http.page.routes import PageRequests
from twinbus.server.http.page.scope import PageScope
from twinbus.server.http.page.state import PageState
from twinbus.server.http.viewers import Viewers


class Page:
    """What answers the page, and what works for it in the background."""

    def __init__(
        self,
        server: RunningServer,
        faults: ActingFaults,
        metered: Reader,
        access: HttpAccess,
        viewers: Viewers,
        clock: Clock,
    ) -> None:
        self._rates = Rates(server.gateway.directory, clock)
        self._cost = CostBook(metered, clock)
        scope = PageScope(viewers, server.namespaces)
        reports = PairReports(clock)
        state = PageState(server, faults, self._rates, self._cost, reports, clock)
        self._live = LivePage(state)
        messages = PageMessages(access, faults.faults.refuses_connection)
        self.requests = PageRequests(scope, state, self._live, messages)
        self.pairs = PairRequests(access, scope, reports)

    def start(self) -> None:
        self._rates.start()

    def stop(self) -> None:
        self._rates.stop()
        self._live.close()
        self._cost.close()
