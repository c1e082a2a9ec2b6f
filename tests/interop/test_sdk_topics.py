"""Topics with the official SDK: fan-out, every kind of filter, actions, schedules, dead letters."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusError,
)
from azure.servicebus.management import (
    CorrelationRuleFilter,
    EntityStatus,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
)

from tests.interop.administration import Admin, open_admin
from tests.interop.sdk import (
    Client,
    async_only,
    bodies,
    body,
    complete_all,
    nothing_comes,
    peek_all,
    receive_exactly,
    receive_one,
    session_of,
    sync_only,
)
from twinbus.amqp.types import Int
from twinbus.client.connection import BusConnection
from twinbus.client.requests import ManagementNode
from twinbus.message.plain import decode_message
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def admin(server: ServerProcess) -> AsyncIterator[Admin]:
    async with open_admin("async, no TLS", server) as opened:
        yield opened


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name for the test's own topic."""
    return "".join(each if each.isalnum() else "-" for each in request.node.name).strip("-")


async def subscribe(admin: Admin, topic: str, name: str, *filters: Any, **settings: Any) -> None:
    """A subscription with these filters instead of the default rule."""
    await admin.create_subscription(topic, name, **settings)
    if filters:
        await admin.delete_rule(topic, name, "$Default")
    for index, each in enumerate(filters):
        chosen, action = each if isinstance(each, tuple) else (each, None)
        await admin.create_rule(topic, name, f"rule{index}", filter=chosen, action=action)


def colored(text: str, color: str, **options: Any) -> ServiceBusMessage:
    return ServiceBusMessage(text, application_properties={"color": color}, **options)


@pytest.mark.proves("M-1", "M-6")
@pytest.mark.feature("topic.fan-out")
async def test_every_subscription_gets_every_message(
    client: Client, admin: Admin, topic: str
) -> None:
    await admin.create_topic(topic)
    for name in ("first", "second"):
        await admin.create_subscription(topic, name)
    sender = client.topic_sender(topic)
    receivers = [client.subscription_receiver(topic, name) for name in ("first", "second")]
    async with sender, receivers[0], receivers[1]:
        await sender.send_messages([ServiceBusMessage(b"one"), ServiceBusMessage(b"two")])
        for receiver in receivers:
            messages = await receive_exactly(receiver, 2)
            assert bodies(messages) == [b"one", b"two"]
            assert [each.enqueued_sequence_number for each in messages] == [1, 2]
            await complete_all(receiver, messages)
            assert await peek_all(receiver) == []
    counts = await admin.get_topic_runtime_properties(topic)
    assert counts.subscription_count == 2


@pytest.mark.proves("M-6")
@pytest.mark.feature("topic.fan-out")
@async_only
async def test_the_topics_number_stays_with_a_message(
    client: Client, admin: Admin, topic: str
) -> None:
    await admin.create_topic(topic)
    sender = client.topic_sender(topic)
    async with sender:
        await sender.send_messages(ServiceBusMessage(b"for nobody"))
        await admin.create_subscription(topic, "late")
        await sender.send_messages(ServiceBusMessage(b"two"))
        async with client.subscription_receiver(topic, "late") as receiver:
            message = await receive_one(receiver)
            assert (message.sequence_number, message.enqueued_sequence_number) == (1, 2)
            await receiver.abandon_message(message)
            [peeked] = await peek_all(receiver)
            assert peeked.enqueued_sequence_number == 2


@pytest.mark.proves("M-6")
@pytest.mark.feature("topic.sql-filter", "topic.correlation-filter")
@async_only
async def test_filters_choose(client: Client, admin: Admin, topic: str) -> None:
    await admin.create_topic(topic)
    chosen: dict[str, list[Any]] = {
        "sql": [SqlRuleFilter("color = 'red' AND sys.Label LIKE 'u%'")],
        "parameters": [SqlRuleFilter("color = @wanted", parameters={"@wanted": "blue"})],
        "correlation": [CorrelationRuleFilter(label="urgent", properties={"color": "red"})],
        "either": [CorrelationRuleFilter(correlation_id="7"), SqlRuleFilter("color = 'blue'")],
        "nothing": [FalseRuleFilter()],
        "everything": [],
    }
    await asyncio.gather(*(subscribe(admin, topic, name, *each) for name, each in chosen.items()))
    async with client.topic_sender(topic) as sender:
        await sender.send_messages(
            [
                colored("red urgent", "red", subject="urgent"),
                colored("red calm", "red", subject="calm", correlation_id="7"),
                colored("blue", "blue", subject="urgent"),
                ServiceBusMessage("plain"),
            ]
        )
    expected = {
        "sql": [b"red urgent"],
        "parameters": [b"blue"],
        "correlation": [b"red urgent"],
        "either": [b"red calm", b"blue"],
        "nothing": [],
        "everything": [b"red urgent", b"red calm", b"blue", b"plain"],
    }
    receivers = {name: client.subscription_receiver(topic, name) for name in expected}
    found = await asyncio.gather(*(peek_all(each) for each in receivers.values()))
    assert dict(zip(receivers, map(bodies, found), strict=True)) == expected


