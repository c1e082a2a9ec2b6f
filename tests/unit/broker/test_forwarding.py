"""Forwarding in a broker on a simulated disk: chains, dead letters, and hops that fail."""

from dataclasses import replace

import pytest

from tests.unit.broker.actions import answer, arrived, found, restarted, send, taken
from tests.unit.broker.harness import SEGMENT_SIZE, BrokerHarness
from tests.unit.broker.stored_messages import content, new
from twinbus.entities.commands import DEAD_LETTER as TO_DEAD_LETTER
from twinbus.entities.commands import Settle
from twinbus.entities.descriptions import (
    RECEIVE_DISABLED,
    SEND_DISABLED,
    STATUS_ACTIVE,
    QueueDescription,
    SubscriptionDescription,
)
from twinbus.entities.facts import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER
from twinbus.entities.message import Overlay
from twinbus.entities.queue import Queue
from twinbus.errors import InvalidOperation
from twinbus.limits import FORWARD_HOPS_MAX
from twinbus.testing.disk import SimDisk

pytestmark = pytest.mark.proves("M-8")


def chain(bench: BrokerHarness, length: int) -> list[Queue]:
    """Queues of which each forwards to the next: q0 → q1 → …"""
    queues = [bench.create_queue(f"q{length}")]
    for index in reversed(range(length)):
        description = QueueDescription(forward_to=f"q{index + 1}")
        queues.insert(0, bench.create_queue(f"q{index}", description))
    return queues


def reason(overlay: Overlay | None) -> str | None:
    return None if overlay is None else overlay.reason


@pytest.mark.feature("forward.queue")
def test_messages_move_on_and_keep_their_order() -> None:
    bench = BrokerHarness()
    source, target = chain(bench, 1)
    send(bench, source, *[new(b"%d" % index) for index in range(200)])
    bench.run()
    assert source.counts().message_count == 0
    bench = restarted(bench)
    assert arrived(bench, found(bench, "q1")) == [b"%d" % index for index in range(200)]
    assert found(bench, "q0").counts().message_count == 0
    assert target.counts().message_count == 200


@pytest.mark.feature("forward.queue")
def test_a_message_is_in_exactly_one_place_after_every_commit() -> None:
    bench = BrokerHarness()
    source, target = chain(bench, 1)
    bench.send(source, b"one")
    for _ in range(10):
        commit = bench.turn()
        if commit is not None:
            bench.write(commit)
        again = restarted(bench)
        counts = [found(again, name).counts().message_count for name in ("q0", "q1")]
        # After the restart forwarding has not gone on yet: the harness has taken no turn.
        assert sum(counts) == 1
    assert target.counts().message_count == 1


def test_the_first_number_and_the_application_properties_stay() -> None:
    bench = BrokerHarness()
    queues = chain(bench, 2)
    send(bench, queues[2], new(b"before"))
    send(bench, queues[0], new(b"one", color="red"))
    messages, bodies = taken(bench, queues[2])
    assert [message.sequence_number for message in messages] == [1, 2]
    overlay = messages[1].overlay
    assert overlay is not None
    assert overlay.enqueued_sequence_number == 1
    assert overlay.hop_count == 2
    assert overlay.source is None
    assert b"color" in bodies[1]


@pytest.mark.feature("forward.queue")
def test_four_hops_are_allowed_and_a_fifth_is_not() -> None:
    bench = BrokerHarness()
    queues = chain(bench, FORWARD_HOPS_MAX)
    send(bench, queues[0], new(b"four"))
    assert arrived(bench, queues[-1]) == [b"four"]
    bench = BrokerHarness()
    queues = chain(bench, FORWARD_HOPS_MAX + 1)
    send(bench, queues[0], new(b"five"))
    assert queues[-1].counts().message_count == 0
    stuck = queues[FORWARD_HOPS_MAX]
    assert stuck.counts().transfer_dead_letter == 1
    bench = restarted(bench)
    messages, bodies = taken(bench, found(bench, stuck.name), TRANSFER_DEAD_LETTER)
    assert [content(body) for body in bodies] == [b"five"]
    assert reason(messages[0].overlay) == "MaxTransferHopCountExceeded"


def test_a_circle_ends() -> None:
    bench = BrokerHarness()
    first = bench.create_queue("first")
    second = bench.create_queue("second", QueueDescription(forward_to="first"))
    bench.update(first, replace(first.description, forward_to="second"))
    send(bench, first, new(b"round"))
    counts = [queue.counts() for queue in (first, second)]
    assert sum(count.message_count for count in counts) == 1
    assert sum(count.transfer_dead_letter for count in counts) == 1


