"""The broker on a simulated disk: what waits for the disk, and who gets what."""

import random

import pytest

from tests.unit.broker.harness import SEGMENT_SIZE, BrokerHarness
from twinbus.entities.commands import (
    ABANDON,
    COMPLETE,
    RECEIVE_AND_DELETE,
    CancelScheduled,
    DeleteEntities,
    Delivered,
    Peek,
    Send,
    Settle,
)
from twinbus.entities.descriptions import DISABLED, QueueDescription
from twinbus.entities.facts import DEAD_LETTER, MAIN
from twinbus.entities.message import NewMessage
from twinbus.entities.queue import Queue
from twinbus.errors import (
    ArgumentInvalid,
    DiskFull,
    EntityDisabled,
    EntityNotFound,
    LogPoisoned,
    MessageLockLost,
    MessageNotFound,
)
from twinbus.limits import PEEK_RESPONSE_BYTES_MAX
from twinbus.testing.disk import CrashMode, SimDisk


@pytest.mark.proves("M-1")
def test_a_send_is_answered_only_when_it_is_durable() -> None:
    bench = BrokerHarness()
    queue = bench.create_queue()
    command = bench.send(queue, b"one", b"two")
    commit = bench.turn()
    assert commit is not None
    assert bench.reply_to(command) is None
    commit.write()
    assert bench.reply_to(command) is None
    bench.broker.committed(commit)
    reply = bench.reply_to(command)
    assert reply is not None
    assert reply.result == [1, 2]


def test_who_waits_for_all_before_hears_after_those_who_were_answered() -> None:
    told: list[str] = []
    bench = BrokerHarness(on_replies=lambda replies: told.extend("reply" for _ in replies))
    queue = bench.create_queue()
    told.clear()
    bench.send(queue, b"one")
    bench.send(queue, b"two")
    bench.broker.when_durable(lambda: told.append("durable"))
    bench.send(queue, b"three")
    assert told == []
    bench.run()
    assert told == ["reply", "reply", "durable", "reply"]


@pytest.mark.proves("M-1")
def test_a_message_is_not_delivered_before_it_is_durable() -> None:
    bench = BrokerHarness()
    queue = bench.create_queue()
    _, sink = bench.receiver(queue, credit=10)
    bench.send(queue, b"one")
    commit = bench.turn()
    assert commit is not None
    bench.turn()
    assert sink.bodies == []
    bench.write(commit)
    bench.turn()
    assert sink.bodies == [b"one"]


@pytest.mark.proves("M-2")
def test_receive_and_delete_delivers_only_when_the_removal_is_durable() -> None:
    bench = BrokerHarness()
    queue = bench.create_queue()
    bench.send(queue, b"one")
    bench.run()
    _, sink = bench.receiver(queue, credit=10, receive_mode=RECEIVE_AND_DELETE)
    commit = bench.turn()
    assert commit is not None
    assert sink.bodies == []
    bench.write(commit)
    assert sink.bodies == [b"one"]
    assert queue.counts().message_count == 0


def test_everything_that_arrives_during_a_commit_shares_the_next_one() -> None:
    bench = BrokerHarness()
    queue = bench.create_queue()
    bench.send(queue, b"one")
    first = bench.turn()
    assert first is not None
    commands = [bench.send(queue, b"more") for _ in range(20)]
    assert bench.turn() is None  # one commit at a time
    bench.write(first)
    second = bench.turn()
    assert second is not None
    assert second.fact_count == len(commands)
    bench.write(second)
    assert all(bench.reply_to(command) is not None for command in commands)


def test_a_refusal_needs_no_disk() -> None:
    bench = BrokerHarness()
    queue = bench.create_queue()
    settle = Settle(queue.entity_id, MAIN, [(1, 1)], COMPLETE)
    cancel = CancelScheduled(queue.entity_id, [5])
    nowhere = Send(99, [NewMessage(b"lost")])
    bench.submit(settle, cancel, nowhere)
    results = [bench.reply_to(command) for command in (settle, cancel, nowhere)]
    assert all(reply is not None for reply in results)
    settled, cancelled, missing = results
    assert settled is not None
    assert isinstance(settled.result, list)
    assert isinstance(settled.result[0], MessageLockLost)
    assert cancelled is not None
    assert isinstance(cancelled.error, MessageNotFound)
    assert missing is not None
    assert isinstance(missing.error, EntityNotFound)
    assert bench.turn() is None  # nothing was stated


