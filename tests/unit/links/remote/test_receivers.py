"""Receivers of a store behind a socket: credit, drains, windows, and brokers that come and go."""

import pytest

from tests.unit.broker.harness import SimSink
from tests.unit.links.remote.pair import SESSIONS, restarted, up
from twinbus.entities.commands import (
    COMPLETE,
    PEEK_LOCK,
    RECEIVE_AND_DELETE,
    CreateEntities,
    DeleteEntities,
    GetRuntime,
    NewEntity,
    Runtime,
    Settle,
)
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.facts import MAIN
from twinbus.errors import EntityNotFound
from twinbus.links.remote.operations import WINDOW_BYTES
from twinbus.links.store_link import ReceiverDescription

BODY_BYTES = 80_000  # large: the broker hands out four at a time


def test_messages_come_as_far_as_credit_goes() -> None:
    world, _ = up()
    queue = world.create_queue()
    receiver, sink = world.receiver(queue, credit=2)
    world.send(queue, b"a", b"b", b"c")
    assert sink.bodies == [b"a", b"b"]
    assert receiver.credit == 0
    receiver.set_credit(1, drain=False)
    world.run()
    assert sink.bodies == [b"a", b"b", b"c"]
    assert world.answer(Settle(queue, MAIN, sink.locks, COMPLETE)) is None


@pytest.mark.parametrize("mode", [PEEK_LOCK, RECEIVE_AND_DELETE])
def test_credit_that_crosses_deliveries_is_not_counted_twice(mode: int) -> None:
    world, host = up()
    queue = world.create_queue()
    world.send(queue, *[b"%d" % number for number in range(20)])
    receiver, sink = world.receiver(queue, receive_mode=mode)
    receiver.set_credit(5, drain=False)
    host.read()
    while any(shell.step() for shell in host.shells.values()):
        pass
    assert sink.bodies == [], "five are on their way"
    receiver.set_credit(5, drain=False)
    world.run()
    assert len(sink.bodies) == 5
    assert receiver.credit == 0


def test_credit_taken_back_leaves_what_is_on_its_way_waiting() -> None:
    world, host = up()
    queue = world.create_queue()
    world.send(queue, b"a", b"b", b"c")
    receiver, sink = world.receiver(queue)
    receiver.set_credit(3, drain=False)
    host.read()
    while any(shell.step() for shell in host.shells.values()):
        pass
    receiver.set_credit(1, drain=False)
    world.run()
    assert sink.bodies == [b"a"]
    receiver.set_credit(5, drain=False)
    world.run()
    assert sink.bodies == [b"a", b"b", b"c"]
    assert receiver.credit == 3
    world.send(queue, b"d", b"e", b"f", b"g")
    assert len(sink.bodies) == 6


def test_a_drain_is_answered_when_everything_has_come() -> None:
    world, _ = up()
    queue = world.create_queue()
    world.send(queue, b"a")
    receiver, sink = world.receiver(queue)
    receiver.set_credit(10, drain=True)
    world.run()
    assert (sink.bodies, sink.drained_count, receiver.credit) == ([b"a"], 1, 0)


def test_a_drain_that_was_overtaken_takes_no_credit() -> None:
    world, _ = up()
    queue = world.create_queue()
    receiver, sink = world.receiver(queue)
    receiver.set_credit(10, drain=True)
    receiver.set_credit(7, drain=False)
    world.run()
    assert (sink.drained_count, receiver.credit) == (0, 7)
    world.send(queue, b"a")
    assert sink.bodies == [b"a"]


def test_a_drain_waits_for_a_connection_with_room() -> None:
    world, _ = up()
    queue = world.create_queue()
    world.send(queue, b"a")
    receiver, sink = world.receiver(queue)
    sink.is_full = True
    receiver.set_credit(10, drain=True)
    world.run()
    assert (sink.bodies, sink.drained_count) == ([], 0)
    sink.is_full = False
    receiver.resume()
    assert (sink.bodies, sink.drained_count) == ([b"a"], 1)


def test_a_drain_of_a_broker_that_is_lost_is_over() -> None:
    world, host = up()
    queue = world.create_queue()
    receiver, sink = world.receiver(queue)
    receiver.set_credit(10, drain=True)
    host.kill()
    assert (sink.drained_count, receiver.credit) == (1, 0)
    receiver.set_credit(10, drain=True)
    assert (sink.drained_count, receiver.credit) == (2, 0)


