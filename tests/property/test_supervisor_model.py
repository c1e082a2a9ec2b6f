"""The supervisor against a world where processes end, hang and come back, and stores fail.

The world is strict: a store that two brokers are asked to run, a kill without diagnostics or an
order to a process that is not there fails the test on the spot.  In the end everything that is
wrong stops, and every store must get home.
"""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from twinbus.host.brokers.supervisor import (
    CLOSED,
    CLOSING,
    OPEN,
    OPENING,
    Close,
    Diagnose,
    Kill,
    Open,
    Start,
    Supervisor,
)
from twinbus.limits import BROKER_BEAT_MS, BROKER_PAUSE_MS_MAX, BROKER_WELL_MS

pytestmark = pytest.mark.proves("A-4", "E-15")

NONE = -1


class Process:
    """A broker process as it really is."""

    def __init__(self) -> None:
        self.is_alive = False
        self.is_hung = False
        self.has_spoken = False
        self.is_diagnosed = False
        self.started_ms = 0
        self.starts = 0


class World(RuleBasedStateMachine):
    @initialize(brokers=st.integers(1, 4), stores=st.integers(1, 6))
    def begin(self, brokers: int, stores: int) -> None:
        self.now_ms = 0
        self.supervisor = Supervisor(brokers, stores, 0)
        self.processes = [Process() for _ in range(brokers)]
        self.holders = [NONE] * stores  # whose file lock it is
        self.bad_disks: set[int] = set()
        self.moves_ms: list[list[int]] = [[] for _ in range(stores)]
        self.undiagnosed: list[int] = []
        self.tick()

    # -- the world does what it is told ----------------------------------------------------------

    def tick(self) -> None:
        self.supervisor.tick(self.now_ms)
        self.perform()

    def perform(self) -> None:
        while actions := self.supervisor.take_actions():
            for action in actions:
                if isinstance(action, Start):
                    process = self.processes[action.broker]
                    assert not process.is_alive, "a second process for the same broker"
                    self.processes[action.broker] = new = Process()
                    new.is_alive = True
                    new.started_ms = self.now_ms
                    new.starts = process.starts + 1
                elif isinstance(action, Diagnose):
                    self.processes[action.broker].is_diagnosed = True
                    self.undiagnosed.append(action.broker)
                elif isinstance(action, Kill):
                    assert self.processes[action.broker].is_diagnosed, "killed without evidence"
                    self.end(action.broker)
                elif isinstance(action, Open):
                    self.open(action.store, action.broker)
                else:
                    self.close(action)

    def open(self, store: int, broker: int) -> None:
        process = self.processes[broker]
        assert process.is_alive and process.has_spoken, "nobody there to open it"
        assert self.holders[store] == NONE, "a store is run by two"
        self.holders[store] = broker

    def close(self, action: Close) -> None:
        assert self.holders[action.store] == action.broker
        home = self.supervisor.stores[action.store].home
        assert action.broker != home, "sent away from home"
        assert self.now_ms - self.processes[home].started_ms >= BROKER_WELL_MS
        moves_ms = self.moves_ms[action.store]
        assert not moves_ms or self.now_ms - moves_ms[-1] >= BROKER_WELL_MS, "it flaps"
        moves_ms.append(self.now_ms)
        closing = [store for store in self.supervisor.stores if store.state == CLOSING]
        assert len(closing) == 1, "two stores on the way at a time"

    def end(self, broker: int) -> None:
        self.processes[broker].is_alive = False
        self.holders = [NONE if holder == broker else holder for holder in self.holders]
        self.supervisor.ended(broker, "ended", self.now_ms)

    def beat(self) -> None:
        """What every process that runs gets done in a quarter of a second."""
        for broker, process in enumerate(self.processes):
            if not process.is_alive or process.is_hung:
                continue
            if not process.has_spoken:
                process.has_spoken = True
                self.supervisor.started(broker, self.now_ms)
            self.supervisor.beat(broker, 0, self.now_ms)
            self.perform()
            for store, view in enumerate(self.supervisor.stores):
                if view.broker != broker:
                    continue
                if view.state == CLOSING:
                    self.holders[store] = NONE
                    self.supervisor.store_closed(broker, store, self.now_ms)
                elif store in self.bad_disks and view.state in {OPENING, OPEN}:
                    self.holders[store] = NONE
                    self.supervisor.store_failed(broker, store, "EIO", self.now_ms)
                elif view.state == OPENING:
                    self.supervisor.store_opened(broker, store, self.now_ms)
                self.perform()

    # -- and things happen to it -----------------------------------------------------------------

    @rule(beats=st.integers(1, 60))
    def time_passes(self, beats: int) -> None:
        for _ in range(beats):
            self.now_ms += BROKER_BEAT_MS
            self.beat()
            self.tick()
            for broker in self.undiagnosed:
                self.supervisor.diagnosed(broker, self.now_ms)
            self.undiagnosed.clear()
            self.perform()

    @rule(broker=st.integers(0, 3))
    def process_ends(self, broker: int) -> None:
        broker %= len(self.processes)
        if self.processes[broker].is_alive:
            self.end(broker)
            self.perform()

    @rule(broker=st.integers(0, 3), is_hung=st.booleans())
    def process_hangs_or_goes_on(self, broker: int, is_hung: bool) -> None:
        self.processes[broker % len(self.processes)].is_hung = is_hung

    @rule(broker=st.integers(0, 3))
    def invariant_fails(self, broker: int) -> None:
        broker %= len(self.processes)
        if self.processes[broker].is_alive:
            self.supervisor.broken(broker, "x", self.now_ms)
            self.perform()

    @rule(store=st.integers(0, 5), is_bad=st.booleans())
    def disk_changes(self, store: int, is_bad: bool) -> None:
        store %= len(self.holders)
        (self.bad_disks.add if is_bad else self.bad_disks.discard)(store)

    @rule(duration_ms=st.integers(1_250, 100_000))
    def gateway_sleeps(self, duration_ms: int) -> None:
        starts = [process.starts for process in self.processes]
        condemned = len(self.undiagnosed)
        self.now_ms += duration_ms
        self.tick()
        # Nobody is condemned for the time in which nobody listened.
        assert len(self.undiagnosed) == condemned
        for process, before in zip(self.processes, starts, strict=True):
            assert process.starts in {before, before + 1}

    # -- what always holds -----------------------------------------------------------------------

    @invariant()
    def the_supervisor_knows_who_has_what(self) -> None:
        for holder, view in zip(self.holders, self.supervisor.stores, strict=True):
            assert (holder == NONE) == (view.state == CLOSED)
            assert holder in {NONE, view.broker}

    def teardown(self) -> None:
        if not hasattr(self, "supervisor"):
            return
        self.bad_disks.clear()
        for process in self.processes:
            process.is_hung = False
        # The longest pause, then the longest time of being well, then one move after the other.
        self.time_passes((3 * BROKER_PAUSE_MS_MAX) // BROKER_BEAT_MS)
        assert [view.state for view in self.supervisor.stores] == [OPEN] * len(self.holders)
        assert self.holders == [view.home for view in self.supervisor.stores]


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
