"""Garbage collection on our own schedule.

Messages are many, live long and form no cycles, so Python's own collector would look at millions of
them over and over to find nothing: with ten million waiting one full pass stops the loop for
seconds.  So the automatic collector is off, and a full pass is made only while that is cheap, or
when enough connections have gone: a connection leaves a few small cycles behind.
"""

import asyncio
import gc
from collections.abc import Callable
from typing import Final

INTERVAL_S: Final = 60.0
CHEAP_COUNT_MAX: Final = 200_000  # messages up to which a full pass is taken for short; an estimate
CONNECTIONS_LOST_MAX: Final = 10_000  # at a few KB of cycles each; an estimate


class GarbageCollection:
    """Takes the place of the automatic collector while a server runs."""

    def __init__(self, message_count: Callable[[], int]) -> None:
        self._message_count = message_count
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.connections_lost = 0

    def start(self) -> None:
        gc.collect()
        gc.freeze()  # modules and what recovery has built
        gc.disable()
        self._timer = self._loop.call_later(INTERVAL_S, self._collect)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        gc.unfreeze()
        gc.enable()

    def _collect(self) -> None:
        self._timer = self._loop.call_later(INTERVAL_S, self._collect)
        cheap = self._message_count() < CHEAP_COUNT_MAX
        if cheap or self.connections_lost >= CONNECTIONS_LOST_MAX:
            self.connections_lost = 0
            gc.collect()
