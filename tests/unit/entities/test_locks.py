"""Ends of locks: order, settled groups, bounded turns."""

from twinbus.entities.locks import LockEnds
from twinbus.entities.message import NEVER_MS


def test_locks_end_in_order_of_time_not_of_locking() -> None:
    ends = LockEnds()
    ends.add(300, [1, 2])
    ends.add(100, [3])  # the lock duration was made shorter meanwhile
    assert ends.next_ms() == 100
    assert ends.take_due(99, 10) == []
    assert ends.take_due(100, 10) == [3]
    assert ends.next_ms() == 300


def test_a_group_is_dropped_when_its_last_lock_is_settled() -> None:
    ends = LockEnds()
    ends.add(100, [1, 2])
    ends.add(100, [3])
    ends.discard(100, 2)
    assert ends.next_ms() == 100
    ends.discard(100, 1)
    assert ends.next_ms() == NEVER_MS
    ends.discard(100, 1)  # of a group that is gone: nothing happens
    assert ends.take_due(100, 10) == []


def test_a_turn_is_bounded_and_leaves_the_callers_list_alone() -> None:
    ends = LockEnds()
    batch = list(range(1, 11))
    ends.add(100, batch)
    ends.add(101, [11])
    first = ends.take_due(200, 4)
    assert (len(first), ends.next_ms()) == (4, 100)
    assert sorted(first + ends.take_due(200, 100)) == list(range(1, 12))
    assert batch == list(range(1, 11))
    assert ends.next_ms() == NEVER_MS


def test_settled_locks_leave_nothing_behind() -> None:
    ends = LockEnds()
    ends.add(50, [1])  # one slow receiver must not keep the others' entries alive
    for until_ms in range(100, 10_000):
        ends.add(until_ms, [until_ms])
        ends.discard(until_ms, 1)
    assert len(ends._groups) == 1
    assert len(ends.ends) < 80
