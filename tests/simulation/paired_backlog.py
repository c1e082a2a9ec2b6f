"""The secondary of simulated pairs: backlog queues that two primaries share, and their syphons.

Queues lose answers, fall out for a while, and hand out again what was locked.  Syphons crash before
and after any step.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import OperationTimeoutError

from tests.simulation import syphon_world
from tests.simulation.cluster_processes import Loop
from tests.simulation.paired_primary import LATE_MS, Call, Network, Primary, Then, encoded_messages
from tests.simulation.syphon_world import BacklogQueue, Process, down
from twinbus.pairing.core import PairSettings
from twinbus.pairing.steps import SendRestored, Step
from twinbus.pairing.syphon import Syphon


class Backlog(syphon_world.World):
    """The world of syphons in the time of a cluster, with real destinations."""

    def __init__(self, network: Network, queues: list[str], lock_s: float) -> None:
        self._loop: Loop = network.loop
        super().__init__()
        self._network = network
        self.chance = network.rng
        self.queues = {name: BacklogQueue(lock_s) for name in queues}
        self.loss = 0.0
        self.under_way = 0  # sends that may still arrive
        self._ways: dict[Syphon, tuple[PairSettings, Primary]] = {}

    @property
    def now(self) -> float:
        return self._loop.now_ms / 1000

    @now.setter
    def now(self, value: float) -> None:
        """Time is the loop's."""

    def at(self, when: float, action: Callable[[], None]) -> None:
        # A millisecond more, so that no rounding brings it here before its time.
        self._loop.after(max(0, math.ceil((when - self.now) * 1000) + 1), action)

    @property
    def is_empty(self) -> bool:
        return not self.under_way and not any(each.messages for each in self.queues.values())

    # --- what senders do ------------------------------------------------------------------------

    def take(self, queue: str, messages: list[AmqpAnnotatedMessage], then: Then) -> None:
        """A send to a backlog queue; its answer may be lost, and it may come late then."""
        rng = self.chance
        is_lost = rng.random() < self.loss
        if not is_lost or rng.random() < 0.7:
            delay_ms = rng.choice(LATE_MS) if is_lost and rng.random() < 0.3 else rng.choice((1, 5))
            self.under_way += 1
            self._loop.after(delay_ms, partial(self._arrive, queue, messages, is_lost, then))
        if is_lost:
            self._loop.after(rng.choice((10, 500)), lambda: then(OperationTimeoutError()))

    def _arrive(
        self, name: str, messages: list[AmqpAnnotatedMessage], is_lost: bool, then: Then
    ) -> None:
        self.under_way -= 1
        queue = self.queues[name]
        if queue.error is None:
            for each in messages:
                queue.put(each, self.now)
            self._wake(name)
        if not is_lost:
            then(queue.error)

    # --- syphons --------------------------------------------------------------------------------

    def start_syphon(self, settings: PairSettings, primary: Primary) -> None:
        syphon = Syphon(settings, lambda: self.now, self.utc_now)
        self.alive.append(syphon)
        self._ways[syphon] = (settings, primary)
        for name in self.queues:
            process = Process(syphon, name, syphon.empty(name))
            self._proceed(process, process.flow.__next__)

    def crash_syphon(self) -> None:
        if self.alive:
            self._crash(self.chance.choice(self.alive))

    def restart_all(self) -> None:
        """New syphons, which have no rests to keep."""
        for syphon in list(self.alive):
            self._kill(syphon)
            self.start_syphon(*self._ways[syphon])

    def lose_locks(self) -> None:
        """The secondary has started again: everything is free."""
        for name, queue in self.queues.items():
            for each in queue.messages.values():
                each.locked_until = self.now
            self._wake(name)

    def _crash(self, syphon: Syphon) -> None:
        self._kill(syphon)
        pause_ms = self.chance.randint(50, 3_000)
        self._loop.after(pause_ms, partial(self.start_syphon, *self._ways[syphon]))

    def _kill(self, syphon: Syphon) -> None:
        self.alive.remove(syphon)
        self._waiting = [each for each in self._waiting if each.syphon is not syphon]

    # --- their steps ----------------------------------------------------------------------------

    def _begin(self, process: Process, step: Step) -> None:
        if not isinstance(step, SendRestored):
            super()._begin(process, step)
        elif self.chance.random() < self.crash_chance:
            self._crash(process.syphon)
        else:
            _, primary = self._ways[process.syphon]
            data = encoded_messages(step.messages)
            then = partial(self._restored, process)
            Call(self._network, primary, step.path, data, step.timeout_s, then)

    def _restored(self, process: Process, error: Exception | None) -> None:
        if process.syphon in self.alive and self.chance.random() < self.crash_chance:
            self._crash(process.syphon)
        self._answer(process, error)

    def _outcome(self, step: Step) -> Any:
        """What the queue does; it may say nothing of it, or not even be reached."""
        if self.chance.random() < self.loss:
            raise down()
        outcome = super()._outcome(step)
        if self.chance.random() < self.loss:
            raise down()
        return outcome

    def _received(self, process: Process, outcome: object) -> None:
        is_lost = self.chance.random() < self.loss
        super()._received(process, down() if is_lost else outcome)
