"""Facts that are true only together, shared bodies, and what snapshots say about the rest."""

import pytest

from tests.simulation.store_workload import ShortCodec
from tests.unit.storage.scene import SALT, SEGMENT_SIZE, Scene
from twinbus.broker.store_run import finish_commit
from twinbus.clock import Now
from twinbus.entities.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.entities.duplicates import ENTRY_SIZE
from twinbus.entities.facts import (
    DEAD_LETTER,
    MAIN,
    TRANSFER_DEAD_LETTER,
    FannedOut,
    Together,
    gather,
)
from twinbus.entities.message import NewMessage, Overlay
from twinbus.entities.queue import Queue
from twinbus.entities.rule_descriptions import default_rule
from twinbus.entities.sessions import SessionQueue
from twinbus.entities.topic import Topic
from twinbus.errors import StorageError
from twinbus.limits import COMMIT_SIZE_BYTES_MAX, TRANSACTION_SIZE_BYTES_MAX
from twinbus.storage.log import numbered
from twinbus.storage.records import RECORD_SIZE
from twinbus.storage.snapshot import SLICE_BYTES_MAX, TEMPORARY_NAME
from twinbus.storage.store import Store
from twinbus.storage.verify import verify
from twinbus.testing.disk import SimDisk


def make_topic(store: Store, subscriptions: int) -> Topic:
    topic = store.create_entity("topic", "news", TopicDescription())
    assert isinstance(topic, Topic)
    topic.codec = ShortCodec()
    for index in range(subscriptions):
        name = f"news/Subscriptions/{index}"
        subscription = store.create_entity("subscription", name, SubscriptionDescription())
        store.create_rule(subscription.entity_id, default_rule())
    return topic


def subscriptions_of(scene: Scene) -> list[Queue]:
    topic = scene.store.entities[scene.store.names["news"]]
    assert isinstance(topic, Topic)
    return list(topic.subscriptions.values())


def bodies_in(scene: Scene, queue: Queue) -> list[bytes]:
    return scene.store.read_bodies(queue.messages_from(MAIN, 0, 1_000))


# --- together ---------------------------------------------------------------------------------


def test_a_group_counts_as_one_fact_and_publishes_all_it_holds() -> None:
    scene = Scene(SimDisk())
    other = scene.store.create_entity("queue", "other", QueueDescription())
    scene.commit()
    mark = len(scene.store.facts)
    scene.queue.send([NewMessage(b"here")], scene.now)
    other.send([NewMessage(b"there")], scene.now)
    gather(scene.store.facts, mark)
    commit = scene.store.begin_commit()
    assert commit is not None
    assert commit.fact_count == 1
    assert (scene.queue.published, other.published) == (0, 0)
    commit.write()
    touched = finish_commit(scene.store, commit)
    assert touched == [scene.queue, other]
    assert (scene.queue.published, other.published) == (1, 1)
    assert (scene.bodies(), bodies_in(scene, other)) == ([b"here"], [b"there"])


def test_a_group_goes_into_one_frame_whatever_the_room() -> None:
    """Where the segment has too little left, it waits for the next one as a whole."""
    scene = Scene(SimDisk())
    scene.work()
    scene.send(bytes(7_000))
    mark = len(scene.store.facts)
    for index in range(8):
        scene.queue.send([NewMessage(b"%d" % index * 1_000)], scene.now)
    gather(scene.store.facts, mark)
    segment = scene.store._log.head_segment
    assert scene.commit() == 1
    assert scene.store._log.head_segment == segment + 1
    assert len(scene.reopened().bodies()) == 9


