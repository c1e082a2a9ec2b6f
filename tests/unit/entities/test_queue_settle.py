"""Receive modes, settlement, locks, delivery count.  Commands in, facts out."""

from dataclasses import replace

import pytest

from tests.unit.entities.scene import MONO_MS, UTC_MS, Scene, locks_of, overview, texts
from twinbus.clock import Now
from twinbus.entities.commands import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DEFER,
    RECEIVE_AND_DELETE,
    RELEASE,
)
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.facts import DEAD_LETTER as DLQ
from twinbus.entities.facts import MAIN
from twinbus.entities.message import ACTIVE, DEFERRED, NewMessage, Overlay
from twinbus.errors import EntityDisabled, InvalidOperation, MessageLockLost, QuotaExceeded

pytestmark = pytest.mark.proves("M-2")

LOST = "MessageLockLost"
DESCRIPTION = QueueDescription(lock_duration_ms=10_000, max_delivery_count=3)


@pytest.fixture
def scene() -> Scene:
    return Scene(DESCRIPTION)


def test_send_numbers_messages_without_gaps(scene: Scene) -> None:
    numbers = scene.queue.send([NewMessage(b"a"), NewMessage(b"b")], scene.now)
    assert numbers == [1, 2]
    assert scene.told() == [("Stored", MAIN, [1, 2])]
    assert scene.queue.send([NewMessage(b"c")], scene.now) == [3]


def test_a_message_is_invisible_until_it_is_durable(scene: Scene) -> None:
    scene.queue.send([NewMessage(b"a"), NewMessage(b"b")], scene.now)
    assert not scene.queue.has_ready(MAIN)
    assert (scene.lock(5), scene.peek()) == ([], [])
    scene.queue.publish(1)
    assert scene.queue.has_ready(MAIN)
    assert scene.peek() == [1]
    assert scene.lock(5) == [(1, 1)]
    assert not scene.queue.has_ready(MAIN)
    scene.queue.publish(2)
    scene.queue.publish(1)  # a watermark never sinks
    assert scene.lock(5) == [(2, 2)]


def test_m2_complete_states_one_fact_for_many(scene: Scene) -> None:
    scene.send_bodies(b"a", b"b", b"c")
    messages = scene.queue.lock_next(MAIN, 2, scene.now)
    assert [message.body for message in messages] == [b"a", b"b"]
    assert {message.locked_until_ms for message in messages} == {MONO_MS + 10_000}
    assert scene.told() == [("Locked", MAIN, 1, [1, 2])]
    assert scene.settle(locks_of(messages), COMPLETE) == [None, None]
    assert scene.told() == [("Removed", MAIN, [1, 2])]
    assert scene.queue.counts().message_count == 1
    assert scene.queue.counts().size_bytes == 1


def test_m2_receive_and_delete(scene: Scene) -> None:
    scene.send_bodies(b"a", b"b")
    taken = scene.queue.take_next(MAIN, 5, scene.now)
    assert [message.body for message in taken] == [b"a", b"b"]
    assert scene.told() == [("Removed", MAIN, [1, 2])]
    assert scene.queue.counts().message_count == 0
    assert scene.queue.take_next(MAIN, 5, scene.now) == []
    assert scene.told() == []


@pytest.mark.parametrize("outcome", [COMPLETE, ABANDON, DEFER, DEAD_LETTER, RELEASE])
def test_m2_a_lock_that_is_not_held_settles_nothing(scene: Scene, outcome: int) -> None:
    scene.send_bodies(b"a", b"b", b"c")
    held = scene.lock(2)
    before = overview(scene.queue)
    wrong = [(1, held[0][1] + 1), (3, 0), (3, 1), (99, 1), (0, 0)]
    assert scene.settle(wrong, outcome) == [LOST] * 5
    assert overview(scene.queue) == before
    assert scene.settle([(99, 1), held[1], held[1]], outcome) == [LOST, None, LOST]
    assert scene.settle([held[0]], outcome) == [None]


