"""A whole bus in one thread: gateway, broker processes, stores; disks, sockets and time simulated.

    clients ─▶ Gateway ─▶ RemoteStore ═ Pipe ═ Stores ─▶ Broker ─▶ Store ─▶ SimDisk
                  └────── Supervisor ─▶ starts, diagnoses and kills processes, moves stores

Everything between the clients and the disks is the real code; only what `host/brokers/processes.py`
and `host/brokers/worker.py` do with asyncio is done here by a `Loop` of events. An event happens at
a time and, among those of one time, in an order that the seed decides: the same seed gives the same
run.

The fault model: a process may end at any disk operation, with or without what it had not synced;
it may stand still and go on later; frames take their time, but never overtake each other in a pipe;
a disk may be slow, fail or be full; the gateway may end with all of its processes.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tests.simulation.cluster_processes import BEAT_MS, Call, Loop, SimProcess
from twinbus.entities.commands import Listed, Reply, dispatch_replies
from twinbus.gateway.directory.directory import HIDDEN
from twinbus.gateway.gateway import Gateway
from twinbus.gateway.partitions.fan_out import Ticking
from twinbus.gateway.transfer.journal import NORMAL, Journals
from twinbus.gateway.transfer.relay import Relays
from twinbus.host.brokers import supervisor as states
from twinbus.host.brokers.supervisor import Close, Diagnose, Kill, Open, Start, Supervisor, Timings
from twinbus.links.remote.beats import decode_beat
from twinbus.links.remote.operations import BEAT, Operation
from twinbus.links.remote.remote_store import RemoteStore, dispatch
from twinbus.links.store_link import DOWN, UP
from twinbus.message.filter_fields import StoredMessageCodec
from twinbus.storage.store import Store
from twinbus.testing.disk import SimDisk


class InOrder(set[Ticking]):
    """A set that is gone through in the order of coming in, so that a seed gives one run."""

    def __init__(self) -> None:
        super().__init__()
        self._order: dict[Any, None] = {}

    def add(self, element: Ticking) -> None:
        super().add(element)
        self._order[element] = None

    def discard(self, element: object) -> None:
        super().discard(element)
        self._order.pop(element, None)

    def __iter__(self) -> Iterator[Ticking]:
        return iter(list(self._order))


class SimGateway:
    """One life of the gateway: `host/brokers/processes.py` without asyncio."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self._loop = cluster.loop
        self.is_alive = True
        self.is_ready = False
        clock = self._loop.clock
        self.links = [
            RemoteStore(number, str(number), clock, self._replied)
            for number in range(cluster.store_count)
        ]
        self.supervisor = Supervisor(
            cluster.broker_count, cluster.store_count, self._loop.now_ms, cluster.timings
        )
        self.gateway = Gateway(list(self.links), clock)
        self.gateway.ticking = InOrder()
        self.journals = Journals(
            self.gateway.links, self.gateway.directory, clock, self.gateway.answer
        )
        self.gateway.journals = self.journals
        self._relays = Relays(
            self.gateway.links, self.gateway.directory, clock, StoredMessageCodec()
        )
        self._healths = [DOWN] * cluster.store_count
        self.processes: list[SimProcess | None] = [None] * cluster.broker_count
        self._holders: list[SimProcess | None] = [None] * cluster.store_count
        self._listings: dict[int, list[Listed]] = {}
        for number, link in enumerate(self.links):
            link.on_opened = partial(self._store_opened, number)
            link.on_closed = partial(self._store_closed, number)
            link.on_failed = partial(self._store_failed, number)
        self._tick()

    def after(self, delay_ms: int, call: Call) -> None:
        self._loop.after(delay_ms, partial(self._do, call))

    def _do(self, call: Call) -> None:
        if self.is_alive:
            call()

    def _replied(self, replies: list[Reply]) -> None:
        assert self.is_alive, "a gateway that is gone answers"
        dispatch_replies(replies)

    def end(self) -> None:
        """The gateway is killed; its processes follow at once, but for what they are just doing."""
        self.is_alive = False
        for process in self.processes:
            if process is not None:
                process.outwards.is_cut = True
                process.kill()

    # -- doing what the supervisor says ------------------------------------------------------------

    def _tick(self) -> None:
        self.after(BEAT_MS, self._tick)
        self.supervisor.tick(self._loop.now_ms)
        self._perform()
        for link in self.links:
            link.receivers.tick()
        if self.is_ready:
            self._tick_gateway()

    def _tick_gateway(self) -> None:
        """What `host/bus.py` does several times a second."""
        now = self._loop.clock.now()
        self.gateway.tick()
        for store, link in enumerate(self.links):
            if link.health != self._healths[store]:
                self._healths[store] = link.health
                self._relays.health_changed(store)
        self._relays.tick(now)
        self.journals.tick(now)

    def _perform(self) -> None:
        while actions := self.supervisor.take_actions():
            for action in actions:
                self._act(action)

    def _act(self, action: Start | Diagnose | Kill | Open | Close) -> None:
        rng = self._loop.rng
        if isinstance(action, Start):
            process = SimProcess(self._cluster, self, action.broker)
            self.processes[action.broker] = process
            process.after(rng.randint(50, 900), process.start)
        elif isinstance(action, Diagnose):
            process = self._process(action.broker)
            self._let_go(process, f"broker {action.broker} is in trouble")
            self.after(rng.randint(0, 2_000), partial(self._diagnosed, process))
        elif isinstance(action, Kill):
            process = self._process(action.broker)
            self.after(rng.randint(0, 5), process.kill)
        elif isinstance(action, Open):
            process = self._process(action.broker)
            self._holders[action.store] = process
            self.links[action.store].attach(process)
        else:
            self._cluster.move_count += 1
            self.links[action.store].hold()
            self.links[action.store].close()

    def _process(self, broker: int) -> SimProcess:
        process = self.processes[broker]
        assert process is not None, "only who was started is asked for anything"
        return process

    def _diagnosed(self, process: SimProcess) -> None:
        if self.processes[process.index] is process:
            self.supervisor.diagnosed(process.index, self._loop.now_ms)
            self._perform()

    def _let_go(self, process: SimProcess, reason: str) -> None:
        for store, holder in enumerate(self._holders):
            if holder is process:
                self._holders[store] = None
                self._cluster.store_lost(store)
                self.links[store].lost(reason)

    # -- what processes tell -----------------------------------------------------------------------

    def received(self, process: SimProcess, operations: list[Operation]) -> None:
        if not self.is_alive or self.processes[process.index] is not process:
            return
        now_ms = self._loop.now_ms
        self.supervisor.started(process.index, now_ms)
        for operation in dispatch(operations, process, self.links):
            if operation[0] == BEAT:
                beat = decode_beat(operation)
                slow = [each.store for each in beat.stores if self.links[each.store].health != UP]
                self.supervisor.beat(process.index, beat.lag_ms, now_ms, frozenset(slow))
        self._perform()

    def ended(self, process: SimProcess) -> None:
        if self.is_alive and self.processes[process.index] is process:
            self._let_go(process, f"broker {process.index} has ended")
            self.supervisor.ended(process.index, "killed", self._loop.now_ms)
            self._perform()

    def _holder_of(self, store: int) -> int:
        process = self._holders[store]
        return -1 if process is None else process.index

    def _store_opened(self, store: int, listed: list[Listed]) -> None:
        self._cluster.store_opened(store)
        self._listings[store] = listed
        if self.is_ready:
            self.journals.found(store, listed)
        elif len(self._listings) == len(self.links):
            self._learn()
        self.supervisor.store_opened(self._holder_of(store), store, self._loop.now_ms)
        self._perform()

    def _learn(self) -> None:
        """All stores have said what they have.  Journals come last: what is in one for an entity
        that nobody knows would be dropped."""
        listings = sorted(self._listings.items())
        self.gateway.directory.load(
            (store, [each for each in listed if not each.name.startswith(HIDDEN)])
            for store, listed in listings
        )
        self._relays.load()
        for store, listed in listings:
            self.journals.found(store, listed)
        self.is_ready = True

    def _store_closed(self, store: int) -> None:
        broker = self._holder_of(store)
        self._holders[store] = None
        self.supervisor.store_closed(broker, store, self._loop.now_ms)
        self._perform()
        if self._holders[store] is None:
            self._cluster.store_lost(store)
            self.links[store].lost("its broker has closed it")

    def _store_failed(self, store: int, text: str, lines: list[str]) -> None:
        broker = self._holder_of(store)
        self._holders[store] = None
        self._cluster.store_lost(store)
        self.supervisor.store_failed(broker, store, text, self._loop.now_ms)
        self._perform()

    @property
    def is_well(self) -> bool:
        """Is every store open, and its journal empty?"""
        return self.is_ready and all(
            self.supervisor.stores[store].state == states.OPEN
            and link.is_open
            and link.health == UP
            and self.journals.state(store) == NORMAL
            for store, link in enumerate(self.links)
        )


