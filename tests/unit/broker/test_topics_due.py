"""Scheduled messages of a topic that are due, when they are too much to be written at once."""

import pytest

from tests.unit.broker.actions import answer, arrived, found, restarted, send, sql
from tests.unit.broker.harness import SEGMENT_SIZE, BrokerHarness
from tests.unit.broker.stored_messages import new
from twinbus.entities.commands import AddRule, DeleteEntities
from twinbus.entities.facts import MAIN
from twinbus.entities.queue import Queue
from twinbus.entities.topic import DUE_INTERVAL_MS, Topic
from twinbus.limits import SEGMENT_SIZE_BYTES
from twinbus.testing.disk import SimDisk


def giant_topic(subscriptions: int, rules: int) -> tuple[BrokerHarness, Topic]:
    """A topic that makes a changed copy of a megabyte for every rule; one message is due soon."""
    bench = BrokerHarness(segment_size=SEGMENT_SIZE_BYTES)
    topic = bench.create_topic()
    for index in range(subscriptions):
        queue = bench.create_subscription(
            topic, f"s{index}", rule=sql("1 = 1", "SET copy = 0", "rule0")
        )
        for number in range(1, rules):
            rule = sql("1 = 1", f"SET copy = {number}", f"rule{number}")
            answer(bench, AddRule(queue.entity_id, rule))
    due_ms = bench.clock.now().utc_ms + 1_000
    send(bench, topic, new(bytes(1_000_000), scheduled_ms=due_ms))
    return bench, topic


def copy_counts(topic: Queue) -> set[int]:
    assert isinstance(topic, Topic)
    return {queue.counts().message_count for queue in topic.subscriptions.values()}


@pytest.mark.proves("M-6")
def test_a_scheduled_message_whose_copies_fill_more_than_a_segment() -> None:
    """They are written in pieces; a crash after any of them repeats and loses nothing."""
    bench, topic = giant_topic(70, 1)
    bench.clock.advance(1_000)
    rounds = 0
    while topic.counts().message_count:
        bench.clock.advance(DUE_INTERVAL_MS)
        bench.broker.entities.tick()
        bench.run()
        rounds += 1
        if rounds in (1, 4):
            assert copy_counts(topic) == {0, 1}
            bench = restarted(bench)
            bench.run()
            kept = found(bench, "news")
            assert isinstance(kept, Topic)
            topic = kept
    assert rounds > 4
    assert copy_counts(topic) == {1}
    first, last = list(topic.subscriptions.values())[:: len(topic.subscriptions) - 1]
    named = [queue.messages_from(MAIN, 1, 1)[0].overlay for queue in (first, last)]
    assert [overlay and overlay.enqueued_sequence_number for overlay in named] == [2, 2]
    assert copy_counts(found(restarted(bench), "news")) == {1}


def test_a_scheduled_message_of_which_one_subscription_alone_gets_more_than_a_segment() -> None:
    bench, topic = giant_topic(1, 70)
    bench.pass_time(2_000)
    assert topic.counts().message_count == 0
    assert copy_counts(topic) == {70}
    assert copy_counts(found(restarted(bench), "news")) == {70}


def test_what_is_due_waits_behind_a_message_with_many_copies() -> None:
    bench, topic = giant_topic(12, 1)
    due_ms = bench.clock.now().utc_ms + 1_000
    send(bench, topic, new(b"second", scheduled_ms=due_ms), new(b"third", scheduled_ms=due_ms))
    bench.pass_time(2_000)
    assert topic.counts().message_count == 0
    for queue in topic.subscriptions.values():
        sizes = [len(body) for body in arrived(bench, queue)]
        assert sizes == [1_000_000, 6, 5]


def test_what_is_due_waits_for_room_on_the_disk() -> None:
    bench = BrokerHarness(SimDisk(capacity=SEGMENT_SIZE * 12))
    topic = bench.create_topic()
    queue = bench.create_subscription(topic, "one")
    send(bench, topic, new(b"later", scheduled_ms=bench.clock.now().utc_ms + 10_000))
    ballast = bench.create_queue("ballast")
    while bench.store.room_for(20_000):
        bench.send(ballast, bytes(10_000))
        bench.run()
    bench.pass_time(10_100)
    assert (topic.counts().scheduled, queue.counts().message_count) == (1, 0)
    bench.submit(DeleteEntities([ballast.entity_id]))
    bench.run()
    bench.pass_time(10_000)
    assert arrived(bench, queue) == [b"later"]
