"""Receiving from all partitions as if the entity were one."""

import pytest

from tests.unit.broker.harness import SimSink
from tests.unit.gateway.partitions.partitioned_harness import Bus, SimLink, key_in, new
from twinbus.entities.commands import COMPLETE, DEAD_LETTER, RELEASE, DeleteEntities, Peek, Settle
from twinbus.entities.descriptions import RECEIVE_DISABLED, QueueDescription
from twinbus.entities.facts import DEAD_LETTER as DEAD_LETTER_QUEUE
from twinbus.entities.facts import MAIN
from twinbus.entities.partitions import partition_of
from twinbus.errors import (
    EntityDisabled,
    EntityNotFound,
    InvalidOperation,
    ServerBusy,
    ServiceError,
    Unavailable,
)
from twinbus.gateway.directory.directory import Entity
from twinbus.gateway.partitions.receiver import IDLE_MS
from twinbus.links.store_link import DOWN, UP

pytestmark = pytest.mark.proves("E-8")

SLOW_OR_NOT = pytest.mark.parametrize("lags", [False, True])


def fill(bus: Bus, count: int = 40, size: int = 0) -> Entity:
    queue = bus.create()
    for i in range(count):
        bus.send(queue, new(b"%d" % i + b"." * size))
    return queue


def fill_partition(bus: Bus, queue: Entity, partition: int, count: int) -> None:
    for i in range(count):
        bus.send(queue, new(b"%d" % i, key_in(partition)))


def partitions(sink: SimSink) -> list[int]:
    return [partition_of(message.sequence_number) for message in sink.messages]


def in_order(sink: SimSink) -> bool:
    """Is every partition's order kept?"""
    last: dict[int, int] = {}
    for message in sink.messages:
        number = message.sequence_number
        if number <= last.get(partition_of(number), -1):
            return False
        last[partition_of(number)] = number
    return True


def locked_count(bus: Bus, queue: Entity) -> int:
    """Messages that nobody else could receive now."""
    receiver, other = bus.receiver(queue, 1_000)
    bus.settle()
    receiver.close()
    bus.ask(queue, Settle(0, MAIN, other.locks, RELEASE))
    return sum(bus.counts(queue)) - len(other.messages)


# --- credit -----------------------------------------------------------------------------------


@SLOW_OR_NOT
@pytest.mark.parametrize("credit", [1, 7, 16, 33, 39])
def test_client_gets_exactly_what_it_asked_for(lags: bool, credit: int) -> None:
    bus = Bus(lags=lags)
    queue = fill(bus)
    receiver, sink = bus.receiver(queue)
    got = 0
    while got < 40:
        receiver.set_credit(credit, drain=False)
        bus.settle()
        got = min(40, got + credit)
        assert len(sink.messages) == got
    assert len(set(sink.bodies)) == 40
    assert in_order(sink)


@SLOW_OR_NOT
def test_one_partition_that_has_everything_delivers_everything(lags: bool) -> None:
    bus = Bus(lags=lags)
    queue = bus.create()
    fill_partition(bus, queue, 5, 300)
    _, sink = bus.receiver(queue, 250)
    bus.settle()
    assert len(sink.messages) == 250
    assert in_order(sink)


def test_messages_that_come_later_are_delivered_from_wherever() -> None:
    bus = Bus(lags=True)
    queue = bus.create()
    _, sink = bus.receiver(queue, 32)
    bus.settle()
    for i in range(32):
        bus.send(queue, new(b"%d" % i, key_in(i % 16)))
    assert len(sink.messages) == 32


@pytest.mark.proves("E-8")
def test_what_came_beyond_the_credit_is_kept_for_the_next_receives() -> None:
    """It comes from the cache, without the stores being asked."""
    bus = Bus(lags=True)
    queue = fill(bus, 16)
    receiver, sink = bus.receiver(queue, 1)
    bus.settle()
    assert len(sink.messages) == 1
    for count in range(2, 17):
        receiver.set_credit(1, drain=False)  # served before anything could have moved
        assert len(sink.messages) == count
    assert sorted(partitions(sink)) == list(range(16))
    locks = sink.locks
    assert bus.ask(queue, Settle(0, MAIN, locks, COMPLETE)).result is None
    assert sum(bus.counts(queue)) == 0


def test_order_within_a_partition_is_kept_through_the_cache() -> None:
    bus = Bus(lags=True)
    queue = bus.create()
    for i in range(20):
        bus.send(queue, new(b"%d" % i, key_in(1)), new(b"and %d" % i, key_in(1)))
        bus.send(queue, new(b"%d" % i, key_in(2)))
    receiver, sink = bus.receiver(queue)
    for credit in (1, 3, 2, 1, 30, 1, 10, 12):
        receiver.set_credit(credit, drain=False)
        bus.settle()
    assert len(sink.messages) == 60
    assert in_order(sink)