@pytest.mark.proves("M-6")
@pytest.mark.feature("topic.action")
@async_only
async def test_actions_change_their_copy_only(client: Client, admin: Admin, topic: str) -> None:
    await admin.create_topic(topic)
    action = SqlRuleAction("SET priority = 'high'; SET sys.Label = 'changed'; REMOVE color")
    await subscribe(admin, topic, "both", SqlRuleFilter("1 = 1"), (SqlRuleFilter("1 = 1"), action))
    await subscribe(admin, topic, "plain")
    async with client.topic_sender(topic) as sender:
        await sender.send_messages(colored("text", "red", subject="first"))
    async with client.subscription_receiver(topic, "both") as receiver:
        plain, changed = await receive_exactly(receiver, 2)
        assert bodies([plain, changed]) == [b"text", b"text"]
        assert (plain.subject, plain.application_properties) == ("first", {b"color": b"red"})
        assert changed.subject == "changed"
        assert changed.application_properties == {b"priority": b"high"}
    [other] = await peek_all(client.subscription_receiver(topic, "plain"))
    assert other.subject == "first"


@pytest.mark.proves("M-6")
@pytest.mark.feature("topic.filter-error")
@async_only
async def test_a_failing_filter_dead_letters(client: Client, admin: Admin, topic: str) -> None:
    await admin.create_topic(topic)
    await subscribe(admin, topic, "strict", SqlRuleFilter("10 / amount > 1"))
    await subscribe(
        admin,
        topic,
        "lenient",
        SqlRuleFilter("10 / amount > 1"),
        dead_lettering_on_filter_evaluation_exceptions=False,
    )
    async with client.topic_sender(topic) as sender:
        for amount in (0, 5):
            properties: Any = {"amount": amount}
            await sender.send_messages(
                ServiceBusMessage(f"{amount}", application_properties=properties)
            )
    for name in ("strict", "lenient"):
        assert bodies(await peek_all(client.subscription_receiver(topic, name))) == [b"5"]
    dead = client.subscription_receiver(topic, "strict", sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    async with dead:
        message = await receive_one(dead)
        assert body(message) == b"0"
        assert message.dead_letter_reason == "FilterException"
        assert message.dead_letter_error_description
        await dead.complete_message(message)


@pytest.mark.proves("M-3", "M-6")
@pytest.mark.feature("topic.schedule")
@sync_only
async def test_scheduled_messages_wait_in_the_topic(
    client: Client, admin: Admin, topic: str
) -> None:
    await admin.create_topic(topic)
    sender = client.topic_sender(topic)
    async with sender:
        due = datetime.now(UTC) + timedelta(seconds=1.5)
        numbers = await sender.schedule_messages(
            [ServiceBusMessage(b"later"), ServiceBusMessage(b"never")], due
        )
        await sender.cancel_scheduled_messages(numbers[1])
        await admin.create_subscription(topic, "made-later")
        counts = await admin.get_topic_runtime_properties(topic)
        assert counts.scheduled_message_count == 1
        receiver = client.subscription_receiver(topic, "made-later")
        async with receiver:
            assert await nothing_comes(receiver)
            message = await receive_one(receiver)
            assert body(message) == b"later"
            assert message.state is ServiceBusMessageState.ACTIVE
            assert message.enqueued_time_utc >= due - timedelta(milliseconds=1)
            await receiver.complete_message(message)


@pytest.mark.proves("M-3")
@pytest.mark.feature("receive.expiry")
@async_only
async def test_the_shortest_life_counts(client: Client, admin: Admin, topic: str) -> None:
    await admin.create_topic(topic, default_message_time_to_live="PT1H")
    await admin.create_subscription(
        topic,
        "short",
        default_message_time_to_live="PT1S",
        dead_lettering_on_message_expiration=True,
    )
    await admin.create_subscription(topic, "long", default_message_time_to_live="PT5H")
    async with client.topic_sender(topic) as sender:
        await sender.send_messages(ServiceBusMessage(b"one"))
    dead = client.subscription_receiver(topic, "short", sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    message = await receive_one(dead)
    assert message.dead_letter_reason == "TTLExpiredException"
    [kept] = await peek_all(client.subscription_receiver(topic, "long"))
    assert kept.time_to_live == timedelta(hours=1)


@pytest.mark.proves("M-4", "M-6")
@pytest.mark.feature("topic.fan-out")
@async_only
async def test_sessions_of_a_subscription(client: Client, admin: Admin, topic: str) -> None:
    await admin.create_topic(topic)
    await admin.create_subscription(topic, "keyed", requires_session=True)
    async with client.topic_sender(topic) as sender:
        await sender.send_messages(
            [
                ServiceBusMessage(b"a1", session_id="a"),
                ServiceBusMessage(b"nobody's"),
                ServiceBusMessage(b"a2", session_id="a"),
            ]
        )
    session = client.subscription_receiver(topic, "keyed", session_id=NEXT_AVAILABLE_SESSION)
    async with session:
        messages = await receive_exactly(session, 2)
        assert bodies(messages) == [b"a1", b"a2"]
        await complete_all(session, messages)
    dead = client.subscription_receiver(topic, "keyed", sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    message = await receive_one(dead)
    assert (body(message), message.dead_letter_reason) == (b"nobody's", "Session id is null.")


@pytest.mark.proves("M-4", "M-6")
@pytest.mark.feature("session.list", "session.state", "session.release")
@sync_only
async def test_sessions_of_a_subscription_are_listed_left_and_taken_again(
    client: Client, admin: Admin, topic: str
) -> None:
    await admin.create_topic(topic)
    await admin.create_subscription(topic, "keyed", requires_session=True)
    async with client.topic_sender(topic) as sender:
        await sender.send_messages(
            [ServiceBusMessage(each, session_id=each[:1]) for each in ("a1", "b1", "a2")]
        )

    def listed() -> list[str]:
        return list(client.sdk.list_subscription_sessions(topic, "keyed"))

    assert await asyncio.to_thread(listed) == ["a", "b"]
    for expected, state in ((b"a1", None), (b"a2", b"a1")):
        async with client.subscription_receiver(topic, "keyed", session_id="a") as receiver:
            assert await session_of(receiver).get_state() == state
            message = await receive_one(receiver)
            assert (body(message), message.delivery_count) == (expected, 0)
            await receiver.complete_message(message)
            await session_of(receiver).set_state(expected)


@pytest.mark.proves("M-3", "M-6")
@pytest.mark.feature("topic.schedule", "receive.peek")
@sync_only
async def test_scheduled_messages_of_a_topic_are_peeked_by_request(
    client: Client, admin: Admin, topic: str, server: ServerProcess
) -> None:
    await admin.create_topic(topic)
    await admin.create_subscription(topic, "one")
    due = datetime.now(UTC) + timedelta(hours=1)
    async with client.topic_sender(topic) as sender:
        texts = [ServiceBusMessage(b"%d" % number) for number in range(3)]
        numbers = await sender.schedule_messages(texts, due)
        await sender.send_messages(ServiceBusMessage(b"now"))
    async with await BusConnection.open(server.connection_string) as connection:
        node = await ManagementNode.open(connection, topic)
        peek: dict[object, object] = {"from-sequence-number": numbers[1], "message-count": Int(10)}
        answer = await node.request("com.microsoft:peek-message", peek)
    entries = answer["messages"]
    assert isinstance(entries, list)
    peeked = [decode_message(entry["message"]) for entry in entries]
    assert [each.body for each in peeked] == [b"1", b"2"]
    assert [each.annotations["x-opt-sequence-number"] for each in peeked] == numbers[1:]
    assert [each.annotations["x-opt-message-state"] for each in peeked] == [2, 2]
    assert bodies(await peek_all(client.subscription_receiver(topic, "one"))) == [b"now"]


@pytest.mark.proves("M-9")
@pytest.mark.feature("entity.topics", "entity.status")
@async_only
async def test_what_is_refused(new_client: Callable[..., Client], admin: Admin, topic: str) -> None:
    client = new_client(retry_total=0)
    await admin.create_topic(topic)
    await admin.create_subscription(topic, "one")
    with pytest.raises(MessagingEntityNotFoundError):
        await client.subscription_receiver(topic, "missing").receive_messages()
    with pytest.raises(ServiceBusError, match="subscriptions"):
        await client.receiver(topic).receive_messages()
    with pytest.raises(ServiceBusError, match="topic"):
        await client.sender(f"{topic}/Subscriptions/one").send_messages(ServiceBusMessage(b"x"))
    properties = await admin.get_topic(topic)
    properties.status = EntityStatus.SEND_DISABLED
    await admin.update_topic(properties)
    with pytest.raises(MessagingEntityDisabledError):
        await client.topic_sender(topic).send_messages(ServiceBusMessage(b"x"))


@pytest.mark.proves("M-9")
@pytest.mark.feature("entity.topics")
@async_only
async def test_deleting_a_topic_ends_its_receivers(
    client: Client, admin: Admin, topic: str
) -> None:
    await admin.create_topic(topic)
    await admin.create_subscription(topic, "one")
    receiver = client.subscription_receiver(topic, "one")
    async with receiver:
        assert await nothing_comes(receiver)
        await admin.delete_topic(topic)
        with pytest.raises(MessagingEntityNotFoundError):
            await receiver.receive_messages()
