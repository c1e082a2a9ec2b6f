"""Receive-and-delete from all partitions: locked first, removed only for what is asked for."""

import pytest

from tests.unit.gateway.partitions.partitioned_harness import Bus, key_in, new
from tests.unit.gateway.partitions.test_receiver import SLOW_OR_NOT, fill, in_order
from twinbus.entities.commands import COMPLETE, RECEIVE_AND_DELETE, Command, Settle
from twinbus.errors import ServiceError, Unavailable

pytestmark = pytest.mark.proves("E-8")


@SLOW_OR_NOT
@pytest.mark.parametrize("credit", [1, 5, 40])
def test_receive_and_delete_removes_exactly_what_it_hands_out(lags: bool, credit: int) -> None:
    bus = Bus(lags=lags)
    queue = fill(bus)
    receiver, sink = bus.receiver(queue, receive_mode=RECEIVE_AND_DELETE)
    got = 0
    while got < 40:
        receiver.set_credit(credit, drain=False)
        bus.settle()
        got += credit
        assert len(sink.messages) == got
        assert sum(bus.counts(queue)) == 40 - got
    assert sink.locks == []
    assert in_order(sink)
    assert len(set(sink.bodies)) == 40


def test_nothing_is_handed_out_before_its_removal_is_durable() -> None:
    bus = Bus()
    queue = fill(bus, 16)
    _, sink = bus.receiver(queue, 16, RECEIVE_AND_DELETE)
    for sim in bus.sims:
        sim.broker.turn(may_commit=False)
    settles = [c for sim in bus.sims for c in sim.submitted if isinstance(c, Settle)]
    assert sum(len(settle.locks) for settle in settles) == 16
    assert sink.messages == []
    bus.settle()
    assert len(sink.messages) == 16


def test_new_credit_while_messages_are_being_removed_is_not_counted_twice() -> None:
    bus = Bus(lags=True)
    queue = fill(bus)
    receiver, sink = bus.receiver(queue, receive_mode=RECEIVE_AND_DELETE)
    for _ in range(8):
        receiver.set_credit(10 - len(sink.messages), drain=False)
        for sim in bus.sims:
            sim.settle()
        assert len(sink.messages) <= 10
    bus.settle()
    assert len(sink.messages) == 10


def test_closing_loses_nothing() -> None:
    """What is cached is released; what is being removed is still handed out."""
    bus = Bus(lags=True)
    queue = fill(bus, 16)
    receiver, sink = bus.receiver(queue, 3, RECEIVE_AND_DELETE)
    for sim in bus.sims:
        sim.settle()
        sim.settle()
    receiver.close()
    bus.settle()
    assert len(sink.messages) + sum(bus.counts(queue)) == 16
    _, other = bus.receiver(queue, 100)
    bus.settle()
    assert sorted(sink.bodies + other.bodies) == sorted(b"%d" % i for i in range(16))
    assert {message.delivery_count for message in other.messages} <= {0}


def test_drain_waits_for_what_is_being_removed() -> None:
    bus = Bus(lags=True)
    queue = fill(bus, 16)
    receiver, sink = bus.receiver(queue, receive_mode=RECEIVE_AND_DELETE)
    receiver.set_credit(4, drain=True)
    bus.settle()
    assert (len(sink.messages), sink.drained_count) == (4, 1)
    receiver.set_credit(100, drain=True)
    bus.settle()
    assert (len(sink.messages), sink.drained_count) == (16, 2)


def test_what_is_removed_is_handed_out_even_if_the_connection_is_full_by_then() -> None:
    """It is nowhere else any more: closing must not lose it."""
    bus = Bus(lags=True)
    queue = fill(bus, 16)
    receiver, sink = bus.receiver(queue, 8, RECEIVE_AND_DELETE)
    for sim in bus.sims:
        sim.settle()
        sim.settle()
    sink.is_full = True
    bus.settle()
    receiver.close()
    bus.settle()
    assert 0 < len(sink.messages) == 16 - sum(bus.counts(queue))


def test_credit_that_is_taken_back_while_messages_are_being_removed() -> None:
    """They wait for the next credit: a client without any would break off the connection."""
    bus = Bus(lags=True)
    queue = fill(bus, 16)
    receiver, sink = bus.receiver(queue, 8, RECEIVE_AND_DELETE)
    for sim in bus.sims:
        sim.settle()
        sim.settle()
    receiver.set_credit(2, drain=False)
    bus.settle()
    assert len(sink.messages) == 2
    receiver.set_credit(14, drain=False)
    bus.settle()
    assert len(set(sink.bodies)) == 16
    assert in_order(sink)


def test_message_whose_removal_failed_is_not_handed_out() -> None:
    """Its lock was lost, or its store went down: it comes again, to whoever asks."""
    bus = Bus(store_count=2)
    queue = bus.create()
    bus.send(queue, new(b"x", key_in(1)))
    down = [True]

    def goes_down(command: Command) -> ServiceError | None:
        is_completing = isinstance(command, Settle) and command.outcome == COMPLETE
        return Unavailable("down") if is_completing and down[0] else None

    bus.sims[1].refuses = goes_down
    _, sink = bus.receiver(queue, 1, RECEIVE_AND_DELETE)
    bus.settle()
    assert sink.messages == []
    down[0] = False
    bus.pass_time(61_000)
    assert sink.bodies == [b"x"]
    assert sum(bus.counts(queue)) == 0


def test_locks_lost_in_the_cache_are_dropped() -> None:
    bus = Bus(lags=True)
    queue = fill(bus, 16)
    receiver, sink = bus.receiver(queue, 1, RECEIVE_AND_DELETE)
    bus.settle()
    assert len(sink.messages) == 1
    bus.clock.advance(29_000)
    receiver.set_credit(15, drain=False)  # they are fresh enough, but arrive too late
    bus.clock.advance(31_000)
    for sim in bus.sims:
        sim.broker.entities.tick()
    bus.settle()
    assert len(sink.messages) == 16
    assert len(set(sink.bodies)) == 16
