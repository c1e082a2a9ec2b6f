"""Topics and subscriptions managed by the official administration client."""

import datetime as dt
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import EntityStatus, SqlRuleFilter

from tests.interop.administration import FLAVOURS, Admin, answer_of, connect, everything, open_admin
from twinbus.testing.server import ServerProcess

pytestmark = [
    pytest.mark.proves("M-9", "M-11", "M-13"),
    pytest.mark.asyncio,
    pytest.mark.feature("entity.topics"),
]

NEVER = dt.timedelta(days=10_000_000)


@pytest_asyncio.fixture(params=FLAVOURS)
async def admin(request: pytest.FixtureRequest, server: ServerProcess) -> AsyncIterator[Admin]:
    async with open_admin(request.param, server) as client:
        yield client


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name for the test's own topic."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name).strip("-")


@pytest.mark.proves("M-9")
async def test_topic_create_get_update_delete(admin: Admin, topic: str) -> None:
    created = await admin.create_topic(
        topic,
        default_message_time_to_live=dt.timedelta(days=3),
        max_size_in_megabytes=2048,
        requires_duplicate_detection=True,
        duplicate_detection_history_time_window="PT5M",
        auto_delete_on_idle=dt.timedelta(hours=1),
        user_metadata='<é & "ü">',
    )
    got = await admin.get_topic(topic)
    assert everything(got) == everything(created)
    assert got.default_message_time_to_live == dt.timedelta(days=3)
    assert got.max_size_in_megabytes == 2048
    assert got.requires_duplicate_detection is True
    assert got.duplicate_detection_history_time_window == dt.timedelta(minutes=5)
    assert got.auto_delete_on_idle == dt.timedelta(hours=1)
    assert got.user_metadata == '<é & "ü">'
    assert got.status == EntityStatus.ACTIVE
    assert got.availability_status == "Available"
    got.status = EntityStatus.DISABLED
    got.user_metadata = "other"
    await admin.update_topic(got)
    assert everything(await admin.get_topic(topic)) == everything(got)
    await admin.update_topic(got, status="Active")
    assert (await admin.get_topic(topic)).status == EntityStatus.ACTIVE
    await admin.delete_topic(topic)
    with pytest.raises(ResourceNotFoundError):
        await admin.get_topic(topic)
    with pytest.raises(ResourceNotFoundError):
        await admin.delete_topic(topic)


@pytest.mark.proves("M-9")
async def test_subscription_create_get_update_delete(admin: Admin, topic: str) -> None:
    await admin.create_topic(topic)
    created = await admin.create_subscription(
        topic,
        "One.of-them",
        lock_duration=dt.timedelta(seconds=45),
        requires_session=True,
        default_message_time_to_live="P14D",
        dead_lettering_on_message_expiration=True,
        dead_lettering_on_filter_evaluation_exceptions=False,
        max_delivery_count=7,
        user_metadata="]]>",
        auto_delete_on_idle="PT5M",
    )
    got = await admin.get_subscription(topic, "One.of-them")
    assert everything(got) == everything(created)
    assert got.lock_duration == dt.timedelta(seconds=45)
    assert got.requires_session is True
    assert got.default_message_time_to_live == dt.timedelta(days=14)
    assert got.dead_lettering_on_message_expiration is True
    assert got.dead_lettering_on_filter_evaluation_exceptions is False
    assert got.max_delivery_count == 7
    assert got.user_metadata == "]]>"
    assert got.auto_delete_on_idle == dt.timedelta(minutes=5)
    got.lock_duration = dt.timedelta(minutes=2)
    got.status = EntityStatus.RECEIVE_DISABLED
    await admin.update_subscription(topic, got)
    assert everything(await admin.get_subscription(topic, "one.OF-them")) == {
        **everything(got),
        "name": "one.OF-them",
    }
    assert [s.name for s in await admin.list_subscriptions(topic)] == ["One.of-them"]
    await admin.delete_subscription(topic, "One.of-them")
    with pytest.raises(ResourceNotFoundError):
        await admin.get_subscription(topic, "One.of-them")
    with pytest.raises(ResourceNotFoundError):
        await admin.delete_subscription(topic, "One.of-them")


