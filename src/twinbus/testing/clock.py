"""SimClock: time that moves only when told to."""

from typing import Final

from twinbus.clock import Now

START_UTC_MS: Final = 1_790_000_000_000
START_MONO_MS: Final = 1_000_000


class SimClock:
    """Both clocks; UTC may also jump, which the monotonic one never does."""

    def __init__(self) -> None:
        self._utc_ms = START_UTC_MS
        self._mono_ms = START_MONO_MS

    def now(self) -> Now:
        return Now(self._utc_ms, self._mono_ms)

    def advance(self, duration_ms: int) -> None:
        """Time passes."""
        assert duration_ms >= 0
        self._utc_ms += duration_ms
        self._mono_ms += duration_ms

    def jump_utc(self, distance_ms: int) -> None:
        """Somebody sets the clock."""
        self._utc_ms += distance_ms
