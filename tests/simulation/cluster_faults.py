"""What happens to a simulated cluster: the disks it starts with, and the faults it meets."""

import random
from functools import partial

from tests.simulation.cluster_clients import World
from tests.simulation.cluster_processes import SEGMENT_SIZE, Call
from twinbus.broker.broker import Broker
from twinbus.entities.commands import Command, CreateEntities, NewEntity, Reply
from twinbus.message.filter_fields import StoredMessageCodec
from twinbus.storage.store import Store
from twinbus.testing.clock import SimClock
from twinbus.testing.disk import CrashMode, SimDisk


def disk_with(clock: SimClock, news: list[NewEntity]) -> SimDisk:
    """The disk of a store that has these entities."""
    disk = SimDisk()
    store = Store.open(disk, clock.now(), 7, SEGMENT_SIZE)
    replies: list[Reply] = []
    broker = Broker(store, clock, _nothing, replies.extend, StoredMessageCodec())
    # A topic has to be there before its subscriptions are.
    for kind in ("queue", "topic", "subscription"):
        command: Command = CreateEntities([each for each in news if each.kind == kind])
        broker.submit([command])
        commit = broker.turn(may_commit=True)
        if commit is not None:
            commit.write()
            broker.committed(commit)
    assert all(reply.error is None for reply in replies)
    store.close()
    return disk


def _nothing() -> None:
    """Turns are taken by hand."""


class Nemesis:
    """Does harm now and then, and can undo it."""

    PAUSES_MS = (700, 2_000, 5_000)

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self._cluster = world.cluster
        self._loop = world.loop
        self._rng = rng
        self._harms = rng.sample(self.harms(), rng.randint(1, 5))
        self._pause_ms = rng.choice(self.PAUSES_MS)
        self.is_over = False
        self.done: list[str] = []
        self._wait()

    def harms(self) -> list[Call]:
        """What it knows to do."""
        return [
            self.kill,
            self.cut_power,
            self.cut_power_soon,
            self.hang,
            self.slow,
            self.fail,
            self.fill,
            self.jump_utc,
            self.restart_gateway,
            self.delay,
        ]

    def _wait(self) -> None:
        self._loop.after(self._rng.randint(0, 2 * self._pause_ms), self._again)

    def _again(self) -> None:
        if not self.is_over:
            harm = self._rng.choice(self._harms)
            self.done.append(f"{self._loop.now_ms} {harm.__name__}")
            harm()
            self._wait()

    def heal(self) -> None:
        self.is_over = True
        for store in range(self._cluster.store_count):
            self._quicken(store)
            self._empty(store)
            self._cluster.disks[store].heal()
        self._hasten()
        for process in self._cluster.processes():
            process.resume()

    # -- processes ---------------------------------------------------------------------------------

    def kill(self) -> None:
        processes = self._cluster.processes()
        if processes:
            self._rng.choice(processes).kill()

    def cut_power(self) -> None:
        processes = self._cluster.processes()
        if processes:
            self._rng.choice(processes).kill(self._rng.choice(list(CrashMode)))

    def cut_power_soon(self) -> None:
        self._rng.choice(self._cluster.disks).cut_power_after(self._rng.randint(0, 8))

    def hang(self) -> None:
        processes = self._cluster.processes()
        if processes:
            process = self._rng.choice(processes)
            process.hang()
            self._loop.after(self._rng.choice((200, 1_500, 4_000, 9_000)), process.resume)

    def restart_gateway(self) -> None:
        self._world.restart_gateway()

    # -- disks -------------------------------------------------------------------------------------

    def slow(self) -> None:
        store = self._rng.randrange(self._cluster.store_count)
        self._cluster.disk_ms_min[store] = 500
        self._cluster.disk_ms_max[store] = self._rng.choice((1_000, 3_000, 6_000))
        self._loop.after(self._rng.choice((2_000, 8_000)), partial(self._quicken, store))

    def _quicken(self, store: int) -> None:
        self._cluster.disk_ms_min[store] = 0
        self._cluster.disk_ms_max[store] = 3

    def fail(self) -> None:
        kind = self._rng.choice(("write", "sync", "sync", "create", "rename", "preallocate"))
        self._rng.choice(self._cluster.disks).fail(kind, self._rng.randint(1, 3))

    def fill(self) -> None:
        store = self._rng.randrange(self._cluster.store_count)
        disk = self._cluster.disks[store]
        disk.capacity = sum(disk.size(name) for name in disk.names())
        self._loop.after(self._rng.choice((2_000, 8_000)), partial(self._empty, store))

    def _empty(self, store: int) -> None:
        self._cluster.disks[store].capacity = None

    # -- everything else ---------------------------------------------------------------------------

    def jump_utc(self) -> None:
        self._world.judge.utc_is_steady = False
        self._loop.clock.jump_utc(self._rng.choice((-3_600_000, -4_000, 4_000, 86_400_000)))

    def delay(self) -> None:
        self._cluster.set_pipe_ms(self._rng.choice((50, 400)))
        self._loop.after(self._rng.choice((1_000, 5_000)), self._hasten)

    def _hasten(self) -> None:
        self._cluster.set_pipe_ms(2)
