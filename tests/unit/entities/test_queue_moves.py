"""What others do with a queue's messages: forward, purge, undefer, delay, or only try."""

import pytest

from tests.unit.entities.scene import Scene, locks_of, numbers_of, overview
from twinbus.entities.commands import ABANDON, COMPLETE, DEAD_LETTER, DEFER, Peek, Settle
from twinbus.entities.descriptions import SEND_DISABLED, QueueDescription, SubscriptionDescription
from twinbus.entities.facts import DEAD_LETTER as DLQ
from twinbus.entities.facts import MAIN
from twinbus.entities.facts import TRANSFER_DEAD_LETTER as TRANSFER
from twinbus.entities.kinds import make_queue
from twinbus.entities.message import NewMessage, Overlay
from twinbus.entities.sessions import SessionQueue
from twinbus.entities.state import Grants
from twinbus.errors import (
    EntityDisabled,
    InvalidOperation,
    MessageLockLost,
    MessageNotFound,
    QuotaExceeded,
)

LOCK_MS = 10_000
DESCRIPTION = QueueDescription(lock_duration_ms=LOCK_MS, max_delivery_count=3)


@pytest.fixture
def scene() -> Scene:
    return Scene(DESCRIPTION)


# --- which class ----------------------------------------------------------------------------------


def test_an_entity_is_made_of_what_its_description_says() -> None:
    plain = make_queue("subscription", 1, "t/Subscriptions/s", DESCRIPTION, [], Grants())
    assert (plain.kind, plain.topic_id, type(plain).__name__) == ("subscription", 0, "Queue")
    description = SubscriptionDescription(requires_session=True)
    made = make_queue("subscription", 2, "t/Subscriptions/u", description, [], Grants())
    assert isinstance(made, SessionQueue)
    assert made.kind == "subscription"


# --- the transfer dead-letter queue ---------------------------------------------------------------


@pytest.mark.parametrize("part", [MAIN, DLQ])
def test_what_cannot_be_forwarded_goes_to_the_transfer_dead_letter_queue(
    scene: Scene, part: int
) -> None:
    scene.send_bodies(b"a", b"b")
    if part == DLQ:
        scene.settle(scene.lock(2), DEAD_LETTER)
    messages = scene.queue.take_ready(part, 1, scene.now)
    overlay = Overlay("no target", "The target is gone.")
    scene.queue.dead_letter(part, messages, overlay, TRANSFER)
    scene.commit()
    assert scene.peek(TRANSFER) == [1]
    assert scene.peek(part) == [2]
    counts = scene.queue.counts()
    assert (counts.transfer_dead_letter, counts.message_count, counts.size_bytes) == (1, 2, 2)
    assert overview(scene.rebuilt()) == overview(scene.queue)


def test_the_transfer_dead_letter_queue_is_received_from_like_another(scene: Scene) -> None:
    scene.send_bodies(b"a")
    messages = scene.queue.take_ready(MAIN, 1, scene.now)
    scene.queue.dead_letter(MAIN, messages, Overlay("no target"), TRANSFER)
    [message] = scene.queue.lock_next(TRANSFER, 1, scene.now)
    assert message.delivery_count == 0
    scene.advance(LOCK_MS)
    assert scene.queue.next_due_ms(scene.now) == 0
    scene.tick()
    locks = scene.lock(1, TRANSFER)
    with pytest.raises(InvalidOperation):
        scene.settle(locks, DEAD_LETTER, subqueue=TRANSFER)
    assert scene.settle(locks, COMPLETE, subqueue=TRANSFER) == [None]
    assert scene.queue.counts().message_count == 0


def test_asking_does_not_make_a_transfer_dead_letter_queue(scene: Scene) -> None:
    """Ten thousand queues are in a snapshot, and none of them pays for what it does not have."""
    assert scene.queue.messages_from(TRANSFER, 1, 10) == []
    scene.tick()
    assert scene.queue.counts().transfer_dead_letter == 0
    assert scene.queue._transfer_dead_letter is None


def test_what_was_forwarded_is_gone(scene: Scene) -> None:
    scene.send_bodies(b"a", b"b")
    messages = scene.queue.take_ready(MAIN, 10, scene.now)
    scene.queue.remove(MAIN, messages)
    assert scene.told() == [("Removed", MAIN, [1, 2])]
    assert scene.queue.counts().message_count == 0


def test_a_forwarded_message_brings_its_overlay_along(scene: Scene) -> None:
    new = NewMessage(b"a")
    new.overlay = Overlay(source="first", hop_count=2, enqueued_sequence_number=9)
    scene.send(new)
    [message] = scene.queue.lock_next(MAIN, 1, scene.now)
    assert message.overlay is not None
    assert (message.overlay.source, message.overlay.hop_count) == ("first", 2)


# --- waiting --------------------------------------------------------------------------------------


def test_an_abandoned_message_may_come_back_later(scene: Scene) -> None:
    scene.send_bodies(b"a", b"b")
    locks = scene.lock()
    scene.told()
    command = Settle(7, MAIN, locks, ABANDON, Overlay(properties=b"p"))
    command.delay_ms = 5_000
    assert scene.queue.apply(command, scene.now) is None
    due_ms = scene.now.utc_ms + 5_000
    assert scene.told() == [("Rescheduled", 1, 1, due_ms, (None, None, None, b"p"))]
    scene.commit()
    assert overview(scene.rebuilt()) == overview(scene.queue)
    assert scene.queue.counts().scheduled == 1
    assert [number for number, _ in scene.lock(2)] == [2]
    scene.advance(5_000)
    scene.tick()
    scene.commit()
    [message] = scene.queue.lock_next(MAIN, 5, scene.now)
    assert (message.sequence_number, message.delivery_count, message.body) == (3, 1, b"a")
    scene.commit()
    assert overview(scene.rebuilt()) == overview(scene.queue)