def test_a_group_larger_than_a_segment_is_a_bug_that_shows() -> None:
    scene = Scene(SimDisk())
    for _ in range(SEGMENT_SIZE // 1_000 + 1):
        scene.queue.send([NewMessage(bytes(1_000))], scene.now)
    gather(scene.store.facts, 0)
    with pytest.raises(StorageError, match="together"):
        scene.store.begin_commit()
    assert {message.position for message in scene.queue._main.table.run_from(0, 100)} == {0}


def frame_sizes(store: Store) -> list[int]:
    """Commit everything; how large each frame was."""
    sizes = []
    while store.facts:
        commit = store.begin_commit()
        assert commit is not None
        commit.write()
        finish_commit(store, commit)
        sizes.append(commit.size)
    return sizes


def test_the_largest_transaction_has_room_in_a_real_segment() -> None:
    now = Now(0, 0)
    store = Store.open(SimDisk(), now, SALT)
    queue = store.create_entity("queue", "q", QueueDescription())
    mark = len(store.facts)
    body = bytes(1_048_576)
    for _ in range(TRANSACTION_SIZE_BYTES_MAX // len(body)):
        queue.send([NewMessage(body)], now)
    gather(store.facts, mark)
    queue.send([NewMessage(b"after it")], now)
    sizes = frame_sizes(store)
    assert len(sizes) == 3, "what may be divided keeps to frames of the usual size"
    assert sizes[1] > COMMIT_SIZE_BYTES_MAX


def test_copies_that_carry_much_share_a_large_frame() -> None:
    """A message that was forwarded brings along what was noted on it, to every subscription."""
    now = Now(0, 0)
    store = Store.open(SimDisk(), now, SALT)
    topic = make_topic(store, 300)
    message = NewMessage(b"body")
    message.overlay = Overlay(properties=bytes(65_000), hop_count=1)
    topic.send([message], now)
    assert isinstance(store.facts[-1], FannedOut)
    sizes = frame_sizes(store)
    assert COMMIT_SIZE_BYTES_MAX < sizes[-1] < store.together_size_max


def test_an_empty_group_is_a_fact_of_no_bytes() -> None:
    """Whoever waits for it waits for everything before it."""
    scene = Scene(SimDisk())
    scene.store.facts.append(Together([]))
    commit = scene.store.begin_commit()
    assert commit is not None
    assert (commit.fact_count, commit.size) == (1, 0)
    commit.write()
    assert finish_commit(scene.store, commit) == []
    scene.send(b"after it")
    assert scene.reopened().bodies() == [b"after it"]


# --- shared bodies ----------------------------------------------------------------------------


@pytest.mark.proves("M-6")
def test_a_body_for_many_subscriptions_is_on_disk_once() -> None:
    scene = Scene(SimDisk(), cache_bytes=0)
    topic = make_topic(scene.store, 5)
    scene.commit()
    body = b"1:" + b"news" * 100
    topic.send([NewMessage(body)], scene.now)
    assert isinstance(scene.store.facts[0], FannedOut)
    commit = scene.store.begin_commit()
    assert commit is not None
    assert commit.size < RECORD_SIZE + len(body) + 5 * 100
    assert commit.fact_count == 1
    commit.write()
    touched = finish_commit(scene.store, commit)
    assert touched == [topic, *topic.subscriptions.values()]
    assert topic.published == 1
    subscriptions = list(topic.subscriptions.values())
    assert all(queue.published == 1 for queue in subscriptions)
    positions = {queue.messages_from(MAIN, 0, 1)[0].position for queue in subscriptions}
    assert len(positions) == 1
    assert all(bodies_in(scene, queue) == [body] for queue in subscriptions)
    found = scene.reopened()
    assert all(bodies_in(found, queue) == [body] for queue in subscriptions_of(found))
    assert found.store.entities[topic.entity_id].last_sequence_number == 1


def test_a_shared_body_stays_for_the_last_of_its_messages() -> None:
    """It is moved with each of them, and no segment goes before all are gone or moved."""
    scene = Scene(SimDisk(), cache_bytes=0)
    topic = make_topic(scene.store, 3)
    body = b"7:" + b"shared" * 50
    topic.send([NewMessage(body)], scene.now)
    scene.commit()
    first, second, third = topic.subscriptions.values()
    scene.turn_over(6)
    first.take_next(MAIN, 1, scene.now)
    scene.commit()
    scene.turn_over(30)
    for queue in (second, third):
        assert bodies_in(scene, queue) == [body]
        assert queue.messages_from(MAIN, 0, 1)[0].position >> 32 > 2, "it pins the first segments"
    second.take_next(MAIN, 1, scene.now)
    scene.commit()
    scene.turn_over(10)
    found = scene.reopened()
    assert [bodies_in(found, queue) for queue in subscriptions_of(found)] == [[], [], [body]]


def test_a_message_that_nobody_wants_holds_up_no_snapshot() -> None:
    """The walk waits until every number that a topic has given out is published."""
    scene = Scene(SimDisk())
    topic = make_topic(scene.store, 0)
    topic.send([NewMessage(b"1:")], scene.now)
    scene.turn_over(12)
    assert numbered(scene.disk.names(), ".snapshot")


# --- snapshots --------------------------------------------------------------------------------


@pytest.mark.proves("M-3")
def test_a_snapshot_holds_every_kind_and_everything_they_know() -> None:
    """Of entities, their links, session states, remembered ids, and all three parts."""
    scene = Scene(SimDisk(), cache_bytes=0)
    store = scene.store
    topic = make_topic(store, 2)
    topic.send([NewMessage(b"1:later", scheduled_ms=scene.now.utc_ms + 10**9)], scene.now)
    in_sessions = QueueDescription(requires_session=True)
    steps = store.create_entity("queue", "steps", in_sessions)
    assert isinstance(steps, SessionQueue)
    lock = steps.accept_session("ada", scene.now)
    assert lock is not None
    steps.set_session_state("ada", lock.grant, b"step 3", scene.now)
    steps.send([NewMessage(b"2:step", session_id="ada")], scene.now)
    once = store.create_entity("queue", "once", QueueDescription(requires_duplicate_detection=True))
    once.send([NewMessage(b"3:", message_id="3"), NewMessage(b"4:", message_id="4")], scene.now)
    scene.commit()
    for target in (DEAD_LETTER, TRANSFER_DEAD_LETTER):
        moved = once.take_ready(MAIN, 1, scene.now)
        once.dead_letter(MAIN, moved, Overlay("moved"), target)
    scene.commit()
    scene.turn_over(30)
    assert "0000000001.log" not in scene.disk.names(), "or the log would tell it all"

    found = scene.reopened()
    store = found.store
    assert [queue.topic_id for queue in subscriptions_of(found)] == [topic.entity_id] * 2
    assert len(store.rules) == 2
    assert store.entities[topic.entity_id].counts().scheduled == 1
    steps = store.entities[store.names["steps"]]
    assert isinstance(steps, SessionQueue)
    assert steps.session_states() == [("ada", b"step 3", scene.now.utc_ms)]
    assert bodies_in(found, steps) == [b"2:step"]
    once = store.entities[store.names["once"]]
    assert store.read_bodies(once.messages_from(DEAD_LETTER, 0, 9)) == [b"3:"]
    assert store.read_bodies(once.messages_from(TRANSFER_DEAD_LETTER, 0, 9)) == [b"4:"]
    assert once.send([NewMessage(b"", message_id="3"), NewMessage(b"", message_id="4")], scene.now)
    assert once.counts().message_count == 2, "both were duplicates"
    store.close()
    assert isinstance(found.disk, SimDisk)
    report = str(verify(found.disk.restarted()))
    assert "session states 1" in report
    assert "transfer dead-letter 1" in report
    assert "remembered ids 2" in report
    assert "rules 1" in report
    assert "Whole" in report


def test_many_large_session_states_are_written_in_slices() -> None:
    scene = Scene(SimDisk(), segment_size=8 << 20)
    steps = scene.store.create_entity("queue", "steps", QueueDescription(requires_session=True))
    assert isinstance(steps, SessionQueue)
    expected = []
    for index in range(12):
        session_id = f"session {index:02}"
        lock = steps.accept_session(session_id, scene.now)
        assert lock is not None
        state = bytes([index]) * (SLICE_BYTES_MAX * 2 // 3)
        steps.set_session_state(session_id, lock.grant, state, scene.now)
        expected.append((session_id, state, scene.now.utc_ms))
        scene.commit()
    while not numbered(scene.disk.names(), ".snapshot"):
        scene.send(bytes(1_000_000))
        scene.complete(1)
        scene.work()
    found = scene.reopened().store
    steps = found.entities[found.names["steps"]]
    assert isinstance(steps, SessionQueue)
    assert sorted(steps.session_states()) == expected


def test_room_is_made_for_a_snapshot_with_all_ids() -> None:
    """A full disk is when a snapshot is needed most."""
    scene = Scene(SimDisk(), segment_size=8 << 20)
    once = scene.store.create_entity(
        "queue", "once", QueueDescription(requires_duplicate_detection=True)
    )
    for first in range(0, 60_000, 1_000):
        numbers = range(first, first + 1_000)
        once.send([NewMessage(b"", message_id=str(number)) for number in numbers], scene.now)
        scene.commit()
        once.take_next(MAIN, 1_000, scene.now)
        scene.commit()
    scene.work()
    assert scene.disk.size(TEMPORARY_NAME) > 60_000 * ENTRY_SIZE
