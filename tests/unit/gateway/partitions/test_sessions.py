"""Accepting a session of a partitioned entity."""

import pytest

from tests.unit.gateway.partitions.partitioned_harness import Bus, key_in, new
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.session_locks import SessionLock
from twinbus.errors import (
    InvalidOperation,
    OperationTimeout,
    ServerBusy,
    SessionCannotBeLocked,
    Unavailable,
)
from twinbus.gateway.directory.directory import Entity
from twinbus.links.store_link import DOWN

SESSIONS = QueueDescription(requires_session=True)


def made(store_count: int = 4, lags: bool = False) -> tuple[Bus, Entity]:
    bus = Bus(store_count, lags)
    return bus, bus.create(description=SESSIONS)


def is_locked(bus: Bus, queue: Entity, session_id: str) -> bool:
    _, answers = bus.accept(queue, session_id)
    bus.settle()
    if isinstance(answers[0], SessionLock):
        _release(bus, queue, answers[0])
        return False
    assert isinstance(answers[0], SessionCannotBeLocked)
    return True


def _release(bus: Bus, queue: Entity, lock: SessionLock) -> None:
    for part in queue.parts:
        bus.sims[part.store].release_session(part.entity_id, lock)


def test_named_session_is_in_its_partition() -> None:
    bus, queue = made()
    for partition in range(16):
        bus.send(queue, new(b"x", session_id=key_in(partition)))
        _, answers = bus.accept(queue, key_in(partition))
        assert isinstance(answers[0], SessionLock)
        assert is_locked(bus, queue, key_in(partition))


def test_named_session_whose_partition_is_down() -> None:
    bus, queue = made()
    bus.sims[1].health = DOWN
    with pytest.raises(Unavailable, match="Partition 5"):
        bus.accept(queue, key_in(5))


@pytest.mark.parametrize("partition", [0, 7, 15])
def test_next_available_session_is_found_in_any_partition(partition: int) -> None:
    bus, queue = made()
    bus.send(queue, new(b"x", session_id=key_in(partition)))
    _, answers = bus.accept(queue)
    lock = answers[0]
    assert isinstance(lock, SessionLock)
    assert lock.session_id == key_in(partition)


def test_session_that_comes_later_is_given_to_who_waits() -> None:
    bus, queue = made()
    _, answers = bus.accept(queue)
    bus.settle()
    assert answers == []
    bus.send(queue, new(b"x", session_id=key_in(9)))
    assert [type(each) for each in answers] == [SessionLock]
    # Nobody waits any more: the next session is free for others.
    bus.send(queue, new(b"x", session_id=key_in(3)))
    assert len(answers) == 1
    assert not is_locked(bus, queue, key_in(3))


def test_locks_that_come_too_late_are_given_back() -> None:
    """Two partitions answer at the same time; one lock wins."""
    bus, queue = made(lags=True)
    _, answers = bus.accept(queue)
    for partition in (3, 8, 9):
        bus.send(queue, new(b"x", session_id=key_in(partition)))
    bus.settle()
    assert [type(each) for each in answers] == [SessionLock]
    assert isinstance(answers[0], SessionLock)
    free = [p for p in (3, 8, 9) if not is_locked(bus, queue, key_in(p))]
    assert len(free) == 2
    assert answers[0].session_id not in [key_in(p) for p in free]


def test_wait_that_is_cancelled_has_no_answer_and_keeps_no_lock() -> None:
    bus, queue = made(lags=True)
    waits, answers = bus.accept(queue)
    bus.settle()
    waits.cancel()
    bus.send(queue, new(b"x", session_id="a"))
    bus.pass_time(10_000)
    assert answers == []
    assert not is_locked(bus, queue, "a")


def test_wait_ends_once_when_all_partitions_have_given_up() -> None:
    bus, queue = made()
    _, answers = bus.accept(queue, timeout_ms=5_000)
    bus.pass_time(4_000)
    assert answers == []
    bus.pass_time(2_000)
    assert [type(each) for each in answers] == [OperationTimeout]


def test_partitions_that_are_down_are_not_asked() -> None:
    bus, queue = made()
    bus.sims[0].health = DOWN
    bus.send(queue, new(b"x", session_id=key_in(5)))
    _, answers = bus.accept(queue)
    assert isinstance(answers[0], SessionLock)
    _, answers = bus.accept(queue, timeout_ms=1_000)
    bus.pass_time(3_000)
    assert [type(each) for each in answers] == [OperationTimeout]
    for sim in bus.sims:
        sim.health = DOWN
    with pytest.raises(Unavailable):
        bus.accept(queue)


def test_partition_that_just_went_down_counts_as_given_up() -> None:
    bus, queue = made(store_count=2)
    bus.sims[1].refuses_waits = Unavailable("It went down when it was asked.")
    _, answers = bus.accept(queue, timeout_ms=1_000)
    bus.pass_time(3_000)
    assert [type(each) for each in answers] == [OperationTimeout]
    bus.sims[0].refuses_waits = Unavailable("It went down when it was asked.")
    _, answers = bus.accept(queue)
    assert [type(each) for each in answers] == [Unavailable]


def test_refusal_is_raised_and_ends_the_other_waits() -> None:
    bus, queue = made()
    plain = bus.create(name="plain")
    with pytest.raises(InvalidOperation):
        bus.accept(plain)
    bus.sims[3].refuses_waits = ServerBusy("too many")
    with pytest.raises(ServerBusy):
        bus.accept(queue)
    bus.send(queue, new(b"x", session_id=key_in(4)))
    assert not is_locked(bus, queue, key_in(4))
