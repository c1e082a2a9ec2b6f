"""When the syphon goes through the backlog again."""

import pytest

from twinbus.pipeline.syphon.rounds import LOOK_MS_MAX, BacklogStock, Rounds, next_offset

pytestmark = pytest.mark.proves("D-2")


def stock(count: int, following: int, queue: str = "b/0", is_up: bool = True) -> BacklogStock:
    return BacklogStock(queue, 0, is_up, following, count)


def test_rounds_follow_each_other_while_something_moves() -> None:
    rounds = Rounds()
    assert rounds.should_go([stock(100, 101)], 0)
    assert rounds.should_go([stock(40, 101)], 10)
    assert not rounds.should_go([stock(0, 101)], 20)
    assert rounds.is_empty


def test_something_new_begins_a_round_at_once() -> None:
    rounds = Rounds()
    assert not rounds.should_go([stock(0, 1)], 0)
    assert rounds.should_go([stock(1, 2)], 10)
    assert rounds.should_go([stock(2, 3)], 20)  # the first is held, the second is new


def test_what_is_held_waits_longer_and_longer() -> None:
    rounds = Rounds()
    assert rounds.should_go([stock(5, 6)], 0)
    begun = [now for now in range(100, 20_000, 100) if rounds.should_go([stock(5, 6)], now)]
    assert begun == [1_100, 3_200, 7_300, 15_400]
    assert rounds.is_hopeless(20_000, patience_ms=15_000)
    assert rounds.should_go([stock(4, 6)], 20_000)  # one has got through
    assert not rounds.is_hopeless(20_000, patience_ms=15_000)
    assert not rounds.should_go([stock(4, 6)], 20_100)
    assert rounds.should_go([stock(4, 6)], 21_100)


@pytest.mark.proves("C-2")
def test_an_idle_pair_is_looked_at_less_and_less_often() -> None:
    """Every look at a queue is an operation."""
    rounds = Rounds()
    looks = 0
    for now_ms in range(0, 3_600_000, 1_000):
        if rounds.should_look(now_ms):
            looks += 1
            assert not rounds.should_go([stock(0, 1)], now_ms)
    assert looks <= 3_600_000 // LOOK_MS_MAX + 5


def test_a_partition_that_is_down_is_waited_for() -> None:
    rounds = Rounds()
    stocks = [stock(0, 1), stock(0, 0, "b/1", is_up=False)]
    assert not rounds.should_go(stocks, 0)
    assert not rounds.is_empty
    assert rounds.should_go([stock(0, 1), stock(3, 4, "b/1")], 1_000)


def test_offsets_count_rounds_and_never_go_back() -> None:
    first = next_offset({"round": 0}, [stock(5, 6), stock(1, 9, "a/1"), stock(0, 0, "c", False)])
    assert list(first.items()) == [("a/1/0", 9), ("b/0/0", 6), ("round", 1)]
    again = next_offset(first, [stock(5, 3)])
    assert again == {"a/1/0": 9, "b/0/0": 6, "round": 2}