class Cluster:
    """The machines: disks that outlive processes, and one gateway after the other."""

    def __init__(
        self, loop: Loop, disks: list[SimDisk], broker_count: int, timings: Timings
    ) -> None:
        self.loop = loop
        self.timings = timings
        self.disks = disks
        self.store_count = len(disks)
        self.broker_count = broker_count
        self.disk_ms_max = [3] * len(disks)  # what an operation of a disk takes, at most
        self.disk_ms_min = [0] * len(disks)
        self.pipe_ms_max = 2
        self.move_count = 0
        # Of each store: the first grant after it was lost, and after it was opened in any way.
        self._losses: list[list[int]] = [[] for _ in disks]
        self._openings: list[list[int]] = [[] for _ in disks]
        self._grants = [0] * len(disks)
        self.on_loss: Callable[[int], None] = _ignore
        self.gateway = SimGateway(self)

    @property
    def is_ready(self) -> bool:
        return self.gateway.is_alive and self.gateway.is_ready

    def disk_ms(self, number: int) -> int:
        return self.loop.rng.randint(self.disk_ms_min[number], self.disk_ms_max[number])

    def processes(self) -> list[SimProcess]:
        return [each for each in self.gateway.processes if each is not None and each.is_alive]

    def set_pipe_ms(self, delay_ms: int) -> None:
        """How long a frame takes from now on, at most."""
        self.pipe_ms_max = delay_ms
        for process in self.processes():
            process.inwards.delay_ms = process.outwards.delay_ms = delay_ms

    def restart_gateway(self) -> None:
        self.gateway.end()
        for store in range(self.store_count):
            self.store_lost(store)
        self.gateway = SimGateway(self)

    def check_owner(self, number: int, process: SimProcess) -> None:
        """A store is opened only when nobody else can still have it."""
        others = [each for each in self.processes() if each is not process and each.holds(number)]
        assert not others, f"store {number} has two owners"

    def store_lost(self, number: int) -> None:
        self._losses[number].append(self.next_grant(number))
        self.on_loss(number)

    def store_opened(self, number: int) -> None:
        self._openings[number].append(self.gateway.links[number].first_grant)

    def interruptions(self, number: int, grant: int, has_sessions: bool) -> int:
        """How often locks had been forgotten when this one was given; a move forgets sessions'."""
        marks = self._openings[number] if has_sessions else self._losses[number]
        return sum(mark <= grant for mark in marks)

    # -- grants: which locks are older than something that happened --------------------------------

    def note_grants(self, number: int, store: Store | None) -> None:
        if store is None:
            return
        self._grants[number] = max(self._grants[number], store.grants.next)

    def next_grant(self, number: int) -> int:
        """Locks of this store that are given from now on have at least this number."""
        for process in self.processes():
            store = process.store(number)
            if store is not None:
                self.note_grants(number, store)
        return self._grants[number]


def _ignore(number: int) -> None:
    """Nobody wants to know."""
