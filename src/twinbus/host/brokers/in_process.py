"""The one broker of a small server, in the server's own process.

    data directory ─▶ disk ─▶ store ─▶ broker, with its shell on this loop

When its store fails, the server has nothing left to serve and stops (`on_failure`).
"""

import os
import random
import secrets
from collections.abc import Callable
from pathlib import Path

from twinbus.broker.shell import BrokerShell
from twinbus.clock import Clock
from twinbus.entities.commands import dispatch_replies
from twinbus.gateway.faults.acting import FaultEffects
from twinbus.gateway.faults.faults import DiskPlan
from twinbus.gateway.health.health import BrokerReport, HealthSource, StoreReport
from twinbus.gateway.throttling.throttle import Usage
from twinbus.links.store_link import StoreLink
from twinbus.message.filter_fields import StoredMessageCodec
from twinbus.storage.disk import OsDisk
from twinbus.storage.faulty import DiskFaults, FaultyDisk
from twinbus.storage.store import Store


class LocalBroker:
    """One broker with one store."""

    def __init__(
        self,
        directory: Path,
        segment_size_bytes: int,
        clock: Clock,
        on_failure: Callable[[BaseException], None],
        usage: Usage,
    ) -> None:
        faults = DiskFaults(random.random)
        self._disk = FaultyDisk(OsDisk(directory), faults)
        store = Store.open(self._disk, clock.now(), secrets.randbits(63), segment_size_bytes)
        codec = StoredMessageCodec()
        self._shell = BrokerShell(store, clock, dispatch_replies, on_failure, codec)
        self.links: list[StoreLink] = [self._shell.broker]
        self.effects: FaultEffects = LocalEffects(faults, self._slowed)
        self.health: HealthSource = LocalHealth(
            self._shell.broker, directory, self._shell.trouble, usage
        )

    def _slowed(self, is_slow: bool) -> None:
        """A disk that is slow on purpose must not hold up the loop."""
        self._shell.writes_inline = not is_slow

    def when_entity_is_gone(self, call: Callable[[int, int], None]) -> None:
        """Who keeps a list of the entities is told of those that were deleted for being idle."""
        self._shell.broker.entities.on_gone = lambda entity_id: call(0, entity_id)

    def message_count(self) -> int:
        return self._shell.broker.message_count()

    async def start(self) -> None:
        self._shell.start()

    async def close(self) -> None:
        await self._shell.close()
        self._disk.close()


class LocalEffects:
    """Faults of the one broker: they act on its disk; there is no process to stop or kill."""

    def __init__(self, disk: DiskFaults, slowed: Callable[[bool], None]) -> None:
        self._disk = disk
        # Told whether the disk is slow: then nothing may be written on the loop itself.
        self._slowed = slowed

    def set_disk_plan(self, store: int, plan: DiskPlan) -> None:
        self._slowed(plan.slow_ms > 0)
        self._disk.set(*plan)

    def disk_counts(self, store: int) -> tuple[int, int, int]:
        return self._disk.counts

    def hang_broker(self, broker: int) -> None:
        raise AssertionError("the registry refuses faults on brokers that there are not")

    resume_broker = kill_broker = hang_broker


class LocalHealth:
    """How the one broker and its store are doing."""

    def __init__(
        self, link: StoreLink, path: Path, trouble: Callable[[], str], usage: Usage
    ) -> None:
        self._link = link
        self._path = path
        self._trouble = trouble
        self._usage = usage  # of this process (gateway/health/usage.py)

    def brokers(self) -> list[BrokerReport]:
        report = BrokerReport(0, "up")
        report.pid = os.getpid()
        usage = self._usage
        report.cpu_share, report.lag_ms = usage.cpu_share, usage.lag_ms
        report.memory_bytes = usage.memory_bytes
        return [report]

    def stores(self) -> list[StoreReport]:
        report = StoreReport(0, 0, self._link.health)
        report.pending_bytes = self._link.pending_bytes
        report.open_count = self._link.open_count
        report.disk_free_bytes = disk_free(self._path)
        trouble = self._trouble()
        if trouble:
            report.troubled(trouble)
        return [report]


def disk_free(path: Path) -> int:
    """Room that is left where a store is; -1 when nobody can tell."""
    try:
        found = os.statvfs(path)
    except OSError:
        return -1
    return found.f_bavail * found.f_frsize
