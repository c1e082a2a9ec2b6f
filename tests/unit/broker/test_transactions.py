"""Transactions at the broker: all of it or nothing, checked when added and again at the commit."""

import dataclasses

import pytest

from tests.unit.broker.harness import BrokerHarness, SimSink
from twinbus.amqp.encoding import encode_value
from twinbus.broker.transactions import Transactions
from twinbus.entities.commands import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DEFER,
    PEEK_LOCK,
    RELEASE,
    CancelScheduled,
    Lock,
    Peek,
    ReceiveDeferred,
    RenewLocks,
    Send,
    Settle,
)
from twinbus.entities.descriptions import SEND_DISABLED, QueueDescription, TopicDescription
from twinbus.entities.facts import MAIN
from twinbus.entities.message import NEVER_MS, NewMessage, Overlay
from twinbus.entities.queue import Queue
from twinbus.entities.rule_descriptions import ActionDescription, RuleDescription, default_rule
from twinbus.entities.sessions import SessionQueue
from twinbus.errors import (
    EntityNotFound,
    InvalidOperation,
    MessageLockLost,
    NotSupported,
    QuotaExceeded,
    ServerBusy,
    ServiceError,
    TransactionNotFound,
    TransactionRolledBack,
    TransactionTimedOut,
)
from twinbus.limits import (
    TRANSACTION_DURATION_MS_MAX,
    TRANSACTION_MESSAGES_MAX,
    TRANSACTIONS_MAX,
    TRANSACTIONS_SIZE_BYTES_MAX,
)
from twinbus.links.transactions import Transaction
from twinbus.message.incoming import new_message
from twinbus.message.message_id import MessageIds
from twinbus.message.plain import data_section, encode_message


class Scene:
    """A broker with two queues and one client."""

    def __init__(self) -> None:
        self.harness = BrokerHarness()
        self.orders = self.harness.create_queue("orders")
        self.invoices = self.harness.create_queue("invoices")
        self.transactions = self.client(b"client-1")
        self.results: list[ServiceError | None] = []

    def client(self, prefix: bytes) -> Transactions:
        return Transactions(self.harness.broker, self.harness.clock, prefix)

    def declare(self) -> Transaction:
        return self.transactions.declare(self)

    def send(self, transaction: Transaction, queue: Queue, *bodies: bytes) -> None:
        self.transactions.add(transaction, sending(queue, *bodies))

    def settle(
        self, transaction: Transaction, queue: Queue, locks: list[Lock], outcome: int = COMPLETE
    ) -> None:
        self.transactions.add(transaction, Settle(queue.entity_id, MAIN, locks, outcome))

    def commit(self, transaction: Transaction) -> ServiceError | None:
        self.transactions.commit(transaction, self.results.append)
        self.harness.run()
        return self.results.pop()

    def received(self, queue: Queue, *bodies: bytes) -> SimSink:
        """A receiver that has these messages locked."""
        self.harness.send(queue, *bodies)
        _, sink = self.harness.receiver(queue, credit=len(bodies))
        self.harness.run()
        assert len(sink.locks) == len(bodies)
        return sink

    def count(self, queue: Queue) -> int:
        return queue.counts().message_count


def sending(queue: Queue, *bodies: bytes) -> Send:
    return Send(queue.entity_id, [NewMessage(body) for body in bodies])


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.mark.proves("M-7")
@pytest.mark.feature("transaction.commit")
def test_commit_sends_and_settles_together(scene: Scene) -> None:
    sink = scene.received(scene.orders, b"order")
    transaction = scene.declare()
    scene.settle(transaction, scene.orders, sink.locks)
    scene.send(transaction, scene.invoices, b"first", b"second")
    assert scene.count(scene.invoices) == 0  # nobody sees it before the commit
    assert scene.count(scene.orders) == 1
    assert scene.commit(transaction) is None
    assert scene.count(scene.orders) == 0
    _, invoices = scene.harness.receiver(scene.invoices, credit=9)
    scene.harness.run()
    assert invoices.bodies == [b"first", b"second"]


