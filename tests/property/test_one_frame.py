"""Whatever a command has written together fits into one segment of the log, or it is refused.

What is decided cannot be undone: if the log could not take it, no turn of the broker would ever
succeed again, and nobody would be answered.  So every kind of command that gathers facts is tried
here, with messages and properties as large as they may be beside the smallest segment: an eighth
of it, as one megabyte is of eight.  Each is answered, and a restart finds what was there.
"""

import os
import random

import pytest

from tests.unit.broker.actions import restarted, sql
from tests.unit.broker.harness import SEGMENT_SIZE, BrokerHarness
from tests.unit.broker.stored_messages import new
from twinbus.amqp.encoding import encode_value
from twinbus.broker.transactions import Transactions
from twinbus.entities.commands import (
    ABANDON,
    DEAD_LETTER,
    AddRule,
    Command,
    CreateEntities,
    DeleteEntities,
    Lock,
    NewEntity,
    Send,
    Settle,
)
from twinbus.entities.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
    subscription_path,
)
from twinbus.entities.facts import DEAD_LETTER as DEAD_LETTER_QUEUE
from twinbus.entities.facts import MAIN
from twinbus.entities.message import NewMessage, Overlay, ProducerKey
from twinbus.entities.partitions import PARTITION_COUNT, partition_name
from twinbus.entities.queue import Queue
from twinbus.entities.rule_descriptions import RuleDescription
from twinbus.entities.selections import Resubmit, Selection
from twinbus.entities.topic import DUE_INTERVAL_MS
from twinbus.errors import DiskFull, QuotaExceeded, ServiceError

