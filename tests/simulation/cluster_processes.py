"""Simulated broker processes: a loop of events, pipes between processes, and what runs in one.

`SimShell` stands for broker/shell.py and `SimProcess` for host/brokers/worker.py, without asyncio;
host, brokers and stores are the real ones. What may happen to them is told in cluster.py.
"""

import contextlib
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from twinbus.broker.broker import Broker
from twinbus.broker.remote.stores import Opened, Stores
from twinbus.entities.commands import Reply
from twinbus.errors import StorageError
from twinbus.links.remote.beats import Beat, StoreBeat, encode_beat
from twinbus.links.remote.channel import Channel
from twinbus.links.remote.operations import Operation
from twinbus.message.filter_fields import StoredMessageCodec
from twinbus.storage.log import Commit
from twinbus.storage.maintenance import Task
from twinbus.storage.store import Store
from twinbus.testing.clock import SimClock
from twinbus.testing.disk import CrashMode, PowerCut

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster, SimGateway

SEGMENT_SIZE: Final = 1 << 17
MAINTENANCE_MS: Final = 1_000
BEAT_MS: Final = 500  # half as often as in earnest, to save time; still several in `silent_ms`
CLOSE_MS_MAX: Final = 5_000  # as in broker/shell.py

Call = Callable[[], None]


