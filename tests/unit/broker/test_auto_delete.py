"""Entities that delete themselves when nobody uses them."""

from dataclasses import replace

import pytest

from tests.unit.broker.actions import answer, found, restarted, send
from tests.unit.broker.harness import BrokerHarness
from tests.unit.broker.stored_messages import new
from twinbus.entities.commands import Peek
from twinbus.entities.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.entities.facts import MAIN
from twinbus.entities.queue import Queue

pytestmark = [pytest.mark.proves("M-9"), pytest.mark.feature("entity.auto-delete")]

MINUTE = 60_000
IDLE = 5 * MINUTE
BRIEF = QueueDescription(auto_delete_on_idle_ms=IDLE)


def exists(bench: BrokerHarness, queue: Queue) -> bool:
    return queue.entity_id in bench.store.entities


def test_an_idle_queue_goes_with_its_messages() -> None:
    bench = BrokerHarness()
    queue = bench.create_queue("brief", BRIEF)
    kept = bench.create_queue("kept")
    send(bench, queue, new(b"one"))
    bench.pass_time(IDLE - MINUTE)
    assert exists(bench, queue)
    bench.pass_time(MINUTE + 10_000)
    assert not exists(bench, queue)
    assert exists(bench, kept)
    assert list(restarted(bench).store.names) == ["kept"]


@pytest.mark.proves("E-12")
@pytest.mark.feature("entity.partitions")
def test_a_partition_is_left_to_the_gateway() -> None:
    """It alone sees whether the others are idle, too."""
    bench = BrokerHarness()
    description = replace(BRIEF, enable_partitioning=True)
    partition = bench.create_queue("brief#3", description)
    bench.pass_time(3 * IDLE)
    assert exists(bench, partition)
    bench.update(partition, replace(description, lock_duration_ms=30_000))
    bench.pass_time(3 * IDLE)
    assert exists(bench, partition)
    assert "brief#3" in restarted(bench).store.names


def test_use_keeps_it_alive() -> None:
    bench = BrokerHarness()
    queue = bench.create_queue("brief", BRIEF)
    for _ in range(3):
        bench.pass_time(4 * MINUTE)
        answer(bench, Peek(queue.entity_id, MAIN, 1, 1))
    bench.pass_time(4 * MINUTE)
    send(bench, queue, new(b"one"))
    bench.pass_time(4 * MINUTE)
    bench.update(queue, BRIEF)
    bench.pass_time(4 * MINUTE)
    assert exists(bench, queue)


def test_somebody_who_listens_keeps_it_alive() -> None:
    bench = BrokerHarness()
    queue = bench.create_queue("brief", BRIEF)
    receiver, sink = bench.receiver(queue, 1)
    bench.pass_time(3 * IDLE)
    assert exists(bench, queue)
    receiver.close()
    bench.pass_time(IDLE + MINUTE)
    assert not exists(bench, queue)
    assert not sink.is_removed


def test_a_scheduled_message_keeps_it_alive() -> None:
    bench = BrokerHarness()
    queue = bench.create_queue("brief", BRIEF)
    due_ms = bench.clock.now().utc_ms + 3 * IDLE
    send(bench, queue, new(b"later", scheduled_ms=due_ms))
    bench.pass_time(2 * IDLE)
    assert exists(bench, queue)


def test_a_restart_counts_as_use() -> None:
    bench = BrokerHarness()
    queue = bench.create_queue("brief", BRIEF)
    bench.pass_time(4 * MINUTE)
    bench = restarted(bench)
    bench.pass_time(4 * MINUTE)
    assert exists(bench, queue)
    bench.pass_time(2 * MINUTE)
    assert not exists(bench, queue)


def test_a_jump_of_the_clock_deletes_nothing() -> None:
    bench = BrokerHarness()
    queue = bench.create_queue("brief", BRIEF)
    bench.clock.jump_utc(3_600_000)
    bench.pass_time(MINUTE)
    assert exists(bench, queue)


@pytest.mark.proves("M-8")
def test_sources_and_targets_of_forwarding_are_never_idle() -> None:
    bench = BrokerHarness()
    target = bench.create_queue("target", BRIEF)
    source = bench.create_queue("source", replace(BRIEF, forward_to="target"))
    bench.pass_time(3 * IDLE)
    assert exists(bench, source)
    assert exists(bench, target)
    bench.update(source, BRIEF)
    bench.pass_time(2 * IDLE)
    assert not exists(bench, source)
    assert not exists(bench, target)


@pytest.mark.proves("M-6")
def test_what_a_topic_puts_into_a_subscription_is_no_use_of_it() -> None:
    bench = BrokerHarness()
    topic = bench.create_topic()
    queue = bench.create_subscription(
        topic, "brief", SubscriptionDescription(auto_delete_on_idle_ms=IDLE)
    )
    for _ in range(4):
        send(bench, topic, new(b"one"))
        bench.pass_time(2 * MINUTE)
    assert not exists(bench, queue)
    assert topic.subscriptions == {}


@pytest.mark.proves("M-6")
def test_a_topic_lives_while_a_subscription_is_used() -> None:
    bench = BrokerHarness()
    topic = bench.create_topic(description=TopicDescription(auto_delete_on_idle_ms=IDLE))
    queue = bench.create_subscription(topic, "one")
    receiver, _ = bench.receiver(queue, 1)
    bench.pass_time(2 * IDLE)
    receiver.close()
    for _ in range(3):
        bench.pass_time(4 * MINUTE)
        answer(bench, Peek(queue.entity_id, MAIN, 1, 1))
    assert exists(bench, topic)
    bench.pass_time(2 * IDLE)
    assert not bench.store.entities
    assert found(restarted_with_one(bench), "new").name == "new"


def restarted_with_one(bench: BrokerHarness) -> BrokerHarness:
    """After a restart names are free again."""
    again = restarted(bench)
    again.create_queue("new")
    return again
