"""Time-to-live, schedules, deferred messages, peek.  Also clock jumps and bounded ticks."""

from dataclasses import replace

import pytest

from tests.unit.entities.scene import UTC_MS, Scene, numbers_of, overview
from twinbus.entities.commands import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DEFER,
    PEEK_LOCK,
    RECEIVE_AND_DELETE,
    RELEASE,
)
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.facts import DEAD_LETTER as DLQ
from twinbus.entities.facts import MAIN
from twinbus.entities.message import ACTIVE, DEFERRED, NEVER_MS, SCHEDULED, NewMessage
from twinbus.entities.transitions import TRANSITIONS_MAX
from twinbus.errors import ArgumentInvalid, ArgumentOutOfRange, MessageNotFound

pytestmark = pytest.mark.proves("M-3")

DESCRIPTION = QueueDescription(lock_duration_ms=10_000, max_delivery_count=3)
TO_DEAD_LETTER = replace(DESCRIPTION, dead_lettering_on_message_expiration=True)
EXPIRED = ("TTLExpiredException", "The message expired and was dead lettered.", None, None)


@pytest.fixture
def scene() -> Scene:
    return Scene(DESCRIPTION)


def lasting(milliseconds: int, body: bytes = b"t") -> NewMessage:
    return NewMessage(body, time_to_live_ms=milliseconds)


# --- time-to-live -----------------------------------------------------------------------------


def test_m3_an_expired_message_is_removed_by_tick(scene: Scene) -> None:
    scene.send(lasting(1_000), lasting(2_000), NewMessage(b"stays"))
    assert scene.queue.next_due_ms(scene.now) == 1_000
    scene.advance(999)
    scene.tick()
    assert scene.peek() == [1, 2, 3]
    scene.advance(1)
    assert scene.peek() == [2, 3], "hidden even before the tick"
    scene.tick()
    assert scene.told() == [("Removed", MAIN, [1])]
    assert scene.queue.next_due_ms(scene.now) == 1_000
    scene.advance(10_000)
    scene.tick()
    assert scene.peek() == [3]
    assert scene.queue.next_due_ms(scene.now) == -1


def test_m3_an_expired_message_is_never_delivered_even_without_tick(scene: Scene) -> None:
    scene.send(lasting(1_000), NewMessage(b"b"), lasting(1_000), NewMessage(b"d"))
    scene.settle(scene.lock(), RELEASE)  # number 1 now waits behind the cursor
    scene.advance(1_000)
    scene.told()
    assert [number for number, _ in scene.lock(5)] == [2, 4]
    assert scene.told() == [("Removed", MAIN, [1, 3]), ("Locked", MAIN, 2, [2, 4])]


def test_m3_expiry_to_the_dead_letter_queue_where_nothing_expires() -> None:
    scene = Scene(TO_DEAD_LETTER)
    scene.send(lasting(1_000))
    scene.advance(1_000)
    scene.tick()
    assert scene.told() == [("DeadLettered", 1, 0, EXPIRED)]
    scene.advance(10**12)
    scene.tick()
    assert scene.peek(DLQ) == [1]
    assert [number for number, _ in scene.lock(1, DLQ)] == [1]


def test_m3_the_shorter_of_message_and_entity_counts() -> None:
    scene = Scene(replace(DESCRIPTION, default_time_to_live_ms=5_000))
    scene.send(NewMessage(b"a"), lasting(9_000), lasting(2_000))
    expiries = [m.expires_ms - UTC_MS for m in scene.queue.peek(MAIN, 1, 5, scene.now)]
    assert expiries == [5_000, 5_000, 2_000]


def test_m3_a_locked_message_is_immune_until_its_lock_ends(scene: Scene) -> None:
    scene.send(lasting(1_000), lasting(1_000), lasting(1_000), lasting(1_000))
    first, second, third, _ = scene.lock(4)
    scene.advance(5_000)
    scene.tick()
    assert scene.settle([first], COMPLETE) == [None]
    scene.told()
    scene.settle([second], ABANDON)
    scene.settle([third], RELEASE)
    assert scene.told() == [("Removed", MAIN, [2]), ("Removed", MAIN, [3])]
    scene.advance(5_000)
    scene.tick()
    assert scene.told() == [("Removed", MAIN, [4])]
    assert scene.queue.counts().message_count == 0