@pytest.mark.proves("M-13")
async def test_defaults_can_be_sent_back(admin: Admin, topic: str) -> None:
    made = await admin.create_topic(topic)
    assert made.max_size_in_megabytes == 1024
    assert made.enable_batched_operations is True
    assert made.support_ordering is True
    assert made.default_message_time_to_live > NEVER
    assert made.auto_delete_on_idle > NEVER
    subscription = await admin.create_subscription(topic, "s")
    assert subscription.lock_duration == dt.timedelta(minutes=1)
    assert subscription.max_delivery_count == 10
    assert subscription.dead_lettering_on_filter_evaluation_exceptions is True
    await admin.update_topic(made)
    await admin.update_subscription(topic, subscription)
    assert everything(await admin.get_topic(topic)) == everything(made)
    assert everything(await admin.get_subscription(topic, "s")) == everything(subscription)


@pytest.mark.proves("M-11")
async def test_missing_and_existing(admin: Admin, topic: str) -> None:
    with pytest.raises(ResourceNotFoundError):
        await admin.create_subscription(topic, "s")
    with pytest.raises(ResourceNotFoundError):
        await admin.list_subscriptions(topic)
    made = await admin.create_topic(topic)
    with pytest.raises(ResourceExistsError):
        await admin.create_topic(topic.upper())
    with pytest.raises(ResourceExistsError):
        await admin.create_queue(topic)
    subscription = await admin.create_subscription(topic, "s")
    with pytest.raises(ResourceExistsError) as caught:
        await admin.create_subscription(topic, "S")
    assert "SubCode=40900." in answer_of(caught.value)
    made.name = subscription.name = "missing"
    with pytest.raises(ResourceNotFoundError):
        await admin.update_topic(made)
    with pytest.raises(ResourceNotFoundError):
        await admin.update_subscription(topic, subscription)
    await admin.create_queue(f"{topic}-queue")
    with pytest.raises(ResourceNotFoundError):
        await admin.create_subscription(f"{topic}-queue", "s")


async def test_what_is_fixed_when_created(admin: Admin, topic: str) -> None:
    made = await admin.create_topic(topic)
    subscription = await admin.create_subscription(topic, "s")
    for change in (
        lambda: admin.update_topic(made, requires_duplicate_detection=True),
        lambda: admin.update_subscription(topic, subscription, requires_session=True),
    ):
        with pytest.raises(HttpResponseError) as caught:
            await change()  # type: ignore[no-untyped-call]  # Admin is one for both flavours
        assert caught.value.status_code == 400
        assert "SubCode=40000." in caught.value.message
    assert (await admin.get_topic(topic)).requires_duplicate_detection is False
    assert (await admin.get_subscription(topic, "s")).requires_session is False


@pytest.mark.feature("entity.names")
async def test_names(admin: Admin, topic: str) -> None:
    name = f"{topic}/Deep~er.one"
    await admin.create_topic(name)
    await admin.create_subscription(name, "s")
    await admin.create_rule(name, "s", "a rule & <more>", filter=SqlRuleFilter("a = 1"))
    assert name in [each.name for each in await admin.list_topics()]
    assert (await admin.get_rule(name, "s", "A RULE & <more>")).filter.sql_expression == "a = 1"
    rules = [each.name for each in await admin.list_rules(name, "s")]
    assert rules == ["$Default", "a rule & <more>"]
    for bad in ("x" * 51, "a/b", "a b", "a?", ".", ".."):
        with pytest.raises((HttpResponseError, ValueError)):
            await admin.create_subscription(name, bad)
    assert [each.name for each in await admin.list_subscriptions(name)] == ["s"]