LARGEST = SEGMENT_SIZE // 8 - 512  # of a message, and of what a settlement adds to it
SIZES = (700, LARGEST // 3, LARGEST, LARGEST)
COUNTS = (1, 4, 12, 12)
QUEUES = ("plain", "distinct", "buries")
TOPICS = ("news", "distinct-news")
SENDABLE = (*QUEUES, "forwards", *TOPICS)
RULES_MAX = 16  # of a subscription; later there are enough

RUNS = 2_000 if os.environ.get("TWINBUS_TEST_SIZE") == "nightly" else 60
PARTS = 6  # of a test each
STEPS = 40


class OneFrame:
    """One seeded run of a broker whose commands are as large as they may be."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.bench = BrokerHarness()
        self.count = 0
        self.rules = dict.fromkeys(TOPICS, 1)
        create = self.bench.create_queue
        create("plain")
        create("graves")
        create("distinct", QueueDescription(requires_duplicate_detection=True))
        create("buries", QueueDescription(forward_dead_lettered_messages_to="graves"))
        for name in TOPICS:
            description = TopicDescription(requires_duplicate_detection=name == "distinct-news")
            topic = self.bench.create_topic(name, description)
            self.bench.create_subscription(topic, "acts", rule=sql("1 = 1", "SET copy = 0", "r0"))
            for index in range(4):
                self.bench.create_subscription(topic, f"copy-{index}")
        create("forwards", QueueDescription(forward_to="news"))
        for name in QUEUES:  # small messages, on which much may be noted
            self.bench.send(self.find(name), *([b"small"] * max(COUNTS)))

    def run(self) -> None:
        actions = (
            self.send, self.carry, self.settle, self.transact,
            self.add_rules, self.resubmit, self.come_and_go, self.wait,
        )  # fmt: skip
        for _ in range(STEPS):
            self.rng.choices(actions, (8, 3, 8, 5, 3, 3, 1, 3))[0]()
            self.everybody_is_answered()
        self.a_restart_changes_nothing()

    # -- what clients ask for ----------------------------------------------------------------------

    def send(self) -> None:
        queue = self.find(self.rng.choice(SENDABLE))
        is_numbered, is_late = self.rng.random() < 0.3, self.rng.random() < 0.3
        self.ask(Send(queue.entity_id, self.news(is_numbered, is_late)))

    def carry(self) -> None:
        """As a relay does: what it brings along has been settled before, with properties."""
        messages = self.news()
        for message in messages:
            message.overlay = self.note()
        command = Send(self.find(self.rng.choice(SENDABLE)).entity_id, messages)
        command.carrier = "another store"
        command.carrier_numbers = list(range(self.count, self.count + len(messages)))
        self.ask(command)

    def add_rules(self) -> None:
        topic = self.rng.choice(TOPICS)
        subscription = self.find(subscription_path(topic, "acts"))
        while self.rules[topic] < RULES_MAX and self.rng.random() < 0.8:
            number = self.rules[topic] = self.rules[topic] + 1
            acting = sql("1 = 1", f"SET copy = {number}", f"r{number}")
            self.ask(AddRule(subscription.entity_id, acting))

    def settle(self) -> None:
        queue = self.find(self.rng.choice(QUEUES))
        locks = self.locks(queue)
        if locks:
            outcome = self.rng.choice((ABANDON, ABANDON, DEAD_LETTER))
            self.ask(Settle(queue.entity_id, MAIN, locks, outcome, self.note()))

    def transact(self) -> None:
        bench = self.bench
        transactions = Transactions(bench.broker, bench.clock, b"client")
        transaction = transactions.declare(self)
        queue = self.find("plain")
        commands: list[Command] = []
        locks = self.locks(queue)
        if locks:
            overlay = self.note() if self.rng.random() < 0.3 else None
            commands.append(Settle(queue.entity_id, MAIN, locks, DEAD_LETTER, overlay))
        names = self.rng.choices(SENDABLE, k=self.rng.randint(0, 3))
        commands += [Send(self.find(name).entity_id, self.news()) for name in names]
        for command in commands:
            try:
                transactions.add(transaction, command)
            except ServiceError as error:
                assert isinstance(error, QuotaExceeded | DiskFull)
        answers: list[ServiceError | None] = []
        transactions.commit(transaction, answers.append)
        bench.run()
        assert len(answers) == 1

    def resubmit(self) -> None:
        queue = self.find(self.rng.choice(QUEUES))
        self.ask(Resubmit(queue.entity_id, DEAD_LETTER_QUEUE, Selection(), 100))

    def come_and_go(self) -> None:
        """Partitions of a topic, each with a subscription and its rule; all in one frame."""
        texts = {f"p{index}": "x" * 1_000 for index in range(self.rng.choice((1, 10, 30)))}
        first = RuleDescription.from_mapping({"name": "rule", "properties": texts})
        topics = [partition_name("passing", index) for index in range(PARTITION_COUNT)]
        self.ask(CreateEntities([NewEntity("topic", n, TopicDescription()) for n in topics]))
        described = SubscriptionDescription()
        paths = [subscription_path(topic, "all") for topic in topics]
        self.ask(CreateEntities([NewEntity("subscription", n, described, first) for n in paths]))
        self.ask(DeleteEntities([self.find(topic).entity_id for topic in topics]))

    def wait(self) -> None:
        self.bench.pass_time(self.rng.choice((DUE_INTERVAL_MS, 10_000)))

    # -- what must hold ----------------------------------------------------------------------------

    def everybody_is_answered(self) -> None:
        self.bench.run()
        assert self.bench.broker.open_count == 0
        assert not self.bench.store.facts

    def a_restart_changes_nothing(self) -> None:
        counts = {each.name: each.counts().message_count for each in self.entities()}
        self.bench = restarted(self.bench)
        assert counts == {each.name: each.counts().message_count for each in self.entities()}

    # -- helpers -----------------------------------------------------------------------------------

    def entities(self) -> list[Queue]:
        return list(self.bench.store.entities.values())

    def find(self, name: str) -> Queue:
        return self.bench.store.entities[self.bench.store.names[name.lower()]]

    def ask(self, command: Command) -> None:
        self.bench.submit(command)
        self.bench.run()
        reply = self.bench.reply_to(command)
        assert reply is not None, "not answered"
        self.bench.replies.clear()
        assert reply.error is None or isinstance(reply.error, QuotaExceeded | DiskFull)

    def news(self, is_numbered: bool = False, is_late: bool = False) -> list[NewMessage]:
        late_ms = self.bench.clock.now().utc_ms + 1_000 if is_late else 0
        size = self.rng.choice(SIZES)
        messages = []
        for _ in range(self.rng.choice(COUNTS)):
            self.count += 1
            message = new(bytes(size), scheduled_ms=late_ms)
            message.message_id = str(self.count)
            if is_numbered:
                message.producer_key = ProducerKey("producer", self.count)
            messages.append(message)
        return messages

    def note(self) -> Overlay:
        """What an application notes on a message when it settles it."""
        text = "x" * self.rng.choice(SIZES)
        return Overlay("why", "because", properties=encode_value({"note": text}))

    def locks(self, queue: Queue) -> list[Lock]:
        receiver, sink = self.bench.receiver(queue, self.rng.choice(COUNTS))
        self.bench.run()
        receiver.close()
        return sink.locks


@pytest.mark.proves("S-2")
@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_is_accepted_can_be_written(part: int) -> None:
    for seed in range(part, RUNS, PARTS):
        try:
            OneFrame(seed).run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
