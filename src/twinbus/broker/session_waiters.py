"""Who waits for the next available session of an entity: first come, first served.

A waiter is answered exactly once (with a lock, or with the error that ends the wait) or cancelled,
and never answered after that.  Ten thousand may wait: whoever is cancelled or timed out is skipped
later instead of being searched for now.

This module must never touch a queue: it is told which sessions are to be had.
"""

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from twinbus.entities.message import NEVER_MS
from twinbus.entities.session_locks import SessionLock
from twinbus.errors import OperationTimeout, ServiceError
from twinbus.links.store_link import Answer


class Waiter:
    """Somebody who asked for a session."""

    __slots__ = ("_on_cancel", "_then", "deadline_ms")

    def __init__(self, then: Answer, deadline_ms: int) -> None:
        self._then: Answer | None = then
        self._on_cancel: Callable[[Waiter], None] | None = None
        self.deadline_ms = deadline_ms  # monotonic

    def when_cancelled(self, call: "Callable[[Waiter], None]") -> None:
        """Who keeps the waiter wants to know when it gives up."""
        self._on_cancel = call

    @property
    def is_waiting(self) -> bool:
        return self._then is not None

    def answer(self, result: SessionLock | ServiceError) -> None:
        """End the wait with this."""
        then = self._then
        self._then = None
        if then is not None:
            then(result)

    def forget(self) -> None:
        """Nobody is to be answered any more."""
        self._then = None

    def cancel(self) -> None:
        """It does not want an answer any more."""
        if self._then is not None and self._on_cancel is not None:
            self._on_cancel(self)
        self._then = None


class SessionWaiters:
    """The waiters of one entity, in the order they came."""

    __slots__ = ("_count", "_deadlines", "_line", "_order")

    def __init__(self) -> None:
        self._line: deque[Waiter] = deque()
        self._deadlines: list[tuple[int, int, Waiter]] = []  # heap of (deadline, order, waiter)
        self._count = 0  # who still waits
        self._order = 0

    def __len__(self) -> int:
        return self._count

    def add(self, waiter: Waiter) -> None:
        self._order += 1
        self._count += 1
        self._line.append(waiter)
        heappush(self._deadlines, (waiter.deadline_ms, self._order, waiter))
        if len(self._deadlines) > 2 * self._count + 64:
            self._line = deque([each for each in self._line if each.is_waiting])
            self._deadlines = [each for each in self._deadlines if each[2].is_waiting]
            heapify(self._deadlines)

    def cancel(self, waiter: Waiter) -> None:
        if waiter.is_waiting:
            waiter.forget()
            self._count -= 1

    def answer_next(self, result: SessionLock | ServiceError) -> None:
        """Answer who has waited longest; somebody must be waiting."""
        waiter = self._line.popleft()
        while not waiter.is_waiting:
            waiter = self._line.popleft()
        self._count -= 1
        waiter.answer(result)

    def time_out(self, mono_ms: int) -> None:
        """Tell those whose time is over."""
        while self.next_deadline_ms() <= mono_ms:
            waiter = heappop(self._deadlines)[2]
            self._count -= 1
            waiter.answer(OperationTimeout("No session became available in time."))

    def next_deadline_ms(self) -> int:
        """When the next wait is over; NEVER_MS when nobody waits."""
        deadlines = self._deadlines
        while deadlines and not deadlines[0][2].is_waiting:
            heappop(deadlines)
        return deadlines[0][0] if deadlines else NEVER_MS