@pytest.mark.proves("M-7")
@pytest.mark.feature("transaction.commit")
def test_roll_back_leaves_everything_as_it_was(scene: Scene) -> None:
    sink = scene.received(scene.orders, b"order")
    transaction = scene.declare()
    scene.settle(transaction, scene.orders, sink.locks)
    scene.send(transaction, scene.invoices, b"never")
    scene.transactions.roll_back(transaction)
    scene.harness.run()
    assert scene.count(scene.invoices) == 0
    # The lock still holds, so the message can be settled now.
    complete = Settle(scene.orders.entity_id, MAIN, sink.locks, COMPLETE)
    scene.harness.submit(complete)
    scene.harness.run()
    reply = scene.harness.reply_to(complete)
    assert reply is not None
    assert reply.result is None


@pytest.mark.parametrize("outcome", [COMPLETE, ABANDON, DEFER, DEAD_LETTER, RELEASE])
def test_every_outcome_waits_for_the_commit(scene: Scene, outcome: int) -> None:
    sink = scene.received(scene.orders, b"one")
    message = sink.messages[0]
    grant = message.grant
    transaction = scene.declare()
    scene.settle(transaction, scene.orders, sink.locks, outcome)
    assert message.grant == grant
    assert scene.commit(transaction) is None
    counts = scene.orders.counts()
    assert counts.dead_letter == (outcome == DEAD_LETTER)
    assert counts.deferred == (outcome == DEFER)
    assert counts.active == (outcome in (ABANDON, RELEASE))
    assert message.delivery_count == (outcome == ABANDON)


def test_commit_is_told_only_when_durable(scene: Scene) -> None:
    transaction = scene.declare()
    scene.send(transaction, scene.orders, b"one")
    scene.send(transaction, scene.invoices, b"two")
    scene.transactions.commit(transaction, scene.results.append)
    commit = scene.harness.turn()
    assert commit is not None
    assert commit.fact_count == 1  # one `Together`: all or nothing on disk too
    assert scene.results == []
    scene.harness.write(commit)
    assert scene.results == [None]


def test_empty_transaction_commits(scene: Scene) -> None:
    assert scene.commit(scene.declare()) is None


@pytest.mark.proves("M-7")
@pytest.mark.feature("transaction.commit")
def test_commit_is_refused_when_a_lock_was_lost(scene: Scene) -> None:
    sink = scene.received(scene.orders, b"order")
    transaction = scene.declare()
    scene.settle(transaction, scene.orders, sink.locks)
    scene.send(transaction, scene.invoices, b"never")
    scene.harness.pass_time(scene.orders.description.lock_duration_ms)
    refusal = scene.commit(transaction)
    assert isinstance(refusal, TransactionRolledBack)
    assert "lock" in str(refusal)
    assert scene.count(scene.orders) == 1
    assert scene.count(scene.invoices) == 0


def test_commit_is_refused_when_an_entity_has_gone(scene: Scene) -> None:
    transaction = scene.declare()
    scene.send(transaction, scene.orders, b"one")
    scene.send(transaction, scene.invoices, b"two")
    scene.harness.store.delete_entities([scene.invoices.entity_id])
    assert isinstance(scene.commit(transaction), TransactionRolledBack)
    assert scene.count(scene.orders) == 0


def test_commit_is_refused_when_an_entity_was_disabled(scene: Scene) -> None:
    transaction = scene.declare()
    scene.send(transaction, scene.orders, b"one")
    scene.send(transaction, scene.invoices, b"two")
    disabled = dataclasses.replace(scene.invoices.description, status=SEND_DISABLED)
    scene.harness.store.update_entity(scene.invoices.entity_id, disabled)
    assert isinstance(scene.commit(transaction), TransactionRolledBack)
    assert scene.count(scene.orders) == 0


def test_sizes_of_one_transaction_add_up(scene: Scene) -> None:
    small = scene.harness.create_queue("small", QueueDescription(max_size_megabytes=1))
    body = b"x" * 50_000
    for _ in range(19):
        scene.harness.send(small, body)
        scene.harness.run()
    transaction = scene.declare()
    scene.send(transaction, small, body)
    with pytest.raises(QuotaExceeded, match="small"):
        scene.send(transaction, small, body)
    assert scene.commit(transaction) is None  # what was refused is no part of it
    assert scene.count(small) == 20


