"""Metering: takes the meter's counts once a second and writes them on a thread.

A full or broken disk stops no message: unwritten counts are kept as hourly sums, and written when
the disk works again.  A server that is killed loses at most the last second.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

from twinbus.clock import Clock
from twinbus.errors import Unavailable
from twinbus.gateway.counting.meter import Meter
from twinbus.metered import HOUR_MS, Metered, summed

INTERVAL_S: Final = 1.0

log = logging.getLogger("twinbus.server")


class Appending(Protocol):
    """Makes lines durable (storage/meter_log.py)."""

    def append(self, lines: list[Metered]) -> None: ...

    def close(self) -> None: ...


# Reads what was metered between two moments.
Reader = Callable[[int, int], list[Metered]]


class Metering:
    """Writes one server's meter to disk."""

    def __init__(self, meter: Meter, target: Appending, reader: Reader, clock: Clock) -> None:
        self._meter = meter
        self._target = target
        self._reader = reader
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="twinbus-meter")
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[tuple[list[Metered], str]] | None = None
        self._from_ms = clock.now().utc_ms
        self._unwritten: list[Metered] = []
        self._is_failing = False

    def start(self) -> None:
        self._from_ms = self._clock.now().utc_ms
        self._arm()

    async def close(self) -> None:
        """Write what is left; whether that works or not, this is the end."""
        if self._timer is not None:
            self._timer.cancel()
            await self.flush()
        await self._loop.run_in_executor(self._thread, self._target.close)
        self._thread.shutdown()

    async def read(self, from_ms: int, to_ms: int) -> list[Metered]:
        """What was metered in this span of time, until now."""
        await self.flush()
        try:
            written = await self._loop.run_in_executor(self._thread, self._reader, from_ms, to_ms)
        except OSError as error:
            raise Unavailable(f"What was metered cannot be read: {error.strerror}.") from error
        return written + [line for line in self._unwritten if from_ms <= line.from_ms < to_ms]

    async def flush(self) -> None:
        """Have everything written that was counted until now."""
        if self._writing is not None:  # what is on its way may be less than that
            await asyncio.wait({self._writing})
        self._write()
        if self._writing is not None:
            await asyncio.wait({self._writing})

    def _arm(self) -> None:
        self._timer = self._loop.call_later(INTERVAL_S, self._tick)

    def _tick(self) -> None:
        self._arm()
        self._write()

    def _write(self) -> None:
        if self._writing is not None:
            return  # the disk is slow: the next one takes it all
        self._take()
        if self._unwritten:
            lines, self._unwritten = self._unwritten, []
            self._writing = self._loop.run_in_executor(self._thread, _append, self._target, lines)
            self._writing.add_done_callback(self._written)

    def _take(self) -> None:
        from_ms, to_ms = self._from_ms, self._clock.now().utc_ms
        self._from_ms = to_ms
        self._unwritten += self._meter.take(from_ms, to_ms)
        if self._is_failing:
            self._unwritten = summed(self._unwritten)

    def _written(self, done: asyncio.Future[tuple[list[Metered], str]]) -> None:
        self._writing = None
        left, reason = done.result()
        self._unwritten = left + self._unwritten
        if left and not self._is_failing:
            log.error("what is metered cannot be written and is kept in memory: %s", reason)
        elif self._is_failing and not left:
            log.warning("what is metered is written again")
        self._is_failing = bool(left)


def _append(target: Appending, lines: list[Metered]) -> tuple[list[Metered], str]:
    """In the thread: what could not be written, and why."""
    hours: dict[int, list[Metered]] = {}
    for line in lines:
        hours.setdefault(line.from_ms // HOUR_MS, []).append(line)
    while hours:
        hour = min(hours)
        try:
            target.append(hours[hour])
        except OSError as error:
            return [line for left in hours.values() for line in left], str(error)
        del hours[hour]
    return [], ""