def test_m2_abandon_frees_at_once_in_order_and_counts(scene: Scene) -> None:
    scene.send_bodies(b"a", b"b", b"c")
    first, second = scene.lock(2)
    scene.told()
    assert scene.settle([second, first], ABANDON) == [None, None]
    assert scene.told() == [
        ("Unlocked", MAIN, 2, 1, ACTIVE, None),
        ("Unlocked", MAIN, 1, 1, ACTIVE, None),
    ]
    assert [number for number, _ in scene.lock(3)] == [1, 2, 3]


def test_m2_release_does_not_count(scene: Scene) -> None:
    scene.send_bodies(b"a")
    for _ in range(5):
        scene.settle(scene.lock(), RELEASE)
    assert scene.told()[-1] == ("Unlocked", MAIN, 1, 0, ACTIVE, None)
    assert scene.queue.lock_next(MAIN, 1, scene.now)[0].delivery_count == 0


def test_m2_max_delivery_count_leads_to_the_dead_letter_queue(scene: Scene) -> None:
    scene.send_bodies(b"a")
    counts = []
    for _ in range(3):
        message = scene.queue.lock_next(MAIN, 1, scene.now)[0]
        counts.append(message.delivery_count)
        scene.settle(locks_of([message]), ABANDON, Overlay(properties=b"p"))
    assert counts == [0, 1, 2]
    assert scene.lock() == []
    text = "Message could not be consumed after 3 delivery attempts."
    overlay = ("MaxDeliveryCountExceeded", text, None, b"p")
    assert scene.told()[-1] == ("DeadLettered", 1, 3, overlay)
    dead = scene.queue.lock_next(DLQ, 1, scene.now)[0]
    assert (dead.sequence_number, dead.delivery_count, texts(dead.overlay)) == (1, 3, overlay)


def test_m2_nothing_leaves_the_dead_letter_queue_by_counting(scene: Scene) -> None:
    scene.send_bodies(b"a")
    scene.settle(scene.lock(), DEAD_LETTER)
    for _ in range(5):
        scene.settle(scene.lock(subqueue=DLQ), ABANDON, subqueue=DLQ)
        assert scene.told()[-1] == ("Unlocked", DLQ, 1, 0, ACTIVE, (None, None, None, None))
    for _ in range(5):
        assert len(scene.lock(subqueue=DLQ)) == 1
        scene.advance(10_000)
        scene.tick()
        assert scene.told()[-1] == ("Unlocked", DLQ, 1, 0, ACTIVE, (None, None, None, None))


def test_m2_dead_lettering_and_deferring_do_not_count(scene: Scene) -> None:
    scene.send_bodies(b"a", b"b")
    scene.settle(scene.lock(2), ABANDON)
    first, second = scene.lock(2)
    scene.told()
    scene.settle([first], DEAD_LETTER)
    scene.settle([second], DEFER)
    assert scene.told() == [
        ("DeadLettered", 1, 1, (None, None, None, None)),
        ("Unlocked", MAIN, 2, 1, DEFERRED, None),
    ]


def test_m2_dead_letter_keeps_number_and_says_why(scene: Scene) -> None:
    scene.send_bodies(b"a", b"b")
    first, second = scene.lock(2)
    scene.told()
    scene.settle([second], DEAD_LETTER, Overlay("bad", "very bad", properties=b"p"))
    assert scene.told() == [("DeadLettered", 2, 0, ("bad", "very bad", None, b"p"))]
    scene.settle([first], DEAD_LETTER)
    assert scene.peek(DLQ) == [1, 2]
    assert scene.queue.counts().dead_letter == 2
    assert [number for number, _ in scene.lock(5, DLQ)] == [1, 2]


def test_m2_a_lower_number_dead_lettered_later_is_still_delivered(scene: Scene) -> None:
    scene.send_bodies(b"a", b"b")
    first, second = scene.lock(2)
    scene.settle([second], DEAD_LETTER)
    assert scene.lock(1, DLQ)[0][0] == 2
    scene.settle([first], DEAD_LETTER)
    assert scene.queue.has_ready(DLQ)
    assert scene.lock(1, DLQ)[0][0] == 1