def test_m3_a_message_that_was_locked_past_a_sweep_still_expires(scene: Scene) -> None:
    scene.send(lasting(5_000), lasting(1_000))
    held = scene.lock()
    scene.advance(1_000)
    scene.tick()  # sweeps the block and leaves the locked one out
    scene.settle(held, ABANDON)
    assert scene.queue.next_due_ms(scene.now) == 4_000
    scene.advance(4_000)
    scene.tick()
    assert scene.queue.counts().message_count == 0


def test_m3_the_count_goes_first_when_a_message_is_worn_out_and_expired() -> None:
    scene = Scene(replace(DESCRIPTION, max_delivery_count=1))
    scene.send(lasting(1_000))
    held = scene.lock()
    scene.advance(2_000)
    scene.settle(held, ABANDON)
    assert scene.peek(DLQ) == [1], "kept, although expiry alone would have removed it"


def test_m3_a_message_that_is_not_durable_does_not_expire(scene: Scene) -> None:
    scene.queue.send([lasting(1)], scene.now)
    scene.told()
    scene.advance(5)
    scene.queue.tick(scene.now)
    assert scene.told() == []
    assert scene.queue.next_due_ms(scene.now) == 1, "ticking all the time would not help"
    scene.commit()
    assert scene.queue.next_due_ms(scene.now) == 0
    scene.tick()
    assert scene.told() == [("Removed", MAIN, [1])]


def test_m3_utc_jumps_move_expiry_but_lose_nothing_else(scene: Scene) -> None:
    scene.send(lasting(60_000), NewMessage(b"b"))
    scene.advance(1, utc_jump_ms=-3_600_000)
    scene.tick()
    assert scene.peek() == [1, 2]
    assert scene.queue.next_due_ms(scene.now) == 3_600_000 + 59_999
    scene.advance(1, utc_jump_ms=3_600_000 + 60_000)
    scene.tick()
    assert scene.peek() == [2]


@pytest.mark.parametrize("description", [DESCRIPTION, TO_DEAD_LETTER], ids=["drop", "keep"])
def test_work_of_a_tick_and_of_a_receive_is_bounded(description: QueueDescription) -> None:
    scene = Scene(description)
    total = 4 * TRANSITIONS_MAX
    scene.send(*[lasting(1_000) for _ in range(total)], NewMessage(b"end"))
    scene.advance(1_000)
    before = scene.queue.counts().active
    scene.queue.tick(scene.now)
    after = scene.queue.counts().active
    assert TRANSITIONS_MAX <= before - after < 2 * TRANSITIONS_MAX
    assert scene.queue.next_due_ms(scene.now) == 0
    assert scene.lock(1) == [], "the walk pauses after many expired messages"
    assert after - scene.queue.counts().active == TRANSITIONS_MAX
    assert scene.queue.has_ready(MAIN)
    scene.tick()
    assert [number for number, _ in scene.lock(9)] == [total + 1]


def test_ending_many_locks_is_bounded(scene: Scene) -> None:
    total = 2 * TRANSITIONS_MAX + 1
    scene.send_bodies(*[b"a"] * total)
    scene.lock(total)
    scene.told()
    scene.advance(10_000)
    for expected in (TRANSITIONS_MAX, TRANSITIONS_MAX, 1):
        assert scene.queue.next_due_ms(scene.now) == 0
        scene.queue.tick(scene.now)
        assert len(scene.told()) == expected
    assert scene.queue.next_due_ms(scene.now) == -1
    assert [number for number, _ in scene.lock(total)] == list(range(1, total + 1))


# --- schedules --------------------------------------------------------------------------------


def at(milliseconds: int, ttl_ms: int = NEVER_MS) -> NewMessage:
    return NewMessage(b"s", time_to_live_ms=ttl_ms, scheduled_ms=UTC_MS + milliseconds)


def test_m3_a_scheduled_message_gets_a_new_number_when_due(scene: Scene) -> None:
    scene.send(at(5_000, ttl_ms=1_000), NewMessage(b"b"))
    seen = scene.queue.peek(MAIN, 1, 5, scene.now)
    assert [(m.sequence_number, m.state) for m in seen] == [(1, SCHEDULED), (2, ACTIVE)]
    assert scene.queue.counts().scheduled == 1
    assert [number for number, _ in scene.lock(5)] == [2]
    assert scene.queue.next_due_ms(scene.now) == 5_000
    scene.advance(5_200)  # the loop was late
    scene.told()
    scene.tick()
    late = UTC_MS + 5_200
    assert scene.told() == [("Activated", 1, 3, late, late + 1_000)]
    assert not scene.queue.has_ready(MAIN), "its new number is not durable yet"
    scene.commit()
    message = scene.queue.lock_next(MAIN, 1, scene.now)[0]
    assert (message.sequence_number, message.enqueued_ms) == (3, late)
    assert scene.queue.counts().scheduled == 0


