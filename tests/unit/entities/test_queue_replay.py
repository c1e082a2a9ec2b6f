"""Facts rebuild a queue: exactly, from any slice, and harmlessly when replayed again."""

from dataclasses import replace

import pytest

from tests.unit.entities.scene import UTC_MS, Scene, copy_fact, copy_message, message_view, overview
from twinbus.entities.commands import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DEFER,
    PEEK_LOCK,
    CancelScheduled,
    Command,
    Peek,
    ReceiveDeferred,
    RenewLocks,
    Send,
    Settle,
)
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.facts import DEAD_LETTER as DLQ
from twinbus.entities.facts import (
    MAIN,
    Activated,
    DeadLettered,
    EntityCreated,
    EntityDeleted,
    Fact,
    Locked,
    Removed,
    Stored,
    Unlocked,
)
from twinbus.entities.message import ACTIVE, DEFERRED, GONE, Message, NewMessage, Overlay
from twinbus.entities.queue import Queue
from twinbus.entities.state import Grants
from twinbus.errors import NotSupported

DESCRIPTION = QueueDescription(
    lock_duration_ms=10_000, max_delivery_count=3, dead_lettering_on_message_expiration=True
)


def test_m2_counts_of_earlier_versions_stay_as_they_are() -> None:
    """Those counted deferring, dead-lettering, and what was abandoned as a dead letter."""
    scene = Scene(DESCRIPTION)
    scene.send_bodies(b"a", b"b")
    for fact in (
        Unlocked(scene.queue.entity_id, MAIN, 1, 1, DEFERRED, None),
        DeadLettered(scene.queue.entity_id, 2, 1, Overlay("r", "d"), DLQ),
        Unlocked(scene.queue.entity_id, DLQ, 2, 7, ACTIVE, Overlay("r", "d")),
    ):
        scene.queue.replay(fact, scene.now)
    scene.queue.receive_deferred(MAIN, [1], PEEK_LOCK, scene.now)
    for subqueue, count in ((MAIN, 1), (DLQ, 7)):
        [message] = scene.queue.peek(subqueue, 1, 9, scene.now)
        assert message.delivery_count == count
    scene.settle(scene.lock(subqueue=DLQ), ABANDON, subqueue=DLQ)
    assert scene.told()[-1] == ("Unlocked", DLQ, 2, 7, ACTIVE, ("r", "d", None, None))


def eventful() -> Scene:
    """A queue to which everything has happened at least once; all of it committed."""
    scene = Scene(DESCRIPTION)
    scene.send(
        *[NewMessage(bytes([n])) for n in range(12)],
        NewMessage(b"scheduled", scheduled_ms=UTC_MS + 1_000, time_to_live_ms=99_000),
        NewMessage(b"scheduled far", scheduled_ms=UTC_MS + 10**9),
        NewMessage(b"short", time_to_live_ms=2_000),
        NewMessage(b"longer", time_to_live_ms=50_000),
    )
    locks = scene.lock(8)
    scene.settle(locks[0:1], COMPLETE)
    scene.settle(locks[1:2], ABANDON, Overlay(properties=b"p"))
    scene.settle(locks[2:4], DEFER)
    scene.settle(locks[4:6], DEAD_LETTER, Overlay("r", "d"))
    scene.queue.receive_deferred(MAIN, [3], PEEK_LOCK, scene.now)
    scene.commit()
    scene.lock(1, DLQ)
    scene.queue.take_next(MAIN, 1, scene.now)
    scene.advance(2_000)
    scene.tick()
    scene.commit()
    scene.advance(8_000)
    scene.tick()
    scene.settle(scene.lock(4)[3:], ABANDON, Overlay(properties=b"q"))
    scene.commit()
    return scene


def replayed(facts: list[Fact], scene: Scene) -> Queue:
    queue = Queue(7, "orders", DESCRIPTION, [], Grants())
    for fact in facts:
        queue.replay(copy_fact(fact), scene.now)
    return queue