@pytest.mark.proves("M-1")
def test_competing_receivers_share_the_load() -> None:
    bench = BrokerHarness()
    queue = bench.create_queue()
    sinks = [bench.receiver(queue, credit=500)[1] for _ in range(4)]
    bench.send(queue, *[b"%d" % i for i in range(400)])
    bench.run()
    counts = [len(sink.bodies) for sink in sinks]
    assert sum(counts) == 400
    assert min(counts) >= 50
    assert sorted(body for sink in sinks for body in sink.bodies) == sorted(
        b"%d" % i for i in range(400)
    )


def test_credit_is_never_exceeded_and_a_full_connection_gets_nothing() -> None:
    bench = BrokerHarness()
    queue = bench.create_queue()
    bench.send(queue, *[b"x"] * 50)
    receiver, sink = bench.receiver(queue, credit=7)
    bench.run()
    assert len(sink.bodies) == 7
    sink.is_full = True
    receiver.set_credit(10, drain=False)
    bench.run()
    assert len(sink.bodies) == 7
    sink.is_full = False
    bench.broker.touch(queue)
    bench.run()
    assert len(sink.bodies) == 17


def test_who_has_taken_its_credit_back_or_left_is_in_nobodys_way() -> None:
    bench = BrokerHarness()
    queue = bench.create_queue()
    bench.send(queue, b"one", b"two", b"three")
    bench.run()
    receivers = [bench.receiver(queue) for _ in range(6)]
    for receiver, sink in receivers:
        sink.is_full = True
        receiver.set_credit(1, drain=False)
    bench.run()
    for _, sink in receivers:
        sink.is_full = False
    for receiver, _ in receivers[:3]:
        receiver.set_credit(0, drain=False)
    receivers[3][0].close()
    bench.run()
    assert [len(sink.bodies) for _, sink in receivers] == [0, 0, 0, 0, 1, 1]
    receiver, sink = receivers[0]
    receiver.set_credit(5, drain=True)
    bench.run()
    assert (len(sink.bodies), sink.drained_count) == (1, 1)
    receiver.set_credit(1, drain=False)
    bench.send(queue, b"four")
    bench.run()
    assert len(sink.bodies) == 2


def test_a_drain_is_answered_after_everything_there_is() -> None:
    bench = BrokerHarness()
    queue = bench.create_queue()
    bench.send(queue, b"one", b"two")
    bench.run()
    receiver, sink = bench.receiver(queue, receive_mode=RECEIVE_AND_DELETE)
    receiver.set_credit(10, drain=True)
    commit = bench.turn()
    assert commit is not None
    assert sink.drained_count == 0  # two are on their way to the disk
    bench.write(commit)
    bench.run()
    assert sink.bodies == [b"one", b"two"]
    assert sink.drained_count == 1


@pytest.mark.proves("M-2")
def test_an_expired_lock_brings_the_message_back_to_somebody_else() -> None:
    bench = BrokerHarness()
    queue = bench.create_queue(description=QueueDescription(lock_duration_ms=5_000))
    bench.send(queue, b"one")
    bench.run()
    _, first = bench.receiver(queue, credit=1)
    bench.run()
    _, second = bench.receiver(queue, credit=1)
    bench.pass_time(4_999)
    assert second.bodies == []
    bench.pass_time(2)
    assert second.bodies == [b"one"]
    assert second.messages[0].delivery_count == 1
    settle = Settle(queue.entity_id, MAIN, first.locks, COMPLETE)
    bench.submit(settle)
    reply = bench.reply_to(settle)
    assert reply is not None
    assert isinstance(reply.result, list)
    assert isinstance(reply.result[0], MessageLockLost)