def test_m3_a_schedule_in_the_past_is_now(scene: Scene) -> None:
    scene.send(at(0), at(-5_000, ttl_ms=1_000))
    seen = scene.queue.peek(MAIN, 1, 5, scene.now)
    assert [(m.state, m.enqueued_ms) for m in seen] == [(ACTIVE, UTC_MS)] * 2
    assert seen[1].expires_ms == UTC_MS + 1_000


def test_m3_schedules_fall_due_in_order_of_time(scene: Scene) -> None:
    scene.send(at(3_000), at(1_000), at(2_000), at(1_000))
    scene.advance(9_000)
    scene.tick()
    assert [fact[1:3] for fact in scene.told()] == [(2, 5), (4, 6), (3, 7), (1, 8)]


def test_m3_cancel_is_all_or_none(scene: Scene) -> None:
    scene.send(at(1_000), at(2_000), NewMessage(b"c"))
    for wrong in ([1, 3], [1, 99], [2, -1]):
        with pytest.raises(MessageNotFound):
            scene.queue.cancel_scheduled(wrong, scene.now)
    with pytest.raises(ArgumentInvalid, match="twice"):
        scene.queue.cancel_scheduled([1, 1], scene.now)
    assert scene.told() == []
    scene.queue.cancel_scheduled([2, 1], scene.now)
    assert scene.told() == [("Removed", MAIN, [2, 1])]
    assert scene.queue.next_due_ms(scene.now) == -1
    scene.advance(5_000)
    scene.tick()
    assert scene.peek() == [3]


def test_m3_an_activated_message_cannot_be_cancelled(scene: Scene) -> None:
    scene.send(at(1_000))
    scene.advance(1_000)
    scene.tick()
    for number in (1, 2):
        with pytest.raises(MessageNotFound):
            scene.queue.cancel_scheduled([number], scene.now)


def test_m3_a_schedule_that_is_not_durable_waits(scene: Scene) -> None:
    scene.queue.send([at(1_000)], scene.now)
    scene.advance(1_000)
    scene.told()
    scene.queue.tick(scene.now)
    assert scene.told() == []
    assert scene.queue.next_due_ms(scene.now) == 1
    scene.commit()
    scene.tick()
    assert [fact[0] for fact in scene.told()] == ["Activated"]


def test_cancelled_schedules_leave_nothing_behind(scene: Scene) -> None:
    for _ in range(500):
        number = scene.queue.send([at(10**9)], scene.now)
        scene.queue.cancel_scheduled(number, scene.now)
    scene.queue.send([at(5)], scene.now)
    assert len(scene.queue._main.schedule) < 70
    assert scene.queue.next_due_ms(scene.now) == 5


def test_activating_many_is_bounded(scene: Scene) -> None:
    scene.send(*[at(1_000) for _ in range(TRANSITIONS_MAX + 1)])
    scene.advance(1_000)
    scene.queue.tick(scene.now)
    assert len(scene.told()) == TRANSITIONS_MAX
    scene.tick()
    assert len(scene.told()) == 1


# --- deferred messages ------------------------------------------------------------------------


def test_m3_deferred_messages_come_only_by_number(scene: Scene) -> None:
    scene.send_bodies(b"a", b"b")
    scene.settle(scene.lock(), DEFER)
    assert scene.told()[-1] == ("Unlocked", MAIN, 1, 0, DEFERRED, None)
    assert [number for number, _ in scene.lock(5)] == [2]
    assert scene.queue.counts().deferred == 1
    messages = scene.queue.receive_deferred(MAIN, [1], PEEK_LOCK, scene.now)
    assert [(m.body, m.delivery_count) for m in messages] == [(b"a", 0)]
    assert scene.told()[-1] == ("Locked", MAIN, 3, [1])
    with pytest.raises(MessageNotFound):
        scene.queue.receive_deferred(MAIN, [1], PEEK_LOCK, scene.now)
    assert scene.settle([(1, 3)], COMPLETE) == [None]
    assert scene.queue.counts().deferred == 0


