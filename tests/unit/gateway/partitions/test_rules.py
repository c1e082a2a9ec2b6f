"""Rules of a partitioned topic's subscription are the same in every partition."""

from collections.abc import Callable

import pytest

from tests.unit.gateway.partitions.partitioned_harness import Bus
from twinbus.entities.commands import (
    AddRule,
    Command,
    GetRuntime,
    ListRules,
    RemoveRule,
    ReplaceRule,
)
from twinbus.entities.descriptions import SubscriptionDescription, TopicDescription
from twinbus.entities.rule_descriptions import SQL, FilterDescription, RuleDescription, default_rule
from twinbus.errors import (
    EntityAlreadyExists,
    EntityNotFound,
    InvalidOperation,
    NotSupported,
    ServerBusy,
    ServiceError,
    Unavailable,
)
from twinbus.gateway.directory.directory import Entity
from twinbus.links.store_link import DOWN

pytestmark = pytest.mark.proves("E-13")

Changes = list[tuple[str, Callable[[], Command]]]
CHANGES: Changes = [
    ("add", lambda: AddRule(0, rule("red", "colour = 'red'"))),
    ("remove", lambda: RemoveRule(0, "$Default")),
    ("replace", lambda: ReplaceRule(0, rule("$Default", "colour = 'red'"))),
]


def rule(name: str, expression: str) -> RuleDescription:
    return RuleDescription(name, FilterDescription(SQL, expression))


def made(store_count: int = 4) -> tuple[Bus, Entity]:
    bus = Bus(store_count)
    topic = bus.create("topic", "news", TopicDescription())
    return bus, bus.create_subscription(topic, "all", SubscriptionDescription(), default_rule())


def rules(bus: Bus, subscription: Entity) -> list[list[tuple[str, str]]]:
    """Names and filters of the rules in each partition."""
    found: list[list[tuple[str, str]]] = []
    for part in subscription.parts:
        store = bus.sims[part.store].store
        of_part = [
            (each.description.name, each.description.filter.expression)
            for each in store.rules.values()
            if each.subscription_id == part.entity_id
        ]
        found.append(sorted(of_part))
    return found


def names(bus: Bus, subscription: Entity) -> list[list[str]]:
    return [[name for name, _ in each] for each in rules(bus, subscription)]


def test_rules_are_changed_in_all_partitions() -> None:
    bus, subscription = made()
    assert bus.ask(subscription, AddRule(0, rule("red", "colour = 'red'"))).result is None
    assert names(bus, subscription) == [["$Default", "red"]] * 16
    bus.ask(subscription, ReplaceRule(0, rule("red", "colour = 'crimson'")))
    assert rules(bus, subscription)[9][1] == ("red", "colour = 'crimson'")
    assert bus.ask(subscription, RemoveRule(0, "$default")).result is None
    assert names(bus, subscription) == [["red"]] * 16
    listed = bus.ask(subscription, ListRules(0, 0, 10)).result
    assert [each.name for each in listed] == ["red"]


def test_refusals_of_all_partitions_are_one() -> None:
    bus, subscription = made()
    cases: list[tuple[Command, type[ServiceError]]] = [
        (AddRule(0, rule("$Default", "1 = 1")), EntityAlreadyExists),
        (RemoveRule(0, "missing"), EntityNotFound),
        (ReplaceRule(0, rule("missing", "1 = 1")), EntityNotFound),
    ]
    for command, expected in cases:
        assert type(bus.ask(subscription, command).error) is expected
    queue = bus.create()
    assert isinstance(bus.ask(queue, RemoveRule(0, "x")).error, InvalidOperation)


@pytest.mark.parametrize(("name", "change"), CHANGES)
def test_nothing_is_changed_while_a_partition_is_down(
    name: str, change: Callable[[], Command]
) -> None:
    bus, subscription = made()
    before = rules(bus, subscription)
    bus.sims[2].health = DOWN
    asker = bus.ask(subscription, change())
    assert isinstance(asker.error, Unavailable)
    assert "Nothing was changed" in str(asker.error)
    assert rules(bus, subscription) == before
    assert len(bus.ask(subscription, ListRules(0, 0, 10)).result) == 1


