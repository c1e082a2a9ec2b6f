"""What is answered about an entity while it is being made, changed or deleted: the outcome.

The store's answers are held back here, so that every request finds the one before it half done.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.broker.actions import by_subject
from tests.unit.broker.harness import BrokerHarness
from twinbus.broker.broker import Broker
from twinbus.entities.commands import Command, Reply, dispatch_replies
from twinbus.entities.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.errors import (
    EntityAlreadyExists,
    EntityNotFound,
    OperationTimeout,
    ServiceError,
    Unavailable,
)
from twinbus.gateway.access.shared_access import Authorizer
from twinbus.gateway.gateway import Gateway
from twinbus.gateway.namespaces.entity_changes import EntityChanges, NoCatalog
from twinbus.gateway.namespaces.entity_locks import EntityLocks
from twinbus.gateway.namespaces.namespace import Namespace

pytestmark = pytest.mark.asyncio

QUEUE = QueueDescription()
TOPIC = TopicDescription()
SUBSCRIPTION = SubscriptionDescription()
CHANGED = replace(TOPIC, user_metadata="changed")


class HeldLink:
    """A store that says nothing before it is told to."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.held: list[Command] = []

    def submit(self, commands: list[Command]) -> None:
        self.held += commands

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    def go_on(self) -> None:
        held, self.held = self.held, []
        self._broker.submit(held)

    def fail(self) -> None:
        """It goes down, and whoever waits hears of it."""
        held, self.held = self.held, []
        dispatch_replies([Reply(each, None, Unavailable("lost")) for each in held])