def test_added_is_checked_at_once(scene: Scene) -> None:
    sink = scene.received(scene.orders, b"one")
    number, grant = sink.locks[0]
    transaction = scene.declare()
    with pytest.raises(MessageLockLost):
        scene.settle(transaction, scene.orders, [(number, grant + 1)])
    with pytest.raises(EntityNotFound):
        scene.transactions.add(transaction, Send(99, [NewMessage(b"one")]))
    scene.settle(transaction, scene.orders, sink.locks)
    with pytest.raises(InvalidOperation, match="already settled"):
        scene.settle(transaction, scene.orders, sink.locks, ABANDON)
    with pytest.raises(InvalidOperation, match="already settled"):
        scene.settle(scene.declare(), scene.orders, sink.locks * 2)
    with pytest.raises(NotSupported):
        scene.transactions.add(transaction, Peek(scene.orders.entity_id, MAIN, 0, 1))
    assert scene.commit(transaction) is None


def test_lock_of_two_transactions_goes_to_the_first_commit(scene: Scene) -> None:
    sink = scene.received(scene.orders, b"one")
    first, second = scene.declare(), scene.declare()
    scene.settle(first, scene.orders, sink.locks, COMPLETE)
    scene.settle(second, scene.orders, sink.locks, ABANDON)
    scene.send(second, scene.invoices, b"never")
    assert scene.commit(first) is None
    assert isinstance(scene.commit(second), TransactionRolledBack)
    assert scene.count(scene.invoices) == 0


def test_renewed_lock_can_be_committed(scene: Scene) -> None:
    sink = scene.received(scene.orders, b"one")
    transaction = scene.declare()
    scene.settle(transaction, scene.orders, sink.locks)
    scene.harness.pass_time(50_000)
    scene.harness.submit(RenewLocks(scene.orders.entity_id, MAIN, sink.locks))
    scene.harness.pass_time(50_000)
    assert scene.commit(transaction) is None


# --- ids ------------------------------------------------------------------------------------------


def test_ids_belong_to_their_connection(scene: Scene) -> None:
    transaction = scene.declare()
    assert scene.transactions.find(transaction.txn_id) is transaction
    assert len(transaction.txn_id) == 16
    with pytest.raises(TransactionNotFound):
        scene.client(b"client-2").find(transaction.txn_id)
    with pytest.raises(TransactionNotFound):
        scene.transactions.find(b"")


def test_discharged_id_is_unknown(scene: Scene) -> None:
    transaction = scene.declare()
    assert scene.commit(transaction) is None
    with pytest.raises(TransactionNotFound):
        scene.transactions.find(transaction.txn_id)


@pytest.mark.proves("M-7")
@pytest.mark.feature("transaction.limits")
def test_end_of_a_control_link_rolls_back_its_own(scene: Scene) -> None:
    mine = scene.transactions.declare("mine")
    other = scene.transactions.declare("other")
    scene.send(mine, scene.orders, b"never")
    scene.send(other, scene.orders, b"kept")
    scene.transactions.roll_back_all("mine")
    with pytest.raises(TransactionNotFound):
        scene.transactions.find(mine.txn_id)
    assert scene.commit(other) is None
    assert scene.count(scene.orders) == 1


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.proves("M-7")
@pytest.mark.feature("transaction.limits")
def test_hundred_messages_and_no_more(scene: Scene) -> None:
    sink = scene.received(scene.orders, b"one")
    transaction = scene.declare()
    scene.settle(transaction, scene.orders, sink.locks)
    for _ in range(TRANSACTION_MESSAGES_MAX - 1):
        scene.send(transaction, scene.invoices, b"x")
    with pytest.raises(QuotaExceeded, match="100 messages"):
        scene.send(transaction, scene.invoices, b"x")
    assert scene.commit(transaction) is None
    assert scene.count(scene.invoices) == 99


def test_transaction_must_fit_into_a_frame(scene: Scene) -> None:
    transaction = scene.declare()
    body = b"x" * 50_000
    scene.send(transaction, scene.orders, body, body)
    with pytest.raises(QuotaExceeded, match="bytes together"):
        scene.send(transaction, scene.invoices, body)
    assert scene.commit(transaction) is None