def test_replay_gives_the_same_queue() -> None:
    scene = eventful()
    queue = scene.rebuilt()
    assert overview(queue) == overview(scene.queue)
    assert queue.published == queue.last_sequence_number == 17
    assert queue.grants.next == scene.grants.next


def test_replaying_any_tail_again_changes_nothing() -> None:
    scene = eventful()
    expected = overview(scene.queue)
    for start in range(len(scene.log)):
        assert overview(replayed(scene.log + scene.log[start:], scene)) == expected


def test_a_rebuilt_queue_goes_on_as_the_first_would() -> None:
    scene = eventful()
    locked = [m for m in scene.queue.peek(MAIN, 1, 99, scene.now) if m.grant]
    held = [(message.sequence_number, message.grant) for message in locked]
    scene.crash()
    assert scene.settle(held[:1], COMPLETE) == [None], "a lock token survives a restart"
    scene.advance(9_999)
    scene.tick()
    assert scene.settle(held[1:2], COMPLETE) == [None], "locks run anew after a restart"
    scene.advance(1)
    scene.tick()
    assert set(scene.settle(held[2:], COMPLETE)) == {"MessageLockLost"}
    freed = [number for number, _ in scene.lock(99)]
    assert freed == sorted(freed)
    assert scene.send_bodies(b"next") == [18]


def test_expiries_and_schedules_survive_a_restart() -> None:
    scene = Scene(DESCRIPTION)
    scene.send(
        NewMessage(b"a", time_to_live_ms=5_000), NewMessage(b"b", scheduled_ms=UTC_MS + 3_000)
    )
    scene.crash()
    assert scene.queue.next_due_ms(scene.now) == 3_000
    scene.advance(3_000)
    scene.tick()
    assert scene.queue.next_due_ms(scene.now) == 2_000
    scene.advance(2_000)
    scene.tick()
    assert [fact[0] for fact in scene.told()] == ["Activated", "DeadLettered"]


def test_expiry_after_a_lock_survives_a_restart() -> None:
    scene = Scene(DESCRIPTION)
    scene.send(NewMessage(b"a", time_to_live_ms=5_000))
    scene.settle(scene.lock(), ABANDON)
    scene.commit()
    scene.crash()
    assert scene.queue.next_due_ms(scene.now) == 5_000


@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_messages_walked_in_slices_restore_the_queue(count: int) -> None:
    scene = eventful()
    queue = Queue(7, "orders", DESCRIPTION, [], Grants())
    for subqueue in (MAIN, DLQ):
        number = 0
        while messages := scene.queue.messages_from(subqueue, number, count):
            assert len(messages) <= count
            for message in messages:
                queue.restore(copy_message(message), subqueue, scene.now)
            number = messages[-1].sequence_number + 1
    assert overview(queue) == overview(scene.queue)
    assert queue.next_due_ms(scene.now) == scene.queue.next_due_ms(scene.now)


def test_a_walk_leaves_out_what_is_not_durable() -> None:
    scene = Scene(DESCRIPTION)
    scene.send_bodies(b"a")
    scene.queue.send([NewMessage(b"b")], scene.now)
    assert [m.body for m in scene.queue.messages_from(MAIN, 1, 10)] == [b"a"]


def test_slices_older_and_newer_than_their_neighbours_are_repaired() -> None:
    """Between two slices one message moves to the dead-letter queue and one to its new number."""
    scene = Scene(DESCRIPTION)
    scene.send(NewMessage(b"a"), NewMessage(b"b", scheduled_ms=UTC_MS + 1_000))
    start = len(scene.log)
    early = [copy_message(message) for message in scene.queue.messages_from(MAIN, 1, 2)]
    scene.settle(scene.lock(), DEAD_LETTER, Overlay("r"))
    scene.advance(1_000)
    scene.tick()
    scene.commit()
    late = [copy_message(message) for message in scene.queue.messages_from(MAIN, 3, 9)]
    dead = [copy_message(message) for message in scene.queue.messages_from(DLQ, 1, 9)]
    assert [len(early), len(late), len(dead)] == [2, 1, 1]
    queue = Queue(7, "orders", DESCRIPTION, [], Grants())
    for message in early + late:
        queue.restore(message, MAIN, scene.now)
    queue.restore(dead[0], DLQ, scene.now)
    for fact in scene.log[start:]:
        queue.replay(copy_fact(fact), scene.now)
    assert overview(queue) == overview(scene.queue)