@pytest.mark.proves("M-3")
def test_a_scheduled_message_arrives_when_it_is_due_also_after_a_restart() -> None:
    bench = BrokerHarness()
    queue = bench.create_queue()
    due = bench.clock.now().utc_ms + 60_000
    bench.submit(Send(queue.entity_id, [NewMessage(b"later", scheduled_ms=due)]))
    bench.run()
    bench.store.close()
    again = BrokerHarness(bench.disk.restarted(), bench.clock)
    queue = again.store.entities[queue.entity_id]
    _, sink = again.receiver(queue, credit=5)
    again.pass_time(59_000)
    assert sink.bodies == []
    again.pass_time(2_000)
    assert sink.bodies == [b"later"]
    assert sink.messages[0].sequence_number == 2


def test_a_deleted_queue_tells_its_receivers_and_refuses_commands() -> None:
    bench = BrokerHarness()
    queue = bench.create_queue()
    _, sink = bench.receiver(queue, credit=5)
    bench.submit(DeleteEntities([queue.entity_id]))
    bench.run()
    assert sink.is_removed
    command = bench.send(queue, b"late")
    reply = bench.reply_to(command)
    assert reply is not None
    assert isinstance(reply.error, EntityNotFound)


def test_a_disabled_queue_takes_no_receivers() -> None:
    bench = BrokerHarness()
    queue = bench.create_queue(description=QueueDescription(status=DISABLED))
    with pytest.raises(EntityDisabled):
        bench.receiver(queue)


@pytest.mark.proves("M-1")
def test_a_full_disk_refuses_sends_while_receiving_goes_on() -> None:
    bench = BrokerHarness(SimDisk(capacity=SEGMENT_SIZE * 3))
    queue = bench.create_queue()
    taken = 0
    for _ in range(2_000):
        command = bench.send(queue, b"x" * 1_000)
        bench.run()
        reply = bench.reply_to(command)
        assert reply is not None
        if reply.error is not None:
            assert isinstance(reply.error, DiskFull)
            break
        taken += 1
    else:
        pytest.fail("the disk never filled up")
    assert taken > 100, "a small disk that is all but empty takes messages"
    _, sink = bench.receiver(queue, credit=taken)
    bench.run()
    assert len(sink.bodies) == taken
    settle = Settle(queue.entity_id, MAIN, sink.locks, COMPLETE)
    bench.submit(settle)
    bench.run()
    reply = bench.reply_to(settle)
    assert reply is not None
    assert reply.error is None
    assert reply.result is None


def is_accepted(bench: BrokerHarness, queue: Queue, body: bytes) -> bool:
    command = bench.send(queue, body)
    bench.run()
    reply = bench.reply_to(command)
    assert reply is not None
    return reply.error is None


@pytest.mark.proves("M-3")
@pytest.mark.parametrize("segments", [3, 4, 12])
@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_disk_that_was_full_takes_sends_when_the_reason_is_gone(
    segments: int, is_deleted: bool
) -> None:
    """Also when what frees the room, a deletion or a few completions, takes few bytes."""
    bench = BrokerHarness(SimDisk(capacity=SEGMENT_SIZE * segments))
    kept = bench.create_queue("kept")
    bench.send(kept, b"still here")
    ballast = bench.create_queue("ballast")
    bench.run()
    for _ in range(3):
        taken = 0
        for _ in range(20):  # also what the disk gives when it is asked again
            bench.clock.advance(1_000)
            bench.run()
            while taken < 1_000 and is_accepted(bench, ballast, bytes(20_000)):
                taken += 1
        assert 5 < taken < 1_000
        if is_deleted:
            bench.submit(DeleteEntities([ballast.entity_id]))
            ballast = bench.create_queue("ballast")
        else:
            receiver, _ = bench.receiver(ballast, 1_000, RECEIVE_AND_DELETE)
            bench.run()
            receiver.close()
        for _ in range(30):
            bench.clock.advance(1_000)
            bench.run()
    assert kept.counts().message_count == 1


