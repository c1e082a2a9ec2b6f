"""Planning: ranges between two offsets, divided over tasks."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.pipeline.source.offsets import Offset, PartitionStock, advance, first_of
from twinbus.pipeline.source.planning import SKIPPED_MAX, Span, Task, divided, tasks_between
from twinbus.pipeline.source.runs import Runs, merge

DEAD = "orders/$DeadLetterQueue"
DEAD_KEY = "orders/$deadletterqueue/0"
SPELLED = {"orders": "Orders", "orders/$deadletterqueue": DEAD}


def numbers_of(tasks: list[Task]) -> list[int]:
    found: list[int] = []
    for task in tasks:
        for span in task:
            runs = ((span.first, span.end),) if span.runs is None else span.runs
            assert span.first == runs[0][0]
            assert span.end == runs[-1][1]
            found += [number for first, end in runs for number in range(first, end)]
    return found


def test_one_task_for_each_partition_that_has_anything() -> None:
    start = Offset({"orders/0": 5, "orders/1": first_of(1) + 4}, {"orders": 7})
    end = Offset({"orders/0": 9, "orders/1": first_of(1) + 4, "orders/2": first_of(2) + 3})
    end = Offset(end.positions, {"orders": 7})
    assert tasks_between(start, end, SPELLED) == [
        [Span("Orders", 7, 5, 9)],
        [Span("Orders", 7, first_of(2), first_of(2) + 3)],
    ]


def test_nothing_new_is_no_task() -> None:
    end = Offset({"orders/0": 9, DEAD_KEY: ((1, 5),)})
    assert tasks_between(end, end, SPELLED) == []


def test_an_entity_begun_anew_is_read_from_its_beginning() -> None:
    start = Offset({"orders/0": 50}, {"orders": 7})
    end = Offset({"orders/0": 9}, {"orders": 8})
    assert tasks_between(start, end, SPELLED) == [[Span("Orders", 8, 0, 9)]]


def test_dead_letters_between_others_are_one_span() -> None:
    """One request rather than many, as long as little is fetched for nothing."""
    start = Offset({DEAD_KEY: ((4, 6),)})
    end = Offset({DEAD_KEY: ((2, 3), (4, 6), (8, 9))})
    assert tasks_between(start, end, SPELLED) == [[Span(DEAD, None, 2, 9, ((2, 3), (8, 9)))]]


def test_many_that_were_read_before_are_gone_around() -> None:
    read = (10, 11 + SKIPPED_MAX)
    start = Offset({DEAD_KEY: (read,)})
    end = Offset({DEAD_KEY: ((2, 3), read, (900, 901))})
    assert tasks_between(start, end, SPELLED) == [
        [Span(DEAD, None, 2, 3, ((2, 3),)), Span(DEAD, None, 900, 901, ((900, 901),))]
    ]


RUNS = st.lists(st.tuples(st.integers(0, 99), st.integers(1, 9)), max_size=6).map(
    lambda pairs: merge((first, first + size) for first, size in pairs)
)


@given(st.lists(st.integers(0, 30), max_size=6), RUNS, st.integers(0, 12), st.booleans())
def test_dividing_neither_loses_nor_repeats(
    sizes: list[int], runs: Runs, task_count: int, splits: bool
) -> None:
    end = Offset(
        {**{f"orders/{p}": first_of(p) + size for p, size in enumerate(sizes)}, DEAD_KEY: runs}
    )
    tasks = tasks_between(Offset(), end, SPELLED)
    parts = divided(tasks, task_count, splits)
    assert sorted(numbers_of(parts)) == sorted(numbers_of(tasks))
    assert all(part for part in parts)
    if task_count:
        assert len(parts) <= task_count
    else:
        assert parts == tasks


def test_one_queue_is_cut_into_ranges_for_a_batch_only() -> None:
    task = [Span("orders", 7, 1, 101)]
    assert divided([task], 3, splits=True) == [
        [Span("orders", 7, 1, 35)],
        [Span("orders", 7, 35, 69)],
        [Span("orders", 7, 69, 101)],
    ]
    assert divided([task], 3, splits=False) == [task]


def test_many_are_packed_evenly() -> None:
    tasks = [[Span(f"q{size}", 7, 0, size)] for size in (50, 40, 30, 20, 10)]
    packed = divided(tasks, 2, splits=False)
    assert [[span.path for span in task] for task in packed] == [
        ["q50", "q20", "q10"],
        ["q40", "q30"],
    ]


STEPS = st.lists(
    st.tuples(
        st.sets(st.integers(1, 40), max_size=8),  # come
        st.sets(st.integers(1, 40), max_size=8),  # are completed by somebody else
        st.integers(0, 5),  # the limit
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.proves("D-1")
@given(STEPS)
def test_every_dead_letter_is_read_once_whatever_comes_and_goes(
    steps: list[tuple[set[int], set[int], int]],
) -> None:
    """A number never comes again once it has gone."""
    there: set[int] = set()
    gone: set[int] = set()
    read: list[int] = []
    offset = Offset()
    for come, leave, limit in [*steps, (set[int](), set[int](), 0)]:
        there = (there | come) - leave - gone
        gone |= leave
        runs = merge((number, number + 1) for number in there)
        end = advance(offset, [PartitionStock(DEAD, 0, 7, 1, 99, len(there), runs)], limit)
        end = Offset.from_text(json.dumps(end.to_json()))  # as a checkpoint keeps it
        found = numbers_of(tasks_between(offset, end, SPELLED))
        assert set(found) <= there
        if limit:
            assert len(found) <= limit
        read += found
        offset = end
    assert len(read) == len(set(read))
    assert there <= set(read)