class Loop:
    """Time, and what happens in it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.clock = SimClock()
        self.now_ms = self.clock.now().mono_ms  # kept here, because it is asked for so often
        self.unshipped: list[Pipe] = []
        self._events: list[tuple[int, float, int, Call]] = []
        self._numbers = itertools.count()

    def after(self, delay_ms: int, call: Call) -> None:
        due_ms = self.now_ms + delay_ms
        heapq.heappush(self._events, (due_ms, self.rng.random(), next(self._numbers), call))

    def run(self, duration_ms: int, until: Callable[[], bool] | None = None) -> bool:
        """Let time pass, at most so much; returns whether `until` has come true."""
        end_ms = self.now_ms + duration_ms
        while self._events and self._events[0][0] <= end_ms:
            due_ms, _, _, call = heapq.heappop(self._events)
            self._pass_time(due_ms)
            call()
            self.ship()
            if until is not None and until():
                return True
        self._pass_time(end_ms)
        return False

    def _pass_time(self, until_ms: int) -> None:
        self.clock.advance(until_ms - self.now_ms)
        self.now_ms = until_ms

    def ship(self) -> None:
        """What was said in one turn goes out in one frame."""
        while self.unshipped:
            self.unshipped.pop().ship()


class Pipe:
    """One direction of a socket: a frame for each turn, in order, after a while."""

    def __init__(self, loop: Loop, arrive: Callable[[list[Operation]], None]) -> None:
        self._loop = loop
        self._arrive = arrive
        self._near, self._far = Channel(), Channel()
        self._unsent: list[Operation] = []
        self._frames: deque[bytes] = deque()
        self._due_ms = 0
        self.delay_ms = 2
        self.is_cut = False

    @property
    def is_empty(self) -> bool:
        return not self._frames and not self._unsent

    def send(self, operation: Operation) -> None:
        if not self._unsent:
            self._loop.unshipped.append(self)
        self._unsent.append(operation)

    def forget(self) -> None:
        """Whoever speaks is gone in the middle of a turn: what he has not sent is nowhere."""
        self._unsent.clear()

    def ship(self) -> None:
        if not self._unsent:
            return
        self._frames.append(self._near.encode(self._unsent))
        self._unsent.clear()
        now_ms = self._loop.now_ms
        self._due_ms = max(self._due_ms, now_ms + self._loop.rng.randint(0, self.delay_ms))
        self._loop.after(self._due_ms - now_ms, self._deliver)

    def _deliver(self) -> None:
        if self._frames and not self.is_cut:
            self._arrive(self._far.receive_data(self._frames.popleft()))


class SimShell:
    """Runs the broker of one store: `broker/shell.py` without asyncio."""

    def __init__(
        self,
        process: "SimProcess",
        number: int,
        store: Store,
        on_replies: Callable[[list[Reply]], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._process = process
        self._number = number
        self.store = store
        self._clock = process.loop.clock
        self._on_failure = on_failure
        self.is_failed = False
        self._commit: Commit | None = None
        self._task: Task | None = None
        self._open_since_ms = -1
        self._timer_ms = -1
        self._then: Call | None = None
        self._close_by_ms = 0
        self.broker = Broker(
            store, self._clock, self._wake, on_replies, StoredMessageCodec(), is_one_of_many=True
        )
        self.broker.turn_now = self._turn
        self.broker.entities.note_all()
        self._arm()
        process.after(MAINTENANCE_MS, self._maintain)

    def _wake(self) -> None:
        self._process.after(self._process.loop.rng.randint(0, 1), self._turn)

    def _turn(self) -> None:
        if self.is_failed:
            return
        commit = self.broker.turn(may_commit=self._commit is None)
        self._arm()
        if self._open_since_ms < 0 and (commit or self._commit or self.store.facts):
            self._open_since_ms = self._process.loop.now_ms
        if commit is not None:
            self._commit = commit
            self._process.after(self._process.cluster.disk_ms(self._number), self._write)
        self._finish_close()

    def _write(self) -> None:
        commit, self._commit = self._commit, None
        if commit is None or (self.is_failed and self._then is None):
            return
        try:
            commit.write()
        except (StorageError, OSError) as error:
            self._fail(error)
            return
        self._open_since_ms = self._process.loop.now_ms if self.store.facts else -1
        self.broker.committed(commit)
        self._finish_close()

    def commit_age_ms(self) -> int:
        return 0 if self._open_since_ms < 0 else self._process.loop.now_ms - self._open_since_ms

    def _fail(self, error: BaseException) -> None:
        if not self.is_failed:
            self.is_failed = True
            self._on_failure(error)

    # -- time and maintenance --------------------------------------------------------------------

    def _arm(self) -> None:
        due_ms = self.broker.entities.timers.next_ms
        if due_ms >= 0 and not 0 <= self._timer_ms <= due_ms:
            self._timer_ms = due_ms
            self._process.after(max(0, due_ms - self._process.loop.now_ms), self._tick)

    def _tick(self) -> None:
        self._timer_ms = -1
        if not self.is_failed:
            self.broker.entities.tick()
            self._arm()

    def _maintain(self) -> None:
        if self.is_failed:
            return
        try:
            self._task = self.store.next_task(self._clock.now())
        except StorageError as error:
            self._fail(error)
            return
        if self.store.facts:
            self.broker.ask_for_turn()
        if self._task is None:
            self._process.after(MAINTENANCE_MS, self._maintain)
        else:
            self._process.after(self._process.cluster.disk_ms(self._number), self._run_task)

    def _run_task(self) -> None:
        task, self._task = self._task, None
        if self.is_failed or task is None:
            return
        try:
            task.run()
        except (StorageError, OSError) as error:
            self._fail(error)
            return
        self.store.finish_task(task)
        self._process.after(0, self._maintain)

    # -- end -------------------------------------------------------------------------------------

    def close(self, then: Call) -> None:
        """Finish what was decided, within a while; what is being written is waited for."""
        self._then = then
        if self.is_failed:
            self._process.after(1, self._end)
            return
        self._close_by_ms = self._process.loop.now_ms + CLOSE_MS_MAX
        self._process.after(CLOSE_MS_MAX, self._finish_close)
        self._turn()

    def _finish_close(self) -> None:
        if self._then is None or self._commit is not None:
            return
        if not self.store.facts or self._process.loop.now_ms >= self._close_by_ms:
            self._end()

    def _end(self) -> None:
        then, self._then = self._then, None
        if then is not None:
            self.is_failed = True
            self._process.let_go(self._number)
            with contextlib.suppress(StorageError):  # what was answered for is durable
                self.store.close()
            then()


class SimProcess:
    """A broker process: `host/brokers/worker.py` without asyncio; the gateway's `Sender` to it."""

    def __init__(self, cluster: "Cluster", gateway: "SimGateway", index: int) -> None:
        self.cluster = cluster
        self.loop = cluster.loop
        self.index = index
        self.is_alive = True
        self.is_hung = False
        self._gateway = gateway
        self._frozen: list[Call] = []
        self._beat_due_ms = 0
        self._held: dict[int, Store | None] = {}  # stores whose directory this process has
        self.inwards = Pipe(self.loop, self._received)
        self.outwards = Pipe(self.loop, partial(gateway.received, self))
        self.inwards.delay_ms = self.outwards.delay_ms = cluster.pipe_ms_max
        self.host = Stores(self, self._say, self._is_full, self.loop.clock)

    def start(self) -> None:
        self._beat_due_ms = self.loop.now_ms
        self._beat()

    def after(self, delay_ms: int, call: Call) -> None:
        self.loop.after(delay_ms, partial(self._do, call))

    def _do(self, call: Call) -> None:
        """Something happens in this process, unless it is gone or stands still."""
        if self.is_hung:
            self._frozen.append(call)
        elif self.is_alive:
            try:
                call()
            except PowerCut:
                self.kill(self.loop.rng.choice(list(CrashMode)))

    # -- the socket --------------------------------------------------------------------------------

    def send(self, operation: Operation) -> None:
        self.inwards.send(operation)

    def flush(self) -> None:
        """Frames go at the end of a turn."""

    def _received(self, operations: list[Operation]) -> None:
        self._do(partial(self.host.received, operations))

    def _say(self, operation: Operation) -> None:
        self.outwards.send(operation)

    def _is_full(self) -> bool:
        return False

    def _beat(self) -> None:
        lag_ms = self.loop.now_ms - self._beat_due_ms
        self._beat_due_ms = self.loop.now_ms + BEAT_MS
        self.after(BEAT_MS, self._beat)
        stores = [
            StoreBeat(number, shell.commit_age_ms(), 0, 0, 0, -1, 0, 0, 0)
            for number, shell in self.host.shells.items()
            if isinstance(shell, SimShell)
        ]
        self._say(encode_beat(Beat(lag_ms, 0, 0, stores, [])))
        self.host.tick()

    # -- running stores (a Runner) -----------------------------------------------------------------

    def open_store(self, number: int, path: str, then: Opened) -> None:
        self.after(self.loop.rng.randint(1, 20), partial(self._open, number, then))

    def _open(self, number: int, then: Opened) -> None:
        self.cluster.check_owner(number, self)
        disk = self.cluster.disks[number]
        self._held.setdefault(number, None)
        try:
            store = Store.open(disk, self.loop.clock.now(), 7, SEGMENT_SIZE)
        except (StorageError, OSError) as error:
            if self._held[number] is None:
                del self._held[number]
            then(error)
            return
        self._held[number] = store
        self.cluster.note_grants(number, store)
        then(store)

    def run_store(
        self,
        number: int,
        store: Store,
        on_replies: Callable[[list[Reply]], None],
        on_failure: Callable[[BaseException], None],
    ) -> SimShell:
        return SimShell(self, number, store, on_replies, on_failure)

    def set_fault(self, number: int, plan: Any) -> None:
        """Disks go wrong by other means here."""

    def recent_log(self) -> list[str]:
        return []

    def holds(self, number: int) -> bool:
        return number in self._held

    def store(self, number: int) -> Store | None:
        return self._held.get(number)

    def let_go(self, number: int) -> None:
        self.cluster.note_grants(number, self._held.pop(number))

    # -- ending and standing still -----------------------------------------------------------------

    def kill(self, mode: CrashMode | None = None) -> None:
        """The process is gone; with a mode, so is what it had not synced."""
        if not self.is_alive:
            return
        self.is_alive = False
        self.is_hung = False
        self._frozen.clear()
        self.inwards.is_cut = True
        self.outwards.forget()
        for number, store in self._held.items():
            self.cluster.note_grants(number, store)
            disk = self.cluster.disks[number]
            if mode is None:
                disk.revive()
            else:
                self.cluster.disks[number] = disk.after_power_cut(self.loop.rng, mode)
        self._held.clear()
        self.loop.after(self.loop.rng.randint(0, 30), self._hear_out)

    def _hear_out(self) -> None:
        """What it had said is read before its end is noticed."""
        if self.outwards.is_empty:
            self._gateway.ended(self)
        elif self._gateway.is_alive:
            self.loop.after(5, self._hear_out)

    def hang(self) -> None:
        self.is_hung = self.is_alive

    def resume(self) -> None:
        if self.is_hung:
            self.is_hung = False
            frozen, self._frozen = self._frozen, []
            for call in frozen:
                self._do(call)
