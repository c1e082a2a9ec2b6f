"""Sessions of a store behind a socket: waits and locks that outlive the broker."""

import pytest

from tests.unit.links.remote.pair import SESSIONS, restarted, up
from twinbus.entities.commands import COMPLETE, GetSessionState, RenewSession, Settle
from twinbus.entities.facts import MAIN
from twinbus.errors import (
    InvalidOperation,
    OperationTimeout,
    SessionCannotBeLocked,
    SessionLockLost,
    Unavailable,
)


def test_a_named_session() -> None:
    world, _ = up()
    queue = world.create_queue("s", SESSIONS)
    world.send(queue, b"a", session_id="one")
    lock = world.accept(queue, "one").lock
    assert lock.session_id == "one"
    (refused,) = world.accept(queue, "one").results
    assert isinstance(refused, SessionCannotBeLocked)
    _, sink = world.receiver(queue, 5, session=lock)
    assert sink.bodies == [b"a"]
    assert world.answer(RenewSession(queue, "one", lock.grant)) == lock.locked_until_utc_ms
    assert world.answer(Settle(queue, MAIN, sink.locks, COMPLETE)) is None


def test_the_next_available_session_is_waited_for() -> None:
    world, _ = up()
    queue = world.create_queue("s", SESSIONS)
    wait = world.accept(queue, None)
    assert wait.results == []
    world.send(queue, b"a", session_id="one")
    assert wait.lock.session_id == "one"


def test_a_wait_that_is_over() -> None:
    world, _ = up()
    queue = world.create_queue("s", SESSIONS)
    wait = world.accept(queue, None, timeout_ms=1_000)
    world.pass_time(1_000)
    (result,) = wait.results
    assert isinstance(result, OperationTimeout)


def test_what_cannot_be_accepted() -> None:
    world, _ = up()
    queue = world.create_queue("plain")
    (result,) = world.accept(queue, None).results
    assert isinstance(result, InvalidOperation)


def test_a_wait_that_was_given_up_is_not_answered_and_holds_nothing() -> None:
    world, host = up()
    queue = world.create_queue("s", SESSIONS)
    wait = world.accept(queue, None)
    wait.waiter.cancel()
    world.run()
    world.send(queue, b"a", session_id="one")
    assert wait.results == []
    late = world.accept(queue, "two")
    late.results.clear()
    late.waiter = world.stores[0].accept_session(queue, "three", 1_000, 0, late.results.append)
    host.read()
    late.waiter.cancel()  # the answer is on its way
    world.run()
    assert late.results == []
    assert world.accept(queue, "three").lock.session_id == "three"
    assert world.accept(queue, None).lock.session_id == "one"


def test_a_lock_for_a_receiver_that_could_not_be_opened_is_given_back() -> None:
    world, _ = up()
    queue = world.create_queue("s", SESSIONS)
    lock = world.accept(queue, "one").lock
    world.stores[0].release_session(queue, lock)
    world.run()
    assert world.accept(queue, "one").lock.grant > lock.grant


def test_a_wait_goes_on_with_the_next_broker_for_the_rest_of_its_time() -> None:
    world, host = up()
    queue = world.create_queue("s", SESSIONS)
    wait = world.accept(queue, None, timeout_ms=10_000)
    short = world.accept(queue, None, timeout_ms=2_000)
    host.kill()
    world.pass_time(3_000)
    (ended,) = short.results
    assert isinstance(ended, OperationTimeout)
    restarted(world)
    assert wait.results == []
    world.pass_time(7_000)
    (result,) = wait.results
    assert isinstance(result, OperationTimeout)


def test_nobody_can_wait_where_nothing_is() -> None:
    world, host = up()
    queue = world.create_queue("s", SESSIONS)
    takes_over = world.accept(queue, "one")
    wait = world.stores[0].accept_session(queue, "one", 1_000, 77, takes_over.results.append)
    assert wait.number
    host.kill()
    assert isinstance(takes_over.results[-1], Unavailable)
    (result,) = world.accept(queue, "one").results
    assert isinstance(result, Unavailable)


def test_a_session_is_accepted_anew_under_the_same_receiver() -> None:
    world, host = up()
    queue = world.create_queue("s", SESSIONS)
    world.send(queue, b"a", session_id="one")
    lock = world.accept(queue, "one").lock
    grant = lock.grant
    _, sink = world.receiver(queue, 5, session=lock)
    host.kill()
    world.clock.advance(1)
    restarted(world)
    assert lock.grant > grant
    assert sink.bodies == [b"a", b"a"]
    assert world.answer(GetSessionState(queue, "one", lock.grant)) is None
    assert world.answer(Settle(queue, MAIN, sink.locks[1:], COMPLETE)) is None
    assert sink.errors == []


def test_a_session_that_somebody_else_got_is_lost() -> None:
    world, host = up()
    queue = world.create_queue("s", SESSIONS)
    lock = world.accept(queue, "one").lock
    receiver, sink = world.receiver(queue, 5, session=lock)
    host.kill()
    world.clock.advance(1)
    second = world.start()
    world.stores[0].attach(second)
    second.read()
    taken = second.shells[0].broker.accept_session(queue, "one", 0, 0, lambda result: None)
    assert not taken.is_waiting
    world.run()
    (error,) = sink.errors
    assert isinstance(error, SessionLockLost)
    receiver.close()
    assert world.stores[0].receivers._receivers == {}