@pytest.mark.feature("forward.transfer-dead-letter")
@pytest.mark.parametrize("why", ["gone", "disabled", "full", "sessions"])
def test_what_the_target_refuses_waits_in_the_transfer_dead_letter_queue(why: str) -> None:
    bench = BrokerHarness()
    source, target = chain(bench, 1)
    size = 0
    if why == "gone":
        bench.delete(target)
    elif why == "disabled":
        bench.update(target, replace(target.description, status=SEND_DISABLED))
    elif why == "full":
        bench.update(target, replace(target.description, max_size_megabytes=1))
        for _ in range(20):
            send(bench, target, new(bytes(50_000)))
        size = 50_000
    else:
        bench.delete(target)
        bench.create_queue("q1", QueueDescription(requires_session=True))
    send(bench, source, new(bytes(size)))
    messages, _ = taken(bench, source, TRANSFER_DEAD_LETTER)
    expected = {
        "gone": "EntityNotFound",
        "disabled": "EntityDisabled",
        "full": "QuotaExceeded",
        "sessions": "InvalidOperation",
    }
    assert [reason(message.overlay) for message in messages] == [expected[why]]
    assert messages[0].overlay is not None
    assert messages[0].overlay.description


def test_one_that_is_refused_does_not_hold_up_the_others() -> None:
    bench = BrokerHarness()
    target = bench.create_queue("keyed", QueueDescription(requires_session=True))
    source = bench.create_queue("source", QueueDescription(forward_to="keyed"))
    send(bench, source, new(b"1", session_id="s"), new(b"2"), new(b"3", session_id="s"))
    assert target.counts().message_count == 2
    assert [message.session_id for message in target.messages_from(MAIN, 1, 9)] == ["s", "s"]
    assert arrived(bench, source, TRANSFER_DEAD_LETTER) == [b"2"]


@pytest.mark.proves("M-5")
def test_duplicates_are_dropped_by_the_target() -> None:
    bench = BrokerHarness()
    target = bench.create_queue("once", QueueDescription(requires_duplicate_detection=True))
    source = bench.create_queue("source", QueueDescription(forward_to="once"))
    send(bench, source, new(b"1"), new(b"2"))  # the same message id
    assert source.counts().message_count == 0
    assert arrived(bench, target) == [b"1"]


@pytest.mark.feature("forward.dead-letter")
def test_dead_letters_are_forwarded_with_their_reason_and_source() -> None:
    bench = BrokerHarness()
    target = bench.create_queue("graves")
    source = bench.create_queue(
        "Orders", QueueDescription(forward_dead_lettered_messages_to="graves")
    )
    send(bench, source, new(b"bad"))
    _, sink = bench.receiver(source, 10)
    bench.run()
    overlay = Overlay("broken", "beyond repair")
    answer(bench, Settle(source.entity_id, MAIN, sink.locks, TO_DEAD_LETTER, overlay))
    assert source.counts().message_count == 0
    bench = restarted(bench)
    messages, bodies = taken(bench, found(bench, target.name))
    assert [content(body) for body in bodies] == [b"bad"]
    moved = messages[0].overlay
    assert moved is not None
    assert (moved.reason, moved.description, moved.source) == ("broken", "beyond repair", "Orders")
    assert messages[0].delivery_count == 0


@pytest.mark.feature("forward.transfer-dead-letter")
def test_a_dead_letter_that_cannot_move_goes_to_the_transfer_dead_letter_queue() -> None:
    bench = BrokerHarness()
    target = bench.create_queue("graves")
    source = bench.create_queue(
        "orders", QueueDescription(forward_dead_lettered_messages_to="graves")
    )
    bench.delete(target)
    send(bench, source, new(b"bad"))
    _, sink = bench.receiver(source, 10)
    bench.run()
    answer(bench, Settle(source.entity_id, MAIN, sink.locks, TO_DEAD_LETTER, Overlay("broken")))
    assert source.counts().dead_letter == 0
    bench = restarted(bench)
    assert arrived(bench, found(bench, "orders"), TRANSFER_DEAD_LETTER) == [b"bad"]


