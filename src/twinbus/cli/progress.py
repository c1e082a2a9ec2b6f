"""How far something has come, for people: a live line on a terminal, now and then a line elsewhere.

Knows nothing of what it shows.  It is told the time, and writes to the stream it is given; standard
output stays free for results.
"""

from collections import deque
from typing import Final, TextIO

RATE_WINDOW_MS: Final = 10_000  # the rate is that of the last so many milliseconds
LIVE_INTERVAL_MS: Final = 200
PLAIN_INTERVAL_MS: Final = 5_000
_BAR_WIDTH: Final = 24


class Progress:
    """One line that is written over while it changes, where the stream is a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_live = stream.isatty()
        self._interval_ms = LIVE_INTERVAL_MS if self._is_live else PLAIN_INTERVAL_MS
        self._next_ms = 0
        self._width = 0  # of the live line that stands there

    def is_due(self, now_ms: int) -> bool:
        return now_ms >= self._next_ms

    def show(self, text: str, now_ms: int) -> None:
        """Show how it stands."""
        self._next_ms = now_ms + self._interval_ms
        if self._is_live:
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def say(self, text: str) -> None:
        """A line that stays."""
        self.finish()
        self._stream.write(text + "\n")
        self._stream.flush()

    def finish(self) -> None:
        """Leave the live line as it is; what is written next begins a new one."""
        if self._width:
            self._stream.write("\n")
            self._stream.flush()
            self._width = 0


class Rate:
    """How much a second, of a count that only grows."""

    def __init__(self) -> None:
        self._readings: deque[tuple[int, int]] = deque()  # when, and the count then

    def read(self, count: int, now_ms: int) -> float:
        """Take a reading; the rate over the last seconds."""
        readings = self._readings
        readings.append((now_ms, count))
        # One reading from before the window stays: it is where the window begins.
        while len(readings) > 2 and readings[1][0] <= now_ms - RATE_WINDOW_MS:
            readings.popleft()
        began_ms, began_count = readings[0]
        return (count - began_count) * 1_000 / (now_ms - began_ms) if now_ms > began_ms else 0.0


def bar(done: int, total: int) -> str:
    """`[######......]  50 %`"""
    share = done / total if total else 1.0
    filled = int(share * _BAR_WIDTH)
    return f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {int(share * 100):3} %"


def span(seconds: float) -> str:
    """`45s`, `3m 20s`, `5h 12m`, `4d 3h`"""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3_600:
        return f"{whole // 60}m {whole % 60}s"
    if whole < 86_400:
        return f"{whole // 3_600}h {whole % 3_600 // 60}m"
    return f"{whole // 86_400}d {whole % 86_400 // 3_600}h"