def test_bytes_of_all_open_transactions_are_limited(scene: Scene) -> None:
    transaction = scene.declare()
    scene.harness.broker.transaction_bytes = TRANSACTIONS_SIZE_BYTES_MAX
    with pytest.raises(ServerBusy):
        scene.send(transaction, scene.orders, b"x")
    scene.harness.broker.transaction_bytes = 0
    scene.send(transaction, scene.orders, b"x")
    assert scene.harness.broker.transaction_bytes > 0
    scene.transactions.roll_back(transaction)
    assert scene.harness.broker.transaction_bytes == 0


def test_open_transactions_are_limited(scene: Scene) -> None:
    for _ in range(TRANSACTIONS_MAX):
        last = scene.declare()
    with pytest.raises(QuotaExceeded):
        scene.declare()
    scene.transactions.roll_back(last)
    scene.declare()


@pytest.mark.proves("M-7")
@pytest.mark.feature("transaction.limits")
def test_times_out_two_minutes_after_its_first_operation(scene: Scene) -> None:
    idle, busy = scene.declare(), scene.declare()
    scene.harness.pass_time(TRANSACTION_DURATION_MS_MAX * 2)
    scene.send(busy, scene.orders, b"never")
    scene.harness.pass_time(TRANSACTION_DURATION_MS_MAX - 1)
    scene.transactions.tick()
    assert scene.transactions.find(busy.txn_id) is busy
    scene.harness.pass_time(1)
    scene.transactions.tick()
    with pytest.raises(TransactionTimedOut):
        scene.transactions.find(busy.txn_id)
    assert scene.harness.broker.transaction_bytes == 0
    assert scene.transactions.find(idle.txn_id) is idle  # it has not begun


def test_time_out_does_not_wait_for_the_timer(scene: Scene) -> None:
    transaction = scene.declare()
    scene.send(transaction, scene.orders, b"never")
    scene.harness.pass_time(TRANSACTION_DURATION_MS_MAX)
    with pytest.raises(TransactionTimedOut):
        scene.transactions.find(transaction.txn_id)


# --- endings --------------------------------------------------------------------------------------


class Witness:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def committed(self) -> None:
        self.heard.append("committed")

    def rolled_back(self) -> None:
        self.heard.append("rolled back")


def test_endings_hear_once(scene: Scene) -> None:
    for failure, heard in ((None, "committed"), (NotSupported("no"), "rolled back")):
        transaction = scene.declare()
        scene.send(transaction, scene.orders, b"one")
        witness = Witness()
        transaction.endings.append(witness)
        transaction.failure = failure
        scene.commit(transaction)
        assert witness.heard == [heard]


# --- schedules ------------------------------------------------------------------------------------


def scheduling(scene: Scene, queue: Queue, *bodies: bytes) -> Send:
    due_ms = scene.harness.clock.now().utc_ms + 60_000
    return Send(queue.entity_id, [NewMessage(body, scheduled_ms=due_ms) for body in bodies])


@pytest.mark.proves("M-7")
@pytest.mark.feature("transaction.commit")
def test_scheduled_numbers_are_told_before_the_commit(scene: Scene) -> None:
    transaction = scene.declare()
    command = scheduling(scene, scene.orders, b"later", b"later too")
    numbers = scene.transactions.schedule(transaction, command)
    scene.harness.send(scene.orders, b"between")
    scene.harness.run()
    assert scene.count(scene.orders) == 1
    assert scene.commit(transaction) is None
    assert scene.orders.counts().scheduled == 2
    scene.harness.submit(CancelScheduled(scene.orders.entity_id, numbers[:1]))
    scene.harness.pass_time(60_000)
    _, sink = scene.harness.receiver(scene.orders, credit=9)
    scene.harness.run()
    assert sink.bodies == [b"between", b"later too"]


def test_scheduled_messages_are_hidden_until_durable(scene: Scene) -> None:
    transaction = scene.declare()
    scene.transactions.schedule(transaction, scheduling(scene, scene.orders, b"later"))
    scene.harness.send(scene.orders, b"newer number")
    scene.harness.run()
    scene.transactions.commit(transaction, scene.results.append)
    assert scene.orders.counts().scheduled == 0
    scene.harness.run()
    assert scene.orders.counts().scheduled == 1