@pytest.mark.proves("M-3")
def test_expired_dead_letters_live_anew_and_messages_keep_what_is_left() -> None:
    bench = BrokerHarness()
    graves = bench.create_queue("graves")
    source = bench.create_queue(
        "orders",
        QueueDescription(
            dead_lettering_on_message_expiration=True, forward_dead_lettered_messages_to="graves"
        ),
    )
    send(bench, source, new(b"short", time_to_live_ms=10_000))
    bench.pass_time(15_100)
    assert graves.counts().active == 1
    target = bench.create_queue("target")
    waiting = bench.create_queue("waiting", QueueDescription(status=RECEIVE_DISABLED))
    send(bench, waiting, new(b"half", time_to_live_ms=10_000))
    bench.pass_time(6_000)
    description = QueueDescription(forward_to="target")
    bench.update(waiting, description)
    expires_ms = target.messages_from(MAIN, 1, 1)[0].expires_ms
    assert 0 < expires_ms - bench.clock.now().utc_ms <= 4_000


@pytest.mark.proves("M-6")
@pytest.mark.feature("forward.queue")
def test_a_subscription_forwards_to_a_queue_and_to_a_topic() -> None:
    bench = BrokerHarness()
    bench.create_queue("sink")
    second = bench.create_topic("second")
    bench.create_subscription(second, "end", SubscriptionDescription(forward_to="sink"))
    first = bench.create_topic("first")
    start = bench.create_subscription(first, "start", SubscriptionDescription(forward_to="second"))
    send(bench, first, new(b"one"), new(b"two"))
    bench = restarted(bench)
    assert arrived(bench, found(bench, "sink")) == [b"one", b"two"]
    assert found(bench, start.name).counts().message_count == 0


def test_forwarding_goes_on_after_a_restart_and_when_it_is_switched_on() -> None:
    bench = BrokerHarness()
    source = bench.create_queue("source")
    bench.create_queue("target")
    send(bench, source, new(b"one"))
    bench.update(source, replace(source.description, forward_to="target"))
    bench.send(source, b"two")
    commit = bench.turn()
    assert commit is not None
    commit.write()
    bench = restarted(bench)
    bench.run()
    assert found(bench, "target").counts().message_count == 2
    assert found(bench, "source").counts().message_count == 0


@pytest.mark.proves("M-8")
def test_large_messages_after_small_ones_move_although_a_chunk_is_more_than_a_segment() -> None:
    """The size of a chunk goes by the one before, so it may turn out too large."""
    bench = BrokerHarness()
    source, target = chain(bench, 1)
    bench.update(source, replace(source.description, status=RECEIVE_DISABLED))
    bodies = [b"%d" % index for index in range(8)] + [bytes(50_000)] * 10
    for body in bodies:
        send(bench, source, new(body))
    bench.update(source, replace(source.description, status=STATUS_ACTIVE))
    bench.pass_time(60_000)  # some wait for the next segment
    assert source.counts().message_count == 0
    assert arrived(bench, target) == bodies


def test_a_full_disk_lets_messages_wait_at_their_source() -> None:
    bench = BrokerHarness(SimDisk(capacity=SEGMENT_SIZE * 12))
    source, target = chain(bench, 1)
    ballast = bench.create_queue("ballast")
    bench.update(source, replace(source.description, status=RECEIVE_DISABLED))
    send(bench, source, *[new(b"%d" % index) for index in range(10)])
    while bench.store.room_for(20_000):
        bench.send(ballast, bytes(10_000))
        bench.run()
    bench.update(source, replace(source.description, status=STATUS_ACTIVE))
    assert source.counts().active == 10
    bench.disk.capacity = None  # somebody has made room
    bench.pass_time(60_000)
    assert source.counts().message_count == 0
    assert arrived(bench, target) == [b"%d" % index for index in range(10)]


def test_nobody_receives_from_what_is_forwarded() -> None:
    bench = BrokerHarness()
    source, _ = chain(bench, 1)
    with pytest.raises(InvalidOperation, match="forwards"):
        bench.receiver(source)
    bench.receiver(source, subqueue=DEAD_LETTER)
    bench.receiver(source, subqueue=TRANSFER_DEAD_LETTER)


def test_whoever_receives_is_told_when_forwarding_begins() -> None:
    bench = BrokerHarness()
    source = bench.create_queue("source")
    bench.create_queue("target")
    _, sink = bench.receiver(source, 1)
    _, other = bench.receiver(source, 1, subqueue=DEAD_LETTER)
    bench.update(source, replace(source.description, forward_to="target"))
    assert [type(error) for error in sink.errors] == [InvalidOperation]
    assert other.errors == []


def test_names_are_those_of_the_sources_namespace() -> None:
    bench = BrokerHarness()
    bench.create_queue("target")
    own = bench.create_queue("other:target")
    source = bench.create_queue("other:source", QueueDescription(forward_to="target"))
    send(bench, source, new(b"one"))
    assert own.counts().message_count == 1
