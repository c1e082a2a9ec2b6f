"""Entities of all kinds in a store: who belongs to whom, in memory and after a restart."""

import pytest

from tests.unit.storage.scene import Scene
from twinbus.entities.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.entities.facts import EntityCreated, EntityDeleted, Fact, IdsSeen
from twinbus.entities.rule_descriptions import SQL, FilterDescription, RuleDescription, default_rule
from twinbus.entities.rules import Rule, RuleIndex
from twinbus.entities.sessions import SessionQueue
from twinbus.entities.topic import Topic
from twinbus.errors import EntityAlreadyExists, EntityNotFound, LogDamaged
from twinbus.storage.entity_index import EntityIndex
from twinbus.storage.store import Store
from twinbus.testing.disk import SimDisk

SUBSCRIPTION = "Topic/Subscriptions/All"


def topic_of(store: Store, name: str = "topic") -> Topic:
    topic = store.entities[store.names[name]]
    assert isinstance(topic, Topic)
    return topic


def make_family(store: Store) -> tuple[Topic, int, Rule]:
    """A topic with one subscription, which has one rule."""
    topic = store.create_entity("topic", "Topic", TopicDescription())
    assert isinstance(topic, Topic)
    subscription = store.create_entity("subscription", SUBSCRIPTION, SubscriptionDescription())
    rule = store.create_rule(subscription.entity_id, default_rule())
    return topic, subscription.entity_id, rule


def names_of(index: RuleIndex, subscription_id: int) -> list[str]:
    return [rule.description.name for rule in index.rules_of(subscription_id)]


@pytest.mark.proves("M-6")
def test_a_subscription_belongs_to_its_topic_and_a_rule_to_its_subscription() -> None:
    """The same before and after a restart."""
    scene = Scene(SimDisk())
    topic, subscription_id, rule = make_family(scene.store)
    for store in (scene.store, None):
        if store is None:
            scene.commit()
            store = scene.reopened().store
            topic = topic_of(store)
        assert list(topic.subscriptions) == [subscription_id]
        subscription = store.entities[subscription_id]
        assert topic.subscriptions[subscription_id] is subscription
        assert (subscription.kind, subscription.topic_id) == ("subscription", topic.entity_id)
        assert (topic.kind, topic.topic_id) == ("topic", 0)
        assert names_of(topic.rules, subscription_id) == ["$Default"]
        assert store.rules[rule.rule_id].subscription_id == subscription_id
        assert store.names[f"{SUBSCRIPTION}/rules/$default".lower()] == rule.rule_id


def test_deleting_a_topic_takes_everything_along_in_one_step() -> None:
    scene = Scene(SimDisk())
    topic, subscription_id, rule = make_family(scene.store)
    family = list(scene.store.facts)
    other = scene.store.create_entity("topic", "Other", TopicDescription())
    scene.commit()
    scene.store.delete_entities([topic.entity_id])
    first, *others = scene.store.facts
    assert first.entity_id == topic.entity_id
    assert {each.entity_id for each in others} == {subscription_id, rule.rule_id}
    assert all(isinstance(each, EntityDeleted) for each in (first, *others))
    cut_off = EntityIndex()
    for fact in (*family, first):
        cut_off.replay(fact, scene.now)
    assert not (cut_off.names or cut_off.rules or cut_off.by_id)
    scene.commit()
    for store in (scene.store, scene.reopened().store):
        assert sorted(store.names) == ["orders", "other"]
        assert sorted(store.entities) == [scene.queue.entity_id, other.entity_id]
        assert store.rules == {}


def test_deleting_a_subscription_leaves_its_topic() -> None:
    scene = Scene(SimDisk())
    _, subscription_id, _ = make_family(scene.store)
    scene.store.delete_entities([subscription_id])
    scene.commit()
    for store in (scene.store, scene.reopened().store):
        found = topic_of(store)
        assert found.subscriptions == {}
        assert found.rules.rules_of(subscription_id) == []
        assert sorted(store.names) == ["orders", "topic"]


def test_rules_come_and_go() -> None:
    scene = Scene(SimDisk())
    _, subscription_id, rule = make_family(scene.store)
    large = RuleDescription("Large", FilterDescription(SQL, "amount > 5"))
    scene.store.create_rule(subscription_id, large)
    with pytest.raises(EntityAlreadyExists):
        scene.store.create_rule(
            subscription_id, RuleDescription("LARGE", FilterDescription(SQL, "1 = 1"))
        )
    scene.store.delete_rule(rule.rule_id)
    scene.commit()
    for store in (scene.store, scene.reopened().store):
        assert names_of(topic_of(store).rules, subscription_id) == ["Large"]
        (kept,) = store.rules.values()
        assert kept.description.to_json() == large.to_json()


