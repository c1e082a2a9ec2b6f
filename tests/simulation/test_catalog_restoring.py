"""Whenever the gateway or a store is lost while an entity is made, changed or removed, it is
whole in the end or nothing of it is left; and what nobody touched is not harmed."""

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import replace

import pytest

from tests.unit.gateway.sim_stores import SimStores, keyed
from twinbus.entities.catalog_entry import THERE
from twinbus.entities.commands import AddRule, DeleteEntities, ListRules, RemoveRule, Send
from twinbus.entities.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.entities.partitions import PARTITION_COUNT, split_partition
from twinbus.entities.rule_descriptions import (
    TRUE,
    FilterDescription,
    RuleDescription,
    default_rule,
)
from twinbus.errors import ServiceError, Unavailable
from twinbus.gateway.directory.directory import Entity
from twinbus.gateway.gateway import Gateway
from twinbus.gateway.namespaces.auto_delete_rounds import IdleRounds
from twinbus.gateway.namespaces.entity_changes import EntityChanges
from twinbus.gateway.namespaces.reconcile import restore
from twinbus.links.store_link import StoreLink
from twinbus.storage.catalog import CatalogFile
from twinbus.testing.disk import CrashMode, SimDisk

pytestmark = pytest.mark.proves("E-12")

STORES = 3
QUEUE = QueueDescription(enable_partitioning=True, max_size_megabytes=1_024)
TOPIC = TopicDescription(enable_partitioning=True, max_size_megabytes=1_024)
CHANGED = replace(QUEUE, max_delivery_count=3)
SUBSCRIPTION = "news/Subscriptions/all"


class Bus:
    """Stores, a catalog, and a gateway that can be lost."""

    def __init__(self) -> None:
        self.sim = SimStores(STORES)
        self.disk = SimDisk()
        self.start()

    def start(self) -> None:
        """A new gateway on what is there; it knows nothing before `restore`."""
        self.catalog = CatalogFile(self.disk)
        links: list[StoreLink] = list(self.sim.stores)
        self.gateway = Gateway(links, self.sim.clock)
        self.changes = EntityChanges(self.gateway, self.catalog)

    def lose_gateway(self, rng: random.Random, mode: CrashMode) -> None:
        self.sim.forget_gateway()
        self.sim.settle_down()
        self.disk = self.disk.after_power_cut(rng, mode)
        self.start()

    def run(self, change: Coroutine[object, object, object], steps: int = 1 << 30) -> bool:
        """Do something, at most so many steps of it; says whether it was done."""

        async def run() -> bool:
            task = asyncio.ensure_future(change)
            await asyncio.sleep(0)
            for _ in range(steps):
                if task.done():
                    break
                self.step()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            if task.done():
                task.result()
                return True
            task.cancel()
            await asyncio.wait([task])
            return False

        return asyncio.run(run())

    def step(self) -> None:
        for store in self.sim.stores:
            store.step()

    def crash(self, store: int, rng: random.Random) -> None:
        """A store is lost; what it has just made durable is not answered any more."""
        if rng.random() < 0.5:
            commit = self.sim.stores[store].broker.turn(may_commit=True)
            if commit is not None:
                commit.write()
        self.sim.crash(store, rng, rng.choice(list(CrashMode)))

    def restore(self) -> list[str]:
        warnings: list[str] = []

        async def run() -> None:
            warnings.extend(await restore(self.gateway, self.catalog, self.changes.lock))

        assert self.run(run())
        return warnings

    def go_round(self, rounds: IdleRounds) -> list[str]:
        deleted: list[str] = []

        async def run() -> None:
            deleted.extend(await rounds.go(self.sim.clock))

        assert self.run(run())
        return deleted

    def find(self, name: str) -> Entity:
        entity = self.gateway.directory.find(name)
        assert entity is not None
        return entity

    def check(self) -> None:
        """Stores, catalog and directory say the same, and every entity is whole."""
        held: dict[str, list[tuple[int, int, QueueDescription]]] = {}
        for store, listed in self.sim.listings():
            for each in listed:
                name, _ = split_partition(each.name)
                held.setdefault(name, []).append((store, each.entity_id, each.description))
        known = self.gateway.directory.names
        assert {name.lower() for name in held} == set(known) == set(self.catalog.entries)
        for name, parts in held.items():
            entity = known[name.lower()]
            assert len(parts) == len(entity.parts)
            assert {part[:2] for part in parts} == {(p.store, p.entity_id) for p in entity.parts}
            assert {part[2] for part in parts} == {entity.description}
            entry = self.catalog.entries[name.lower()]
            assert entry.state == THERE
            assert entry.stores == [part.store for part in entity.parts]
            assert entry.entity_ids == [part.entity_id for part in entity.parts]
            assert QueueDescription.from_json(entry.description).to_json() == entry.description


def bus_with(*names: str) -> Bus:
    bus = Bus()
    for name in names:
        if name == "news":
            bus.run(bus.changes.create("topic", name, TOPIC))
        elif name == SUBSCRIPTION:
            described = SubscriptionDescription()
            bus.run(bus.changes.create("subscription", name, described, default_rule()))
        else:
            bus.run(bus.changes.create("queue", name, QUEUE))
    bus.check()
    return bus


