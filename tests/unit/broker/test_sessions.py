"""Who gets a session, who waits for one, and what happens when a lock is lost."""

import pytest

from tests.unit.broker.harness import BrokerHarness, SimSink
from twinbus.broker.delivery import Receiver
from twinbus.broker.session_waiters import Waiter
from twinbus.entities.commands import (
    COMPLETE,
    PEEK_LOCK,
    RECEIVE_AND_DELETE,
    GetSessionState,
    RenewSession,
    Send,
    SetSessionState,
    Settle,
)
from twinbus.entities.descriptions import DISABLED, QueueDescription
from twinbus.entities.facts import DEAD_LETTER, MAIN
from twinbus.entities.message import NewMessage
from twinbus.entities.queue import Queue
from twinbus.entities.session_locks import SessionLock
from twinbus.errors import (
    EntityDisabled,
    EntityNotFound,
    InvalidOperation,
    LinkStolen,
    OperationTimeout,
    ServerBusy,
    ServiceError,
    SessionCannotBeLocked,
    SessionLockLost,
)
from twinbus.limits import RECEIVERS_MAX
from twinbus.links.store_link import ReceiverDescription

pytestmark = pytest.mark.proves("M-4")

LOCK_MS = 10_000
DESCRIPTION = QueueDescription(requires_session=True, lock_duration_ms=LOCK_MS)