def test_a_session_that_may_be_taken_over_is_not_accepted_anew() -> None:
    """Whoever has its token believes in a lock that is gone."""
    world, host = up()
    queue = world.create_queue("s", SESSIONS)
    lock = world.accept(queue, "one").lock
    _, sink = world.receiver(queue, 5, session=lock, is_exclusive=False)
    host.kill()
    world.clock.advance(1)
    restarted(world)
    (error,) = sink.errors
    assert isinstance(error, SessionLockLost)


def test_a_broker_lost_while_a_session_is_accepted_anew() -> None:
    world, host = up()
    queue = world.create_queue("s", SESSIONS)
    lock = world.accept(queue, "one").lock
    _, sink = world.receiver(queue, 5, session=lock)
    host.kill()
    world.clock.advance(1)
    second = world.start()
    world.stores[0].attach(second)
    second.read()
    second.write()  # opened; the session is asked for
    second.kill()
    world.clock.advance(1)
    restarted(world)
    world.send(queue, b"a", session_id="one")
    assert sink.bodies == [b"a"]
    assert sink.errors == []


@pytest.mark.parametrize("is_planned", [True, False])
def test_a_receiver_closed_while_its_session_is_accepted_anew(is_planned: bool) -> None:
    world, host = up()
    queue = world.create_queue("s", SESSIONS)
    lock = world.accept(queue, "one").lock
    receiver, sink = world.receiver(queue, 5, session=lock)
    store = world.stores[0]
    if is_planned:
        store.hold()
        store.close()
        world.run()
    else:
        host.kill()
    world.clock.advance(1)
    second = world.start()
    store.attach(second)
    second.read()
    second.write()
    receiver.close()
    world.run()
    assert sink.errors == []
    assert world.accept(queue, "one").lock.session_id == "one"


def test_closing_frees_the_session() -> None:
    world, _ = up()
    queue = world.create_queue("s", SESSIONS)
    lock = world.accept(queue, "one").lock
    receiver, _ = world.receiver(queue, 5, session=lock)
    receiver.close()
    world.run()
    assert world.accept(queue, "one").lock.session_id == "one"


def test_a_lock_that_runs_out_is_told() -> None:
    world, _ = up()
    queue = world.create_queue("s", SESSIONS)
    lock = world.accept(queue, "one").lock
    _, sink = world.receiver(queue, 5, session=lock)
    world.pass_time(61_000)
    (error,) = sink.errors
    assert isinstance(error, SessionLockLost)


@pytest.mark.proves("M-4")
def test_what_waits_for_room_stays_when_its_session_is_renewed() -> None:
    """It is still locked for this holder, so nothing later may come before it."""
    world, _ = up()
    queue = world.create_queue("s", SESSIONS)
    world.send(queue, b"a", b"b", session_id="one")
    lock = world.accept(queue, "one").lock
    receiver, sink = world.receiver(queue, session=lock)
    sink.is_full = True
    receiver.set_credit(5, drain=False)
    world.run()
    world.pass_time(40_000)
    world.answer(RenewSession(queue, "one", lock.grant))
    world.pass_time(40_000)
    world.send(queue, b"c", session_id="one")
    sink.is_full = False
    receiver.resume()
    world.run()
    assert sink.bodies == [b"a", b"b", b"c"]


def test_a_lock_that_ran_out_before_the_receiver_was_there() -> None:
    """Nobody would tell it any more: it would wait for ever."""
    world, _ = up()
    queue = world.create_queue("s", SESSIONS)
    lock = world.accept(queue, "one").lock
    world.accept(queue, None, timeout_ms=600_000)  # somebody is there to hear whose lock is lost
    world.pass_time(61_000)
    _, sink = world.receiver(queue, 5, session=lock)
    (error,) = sink.errors
    assert isinstance(error, SessionLockLost)


def test_a_session_is_accepted_anew_though_the_clock_was_set_back() -> None:
    """Numbers of locks begin with the time: then the new ones may be those of before."""
    world, host = up()
    queue = world.create_queue("s", SESSIONS)
    lock = world.accept(queue, "one").lock
    _, sink = world.receiver(queue, 5, session=lock)
    world.clock.jump_utc(-3_600_000)
    host.kill()
    restarted(world)
    world.send(queue, b"a", session_id="one")
    assert sink.bodies == [b"a"]
    assert sink.errors == []


@pytest.mark.proves("M-4")
def test_what_comes_late_in_a_session_is_not_left_out() -> None:
    """Somebody has set the clock; the broker's locks run on, and nothing may overtake."""
    world, host = up()
    queue = world.create_queue("s", SESSIONS)
    world.send(queue, b"a", b"b", session_id="one")
    lock = world.accept(queue, "one").lock
    receiver, sink = world.receiver(queue, session=lock)
    receiver.set_credit(5, drain=False)
    host.read()
    while any(shell.step() for shell in host.shells.values()):
        pass
    world.clock.jump_utc(86_400_000)
    world.run()
    world.send(queue, b"c", session_id="one")
    assert sink.bodies == [b"a", b"b", b"c"]