@pytest.mark.proves("M-9")
async def test_runtime_properties(admin: Admin, topic: str, server: ServerProcess) -> None:
    started = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=2)
    await admin.create_topic(topic)
    await admin.create_subscription(topic, "all")
    await admin.create_subscription(topic, "none")
    await admin.delete_rule(topic, "none", "$Default")
    send(server, topic)
    runtime = await admin.get_topic_runtime_properties(topic)
    assert runtime.name == topic
    assert runtime.subscription_count == 2
    assert runtime.scheduled_message_count == 1
    assert runtime.size_in_bytes > 0
    assert started <= runtime.created_at_utc <= runtime.accessed_at_utc
    counted = await admin.get_subscription_runtime_properties(topic, "all")
    assert counted.active_message_count == 2
    assert counted.dead_letter_message_count == 1
    assert counted.total_message_count == 3
    assert counted.transfer_message_count == 0
    assert counted.transfer_dead_letter_message_count == 0
    assert started <= counted.created_at_utc <= counted.accessed_at_utc
    empty = await admin.get_subscription_runtime_properties(topic, "none")
    assert empty.total_message_count == 0
    listed = await admin.list_subscriptions_runtime_properties(topic)
    assert {each.name: each.total_message_count for each in listed} == {"all": 3, "none": 0}
    topics = {each.name: each for each in await admin.list_topics_runtime_properties()}
    assert topics[topic].subscription_count == 2


def send(server: ServerProcess, topic: str) -> None:
    """Three messages to the topic, one of which is dead-lettered, and one for tomorrow."""
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_topic_sender(topic) as sender,
        client.get_subscription_receiver(topic, "all") as receiver,
    ):
        sender.send_messages([ServiceBusMessage(b"x") for _ in range(3)])
        tomorrow = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
        sender.schedule_messages(ServiceBusMessage(b"y"), tomorrow)
        [message] = receiver.receive_messages(max_message_count=1, max_wait_time=5)
        receiver.dead_letter_message(message, reason="a test")


@pytest.mark.proves("M-11")
async def test_lists_in_pages(server: ServerProcess) -> None:  # more than the 100 of a page
    names = [f"s{number:03d}" for number in range(105)]
    with connect(server) as admin:
        admin.create_topic("paged")
        for name in names:
            admin.create_subscription("paged", name)
        assert [each.name for each in admin.list_subscriptions("paged")] == names
        small = admin.list_subscriptions_runtime_properties("paged", max_page_size=7)
        assert [each.name for each in small] == names
        for name in names[:101]:
            admin.create_rule("paged", "s000", name, filter=SqlRuleFilter("a = 1"))
        rules = [each.name for each in admin.list_rules("paged", "s000")]
        assert rules == ["$Default", *names[:101]]
        topics = [f"paged-{number:03d}" for number in range(101)]
        for name in topics:
            admin.create_topic(name)
        assert [each.name for each in admin.list_topics() if "paged-" in each.name] == topics
        queues = {each.name for each in admin.list_queues()}
        assert not queues & set(topics)


async def test_topic_takes_its_subscriptions_along(admin: Admin, topic: str) -> None:
    await admin.create_topic(topic)
    await admin.create_subscription(topic, "s")
    await admin.create_rule(topic, "s", "r", filter=SqlRuleFilter("a = 1"))
    await admin.delete_topic(topic)
    await admin.create_topic(topic)
    assert await admin.list_subscriptions(topic) == []
    await admin.create_subscription(topic, "s")
    assert [rule.name for rule in await admin.list_rules(topic, "s")] == ["$Default"]


async def test_topic_asked_for_as_a_queue(server: ServerProcess) -> None:
    """Both have one address; what the SDK makes of the other kind is its own affair."""
    with connect(server) as admin:
        admin.create_topic("not-a-queue")
        wrong: Any = admin.get_queue
        with pytest.raises((ResourceNotFoundError, AttributeError)):
            wrong("not-a-queue")