def test_m2_a_dead_letter_cannot_be_dead_lettered(scene: Scene) -> None:
    scene.send_bodies(b"a")
    scene.settle(scene.lock(), DEAD_LETTER)
    held = scene.lock(subqueue=DLQ)
    with pytest.raises(InvalidOperation):
        scene.settle(held, DEAD_LETTER, subqueue=DLQ)
    assert scene.settle(held, DEFER, subqueue=DLQ) == [None]
    assert scene.lock(subqueue=DLQ) == []
    again = scene.queue.receive_deferred(DLQ, [1], RECEIVE_AND_DELETE, scene.now)
    assert [message.body for message in again] == [b"a"]
    assert scene.queue.counts().message_count == 0


def test_m2_property_changes_add_up_newest_wins(scene: Scene) -> None:
    scene.send_bodies(b"a")
    scene.settle(scene.lock(), ABANDON, Overlay(properties=b"1"))
    scene.settle(scene.lock(), ABANDON)
    assert scene.told()[-1] == ("Unlocked", MAIN, 1, 2, ACTIVE, (None, None, None, b"1"))
    scene.settle(scene.lock(), DEAD_LETTER, Overlay("r", "d"))
    held = scene.lock(subqueue=DLQ)
    scene.settle(held, ABANDON, Overlay(reason="s", source="t", properties=b"2"), DLQ)
    assert scene.told()[-1] == ("Unlocked", DLQ, 1, 2, ACTIVE, ("s", "d", "t", b"2"))


def test_m2_a_lock_ends_by_itself_and_counts(scene: Scene) -> None:
    scene.send_bodies(b"a")
    held = scene.lock()
    assert scene.queue.next_due_ms(scene.now) == 10_000
    scene.advance(9_999)
    scene.queue.tick(scene.now)
    assert scene.lock() == []
    scene.advance(1)
    assert scene.queue.next_due_ms(scene.now) == 0
    assert scene.settle(held, COMPLETE) == [LOST], "too late, although no tick came by"
    scene.told()
    scene.queue.tick(scene.now)
    assert scene.told() == [("Unlocked", MAIN, 1, 1, ACTIVE, None)]
    assert scene.queue.next_due_ms(scene.now) == -1
    assert scene.lock() == [(1, 2)]
    assert scene.settle(held, COMPLETE) == [LOST]


@pytest.mark.parametrize("outcome", [COMPLETE, ABANDON, DEFER, DEAD_LETTER, RELEASE])
def test_m2_the_last_millisecond_is_too_late(scene: Scene, outcome: int) -> None:
    scene.send_bodies(b"a", b"b")
    first, second = scene.lock(2)
    scene.advance(9_999)
    assert scene.settle([first], outcome) == [None]
    scene.advance(1)
    assert scene.settle([second], outcome) == [LOST]


def test_m2_lock_expiry_counts_towards_the_maximum(scene: Scene) -> None:
    scene.send_bodies(b"a")
    for _ in range(3):
        assert len(scene.lock()) == 1
        scene.advance(10_000)
        scene.tick()
    assert scene.told()[-1][:3] == ("DeadLettered", 1, 3)


def test_m2_renew_prolongs_and_answers_in_utc(scene: Scene) -> None:
    scene.send_bodies(b"a", b"b")
    held = scene.lock(2)
    scene.advance(6_000)
    scene.told()
    assert scene.queue.renew(MAIN, [held[0]], scene.now) == [UTC_MS + 16_000]
    assert scene.told() == []
    scene.advance(4_000)
    scene.tick()
    assert scene.settle(held, COMPLETE) == [None, LOST]


def test_m2_renew_is_all_or_none(scene: Scene) -> None:
    scene.send_bodies(b"a")
    held = scene.lock()
    scene.advance(5_000)
    with pytest.raises(MessageLockLost, match="lock supplied is invalid"):
        scene.queue.renew(MAIN, [*held, (1, 99)], scene.now)
    scene.advance(5_000)
    with pytest.raises(MessageLockLost):
        scene.queue.renew(MAIN, held, scene.now)


def test_m2_a_shorter_lock_duration_counts_at_once(scene: Scene) -> None:
    scene.send_bodies(b"a", b"b")
    scene.lock()
    scene.queue.update(replace(DESCRIPTION, lock_duration_ms=5_000))
    scene.lock()
    assert scene.queue.next_due_ms(scene.now) == 5_000
    scene.advance(5_000)
    scene.tick()
    assert [number for number, _ in scene.lock(2)] == [2], "the older, longer lock still stands"