def test_a_refused_rule_changes_nothing() -> None:
    scene = Scene(SimDisk())
    scene.commit()
    with pytest.raises(EntityNotFound):
        scene.store.create_rule(scene.queue.entity_id, default_rule())
    with pytest.raises(EntityNotFound):
        scene.store.create_entity(
            "subscription", "orders/Subscriptions/x", SubscriptionDescription()
        )
    assert not scene.store.facts
    assert sorted(scene.store.names) == ["orders"]


def test_names_that_look_like_others_are_told_apart() -> None:
    scene = Scene(SimDisk())
    store = scene.store
    for topic in ("Subscriptions", "a/Rules/b", "other:Topic"):
        store.create_entity("topic", topic, TopicDescription())
        name = f"{topic}/Subscriptions/rules"
        subscription = store.create_entity("subscription", name, SubscriptionDescription())
        store.create_rule(subscription.entity_id, default_rule())
    scene.commit()
    found = scene.reopened().store
    for topic in ("subscriptions", "a/rules/b", "other:topic"):
        (subscription_id,) = topic_of(found, topic).subscriptions
        assert names_of(topic_of(found, topic).rules, subscription_id) == ["$Default"]


def test_what_requires_sessions_is_made_for_them() -> None:
    scene = Scene(SimDisk())
    scene.store.create_entity("queue", "steps", QueueDescription(requires_session=True))
    topic = scene.store.create_entity("topic", "t", TopicDescription())
    scene.store.create_entity(
        "subscription",
        f"{topic.name}/Subscriptions/s",
        SubscriptionDescription(requires_session=True),
    )
    scene.commit()
    found = scene.reopened().store
    for name, kind in (("steps", "queue"), ("t/subscriptions/s", "subscription")):
        queue = found.entities[found.names[name]]
        assert isinstance(queue, SessionQueue)
        assert queue.kind == kind


def test_updating_keeps_what_an_entity_is() -> None:
    scene = Scene(SimDisk())
    topic, subscription_id, _ = make_family(scene.store)
    scene.store.update_entity(subscription_id, SubscriptionDescription(max_delivery_count=3))
    scene.store.update_entity(topic.entity_id, TopicDescription(user_metadata="changed"))
    scene.commit()
    for store in (scene.store, scene.reopened().store):
        found = topic_of(store)
        assert found.description.user_metadata == "changed"
        assert isinstance(found.description, TopicDescription)
        subscription = found.subscriptions[subscription_id]
        assert subscription.description.max_delivery_count == 3
        assert isinstance(subscription.description, SubscriptionDescription)


def test_facts_may_come_twice() -> None:
    """A snapshot in slices has seen some of what is replayed on it."""
    scene = Scene(SimDisk())
    store = scene.store
    for _ in range(2):
        topic, _, _ = make_family(store)
        store.delete_entities([topic.entity_id])
    make_family(store)
    facts = list(store.facts)
    for start in range(len(facts)):
        known = EntityIndex()
        for fact in [*facts, *facts[start:]]:
            known.replay(fact, scene.now)
        assert known.names == {name: i for name, i in store.names.items() if name != "orders"}
        assert known.rules.keys() == store.rules.keys()
        topic_id = known.names["topic"]
        found = known.by_id[topic_id]
        assert isinstance(found, Topic)
        (subscription_id,) = found.subscriptions
        assert names_of(found.rules, subscription_id) == ["$Default"]


@pytest.mark.parametrize(
    "fact",
    [
        EntityCreated(50, "subscription", "nowhere/Subscriptions/x", "{}"),
        EntityCreated(50, "rule", "nowhere/Subscriptions/x/Rules/y", default_rule().to_json()),
        EntityCreated(50, "rule", "orders/Rules/y", default_rule().to_json()),
        EntityCreated(50, "relay", "x", "{}"),
        EntityCreated(50, "rule", f"{SUBSCRIPTION}/Rules/x", "[1]"),
        EntityCreated(50, "queue", "x", "[]"),
        EntityCreated(50, "queue", "x", "not json"),
        IdsSeen(1, -1, bytes(16)),
        IdsSeen(1, 1 << 62, bytes(16)),
    ],
)
def test_a_fact_that_makes_no_sense_is_damage(fact: Fact) -> None:
    scene = Scene(SimDisk())
    once = QueueDescription(requires_duplicate_detection=True)
    scene.store.update_entity(scene.queue.entity_id, once)
    make_family(scene.store)
    scene.store.facts.append(fact)
    scene.commit()
    with pytest.raises(LogDamaged, match="no sense"):
        scene.reopened()
