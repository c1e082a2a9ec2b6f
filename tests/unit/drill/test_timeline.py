"""Readings become rates, depths and spans."""

import pytest

from tests.unit.drill.stories import timeline
from twinbus.drill.timeline import Sample, Span, Timeline, sparkline


def test_rates_are_of_a_second() -> None:
    times, sent, arrived = timeline().rates()
    assert times == [float(second) for second in range(11)]
    assert sent == pytest.approx([100.0] * 11)
    assert arrived == pytest.approx([90.0] * 11)


def test_the_rate_now_is_of_the_last_seconds() -> None:
    made = timeline()
    assert made.rate_now("sent") == pytest.approx(100.0)
    last = made.samples[-1]
    for more in (1.0, 2.0):
        made.add(Sample(last.time_s + more, last.sent, last.arrived, 0, {}))
    assert made.rate_now("sent") == 0.0


def test_nothing_is_known_before_there_are_two() -> None:
    made = Timeline()
    assert made.rate_now("sent") == 0.0
    made.add(Sample(0.0, 5, 5, None, {}))
    assert made.rate_now("sent") == 0.0
    assert made.rates() == ([0.0], [0.0], [0.0])
    assert made.depths() == ([], [])


def test_a_depth_that_nobody_told_is_left_out() -> None:
    made = timeline()
    made.add(Sample(11.0, 1_000, 900, None, {}))
    times, depths = made.depths()
    assert times[-1] == 10.0
    assert (max(depths), depths[-1]) == (30.0, 0.0)


def test_spans_of_one_state_after_the_other() -> None:
    expected = [
        Span(0.0, 3.0, "healthy"), Span(3.0, 6.0, "failed over"), Span(6.0, 10.0, "healthy"),
    ]  # fmt: skip
    assert timeline().spans()["orders"] == expected


@pytest.mark.parametrize(
    ("values", "shown"),
    [([], ""), ([5], "█"), ([0, 0], "▁▁"), ([0, 7], "▁█"), ([0, 0, 6, 8], "▁█"), ([9, 1, 1], "█▂")],
)
def test_sparkline(values: list[float], shown: str) -> None:
    assert sparkline(values, 2) == shown
