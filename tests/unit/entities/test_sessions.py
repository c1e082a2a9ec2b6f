"""Sessions in an entity: who holds one, in which order its messages come, what is kept."""

from collections.abc import Callable

import pytest

from tests.unit.entities.scene import Scene, SessionScene, locks_of, numbers_of, overview
from twinbus.entities.commands import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DEFER,
    PEEK_LOCK,
    GetSessionState,
    ListSessions,
    Peek,
    ReceiveDeferred,
    RenewSession,
    SetSessionState,
    Settle,
)
from twinbus.entities.descriptions import DISABLED, QueueDescription
from twinbus.entities.facts import DEAD_LETTER as DLQ
from twinbus.entities.facts import MAIN, Locked
from twinbus.entities.message import NEVER_MS, NewMessage
from twinbus.entities.session_locks import SessionLock
from twinbus.entities.sessions import ANY_TIME_MS
from twinbus.errors import (
    ArgumentOutOfRange,
    EntityDisabled,
    InvalidOperation,
    MessageNotFound,
    MessageSizeExceeded,
    QuotaExceeded,
    SessionCannotBeLocked,
    SessionLockLost,
)
from twinbus.limits import SESSION_STATE_BYTES_MAX

pytestmark = pytest.mark.proves("M-4")

LOCK_MS = 10_000
DESCRIPTION = QueueDescription(requires_session=True, lock_duration_ms=LOCK_MS)


@pytest.fixture
def scene() -> SessionScene:
    return SessionScene(DESCRIPTION)


# --- sending --------------------------------------------------------------------------------------


def test_a_message_needs_a_session_id(scene: SessionScene) -> None:
    new = [NewMessage(b"a", session_id="s"), NewMessage(b"b")]
    with pytest.raises(InvalidOperation, match="session id"):
        scene.queue.send(new, scene.now)
    assert scene.told() == []
    assert scene.queue.counts().message_count == 0


@pytest.mark.parametrize(("length", "fits"), [(0, True), (128, True), (129, False)])
def test_how_long_a_session_id_may_be(scene: SessionScene, length: int, fits: bool) -> None:
    session_id = "ä" * length
    if fits:
        scene.send_to(session_id, b"a")
        assert scene.accept().session_id == session_id
    else:
        with pytest.raises(ArgumentOutOfRange, match="128"):
            scene.send_to(session_id, b"a")
        with pytest.raises(ArgumentOutOfRange, match="128"):
            scene.accept(session_id)


# --- accepting ------------------------------------------------------------------------------------


def test_sessions_become_available_in_the_order_of_their_messages(scene: SessionScene) -> None:
    for session_id in ("c", "a", "b", "a"):
        scene.send_to(session_id, b"x")
    assert [scene.accept().session_id for _ in range(3)] == ["c", "a", "b"]
    assert scene.sessions.accept_session(None, scene.now) is None


def test_a_session_that_comes_back_goes_to_the_end(scene: SessionScene) -> None:
    for session_id in ("a", "b"):
        scene.send_to(session_id, b"x")
    scene.release(scene.accept("a"))
    assert [scene.accept().session_id for _ in range(2)] == ["b", "a"]


def test_a_session_is_available_when_its_message_is_durable(scene: SessionScene) -> None:
    scene.queue.send([NewMessage(b"x", session_id="a")], scene.now)
    assert scene.sessions.accept_session(None, scene.now) is None
    scene.commit()
    assert scene.accept().session_id == "a"


def test_a_session_of_expired_messages_is_not_available(scene: SessionScene) -> None:
    scene.send(NewMessage(b"x", 1_000, session_id="old"))
    scene.send_to("new", b"y")
    scene.advance(1_000)
    assert scene.accept().session_id == "new"
    assert scene.queue.counts().message_count == 1