def test_partitions_take_turns() -> None:
    bus = Bus()
    queue = bus.create()
    for partition in (3, 9):
        fill_partition(bus, queue, partition, 64)
    receiver, sink = bus.receiver(queue)
    for _ in range(8):
        receiver.set_credit(8, drain=False)
        bus.settle()
    assert len(sink.messages) == 64
    assert 16 <= partitions(sink).count(3) <= 48


def test_connection_that_is_full_gets_nothing_until_it_has_room() -> None:
    for lags in (False, True):
        bus = Bus(lags=lags)
        queue = fill(bus)
        receiver, sink = bus.receiver(queue)
        sink.is_full = True
        receiver.set_credit(30, drain=False)
        bus.settle()
        assert sink.messages == []
        sink.is_full = False
        receiver.resume()
        bus.settle()
        assert len(sink.messages) == 30


def test_large_bodies_do_not_fill_the_cache() -> None:
    """Two from each partition at first; more only while the cache has room."""
    bus = Bus(store_count=16)
    queue = fill(bus, 64, size=200_000)
    receiver, sink = bus.receiver(queue, 1)
    bus.settle()
    assert len(sink.messages) == 1
    assert locked_count(bus, queue) < 12
    for _ in range(3):
        receiver.set_credit(4, drain=False)
        bus.settle()
    assert len(sink.messages) == 13


# --- idle clients -----------------------------------------------------------------------------


@pytest.mark.proves("E-8")
@SLOW_OR_NOT
def test_client_that_does_not_ask_again_gives_back_what_is_cached(lags: bool) -> None:
    """Nobody else waits for long, and no delivery is counted."""
    bus = Bus(lags=lags)
    queue = fill(bus, 16)
    receiver, sink = bus.receiver(queue, 1)
    bus.settle()
    assert locked_count(bus, queue) > 1
    bus.pass_time(IDLE_MS + 1_000)
    assert bus.ticking == set()
    assert locked_count(bus, queue) == len(sink.messages) == 1
    peeked = bus.ask(queue, Peek(0, MAIN, 0, 16)).result
    assert {each.message.delivery_count for each in peeked} == {0}
    receiver.set_credit(15, drain=False)
    bus.settle()
    assert len(set(sink.bodies)) == 16


def test_idle_client_that_asks_again_goes_on() -> None:
    bus = Bus(lags=True)
    queue = fill(bus, 40)
    receiver, sink = bus.receiver(queue)
    for count in range(1, 20):
        receiver.set_credit(1, drain=False)
        bus.settle()
        assert len(sink.messages) == count
        bus.pass_time(5_000)
        bus.ask(queue, Settle(0, MAIN, sink.locks[-1:], COMPLETE))
    assert len(set(sink.bodies)) == 19
    assert in_order(sink)


def test_messages_whose_lock_is_half_over_are_given_back() -> None:
    """The connection is full, so that the client keeps its credit."""
    bus = Bus(lags=True)
    queue = bus.create(description=QueueDescription(lock_duration_ms=10_000))
    for i in range(16):
        bus.send(queue, new(b"%d" % i))
    receiver, sink = bus.receiver(queue, 16)
    sink.is_full = True
    bus.settle()
    bus.pass_time(7_000)
    sink.is_full = False
    until = bus.clock.now().utc_ms
    receiver.resume()
    bus.settle()
    assert len(sink.messages) == 16
    assert {message.delivery_count for message in sink.messages} == {0}
    assert bus.clock.now().utc_ms == until
    bus.clock.advance(5_000)
    assert bus.ask(queue, Settle(0, MAIN, sink.locks, COMPLETE)).result is None


def test_stale_messages_are_not_served_without_a_tick_either() -> None:
    bus = Bus(lags=True)
    queue = fill(bus, 16)
    receiver, sink = bus.receiver(queue, 1)
    bus.settle()
    bus.clock.advance(45_000)
    receiver.set_credit(15, drain=False)
    assert len(sink.messages) == 1
    bus.settle()
    assert len(sink.messages) == 16
    bus.clock.advance(30_000)
    assert bus.ask(queue, Settle(0, MAIN, sink.locks[1:], COMPLETE)).result is None


# --- drain ------------------------------------------------------------------------------------


@SLOW_OR_NOT
def test_drain_gives_everything_there_is(lags: bool) -> None:
    bus = Bus(lags=lags)
    queue = fill(bus)
    fill_partition(bus, queue, 3, 60)
    receiver, sink = bus.receiver(queue)
    receiver.set_credit(500, drain=True)
    bus.settle()
    assert len(sink.messages) == 100
    assert sink.drained_count == 1
    assert in_order(sink)
    bus.send(queue, new(b"later"))
    assert len(sink.messages) == 100


