"""What faults on purpose do to broker processes and their disks (gateway/faults/acting.py)."""

import signal
from typing import Final

from twinbus.gateway.faults.faults import DiskPlan
from twinbus.host.brokers.process_run import BrokerRun, BrokerRuns, DiskCounts
from twinbus.links.remote.operations import FAULT

NO_FAULT: Final = DiskPlan(0, 0.0, 0.0, 0.0)
NO_COUNTS: Final = (0, 0, 0)


class BrokerEffects:
    """Signals to processes, and a plan for the disk of each store."""

    def __init__(self, runs: BrokerRuns) -> None:
        self._runs = runs
        self._plans: list[DiskPlan] = [NO_FAULT] * len(runs.holders)
        # Of processes that have ended.
        self._past_counts: list[DiskCounts] = [NO_COUNTS] * len(runs.holders)

    def hang_broker(self, broker: int) -> None:
        """Let it stand still, as if the machine had forgotten it."""
        self._signal(broker, signal.SIGSTOP)

    def resume_broker(self, broker: int) -> None:
        """One that was started since then does not mind."""
        self._signal(broker, signal.SIGCONT)

    def kill_broker(self, broker: int) -> None:
        """End it without a word."""
        self._signal(broker, signal.SIGKILL)

    def _signal(self, broker: int, number: int) -> None:
        run = self._runs.latest[broker]
        if run is not None:
            run.process.signal(number)

    def set_disk_plan(self, store: int, plan: DiskPlan) -> None:
        """From now on the store's disk does this, whoever runs it."""
        self._plans[store] = plan
        self.tell_plan(store)

    def tell_plan(self, store: int) -> None:
        """Whoever runs the store has to know."""
        run = self._runs.holders[store]
        if run is not None:
            run.process.send((FAULT, store, tuple(self._plans[store])))

    def disk_counts(self, store: int) -> DiskCounts:
        """Its operations that were slowed, that failed, and that found no room, so far."""
        counts = self._past_counts[store]
        for run in self._runs.living():
            counts = _sum(counts, run.disk_counts.get(store, NO_COUNTS))
        return counts

    def ended(self, run: BrokerRun) -> None:
        """What a process has counted is kept."""
        for store, counts in run.disk_counts.items():
            self._past_counts[store] = _sum(self._past_counts[store], counts)


def _sum(some: DiskCounts, more: DiskCounts) -> DiskCounts:
    return (some[0] + more[0], some[1] + more[1], some[2] + more[2])
