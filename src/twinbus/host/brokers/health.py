"""How broker processes and their stores are doing (gateway/health/health.py)."""

from collections.abc import Callable, Sequence

from twinbus.gateway.health.health import BrokerReport, StoreReport
from twinbus.host.brokers.process_run import BrokerRuns
from twinbus.host.brokers.supervisor import Supervisor
from twinbus.links.remote.beats import StoreBeat
from twinbus.links.remote.remote_store import RemoteStore


class BrokerHealth:
    """Puts together what the supervisor, the links and the last beats say."""

    def __init__(
        self, supervisor: Supervisor, runs: BrokerRuns, links: Sequence[RemoteStore]
    ) -> None:
        self._supervisor = supervisor
        self._runs = runs
        self._links = links
        self.beats: dict[int, StoreBeat] = {}  # the last one of each store that is open
        # Whether sends to a store are taken elsewhere meanwhile; the gateway knows.
        self.is_journalled: Callable[[int], bool] = _is_not

    def brokers(self) -> list[BrokerReport]:
        reports = []
        for broker, view in enumerate(self._supervisor.brokers):
            report = BrokerReport(broker, view.state)
            report.restarts, report.trouble = view.restarts, view.trouble
            run = self._runs.latest[broker]
            if run is not None and not run.has_ended:
                report.pid, report.lag_ms = run.process.pid, view.lag_ms
                report.cpu_share, report.memory_bytes = run.cpu_share, run.memory_bytes
            reports.append(report)
        return reports

    def stores(self) -> list[StoreReport]:
        reports = []
        for store, link in enumerate(self._links):
            report = StoreReport(store, self._runs.holder_of(store), link.health)
            report.pending_bytes, report.open_count = link.pending_bytes, link.open_count
            report.trouble = self._supervisor.stores[store].trouble
            report.is_journalled = self.is_journalled(store)
            beat = self.beats.get(store)
            if beat is not None:
                report.commit_age_ms = beat.commit_age_ms
                report.disk_free_bytes = beat.free_bytes
                if beat.trouble:
                    report.troubled(beat.trouble)
            reports.append(report)
        return reports


def _is_not(store: int) -> bool:
    """Where nobody keeps a journal."""
    return False
