"""Tests of pairs that run at the same time: each has a stage of its own, and most of it is waiting.

    @at_once()
    async def test_something(stage: Stage) -> None: ...

The module's fixture `finished` (see `finish`) runs all of them together on one bus, to the end; the
tests then tell what came of each.  What they share is the two servers, so they must leave those
alone and touch only what is named after their stage.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from tests.crash.pairing_bus import LOCK_DURATION, Bus, take, transfer_queue
from tests.crash.pairing_client import Pair
from twinbus.client.links import Received

QUEUES: Final = 3  # backlog queues of a stage
# Blocking senders wait in these for seconds, and the async ones look up their host's name in them.
THREADS: Final = 64

Play = Callable[["Stage"], Coroutine[Any, Any, None]]
Finished = dict[str, BaseException | None]  # what each has raised, by its name
Test = Callable[[Finished], Coroutine[Any, Any, None]]

_PLAYS: dict[Test, tuple[Play, dict[str, str | int]]] = {}


class Stage:
    """A queue of the primary and backlog queues of the secondary for one test."""

    def __init__(self, bus: Bus, name: str) -> None:
        self.bus = bus
        self.queue = name
        self._faults: list[tuple[Any, str]] = []

    async def set(self, **settings: str | int) -> None:
        """Make the queues; settings are those of the primary's."""
        await asyncio.to_thread(self.bus.primary.create_queue, self.queue, **settings)
        for index in range(QUEUES):
            await asyncio.to_thread(
                self.bus.secondary.create_queue,
                self.backlog_queue(index),
                lock_duration=LOCK_DURATION,
                max_delivery_count=10_000,
            )

    async def another_queue(self, suffix: str, **settings: str | int) -> str:
        name = f"{self.queue}-{suffix}"
        await asyncio.to_thread(self.bus.primary.create_queue, name, **settings)
        return name

    def options(self, **given: Any) -> dict[str, Any]:
        """For `open_pair`, so that it uses the stage's own backlog queues."""
        return {"primary_name": self.queue, "backlog_queue_count": QUEUES, **given}

    # -- faults ------------------------------------------------------------------------------------

    async def refuse(self, queue: str = "", *, kind: str = "refuse-sends", **given: Any) -> None:
        """Sends to a queue of the primary: its own if no other is named."""
        await self._fault(self.bus.primary_faults, queue or self.queue, kind, given)

    async def refuse_backlog(self, index: int) -> None:
        await self._fault(self.bus.secondary_faults, self.backlog_queue(index), "refuse-sends", {})

    async def clear(self) -> None:
        """All faults of this stage."""
        for faults, fault_id in self._faults:
            await asyncio.to_thread(faults.clear, fault_id)
        self._faults = []

    async def _fault(self, faults: Any, entity: str, kind: str, given: dict[str, Any]) -> None:
        fault = await asyncio.to_thread(faults.add, {"kind": kind, "entity": entity, **given})
        if "duration_s" not in given:
            self._faults.append((faults, fault["id"]))

    # -- what is where -----------------------------------------------------------------------------

    def backlog_queue(self, index: int) -> str:
        return transfer_queue(self.queue, index)

    def waiting(self) -> int:
        """Messages in the backlog queues, dead letters not counted."""
        admin = self.bus.secondary.admin
        found = [admin.get_queue(self.backlog_queue(index)) for index in range(QUEUES)]
        return sum(int(each.properties["ActiveMessageCount"]) for each in found)

    async def arrived(self, queue: str = "") -> list[Received]:
        """What has come to a queue of the primary, in order, taken out."""
        return await take(self.bus.primary, queue or self.queue)

    async def texts(self, queue: str = "") -> list[str]:
        return [received.body.decode() for received in await self.arrived(queue)]

    async def take_backlog(self, suffix: str = "") -> list[Received]:
        """What is in the backlog queues, or in their dead-letter queues, taken out."""
        queues = [self.backlog_queue(index) + suffix for index in range(QUEUES)]
        taken = await asyncio.gather(*(take(self.bus.secondary, queue) for queue in queues))
        return [received for each in taken for received in each]

    async def backlog_texts(self) -> list[str]:
        """In alphabetical order."""
        return sorted(received.body.decode() for received in await self.take_backlog())


def at_once(**settings: str | int) -> Callable[[Play], Test]:
    """Runs together with the others; settings are those of the stage's queue."""

    def told(play: Play) -> Test:
        async def test(finished: Finished) -> None:
            error = finished[play.__name__]
            if error is not None:
                raise error

        test.__name__ = test.__qualname__ = play.__name__
        test.__doc__ = play.__doc__
        _PLAYS[test] = (play, settings)
        return test

    return told


async def finish(bus: Bus, request: pytest.FixtureRequest) -> Finished:
    """Run those tests of the module that were asked for; what each has raised."""
    tests = {
        each.function
        for each in request.session.items
        if isinstance(each, pytest.Function) and each.path == request.path
    }
    plays = [play for test, play in _PLAYS.items() if test in tests]
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))

    async def run(play: Play, settings: dict[str, str | int]) -> None:
        stage = Stage(bus, play.__name__.replace("_", "-"))
        await stage.set(**settings)
        await play(stage)

    raised = await asyncio.gather(*(run(*each) for each in plays), return_exceptions=True)
    return {play.__name__: error for (play, _), error in zip(plays, raised, strict=True)}


def all_pairs_are(pairs: list[Pair], queue: str, state: object) -> bool:
    return all(pair.state(queue) is state for pair in pairs)