@SLOW_OR_NOT
def test_drain_ends_with_the_credit(lags: bool) -> None:
    bus = Bus(lags=lags)
    queue = fill(bus)
    receiver, sink = bus.receiver(queue)
    for count in (3, 6, 9):
        receiver.set_credit(3, drain=True)
        bus.settle()
        assert (len(sink.messages), sink.drained_count) == (count, count // 3)
    receiver.set_credit(100, drain=False)
    bus.settle()
    assert (len(sink.messages), sink.drained_count) == (40, 3)


def test_drain_of_nothing() -> None:
    bus = Bus()
    queue = bus.create()
    receiver, sink = bus.receiver(queue)
    receiver.set_credit(10, drain=True)
    bus.settle()
    assert sink.drained_count == 1
    receiver.set_credit(0, drain=True)
    assert sink.drained_count == 2


def test_drain_that_is_taken_back() -> None:
    bus = Bus(lags=True)
    queue = bus.create()
    receiver, sink = bus.receiver(queue)
    receiver.set_credit(10, drain=True)
    receiver.set_credit(10, drain=False)
    bus.settle()
    assert sink.drained_count == 0
    for i in range(10):
        bus.send(queue, new(b"%d" % i))
    bus.pass_time(3_000)
    assert len(sink.messages) == 10


def test_drain_does_not_wait_for_partitions_that_are_down() -> None:
    bus = Bus(store_count=4, lags=True)
    queue = fill(bus, 16)
    receiver, sink = bus.receiver(queue)
    bus.sims[1].health = DOWN
    receiver.set_credit(100, drain=True)
    for sim in (bus.sims[0], bus.sims[2], bus.sims[3]):
        while sim.settle():
            pass
    assert (len(sink.messages), sink.drained_count) == (12, 1)


def test_drain_does_not_hang_on_a_partition_that_goes_down() -> None:
    bus = Bus(store_count=4, lags=True)
    queue = fill(bus, 16)
    receiver, sink = bus.receiver(queue)
    receiver.set_credit(100, drain=True)
    for sim in (bus.sims[0], bus.sims[2], bus.sims[3]):
        while sim.settle():
            pass
    assert sink.drained_count == 0
    bus.sims[1].health = DOWN
    for each in list(bus.ticking):
        each.tick()
    assert sink.drained_count == 1


def refuse(sim: SimLink, error: ServiceError) -> None:
    """The store is well, but whoever wants to receive hears this, as with a fault."""

    def open_receiver(*arguments: object, **named: object) -> None:
        raise error

    sim.open_receiver = open_receiver  # type: ignore[method-assign]


def test_drain_does_not_wait_for_partitions_that_refuse() -> None:
    bus = Bus(store_count=4)
    queue = fill(bus, 16)
    opens = bus.sims[1].open_receiver
    refuse(bus.sims[1], Unavailable("out of order"))
    receiver, sink = bus.receiver(queue)
    receiver.set_credit(100, drain=True)
    bus.settle()
    assert (len(sink.messages), sink.drained_count) == (12, 1)
    bus.sims[1].open_receiver = opens  # type: ignore[method-assign]
    receiver.set_credit(100, drain=True)
    bus.settle()
    assert (len(sink.messages), sink.drained_count) == (16, 2)


def test_drain_does_not_wait_for_a_partition_that_was_lost() -> None:
    bus = Bus(store_count=4)
    queue = fill(bus, 16)
    receiver, sink = bus.receiver(queue)
    refuse(bus.sims[1], Unavailable("out of order"))
    receiver.lose(lambda _, partition: partition % 4 == 1, Unavailable("out of order"))
    receiver.set_credit(100, drain=True)
    bus.settle()
    assert (len(sink.messages), sink.drained_count) == (12, 1)


@pytest.mark.parametrize("error", [ServerBusy("later"), EntityNotFound("gone")])
def test_time_and_credit_raise_nothing(error: ServiceError) -> None:
    """A partition that could not be opened, and then refuses in another way."""
    bus = Bus(store_count=4)
    queue = fill(bus, 16)
    bus.sims[1].health = DOWN
    receiver, sink = bus.receiver(queue, 1)
    bus.sims[1].health = UP
    refuse(bus.sims[1], error)
    receiver.set_credit(100, drain=False)
    bus.pass_time(1_000)
    assert sink.errors == ([] if isinstance(error, ServerBusy) else [error])
    receiver.set_credit(0, drain=False)
    bus.pass_time(3_000)


# --- partitions that go and come --------------------------------------------------------------


@pytest.mark.proves("E-15")
def test_partition_that_is_down_at_first_is_opened_later() -> None:
    """The others go on meanwhile."""
    bus = Bus(store_count=4)
    queue = fill(bus, 16)
    bus.sims[1].health = DOWN
    receiver, sink = bus.receiver(queue, 100)
    bus.settle()
    assert sorted(set(partitions(sink))) == [p for p in range(16) if p % 4 != 1]
    bus.sims[1].health = UP
    receiver.set_credit(88, drain=False)
    bus.settle()
    assert len(sink.messages) == 16


def test_nobody_waits_where_no_partition_is_up() -> None:
    bus = Bus(store_count=2)
    queue = bus.create()
    for sim in bus.sims:
        sim.health = DOWN
    with pytest.raises(Unavailable):
        bus.receiver(queue)


@pytest.mark.proves("A-6")
def test_lost_partition_does_not_end_the_link_and_is_asked_again() -> None:
    bus = Bus(store_count=4)
    queue = bus.create()
    receiver, sink = bus.receiver(queue, 100)
    bus.settle()
    assert bus.receivers == {receiver}
    receiver.lose(lambda _, partition: partition == 5, Unavailable("down"))
    assert sink.errors == []
    fill_partition(bus, queue, 5, 1)
    bus.pass_time(2_000)
    assert len(sink.messages) == 1


@SLOW_OR_NOT
def test_entity_that_is_removed_ends_the_link_once(lags: bool) -> None:
    bus = Bus(lags=lags)
    queue = bus.create()
    _, sink = bus.receiver(queue, 10)
    removed: list[int] = []
    sink.removed = lambda: removed.append(1)  # type: ignore[method-assign]
    for part in queue.parts:
        bus.sims[part.store].broker.submit([DeleteEntities([part.entity_id])])
    bus.settle()
    assert removed == [1]


def test_other_errors_end_the_link_once() -> None:
    bus = Bus()
    queue = bus.create()
    bus.create(name="target")
    _, sink = bus.receiver(queue, 10)
    for part in queue.parts:
        store = bus.sims[part.store]
        entity = store.store.entities[part.entity_id]
        store.store.update_entity(part.entity_id, QueueDescription(forward_to="target"))
        store.broker.entities.note(entity)
    assert [type(error) for error in sink.errors] == [InvalidOperation]


def test_refusal_is_raised_and_leaves_nothing_open() -> None:
    bus = Bus()
    queue = bus.create()
    last = queue.parts[15]
    store = bus.sims[last.store]
    store.store.update_entity(last.entity_id, QueueDescription(status=RECEIVE_DISABLED))
    with pytest.raises(EntityDisabled):
        bus.receiver(queue)
    for part in queue.parts:
        queue_of_part = bus.sims[part.store].store.entities[part.entity_id]
        assert not bus.sims[part.store].broker.entities.is_in_use(queue_of_part)


# --- closing ----------------------------------------------------------------------------------


@SLOW_OR_NOT
def test_closing_releases_the_cache(lags: bool) -> None:
    bus = Bus(lags=lags)
    queue = fill(bus, 16)
    receiver, sink = bus.receiver(queue, 1)
    bus.settle()
    receiver.close()
    receiver.close()
    receiver.set_credit(5, drain=False)
    receiver.resume()
    bus.settle()
    assert bus.ticking == set()
    assert len(sink.messages) == 1
    _, other = bus.receiver(queue, 100)
    bus.settle()
    assert len(other.messages) == 15
    assert {message.delivery_count for message in other.messages} == {0}


def test_client_that_closes_while_it_is_given_messages() -> None:
    bus = Bus()
    queue = fill(bus, 40)
    receiver, sink = bus.receiver(queue)
    deliver = sink.deliver

    def deliver_and_close(*arguments: object) -> None:
        deliver(*arguments)  # type: ignore[arg-type]
        receiver.close()

    sink.deliver = deliver_and_close  # type: ignore[method-assign, assignment]
    receiver.set_credit(100, drain=False)
    bus.settle()
    seen = len(sink.messages)
    _, other = bus.receiver(queue, 100)
    bus.settle()
    assert len(other.messages) == 40 - seen


def test_dead_letter_queue_works_the_same() -> None:
    bus = Bus(lags=True)
    queue = fill(bus, 32)
    _, sink = bus.receiver(queue, 32)
    bus.settle()
    bus.ask(queue, Settle(0, MAIN, sink.locks, DEAD_LETTER))
    receiver, dead = bus.receiver(queue, 5, subqueue=DEAD_LETTER_QUEUE)
    bus.settle()
    receiver.set_credit(27, drain=True)
    bus.settle()
    assert sorted(dead.bodies) == sorted(sink.bodies)
    assert bus.ask(queue, Settle(0, DEAD_LETTER_QUEUE, dead.locks, RELEASE)).result is None
    assert receiver.session is None
