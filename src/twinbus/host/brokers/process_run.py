"""One run of one broker process: what it reported, and the evidence of its end."""

import asyncio
from collections import deque
from pathlib import Path
from typing import Final

from twinbus.clock import Now
from twinbus.host.brokers.diagnostics import Evidence, write_bundle
from twinbus.host.brokers.process import BrokerProcess
from twinbus.limits import BROKER_BEAT_MS, DIAGNOSTICS_LOG_LINES_MAX
from twinbus.links.remote.beats import Beat

BEATS_KEPT: Final = 40  # ten seconds

DiskCounts = tuple[int, int, int]  # operations slowed, failed, refused room (storage/faulty.py)


class BrokerRun:
    """A process from its start to its end."""

    def __init__(self, process: BrokerProcess, now_ms: int) -> None:
        self.process = process
        self.has_spoken = False
        self.has_ended = False
        self.stores: list[int] = []  # that it had when trouble began
        self.cpu_share = 0.0
        self.disk_counts: dict[int, DiskCounts] = {}  # what faults did to each store
        self._started_ms = now_ms
        self._heard_ms = now_ms
        self._beats: deque[tuple[int, Beat]] = deque(maxlen=BEATS_KEPT)  # when, and what it said
        self._log: deque[str] = deque(maxlen=DIAGNOSTICS_LOG_LINES_MAX)
        self._broken_stack = ""

    @property
    def broker(self) -> int:
        return self.process.index

    @property
    def memory_bytes(self) -> int:
        return self._beats[-1][1].memory_bytes if self._beats else 0

    def heard(self, now_ms: int) -> None:
        self.has_spoken = True
        self._heard_ms = now_ms

    def beat(self, beat: Beat, now_ms: int) -> None:
        if self._beats:
            used_ms = beat.cpu_ms - self._beats[-1][1].cpu_ms
            self.cpu_share = used_ms / (BROKER_BEAT_MS + beat.lag_ms)
        self._beats.append((now_ms, beat))
        for store in beat.stores:
            self.disk_counts[store.store] = (store.slowed, store.failed, store.refused)
        self._log.extend(beat.log)

    def broken(self, stack: str) -> None:
        self._broken_stack = stack

    def logged(self, lines: list[str]) -> None:
        """What a store's failure brings along; some of it came with a beat already."""
        self._log.extend([line for line in lines if line not in self._log])

    async def diagnose(
        self, directory: Path, reason: str, now: Now, gateway_log: list[str]
    ) -> Path:
        """Write a bundle about it.  Its own words first, then the kernel's if it has none."""
        if self.has_ended:
            stacks = self.process.last_words or "It has ended, without a word."
        else:
            stacks = await self.process.stacks()
        evidence = Evidence(
            broker=self.broker,
            reason=reason,
            utc_ms=now.utc_ms,
            pid=self.process.pid if self.process.pid > 0 else None,
            running_ms=now.mono_ms - self._started_ms,
            silent_ms=now.mono_ms - self._heard_ms,
            stores=self.stores,
            stacks="\n".join(filter(None, (self._broken_stack, stacks))),
            beats=[
                {"before_ms": now.mono_ms - heard_ms, **_readable(beat)}
                for heard_ms, beat in self._beats
            ],
            gateway_log=gateway_log,
            broker_log=list(self._log),
        )
        asks_kernel = not stacks
        return await asyncio.to_thread(write_bundle, directory, evidence, asks_kernel)


class BrokerRuns:
    """The latest run of every broker, and which of them was told to open which store."""

    def __init__(self, broker_count: int, store_count: int) -> None:
        self.latest: list[BrokerRun | None] = [None] * broker_count
        self.holders: list[BrokerRun | None] = [None] * store_count

    def of(self, process: BrokerProcess) -> BrokerRun | None:
        """Its run; None: its broker has another process by now."""
        run = self.latest[process.index]
        return run if run is not None and run.process is process else None

    def living(self) -> list[BrokerRun]:
        return [run for run in self.latest if run is not None and not run.has_ended]

    def holder_of(self, store: int) -> int:
        """The broker that was told to open it; -1: none."""
        run = self.holders[store]
        return -1 if run is None else run.broker


def _readable(beat: Beat) -> dict[str, object]:
    stores = [store._asdict() for store in beat.stores]
    return {**beat._asdict(), "stores": stores, "log": len(beat.log)}
