"""Time, injected.  The only module that reads a clock.

UTC is for what people see (enqueued time, expiry, schedules); it may jump.  The monotonic clock is
for locks, which must neither shrink nor grow when UTC jumps.  Both are whole milliseconds.
"""

import time
from typing import Final, Protocol

NS_PER_MS: Final = 1_000_000


class Now:
    """One reading of both clocks, taken once per loop turn and handed to everything pure."""

    __slots__ = ("mono_ms", "utc_ms")

    def __init__(self, utc_ms: int, mono_ms: int) -> None:
        self.utc_ms = utc_ms
        self.mono_ms = mono_ms

    def __repr__(self) -> str:
        return f"Now(utc_ms={self.utc_ms}, mono_ms={self.mono_ms})"


class Clock(Protocol):
    """What reads time: the system's, or a simulated one."""

    def now(self) -> Now: ...


class SystemClock:
    """The machine's own clocks.

    Both change their millisecond at the same moment.  Otherwise a lock, which ends by the
    monotonic clock, could end a millisecond before the UTC time that its holder was told.
    """

    def __init__(self) -> None:
        self._shift_ns = (time.time_ns() - time.monotonic_ns()) % NS_PER_MS

    def now(self) -> Now:
        utc_ms = time.time_ns() // NS_PER_MS
        return Now(utc_ms, (time.monotonic_ns() + self._shift_ns) // NS_PER_MS)


def monotonic_s() -> float:
    """Seconds of the monotonic clock, for threads that wait."""
    return time.monotonic()
