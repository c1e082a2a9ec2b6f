"""What a producer has numbered comes once, however often it is sent; pings never come."""

import pytest

from tests.unit.broker.stored_messages import new
from tests.unit.entities.scene import Scene, SessionScene
from tests.unit.entities.test_topic import NOW, Stage
from twinbus.entities.arrivals import Arrivals
from twinbus.entities.commands import Send
from twinbus.entities.descriptions import (
    SEND_DISABLED,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.entities.facts import MAIN, Arrived, Fact, IdsSeen, Stored, Together
from twinbus.entities.kinds import make_queue
from twinbus.entities.message import NEVER_MS, NewMessage, ProducerKey, has_producer_key
from twinbus.entities.partitions import PARTITION_COUNT
from twinbus.entities.state import Grants
from twinbus.errors import EntityDisabled, QuotaExceeded
from twinbus.limits import ARRIVAL_PASSING_MAX, ARRIVAL_PRODUCERS_MAX, ARRIVAL_RANGES_MAX

pytestmark = pytest.mark.proves("P-13")


def numbered(number: int, producer: str = "a", size: int = 0, **more: str) -> NewMessage:
    """A message to which its producer has given this number."""
    message = NewMessage(f"{producer}{number}".encode() + bytes(size), **more)  # type: ignore[arg-type]
    message.producer_key = ProducerKey(producer, number)
    return message


def ping(size: int = 0) -> NewMessage:
    message = NewMessage(bytes(size))
    message.producer_key = ProducerKey("", 0, True)
    return message


def bodies(scene: Scene) -> list[bytes | None]:
    return [message.body for message in scene.queue.messages_from(MAIN, 1, 1_000)]


def bounds(scene: Scene, producer: str = "a") -> list[int]:
    assert scene.queue.arrivals is not None
    return scene.queue.arrivals.bounds_of(producer)


def single(facts: list[Fact]) -> list[Fact]:
    """One by one, as the store replays them."""
    found: list[Fact] = []
    for fact in facts:
        found += fact.facts if isinstance(fact, Together) else [fact]
    return found


# --- numbers ----------------------------------------------------------------------------------


def test_a_copy_is_accepted_and_dropped() -> None:
    scene = Scene()
    assert scene.send(numbered(1), numbered(2)) == [1, 2]
    assert scene.send(numbered(2), numbered(3)) == [0, 3]
    assert scene.send(numbered(1), numbered(1)) == [0, 0]
    assert bodies(scene) == [b"a1", b"a2", b"a3"]
    assert bounds(scene) == [1, 4]


def test_a_copy_in_the_same_send_is_dropped() -> None:
    scene = Scene()
    assert scene.send(numbered(7), numbered(7), numbered(8)) == [1, 0, 2]


def test_producers_are_told_apart_and_other_messages_left_alone() -> None:
    scene = Scene()
    assert scene.send(numbered(1), numbered(1, "b"), NewMessage(b"x"), NewMessage(b"x")) == [
        1,
        2,
        3,
        4,
    ]


def test_messages_and_their_numbers_are_one_fact() -> None:
    scene = Scene()
    scene.queue.send([numbered(3), numbered(4), numbered(9), numbered(1, "b")], scene.now)
    (fact,) = scene.facts
    assert isinstance(fact, Together)
    stored, first, second = fact.facts
    assert isinstance(stored, Stored)
    assert isinstance(first, Arrived)
    assert isinstance(second, Arrived)
    assert (first.producer, first.bounds) == ("a", [3, 5, 9, 10])
    assert (second.producer, second.bounds) == ("b", [1, 2])


def test_only_new_numbers_are_stated() -> None:
    scene = Scene()
    scene.send(numbered(1), numbered(2))
    scene.queue.send([numbered(2), numbered(3)], scene.now)
    (fact,) = scene.facts
    assert isinstance(fact, Together)
    assert [each.bounds for each in fact.facts if isinstance(each, Arrived)] == [[3, 4]]


def test_a_send_with_nothing_new_waits_for_the_first() -> None:
    """Whoever repeats may not hear "done" before the first send is durable."""
    scene = Scene()
    scene.queue.send([numbered(1)], scene.now)
    scene.queue.send([numbered(1)], scene.now)
    first, second = scene.facts
    assert isinstance(first, Together)
    assert isinstance(second, Together)
    assert not second.facts


def test_a_restart_knows_what_has_come() -> None:
    scene = Scene()
    scene.send(numbered(1), numbered(2))
    scene.log = single(scene.log)
    scene.queue.send([numbered(3)], scene.now)  # not durable: it has not come
    scene.crash()
    assert scene.send(numbered(1), numbered(2), numbered(3)) == [0, 0, 3]
    assert bodies(scene) == [b"a1", b"a2", b"a3"]


def test_replaying_twice_changes_nothing() -> None:
    scene = Scene()
    scene.send(numbered(1), numbered(5))
    scene.send(numbered(2))
    scene.log = single(scene.log)
    found = scene.rebuilt()
    for fact in scene.log[:2]:
        found.replay(fact, scene.now)
    assert found.arrivals is not None
    assert found.arrivals.bounds_of("a") == bounds(scene) == [1, 3, 5, 6]


def test_a_refused_send_has_not_come() -> None:
    scene = Scene(QueueDescription(max_size_megabytes=1))
    with pytest.raises(QuotaExceeded):
        scene.queue.send([numbered(1, size=2 << 20)], scene.now)
    assert scene.send(numbered(1)) == [1]
    scene.queue.update(QueueDescription(status=SEND_DISABLED))
    with pytest.raises(EntityDisabled):
        scene.queue.send([numbered(1)], scene.now)


def test_with_duplicate_detection_both_apply() -> None:
    scene = Scene(QueueDescription(requires_duplicate_detection=True))
    assert scene.send(numbered(1, message_id="x"), numbered(2, message_id="x")) == [1, 0]
    # The number of what was dropped as a duplicate has come as well.
    assert scene.send(numbered(2, message_id="y"), numbered(3, message_id="y")) == [0, 2]
    assert scene.send(numbered(4, message_id="y")) == [0]
    assert bounds(scene) == [1, 5]
    assert scene.send(numbered(4, message_id="z")) == [0]


def test_ids_and_numbers_are_one_fact() -> None:
    scene = Scene(QueueDescription(requires_duplicate_detection=True))
    scene.queue.send([numbered(1, message_id="x")], scene.now)
    (fact,) = scene.facts
    assert isinstance(fact, Together)
    assert [type(each) for each in fact.facts] == [Stored, IdsSeen, Arrived]


def test_sessions() -> None:
    scene = SessionScene()
    assert scene.send(numbered(1, session_id="s"), numbered(1, session_id="s")) == [1, 0]


def test_a_scheduled_message_comes_once() -> None:
    scene = Scene()
    later = numbered(1)
    later.scheduled_ms = scene.now.utc_ms + 5_000
    assert scene.send(later, later) == [1, 0]
    assert scene.send(numbered(1)) == [0]
    scene.queue.cancel_scheduled([1], scene.now)
    assert scene.send(numbered(1)) == [0], "it has come, whatever became of it"


def test_what_is_carried_over_keeps_its_number() -> None:
    """A copy that was journalled and one that went straight are one message."""
    scene = Scene()
    send = Send(7, [numbered(1), numbered(2)])
    send.carrier, send.carrier_numbers = "$journal/0", [51, 52]
    assert scene.queue.apply(send, scene.now) == [1, 2]
    assert scene.queue.apply(Send(7, [numbered(2), numbered(3)]), scene.now) == [0, 3]
    send.messages, send.carrier_numbers = [numbered(3), numbered(4)], [53, 54]
    assert scene.queue.apply(send, scene.now) == [0, 4]


def test_a_topic_looks_before_it_makes_copies() -> None:
    stage = Stage()
    subscriptions = [stage.subscribe(), stage.subscribe()]
    assert stage.topic.send([numbered(1), numbered(1), numbered(2)], NOW) == [1, 0, 2]
    assert stage.topic.send([numbered(1)], NOW) == [0]
    (first, second) = stage.facts
    assert isinstance(first, Together)
    assert isinstance(second, Together)
    assert [type(each) for each in first.facts].count(Arrived) == 1
    for subscription in subscriptions:
        assert subscription.counts().active == 2
        assert subscription.arrivals is None


def test_a_large_fan_out_is_not_divided() -> None:
    """Half of it with all of the numbers, or the other way round, must never be on disk."""
    stage = Stage()
    stage.subscribe({"kind": "Sql", "expression": "1 = 1", "action": "SET a = 1"})
    plain = [new(bytes(900_000)) for _ in range(12)]
    assert len(stage.send(*plain)) == 2, "so much is"
    for number, message in enumerate(plain):
        message.producer_key = ProducerKey("a", number + 1)
    assert len(stage.send(*plain)) == 1


# --- bounds -----------------------------------------------------------------------------------


def test_only_so_many_producers_are_remembered() -> None:
    arrivals = Arrivals()
    for producer in range(ARRIVAL_PRODUCERS_MAX):
        arrivals.add(str(producer), [1, 2])
    arrivals.add("0", [2, 3])  # it has sent again
    arrivals.add("one more", [1, 2])
    assert arrivals.has("0", 1)
    assert not arrivals.has("1", 1), "the one that has not sent for longest"
    assert len(arrivals.producers()) == ARRIVAL_PRODUCERS_MAX


def test_passing_producers_push_out_only_each_other() -> None:
    arrivals = Arrivals(producers_max=1, passing_max=2)
    arrivals.add("pair", [1, 2])
    for chunk in range(10):
        arrivals.add(f"~{chunk}", [1, 2])
    assert arrivals.has("pair", 1)
    assert arrivals.producers() == ["pair", "~8", "~9"]


@pytest.mark.parametrize(("name", "share"), [("orders", 1), ("orders#3", PARTITION_COUNT)])
def test_the_partitions_of_an_entity_remember_as_many_as_one_without(name: str, share: int) -> None:
    """A chunk of Spark is a producer in each of them, and 16 in an entity that has none."""
    queue = make_queue("queue", 1, name, QueueDescription(), [], Grants())
    count = ARRIVAL_PASSING_MAX // share
    for chunk in range(count + 1):
        queue.replay(Arrived(1, f"~{chunk}", [1, 2]), NOW)
    assert queue.arrivals is not None and len(queue.arrivals.producers()) == count


def test_only_so_many_runs_are_remembered() -> None:
    arrivals = Arrivals()
    for number in range(ARRIVAL_RANGES_MAX + 1):
        arrivals.add("a", [2 * number, 2 * number + 1])
    assert not arrivals.has("a", 0), "the lowest goes"
    assert arrivals.has("a", 2)
    assert arrivals.has("a", 2 * ARRIVAL_RANGES_MAX)
    assert len(arrivals.bounds_of("a")) == 2 * ARRIVAL_RANGES_MAX


# --- pings ------------------------------------------------------------------------------------


def test_a_ping_leaves_nothing_and_waits_for_the_log() -> None:
    scene = Scene()
    assert scene.queue.send([ping()], scene.now) == [0]
    (fact,) = scene.facts
    assert isinstance(fact, Together)
    assert not fact.facts
    scene.commit()
    assert scene.queue.counts().message_count == 0
    assert scene.queue.last_sequence_number == 0


def test_a_ping_among_messages() -> None:
    scene = Scene()
    assert scene.send(NewMessage(b"x"), ping(), numbered(1)) == [1, 0, 2]
    assert bodies(scene) == [b"x", b"a1"]


def test_pings_are_no_duplicates_of_each_other() -> None:
    scene = Scene(QueueDescription(requires_duplicate_detection=True))
    one, other = ping(), ping()
    one.message_id = other.message_id = "same"
    scene.send(one, other)
    assert scene.queue.history is not None
    assert scene.queue.history.count == 0


def test_a_ping_needs_no_session() -> None:
    scene = SessionScene()
    assert scene.send(ping()) == [0]
    scene.queue.check_send([ping()], scene.now)


def test_a_disabled_or_full_queue_refuses_a_ping() -> None:
    scene = Scene(QueueDescription(max_size_megabytes=1))
    scene.send(NewMessage(bytes((1 << 20) - 10)))
    with pytest.raises(QuotaExceeded):
        scene.queue.send([ping(11)], scene.now)
    scene.queue.update(QueueDescription(status=SEND_DISABLED))
    with pytest.raises(EntityDisabled):
        scene.queue.send([ping()], scene.now)


def test_a_topic_makes_no_copies_of_a_ping() -> None:
    stage = Stage()
    subscriptions = [stage.subscribe(), stage.subscribe()]
    assert stage.topic.send([ping()], NOW) == [0]
    assert [each.last_sequence_number for each in subscriptions] == [0, 0]


def test_a_full_subscription_refuses_a_ping() -> None:
    stage = Stage(TopicDescription(max_size_megabytes=1))
    subscription = stage.subscribe()
    stage.send(new(bytes(1 << 19)), new(bytes((1 << 19) - 400)))
    with pytest.raises(QuotaExceeded, match="subscription 's2'"):
        stage.topic.send([ping(500)], NOW)
    subscription.update(SubscriptionDescription(status=SEND_DISABLED))
    assert stage.topic.send([ping(500)], NOW) == [0], "it would get no copies"


def test_marks() -> None:
    plain = NewMessage(b"", NEVER_MS)
    assert not has_producer_key([plain])
    assert has_producer_key([plain, numbered(1)])
    assert [each.is_ping for each in (plain, numbered(1), ping())] == [False, False, True]
