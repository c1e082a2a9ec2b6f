"""A topic by itself: what it states, and what it looks at.  More of it is in tests/unit/broker."""

from uuid import UUID

import pytest

from tests.unit.broker.stored_messages import new
from twinbus.clock import Now
from twinbus.entities.descriptions import SubscriptionDescription, TopicDescription
from twinbus.entities.facts import MAIN, Fact, FannedOut, LastNumber, Removed, Stored, Together
from twinbus.entities.fields import Changes, Fields
from twinbus.entities.message import NewMessage
from twinbus.entities.queue import Queue
from twinbus.entities.rule_descriptions import RuleDescription
from twinbus.entities.rules import Rule
from twinbus.entities.state import Grants
from twinbus.entities.topic import Topic
from twinbus.errors import QuotaExceeded
from twinbus.message.filter_fields import StoredMessageCodec

NOW = Now(1_800_000_000_000, 50_000)


class CountingCodec:
    """Counts how often somebody looks into a message.  (Compiled classes take no heirs.)"""

    def __init__(self) -> None:
        self._codec = StoredMessageCodec()
        self.fields_read = 0
        self.keys_read = 0

    def read_fields(self, stored: bytes) -> Fields:
        self.fields_read += 1
        return self._codec.read_fields(stored)

    def read_keys(self, stored: bytes) -> tuple[str | None, str | None, str | None]:
        self.keys_read += 1
        return self._codec.read_keys(stored)

    def read_properties(self, encoded: bytes) -> dict[str, object]:
        return self._codec.read_properties(encoded)

    def rewrite(self, stored: bytes, changes: Changes) -> bytes:
        return self._codec.rewrite(stored, changes)

    def new_id(self) -> UUID:
        return self._codec.new_id()


class Stage:
    """A topic (number 1) and its subscriptions (2, 3, …), without a store."""

    def __init__(self, description: TopicDescription | None = None) -> None:
        self.facts: list[Fact] = []
        self.codec = CountingCodec()
        self.topic = Topic(1, "news", description or TopicDescription(), self.facts, Grants())
        self.topic.codec = self.codec
        self.rules = 100

    def subscribe(self, *rules: dict[str, object], requires_session: bool = False) -> Queue:
        entity_id = 2 + len(self.topic.subscriptions)
        description = SubscriptionDescription(requires_session=requires_session)
        queue = Queue(entity_id, f"s{entity_id}", description, self.facts, Grants())
        queue.topic_id = 1
        self.topic.subscriptions[entity_id] = queue
        for rule in rules or ({},):
            self.rules += 1
            described = RuleDescription.from_mapping({"name": f"r{self.rules}", **rule})
            self.topic.rules.add(Rule(self.rules, entity_id, described))
        return queue

    def send(self, *messages: NewMessage) -> list[Fact]:
        """What one send states."""
        del self.facts[:]
        self.topic.send(list(messages), NOW)
        return list(self.facts)


def together(facts: list[Fact]) -> list[Fact]:
    (fact,) = facts
    assert isinstance(fact, Together)
    return fact.facts


def test_a_send_is_one_fact() -> None:
    stage = Stage()
    for _ in range(3):
        stage.subscribe()
    (fact,) = stage.send(new(b"one"))
    assert isinstance(fact, FannedOut)
    assert (fact.sequence_number, fact.subscription_ids) == (1, [2, 3, 4])
    later = new(b"later", scheduled_ms=NOW.utc_ms + 1)
    facts = together(stage.send(new(b"two"), later, new(b"three")))
    assert [type(each) for each in facts] == [Stored, FannedOut, FannedOut]


def test_copies_for_one_subscription_are_stored_together_and_the_topics_number_is_kept() -> None:
    stage = Stage()
    stage.subscribe()
    stored, last = together(stage.send(new(b"one"), new(b"two")))
    assert isinstance(stored, Stored)
    assert (stored.entity_id, len(stored.messages)) == (2, 2)
    assert isinstance(last, LastNumber)
    assert (last.entity_id, last.sequence_number) == (1, 2)


def test_what_nobody_wants_states_its_number_only() -> None:
    stage = Stage()
    stage.subscribe({"kind": "False"})
    (fact,) = stage.send(new(b"one"))
    assert isinstance(fact, LastNumber)


def test_one_overlay_for_all_copies_of_a_message() -> None:
    stage = Stage()
    stage.send(new(b"one"))
    queues = [stage.subscribe() for _ in range(3)]
    (fact,) = stage.send(new(b"two"))
    assert isinstance(fact, FannedOut)
    assert len({id(message.overlay) for message in fact.messages}) == 1
    assert fact.messages[0].overlay is not None
    assert fact.messages[0].overlay.enqueued_sequence_number == 2
    assert all(queue.last_sequence_number == 1 for queue in queues)
    assert len({id(message.body) for message in fact.messages}) == 1


def test_nobody_looks_into_a_message_without_need() -> None:
    stage = Stage()
    stage.subscribe()
    stage.subscribe({"kind": "False"})
    stage.send(new(b"one", session_id="s"))
    assert (stage.codec.fields_read, stage.codec.keys_read) == (0, 0)
    stage.subscribe({"expression": "color = 'red'"})
    stage.subscribe({"system": {"label": "x"}})
    stage.send(new(b"two"))
    assert (stage.codec.fields_read, stage.codec.keys_read) == (1, 0)


def test_session_ids_are_read_once_for_all() -> None:
    stage = Stage()
    queues = [stage.subscribe(requires_session=True) for _ in range(3)]
    stage.send(new(b"one", session_id="s"))
    assert (stage.codec.fields_read, stage.codec.keys_read) == (0, 1)
    assert all(queue.last_sequence_number == 1 for queue in queues)


def test_checking_a_send_changes_nothing() -> None:
    stage = Stage(TopicDescription(max_size_megabytes=1))
    queue = stage.subscribe({}, {"expression": "1 = 1", "action": "SET a = 1"})
    stage.topic.check_send([new(b"one")], NOW)
    with pytest.raises(QuotaExceeded):
        stage.topic.check_send([new(bytes(600_000))], NOW)  # twice
    later = new(bytes(2_000_000), scheduled_ms=NOW.utc_ms + 1)
    with pytest.raises(QuotaExceeded):
        stage.topic.check_send([later], NOW)
    assert stage.facts == []
    assert (queue.last_sequence_number, stage.topic.last_sequence_number) == (0, 0)


def test_what_is_due_is_removed_and_fanned_out_in_one_step() -> None:
    stage = Stage()
    stage.subscribe()
    stage.subscribe()
    message = new(b"later", scheduled_ms=NOW.utc_ms + 10)
    stage.send(message)
    topic = stage.topic
    later = Now(NOW.utc_ms + 10, NOW.mono_ms + 10)
    assert topic.take_due(1_000_000, later) == []  # it is not durable yet
    topic.publish(1)
    assert topic.take_due(1_000_000, NOW) == []
    due = topic.take_due(1_000_000, later)
    del stage.facts[:]
    topic.fan_out_due(due, [message.body], later)
    removed, fanned = together(stage.facts)
    assert isinstance(removed, Removed)
    assert (removed.entity_id, removed.subqueue, removed.sequence_numbers) == (1, MAIN, [1])
    assert isinstance(fanned, FannedOut)
    assert fanned.sequence_number == 2
    assert topic.counts().message_count == 0
