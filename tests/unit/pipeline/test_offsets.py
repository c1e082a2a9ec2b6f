"""Offsets: the JSON that a checkpoint keeps, and where the next batch ends."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.errors import ConfigError
from twinbus.pipeline.source.offsets import (
    DataLoss,
    Offset,
    PartitionStock,
    advance,
    capped,
    check_names,
    checked,
    first_of,
    lifted,
    limited,
    shares,
    unread,
)
from twinbus.pipeline.source.runs import Runs, count

pytestmark = pytest.mark.proves("D-1")

DEAD = "orders/$DeadLetterQueue"
DEAD_KEY = "orders/$deadletterqueue/0"


def queue(first: int, end: int, partition: int = 0, created_ms: int | None = 7) -> PartitionStock:
    return PartitionStock("orders", partition, created_ms, first, end, max(0, end - first))


def dead(*runs: tuple[int, int]) -> PartitionStock:
    return PartitionStock(DEAD, 0, 7, 1, 100, count(tuple(runs)), tuple(runs))


def read(**positions: int) -> Offset:
    return Offset({f"{name}/0": number for name, number in positions.items()})


# --- JSON ---------------------------------------------------------------------------------------


def test_json_is_sorted_and_comes_back() -> None:
    offset = Offset(
        {"b/0": 5, "a/$deadletterqueue/0": ((1, 3), (5, 6)), "a/15": first_of(15) + 1},
        {"b": 2, "a": 1},
        {"b/0": 4, "a/0": ((1, 2),)},
    )
    text = json.dumps(offset.to_json())
    assert text == (
        '{"a/$deadletterqueue/0": [[1, 3], [5, 6]], "a/15": 4222124650659841, "b/0": 5, '
        '"created": {"a": 1, "b": 2}, "from": {"a/0": [[1, 2]], "b/0": 4}}'
    )
    assert Offset.from_text(text) == offset
    assert json.dumps(Offset.from_text(text).to_json()) == text


def test_entities_may_be_called_as_our_own_keys() -> None:
    offset = Offset({"created/0": 5, "from/0": 6})
    assert Offset.from_json(offset.to_json()) == offset


def test_paths_in_any_case_are_one_entity() -> None:
    assert Offset.from_text('{"Orders/0": 5}').number("orders/0") == 5


def test_a_sub_queue_takes_a_number_and_a_queue_no_runs() -> None:
    offset = Offset.from_text(f'{{"{DEAD}/0": 5, "orders/0": [[1, 2]]}}')
    assert offset.runs(DEAD_KEY) == ((0, 5),)
    with pytest.raises(ConfigError, match="must be one number"):
        offset.number("orders/0")


# --- limits -------------------------------------------------------------------------------------


@given(st.integers(0, 1000), st.dictionaries(st.text(max_size=3), st.integers(0, 500), max_size=20))
def test_shares(limit: int, wanted: dict[str, int]) -> None:
    share = shares(limit, wanted)
    assert share.keys() == wanted.keys()
    for key, want in wanted.items():
        assert share[key] <= want
        assert (share[key] == 0) == (want == 0)  # nobody waits for ever
    if limit:
        busy = sum(1 for want in wanted.values() if want)
        assert sum(share.values()) <= max(limit, 0) + busy
    else:
        assert share == wanted


def test_a_limit_is_divided_in_proportion() -> None:
    assert shares(30, {"a": 100, "b": 200, "c": 0}) == {"a": 10, "b": 20, "c": 0}


# --- the next batch -----------------------------------------------------------------------------


def test_a_queue_is_read_to_its_end_and_then_no_further() -> None:
    end = advance(Offset(), [queue(1, 11)])
    assert end.to_json() == {"created": {"orders": 7}, "orders/0": 11}
    assert advance(end, [queue(1, 11)]) == end


def test_a_limit_counts_from_the_first_number_that_is_there() -> None:
    end = advance(Offset(), [queue(1001, 2001)], 10)
    assert end.number("orders/0") == 1011


def test_few_messages_with_large_gaps_are_one_batch() -> None:
    """One old message that nobody completes must not make a thousand empty batches."""
    sparse = PartitionStock("orders", 0, 7, first=1, next=10_000_000, count=3)
    assert advance(Offset(), [sparse], 10).number("orders/0") == 10_000_000
    assert advance(Offset(), [sparse], 2).number("orders/0") == 3


def test_partitions_have_numbers_of_their_own() -> None:
    third = first_of(3)
    end = advance(Offset(), [queue(1, 1), queue(third + 1, third + 5, 3)])
    assert end.positions == {"orders/0": 1, "orders/3": third + 5}


def test_a_partition_that_is_down_keeps_its_place() -> None:
    start = Offset({"orders/0": 5, "orders/1": first_of(1) + 3}, {"orders": 7})
    end = advance(start, [queue(1, 9)])
    assert end.positions == {"orders/0": 9, "orders/1": first_of(1) + 3}


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(0, 50)), max_size=12),
    st.integers(0, 20),
)
def test_an_offset_never_goes_back(steps: list[tuple[int, int, int]], limit: int) -> None:
    offset = Offset()
    tops = {partition: first_of(partition) + 1 for partition in range(4)}
    for partition, grown, gone in steps:
        tops[partition] += grown
        first = min(first_of(partition) + 1 + gone, tops[partition])
        stock = queue(first, tops[partition], partition)
        end = advance(offset, [stock], limit)
        assert end.number(stock.key) >= offset.number(stock.key)
        assert end.number(stock.key) <= tops[partition]
        offset = end


@pytest.mark.proves("D-1")
def test_dead_letters_with_lower_numbers_come_later() -> None:
    """What is read of a sub-queue is a set, as dead letters keep their numbers."""
    one = advance(Offset(), [dead((5, 7), (9, 10))])
    assert one.runs(DEAD_KEY) == ((5, 7), (9, 10))
    two = advance(one, [dead((2, 3), (5, 7), (9, 10))])
    assert two.runs(DEAD_KEY) == ((2, 3), (5, 7), (9, 10))


def test_what_has_gone_is_forgotten_with_the_next_that_comes() -> None:
    start = advance(Offset(), [dead((5, 7), (9, 10))])
    assert advance(start, [dead((9, 10))]) == start  # no batch for nothing
    assert advance(start, [dead((9, 12))]).runs(DEAD_KEY) == ((9, 12),)


def test_a_limit_takes_the_lowest_dead_letters_first() -> None:
    one = advance(Offset(), [dead((1, 3), (10, 20))], 4)
    assert one.runs(DEAD_KEY) == ((1, 3), (10, 12))
    assert unread(one, dead((1, 3), (10, 20))) == 8


# --- what may not be ----------------------------------------------------------------------------


def test_an_entity_made_again_is_an_error_or_begun_anew() -> None:
    start = Offset({"orders/0": 50, "other/0": 3}, {"orders": 7, "other": 1}, {"orders/0": 2})
    again = [queue(1, 100, created_ms=8)]
    with pytest.raises(DataLoss, match="'orders' has been deleted and made again"):
        checked(start, again, fails=True)
    anew = checked(start, again, fails=False)
    assert anew == Offset({"other/0": 3}, {"other": 1}, {})
    assert advance(anew, again).created == {"orders": 8, "other": 1}


def test_a_start_beyond_the_end_is_an_error_or_begun_anew() -> None:
    with pytest.raises(DataLoss, match="ends at number 11"):
        checked(read(orders=12), [queue(1, 11)], fails=True)
    assert checked(read(orders=12), [queue(1, 11)], fails=False) == Offset()
    assert checked(read(orders=11), [queue(1, 11)], fails=True) == read(orders=11)


def test_a_bus_that_tells_no_time_of_creation_may_seem_to_go_back() -> None:
    """Azure tells neither, nor the end of a queue that is empty."""
    start = read(orders=12)
    empty = queue(0, 0, created_ms=None)
    assert checked(start, [empty], fails=True) == start
    assert advance(start, [empty]) == start


def test_names_that_are_not_read() -> None:
    check_names(read(orders=1), ["Orders"], "startingOffsets")
    with pytest.raises(ConfigError, match="startingOffsets names 'order/0'"):
        check_names(read(order=1), ["orders"], "startingOffsets")


# --- bounds -------------------------------------------------------------------------------------


def test_limited_by_what_the_user_set() -> None:
    end = advance(Offset(), [queue(1, 11), dead((1, 5))])
    assert limited(end, None) == end
    bound = Offset({"orders/0": 5, DEAD_KEY: 3})
    assert limited(end, bound).positions == {"orders/0": 5, DEAD_KEY: ((1, 3),)}
    assert limited(end, Offset({"orders/0": 99})).number("orders/0") == 11


def test_lifted_to_what_is_there() -> None:
    assert lifted(Offset(), [queue(40, 50), dead((1, 2))]).positions == {"orders/0": 40}


def test_capped_by_what_was_there() -> None:
    """AvailableNow: what comes later is not read, what has gone is not either."""
    target = {stock.key: stock for stock in [queue(1, 11), dead((1, 5))]}
    later = [queue(12, 21), dead((3, 9)), queue(first_of(1) + 1, first_of(1) + 2, 1)]
    assert [(stock.first, stock.next, stock.runs) for stock in capped(later, target)] == [
        (11, 11, None),
        (1, 100, ((3, 5),)),
    ]


@pytest.mark.parametrize(
    "offset, key, own",
    [
        (Offset({"orders/0": 9}), "orders/0", ((0, 9),)),
        (Offset({"orders/0": 9}, {}, {"orders/0": 4}), "orders/0", ((4, 9),)),
        (Offset({"orders/0": 4}, {}, {"orders/0": 4}), "orders/0", ()),
        (Offset(), "orders/0", ()),
        (Offset({"orders/1": first_of(1) + 2}), "orders/1", ((first_of(1), first_of(1) + 2),)),
        (Offset({DEAD_KEY: ((1, 9),)}, {}, {DEAD_KEY: ((3, 5),)}), DEAD_KEY, ((1, 3), (5, 9))),
        (Offset({DEAD_KEY: ((1, 9),)}, {}, {DEAD_KEY: 5}), DEAD_KEY, ((5, 9),)),
    ],
)
def test_only_what_the_query_has_read_is_its_own(offset: Offset, key: str, own: Runs) -> None:
    """What `startingOffsets` has left out is never deleted."""
    assert offset.own(key) == own