def test_a_full_connection_stops_the_far_end_after_a_window() -> None:
    world, host = up()
    queue = world.create_queue()
    receiver, sink = world.receiver(queue)
    for _ in range(40):
        world.send(queue, bytes(BODY_BYTES))
    sink.is_full = True
    receiver.set_credit(100, drain=False)
    world.run()
    assert sink.bodies == []
    waiting = host.shells[0].broker.store.entities[queue].counts()
    sent_on = sum(len(chunk[0]) for chunk in receiver._queue)
    assert WINDOW_BYTES // BODY_BYTES <= sent_on < WINDOW_BYTES // BODY_BYTES + 8
    assert waiting.active == 40
    sink.is_full = False
    receiver.resume()
    world.run()
    assert len(sink.bodies) == 40


def test_a_full_socket_stops_everybody() -> None:
    world, host = up()
    queue = world.create_queue()
    host.is_full = True
    _, sink = world.receiver(queue, credit=5)
    world.send(queue, b"a")
    assert sink.bodies == []
    host.is_full = False
    host.host.resume()
    world.run()
    assert sink.bodies == [b"a"]


def test_locks_that_run_out_in_the_queue_are_not_handed_over() -> None:
    world, _ = up()
    queue = world.create_queue("q", QueueDescription(lock_duration_ms=5_000))
    world.send(queue, b"a")
    receiver, sink = world.receiver(queue)
    sink.is_full = True
    receiver.set_credit(3, drain=False)
    world.run()
    world.pass_time(6_000)
    sink.is_full = False
    receiver.resume()
    world.run()
    assert sink.bodies == [b"a"], "once, with the second lock"
    assert world.answer(Settle(queue, MAIN, sink.locks, COMPLETE)) is None


def test_locks_that_run_out_on_the_way_are_not_handed_over() -> None:
    world, host = up()
    queue = world.create_queue()
    world.send(queue, b"a")
    receiver, sink = world.receiver(queue)
    receiver.set_credit(1, drain=False)
    host.read()
    while any(shell.step() for shell in host.shells.values()):
        pass
    world.clock.advance(QueueDescription().lock_duration_ms + 1)  # it is on the socket meanwhile
    world.run()
    for shell in host.shells.values():
        shell.broker.entities.tick()  # the lock has run out there, too
    world.run()
    assert sink.bodies == [b"a"], "once, with the lock that holds"
    assert world.answer(Settle(queue, MAIN, sink.locks, COMPLETE)) is None


@pytest.mark.proves("A-3")
def test_a_relay_gets_what_ran_out_all_the_same() -> None:
    """What were left out would come again behind later ones, and these overtake it."""
    world, _ = up()
    queue = world.create_queue("q", QueueDescription(lock_duration_ms=5_000))
    sink = SimSink()
    sink.is_full = True
    receiver = world.stores[0].open_receiver(
        ReceiverDescription(queue, MAIN, PEEK_LOCK, relays=True), sink
    )
    receiver.set_credit(5, drain=False)
    world.send(queue, b"a")
    world.pass_time(3_000)
    world.send(queue, b"b")
    world.pass_time(2_001)
    sink.is_full = False
    receiver.resume()
    world.run()
    assert sink.bodies == [b"a", b"b", b"a"], "once more, with the lock that holds"
    assert world.answer(Settle(queue, MAIN, sink.locks[1:], COMPLETE)) is None


def test_what_comes_after_closing_is_given_back() -> None:
    world, host = up()
    queue = world.create_queue()
    receiver, sink = world.receiver(queue)
    world.send(queue, b"a", b"b")
    sink.is_full = True
    receiver.set_credit(1, drain=False)
    world.run()
    receiver.set_credit(2, drain=False)
    host.read()
    while any(shell.step() for shell in host.shells.values()):
        pass
    receiver.close()
    world.run()
    _, other = world.receiver(queue, credit=5)
    assert sorted(other.bodies) == [b"a", b"b"]
    assert [message.delivery_count for message in other.messages] == [0, 0]
    assert world.stores[0].receivers._closed_receivers == {}


def test_a_receiver_goes_on_with_the_next_broker() -> None:
    world, host = up()
    queue = world.create_queue()
    receiver, sink = world.receiver(queue, credit=3)
    world.send(queue, b"a")
    host.kill()
    assert receiver.credit == 2
    restarted(world)
    world.send(queue, b"b", b"c", b"d")
    assert sink.bodies == [b"a", b"b", b"c"]


