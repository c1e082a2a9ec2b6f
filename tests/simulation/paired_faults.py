"""What goes wrong with simulated pairs and everything around them."""

import random
from functools import partial
from typing import TYPE_CHECKING

from azure.servicebus.exceptions import ServiceBusConnectionError

from tests.simulation.cluster_faults import Nemesis
from tests.simulation.cluster_processes import Call
from twinbus.entities.queue import Queue

if TYPE_CHECKING:
    from tests.simulation.paired_cluster import Schedule


class PairNemesis(Nemesis):
    """Harms the cluster, and all that is around it."""

    PAUSES_MS = (150, 400, 1_000)

    def __init__(self, schedule: "Schedule", rng: random.Random) -> None:
        self._schedule = schedule
        self._loss = rng.choice((0.0, 0.05, 0.2))  # also while nothing else happens
        self._lose_as_ever()
        super().__init__(schedule.world, rng)

    def harms(self) -> list[Call]:
        return [
            *super().harms(),
            self.break_disk,
            self.break_disk,
            self.fill_partitions,
            self.cut_off,
            self.flicker,
            self.lose_answers,
            self.lose_and_kill,
            self.force_over,
            self.restart_application,
            self.crash_syphon,
            self.break_backlog,
            self.restart_backlog,
            self.stop_stranger,
            self.stop_stranger,
        ]

    def heal(self) -> None:
        super().heal()
        schedule = self._schedule
        schedule.network.is_cut = False
        schedule.stranger.is_down = False
        schedule.backlog.crash_chance = self._loss = 0.0
        self._lose_as_ever()
        for queue in schedule.backlog.queues.values():
            queue.error = None
        self._empty_partitions()

    # -- the primary -----------------------------------------------------------------------------

    def break_disk(self) -> None:
        """A store stays down for a while: it cannot be opened, either."""
        disk = self._rng.choice(self._cluster.disks)
        for kind in ("write", "sync", "create"):
            disk.fail(kind, 1, for_ever=True)
        self._loop.after(self._rng.choice((1_000, 3_000, 8_000)), disk.heal)

    def fill_partitions(self) -> None:
        """Some have reached their quota, until somebody receives from them, or they move."""
        self._fill_some(0.3)
        self._loop.after(self._rng.choice((1_000, 4_000)), self._empty_partitions)

    def flicker(self) -> None:
        """Partitions are full and have room again, in turn, and nobody gets clear answers."""
        self.lose_answers()
        for delay_ms in range(0, 1_200, 60):
            self._loop.after(delay_ms, self._flicker)

    def _flicker(self) -> None:
        self._empty_partitions()
        if not self.is_over:
            self._fill_some(0.5)

    def _fill_some(self, chance: float) -> None:
        for each in self._queues():
            if self._rng.random() < chance and not each.name.startswith("$"):
                each._size_bytes_max = 0

    def _empty_partitions(self) -> None:
        for each in self._queues():
            each.update(each.description)

    def _queues(self) -> list[Queue]:
        """Of all stores that are open."""
        queues: list[Queue] = []
        for process in self._cluster.processes():
            for store in range(self._cluster.store_count):
                opened = process.store(store)
                queues += [] if opened is None else opened.entities.values()
        return queues

    def cut_off(self) -> None:
        """Nobody reaches the primary."""
        self._schedule.network.is_cut = True
        self._loop.after(self._rng.choice((500, 3_000)), self._reconnect)

    def _reconnect(self) -> None:
        self._schedule.network.is_cut = False

    def lose_answers(self) -> None:
        self._set_loss(self._rng.choice((0.1, 0.4)))
        self._loop.after(self._rng.choice((1_000, 5_000)), self._lose_as_ever)

    def lose_and_kill(self) -> None:
        """What has just arrived without an answer is sent again, to a store that is down."""
        self.lose_answers()
        for delay_ms in (300, 1_000):
            self._loop.after(delay_ms, self._kill_amid)

    def _kill_amid(self) -> None:
        if not self.is_over:
            self.kill()

    def _lose_as_ever(self) -> None:
        self._set_loss(self._loss)

    def _set_loss(self, chance: float) -> None:
        self._schedule.network.loss = self._schedule.backlog.loss = chance

    # -- the clients and the secondary -----------------------------------------------------------

    def force_over(self) -> None:
        """Somebody sends the pair to the backlog for a while, whatever is under way."""
        self._schedule.pair.pairing.force_failover()
        self._loop.after(self._rng.choice((200, 1_000)), self._force_back)

    def _force_back(self) -> None:
        self._schedule.pair.pairing.force_failback()

    def restart_application(self) -> None:
        self._schedule.pair.restart()

    def crash_syphon(self) -> None:
        self._schedule.backlog.crash_syphon()

    def break_backlog(self) -> None:
        queue = self._rng.choice(list(self._schedule.backlog.queues.values()))
        queue.error = ServiceBusConnectionError()
        self._loop.after(self._rng.choice((500, 3_000)), partial(setattr, queue, "error", None))

    def restart_backlog(self) -> None:
        self._schedule.backlog.lose_locks()

    def stop_stranger(self) -> None:
        stranger = self._schedule.stranger
        stranger.is_down = True
        self._loop.after(
            self._rng.choice((1_000, 5_000)), partial(setattr, stranger, "is_down", False)
        )