def test_rolled_back_schedule_leaves_only_a_gap(scene: Scene) -> None:
    transaction = scene.declare()
    (number,) = scene.transactions.schedule(transaction, scheduling(scene, scene.orders, b"never"))
    scene.transactions.roll_back(transaction)
    scene.harness.send(scene.orders, b"next")
    _, sink = scene.harness.receiver(scene.orders, credit=1)
    scene.harness.run()
    assert sink.messages[0].sequence_number == number + 1


def test_schedule_survives_a_restart(scene: Scene) -> None:
    transaction = scene.declare()
    (number,) = scene.transactions.schedule(transaction, scheduling(scene, scene.orders, b"later"))
    scene.harness.send(scene.orders, b"newer number")
    scene.harness.run()
    assert scene.commit(transaction) is None
    scene.harness.store.close()
    again = BrokerHarness(scene.harness.disk, scene.harness.clock)
    orders = again.store.entities[scene.orders.entity_id]
    assert orders.counts().scheduled == 1
    orders.cancel_scheduled([number], again.clock.now())


# --- other kinds of entities ----------------------------------------------------------------------


def test_topic_fans_out_at_the_commit(scene: Scene) -> None:
    topic = scene.harness.create_topic()
    first, second = (scene.harness.create_subscription(topic, name) for name in ("s1", "s2"))
    transaction = scene.declare()
    scene.send(transaction, topic, b"one", b"two")
    scene.send(transaction, scene.orders, b"three")
    assert scene.count(first) == 0
    scene.transactions.commit(transaction, scene.results.append)
    commit = scene.harness.turn()
    assert commit is not None
    assert commit.fact_count == 1
    scene.harness.write(commit)
    assert [scene.count(queue) for queue in (first, second, scene.orders)] == [2, 2, 1]


def test_nothing_is_sent_to_a_subscription(scene: Scene) -> None:
    subscription = scene.harness.create_subscription(scene.harness.create_topic(), "s1")
    with pytest.raises(InvalidOperation, match="topic"):
        scene.send(scene.declare(), subscription, b"never")


def test_full_subscription_rolls_back_the_rest(scene: Scene) -> None:
    topic = scene.harness.create_topic("news", TopicDescription(max_size_megabytes=1))
    full = scene.harness.create_subscription(topic, "full")
    body = b"x" * 50_000
    for _ in range(20):
        scene.harness.send(topic, body)
        scene.harness.run()
    transaction = scene.declare()
    with pytest.raises(QuotaExceeded):
        scene.send(transaction, topic, body)
    scene.send(transaction, topic, b"x" * 20_000)
    scene.send(transaction, topic, b"x" * 20_000)
    scene.send(transaction, scene.orders, b"never")
    scene.harness.send(topic, b"x" * 20_000)
    assert isinstance(scene.commit(transaction), TransactionRolledBack)
    assert scene.count(full) == 21
    assert scene.count(scene.orders) == 0


def test_copies_of_a_topic_must_fit_into_the_frame(scene: Scene) -> None:
    topic = scene.harness.create_topic()
    action = ActionDescription("SET kind = 'copy'")
    rule = RuleDescription("rewrites", default_rule().filter, action)
    for number in range(5):
        scene.harness.create_subscription(topic, f"s{number}", rule=rule)
    transaction = scene.declare()
    with pytest.raises(QuotaExceeded, match="can be written at once"):
        scene.transactions.add(transaction, Send(topic.entity_id, [stored(b"x" * 50_000)]))
    for _ in range(2):  # each of them would fit
        scene.transactions.add(transaction, Send(topic.entity_id, [stored(b"x" * 20_000)]))
    scene.send(transaction, scene.orders, b"never")
    refusal = scene.commit(transaction)
    assert isinstance(refusal, TransactionRolledBack)
    assert "can be written at once" in str(refusal)
    assert scene.count(scene.orders) == 0