class Stage(BrokerHarness):
    """A broker with one session queue."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: Queue = self.create_queue("orders", DESCRIPTION)

    def send_to(self, session_id: str, *bodies: bytes) -> None:
        messages = [NewMessage(body, session_id=session_id) for body in bodies]
        self.submit(Send(self.queue.entity_id, messages))
        self.run()

    def wait(
        self, session_id: str | None = None, timeout_ms: int = 60_000, grant: int = 0
    ) -> tuple[list[SessionLock | ServiceError], Waiter]:
        """Ask for a session; the answer comes into the list."""
        answers: list[SessionLock | ServiceError] = []
        entity_id = self.queue.entity_id
        waiter = self.broker.accept_session(
            entity_id, session_id, timeout_ms, grant, answers.append
        )
        self.run()
        return answers, waiter

    def accept(self, session_id: str | None = None) -> SessionLock:
        [lock] = self.wait(session_id)[0]
        assert isinstance(lock, SessionLock)
        return lock

    def open(
        self,
        lock: SessionLock,
        credit: int = 10,
        receive_mode: int = PEEK_LOCK,
        is_exclusive: bool = True,
    ) -> tuple[Receiver, SimSink]:
        sink = SimSink()
        receiver = self.broker.open_receiver(
            ReceiverDescription(self.queue.entity_id, MAIN, receive_mode, lock, is_exclusive), sink
        )
        receiver.set_credit(credit, drain=False)
        self.run()
        return receiver, sink


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.mark.feature("session.order")
def test_a_receiver_gets_the_messages_of_its_session_only(stage: Stage) -> None:
    stage.send_to("a", b"a1", b"a2")
    stage.send_to("b", b"b1")
    _, a = stage.open(stage.accept("a"), credit=1)
    _, b = stage.open(stage.accept())
    assert a.bodies == [b"a1"], "no more than it has credit for"
    assert b.bodies == [b"b1"]
    stage.send_to("b", b"b2")
    stage.send_to("a", b"a3")
    assert b.bodies == [b"b1", b"b2"]
    assert a.bodies == [b"a1"]


def test_credit_and_room_bring_the_rest(stage: Stage) -> None:
    stage.send_to("a", b"1", b"2", b"3")
    receiver, sink = stage.open(stage.accept("a"), credit=1)
    sink.is_full = True
    receiver.set_credit(5, drain=False)
    stage.run()
    assert sink.bodies == [b"1"]
    sink.is_full = False
    receiver.resume()
    stage.run()
    assert sink.bodies == [b"1", b"2", b"3"]


def test_receive_and_delete_from_a_session(stage: Stage) -> None:
    stage.send_to("a", b"1", b"2")
    _, sink = stage.open(stage.accept("a"), receive_mode=RECEIVE_AND_DELETE)
    assert sink.bodies == [b"1", b"2"]
    assert sink.locks == []
    assert stage.queue.counts().message_count == 0


def test_a_drain_is_answered(stage: Stage) -> None:
    stage.send_to("a", b"1")
    receiver, sink = stage.open(stage.accept("a"), credit=0)
    receiver.set_credit(5, drain=True)
    stage.run()
    assert (sink.bodies, sink.drained_count, receiver.credit) == ([b"1"], 1, 0)


def test_more_than_a_turn_holds_comes_all_the_same(stage: Stage) -> None:
    bodies = [b"x"] * 1_500
    stage.send_to("a", *bodies)
    stage.send_to("b", *bodies)
    sinks = [stage.open(stage.accept(each), credit=5_000)[1] for each in ("a", "b")]
    assert [len(sink.bodies) for sink in sinks] == [1_500, 1_500]


# --- waiting --------------------------------------------------------------------------------------


@pytest.mark.feature("session.accept")
def test_who_waits_longest_is_served_first(stage: Stage) -> None:
    first, _ = stage.wait()
    second, _ = stage.wait()
    stage.send_to("a", b"1")
    assert isinstance(first[0], SessionLock)
    assert second == []
    stage.open(first[0])
    stage.send_to("b", b"1")
    assert isinstance(second[0], SessionLock)
    assert (first[0].session_id, second[0].session_id) == ("a", "b")
    assert len(first) == len(second) == 1


def test_a_session_that_is_closed_goes_to_who_waits(stage: Stage) -> None:
    stage.send_to("a", b"1")
    receiver, sink = stage.open(stage.accept("a"))
    answers, _ = stage.wait()
    assert answers == []
    receiver.close()
    stage.run()
    assert isinstance(answers[0], SessionLock)
    _, other = stage.open(answers[0])
    assert [m.delivery_count for m in other.messages] == [0]
    assert sink.errors == []


def test_a_wait_ends_with_its_time(stage: Stage) -> None:
    answers, _ = stage.wait(timeout_ms=3_000)
    longer, _ = stage.wait(timeout_ms=7_000)
    stage.pass_time(2_999)
    assert answers == []
    stage.pass_time(1)
    assert isinstance(answers[0], OperationTimeout)
    stage.send_to("a", b"1")
    assert isinstance(longer[0], SessionLock)
    stage.pass_time(60_000)
    assert len(answers) == len(longer) == 1


def test_who_gave_up_is_never_answered(stage: Stage) -> None:
    gone, waiter = stage.wait(timeout_ms=3_000)
    stays, _ = stage.wait()
    waiter.cancel()
    waiter.cancel()
    stage.send_to("a", b"1")
    assert isinstance(stays[0], SessionLock)
    stage.pass_time(5_000)
    assert gone == []


def test_ten_thousand_who_gave_up_leave_nothing_behind(stage: Stage) -> None:
    entity_id = stage.queue.entity_id
    answers, _ = stage.wait()
    for _ in range(10_000):
        waiter = stage.broker.accept_session(entity_id, None, 60_000, 0, answers.append)
        waiter.cancel()
    waiters = stage.broker.receivers.by_entity[entity_id]._waiters  # type: ignore[attr-defined]
    assert len(waiters._line) < 200
    stage.send_to("a", b"1")
    assert len(answers) == 1


def test_a_named_session_is_refused_at_once(stage: Stage) -> None:
    stage.accept("a")
    answers, _ = stage.wait("a")
    assert isinstance(answers[0], SessionCannotBeLocked)


def test_a_deleted_entity_ends_waits_and_receivers(stage: Stage) -> None:
    stage.send_to("a", b"1")
    _, sink = stage.open(stage.accept("a"))
    answers, _ = stage.wait()
    stage.delete(stage.queue)
    assert sink.is_removed
    assert isinstance(answers[0], EntityNotFound)
    with pytest.raises(EntityNotFound):
        stage.wait()


def test_a_disabled_entity_gives_no_session_and_goes_on_when_enabled(stage: Stage) -> None:
    stage.send_to("a", b"1", b"2")
    receiver, sink = stage.open(stage.accept("a"), credit=1)
    answers, _ = stage.wait()
    disabled = QueueDescription(requires_session=True, lock_duration_ms=LOCK_MS, status=DISABLED)
    stage.update(stage.queue, disabled)
    with pytest.raises(EntityDisabled):
        stage.wait()
    receiver.set_credit(5, drain=False)
    stage.run()
    assert (len(sink.bodies), answers) == (1, [])
    stage.update(stage.queue, DESCRIPTION)
    assert len(sink.bodies) == 2


def test_an_entity_that_nobody_uses_is_not_busy(stage: Stage) -> None:
    answers, _ = stage.wait(timeout_ms=1_000)
    stage.accept("a")
    stage.wait("a")
    stage.pass_time(20_000)
    assert isinstance(answers[0], OperationTimeout)
    assert stage.broker.receivers.by_entity == {}


# --- losing ---------------------------------------------------------------------------------------


def test_a_lock_that_runs_out_is_told_and_the_session_goes_on_to_others(stage: Stage) -> None:
    stage.send_to("a", b"1")
    receiver, sink = stage.open(stage.accept("a"))
    answers, _ = stage.wait()
    stage.pass_time(LOCK_MS)
    assert [type(error) for error in sink.errors] == [SessionLockLost]
    receiver.close()  # as the gateway does when it is told
    assert isinstance(answers[0], SessionLock)
    _, other = stage.open(answers[0])
    assert [m.delivery_count for m in other.messages] == [1]
    settle = Settle(stage.queue.entity_id, MAIN, sink.locks, COMPLETE)
    stage.submit(settle)
    stage.run()
    reply = stage.reply_to(settle)
    assert reply is not None
    assert isinstance(reply.result, list)
    assert [type(error) for error in reply.result] == [SessionLockLost]


def test_renewing_keeps_the_session(stage: Stage) -> None:
    lock = stage.accept("a")
    _, sink = stage.open(lock)
    for _ in range(5):
        stage.pass_time(LOCK_MS - 1)
        stage.submit(RenewSession(stage.queue.entity_id, "a", lock.grant))
    assert sink.errors == []
    stage.pass_time(LOCK_MS)
    assert len(sink.errors) == 1


@pytest.mark.feature("session.take-over")
def test_another_receiver_takes_over(stage: Stage) -> None:
    stage.send_to("a", b"1", b"2")
    lock = stage.accept("a")
    older = ClosingSink(stage)
    entity_id = stage.queue.entity_id
    older.receiver = stage.broker.open_receiver(
        ReceiverDescription(entity_id, MAIN, PEEK_LOCK, lock, False), older
    )
    older.receiver.set_credit(1, drain=False)
    stage.run()
    opened: list[tuple[Receiver, SimSink]] = []

    def open_at_once(answer: SessionLock | ServiceError) -> None:
        assert isinstance(answer, SessionLock)
        opened.append(stage.open(answer, is_exclusive=False))

    stage.broker.accept_session(entity_id, "a", 1_000, lock.grant, open_at_once)
    [(newer, taken)] = opened
    assert [type(error) for error in older.errors] == [LinkStolen]
    stage.send_to("a", b"3")
    assert taken.bodies == [b"2", b"3"], "what the other was given is still locked"
    newer.close()
    stage.run()
    assert isinstance(stage.wait("a")[0][0], SessionCannotBeLocked), "its lock runs on"
    assert isinstance(stage.wait("a", grant=lock.grant)[0][0], SessionLock)
    stage.pass_time(LOCK_MS)
    assert isinstance(stage.wait("a", grant=lock.grant)[0][0], SessionLockLost)


# --- what does not fit ----------------------------------------------------------------------------


def test_a_plain_receiver_on_a_session_entity_is_refused(stage: Stage) -> None:
    with pytest.raises(InvalidOperation, match="requires sessions"):
        stage.receiver(stage.queue)
    stage.receiver(stage.queue, subqueue=DEAD_LETTER)
    assert list(stage.broker.receivers.by_entity) == [stage.queue.entity_id]


def test_a_session_receiver_on_a_plain_entity_is_refused(stage: Stage) -> None:
    plain = stage.create_queue("plain")
    with pytest.raises(InvalidOperation, match="does not require sessions"):
        stage.broker.accept_session(plain.entity_id, None, 1_000, 0, print)
    lock = stage.accept("a")
    for entity_id, part in ((plain.entity_id, MAIN), (stage.queue.entity_id, DEAD_LETTER)):
        with pytest.raises(InvalidOperation, match="no sessions"):
            stage.broker.open_receiver(
                ReceiverDescription(entity_id, part, PEEK_LOCK, lock), SimSink()
            )
    stage.broker.release_session(stage.queue.entity_id, lock)
    assert stage.accept("a").grant > lock.grant


# --- durability -----------------------------------------------------------------------------------


@pytest.mark.feature("session.state")
def test_a_state_is_told_only_when_it_is_durable(stage: Stage) -> None:
    lock = stage.accept("a")
    entity_id = stage.queue.entity_id
    get = GetSessionState(entity_id, "a", lock.grant)
    stage.submit(SetSessionState(entity_id, "a", lock.grant, b"s"), get)
    assert stage.reply_to(get) is None
    commit = stage.turn()
    assert commit is not None
    assert stage.reply_to(get) is None
    stage.write(commit)
    reply = stage.reply_to(get)
    assert reply is not None
    assert reply.result == b"s"
    again = GetSessionState(entity_id, "a", lock.grant)
    stage.submit(again)
    assert stage.reply_to(again) is not None, "nothing is on its way: the answer comes at once"


def test_after_a_restart_every_session_is_free(stage: Stage) -> None:
    stage.send_to("a", b"1", b"2")
    lock = stage.accept("a")
    _, sink = stage.open(lock)
    stage.submit(
        Settle(stage.queue.entity_id, MAIN, sink.locks[:1], COMPLETE),
        SetSessionState(stage.queue.entity_id, "a", lock.grant, b"one"),
    )
    stage.run()
    stage.clock.advance(1)  # starting takes its time
    restarted = BrokerHarness(stage.disk.restarted(), stage.clock)
    queue = restarted.store.entities[stage.queue.entity_id]
    answers: list[SessionLock | ServiceError] = []
    restarted.broker.accept_session(queue.entity_id, None, 1_000, 0, answers.append)
    [again] = answers
    assert isinstance(again, SessionLock)
    assert again.grant > lock.grant
    sink = SimSink()
    receiver = restarted.broker.open_receiver(
        ReceiverDescription(queue.entity_id, MAIN, PEEK_LOCK, again), sink
    )
    receiver.set_credit(10, drain=False)
    restarted.run()
    assert sink.bodies == [b"2"]
    get = GetSessionState(queue.entity_id, "a", again.grant)
    restarted.submit(get)
    reply = restarted.reply_to(get)
    assert reply is not None
    assert reply.result == b"one"


# --- many receivers -------------------------------------------------------------------------------


def test_a_turn_looks_only_at_sessions_that_changed(stage: Stage) -> None:
    """A thousand receivers wait with credit; one message must not ask them all."""
    sinks = [CountingSink() for _ in range(1_000)]
    for number, sink in enumerate(sinks):
        lock = stage.accept(str(number))
        entity_id = stage.queue.entity_id
        receiver = stage.broker.open_receiver(
            ReceiverDescription(entity_id, MAIN, PEEK_LOCK, lock), sink
        )
        receiver.set_credit(10, drain=False)
    stage.run()
    for sink in sinks:
        sink.asked = 0
    stage.send_to("500", b"x")
    assert sinks[500].bodies == [b"x"]
    assert sum(sink.asked for sink in sinks) < 5


class ClosingSink(SimSink):
    """Closes at once when it hears that its session is lost, as the gateway does."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage
        self.receiver: Receiver | None = None

    def lost(self, error: ServiceError) -> None:
        super().lost(error)
        assert self.receiver is not None
        self.receiver.close()


class CountingSink(SimSink):
    """Counts how often it is asked whether it has room."""

    asked = 0

    def full(self) -> bool:
        self.asked += 1
        return False


def test_an_entity_with_its_fill_of_receivers_is_busy_until_one_closes() -> None:
    stage = Stage()
    entity_id, broker = stage.queue.entity_id, stage.broker
    opened = [
        broker.open_receiver(ReceiverDescription(entity_id, DEAD_LETTER, PEEK_LOCK), SimSink())
        for _ in range(RECEIVERS_MAX - 1)
    ]
    _, waiter = stage.wait()  # who waits for a session counts too
    with pytest.raises(ServerBusy, match="10 seconds"):
        broker.open_receiver(ReceiverDescription(entity_id, DEAD_LETTER, PEEK_LOCK), SimSink())
    with pytest.raises(ServerBusy):
        stage.wait("a")
    opened.pop().close()
    broker.open_receiver(ReceiverDescription(entity_id, DEAD_LETTER, PEEK_LOCK), SimSink())
    waiter.cancel()
    accepted, _ = stage.wait("a")
    assert isinstance(accepted[0], SessionLock)