@pytest.mark.parametrize(
    "fact",
    [
        Removed(7, MAIN, [5, 6]),
        Locked(7, DLQ, 9, [5]),
        Unlocked(7, MAIN, 5, 3, ACTIVE, None),
        DeadLettered(7, 5, 1, Overlay("r")),
        EntityDeleted(7),
    ],
    ids=lambda fact: type(fact).__name__,
)
def test_facts_about_messages_that_are_gone_are_passed_over(fact: Fact) -> None:
    scene = Scene(DESCRIPTION)
    scene.send_bodies(b"a")
    before = overview(scene.queue)
    scene.queue.replay(fact, scene.now)
    assert overview(scene.queue) == before


def test_numbers_and_grants_are_never_given_twice_after_replay() -> None:
    scene = Scene(DESCRIPTION)
    scene.queue.replay(Locked(7, MAIN, 9, [5, 6]), scene.now)
    scene.queue.replay(Activated(7, 3, 8, UTC_MS, UTC_MS + 1), scene.now)
    assert scene.send_bodies(b"a") == [9]
    assert scene.lock() == [(9, 11)]


def test_a_message_that_was_gone_before_it_was_written_only_used_its_number() -> None:
    scene = Scene(DESCRIPTION)
    scene.queue.replay(Stored(7, MAIN, [Message(1, b"", 0, 0, state=GONE)]), scene.now)
    assert scene.queue.counts().message_count == 0
    assert scene.send_bodies(b"a") == [2]


def test_a_message_stated_again_replaces_itself() -> None:
    """Segments are emptied by stating their live messages again, wherever they are."""
    scene = eventful()
    before = overview(scene.queue)
    for subqueue in (MAIN, DLQ):
        for message in scene.queue.messages_from(subqueue, 1, 99):
            copy = copy_message(message)
            copy.position = 99
            scene.queue.replay(Stored(7, subqueue, [copy]), scene.now)
    assert overview(scene.queue) == before
    assert {m.position for m in scene.queue.messages_from(MAIN, 1, 99)} == {99}


def test_a_new_description_is_replayed() -> None:
    scene = Scene(DESCRIPTION)
    newer = replace(DESCRIPTION, status="Disabled")
    scene.queue.replay(EntityCreated(7, "queue", "orders", newer.to_json()), scene.now)
    assert scene.queue.description == newer
    assert not scene.queue.has_ready(MAIN)


def test_apply_decides_on_every_command() -> None:
    scene = Scene(DESCRIPTION)
    queue, now = scene.queue, scene.now
    new = [NewMessage(b"a"), NewMessage(b"b", scheduled_ms=UTC_MS + 5)]
    assert queue.apply(Send(7, new), now) == [1, 2]
    scene.commit()
    held = scene.lock()
    assert queue.apply(RenewLocks(7, MAIN, held), now) == [UTC_MS + 10_000]
    assert queue.apply(Settle(7, MAIN, held, DEFER), now) is None
    peeked = queue.apply(Peek(7, MAIN, 1, 10), now)
    assert isinstance(peeked, list)
    assert [message_view(message)[0] for message in peeked] == [1, 2]
    assert queue.apply(CancelScheduled(7, [2]), now) is None
    received = queue.apply(ReceiveDeferred(7, MAIN, [1], PEEK_LOCK), now)
    assert received == peeked[:1]
    with pytest.raises(NotSupported, match="Command"):
        queue.apply(Command(7), now)