def changes(bus: Bus, what: str) -> Coroutine[object, object, object]:
    if what == "create":
        return bus.changes.create("queue", "orders", QUEUE)
    if what == "update":
        return bus.changes.update(bus.find("orders"), CHANGED)
    return bus.changes.delete(bus.find("news"))


@pytest.mark.parametrize("what", ["create", "update", "delete"])
def test_the_gateway_is_lost_at_any_step(what: str) -> None:
    """All of it or nothing, and what was told is true."""
    before = {"create": (), "update": ("orders",), "delete": ("news", SUBSCRIPTION)}[what]
    outcomes: set[QueueDescription | None] = set()
    is_done = False
    steps = 0
    while not is_done:
        bus = bus_with("other", *before)
        is_done = bus.run(changes(bus, what), steps)
        bus.lose_gateway(random.Random(steps), random.Random(steps).choice(list(CrashMode)))
        assert bus.restore() == []
        bus.check()
        assert bus.gateway.directory.find("other") is not None
        found = bus.gateway.directory.find("news" if what == "delete" else "orders")
        description = None if found is None else found.description
        if is_done:
            assert description == {"create": QUEUE, "update": CHANGED, "delete": None}[what]
        outcomes.add(description)
        steps += 1
    # That it is to be removed is written down before anything else.
    assert outcomes == {"create": {None, QUEUE}, "update": {QUEUE, CHANGED}, "delete": {None}}[what]
    assert steps > STORES


@pytest.mark.parametrize("what", ["create", "update", "delete"])
@pytest.mark.parametrize("store", range(STORES))
@pytest.mark.parametrize("seed", range(3))
def test_a_store_is_lost_at_any_step(what: str, store: int, seed: int) -> None:
    before = {"create": (), "update": ("orders",), "delete": ("news", SUBSCRIPTION)}[what]
    is_done = False
    steps = 0
    while not is_done:
        bus = bus_with("other", *before)
        rng = random.Random(f"{steps} {seed}")

        async def lose_one(bus: Bus = bus, steps: int = steps, rng: random.Random = rng) -> bool:
            task = asyncio.ensure_future(changes(bus, what))
            await asyncio.sleep(0)
            for _ in range(steps):
                bus.step()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            is_over = task.done()
            bus.crash(store, rng)
            while not task.done():
                bus.sim.settle_down()
                await asyncio.sleep(0)
            error = task.exception()
            assert error is None or isinstance(error, Unavailable)
            return is_over

        is_done = asyncio.run(lose_one())
        assert bus.restore() == []  # with the store down
        bus.sim.stores[store].start()
        assert bus.restore() == []
        bus.check()
        assert bus.gateway.directory.find("other") is not None
        steps += 1


def test_a_store_that_is_down_at_start_and_comes_late() -> None:
    bus = bus_with("orders", "news", SUBSCRIPTION)
    bus.run(bus.changes.create("queue", "plain", QueueDescription()))
    store = bus.find("plain").parts[0].store
    bus.sim.crash(store, random.Random(1))
    bus.lose_gateway(random.Random(1), CrashMode.KEEP)
    assert bus.restore() == []
    known = {name: entity.entity_id for name, entity in bus.gateway.directory.names.items()}
    assert set(known) == {"orders", "news", SUBSCRIPTION.lower(), "plain"}
    assert all(part.entity_id for part in bus.find("orders").parts)
    with pytest.raises(Unavailable):
        bus.run(bus.changes.delete(bus.find("orders")))
    bus.sim.stores[store].start()
    assert bus.restore() == []
    bus.check()
    assert {n: e.entity_id for n, e in bus.gateway.directory.names.items()} == known


def test_a_store_that_was_replaced_by_an_empty_one() -> None:
    bus = bus_with("orders", "news", SUBSCRIPTION)
    news = bus.find(SUBSCRIPTION)
    rules = [RuleDescription(name, FilterDescription(TRUE)) for name in ("first", "second")]
    for part in news.parts:
        for rule in rules:
            bus.sim.ask(part.store, AddRule(part.entity_id, rule))
        bus.sim.ask(part.store, RemoveRule(part.entity_id, "$Default"))
    orders = bus.find("orders")
    for part in orders.parts:
        bus.sim.ask(part.store, Send(part.entity_id, [keyed(b"|message")]))
    lost = bus.sim.stores[1]
    bus.sim.crash(1, random.Random(1))
    lost.disk = SimDisk()
    lost.start()
    warnings = bus.restore()
    bus.check()
    count = sum(part.store == 1 for part in orders.parts)
    assert len(warnings) == 3 * count
    bodies = bus.sim.contents(bus.find("orders"))
    expected = [0 if part.store == 1 else 1 for part in bus.find("orders").parts]
    assert [len(each) for each in bodies] == expected
    for part in bus.find(SUBSCRIPTION).parts:
        found = bus.sim.ask(part.store, ListRules(part.entity_id, 0, 10))
        assert isinstance(found, list)
        assert [rule.name for rule in found] == ["first", "second"]


