"""Ranges of sequence numbers against a plain set of numbers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.broker.harness import BrokerHarness
from tests.unit.broker.test_bulk import asked, chosen
from tests.unit.broker.test_ranges import fill, numbers, settled, span
from twinbus.entities.facts import DEAD_LETTER as DEAD_LETTERS
from twinbus.entities.message import Overlay
from twinbus.entities.selections import Browse, ListNumbers

pytestmark = pytest.mark.proves("D-1", "D-2")

COUNT = 60

ranges = st.lists(st.integers(0, COUNT + 5), min_size=2, max_size=12, unique=True).map(
    lambda found: sorted(found)[: len(found) // 2 * 2]
)


def as_runs(found: set[int]) -> list[int]:
    """First, end, first, end, … of these numbers."""
    bounds: list[int] = []
    for number in sorted(found):
        if bounds and bounds[-1] == number:
            bounds[-1] += 1
        else:
            bounds += (number, number + 1)
    return bounds


def within(bounds: list[int]) -> set[int]:
    pairs = zip(bounds[::2], bounds[1::2], strict=True)
    return {number for first, end in pairs for number in range(first, end)}


@settings(max_examples=40, deadline=None)
@given(
    locked_count=st.integers(0, 20),
    steps=st.lists(st.tuples(ranges, st.booleans()), min_size=1, max_size=4),
    looked_at=st.tuples(st.integers(0, COUNT + 5), st.integers(0, COUNT + 5)),
)
def test_settling_is_taking_away_what_is_free(
    locked_count: int, steps: list[tuple[list[int], bool]], looked_at: tuple[int, int]
) -> None:
    bench = BrokerHarness()
    queue = bench.create_queue()
    fill(bench, queue, COUNT)
    bench.receiver(queue, locked_count)
    bench.run()
    locked = set(range(1, locked_count + 1))
    left, dead = set(range(1, COUNT + 1)), set[int]()
    for bounds, is_dead in steps:
        hit = (left - locked) & within(bounds)
        overlay = Overlay("no") if is_dead else None
        assert settled(bench, queue, *bounds, overlay=overlay).count == len(hit)
        left -= hit
        dead |= hit if is_dead else set()
    assert numbers(bench, queue) == as_runs(left)
    assert numbers(bench, queue, DEAD_LETTERS) == as_runs(dead)
    assert span(bench, queue) == (min(left, default=COUNT + 1), COUNT + 1, len(left))
    first, end = looked_at
    seen = {number for number in left if first <= number < end}
    selection = chosen(from_number=first)
    selection.to_sequence_number = end
    browsed = asked(bench, Browse, queue, selection, 1_000).delivered
    assert [each.message.sequence_number for each in browsed] == sorted(seen)
    assert asked(bench, ListNumbers, queue, selection).bounds == as_runs(seen)