def test_a_named_session_may_be_empty(scene: SessionScene) -> None:
    lock = scene.accept("nobody wrote to it")
    assert scene.lock_of(lock) == []
    scene.send_to("nobody wrote to it", b"x")
    assert len(scene.lock_of(lock)) == 1


def test_only_one_holds_a_session(scene: SessionScene) -> None:
    scene.send_to("a", b"x")
    lock = scene.accept("a")
    with pytest.raises(SessionCannotBeLocked):
        scene.accept("a")
    assert scene.sessions.accept_session(None, scene.now) is None
    scene.release(lock)
    assert scene.accept("a").grant > lock.grant


def test_nobody_accepts_where_receiving_is_disabled() -> None:
    scene = SessionScene(QueueDescription(requires_session=True, status=DISABLED))
    with pytest.raises(EntityDisabled):
        scene.accept("a")
    assert not scene.sessions.has_available()


def test_the_same_lock_in_other_hands(scene: SessionScene) -> None:
    scene.send_to("a", b"x", b"y")
    lock = scene.accept("a")
    locks = scene.lock_of(lock)
    scene.advance(1_000)
    taken = scene.sessions.take_over("a", lock.grant, scene.now)
    assert (taken.grant, taken.locked_until_ms) == (lock.grant, lock.locked_until_ms)
    assert taken.locked_until_utc_ms == lock.locked_until_utc_ms
    assert scene.settle(locks, COMPLETE) == [None]
    scene.release(lock)
    with pytest.raises(SessionLockLost):
        scene.sessions.take_over("a", lock.grant, scene.now)


# --- order ----------------------------------------------------------------------------------------


def test_an_abandoned_message_comes_before_later_ones(scene: SessionScene) -> None:
    first, second, third = scene.send_to("a", b"1", b"2", b"3")
    lock = scene.accept("a")
    locks = scene.lock_of(lock, 2)
    assert [number for number, _ in locks] == [first, second]
    scene.settle(locks[:1], ABANDON)
    scene.settle(locks[1:], ABANDON)
    assert [number for number, _ in scene.lock_of(lock, 3)] == [first, second, third]


def test_what_is_sent_while_a_session_is_held_comes_to_its_holder(scene: SessionScene) -> None:
    lock = scene.accept("a")
    assert scene.sessions.take_stirred() == []
    scene.send_to("a", b"1")
    assert scene.sessions.take_stirred() == ["a"]
    assert scene.sessions.take_stirred() == []
    locks = scene.lock_of(lock)
    scene.settle(locks, ABANDON)
    assert scene.sessions.take_stirred() == ["a"]


def test_a_scheduled_message_comes_to_its_session_when_it_is_due(scene: SessionScene) -> None:
    due_ms = scene.now.utc_ms + 5_000
    scene.send(NewMessage(b"late", scheduled_ms=due_ms, session_id="a"))
    assert scene.sessions.accept_session(None, scene.now) is None
    scene.advance(5_000)
    scene.tick()
    assert scene.sessions.accept_session(None, scene.now) is None, "it is not durable yet"
    scene.commit()
    assert scene.accept().session_id == "a"


# --- the end of a lock ----------------------------------------------------------------------------


@pytest.mark.feature("session.release")
def test_closing_gives_messages_back_uncounted(scene: SessionScene) -> None:
    scene.send_to("a", b"1", b"2")
    lock = scene.accept("a")
    locks = scene.lock_of(lock, 2)
    scene.release(lock)
    assert scene.told() == [], "nothing has changed that a restart would have to know"
    assert scene.settle(locks, COMPLETE) == ["SessionLockLost"] * 2
    again = scene.accept()
    messages = scene.sessions.lock_next_of("a", again.grant, 2, scene.now)
    assert [(m.delivery_count, m.body) for m in messages] == [(0, b"1"), (0, b"2")]
    assert scene.settle(locks, COMPLETE) == ["SessionLockLost"] * 2, "an old lock never fits again"


