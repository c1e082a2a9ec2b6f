"""The page's document: what is in it, for whom, how much of it, and when it is worth showing."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.server.shown import Shown
from twinbus.entities.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.gateway.faults.faults import Wanted
from twinbus.links.store_link import DOWN
from twinbus.metered import Metered

pytestmark = pytest.mark.asyncio


def paths(document: dict[str, Any]) -> list[str]:
    return [each["path"] for each in document["entities"]]


def send(shown: Shown, count: int) -> None:
    """To the topic."""
    topic = shown.harness.store.entities[shown.first.find_topic("events").entity_id]
    shown.harness.send(topic, *[b"x" * 50] * count)
    shown.harness.run()


async def scene() -> Shown:
    shown = Shown()
    first = shown.first
    await shown.run(first.create_queue("orders", QueueDescription(requires_session=True)))
    await shown.run(first.create_topic("events", TopicDescription()))
    await shown.run(first.create_queue("events-2", QueueDescription()))
    for name in ("b", "a"):
        await shown.run(first.create_subscription("events", name, SubscriptionDescription(), None))
    await shown.run(shown.other.create_queue("news", QueueDescription()))
    return shown


async def test_entities_in_order_with_their_counts() -> None:
    shown = await scene()
    send(shown, 3)
    document = await shown.document(shown.first)
    assert paths(document) == [
        "events",
        "events/Subscriptions/a",
        "events/Subscriptions/b",
        "events-2",
        "orders",
    ]
    topic, subscription = document["entities"][:2]
    assert (topic["kind"], topic["subscriptions"], topic["rules"]) == ("topic", 2, 2)
    assert (subscription["name"], subscription["topic"]) == ("a", "events")
    assert (subscription["rules"], subscription["counts"]["active"]) == (1, 3)
    assert subscription["rates"]["incoming"] is None
    assert document["entities"][4]["requires_session"]
    totals = document["totals"]
    assert (totals["queues"], totals["topics"], totals["subscriptions"]) == (2, 1, 2)
    assert totals["active"] == 6
    assert totals["size_bytes"] == topic["size_bytes"] > 0


async def test_what_the_deployment_survives() -> None:
    """Two brokers and two stores, on one disk: as the scene has it."""
    shown = await scene()
    document = await shown.document(shown.first)
    told = {each["failure"]: each["verdict"] for each in document["survives"]}
    assert (told["broker lost"], told["disk failed"]) == ("goes on", "waits")
    assert all(each["what"] for each in document["survives"])


async def test_a_part_of_them() -> None:
    shown = await scene()
    document = await shown.document(shown.first, prefix="events", skip=1, top=2)
    assert paths(document) == ["events/Subscriptions/a", "events/Subscriptions/b"]
    assert (document["entities_matching"], document["entities_skipped"]) == (4, 1)
    assert document["is_truncated"]
    assert document["totals"]["queues"] == 2
    beyond = await shown.document(shown.first, skip=100)
    assert (beyond["entities"], beyond["is_truncated"]) == ([], False)


async def test_a_namespace_sees_its_own() -> None:
    shown = await scene()
    shown.faults.add(Wanted("throttle", "first", "orders"))
    own = await shown.document(shown.other, sees_all=False)
    assert paths(own) == ["news"]
    assert own["server"]["namespaces"] == ["other"]
    assert own["faults"] == []
    everything = await shown.document(shown.other)
    assert everything["server"]["namespaces"] == ["first", "other"]
    assert everything["faults"][0]["kind"] == "throttle"
    hurt = (await shown.document(shown.first))["entities"][4]
    assert sorted(hurt["cannot"]) == ["manage", "receive", "send"]
    assert hurt["cannot"]["send"] == ["fault 1 (throttle)"]


async def test_a_partition_that_a_fault_has_taken_is_down() -> None:
    shown = Shown()
    wide = QueueDescription(enable_partitioning=True)
    await shown.run(shown.first.create_queue("wide", wide))
    shown.faults.add(Wanted("partition-down", "first", "wide", (3,)))
    document = await shown.document(shown.first)
    partitions = document["entities"][0]["partitions"]
    assert [each["partition"] for each in partitions if each["health"] == "down"] == [3]
    assert len(partitions) == 16


async def test_backlog_queues_are_known_by_their_names() -> None:
    shown = Shown()
    for name in (
        "main/X-ServiceBus-Transfer/10",
        "main/x-servicebus-transfer/9",
        "main/x-servicebus-transfer/x",
        "x-servicebus-transfer/1",
    ):
        await shown.run(shown.first.create_queue(name, QueueDescription()))
    document = await shown.document(shown.first)
    assert [(each["primary"], each["index"]) for each in document["backlog"]] == [
        ("main", 9),
        ("main", 10),
    ]
    assert [each["backlog_of"] for each in document["entities"]] == ["main", "main", None, None]


async def test_rates_are_of_the_last_seconds() -> None:
    shown = await scene()
    metrics = shown.first.find_queue("orders").metrics
    metrics.successful_requests = 1
    for _ in range(4):  # 20 in 2 s, then nothing for 6 s
        metrics.incoming_messages = 20
        shown.harness.clock.advance(2_000)
        document = await shown.document(shown.first, prefix="orders")
        shown.rates.sample()
        if metrics.outgoing_messages == 0:
            assert document["entities"][0]["rates"]["incoming"] == 10.0
            assert document["totals"]["rates"]["incoming"] == 10.0
        metrics.outgoing_messages += 1
    assert document["entities"][0]["rates"]["incoming"] == 0.0
    assert document["entities"][0]["rates"]["outgoing"] == pytest.approx(0.5, abs=0.01)


async def test_cost_is_of_this_month_and_namespace() -> None:
    shown = await scene()
    now_ms = shown.harness.clock.now().utc_ms
    entity = "main/x-servicebus-transfer/0"
    shown.metered = [
        Metered(now_ms, now_ms, "First", "orders", "send", 3, 4),
        Metered(now_ms, now_ms, "first", entity, "receive", 2, 2, 1),
        Metered(now_ms, now_ms, "other", "news", "send", 7, 7),
        Metered(now_ms - 40 * 86_400_000, now_ms, "first", "orders", "send", 9, 9),
    ]
    cost = (await shown.document(shown.first))["cost"]
    assert cost["operations"] == [
        {"kind": "send", "operations": 3, "units": 4, "empty": 0},
        {"kind": "receive", "operations": 2, "units": 2, "empty": 1},
    ]
    assert (cost["units"], cost["pairing_units"]) == (6, 2)
    assert (cost["total"], cost["currency"], cost["is_complete"]) == ("10.00", "USD", True)


async def test_a_document_is_shown_again_when_something_has_changed() -> None:
    shown = await scene()
    view = shown.view(shown.first)
    before = await shown.text(view)
    shown.harness.clock.advance(1_000)
    again = await shown.text(view)
    assert again.mark == before.mark
    assert again.data != before.data  # the time goes on
    changes: list[Callable[[], object]] = [
        lambda: shown.faults.add(Wanted("throttle", "first", "orders")),
        lambda: shown.pairs.put("first", "id", {"primary": "a"}),
        lambda: setattr(shown.source, "health", DOWN),
        lambda: setattr(shown.source.broker, "restarts", 1),
        lambda: send(shown, 1),
    ]
    marks = {before.mark}
    for change in changes:
        change()
        marks.add((await shown.text(view)).mark)
    assert len(marks) == 1 + len(changes)
