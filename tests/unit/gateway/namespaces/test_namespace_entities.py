"""The namespace's façade: queues, topics, subscriptions and rules by name."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from tests.unit.broker.actions import by_subject, restarted, send, sql
from tests.unit.broker.harness import BrokerHarness
from tests.unit.broker.stored_messages import new
from twinbus.entities.descriptions import (
    DISABLED,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.entities.rule_descriptions import RuleDescription
from twinbus.errors import (
    ArgumentInvalid,
    EntityAlreadyExists,
    EntityNotFound,
    InvalidOperation,
    QuotaExceeded,
    ServiceError,
)
from twinbus.gateway.access.shared_access import Authorizer
from twinbus.gateway.namespaces.namespace import Namespace

pytestmark = pytest.mark.proves("M-9")

T = TypeVar("T")
QUEUE = QueueDescription()
TOPIC = TopicDescription()
SUBSCRIPTION = SubscriptionDescription()


class Bench:
    """A namespace whose changes are made durable at once."""

    def __init__(self, harness: BrokerHarness | None = None, prefix: str = "") -> None:
        self.harness = harness or BrokerHarness()
        clock = self.harness.clock
        self.namespace = Namespace(
            "main",
            self.harness.gateway,
            self.harness.changes,
            Authorizer([]),
            clock,
            clock.now().utc_ms,
            prefix,
        )

    def do(self, change: Coroutine[Any, Any, T]) -> T:
        """Run a change to its end; it must wait for the disk before it ends."""

        async def run() -> T:
            task = asyncio.ensure_future(change)
            await asyncio.sleep(0)
            while not task.done():
                self.harness.run()
                await asyncio.sleep(0)
            return task.result()

        return asyncio.run(run())

    def create_topic(self, name: str, *subscriptions: str) -> None:
        self.do(self.namespace.create_topic(name, TOPIC))
        for each in subscriptions:
            self.do(self.namespace.create_subscription(name, each, SUBSCRIPTION))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_change_is_answered_when_it_is_durable(bench: Bench) -> None:
    async def run() -> None:
        task = asyncio.ensure_future(bench.namespace.create_topic("news", TOPIC))
        await asyncio.sleep(0)
        assert not task.done()
        commit = bench.harness.turn()
        assert commit is not None
        await asyncio.sleep(0)
        assert not task.done()
        bench.harness.write(commit)
        assert (await task).name == "news"

    asyncio.run(run())


def test_kinds_do_not_mix(bench: Bench) -> None:
    bench.create_topic("news", "all")
    bench.do(bench.namespace.create_queue("orders", QUEUE))
    with pytest.raises(EntityAlreadyExists):
        bench.do(bench.namespace.create_queue("NEWS", QUEUE))
    with pytest.raises(EntityAlreadyExists):
        bench.do(bench.namespace.create_topic("Orders", TOPIC))
    for look in (
        lambda: bench.namespace.find_queue("news"),
        lambda: bench.namespace.find_topic("orders"),
        lambda: bench.namespace.find_queue("news/Subscriptions/all"),
        lambda: bench.do(bench.namespace.get_subscription("orders", "all")),
        lambda: bench.namespace.find_entity("news/Subscriptions/all/Rules/$Default"),
        lambda: bench.namespace.find_entity(""),
    ):
        with pytest.raises(EntityNotFound):
            look()
    assert bench.namespace.find_entity("NEWS/subscriptions/ALL").kind == "subscription"


def test_views(bench: Bench) -> None:
    namespace = bench.namespace
    bench.create_topic("News", "All", "red")
    bench.do(namespace.create_rule("news", "red", sql("color = 'red'", name="sql")))
    bench.do(namespace.create_rule("news", "red", by_subject("x", "correlation")))
    later = bench.harness.clock.now().utc_ms + 60_000
    send(bench.harness, namespace.find_topic("news"), new(b"1"), new(b"2", scheduled_ms=later))
    (view,) = bench.do(namespace.list_topics(0, 10))
    assert (view.name, view.subscription_count) == ("News", 2)
    assert (view.sql_filter_count, view.correlation_filter_count) == (1, 1)
    assert view.counts.scheduled == 1
    size = len(new(b"1").body)
    assert view.counts.size_bytes == 3 * size
    assert bench.do(namespace.get_entity("news")).counts.size_bytes == 3 * size
    subscription = bench.do(namespace.get_subscription("NEWS", "all"))
    assert (subscription.topic, subscription.name) == ("News", "All")
    assert subscription.path == "News/Subscriptions/All"
    assert subscription.counts.active == 1
    assert subscription.created_utc_ms > 0
    assert bench.do(namespace.get_entity("news")).name == "News"
    assert bench.do(namespace.get_entity("news/subscriptions/red")).name == "red"


def test_lists_are_in_order_and_come_in_pages(bench: Bench) -> None:
    namespace = bench.namespace
    for name in ("b", "A", "c"):
        bench.do(namespace.create_queue(name, QUEUE))
        bench.create_topic(f"topic-{name}")
    for name in ("A", "c", "b"):
        bench.do(namespace.create_subscription("topic-b", name, SUBSCRIPTION))
        bench.do(namespace.create_rule("topic-b", "A", sql("1 = 1", name=name)))
    assert [view.name for view in bench.do(namespace.list_queues(0, 10))] == ["A", "b", "c"]
    assert [view.name for view in bench.do(namespace.list_queues(1, 1))] == ["b"]
    assert [view.name for view in bench.do(namespace.list_topics(1, 9))] == ["topic-b", "topic-c"]
    views = bench.do(namespace.list_subscriptions("topic-b", 0, 2))
    assert [view.name for view in views] == ["A", "b"]
    rules = bench.do(namespace.list_rules("topic-b", "a", 0, 9))
    assert [view.name for view in rules] == ["$Default", "A", "b", "c"]
    assert bench.do(namespace.list_rules("topic-b", "a", 4, 9)) == []


@pytest.mark.proves("M-6")
def test_a_subscription_has_a_default_rule_or_the_one_it_is_given(bench: Bench) -> None:
    namespace = bench.namespace
    bench.create_topic("news", "all")
    bench.do(namespace.create_subscription("news", "red", SUBSCRIPTION, by_subject("red", "mine")))
    assert [view.name for view in bench.do(namespace.list_rules("news", "all", 0, 9))] == [
        "$Default"
    ]
    assert [view.name for view in bench.do(namespace.list_rules("news", "red", 0, 9))] == ["mine"]
    again = Bench(restarted(bench.harness)).namespace
    assert [view.name for view in bench.do(again.list_rules("news", "red", 0, 9))] == ["mine"]


@pytest.mark.proves("M-6")
def test_rules_are_created_replaced_and_deleted(bench: Bench) -> None:
    namespace = bench.namespace
    bench.create_topic("news", "all")
    made = bench.do(namespace.create_rule("news", "all", by_subject("a", "mine")))
    bench.harness.clock.advance(5_000)
    with pytest.raises(EntityAlreadyExists):
        bench.do(namespace.create_rule("news", "all", by_subject("b", "MINE")))
    bench.do(namespace.update_rule("news", "all", by_subject("b", "Mine")))
    again = Bench(restarted(bench.harness))
    view = again.do(again.namespace.get_rule("news", "all", "mine"))
    assert view.description.filter.system == {"label": "b"}
    assert view.created_utc_ms == made.created_utc_ms
    bench.do(namespace.delete_rule("news", "all", "MINE"))
    for change in (
        namespace.delete_rule("news", "all", "mine"),
        namespace.update_rule("news", "all", by_subject("b", "mine")),
        namespace.create_rule("news", "nobody", by_subject("b", "mine")),
    ):
        with pytest.raises(EntityNotFound):
            bench.do(change)


@pytest.mark.proves("M-6")
def test_a_replaced_rule_is_never_missing(bench: Bench) -> None:
    bench.create_topic("news", "all")
    namespace = bench.namespace
    bench.do(
        namespace.update_rule("news", "all", RuleDescription.from_mapping({"name": "$Default"}))
    )
    assert len(bench.harness.store.rules) == 1
    send(bench.harness, namespace.find_topic("news"), new(b"1"))
    assert bench.do(namespace.get_subscription("news", "all")).counts.active == 1


def test_updates_are_kept_and_what_is_fixed_is_refused(bench: Bench) -> None:
    namespace = bench.namespace
    bench.create_topic("news", "all")
    bench.harness.clock.advance(5_000)
    changed = replace(TOPIC, status=DISABLED, user_metadata="note")
    view = bench.do(namespace.update_topic("NEWS", changed))
    assert view.updated_utc_ms == view.created_utc_ms + 5_000
    bench.do(
        namespace.update_subscription("news", "all", replace(SUBSCRIPTION, max_delivery_count=3))
    )
    again = Bench(restarted(bench.harness)).namespace
    assert bench.do(again.get_entity("news")).description.user_metadata == "note"
    assert bench.do(again.get_subscription("news", "all")).description.max_delivery_count == 3
    with pytest.raises(ArgumentInvalid):
        bench.do(
            namespace.update_subscription(
                "news", "all", replace(SUBSCRIPTION, requires_session=True)
            )
        )


def test_deleting(bench: Bench) -> None:
    namespace = bench.namespace
    bench.create_topic("news", "all", "red")
    bench.do(namespace.delete_subscription("news", "ALL"))
    with pytest.raises(EntityNotFound):
        bench.do(namespace.get_subscription("news", "all"))
    bench.do(namespace.delete_entity("News"))
    assert not bench.harness.store.names
    bench.do(namespace.create_queue("news", QUEUE))
    bench.do(namespace.delete_entity("news"))
    with pytest.raises(EntityNotFound):
        bench.do(namespace.delete_entity("news"))


@pytest.mark.proves("M-8")
@pytest.mark.parametrize(
    ("description", "error"),
    [
        (QueueDescription(forward_to="missing"), EntityNotFound),
        (QueueDescription(forward_dead_lettered_messages_to="missing"), EntityNotFound),
        (QueueDescription(forward_to="ME"), ArgumentInvalid),
        (QueueDescription(forward_to="other", requires_session=True), InvalidOperation),
    ],
)
def test_forwarding_that_cannot_be(
    bench: Bench, description: QueueDescription, error: type[ServiceError]
) -> None:
    bench.do(bench.namespace.create_queue("other", QUEUE))
    with pytest.raises(error):
        bench.do(bench.namespace.create_queue("me", description))
    with pytest.raises(EntityNotFound):
        bench.do(bench.namespace.get_entity("me"))


@pytest.mark.proves("M-8")
def test_a_forwarding_target_may_go(bench: Bench) -> None:
    namespace = bench.namespace
    bench.do(namespace.create_queue("target", QUEUE))
    bench.do(namespace.create_queue("source", QueueDescription(forward_to="Target")))
    bench.do(namespace.delete_entity("target"))
    send(bench.harness, namespace.find_queue("source"), new(b"1"))
    assert bench.do(namespace.get_entity("source")).counts.transfer_dead_letter == 1


def test_names(bench: Bench) -> None:
    namespace = bench.namespace
    bench.create_topic("news")
    for name in ("", "a/b", "x" * 51, "a:b"):
        with pytest.raises(ServiceError):
            bench.do(namespace.create_subscription("news", name, SUBSCRIPTION))
    with pytest.raises(ServiceError):
        bench.do(namespace.create_topic("a/Subscriptions/b", TOPIC))
    assert list(bench.harness.store.names) == ["news"]


def test_a_name_of_dots_is_refused_to_the_new_and_kept_by_the_old(bench: Bench) -> None:
    """The last version took `a/../b`: what it has made goes on working, also after a restart."""
    harness = bench.harness
    bench.do(harness.changes.create("queue", "a/../b", QUEUE))
    bench.do(harness.changes.create("topic", "a/./t", TOPIC))
    bench = Bench(restarted(harness))
    namespace = bench.namespace
    assert [view.name for view in bench.do(namespace.list_queues(0, 9))] == ["a/../b"]
    bench.do(namespace.update_queue("A/../B", replace(QUEUE, max_delivery_count=3)))
    bench.do(namespace.create_queue("source", QueueDescription(forward_to="a/../b")))
    bench.do(namespace.create_subscription("a/./t", "s", SUBSCRIPTION))
    bench = Bench(restarted(bench.harness))
    namespace = bench.namespace
    send(bench.harness, namespace.find_queue("source"), new(b"1"))
    view = bench.do(namespace.get_entity("a/../b"))
    assert (view.counts.active, view.description.max_delivery_count) == (1, 3)
    bench.do(namespace.delete_entity("a/./t"))
    bench.do(namespace.delete_entity("a/../b"))
    with pytest.raises(ArgumentInvalid, match=r"path segment '\.\.'"):
        bench.do(namespace.create_queue("a/../b", QUEUE))
    with pytest.raises(ArgumentInvalid, match=r"path segment '\.'"):
        bench.do(namespace.create_topic("a/./t", TOPIC))


def test_limits(bench: Bench) -> None:
    namespace = bench.namespace
    limits = namespace.limits
    namespace.limits = replace(limits, entities_max=2, subscriptions_max=1)
    bench.create_topic("news", "all")
    with pytest.raises(QuotaExceeded, match="subscriptions"):
        bench.do(namespace.create_subscription("news", "more", SUBSCRIPTION))
    bench.do(namespace.create_queue("orders", QUEUE))
    with pytest.raises(QuotaExceeded, match="queues and topics"):
        bench.do(namespace.create_queue("more", QUEUE))


def test_namespaces_in_one_store_do_not_see_each_other(bench: Bench) -> None:
    other = Bench(bench.harness, "other:")
    for each in (bench, other):
        each.create_topic("news", "all")
        each.do(each.namespace.create_queue("orders", QUEUE))
    assert [view.name for view in bench.do(bench.namespace.list_queues(0, 9))] == ["orders"]
    assert [view.name for view in other.do(other.namespace.list_queues(0, 9))] == ["orders"]
    assert [view.name for view in other.do(other.namespace.list_topics(0, 9))] == ["news"]
    view = other.do(other.namespace.get_subscription("news", "ALL"))
    assert (view.topic, view.name) == ("news", "all")
    found = other.namespace.find_queue("orders")
    assert found is not bench.namespace.find_queue("orders")
    assert other.namespace.path_of(found) == "orders"
    for path in ("other:orders", "OTHER:news/Subscriptions/all"):
        with pytest.raises(EntityNotFound):
            bench.namespace.find_entity(path)
    other.do(other.namespace.delete_entity("news"))
    assert bench.do(bench.namespace.list_topics(0, 10))[0].subscription_count == 1
