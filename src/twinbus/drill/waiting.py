"""Waiting that can be interrupted: Ctrl-C, SIGTERM or a closed terminal end a drill between steps.

An exception from a signal handler could come after a process was started and before that is
recorded; then nothing would end that process.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from twinbus.clock import monotonic_s

LOOK_S: Final = 0.1


class Waiting:
    """Passed to everything that waits; raises KeyboardInterrupt when the drill should end."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    def interrupt(self) -> None:
        self._asked.set()

    def pause(self, seconds: float) -> None:
        if self._asked.wait(max(0.0, seconds)):
            raise KeyboardInterrupt

    def until(
        self, condition: Callable[[], bool], seconds_max: float, look_s: float = LOOK_S
    ) -> bool:
        """Wait for something that comes by itself; whether it has."""
        end_s = monotonic_s() + seconds_max
        while not condition():
            if monotonic_s() > end_s:
                return False
            self.pause(look_s)
        return True


class Standstill:
    """Tells when a count that has become smaller no longer does; or never does."""

    def __init__(self, still_s: float, still_s_max: float) -> None:
        self._still_s = still_s
        self._still_s_max = still_s_max
        self._first: int | None = None
        self._last = 0
        self._since_s = 0.0

    def look(self, count: int, now_s: float) -> bool:
        if self._first is None or count != self._last:
            self._last, self._since_s = count, now_s
        self._first = count if self._first is None else self._first
        is_less = count < self._first
        return now_s - self._since_s >= (self._still_s if is_less else self._still_s_max)


@contextmanager
def interruptible() -> Iterator[Waiting]:
    """While this lasts, signals ask for the end; the second one gets it at once."""
    waiting = Waiting()
    is_asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal is_asked
        del number, frame
        if is_asked:
            raise KeyboardInterrupt
        is_asked = True
        waiting.interrupt()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield waiting
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
