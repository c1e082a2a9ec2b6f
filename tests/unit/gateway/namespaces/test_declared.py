"""Entities of the configuration: made once, brought up to date, otherwise left alone."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.unit.broker.harness import BrokerHarness
from twinbus.config import Declared, SubscriptionConfig, TopicConfig
from twinbus.entities.descriptions import (
    QueueDescription,
    SharedAccessRule,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.entities.rule_descriptions import RuleDescription
from twinbus.errors import ArgumentInvalid, EntityNotFound, ServiceError
from twinbus.gateway.access.shared_access import MANAGE, AuthorizationRule, Authorizer
from twinbus.gateway.namespaces.declared import declare
from twinbus.gateway.namespaces.namespace import Namespace
from twinbus.limits import PROFILES

pytestmark = [pytest.mark.proves("M-9"), pytest.mark.asyncio]

PAID = RuleDescription.from_mapping({"name": "paid", "properties": {"state": "paid"}})
LARGE = RuleDescription.from_mapping({"name": "large", "expression": "amount > 100"})


class Bus:
    """A namespace on a simulated disk and clock."""

    def __init__(self, profile: str = "premium") -> None:
        self.harness = BrokerHarness()
        authorizer = Authorizer([AuthorizationRule("Root", [MANAGE], "a", "b")])
        self.namespace = Namespace(
            "shop",
            self.harness.gateway,
            self.harness.changes,
            authorizer,
            self.harness.clock,
            0,
            prefix="shop:",
            limits=PROFILES[profile],
        )

    async def declare(self, declared: Declared) -> None:
        self.harness.clock.advance(1_000)
        task = asyncio.ensure_future(declare(self.namespace, declared))
        while not task.done():
            self.harness.run()
            await asyncio.sleep(0)
        task.result()

    async def written(self) -> dict[str, object]:
        """Everything that is there, with the times at which it changed."""
        namespace = self.namespace
        names = [view.name for view in await namespace.list_queues(0, 100)]
        names += [view.name for view in await namespace.list_topics(0, 100)]
        found: dict[str, object] = {name: namespace.find_entity(name).description for name in names}
        for view in await namespace.list_subscriptions("orders", 0, 100):
            found[view.name] = view.description
            rules = await namespace.list_rules("orders", view.name.rpartition("/")[2], 0, 100)
            found[f"{view.name} rules"] = [rule.description for rule in rules]
        return found


def declared(
    rules: Iterable[RuleDescription] = (PAID, LARGE), queue: QueueDescription | None = None
) -> Declared:
    """A queue and a subscription that forward to what is declared behind them."""
    subscription = SubscriptionDescription(forward_to="second")
    subscriptions = (
        SubscriptionConfig("paid", subscription, tuple(rules)),
        SubscriptionConfig("all", SubscriptionDescription()),
    )
    return Declared(
        (
            ("first", queue or QueueDescription(forward_to="orders")),
            ("second", QueueDescription(max_delivery_count=3)),
        ),
        (TopicConfig("orders", TopicDescription(), subscriptions),),
    )


async def rule_names(bus: Bus, subscription: str) -> list[str]:
    return [rule.name for rule in await bus.namespace.list_rules("orders", subscription, 0, 100)]


@pytest.mark.feature("entity.config-json")
async def test_made_at_first() -> None:
    bus = Bus()
    await bus.declare(declared())
    assert bus.namespace.find_queue("first").description.forward_to == "orders"
    assert bus.namespace.find_queue("second").description.max_delivery_count == 3
    paid = bus.namespace.find_subscription("orders", "paid")
    assert paid.description.forward_to == "second"
    assert sorted(await rule_names(bus, "paid")) == ["large", "paid"]
    assert await rule_names(bus, "all") == ["$Default"]


@pytest.mark.feature("entity.config-json")
async def test_starting_twice_is_like_starting_once() -> None:
    bus = Bus()
    await bus.declare(declared())
    before = await bus.written()
    await bus.declare(declared())
    assert await bus.written() == before


@pytest.mark.feature("entity.config-json")
async def test_brought_up_to_date() -> None:
    bus = Bus()
    await bus.declare(declared())
    second = bus.namespace.find_queue("second")
    changed = RuleDescription.from_mapping({"name": "Large", "expression": "amount > 1000"})
    await bus.declare(declared([changed], QueueDescription(lock_duration_ms=5_000)))
    first = bus.namespace.find_queue("first").description
    assert (first.lock_duration_ms, first.forward_to) == (5_000, None)
    assert bus.namespace.find_queue("second") is second
    [rule] = await bus.namespace.list_rules("orders", "paid", 0, 100)
    assert rule.description.filter.expression == "amount > 1000"


async def test_rules_that_are_not_listed_stay() -> None:
    bus = Bus()
    await bus.declare(declared())
    before = await bus.written()
    await bus.declare(declared([]))
    assert await bus.written() == before


async def test_keys_of_an_entity_stay() -> None:
    bus = Bus()
    await bus.declare(declared())
    second = bus.namespace.find_queue("second")
    own = SharedAccessRule("own", ("Send",), "a", "b")
    ruled = replace(second.description, authorization_rules=(own,))
    task = asyncio.ensure_future(bus.namespace.update_queue("second", ruled))
    while not task.done():
        bus.harness.run()
        await asyncio.sleep(0)
    await bus.declare(declared())
    assert second.description.authorization_rules == (own,)


async def test_what_cannot_be_changed_is_refused() -> None:
    bus = Bus()
    await bus.declare(declared())
    with pytest.raises(ArgumentInvalid, match="requires_session"):
        await bus.declare(declared(queue=QueueDescription(requires_session=True)))


async def test_a_target_that_is_nowhere() -> None:
    with pytest.raises(EntityNotFound, match="nowhere"):
        await Bus().declare(declared(queue=QueueDescription(forward_to="nowhere")))


async def test_a_name_of_dots_is_for_what_is_there_already() -> None:
    bus = Bus()
    wanted = Declared((("a/../b", QueueDescription(max_delivery_count=3)),))
    with pytest.raises(ArgumentInvalid, match=r"'a/\.\./b' has the path segment"):
        await bus.declare(wanted)
    # The last version would have made it.
    task = asyncio.ensure_future(
        bus.harness.changes.create("queue", "shop:a/../b", QueueDescription())
    )
    while not task.done():
        bus.harness.run()
        await asyncio.sleep(0)
    await bus.declare(wanted)
    assert bus.namespace.find_queue("a/../b").description.max_delivery_count == 3


async def test_limits_hold_here_too() -> None:
    with pytest.raises(ServiceError, match="'Basic'"):
        await Bus("basic").declare(declared())
    bus = Bus("basic")
    await bus.declare(Declared((("plain", QueueDescription()),)))
    assert bus.namespace.find_queue("plain").description.default_time_to_live_ms == 1_209_600_000