@pytest.mark.parametrize("jump_ms", [-10 * 365 * 86_400_000, -1, 1, 10 * 365 * 86_400_000])
def test_m2_locks_do_not_follow_jumps_of_utc(scene: Scene, jump_ms: int) -> None:
    scene.send_bodies(b"a")
    held = scene.lock()
    scene.advance(9_999, utc_jump_ms=jump_ms)
    scene.tick()
    assert scene.queue.next_due_ms(scene.now) == 1
    assert scene.settle(held, COMPLETE) == [None]


@pytest.mark.parametrize(
    "status,may_send,may_receive",
    [
        ("Active", True, True),
        ("Disabled", False, False),
        ("SendDisabled", False, True),
        ("ReceiveDisabled", True, False),
    ],
)
def test_status(scene: Scene, status: str, may_send: bool, may_receive: bool) -> None:
    scene.send_bodies(b"a", b"b")
    held = scene.lock()
    scene.queue.update(replace(DESCRIPTION, status=status))
    before = overview(scene.queue)
    if may_send:
        scene.queue.check_sendable()
        scene.send_bodies(b"c")
    else:
        with pytest.raises(EntityDisabled, match=f"'orders' is currently disabled.*{status}"):
            scene.send_bodies(b"c")
        with pytest.raises(EntityDisabled):
            scene.queue.check_sendable()
        assert overview(scene.queue) == before
    assert scene.queue.has_ready(MAIN) == may_receive
    if may_receive:
        scene.queue.check_receivable()
        assert scene.lock()[0][0] == 2
    else:
        for refused in (scene.lock, scene.peek):
            with pytest.raises(EntityDisabled):
                refused()
        with pytest.raises(EntityDisabled):
            scene.queue.receive_deferred(MAIN, [1], RECEIVE_AND_DELETE, scene.now)
    assert scene.settle(held, COMPLETE) == [None], "what was received may be settled"


@pytest.mark.feature("entity.quota")
def test_quota_counts_both_parts_and_refuses_all_or_none() -> None:
    scene = Scene(QueueDescription(max_size_megabytes=1))
    scene.send_bodies(bytes(600_000))
    scene.settle(scene.lock(), DEAD_LETTER)
    assert scene.queue.counts().size_bytes == 600_000
    with pytest.raises(QuotaExceeded, match="maximum size of 1 MB"):
        scene.queue.send([NewMessage(b"x"), NewMessage(bytes(448_576))], scene.now)
    assert scene.queue.last_sequence_number == 1
    assert scene.send_bodies(b"x", bytes(448_575)) == [2, 3]
    with pytest.raises(QuotaExceeded):
        scene.send_bodies(b"y")
    scene.settle(scene.lock(subqueue=DLQ), COMPLETE, subqueue=DLQ)
    assert scene.send_bodies(b"y") == [4]


def test_grants_are_shared_and_never_repeated() -> None:
    scene = Scene(DESCRIPTION)
    scene.send_bodies(b"a", b"b")
    first = scene.lock()
    scene.grants.next = 40  # another queue of the store took some
    assert scene.lock() == [(2, 40)]
    scene.settle(first, RELEASE)
    assert scene.lock() == [(1, 41)]


def test_accessed_time_follows_use(scene: Scene) -> None:
    assert scene.queue.accessed_utc_ms == 0
    scene.send_bodies(b"a")
    assert scene.queue.accessed_utc_ms == UTC_MS
    scene.now = Now(UTC_MS + 5, MONO_MS + 5)
    scene.lock()
    assert scene.queue.accessed_utc_ms == UTC_MS + 5


def test_states_of_locked_messages(scene: Scene) -> None:
    """A lock is not a state: peek shows locked messages as active or deferred."""
    scene.send_bodies(b"a", b"b")
    scene.settle(scene.lock(), DEFER)
    scene.lock()
    scene.queue.receive_deferred(MAIN, [1], 0, scene.now)
    seen = scene.queue.peek(MAIN, 1, 10, scene.now)
    assert [(message.state, message.grant != 0) for message in seen] == [
        (DEFERRED, True),
        (ACTIVE, True),
    ]
