"""Calls that a fault delays: each at its time, and all in order."""

import asyncio
from collections import deque
from collections.abc import Callable

Call = Callable[[], object]


class DelayedCalls:
    """What is to happen later, in the order in which it came."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = changed
        self._calls: deque[tuple[float, Call, int]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.size_bytes = 0

    def put(self, call: Call, size_bytes: int, delay_ms: int) -> None:
        """At once if nothing is late, and never before what came first."""
        if not self._calls and not delay_ms:
            call()
            return
        due_s = self._loop.time() + delay_ms / 1_000
        if self._calls:
            due_s = max(due_s, self._calls[-1][0])
        self._calls.append((due_s, call, size_bytes))
        self.size_bytes += size_bytes
        self._arm()
        self._changed()

    def flush(self) -> None:
        """All of it, now."""
        self._run(float("inf"))

    def end(self, flushes: bool) -> None:
        """Nothing is late any more: all of it happens now, or never."""
        if not flushes:
            self._calls.clear()
            self.size_bytes = 0
        self._run(float("inf"))
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._calls:
            self._timer = self._loop.call_at(self._calls[0][0], self._due)

    def _due(self) -> None:
        self._run(self._loop.time())

    def _run(self, now_s: float) -> None:
        if not self._calls:
            return
        while self._calls and self._calls[0][0] <= now_s:
            _, call, size_bytes = self._calls.popleft()
            self.size_bytes -= size_bytes
            call()
        self._arm()
        self._changed()
