"""What a pair does by itself: looks at the time, sends pings, couples its two clients.

One task waits for the next deadline; every ping is a task of its own, so that one that hangs delays
neither the pings of other entities nor a failover.
"""

import asyncio
import contextlib
from collections.abc import Callable

from twinbus.pairing.aio._running import run
from twinbus.pairing.aio._steady import SteadySender
from twinbus.pairing.core import Pairing
from twinbus.pairing.coupling import Coupling, Side
from twinbus.pairing.log_lines import LOGGER
from twinbus.pairing.pinging import ping
from twinbus.pairing.steps import SendPing, Step


class Background:
    """The tasks behind one pair.  `fault` is called when one of its clients has to follow."""

    def __init__(
        self,
        pairing: Pairing,
        coupling: Coupling,
        dispatch: Callable[[], None],
        make_sender: Callable[[str], SteadySender],
        fault: Callable[[Side], None],
    ) -> None:
        self._pairing = pairing
        self._coupling = coupling
        self._dispatch = dispatch
        self._make_sender = make_sender
        self._fault = fault
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._pings: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._watch(), name="pairing")

    def wake(self) -> None:
        """Something has happened that may have moved the next deadline."""
        self._wake.set()

    async def stop(self) -> None:
        tasks = [*self._pings, *([self._task] if self._task else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _watch(self) -> None:
        while True:
            self._wake.clear()
            try:
                deadline = self._look()
            except Exception:  # noqa: BLE001 - a timer that has died would never fail over
                LOGGER.exception("the background of a pair has met an error")
                deadline = self._pairing.now() + 1.0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._wake.wait()

    def _look(self) -> float | None:
        """Do what is due; gives the time until which nothing else will be."""
        for entity in self._pairing.tick():
            task = asyncio.create_task(self._ping(entity), name=f"ping of {entity}")
            self._pings.add(task)
            task.add_done_callback(self._pings.discard)
        side = self._coupling.due(self._pairing.now())
        if side is not None:
            self._fault(side)
        self._dispatch()
        deadlines = [self._pairing.next_deadline(), self._coupling.next_deadline()]
        return min((each for each in deadlines if each is not None), default=None)

    async def _ping(self, entity: str) -> None:
        """By a connection of its own: whether a new one comes about is the question."""
        sender = self._make_sender(entity)

        async def perform(step: Step) -> None:
            match step:
                case SendPing(_, message, timeout_s):
                    await sender.send(message, timeout_s)
                case _:
                    raise AssertionError(f"no step of a ping: {step}")

        try:
            await run(ping(self._pairing, entity), perform)
        except Exception:  # noqa: BLE001 - it is logged
            LOGGER.exception("a ping has met an error: entity=%s", entity)
        finally:
            self._dispatch()
            self._wake.set()
            await sender.close()
