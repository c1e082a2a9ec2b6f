"""Auto-delete on idle over all partitions of an entity."""

import dataclasses

import pytest

from twinbus.entities.commands import Runtime
from twinbus.entities.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.entities.message import NEVER_MS
from twinbus.entities.partitions import PARTITION_COUNT
from twinbus.gateway.directory.directory import Directory, Entity, Part
from twinbus.gateway.namespaces.auto_delete import IdleEntities, parts_of
from twinbus.testing.clock import SimClock

PATIENCE_MS = 300_000
DESCRIPTION = QueueDescription(
    enable_partitioning=True, max_size_megabytes=1_024, auto_delete_on_idle_ms=PATIENCE_MS
)


class Scene:
    """A partitioned entity, and what its parts say when they are asked."""

    def __init__(self, description: QueueDescription = DESCRIPTION) -> None:
        self.clock = SimClock()
        self.directory = Directory()
        self.entity = self.add(description.KIND, "orders", description)
        self.idle = IdleEntities()
        assert self.idle.watched(self.directory) == [self.entity]
        self.runtimes: list[Runtime | None] = [Runtime() for _ in parts_of(self.entity)]
        for runtime in self.runtimes:
            assert runtime is not None
            runtime.accessed_utc_ms = self.clock.now().utc_ms

    def add(self, kind: str, name: str, description: QueueDescription) -> Entity:
        parts = [Part(i % 3, 100 + i, i) for i in range(PARTITION_COUNT)]
        return self.directory.add(kind, name, description, parts)

    def part(self, index: int) -> Runtime:
        runtime = self.runtimes[index]
        assert runtime is not None
        return runtime

    def is_over(self, is_relayed: bool = False) -> bool:
        return self.idle.is_over(self.entity, self.runtimes, is_relayed, self.clock.now())

    def is_over_after(self, duration_ms: int) -> bool:
        self.clock.advance(duration_ms)
        return self.is_over()


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    assert not scene.is_over()
    return scene


def test_nobody_uses_it(scene: Scene) -> None:
    assert not scene.is_over_after(PATIENCE_MS - 1)
    assert scene.is_over_after(1)


@pytest.mark.parametrize("partition", [0, 7, 15])
def test_use_of_one_partition_is_use_of_all(scene: Scene, partition: int) -> None:
    scene.clock.advance(PATIENCE_MS - 1)
    scene.part(partition).accessed_utc_ms = scene.clock.now().utc_ms
    assert not scene.is_over_after(1)
    assert not scene.is_over_after(PATIENCE_MS - 1)
    assert scene.is_over_after(1)


def test_use_is_seen_where_utc_was_set_back(scene: Scene) -> None:
    scene.clock.advance(PATIENCE_MS - 1)
    scene.part(3).accessed_utc_ms = 1
    assert not scene.is_over_after(1)


def test_a_receiver_keeps_it(scene: Scene) -> None:
    scene.part(5).is_busy = True
    assert not scene.is_over_after(10 * PATIENCE_MS)
    scene.part(5).is_busy = False
    assert not scene.is_over_after(PATIENCE_MS - 1)
    assert scene.is_over_after(1)


def test_scheduled_messages_keep_it(scene: Scene) -> None:
    scene.part(15).scheduled = 1
    assert not scene.is_over_after(10 * PATIENCE_MS)


def test_a_relay_keeps_it(scene: Scene) -> None:
    scene.clock.advance(PATIENCE_MS)
    assert not scene.is_over(is_relayed=True)
    assert not scene.is_over_after(PATIENCE_MS - 1)
    assert scene.is_over_after(1)


def test_a_partition_that_does_not_answer_may_be_in_use(scene: Scene) -> None:
    runtime = scene.part(4)
    scene.runtimes[4] = None
    assert not scene.is_over_after(10 * PATIENCE_MS)
    scene.runtimes[4] = runtime
    assert not scene.is_over()
    assert not scene.is_over_after(PATIENCE_MS - 1)
    assert scene.is_over_after(1)


def test_a_new_description_counts_as_use(scene: Scene) -> None:
    scene.clock.advance(PATIENCE_MS)
    scene.entity.describe(
        dataclasses.replace(DESCRIPTION, auto_delete_on_idle_ms=2 * PATIENCE_MS, updated_utc_ms=1)
    )
    assert not scene.is_over()
    assert not scene.is_over_after(2 * PATIENCE_MS - 1)
    assert scene.is_over_after(1)


def test_nothing_is_asked_about_those_that_stay(scene: Scene) -> None:
    scene.entity.describe(dataclasses.replace(DESCRIPTION, auto_delete_on_idle_ms=NEVER_MS))
    assert scene.idle.watched(scene.directory) == []
    scene.entity.describe(DESCRIPTION)
    scene.clock.advance(PATIENCE_MS)
    assert scene.idle.watched(scene.directory) == [scene.entity]
    assert not scene.is_over()  # it counts from now


def test_a_plain_entity_is_its_brokers(scene: Scene) -> None:
    description = QueueDescription(auto_delete_on_idle_ms=PATIENCE_MS)
    scene.directory.add("queue", "plain", description, [Part(0, 7, 0)])
    assert scene.idle.watched(scene.directory) == [scene.entity]


def test_looking_again_forgets_nothing(scene: Scene) -> None:
    scene.clock.advance(PATIENCE_MS)
    assert scene.idle.watched(scene.directory) == [scene.entity]
    assert scene.is_over()


def test_use_of_a_subscription_is_use_of_its_topic() -> None:
    description = TopicDescription(
        enable_partitioning=True, max_size_megabytes=1_024, auto_delete_on_idle_ms=PATIENCE_MS
    )
    scene = Scene(description)
    assert not scene.is_over()
    scene.clock.advance(PATIENCE_MS - 1)
    subscription = scene.add("subscription", "orders/Subscriptions/all", SubscriptionDescription())
    assert parts_of(scene.entity) == scene.entity.parts + subscription.parts
    assert parts_of(subscription) == subscription.parts
    scene.runtimes += [Runtime() for _ in subscription.parts]
    assert not scene.is_over_after(1)  # that it was made counts too
    scene.clock.advance(PATIENCE_MS - 1)
    scene.part(PARTITION_COUNT + 3).accessed_utc_ms = scene.clock.now().utc_ms
    assert not scene.is_over_after(1)
    scene.part(PARTITION_COUNT + 8).is_busy = True
    assert not scene.is_over_after(PATIENCE_MS)
    scene.part(PARTITION_COUNT + 8).is_busy = False
    assert scene.is_over_after(PATIENCE_MS)