@pytest.mark.feature("session.renew")
def test_a_lock_that_runs_out_counts_a_delivery(scene: SessionScene) -> None:
    scene.send_to("a", b"1", b"2")
    lock = scene.accept("a")
    locks = scene.lock_of(lock)
    scene.advance(LOCK_MS - 1)
    assert scene.queue.next_due_ms(scene.now) == 1
    scene.advance(1)
    assert scene.settle(locks, COMPLETE) == ["SessionLockLost"], "even before the tick"
    scene.tick()
    assert scene.sessions.take_lost() == [("a", lock.grant)]
    again = scene.accept()
    messages = scene.sessions.lock_next_of("a", again.grant, 2, scene.now)
    assert [message.delivery_count for message in messages] == [1, 0]


def test_a_message_beyond_its_deliveries_is_dead_lettered() -> None:
    scene = SessionScene(
        QueueDescription(requires_session=True, lock_duration_ms=LOCK_MS, max_delivery_count=1)
    )
    scene.send_to("a", b"1", b"2")
    scene.lock_of(scene.accept("a"))
    scene.advance(LOCK_MS)
    scene.tick()
    assert scene.peek(DLQ) == [1]
    assert scene.peek() == [2]
    [dead] = scene.queue.lock_next(DLQ, 1, scene.now)
    assert dead.session_id == "a"
    assert scene.queue.renew(DLQ, locks_of([dead]), scene.now)
    assert scene.settle(locks_of([dead]), COMPLETE, subqueue=DLQ) == [None]


def test_renewing_prolongs_the_locks_of_messages_too(scene: SessionScene) -> None:
    scene.send_to("a", b"1")
    lock = scene.accept("a")
    locks = scene.lock_of(lock)
    scene.advance(LOCK_MS - 1)
    until_ms = scene.sessions.renew_session("a", lock.grant, scene.now)
    assert until_ms == scene.now.utc_ms + LOCK_MS
    scene.advance(LOCK_MS - 1)
    scene.tick()
    assert scene.settle(locks, COMPLETE) == [None]
    scene.advance(1)
    with pytest.raises(SessionLockLost):
        scene.sessions.renew_session("a", lock.grant, scene.now)


def test_a_lock_that_ran_out_is_lost_when_another_accepts(scene: SessionScene) -> None:
    lock = scene.accept("a")
    scene.advance(LOCK_MS)
    other = scene.accept("a")
    assert scene.sessions.take_lost() == [("a", lock.grant)]
    scene.release(lock)
    with pytest.raises(SessionLockLost):
        scene.sessions.session_state("a", lock.grant, scene.now)
    assert scene.sessions.session_state("a", other.grant, scene.now) is None


def test_a_message_lock_inside_a_session_is_not_renewed(scene: SessionScene) -> None:
    scene.send_to("a", b"1")
    locks = scene.lock_of(scene.accept("a"))
    with pytest.raises(InvalidOperation, match="session"):
        scene.queue.renew(MAIN, locks, scene.now)


def test_a_message_of_a_session_cannot_be_made_to_wait(scene: SessionScene) -> None:
    scene.send_to("a", b"1")
    locks = scene.lock_of(scene.accept("a"))
    with pytest.raises(InvalidOperation, match="overtake"):
        scene.queue.settle(MAIN, locks, ABANDON, None, scene.now, 1_000)
    settle = Settle(7, MAIN, locks, ABANDON)
    settle.delay_ms = 1_000
    with pytest.raises(InvalidOperation, match="overtake"):
        scene.queue.check_settle(settle, scene.now)
    assert scene.settle(locks, COMPLETE) == [None]


def test_no_message_is_received_without_a_session(scene: SessionScene) -> None:
    scene.send_to("a", b"1")
    assert not scene.queue.has_ready(MAIN)
    for receive in (scene.queue.lock_next, scene.queue.take_next):
        with pytest.raises(InvalidOperation, match="requires sessions"):
            receive(MAIN, 1, scene.now)
    with pytest.raises(InvalidOperation, match="requires sessions"):
        scene.queue.receive_deferred(MAIN, [1], PEEK_LOCK, scene.now)