def test_a_plain_subscription_of_a_lost_store_takes_everything() -> None:
    bus = Bus()
    bus.run(bus.changes.create("topic", "news", TopicDescription()))
    described = SubscriptionDescription()
    bus.run(bus.changes.create("subscription", SUBSCRIPTION, described, default_rule()))
    store = bus.find("news").parts[0].store
    bus.sim.crash(store, random.Random(1))
    bus.sim.stores[store].disk = SimDisk()
    bus.sim.stores[store].start()
    assert len(bus.restore()) == 2
    bus.check()
    (part,) = bus.find(SUBSCRIPTION).parts
    rules = bus.sim.ask(part.store, ListRules(part.entity_id, 0, 10))
    assert isinstance(rules, list)
    assert [rule.name for rule in rules] == ["$Default"]


def test_from_one_store_to_several_and_without_the_catalog_there_was() -> None:
    bus = bus_with("orders", "news", SUBSCRIPTION)
    bus.sim.forget_gateway()
    bus.disk = SimDisk()
    bus.start()
    assert bus.restore() == []
    bus.check()
    assert len(bus.find(SUBSCRIPTION).parts) == PARTITION_COUNT


@pytest.mark.parametrize("is_told", [True, False])
def test_a_plain_entity_that_its_broker_deletes_for_being_idle(is_told: bool) -> None:
    """The catalog is told, and finds out for itself where nobody was there to tell."""
    bus = Bus()
    topic = TopicDescription(auto_delete_on_idle_ms=300_000)
    bus.run(bus.changes.create("topic", "news", topic))
    described = SubscriptionDescription()
    bus.run(bus.changes.create("subscription", SUBSCRIPTION, described, default_rule()))
    (part,) = bus.find("news").parts
    bus.sim.ask(part.store, DeleteEntities([part.entity_id]))
    if is_told:
        bus.changes.forget(part.store, part.entity_id)
        bus.changes.forget(part.store, part.entity_id)
    else:
        assert bus.restore() == []
    bus.check()
    assert bus.catalog.entries == {}


def test_idle_partitioned_entities_are_deleted_by_the_gateway() -> None:
    bus = bus_with("other")
    patience_ms = 300_000
    news = replace(TOPIC, auto_delete_on_idle_ms=patience_ms)
    bus.run(bus.changes.create("topic", "news", news))
    patient = SubscriptionDescription(auto_delete_on_idle_ms=2 * patience_ms)
    bus.run(bus.changes.create("subscription", SUBSCRIPTION, patient, default_rule()))
    bus.run(
        bus.changes.create("queue", "orders", replace(QUEUE, auto_delete_on_idle_ms=patience_ms))
    )
    relayed: set[str] = set()
    rounds = IdleRounds(bus.gateway, bus.changes, lambda entity: entity.name in relayed)
    assert bus.go_round(rounds) == []
    bus.sim.clock.advance(patience_ms - 1)
    part = bus.find("orders").parts[5]
    bus.sim.ask(part.store, Send(part.entity_id, [keyed(b"|message")]))
    assert bus.go_round(rounds) == []
    bus.sim.clock.advance(1)
    relayed.add("news")
    assert bus.go_round(rounds) == []
    relayed.clear()
    bus.sim.clock.advance(patience_ms - 1)
    bus.sim.crash(1, random.Random(1))
    assert bus.go_round(rounds) == []  # nobody knows
    bus.sim.stores[1].start()
    assert bus.go_round(rounds) == []
    bus.sim.clock.advance(patience_ms)
    assert bus.go_round(rounds) == ["news", "orders"]  # the subscription goes with its topic
    assert set(bus.gateway.directory.names) == {"other"}
    bus.check()


def test_a_store_that_is_lost_while_all_is_put_right() -> None:
    """Nothing is written down before everything is done, and the next time does the rest."""
    steps = 0
    is_done = False
    while not is_done:
        bus = bus_with("orders")
        for lost in (0, 1):
            bus.sim.crash(lost, random.Random(1))
            bus.sim.stores[lost].disk = SimDisk()
            bus.sim.stores[lost].start()

        async def lose_one(bus: Bus = bus, steps: int = steps) -> bool:
            task = asyncio.ensure_future(restore(bus.gateway, bus.catalog, bus.changes.lock))
            await asyncio.sleep(0)
            for _ in range(steps):
                bus.step()
                await asyncio.sleep(0)
            is_over = task.done()
            bus.sim.crash(1, random.Random(steps), CrashMode.SUBSET)
            while not task.done():
                bus.sim.settle_down()
                await asyncio.sleep(0)
            error = task.exception()
            assert error is None or isinstance(error, ServiceError)
            return is_over

        is_done = asyncio.run(lose_one())
        bus.sim.stores[1].start()
        bus.restore()
        bus.check()
        steps += 1
    assert steps > PARTITION_COUNT // 2