@pytest.mark.parametrize("outcome", [ABANDON, RELEASE, DEFER])
def test_m3_a_deferred_message_given_back_stays_deferred(scene: Scene, outcome: int) -> None:
    scene.send_bodies(b"a")
    scene.settle(scene.lock(), DEFER)
    scene.queue.receive_deferred(MAIN, [1], PEEK_LOCK, scene.now)
    scene.settle([(1, 2)], outcome)
    assert scene.told()[-1] == ("Unlocked", MAIN, 1, int(outcome == ABANDON), DEFERRED, None)
    assert (scene.lock(), scene.queue.counts().deferred) == ([], 1)


def test_m3_the_lock_of_a_deferred_message_ends_too(scene: Scene) -> None:
    scene.send_bodies(b"a")
    scene.settle(scene.lock(), DEFER)
    for count in range(1, 4):
        scene.queue.receive_deferred(MAIN, [1], PEEK_LOCK, scene.now)
        scene.told()
        scene.advance(10_000)
        scene.tick()
        told = scene.told()
        assert len(told) == 1
        if scene.queue.counts().dead_letter == 0:
            assert told == [("Unlocked", MAIN, 1, count, DEFERRED, None)]
    assert told[0][:3] == ("DeadLettered", 1, 3), "three locks have ended: worn out"
    assert scene.queue.counts().deferred == 0


def test_m3_deferred_dead_letter(scene: Scene) -> None:
    scene.send_bodies(b"a")
    scene.settle(scene.lock(), DEFER)
    scene.queue.receive_deferred(MAIN, [1], PEEK_LOCK, scene.now)
    scene.settle([(1, 2)], DEAD_LETTER)
    counts = scene.queue.counts()
    assert (counts.deferred, counts.dead_letter, counts.active) == (0, 1, 0)
    assert scene.queue.has_ready(DLQ)


def test_m3_receive_deferred_is_all_or_none(scene: Scene) -> None:
    scene.send_bodies(b"a", b"b", b"c")
    scene.settle(scene.lock(2), DEFER)
    before = overview(scene.queue)
    for wrong in ([1, 3], [2, 99]):
        with pytest.raises(MessageNotFound):
            scene.queue.receive_deferred(MAIN, wrong, RECEIVE_AND_DELETE, scene.now)
    with pytest.raises(ArgumentInvalid, match="twice"):
        scene.queue.receive_deferred(MAIN, [1, 1], PEEK_LOCK, scene.now)
    with pytest.raises(ArgumentOutOfRange, match="1001"):
        scene.queue.receive_deferred(MAIN, list(range(1_001)), PEEK_LOCK, scene.now)
    assert overview(scene.queue) == before
    taken = scene.queue.receive_deferred(MAIN, [2, 1], RECEIVE_AND_DELETE, scene.now)
    assert numbers_of(taken) == [2, 1]
    assert scene.told()[-1] == ("Removed", MAIN, [2, 1])


def test_m3_a_deferred_message_expires_when_somebody_asks_for_it() -> None:
    scene = Scene(TO_DEAD_LETTER)
    scene.send(lasting(1_000), lasting(1_000))
    scene.settle(scene.lock(2), DEFER)
    scene.advance(5_000)
    scene.tick()
    assert scene.peek() == [1, 2]
    with pytest.raises(MessageNotFound, match="expired"):
        scene.queue.receive_deferred(MAIN, [1], PEEK_LOCK, scene.now)
    assert scene.told()[-1] == ("DeadLettered", 1, 0, EXPIRED)
    assert (scene.peek(), scene.peek(DLQ)) == ([2], [1])


# --- peek -------------------------------------------------------------------------------------


def test_m3_peek_starts_anywhere_and_changes_nothing(scene: Scene) -> None:
    scene.send_bodies(*[b"x"] * 10)
    scene.settle(scene.lock(2), COMPLETE)
    scene.lock(2)
    before = overview(scene.queue)
    assert scene.peek(start=0, count=3) == [3, 4, 5]
    assert scene.peek(start=9) == [9, 10]
    assert scene.peek(start=11) == []
    assert scene.peek(DLQ) == []
    assert overview(scene.queue) == before


def test_m3_peek_counts_are_bounded(scene: Scene) -> None:
    scene.send_bodies(*[b"x"] * 1_500)
    assert len(scene.peek(count=10**9)) == 1_000
    for count in (0, -1):
        with pytest.raises(ArgumentOutOfRange, match="at least 1"):
            scene.peek(count=count)