def test_waiting_does_not_prolong_a_life(scene: Scene) -> None:
    scene.send(NewMessage(b"a", 8_000), NewMessage(b"b", 3_000))
    scene.queue.settle(MAIN, scene.lock(2), ABANDON, None, scene.now, 5_000)
    scene.commit()
    scene.advance(5_000)
    scene.tick()
    scene.commit()
    scene.tick()
    assert scene.peek() == [3], "the other one's time was over before it came back"
    scene.advance(3_000)
    scene.tick()
    assert scene.peek() == []


def test_waiting_does_not_help_a_message_beyond_its_deliveries(scene: Scene) -> None:
    scene.send_bodies(b"a")
    for _ in range(3):
        scene.queue.settle(MAIN, scene.lock(), ABANDON, None, scene.now, 1_000)
        scene.commit()
        scene.advance(1_000)
        scene.tick()
        scene.commit()
    assert scene.peek() == []
    assert len(scene.peek(DLQ)) == 1


def test_nothing_waits_in_a_dead_letter_queue(scene: Scene) -> None:
    scene.send_bodies(b"a")
    scene.settle(scene.lock(), DEAD_LETTER)
    locks = scene.lock(1, DLQ)
    with pytest.raises(InvalidOperation):
        scene.queue.settle(DLQ, locks, ABANDON, None, scene.now, 1_000)
    assert scene.settle(locks, ABANDON, subqueue=DLQ) == [None]


# --- trying things out ----------------------------------------------------------------------------


def test_a_send_is_checked_without_being_made() -> None:
    scene = Scene(QueueDescription(max_size_megabytes=1))
    fits = [NewMessage(bytes(1_048_576))]
    scene.queue.check_send(fits, scene.now)
    with pytest.raises(QuotaExceeded):
        scene.queue.check_send([*fits, NewMessage(b"x")], scene.now)
    assert scene.queue.counts().message_count == 0
    assert scene.told() == []
    scene.queue.update(QueueDescription(status=SEND_DISABLED))
    with pytest.raises(EntityDisabled):
        scene.queue.check_send(fits, scene.now)


def test_a_settlement_is_checked_without_being_made(scene: Scene) -> None:
    scene.send_bodies(b"a", b"b")
    locks = scene.lock(2)
    before = overview(scene.queue)
    for outcome in (COMPLETE, ABANDON, DEFER, DEAD_LETTER):
        scene.queue.check_settle(Settle(7, MAIN, locks, outcome), scene.now)
    with pytest.raises(MessageLockLost):
        scene.queue.check_settle(Settle(7, MAIN, [*locks, (1, 10**9)], COMPLETE), scene.now)
    assert overview(scene.queue) == before
    scene.settle(locks, DEAD_LETTER)
    locks = scene.lock(1, DLQ)
    with pytest.raises(InvalidOperation):
        scene.queue.check_settle(Settle(7, DLQ, locks, DEAD_LETTER), scene.now)
    scene.advance(LOCK_MS)
    with pytest.raises(MessageLockLost):
        scene.queue.check_settle(Settle(7, DLQ, locks, COMPLETE), scene.now)


# --- many at once ---------------------------------------------------------------------------------


def test_what_is_locked_is_not_removed(scene: Scene) -> None:
    scene.send_bodies(b"a", b"b", b"c")
    locked = scene.lock()
    scene.queue.send([NewMessage(b"not durable yet")], scene.now)
    scene.told()
    assert scene.queue.remove_free(MAIN, [1, 2, 2, 4, 99]) == 1
    assert scene.told() == [("Removed", MAIN, [2])]
    assert scene.settle(locked, COMPLETE) == [None]
    assert scene.queue.remove_free(MAIN, []) == 0
    assert scene.told() == [("Removed", MAIN, [1])]


def test_a_deferred_message_takes_its_old_place(scene: Scene) -> None:
    scene.send_bodies(b"a", b"b", b"c")
    locks = scene.lock(2)
    scene.settle(locks[:1], DEFER)
    with pytest.raises(MessageNotFound):
        scene.queue.undefer([1, 2], scene.now)
    assert scene.queue.counts().deferred == 1
    scene.queue.undefer([1], scene.now)
    assert scene.queue.counts().deferred == 0
    scene.settle(locks[1:], ABANDON)
    assert numbers_of(scene.queue.lock_next(MAIN, 3, scene.now)) == [1, 2, 3]
    scene.commit()
    assert overview(scene.rebuilt()) == overview(scene.queue)


def test_an_undeferred_message_may_have_expired(scene: Scene) -> None:
    scene.send(NewMessage(b"a", 1_000))
    scene.settle(locks_of(scene.queue.lock_next(MAIN, 1, scene.now)), DEFER)
    scene.advance(1_000)
    scene.queue.undefer([1], scene.now)
    assert scene.queue.counts().message_count == 0


def test_a_plain_queue_has_no_sessions(scene: Scene) -> None:
    peek = Peek(7, MAIN, 0, 1)
    peek.session_id = "a"
    with pytest.raises(InvalidOperation, match="session"):
        scene.queue.apply(peek, scene.now)
