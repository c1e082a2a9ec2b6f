"""Producer keys and pings at the broker: what a reply waits for, and what a transaction makes of
them."""

import pytest

from tests.unit.broker.harness import BrokerHarness
from tests.unit.broker.stored_messages import new
from twinbus.broker.transactions import Transactions
from twinbus.entities.commands import Command, Reply, Send
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.message import NewMessage, ProducerKey
from twinbus.errors import DiskFull, LogPoisoned, ServiceError
from twinbus.testing.disk import SimDisk

pytestmark = pytest.mark.proves("P-13")

HOUR_MS = 3_600_000


def numbered(number: int, scheduled_ms: int = 0) -> NewMessage:
    message = NewMessage(b"%d" % number, scheduled_ms=scheduled_ms)
    message.producer_key = ProducerKey("producer", number)
    return message


def ping() -> NewMessage:
    message = new(b"")
    message.producer_key = ProducerKey("", 0, True)
    return message


class Scene:
    """A broker with one queue, and one client that transacts."""

    def __init__(self, disk: SimDisk | None = None) -> None:
        self.harness = BrokerHarness(disk)
        self.queue = self.harness.create_queue()
        self.transactions = Transactions(self.harness.broker, self.harness.clock, b"client")

    def ask(self, command: Command) -> Reply:
        self.harness.submit(command)
        self.harness.run()
        return self.harness.replies.pop()

    def send(self, *messages: NewMessage) -> object:
        reply = self.ask(Send(self.queue.entity_id, list(messages)))
        assert reply.error is None
        return reply.result

    def commit(self, *messages: NewMessage, is_schedule: bool = False) -> None:
        """Send in a transaction."""
        transaction = self.transactions.declare(self)
        command = Send(self.queue.entity_id, list(messages))
        if is_schedule:
            self.transactions.schedule(transaction, command)
        else:
            self.transactions.add(transaction, command)
        results: list[ServiceError | None] = []
        self.transactions.commit(transaction, results.append)
        self.harness.run()
        assert results == [None]

    @property
    def count(self) -> int:
        return self.queue.counts().message_count


@pytest.mark.parametrize("message", [ping(), numbered(1)])
def test_a_ping_and_a_copy_wait_for_the_disk(message: NewMessage) -> None:
    scene = Scene()
    scene.send(numbered(1))
    scene.harness.submit(Send(scene.queue.entity_id, [message]))
    commit = scene.harness.turn()
    assert commit is not None
    assert not scene.harness.replies
    scene.harness.write(commit)
    (reply,) = scene.harness.replies
    assert reply.result == [0]


def test_a_copy_waits_for_its_first() -> None:
    scene = Scene()
    for _ in range(2):
        scene.harness.submit(Send(scene.queue.entity_id, [numbered(1)]))
    assert not scene.harness.replies
    scene.harness.run()
    assert [reply.result for reply in scene.harness.replies] == [[1], [0]]


def test_a_log_that_does_not_work_answers_no_ping() -> None:
    scene = Scene()
    scene.harness.submit(Send(scene.queue.entity_id, [ping()]))
    commit = scene.harness.turn()
    assert commit is not None
    scene.harness.disk.fail("sync")
    with pytest.raises(LogPoisoned):
        commit.write()
    assert not scene.harness.replies


def test_a_full_disk_refuses_a_ping() -> None:
    scene = Scene()
    scene.harness.disk.capacity = 1
    for size in (20_000, 0):
        error: ServiceError | None = None
        while error is None:
            error = scene.ask(Send(scene.queue.entity_id, [NewMessage(bytes(size))])).error
        assert isinstance(error, DiskFull)
    assert isinstance(scene.ask(Send(scene.queue.entity_id, [ping()])).error, DiskFull)


def test_a_number_counts_when_its_transaction_commits() -> None:
    scene = Scene()
    transaction = scene.transactions.declare(scene)
    scene.transactions.add(transaction, Send(scene.queue.entity_id, [numbered(1), numbered(2)]))
    assert scene.send(numbered(2)) == [1], "nothing of it has happened yet"
    results: list[ServiceError | None] = []
    scene.transactions.commit(transaction, results.append)
    scene.harness.run()
    assert results == [None]
    assert scene.count == 2
    assert scene.send(numbered(1)) == [0]


def test_a_number_is_forgotten_with_its_transaction() -> None:
    scene = Scene()
    transaction = scene.transactions.declare(scene)
    scene.transactions.add(transaction, Send(scene.queue.entity_id, [numbered(1)]))
    scene.transactions.roll_back(transaction)
    assert scene.send(numbered(1)) == [1]


def test_scheduled_in_a_transaction() -> None:
    scene = Scene()
    due_ms = scene.harness.clock.now().utc_ms + HOUR_MS
    scene.commit(numbered(1, due_ms), numbered(1, due_ms), numbered(2, due_ms), is_schedule=True)
    assert scene.count == 2
    scene.commit(numbered(2, due_ms), ping(), is_schedule=True)
    assert scene.count == 2
    assert scene.send(numbered(1), numbered(3)) == [0, scene.queue.last_sequence_number]


def test_a_ping_in_a_transaction_leaves_nothing() -> None:
    scene = Scene()
    scene.commit(ping())
    scene.commit(ping(), numbered(1))
    assert scene.count == 1
    steps = scene.harness.create_queue("steps", QueueDescription(requires_session=True))
    scene.queue = steps
    scene.commit(ping())
    assert scene.count == 0


def test_a_topic_fans_out_neither_copies_nor_pings() -> None:
    scene = Scene()
    topic = scene.harness.create_topic()
    subscription = scene.harness.create_subscription(topic, "all")
    scene.queue = topic
    first, copy = new(b"x"), new(b"x")
    first.producer_key = copy.producer_key = ProducerKey("producer", 1)
    assert scene.send(first, ping()) == [1, 0]
    assert scene.send(copy) == [0]
    scene.commit(ping(), copy)
    assert subscription.counts().message_count == 1
