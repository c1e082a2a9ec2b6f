"""Resource usage of this process: CPU, memory, loop lag; once a second, for the throttle.

Linux reports everything.  Elsewhere memory usage is expensive to find out, and is not watched.
"""

import asyncio
import contextlib
import os
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from twinbus.clock import Clock
from twinbus.gateway.health.health import BrokerReport, HealthSource, StoreReport
from twinbus.gateway.throttling.throttle import Throttle, Usage
from twinbus.limits import Thresholds

INTERVAL_S: Final = 1.0
_PROCESS: Final = Path("/proc/self/statm")
_CGROUPS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


class Sampler:
    """Samples this process and the stores once a second, and tells the throttle."""

    def __init__(
        self,
        throttle: Throttle,
        source: HealthSource,
        clock: Clock,
        usage: Usage,
        then: Callable[[], None],
    ) -> None:
        self._throttle = throttle
        self._source = source
        self._clock = clock
        self._then = then  # called after every look: it may be calm no more, or again
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._cpu_s = _cpu_s()
        self._mono_ms = clock.now().mono_ms
        self.usage = usage  # always the same one: what others see of this process

    def start(self) -> None:
        self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        self._timer = self._loop.call_later(INTERVAL_S, self._sample, self._loop.time())

    def _sample(self, armed_s: float) -> None:
        lag_s = self._loop.time() - armed_s - INTERVAL_S
        self._arm()
        self.take(max(0, int(lag_s * 1_000)))

    def take(self, lag_ms: int) -> None:
        """One look."""
        now_ms, cpu_s = self._clock.now().mono_ms, _cpu_s()
        elapsed_ms = max(1, now_ms - self._mono_ms)
        share = (cpu_s - self._cpu_s) * 1_000 / elapsed_ms
        self._mono_ms, self._cpu_s = now_ms, cpu_s
        brokers = {each.broker: each for each in self._source.brokers()}
        # Memory is one thing for all processes of a server; a broker in this one is counted once.
        memory_bytes = memory_in_use()
        memory_bytes += sum(
            each.memory_bytes for each in brokers.values() if each.pid not in (0, os.getpid())
        )
        stores = self._source.stores()
        usage = self.usage
        usage.cpu_share, usage.lag_ms, usage.memory_bytes = share, lag_ms, memory_bytes
        usage.open_count = sum(store.open_count for store in stores)
        self._throttle.observe(usage)
        for store in stores:
            self._throttle.observe_store(store.store, _usage_of(store, brokers.get(store.broker)))
        self._then()


def _usage_of(store: StoreReport, broker: BrokerReport | None) -> Usage:
    usage = Usage(disk_free_bytes=store.disk_free_bytes, open_count=store.open_count)
    if broker is not None:
        usage.cpu_share, usage.lag_ms = broker.cpu_share, broker.lag_ms
    return usage


def memory_in_use() -> int:
    """Resident bytes of this process; 0 where that is not known."""
    try:
        pages = int(_PROCESS.read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * resource.getpagesize()


def memory_there_is() -> int:
    """Bytes that this machine has, or the container; 0 where that is not known."""
    found = []
    with contextlib.suppress(ValueError, OSError):
        found.append(os.sysconf("SC_PHYS_PAGES") * resource.getpagesize())
    for path in _CGROUPS:
        with contextlib.suppress(OSError, ValueError):  # "max" is no number
            found.append(int(path.read_bytes()))
    return max(0, min(found, default=0))


def fitted(thresholds: Thresholds) -> Thresholds:
    """With a threshold for memory, if it was not told one: four fifths of what there is."""
    if thresholds.memory_bytes_max is not None:
        return thresholds
    return replace(thresholds, memory_bytes_max=memory_there_is() * 4 // 5)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
