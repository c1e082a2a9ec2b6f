"""What faults do besides refusing requests: to disks, processes, receivers and connections.

    registry (faults.py) ─ begin, end ─▶ ActingFaults ─┬▶ FaultEffects  disks, processes
                                                       ├▶ FaultyLinks   the gateway's links
                                                       ├▶ Connections   of clients
                                                       └▶ receivers     detached, or cut back

`ActingFaults` adds and clears faults: it keeps the time, so that a fault ends by itself, and
notifies everything that has to act.  How to slow a disk or stop a process is up to the code that
runs them, behind `FaultEffects`.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from twinbus.clock import Clock
from twinbus.gateway.faults.faults import DiskPlan, Fault, Faults, Wanted
from twinbus.gateway.faults.kinds import (
    CUT_NAMESPACE,
    DELAY_CONNECTIONS,
    DROP_CONNECTIONS,
    FAIL_STORE,
    FULL_STORE,
    HANG_BROKER,
    KILL_BROKER,
    PARTITION_DOWN,
    RECEIVES,
    REFUSE_CONNECTIONS,
    REFUSE_RECEIVES,
    SLOW_STORE,
)
from twinbus.gateway.faults.link import FaultyLink

log = logging.getLogger("twinbus.server")

# Which of a disk's counts is a kind's own.
_DISK_KINDS: Final = {SLOW_STORE.name: 0, FAIL_STORE.name: 1, FULL_STORE.name: 2}
_CONNECTION_KINDS: Final = (CUT_NAMESPACE, REFUSE_CONNECTIONS, DROP_CONNECTIONS, DELAY_CONNECTIONS)


class FaultEffects(Protocol):
    """What runs the stores and brokers."""

    def set_disk_plan(self, store: int, plan: DiskPlan) -> None:
        """From now on the disk of this store suffers this, and nothing else."""

    def disk_counts(self, store: int) -> tuple[int, int, int]:
        """Its operations that were slowed, that failed, and that found no room, so far."""

    def hang_broker(self, broker: int) -> None:
        """Stop the process where it stands."""

    def resume_broker(self, broker: int) -> None:
        """Let it go on, if it is still the one that was stopped."""

    def kill_broker(self, broker: int) -> None: ...


class Connections(Protocol):
    """The clients' connections on the server's port."""

    def begin(self, fault: Fault) -> None:
        """From now on it acts on those that it covers."""

    def end(self) -> None:
        """One has ended: whatever no other holds up goes on."""


class ActingFaults:
    """The faults of a running server."""

    def __init__(
        self,
        faults: Faults,
        effects: FaultEffects,
        links: Sequence[FaultyLink],
        connections: Connections,
        detach: Callable[[Fault], None],
        lose_parts: Callable[[Fault], None],
        clock: Clock,
    ) -> None:
        self.faults = faults
        self._effects = effects
        self._links = links
        self._connections = connections
        self._detach = detach  # clients' receivers at the entities that a fault is about
        self._lose_parts = lose_parts  # takes partitions from receivers that go on without them
        self._clock = clock
        # Of disk faults: the counts of each store when the fault began.
        self._counts: dict[str, dict[int, int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        faults.observer = self

    # -- what requests do ------------------------------------------------------------------------

    def add(self, wanted: Wanted) -> Fault:
        fault = self.faults.add(wanted, self._clock.now())
        self._arm()
        return fault

    def clear(self, fault: Fault) -> None:
        self.faults.clear(fault)
        self._arm()

    def remaining_ms(self, fault: Fault) -> int | None:
        """How much longer it lasts; None: until it is cleared."""
        if fault.ends_ms is None:
            return None
        return max(0, fault.ends_ms - self._clock.now().mono_ms)

    def acted(self, fault: Fault) -> int:
        """How often it has hit somebody."""
        index = _DISK_KINDS.get(fault.kind.name)
        if index is None:
            return fault.acted
        begun = self._counts.get(fault.fault_id, {})
        # A broker that was started again counts from zero.
        return sum(
            max(0, self._effects.disk_counts(store)[index] - count)
            for store, count in begun.items()
        )

    def close(self) -> None:
        """The server stops: nothing ends by itself any more, and stopped processes go on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for fault in self.faults.all():
            self.faults.clear(fault)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        end_ms = self.faults.next_end_ms()
        if end_ms is not None:
            delay_s = max(0, end_ms - self._clock.now().mono_ms) / 1_000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._expire)

    def _expire(self) -> None:
        try:
            self.faults.expire(self._clock.now())
        finally:  # whatever one of them leaves behind, the others have to end in time
            self._arm()

    # -- what the registry tells -----------------------------------------------------------------

    def begin(self, fault: Fault) -> None:
        kind = fault.kind
        log.warning("fault %s begins: %s", fault.fault_id, kind.name)
        if kind.name in _DISK_KINDS:
            index = _DISK_KINDS[kind.name]
            self._counts[fault.fault_id] = {
                store: self._effects.disk_counts(store)[index] for store in self._stores(fault)
            }
            self._plan_disks(fault)
        elif kind in _CONNECTION_KINDS:
            self._connections.begin(fault)
        elif fault.broker is not None:
            fault.acted += 1
            if kind is HANG_BROKER:
                self._effects.hang_broker(fault.broker)
            elif kind is KILL_BROKER:
                self._effects.kill_broker(fault.broker)
        else:
            self._look_at_links()
            self._lose(fault)

    def _lose(self, fault: Fault) -> None:
        """What is being received already must not go on."""
        kind = fault.kind
        if fault.probability < 1.0:
            return  # who is hit now and then finds out by himself
        if not fault.is_about_parts:
            if kind.roles & RECEIVES:
                self._detach(fault)
        elif kind in (REFUSE_RECEIVES, PARTITION_DOWN):  # who is throttled gets less, not nothing
            self._lose_parts(fault)

    def end(self, fault: Fault) -> None:
        kind = fault.kind
        log.warning("fault %s ends: %s", fault.fault_id, kind.name)
        if kind.name in _DISK_KINDS:
            self._counts.pop(fault.fault_id, None)
            self._plan_disks(fault)
        elif kind in _CONNECTION_KINDS:
            self._connections.end()
        elif kind is HANG_BROKER and fault.broker is not None:
            self._effects.resume_broker(fault.broker)
        else:
            self._look_at_links()

    def _look_at_links(self) -> None:
        for link in self._links:
            link.set_work(self.faults.active)

    def _stores(self, fault: Fault) -> list[int]:
        return [store for store in range(len(self._links)) if fault.covers_store(store)]

    def _plan_disks(self, fault: Fault) -> None:
        for store in self._stores(fault):
            self._effects.set_disk_plan(store, self.faults.disk_plan(store))