@pytest.mark.parametrize(("name", "change"), CHANGES)
def test_change_that_one_partition_refuses_is_taken_back(
    name: str, change: Callable[[], Command]
) -> None:
    bus, subscription = made()
    before = rules(bus, subscription)
    command = change()
    refused = subscription.parts[6].entity_id
    bus.sims[2].refuses = lambda each: (
        ServerBusy("busy") if each.entity_id == refused and type(each) is type(command) else None
    )
    assert isinstance(bus.ask(subscription, command).error, ServerBusy)
    assert rules(bus, subscription) == before


def test_what_may_have_been_left_different_is_said_and_can_be_mended() -> None:
    bus, subscription = made()

    def goes_down(command: Command) -> ServiceError | None:
        return Unavailable("It is down.") if isinstance(command, AddRule) else None

    bus.sims[2].refuses = goes_down
    asker = bus.ask(subscription, AddRule(0, rule("red", "1 = 1")))
    assert isinstance(asker.error, Unavailable)
    assert "remove the rule and add it again" in str(asker.error)
    # One partition has it after all.
    bus.sims[2].refuses = lambda command: None
    part = subscription.parts[6]
    bus.sims[2].broker.submit([AddRule(part.entity_id, rule("red", "1 = 1"))])
    bus.settle()
    assert isinstance(
        bus.ask(subscription, AddRule(0, rule("red", "1 = 1"))).error, EntityAlreadyExists
    )
    assert names(bus, subscription)[5:8] == [["$Default"], ["$Default", "red"], ["$Default"]]
    assert bus.ask(subscription, RemoveRule(0, "red")).result is None
    assert names(bus, subscription) == [["$Default"]] * 16


def test_rule_that_only_some_had_and_that_cannot_be_removed_everywhere() -> None:
    """Nobody knows it from partition 0, so it is not put back."""
    bus, subscription = made()
    for partition in (5, 6):
        part = subscription.parts[partition]
        bus.sims[part.store].broker.submit([AddRule(part.entity_id, rule("red", "1 = 1"))])
    bus.settle()
    bus.sims[2].refuses = lambda each: ServerBusy("busy") if isinstance(each, RemoveRule) else None
    assert isinstance(bus.ask(subscription, RemoveRule(0, "red")).error, ServerBusy)
    bus.sims[2].refuses = lambda each: None
    assert bus.ask(subscription, RemoveRule(0, "red")).result is None
    assert names(bus, subscription) == [["$Default"]] * 16


def test_rule_is_found_behind_many_others() -> None:
    bus, subscription = made(store_count=1)
    part = subscription.parts[0]
    many = [AddRule(part.entity_id, rule(f"a{i:04}", "1 = 1")) for i in range(600)]
    bus.sims[0].broker.submit(list(many))
    bus.settle()
    for partition in range(16):
        other = subscription.parts[partition]
        bus.sims[0].broker.submit([AddRule(other.entity_id, rule("zz", "colour = 'red'"))])
    bus.settle()
    refused = subscription.parts[6].entity_id
    bus.sims[0].refuses = lambda each: (
        ServerBusy("busy") if each.entity_id == refused and isinstance(each, RemoveRule) else None
    )
    assert isinstance(bus.ask(subscription, RemoveRule(0, "zz")).error, ServerBusy)
    assert ("zz", "colour = 'red'") in rules(bus, subscription)[3]


def test_listing_fails_only_when_nothing_is_up() -> None:
    bus, subscription = made(store_count=2)
    bus.sims[0].health = DOWN
    assert len(bus.ask(subscription, ListRules(0, 0, 10)).result) == 1
    bus.sims[1].health = DOWN
    assert isinstance(bus.ask(subscription, ListRules(0, 0, 10)).error, Unavailable)


def test_commands_about_stores_are_not_routed() -> None:
    bus, subscription = made()
    assert isinstance(bus.ask(subscription, GetRuntime([1])).error, NotSupported)
