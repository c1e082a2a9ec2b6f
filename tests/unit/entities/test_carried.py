"""What is carried in from other stores comes once, however often it is sent."""

import pytest

from tests.unit.entities.scene import Scene, SessionScene, numbers_of
from tests.unit.entities.test_topic import NOW, Stage
from twinbus.entities.carried import JOURNAL, CarriedNumbers
from twinbus.entities.commands import ABANDON, TRANSFER_DEAD_LETTER, Send, Settle
from twinbus.entities.descriptions import (
    SEND_DISABLED,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.entities.facts import DEAD_LETTER, MAIN, Carried, Fact, Stored, Together
from twinbus.entities.facts import TRANSFER_DEAD_LETTER as TRANSFER_QUEUE
from twinbus.entities.message import NewMessage, Overlay, ProducerKey
from twinbus.entities.state import Grants
from twinbus.entities.topic import Topic
from twinbus.errors import EntityDisabled, InvalidOperation, QuotaExceeded
from twinbus.limits import CARRIED_NUMBERS_MAX, CARRIERS_MAX

pytestmark = pytest.mark.proves("A-3", "E-11")


def carried(
    *numbers: int, carrier: str = "orders", completed: tuple[int, ...] = (), size: int = 0
) -> Send:
    """A send of messages that have these numbers at home."""
    bodies = [b"%d" % number + bytes(size) for number in numbers]
    ids = [f"id {number}" for number in numbers]
    messages = [
        NewMessage(body, session_id="s", message_id=message_id)
        for body, message_id in zip(bodies, ids, strict=True)
    ]
    send = Send(7, messages)
    send.carrier = carrier
    send.carrier_numbers = list(numbers)
    send.carrier_completed = list(completed)
    return send


def bodies(scene: Scene) -> list[bytes | None]:
    return [message.body for message in scene.queue.messages_from(MAIN, 1, 1_000)]


def remembered(scene: Scene, carrier: str = "orders") -> list[int]:
    assert scene.queue.carried is not None
    return scene.queue.carried.of(carrier)


def test_a_repeat_is_dropped_and_the_rest_stored() -> None:
    scene = Scene()
    assert scene.queue.apply(carried(11, 12), scene.now) == [1, 2]
    assert scene.queue.apply(carried(11, 12, 13), scene.now) == [0, 0, 3]
    scene.commit()
    assert bodies(scene) == [b"11", b"12", b"13"]


def test_messages_and_numbers_are_one_fact() -> None:
    scene = Scene()
    scene.queue.send_carried(carried(11, 12), scene.now)
    (fact,) = scene.facts
    assert isinstance(fact, Together)
    stored, mark = fact.facts
    assert isinstance(stored, Stored)
    assert isinstance(mark, Carried)
    assert (mark.carrier, mark.numbers) == ("orders", [11, 12])


def test_a_send_with_nothing_new_is_stated_too() -> None:
    """Whoever repeats may not hear "done" before the first send is durable."""
    scene = Scene()
    scene.queue.send_carried(carried(11), scene.now)
    before = len(scene.facts)
    assert scene.queue.send_carried(carried(11), scene.now) == [0]
    assert len(scene.facts) == before + 1


def test_numbers_are_remembered_until_they_are_completed() -> None:
    """A part of what was sent comes again, then something else, then the other part."""
    scene = Scene()
    scene.queue.send_carried(carried(1, 2, 3, 4), scene.now)
    assert scene.queue.send_carried(carried(1, 2), scene.now) == [0, 0]
    assert scene.queue.send_carried(carried(9, completed=(1, 2)), scene.now) == [5]
    assert scene.queue.send_carried(carried(3, 4), scene.now) == [0, 0]
    assert remembered(scene) == [9, 3, 4]


def test_carriers_are_told_apart() -> None:
    scene = Scene()
    assert scene.queue.send_carried(carried(1, carrier="a"), scene.now) == [1]
    assert scene.queue.send_carried(carried(1, carrier="b"), scene.now) == [2]
    assert scene.queue.send_carried(carried(1, carrier="a"), scene.now) == [0]


def test_numbers_survive_a_crash_with_their_messages_or_not_at_all() -> None:
    scene = Scene()
    scene.queue.send_carried(carried(1, 2), scene.now)
    scene.log += _flat(scene.facts)
    scene.facts.clear()
    scene.queue.send_carried(carried(3, completed=(1,)), scene.now)
    scene.crash()
    assert remembered(scene) == [1, 2]
    assert scene.queue.send_carried(carried(2, 3), scene.now) == [0, 3]


def _flat(facts: list[Fact]) -> list[Fact]:
    return [
        each for fact in facts for each in (fact.facts if isinstance(fact, Together) else [fact])
    ]


def test_a_refused_send_changes_nothing() -> None:
    scene = Scene(QueueDescription(max_size_megabytes=1))
    with pytest.raises(QuotaExceeded):
        scene.queue.send_carried(carried(1, 2, size=1 << 19), scene.now)
    assert scene.facts == []
    assert remembered(scene) == []
    assert scene.queue.send_carried(carried(1), scene.now) == [1]


def test_what_has_come_already_is_not_refused() -> None:
    scene = Scene()
    scene.queue.send_carried(carried(1), scene.now)
    scene.queue.update(QueueDescription(status=SEND_DISABLED))
    assert scene.queue.send_carried(carried(1), scene.now) == [0]
    with pytest.raises(EntityDisabled):
        scene.queue.send_carried(carried(2), scene.now)


@pytest.mark.proves("A-3")
def test_what_a_journal_brings_was_acknowledged_and_is_let_in() -> None:
    """Nobody is there any more to be refused."""
    scene = Scene(QueueDescription(max_size_megabytes=1))
    scene.queue.update(QueueDescription(max_size_megabytes=1, status=SEND_DISABLED))
    send = carried(1, 2, 3, size=1 << 19, carrier=JOURNAL + "0")
    assert scene.queue.send_carried(send, scene.now) == [1, 2, 3]
    with pytest.raises(EntityDisabled):
        scene.queue.send([NewMessage(b"")], scene.now)


def test_what_a_journal_brings_is_let_into_a_topic_too() -> None:
    """Its size holds for the subscriptions; their own status still counts."""
    stage = Stage(TopicDescription(max_size_megabytes=1))
    full, closed = stage.subscribe({}), stage.subscribe({})
    stage.topic.send([NewMessage(bytes(1 << 20))], NOW)
    stage.topic.update(TopicDescription(max_size_megabytes=1, status=SEND_DISABLED))
    closed.update(SubscriptionDescription(status=SEND_DISABLED))
    ping = NewMessage(b"")
    ping.producer_key = ProducerKey("", 0, True)
    send = carried(1, 2, size=100, carrier=JOURNAL + "0")
    send.messages[1] = ping
    assert stage.topic.apply(send, NOW) == [2, 0]
    assert [full.counts().active, closed.counts().active] == [2, 1]
    with pytest.raises(EntityDisabled):
        stage.topic.send([NewMessage(b"")], NOW)


def test_what_a_journal_brings_must_still_have_its_session() -> None:
    scene = SessionScene()
    send = carried(1, carrier=JOURNAL + "0")
    send.messages[0].session_id = None
    with pytest.raises(InvalidOperation):
        scene.queue.apply(send, scene.now)
    assert scene.facts == []


def test_a_repeat_is_no_duplicate_and_a_duplicate_no_repeat() -> None:
    scene = Scene(QueueDescription(requires_duplicate_detection=True))
    assert scene.queue.send_carried(carried(1, 2), scene.now) == [1, 2]
    twin = carried(3)
    twin.messages[0].message_id = "id 1"
    assert scene.queue.send_carried(twin, scene.now) == [0]
    assert remembered(scene) == [1, 2, 3]


def test_a_queue_with_sessions_takes_it_too() -> None:
    scene = SessionScene()
    assert scene.queue.apply(carried(5), scene.now) == [1]
    assert scene.queue.apply(carried(5, 6), scene.now) == [0, 2]


def test_a_topic_states_copies_and_numbers_together() -> None:
    facts: list[Fact] = []
    topic = Topic(3, "news", TopicDescription(), facts, Grants())
    topic.codec = _NoCodec()  # type: ignore[assignment]  # nobody subscribes: nothing is read
    scene = Scene()
    assert topic.send_carried(carried(4, 5), scene.now) == [1, 2]
    assert topic.send_carried(carried(5, 6), scene.now) == [0, 3]
    assert [type(fact) for fact in facts] == [Together, Together]


class _NoCodec:
    new_id = None


def test_only_so_many_carriers_and_numbers_are_remembered() -> None:
    numbers = CarriedNumbers()
    for carrier in range(CARRIERS_MAX + 1):
        numbers.remember(str(carrier), [1])
        numbers.remember("busy", [carrier])
    assert numbers.of("0") == []
    assert numbers.of("2") == [1]
    assert numbers.of("busy") == [CARRIERS_MAX]
    many = list(range(CARRIED_NUMBERS_MAX))
    numbers.remember("many", many)
    assert numbers.with_these("many", [-1], []) == [*many[1:], -1]


def test_a_plain_queue_remembers_nothing() -> None:
    scene = Scene()
    scene.send_bodies(b"a", b"b")
    assert scene.queue.carried is None


# --- what a relay asks of its source --------------------------------------------------------------


def test_what_cannot_be_forwarded_goes_to_the_transfer_dead_letter_queue() -> None:
    scene = Scene()
    scene.send_bodies(b"a", b"b")
    locks = scene.lock(2)
    reason = Overlay("EntityNotFound", "gone")
    settle = Settle(7, MAIN, locks[:1], TRANSFER_DEAD_LETTER, reason)
    assert scene.queue.apply(settle, scene.now) is None
    assert scene.told()[-1] == (
        "DeadLettered", 1, 0, ("EntityNotFound", "gone", None, None), TRANSFER_QUEUE
    )  # fmt: skip
    assert scene.settle(locks[1:], 3) == [None]  # to the dead-letter queue, and on from there
    scene.commit()
    dead = scene.lock(1, DEAD_LETTER)
    assert scene.settle(dead, TRANSFER_DEAD_LETTER, reason, DEAD_LETTER) == [None]
    assert numbers_of(scene.queue.messages_from(TRANSFER_QUEUE, 1, 9)) == [1, 2]
    last = scene.lock(1, TRANSFER_QUEUE)
    with pytest.raises(InvalidOperation):
        scene.settle(last, TRANSFER_DEAD_LETTER, reason, TRANSFER_QUEUE)


def test_locks_are_released_for_a_relay_that_begins_anew() -> None:
    scene = Scene()
    scene.send_bodies(b"a", b"b", b"c")
    old = scene.lock(1)
    scene.advance(1_000)
    scene.lock(1)
    scene.queue.release_locks(MAIN, scene.now)
    scene.commit()
    messages = scene.queue.lock_next(MAIN, 3, scene.now)
    assert numbers_of(messages) == [1, 2, 3]
    assert [message.delivery_count for message in messages] == [0, 0, 0]
    assert scene.settle(old, ABANDON) == ["MessageLockLost"]


def test_what_is_to_be_forwarded_is_never_delivered_too_often() -> None:
    scene = Scene(QueueDescription(max_delivery_count=1, forward_to="there"))
    scene.send_bodies(b"a")
    for _ in range(3):
        scene.lock()
        scene.advance(60_000)
        scene.tick()
    assert scene.queue.counts().dead_letter == 0
    assert len(scene.lock()) == 1
