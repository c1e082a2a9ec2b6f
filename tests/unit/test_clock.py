"""The system's clocks, read together."""

from twinbus.clock import SystemClock


def test_both_clocks_change_their_millisecond_at_the_same_moment() -> None:
    """A lock lasts as long by the monotonic clock as by the UTC time its holder was told.

    Between the two readings of one `now` a millisecond may begin, so a difference of one is seen at
    times; two clocks out of step would show it in a good part of all readings.
    """
    clock = SystemClock()
    first = clock.now()
    offset = first.utc_ms - first.mono_ms
    apart = 0
    for _ in range(20_000):
        now = clock.now()
        apart += now.utc_ms - now.mono_ms != offset
    assert apart < 1_000 or apart > 19_000  # the first reading itself may be the odd one
