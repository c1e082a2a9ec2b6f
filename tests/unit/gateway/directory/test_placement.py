"""Which store an entity goes to, and which broker runs a store."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.entities.partitions import PARTITION_COUNT
from twinbus.errors import Unavailable
from twinbus.gateway.directory.placement import (
    home_of,
    least_loaded,
    store_of_plain,
    stores_of_partitions,
)
from twinbus.links.store_link import DOWN, SLOW, UP


@pytest.mark.proves("E-1")
@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 15, 16, 17, 40])
@given(path=st.text(min_size=1))
def test_partitions_are_spread_evenly(count: int, path: str) -> None:
    """More partitions than stores share them evenly."""
    stores = stores_of_partitions(path, [UP] * count)
    assert len(stores) == PARTITION_COUNT
    loads = Counter(stores)
    assert set(loads) <= set(range(count))
    assert max(loads.values()) - min(loads[store] for store in range(count)) <= 1


def test_not_every_first_partition_is_in_the_same_store() -> None:
    firsts = Counter(stores_of_partitions(f"orders-{n}", [UP] * 4)[0] for n in range(400))
    assert set(firsts) == {0, 1, 2, 3}
    assert min(firsts.values()) > 50


def test_a_name_is_the_same_in_capitals() -> None:
    assert stores_of_partitions("Orders", [UP] * 5) == stores_of_partitions("oRDERS", [UP] * 5)


@pytest.mark.proves("E-12")
def test_a_slow_store_is_good_enough_and_a_missing_one_is_not() -> None:
    """No half-made entity."""
    assert set(stores_of_partitions("orders", [UP, SLOW])) == {0, 1}
    with pytest.raises(Unavailable, match="store 1, which is down"):
        stores_of_partitions("orders", [UP, DOWN, UP])


def test_a_store_without_a_partition_of_it_may_be_down() -> None:
    healths = [UP] * 17
    used = set(stores_of_partitions("orders", healths))
    (spare,) = set(range(17)) - used
    healths[spare] = DOWN
    assert set(stores_of_partitions("orders", healths)) == used


@pytest.mark.parametrize(
    ("counts", "healths", "expected"),
    [
        ([0, 0, 0], [UP, UP, UP], 0),
        ([1, 0, 0], [UP, UP, UP], 1),
        ([1, 1, 0], [UP, UP, UP], 2),
        ([2, 1, 1], [UP, DOWN, UP], 2),
        ([5, 1, 1], [UP, DOWN, DOWN], 0),
        ([1, 0], [UP, SLOW], 1),
    ],
)
def test_plain_entities_go_where_there_are_fewest(
    counts: list[int], healths: list[int], expected: int
) -> None:
    assert store_of_plain(counts, healths) == expected


def test_a_plain_entity_needs_a_store() -> None:
    with pytest.raises(Unavailable):
        store_of_plain([0, 0], [DOWN, DOWN])


def test_homes_are_even() -> None:
    assert [home_of(store, 3) for store in range(7)] == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize(
    ("live", "owners", "expected"),
    [
        ([], [0, 0], -1),
        ([0, 1], [], 0),
        ([0, 1], [0, -1], 1),
        ([1, 2], [0, 1, 1, 2, -1], 2),
        ([2, 1], [0, 0, 0], 1),
    ],
)
def test_who_has_least_takes_over(live: list[int], owners: list[int], expected: int) -> None:
    assert least_loaded(live, owners) == expected
