"""Runs of sequence numbers behave as sets of numbers do."""

from hypothesis import given
from hypothesis import strategies as st

from twinbus.pipeline.source.runs import Runs, contains, count, intersect, lowest, merge, subtract

NUMBERS = st.sets(st.integers(0, 60), max_size=40)


def runs_of(numbers: set[int]) -> Runs:
    return merge((number, number + 1) for number in numbers)


def numbers_in(runs: Runs) -> list[int]:
    return [number for first, end in runs for number in range(first, end)]


@given(NUMBERS, NUMBERS)
def test_as_sets(left: set[int], right: set[int]) -> None:
    a, b = runs_of(left), runs_of(right)
    assert numbers_in(a) == sorted(left)
    assert numbers_in(intersect(a, b)) == sorted(left & right)
    assert numbers_in(subtract(a, b)) == sorted(left - right)
    assert numbers_in(merge((*a, *b))) == sorted(left | right)
    assert count(a) == len(left)


@given(NUMBERS, st.integers(-1, 50), st.integers(-1, 61))
def test_lowest_and_contains(numbers: set[int], limit: int, number: int) -> None:
    runs = runs_of(numbers)
    assert numbers_in(lowest(runs, limit)) == sorted(numbers)[: max(0, limit)]
    assert contains(runs, number) == (number in numbers)


def test_neighbours_become_one_run() -> None:
    assert merge([(5, 7), (1, 3), (3, 5), (9, 9)]) == ((1, 7),)