# --- deferral, dead-lettering, peeking ------------------------------------------------------------


def test_a_deferred_message_is_received_by_its_own_session_only(scene: SessionScene) -> None:
    scene.send_to("a", b"1", b"2")
    mine, other = scene.accept("a"), scene.accept("b")
    locks = scene.lock_of(mine)
    scene.settle(locks, DEFER)
    numbers = [locks[0][0]]
    with pytest.raises(MessageNotFound):
        scene.sessions.receive_deferred_of("b", other.grant, numbers, PEEK_LOCK, scene.now)
    with pytest.raises(SessionLockLost):
        scene.sessions.receive_deferred_of("a", other.grant, numbers, PEEK_LOCK, scene.now)
    [message] = scene.sessions.receive_deferred_of("a", mine.grant, numbers, PEEK_LOCK, scene.now)
    scene.release(mine)
    assert (message.grant, message.delivery_count) == (0, 0), "given back as a deferred message"
    again = scene.accept("a")
    [message] = scene.sessions.receive_deferred_of("a", again.grant, numbers, PEEK_LOCK, scene.now)
    assert scene.settle(locks_of([message]), DEAD_LETTER) == [None]
    assert scene.peek(DLQ) == numbers


def test_an_undeferred_message_makes_its_session_available(scene: SessionScene) -> None:
    scene.send_to("a", b"1")
    lock = scene.accept("a")
    scene.settle(scene.lock_of(lock), DEFER)
    scene.release(lock)
    assert scene.sessions.accept_session(None, scene.now) is None
    scene.queue.undefer([1], scene.now)
    assert scene.accept().session_id == "a"


@pytest.mark.parametrize("others", [0, 200], ids=["dense", "sparse"])
def test_peeking_at_one_session(scene: SessionScene, others: int) -> None:
    scene.send_to("b", *[b"x"] * others)
    numbers = []
    for _ in range(5):
        numbers += scene.send_to("a", b"1")
        scene.send_to("b", b"2")
    lock = scene.accept("a")
    locks = scene.lock_of(lock, 2)
    scene.settle(locks[:1], DEFER)
    peeked = scene.sessions.peek_session("a", 0, 100, scene.now)
    assert numbers_of(peeked) == numbers
    assert numbers_of(scene.sessions.peek_session("a", numbers[1], 2, scene.now)) == numbers[1:3]
    assert scene.sessions.peek_session("nobody", 0, 1, scene.now) == []
    with pytest.raises(ArgumentOutOfRange):
        scene.sessions.peek_session("a", 0, 0, scene.now)


# --- state ----------------------------------------------------------------------------------------


def test_a_state_stays_when_the_messages_are_gone(scene: SessionScene) -> None:
    lock = scene.accept("a")
    scene.sessions.set_session_state("a", lock.grant, b"seen 7", scene.now)
    assert scene.told() == [("SessionStateSet", "a", b"seen 7", scene.now.utc_ms)]
    scene.release(lock)
    assert scene.sessions.session_states() == [("a", b"seen 7", scene.now.utc_ms)]
    assert scene.queue.counts().size_bytes == 6
    lock = scene.accept("a")
    assert scene.sessions.session_state("a", lock.grant, scene.now) == b"seen 7"
    scene.sessions.set_session_state("a", lock.grant, None, scene.now)
    scene.release(lock)
    assert scene.sessions.session_states() == []
    assert scene.queue.counts().size_bytes == 0


def test_a_state_is_no_larger_than_a_message(scene: SessionScene) -> None:
    lock = scene.accept("a")
    largest = bytes(SESSION_STATE_BYTES_MAX)
    scene.sessions.set_session_state("a", lock.grant, largest, scene.now)
    with pytest.raises(MessageSizeExceeded):
        scene.sessions.set_session_state("a", lock.grant, largest + b"x", scene.now)
    assert scene.sessions.session_state("a", lock.grant, scene.now) == largest