def test_what_settled_messages_carry_must_fit_into_the_frame(scene: Scene) -> None:
    """Dead-lettering writes the properties again that an earlier abandon has set."""
    harness, orders = scene.harness, scene.orders
    sink = scene.received(orders, *(b"m" for _ in range(12)))
    note = Overlay(properties=encode_value({"note": "x" * 20_000}))
    harness.submit(Settle(orders.entity_id, MAIN, sink.locks, DEFER, note))
    harness.run()
    numbers = [number for number, _ in sink.locks]
    harness.submit(again := ReceiveDeferred(orders.entity_id, MAIN, numbers, PEEK_LOCK))
    harness.run()
    reply = harness.reply_to(again)
    assert reply is not None and isinstance(reply.result, list)
    locks = [(each.message.sequence_number, each.message.grant) for each in reply.result]
    transaction = scene.declare()
    scene.settle(transaction, orders, locks, DEAD_LETTER)
    refusal = scene.commit(transaction)
    assert isinstance(refusal, TransactionRolledBack)
    assert "can be written at once" in str(refusal)
    assert orders.counts().dead_letter == 0


def stored(body: bytes) -> NewMessage:
    """A message that a rule's action can read."""
    return new_message(encode_message(data_section(body)), MessageIds(1), NEVER_MS)


def test_session_entities(scene: Scene) -> None:
    queue = scene.harness.create_queue("sessions", QueueDescription(requires_session=True))
    transaction = scene.declare()
    with pytest.raises(InvalidOperation):
        scene.send(transaction, queue, b"without a session")
    for session_id in ("a", "b"):
        new = NewMessage(b"one", session_id=session_id)
        scene.transactions.add(transaction, Send(queue.entity_id, [new]))
    assert scene.commit(transaction) is None
    assert isinstance(queue, SessionQueue)
    lock = queue.accept_session("a", scene.harness.clock.now())
    assert lock is not None
    (message,) = queue.lock_next_of("a", lock.grant, 1, scene.harness.clock.now())
    transaction = scene.declare()
    locks = [(message.sequence_number, message.grant)]
    scene.settle(transaction, queue, locks)
    scene.send(transaction, scene.orders, b"done")
    assert scene.commit(transaction) is None
    assert scene.count(queue) == 1
    assert scene.count(scene.orders) == 1


def test_lost_session_rolls_back(scene: Scene) -> None:
    queue = scene.harness.create_queue("sessions", QueueDescription(requires_session=True))
    scene.harness.submit(Send(queue.entity_id, [NewMessage(b"one", session_id="a")]))
    scene.harness.run()
    assert isinstance(queue, SessionQueue)
    lock = queue.accept_session("a", scene.harness.clock.now())
    assert lock is not None
    (message,) = queue.lock_next_of("a", lock.grant, 1, scene.harness.clock.now())
    transaction = scene.declare()
    scene.settle(transaction, queue, [(message.sequence_number, message.grant)])
    queue.release_session("a", lock.grant, scene.harness.clock.now())
    assert isinstance(scene.commit(transaction), TransactionRolledBack)
    assert scene.count(queue) == 1


def test_duplicates_are_dropped_at_the_commit(scene: Scene) -> None:
    queue = scene.harness.create_queue(
        "distinct", QueueDescription(requires_duplicate_detection=True)
    )
    due_ms = scene.harness.clock.now().utc_ms + 60_000
    rolled_back, committed = scene.declare(), scene.declare()
    for transaction in (rolled_back, committed):
        same = [NewMessage(b"same", message_id="same") for _ in range(2)]
        scene.transactions.add(transaction, Send(queue.entity_id, same))
        later = [
            NewMessage(b"later", message_id=name, scheduled_ms=due_ms) for name in ("same", "x")
        ]
        scene.transactions.schedule(transaction, Send(queue.entity_id, later))
    scene.transactions.roll_back(rolled_back)  # its ids were never seen
    assert scene.commit(committed) is None
    counts = queue.counts()
    assert (counts.active, counts.scheduled) == (1, 1)
    again = scene.declare()
    later = [NewMessage(b"later", message_id="x", scheduled_ms=due_ms)]
    scene.transactions.schedule(again, Send(queue.entity_id, later))
    assert scene.commit(again) is None
    assert scene.count(queue) == 2


def test_committed_messages_are_forwarded(scene: Scene) -> None:
    source = scene.harness.create_queue("source", QueueDescription(forward_to="orders"))
    transaction = scene.declare()
    scene.transactions.add(transaction, Send(source.entity_id, [stored(b"one")]))
    assert scene.commit(transaction) is None
    assert scene.count(source) == 0
    assert scene.count(scene.orders) == 1
