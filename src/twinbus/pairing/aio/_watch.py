"""Notices when a call hangs, and ends it: asyncio.timeout() for calls that follow each other.

One call at a time is watched.  Nearly all end long before their time, and to make and drop a timer
for each would cost more than all else that a pair does in a send.  So the timer is left alone
between calls, and finds out when it fires whether it is the time of the call that is under way.
"""

import asyncio
import math


class Watch:
    """Over one call at a time, by one task at a time."""

    __slots__ = ("_asked_before", "_due", "_end", "_is_late", "_task", "_timer")

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None  # whose call is under way
        self._asked_before = 0  # how often others had asked it to end when the call began
        self._end = 0.0
        self._is_late = False
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf  # when it fires

    def begin(self, seconds: float) -> None:
        """The current task begins a call: after so many seconds it is cancelled."""
        task = asyncio.current_task()
        assert task is not None
        assert self._task is None, "one call at a time"
        loop = asyncio.get_running_loop()
        self._task = task
        self._asked_before = task.cancelling()
        self._end = end = loop.time() + seconds
        self._is_late = False
        if end < self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._set(loop, end)

    def end(self) -> bool:
        """The call is over.  True: it was cancelled for being late, and for nothing else."""
        task, self._task = self._task, None
        if not self._is_late or task is None:
            return False
        self._is_late = False
        return task.uncancel() <= self._asked_before

    def close(self) -> None:
        """No more calls will come; one that is under way is watched to its end."""
        if self._timer is not None and self._task is None:
            self._timer.cancel()
            self._timer, self._due = None, math.inf

    def _set(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._timer, self._due = loop.call_at(due, self._look), due

    def _look(self) -> None:
        self._timer, self._due = None, math.inf
        if self._task is None:
            return  # the next call sets it again
        loop = asyncio.get_running_loop()
        if self._end > loop.time():
            self._set(loop, self._end)
        else:
            self._is_late = True
            self._task.cancel()
