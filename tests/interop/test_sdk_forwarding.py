"""Forwarding with the official SDK: chains, dead letters, and the transfer dead-letter queue.

The last test kills the server, so this module has one of its own.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import CorrelationRuleFilter, RuleProperties

from tests.interop.administration import Admin, open_admin
from tests.interop.sdk import (
    Client,
    async_only,
    bodies,
    body,
    complete_all,
    peek_all,
    receive_exactly,
    receive_one,
    sync_only,
)
from twinbus.limits import FORWARD_HOPS_MAX
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def admin(server: ServerProcess) -> AsyncIterator[Admin]:
    async with open_admin("async, no TLS", server) as opened:
        yield opened


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """What the names of the test's own entities begin with."""
    return "".join(each if each.isalnum() else "-" for each in request.node.name).strip("-")


async def create_chain(admin: Admin, name: str, length: int) -> list[str]:
    """Queues of which each forwards to the next."""
    names = [f"{name}-{index}" for index in range(length + 1)]
    await admin.create_queue(names[-1])
    for index in reversed(range(length)):
        await admin.create_queue(names[index], forward_to=names[index + 1])
    return names


@pytest.mark.proves("M-8")
@pytest.mark.feature("forward.queue")
async def test_a_message_goes_along_a_chain(client: Client, admin: Admin, name: str) -> None:
    names = await create_chain(admin, name, FORWARD_HOPS_MAX)
    message = ServiceBusMessage(
        b"far", message_id="mine", session_id="s", application_properties={"color": "red"}
    )
    sender, receiver = client.sender(names[0]), client.receiver(names[-1])
    async with sender, receiver:
        await sender.send_messages(message)
        arrived = await receive_one(receiver)
        assert (body(arrived), arrived.message_id, arrived.session_id) == (b"far", "mine", "s")
        assert arrived.application_properties == {b"color": b"red"}
        assert arrived.delivery_count == 0
        assert arrived.dead_letter_source is None
        await receiver.complete_message(arrived)
    counts = await admin.get_queue_runtime_properties(names[0])
    assert counts.total_message_count == 0


@pytest.mark.proves("M-8")
@pytest.mark.feature("forward.transfer-dead-letter")
@async_only
async def test_one_hop_too_many(client: Client, admin: Admin, name: str) -> None:
    names = await create_chain(admin, name, FORWARD_HOPS_MAX + 1)
    await client.sender(names[0]).send_messages(ServiceBusMessage(b"too far"))
    stuck = client.receiver(
        names[FORWARD_HOPS_MAX], sub_queue=ServiceBusSubQueue.TRANSFER_DEAD_LETTER
    )
    async with stuck:
        message = await receive_one(stuck)
        assert body(message) == b"too far"
        assert message.dead_letter_reason == "MaxTransferHopCountExceeded"
        counts = await admin.get_queue_runtime_properties(names[FORWARD_HOPS_MAX])
        assert counts.transfer_dead_letter_message_count == 1
        await stuck.complete_message(message)
    assert await peek_all(client.receiver(names[-1])) == []


@pytest.mark.proves("M-8")
@pytest.mark.feature("forward.transfer-dead-letter")
@async_only
async def test_a_target_that_is_gone(client: Client, admin: Admin, name: str) -> None:
    source, target = await create_chain(admin, name, 1)
    await admin.delete_queue(target)
    await client.sender(source).send_messages(ServiceBusMessage(b"homeless"))
    stuck = client.receiver(source, sub_queue=ServiceBusSubQueue.TRANSFER_DEAD_LETTER)
    message = await receive_one(stuck)
    assert (body(message), message.dead_letter_reason) == (b"homeless", "EntityNotFound")
    assert target in str(message.dead_letter_error_description)


@pytest.mark.proves("M-8")
@pytest.mark.feature("forward.dead-letter")
@sync_only
async def test_dead_letters_tell_where_they_died(client: Client, admin: Admin, name: str) -> None:
    await admin.create_queue(f"{name}-graves")
    await admin.create_queue(name, forward_dead_lettered_messages_to=f"{name}-graves")
    sender, receiver = client.sender(name), client.receiver(name)
    graves = client.receiver(f"{name}-graves")
    async with sender, receiver, graves:
        await sender.send_messages(ServiceBusMessage(b"bad"))
        await receiver.dead_letter_message(
            await receive_one(receiver), reason="broken", error_description="beyond repair"
        )
        message = await receive_one(graves)
        assert body(message) == b"bad"
        assert message.dead_letter_source == name
        assert message.dead_letter_reason == "broken"
        assert message.dead_letter_error_description == "beyond repair"
        assert message.enqueued_sequence_number == 1
        await graves.complete_message(message)


@pytest.mark.proves("M-8")
@pytest.mark.feature("forward.queue")
@async_only
async def test_a_subscription_forwards(client: Client, admin: Admin, name: str) -> None:
    await admin.create_queue(f"{name}-queue")
    await admin.create_topic(name)
    await admin.create_subscription(name, "red", forward_to=f"{name}-queue")
    await admin.delete_rule(name, "red", "$Default")
    chosen = CorrelationRuleFilter(properties={"color": "red"})
    await admin.create_rule(name, "red", "red", filter=chosen)
    async with client.topic_sender(name) as sender:
        for color in ("red", "blue", "red"):
            await sender.send_messages(
                ServiceBusMessage(color, application_properties={"color": color})
            )
    async with client.receiver(f"{name}-queue") as receiver:
        messages = await receive_exactly(receiver, 2)
        assert bodies(messages) == [b"red", b"red"]
        assert [each.enqueued_sequence_number for each in messages] == [1, 3]
        await complete_all(receiver, messages)


@pytest.mark.proves("M-8")
@pytest.mark.feature("forward.queue")
@async_only
async def test_nobody_receives_from_a_source(client: Client, admin: Admin, name: str) -> None:
    source, _ = await create_chain(admin, name, 1)
    with pytest.raises(ServiceBusError, match="forwards"):
        await client.receiver(source).receive_messages()


@pytest.mark.proves("M-1", "M-6", "M-8")
@pytest.mark.feature("forward.queue", "topic.fan-out", "ours.restart")
@async_only
async def test_everything_is_there_after_the_server_was_killed(
    server: ServerProcess, client: Client, admin: Admin, name: str
) -> None:
    await admin.create_queue(f"{name}-queue")
    await admin.create_topic(name)
    await admin.create_subscription(name, "moved", forward_to=f"{name}-queue")
    await admin.create_subscription(name, "kept")
    await admin.create_rule(name, "kept", "more", filter=CorrelationRuleFilter(label="x"))
    sender = client.topic_sender(name)
    async with sender:
        await sender.send_messages([ServiceBusMessage(f"{index}") for index in range(100)])
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.restart)
        await sender.send_messages(ServiceBusMessage(b"after"))
    expected = [*(b"%d" % index for index in range(100)), b"after"]
    rules: list[RuleProperties] = await admin.list_rules(name, "kept")
    assert [rule.name for rule in rules] == ["$Default", "more"]
    receivers: list[Any] = [
        client.subscription_receiver(name, "kept"),
        client.receiver(f"{name}-queue"),
    ]
    for receiver in receivers:
        async with receiver:
            messages = await receive_exactly(receiver, 101)
            assert bodies(messages) == expected
            assert messages[-1].enqueued_sequence_number == 101