def test_a_state_takes_room_of_the_queue() -> None:
    scene = SessionScene(QueueDescription(requires_session=True, max_size_megabytes=1))
    lock, other = scene.accept("a"), scene.accept("b")
    scene.sessions.set_session_state("a", lock.grant, bytes(SESSION_STATE_BYTES_MAX), scene.now)
    with pytest.raises(QuotaExceeded):
        scene.sessions.set_session_state("b", other.grant, b"x", scene.now)
    with pytest.raises(QuotaExceeded):
        scene.send_to("b", b"x")
    scene.sessions.set_session_state("a", lock.grant, b"short", scene.now)
    scene.send_to("b", b"x")


@pytest.mark.feature("session.list")
def test_which_sessions_there_are(scene: SessionScene) -> None:
    scene.send_to("b", b"1")
    scene.send_to("a", b"1")
    scene.accept("only held")
    lock = scene.accept("c")
    set_at = scene.now.utc_ms
    scene.sessions.set_session_state("c", lock.grant, b"s", scene.now)
    listed = scene.sessions.list_sessions
    assert listed(ANY_TIME_MS, 0, 100) == ["a", "b", "c"]
    assert listed(NEVER_MS, 1, 1) == ["b"]
    assert listed(NEVER_MS, 3, 100) == []
    assert listed(set_at - 1, 0, 100) == ["c"]
    assert listed(set_at, 0, 100) == []
    with pytest.raises(ArgumentOutOfRange):
        listed(NEVER_MS, -1, 1)


# --- what is kept ---------------------------------------------------------------------------------


def test_a_restart_frees_sessions_and_keeps_counts_and_states(scene: SessionScene) -> None:
    scene.send_to("a", b"1", b"2", b"3")
    lock = scene.accept("a")
    locks = scene.lock_of(lock, 3)
    scene.settle(locks[:1], ABANDON)
    scene.settle(locks[1:2], DEFER)
    scene.sessions.set_session_state("a", lock.grant, b"s", scene.now)
    scene.commit()
    assert not any(isinstance(fact, Locked) for fact in scene.log)
    scene.crash()
    again = scene.accept()
    messages = scene.sessions.lock_next_of("a", again.grant, 5, scene.now)
    assert [(m.sequence_number, m.delivery_count) for m in messages] == [(1, 1), (3, 0)]
    assert scene.sessions.session_state("a", again.grant, scene.now) == b"s"
    assert overview(scene.rebuilt())["counts"] == (2, 1, 0, 0)


def test_a_message_moved_in_the_log_while_it_was_held_is_free_after_a_restart(
    scene: SessionScene,
) -> None:
    """The store writes a message with the lock it has at that moment."""
    scene.send_to("a", b"1")
    lock = scene.accept("a")
    [message] = scene.sessions.lock_next_of("a", lock.grant, 1, scene.now)
    rebuilt = SessionScene(DESCRIPTION)
    rebuilt.queue.restore(message, MAIN, rebuilt.now)
    assert rebuilt.accept().grant > lock.grant
    assert len(rebuilt.sessions.peek_session("a", 0, 1, rebuilt.now)) == 1


def test_nothing_is_left_of_sessions_that_came_and_went(scene: SessionScene) -> None:
    part = scene.sessions._sessions
    for number in range(1_000):
        scene.send_to(str(number), b"x")
        lock = scene.accept(str(number) if number % 2 else None)
        scene.settle(scene.lock_of(lock), COMPLETE)
        scene.release(lock)
        scene.accept(f"empty {number}")
        scene.advance(LOCK_MS)
        scene.tick()
        scene.sessions.take_lost()
    assert part.sessions == {}
    assert part.stirred == {}
    assert len(part._available) < 200
    assert len(part.lock_ends._ends) < 200
    assert len(part._unpublished) == 0