class Bus:
    """A namespace on one store whose answers are held back."""

    def __init__(self) -> None:
        self.harness = BrokerHarness()
        self.link = HeldLink(self.harness.broker)
        gateway = Gateway([self.link], self.harness.clock)
        self.harness.broker.entities.on_gone = lambda number: self.changes.forget(0, number)
        self.changes = EntityChanges(gateway, NoCatalog())
        self.namespace = self.named("main", "")

    def named(self, name: str, prefix: str) -> Namespace:
        gateway = self.changes._gateway
        return Namespace(name, gateway, self.changes, Authorizer([]), gateway.clock, 0, prefix)

    async def start(self, request: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """As far as it comes without the store."""
        task = asyncio.ensure_future(request)
        await self.pause()
        return task

    async def pause(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def step(self) -> None:
        """The store answers what it was asked until now."""
        self.link.go_on()
        self.harness.run()
        await self.pause()

    async def finish(self, *tasks: "asyncio.Task[Any]") -> None:
        while not all(task.done() for task in tasks):
            await self.step()

    async def do(self, request: Coroutine[Any, Any, Any]) -> Any:
        task = await self.start(request)
        await self.finish(task)
        return task.result()

    async def make_topic(self, *subscriptions: str) -> None:
        await self.do(self.namespace.create_topic("news", TOPIC))
        for name in subscriptions:
            await self.do(self.namespace.create_subscription("news", name, SUBSCRIPTION))

    @property
    def names(self) -> list[str]:
        """What the gateway knows, which must be what the store has."""
        known = sorted(self.changes._directory.names)
        assert known == sorted(self.harness.store.names)
        return known


@pytest.fixture
def bus() -> Bus:
    return Bus()


async def test_what_exists_already_is_there(bus: Bus) -> None:
    namespace = bus.namespace
    first = await bus.start(namespace.create_topic("news", TOPIC))
    second = await bus.start(namespace.create_topic("NEWS", TOPIC))
    assert not second.done(), "nobody knows yet whether it will exist"
    with pytest.raises(EntityNotFound):
        await namespace.get_entity("news")  # nor was anybody told that it does
    assert await namespace.list_topics(0, 9) == []
    bus.link.go_on()
    commit = bus.harness.turn()
    assert commit is not None
    await bus.pause()
    assert not second.done(), "a crash could still undo it"
    bus.harness.write(commit)
    with pytest.raises(EntityAlreadyExists):
        await second
    # From this moment on everything holds that the first is promised.
    assert namespace.find_topic("news").kind == "topic"
    subscription = await bus.start(namespace.create_subscription("news", "all", SUBSCRIPTION))
    await bus.finish(first, subscription)
    assert (first.result().name, subscription.result().name) == ("news", "all")


async def test_if_the_first_fails_the_second_makes_it(bus: Bus) -> None:
    first = await bus.start(bus.namespace.create_topic("news", TOPIC))
    second = await bus.start(bus.namespace.create_topic("news", TOPIC))
    bus.link.fail()
    with pytest.raises(Unavailable):
        await first
    await bus.finish(second)
    assert second.result().name == "news"
    assert bus.names == ["news"]


async def test_what_comes_while_it_is_made(bus: Bus) -> None:
    namespace = bus.namespace
    first = await bus.start(namespace.create_topic("news", TOPIC))
    others = [
        await bus.start(namespace.create_subscription("News", "all", SUBSCRIPTION)),
        await bus.start(namespace.create_rule("news", "all", by_subject("red", "red"))),
        await bus.start(namespace.update_topic("news", CHANGED)),
        await bus.start(namespace.delete_entity("news")),
    ]
    assert len(bus.link.held) == 1
    await bus.finish(first, *others)
    assert all(task.exception() is None for task in others)
    assert bus.names == []


async def test_what_comes_while_it_is_deleted(bus: Bus) -> None:
    namespace = bus.namespace
    await bus.make_topic("all")
    first = await bus.start(namespace.delete_entity("news"))
    missing = [
        await bus.start(request)
        for request in (
            namespace.delete_entity("news"),
            namespace.delete_entity("news"),
            namespace.update_topic("news", CHANGED),
            namespace.create_subscription("news", "late", SUBSCRIPTION),
            namespace.delete_subscription("news", "all"),
            namespace.create_rule("news", "all", by_subject("red", "red")),
        )
    ]
    again = await bus.start(namespace.create_queue("news", QUEUE))
    assert not any(task.done() for task in [first, again, *missing])
    await bus.finish(first, again, *missing)
    assert first.exception() is None
    assert {type(task.exception()) for task in missing} == {EntityNotFound}
    assert again.result().name == "news"
    assert bus.names == ["news"]


async def test_a_topic_is_not_deleted_over_a_subscription_that_is_being_made(bus: Bus) -> None:
    """Both were answered 20x, and the subscription was left without a topic."""
    await bus.make_topic()
    made = await bus.start(bus.namespace.create_subscription("news", "all", SUBSCRIPTION))
    deleted = await bus.start(bus.namespace.delete_entity("news"))
    assert len(bus.link.held) == 1
    await bus.finish(made, deleted)
    assert made.exception() is None
    assert bus.names == []


async def test_two_updates_do_not_mix(bus: Bus) -> None:
    await bus.make_topic()
    first = await bus.start(bus.namespace.update_topic("news", CHANGED))
    second = await bus.start(bus.namespace.update_topic("news", TOPIC))
    await bus.finish(first, second)
    found = bus.namespace.find_topic("news").description
    assert found.user_metadata is None
    stored = bus.harness.store.entities[bus.namespace.find_topic("news").parts[0].entity_id]
    assert stored.description == found


async def test_subscriptions_of_a_topic_are_made_together(bus: Bus) -> None:
    await bus.make_topic()
    tasks = [
        await bus.start(bus.namespace.create_subscription("news", name, SUBSCRIPTION))
        for name in ("a", "b", "c")
    ]
    assert len(bus.link.held) == 3, "one sync is for all of them"
    await bus.finish(*tasks)
    assert len(bus.namespace.find_topic("news").subscriptions) == 3


async def test_a_second_rule_of_a_name_waits(bus: Bus) -> None:
    await bus.make_topic("all")
    rule = by_subject("red", "red")
    first = await bus.start(bus.namespace.create_rule("news", "all", rule))
    second = await bus.start(bus.namespace.create_rule("news", "ALL", by_subject("x", "Red")))
    other = await bus.start(bus.namespace.create_rule("news", "all", by_subject("x", "other")))
    assert len(bus.link.held) == 2
    await bus.finish(first, second, other)
    assert first.result().name == "red"
    assert isinstance(second.exception(), EntityAlreadyExists)


@pytest.mark.parametrize(
    "request_of",
    [
        lambda it: it.create_topic("news", TOPIC),
        lambda it: it.delete_entity("news"),
        lambda it: it.update_topic("news", CHANGED),
        lambda it: it.create_subscription("news", "all", SUBSCRIPTION),
        lambda it: it.delete_rule("news", "all", "$Default"),
        lambda it: it.settled("news"),
    ],
)
async def test_nobody_waits_for_ever(
    bus: Bus, request_of: Callable[[Namespace], Coroutine[Any, Any, Any]]
) -> None:
    bus.changes.entity_locks = EntityLocks(patience_s=0.01)
    first = await bus.start(bus.namespace.create_topic("news", TOPIC))
    with pytest.raises(OperationTimeout, match="try again") as caught:
        await request_of(bus.namespace)
    assert caught.value.retryable
    assert len(bus.link.held) == 1, "nothing was asked of the store"
    await bus.finish(first)
    assert bus.names == ["news"]


async def test_a_subscription_whose_topic_was_idle_for_too_long_is_not_there(bus: Bus) -> None:
    """A broker does not ask before it deletes what is idle."""
    await bus.make_topic()
    made = await bus.start(bus.namespace.create_subscription("news", "all", SUBSCRIPTION))
    bus.link.go_on()
    number = bus.namespace.find_topic("news").parts[0].entity_id
    bus.harness.broker.entities.delete([bus.harness.store.entities[number]])
    bus.harness.broker.entities.on_gone(number)
    await bus.finish(made)
    assert isinstance(made.exception(), EntityNotFound)
    assert bus.names == []


async def test_nothing_is_made_in_a_namespace_that_is_being_deleted(bus: Bus) -> None:
    shop = bus.named("shop", "shop:")
    first = await bus.start(shop.create_queue("orders", QUEUE))
    waits = await bus.start(shop.create_queue("orders", QUEUE))
    retired = await bus.start(shop.retire())
    late = await bus.start(shop.create_topic("news", TOPIC))
    elsewhere = await bus.start(bus.namespace.create_queue("orders", QUEUE))
    assert not retired.done()
    await bus.finish(first, waits, retired, late, elsewhere)
    assert first.exception() is None
    for refused in (waits, late):
        assert isinstance(refused.exception(), ServiceError)
    assert bus.names == ["orders", "shop:orders"]
    shop.reinstate()
    assert (await bus.do(shop.create_topic("news", TOPIC))).name == "news"