def test_a_receiver_may_be_opened_while_the_store_is_down() -> None:
    world, host = up()
    queue = world.create_queue()
    world.send(queue, b"a")
    host.kill()
    _, sink = world.receiver(queue, credit=1)
    restarted(world)
    assert sink.bodies == [b"a"]


def test_what_was_deleted_on_delivery_is_handed_over_whatever_happens() -> None:
    world, host = up()
    queue = world.create_queue()
    world.send(queue, b"a", b"b")
    receiver, sink = world.receiver(queue, receive_mode=RECEIVE_AND_DELETE)
    sink.is_full = True
    receiver.set_credit(2, drain=False)
    world.run()
    host.kill()
    restarted(world)
    sink.is_full = False
    receiver.resume()
    assert sink.bodies == [b"a", b"b"]


def test_locks_of_a_lost_broker_are_not_handed_over() -> None:
    world, host = up()
    queue = world.create_queue()
    world.send(queue, b"a")
    receiver, sink = world.receiver(queue)
    sink.is_full = True
    receiver.set_credit(2, drain=False)
    world.run()
    host.kill()
    sink.is_full = False
    receiver.resume()
    assert sink.bodies == []


@pytest.mark.parametrize("mode", [PEEK_LOCK, RECEIVE_AND_DELETE])
def test_a_move_changes_nothing_for_a_receiver(mode: int) -> None:
    world, _ = up()
    queue = world.create_queue()
    world.send(queue, b"a", b"b", b"c")
    receiver, sink = world.receiver(queue, receive_mode=mode)
    sink.is_full = True
    receiver.set_credit(2, drain=False)
    world.run()
    store = world.stores[0]
    store.hold()
    store.close()
    world.run()
    restarted(world)
    sink.is_full = False
    receiver.resume()
    world.run()
    assert sink.bodies == [b"a", b"b"]
    receiver.set_credit(1, drain=False)
    world.run()
    assert sink.bodies == [b"a", b"b", b"c"]
    if mode == PEEK_LOCK:
        assert world.answer(Settle(queue, MAIN, sink.locks, COMPLETE)) is None


def test_a_drain_goes_along_with_a_move() -> None:
    world, _ = up()
    queue = world.create_queue()
    receiver, sink = world.receiver(queue)
    store = world.stores[0]
    store.hold()
    store.close()
    receiver.set_credit(5, drain=True)
    world.run()
    assert sink.drained_count == 0
    restarted(world)
    assert sink.drained_count == 1


def test_a_deleted_entity_is_told_and_not_asked_for_again() -> None:
    world, host = up()
    queue = world.create_queue()
    receiver, sink = world.receiver(queue, credit=1)
    world.answer(DeleteEntities([queue]))
    assert sink.is_removed
    receiver.close()
    host.kill()
    restarted(world)
    assert sink.errors == []


def test_a_receiver_that_has_ended_is_kept_nowhere() -> None:
    """Whoever is told of the end need not close it."""
    world, host = up()
    queue = world.create_queue()
    world.receiver(queue, credit=1)
    world.receiver(queue + 100)
    world.answer(DeleteEntities([queue]))
    kept, hosted = world.stores[0].receivers, host.host._stores[0]
    assert not (kept._receivers or kept._open_receivers or kept._closed_receivers)
    assert not hosted._receivers


def test_what_cannot_be_opened_is_lost() -> None:
    world, _ = up()
    _, sink = world.receiver(99)
    (error,) = sink.errors
    assert isinstance(error, EntityNotFound)


def test_a_session_entity_wants_a_session() -> None:
    world, _ = up()
    queue = world.create_queue("s", SESSIONS)
    _, sink = world.receiver(queue)
    assert len(sink.errors) == 1


def test_the_gateway_receives_from_what_forwards() -> None:
    world, _ = up()
    world.create_queue("target")
    new = NewEntity("queue", "source", QueueDescription(forward_to="target"))
    (source,) = world.answer(CreateEntities([new]))
    _, sink = world.receiver(source)
    assert len(sink.errors) == 1
    world.stores[0].open_receiver(ReceiverDescription(source, MAIN, PEEK_LOCK, relays=True), sink)
    world.run()
    assert len(sink.errors) == 1
    (runtime,) = world.answer(GetRuntime([source]))
    assert isinstance(runtime, Runtime)