@pytest.mark.proves("M-1")
def test_after_a_failed_sync_nothing_is_answered() -> None:
    bench = BrokerHarness()
    queue = bench.create_queue()
    command = bench.send(queue, b"one")
    commit = bench.turn()
    assert commit is not None
    bench.disk.fail("sync")
    with pytest.raises(LogPoisoned):
        commit.write()
    with pytest.raises(LogPoisoned):
        bench.broker.committed(commit)
    assert bench.reply_to(command) is None


@pytest.mark.proves("M-3")
def test_peek_stops_at_its_size_and_repeating_reaches_everything() -> None:
    bench = BrokerHarness()
    queue = bench.create_queue()
    for _ in range(8):
        bench.send(queue, b"x" * 60_000)
        bench.run()
    seen: list[int] = []
    start = 0
    while True:
        peek = Peek(queue.entity_id, MAIN, start, 100)
        bench.submit(peek)
        reply = bench.reply_to(peek)
        assert reply is not None
        found = reply.result
        assert isinstance(found, list)
        if not found:
            break
        assert all(isinstance(one, Delivered) for one in found)
        assert sum(len(one.body) for one in found) <= PEEK_RESPONSE_BYTES_MAX
        seen += [one.message.sequence_number for one in found]
        start = seen[-1] + 1
    assert seen == list(range(1, 9))


@pytest.mark.proves("M-2")
def test_too_many_abandons_end_in_the_dead_letter_queue() -> None:
    bench = BrokerHarness()
    queue = bench.create_queue(description=QueueDescription(max_delivery_count=3))
    bench.send(queue, b"poison")
    bench.run()
    for _ in range(3):
        _, sink = bench.receiver(queue, credit=1)
        bench.run()
        bench.submit(Settle(queue.entity_id, MAIN, sink.locks, ABANDON))
        bench.run()
    _, dead = bench.receiver(queue, credit=1, subqueue=DEAD_LETTER)
    bench.run()
    assert dead.bodies == [b"poison"]
    overlay = dead.messages[0].overlay
    assert overlay is not None
    assert overlay.reason == "MaxDeliveryCountExceeded"


@pytest.mark.proves("M-2")
def test_a_token_of_a_forgotten_lock_never_fits_again() -> None:
    bench = BrokerHarness()
    queue = bench.create_queue()
    bench.send(queue, b"one")
    bench.run()
    _, first = bench.receiver(queue, credit=1)
    bench.turn()  # handed out, and the commit that tells of it is never written
    assert first.bodies == [b"one"]
    bench.clock.advance(1)
    disk = bench.disk.after_power_cut(random.Random(1), CrashMode.DROP)
    again = BrokerHarness(disk, bench.clock)
    queue = again.store.entities[queue.entity_id]
    _, second = again.receiver(queue, credit=1)
    again.run()
    assert second.bodies == [b"one"]
    stale = Settle(queue.entity_id, MAIN, first.locks, COMPLETE)
    again.submit(stale)
    reply = again.reply_to(stale)
    assert reply is not None
    assert isinstance(reply.result, list)
    assert isinstance(reply.result[0], MessageLockLost)


def test_a_client_that_talks_alone_need_not_wait_for_the_end_of_the_turn() -> None:
    bench = BrokerHarness()
    queue = bench.create_queue()
    turns: list[str] = []
    bench.broker.turn_now = lambda: turns.append("now")
    for client in ("a", "b", "b", "b", "a"):
        bench.send(queue, b"x")
        bench.broker.turn_if_alone(client)
        bench.run()
    assert len(turns) == 2  # only the second and third time of b
    bench.send(queue, *[b"x"] * 100)
    bench.broker.turn_if_alone("a")
    assert len(turns) == 2  # too much work for now


def test_a_send_without_a_message_is_refused() -> None:
    bench = BrokerHarness()
    queue = bench.create_queue()
    empty = bench.send(queue)
    bench.send(queue, b"one")
    bench.run()
    reply = bench.reply_to(empty)
    assert reply is not None and isinstance(reply.error, ArgumentInvalid)
    assert queue.counts().active == 1