def test_what_expires_in_a_session_leaves_nothing_behind(scene: SessionScene) -> None:
    for _ in range(200):
        scene.send(NewMessage(b"x", 1_000, session_id="a"))
        scene.advance(1_000)
        scene.tick()
    scene.send_to("a", b"stays")
    assert len(scene.sessions._sessions.sessions["a"].ready) < 20


def test_many_renewals_leave_one_timer(scene: SessionScene) -> None:
    lock = scene.accept("a")
    for _ in range(500):
        scene.advance(1)
        scene.sessions.renew_session("a", lock.grant, scene.now)
    assert len(scene.sessions._sessions.lock_ends._ends) == 1


def test_a_shorter_lock_duration_ends_new_locks_in_time(scene: SessionScene) -> None:
    lock = scene.accept("a")
    scene.release(lock)
    scene.queue.update(QueueDescription(requires_session=True, lock_duration_ms=5_000))
    scene.accept("a")
    scene.advance(5_000)
    scene.tick()
    assert scene.sessions.accept_session("a", scene.now) is not None


# --- as commands ----------------------------------------------------------------------------------


def test_everything_can_be_asked_by_command(scene: SessionScene) -> None:
    scene.send_to("a", b"1")
    lock = scene.accept("a")
    grant, now, queue = lock.grant, scene.now, scene.queue
    assert queue.apply(SetSessionState(7, "a", grant, b"s"), now) is None
    assert queue.apply(GetSessionState(7, "a", grant), now) == b"s"
    assert queue.apply(RenewSession(7, "a", grant), now) == now.utc_ms + LOCK_MS
    assert queue.apply(ListSessions(7, NEVER_MS, 0, 10), now) == ["a"]
    peek = Peek(7, MAIN, 0, 10)
    peek.session_id = "b"
    assert queue.apply(peek, now) == []
    scene.settle(scene.lock_of(lock), DEFER)
    receive = ReceiveDeferred(7, MAIN, [1], PEEK_LOCK)
    receive.session_id, receive.session_grant = "a", grant
    assert numbers_of(queue.apply(receive, now)) == [1]  # type: ignore[arg-type]
    peek.subqueue = DLQ
    with pytest.raises(InvalidOperation, match="session id"):
        queue.apply(peek, now)


def test_a_queue_without_sessions_says_so() -> None:
    scene = Scene()
    scene.send_bodies(b"a")
    queue, now = scene.queue, scene.now
    held = SessionLock("a", 1, 0, 0)
    queue.check_session(MAIN, None, now)
    queue.release_session("a", 1, now)
    assert not queue.has_available()
    assert not queue.session_ready("a")
    assert [queue.take_lost(), queue.take_stirred(), queue.session_states()] == [[], [], []]
    refused: list[Callable[[], object]] = [
        queue.check_has_sessions,
        lambda: queue.check_session(MAIN, held, now),
        lambda: queue.accept_session("a", now),
        lambda: queue.take_over("a", 1, now),
        lambda: queue.lock_next_of("a", 1, 1, now),
        lambda: queue.take_next_of("a", 1, 1, now),
        lambda: queue.locked_until_utc_ms("a", now),
        lambda: queue.peek_session("a", 0, 1, now),
    ]
    for ask in refused:
        with pytest.raises(InvalidOperation):
            ask()


def test_a_receiver_comes_with_a_session_except_to_dead_letters() -> None:
    scene = SessionScene()
    queue = scene.queue
    queue.check_has_sessions()
    lock = scene.accept("a")
    queue.check_session(MAIN, lock, scene.now)
    queue.check_session(DLQ, None, scene.now)
    for part, session in ((MAIN, None), (DLQ, lock)):
        with pytest.raises(InvalidOperation):
            queue.check_session(part, session, scene.now)
    scene.release(lock)
    with pytest.raises(SessionLockLost):
        queue.check_session(MAIN, lock, scene.now)
