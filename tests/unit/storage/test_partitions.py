"""Partitions in a store: their numbers stay theirs over restarts, snapshots and reclaiming."""

import pytest

from tests.unit.storage.scene import SEGMENT_SIZE, Scene
from twinbus.entities.commands import COMPLETE
from twinbus.entities.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.entities.facts import MAIN
from twinbus.entities.message import NewMessage
from twinbus.entities.partitions import PARTITION_COUNT, first_number, partition_name
from twinbus.entities.queue import Queue
from twinbus.entities.rule_descriptions import default_rule
from twinbus.entities.topic import Topic
from twinbus.errors import EntityAlreadyExists
from twinbus.message.filter_fields import StoredMessageCodec
from twinbus.storage.log import segment_name
from twinbus.storage.store import Store
from twinbus.testing.disk import SimDisk

pytestmark = pytest.mark.feature("entity.partitions")

LAST = PARTITION_COUNT - 1
DESCRIPTION = QueueDescription(enable_partitioning=True)


def named(store: Store, path: str, partition: int) -> Queue:
    return store.entities[store.names[partition_name(path, partition).lower()]]


def counters(store: Store, path: str) -> list[int]:
    """Of each partition, how many numbers it has given out."""
    return [
        named(store, path, each).last_sequence_number - first_number(each)
        for each in range(PARTITION_COUNT)
    ]


def make_partitions(store: Store, path: str) -> list[Queue]:
    return [
        store.create_entity("queue", partition_name(path, each), DESCRIPTION)
        for each in range(PARTITION_COUNT)
    ]


@pytest.mark.proves("E-1")
def test_numbers_go_on_after_a_restart() -> None:
    scene = Scene(SimDisk())
    for partition, queue in enumerate(make_partitions(scene.store, "parts")):
        for _ in range(partition):
            queue.send([NewMessage(b"body %d" % partition)], scene.now)
    scene.commit()
    expected = list(range(PARTITION_COUNT))
    assert counters(scene.store, "parts") == expected
    for _ in range(2):
        scene = scene.reopened()
        assert counters(scene.store, "parts") == expected
        queue = named(scene.store, "parts", LAST)
        assert queue.published == queue.last_sequence_number
        assert queue.send([NewMessage(b"next")], scene.now) == [queue.last_sequence_number]
        scene.commit()
        expected[LAST] += 1
    found = queue.messages_from(MAIN, 0, 100)
    assert scene.store.read_bodies(found) == [b"body 15"] * 15 + [b"next"] * 2


def test_numbers_go_on_after_a_snapshot_that_has_nothing_else_of_them() -> None:
    """What is empty has its last number in the snapshot; what was never used begins anew."""
    scene = Scene(SimDisk())
    queue = make_partitions(scene.store, "parts")[LAST]
    (number,) = queue.send([NewMessage(b"gone")], scene.now)
    scene.commit()
    (message,) = queue.lock_next(MAIN, 1, scene.now)
    queue.settle(MAIN, [(number, message.grant)], COMPLETE, None, scene.now)
    scene.commit()
    scene.turn_over(12)
    assert segment_name(1) not in scene.segments(), "the first facts live on in a snapshot only"
    assert any(name.endswith(".snapshot") for name in scene.disk.names())
    scene = scene.reopened()
    assert counters(scene.store, "parts") == [0] * LAST + [1]
    assert named(scene.store, "parts", LAST).send([NewMessage(b"")], scene.now) == [number + 1]


def test_reclaiming_moves_messages_of_partitions() -> None:
    scene = Scene(SimDisk(), SEGMENT_SIZE, cache_bytes=4_096)
    queue = make_partitions(scene.store, "parts")[LAST]
    kept: list[bytes] = []
    for index in range(20):
        kept.append(b"old %d" % index)
        queue.send([NewMessage(kept[-1])], scene.now)
        scene.turn_over(2)
    assert len(scene.segments()) <= 14, "40 segments were written, and each held an old message"
    for _ in range(2):
        found = named(scene.store, "parts", LAST).messages_from(MAIN, 0, 1_000)
        assert [each.sequence_number for each in found] == [
            first_number(LAST) + 1 + index for index in range(20)
        ]
        assert scene.store.read_bodies(found) == kept
        scene = scene.reopened()


def test_a_topic_fans_out_within_its_partition() -> None:
    scene = Scene(SimDisk())
    store = scene.store
    path = partition_name("news", LAST)
    topic = store.create_entity("topic", path, TopicDescription(enable_partitioning=True))
    assert isinstance(topic, Topic)
    topic.codec = StoredMessageCodec()
    for name in ("one", "two"):
        subscription = partition_name(f"news/Subscriptions/{name}", LAST)
        made = store.create_entity("subscription", subscription, SubscriptionDescription())
        assert made.topic_id == topic.entity_id
        store.create_rule(made.entity_id, default_rule())
    first = first_number(LAST)
    assert topic.send([NewMessage(b"")], scene.now) == [first + 1]
    scene.commit()
    store = scene.reopened().store
    assert named(store, "news", LAST).last_sequence_number == first + 1
    for name in ("one", "two"):
        copies = named(store, f"news/Subscriptions/{name}", LAST).messages_from(MAIN, 0, 9)
        assert [(each.sequence_number, each.overlay) for each in copies] == [(first + 1, None)]


def test_a_name_is_refused_as_its_users_know_it() -> None:
    scene = Scene(SimDisk())
    scene.store.create_entity("queue", "bus:orders#3", DESCRIPTION)
    with pytest.raises(EntityAlreadyExists, match="The entity 'Orders' already exists"):
        scene.store.create_entity("queue", "bus:Orders#3", DESCRIPTION)
