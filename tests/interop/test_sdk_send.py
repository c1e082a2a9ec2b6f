"""Sending with the official SDK: one message, lists, batches, and the size limits."""

import asyncio
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError

from tests.interop.sdk import (
    Client,
    bodies,
    body,
    complete_all,
    peek_all,
    receive_exactly,
    receive_one,
)
from twinbus.limits import BATCH_SIZE_BYTES_MAX, MESSAGE_SIZE_BYTES_MAX

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.proves("M-1", "M-13")
@pytest.mark.feature("send.batch")
async def test_single_message(sender: Any, receiver: Any) -> None:
    await sender.send_messages(ServiceBusMessage(b"hello"))
    message = await receive_one(receiver)
    assert body(message) == b"hello"
    assert message.sequence_number == 1
    assert message.delivery_count == 0
    await receiver.complete_message(message)
    assert await peek_all(receiver) == []


@pytest.mark.proves("M-1")
@pytest.mark.feature("send.batch")
async def test_list_arrives_in_order(sender: Any, receiver: Any) -> None:
    texts = [b"%d" % number for number in range(50)]
    await sender.send_messages([ServiceBusMessage(text) for text in texts])
    messages = await receive_exactly(receiver, 50)
    assert bodies(messages) == texts
    assert [message.sequence_number for message in messages] == list(range(1, 51))
    await complete_all(receiver, messages)


@pytest.mark.feature("send.batch")
async def test_empty_list_sends_nothing(sender: Any, receiver: Any) -> None:
    await sender.send_messages([])
    assert await peek_all(receiver) == []


@pytest.mark.feature("send.batch")
async def test_messages_of_a_batch_keep_their_own_properties(sender: Any, receiver: Any) -> None:
    batch = await sender.create_message_batch()
    for number in range(3):
        batch.add_message(
            ServiceBusMessage(
                b"%d" % number,
                message_id=f"id-{number}",
                subject=f"subject-{number}",
                application_properties={"number": number},
            )
        )
    await sender.send_messages(batch)
    messages = await peek_all(receiver)
    assert [message.message_id for message in messages] == ["id-0", "id-1", "id-2"]
    assert [message.subject for message in messages] == ["subject-0", "subject-1", "subject-2"]
    assert [message.application_properties for message in messages] == [
        {b"number": number} for number in range(3)
    ]


@pytest.mark.proves("M-1")
@pytest.mark.feature("send.batch")
async def test_batch_filled_to_its_limit(sender: Any, receiver: Any) -> None:
    batch = await sender.create_message_batch()
    assert batch.max_size_in_bytes == BATCH_SIZE_BYTES_MAX
    message = ServiceBusMessage(b"x" * 20_000)
    while batch.size_in_bytes < BATCH_SIZE_BYTES_MAX - 21_000:
        batch.add_message(message)
    batch.add_message(ServiceBusMessage(b"x" * (BATCH_SIZE_BYTES_MAX - batch.size_in_bytes - 200)))
    with pytest.raises(MessageSizeExceededError):
        batch.add_message(message)
    count = len(batch)
    assert count > 50
    await sender.send_messages(batch)
    assert len(await peek_all(receiver)) == count


@pytest.mark.feature("send.batch")
async def test_batch_above_the_limit_is_refused_by_the_client(sender: Any) -> None:
    with pytest.raises(ValueError, match="too large"):
        await sender.create_message_batch(max_size_in_bytes=BATCH_SIZE_BYTES_MAX + 1)


@pytest.mark.feature("send.size")
async def test_largest_message_passes_and_a_larger_one_does_not(sender: Any, receiver: Any) -> None:
    largest = b"\xa5" * (MESSAGE_SIZE_BYTES_MAX - 1_000)
    await sender.send_messages(ServiceBusMessage(largest))
    with pytest.raises(MessageSizeExceededError):
        await sender.send_messages(ServiceBusMessage(b"x" * MESSAGE_SIZE_BYTES_MAX))
    # A refused message leaves the link as it was.
    await sender.send_messages(ServiceBusMessage(b"small"))
    assert bodies(await receive_exactly(receiver, 2)) == [largest, b"small"]


@pytest.mark.proves("M-1")
async def test_senders_share_a_queue(client: Client, queue: str, receiver: Any) -> None:
    async def send_from(name: int) -> None:
        async with client.sender(queue) as sender:
            for number in range(10):
                await sender.send_messages(ServiceBusMessage(b"%d-%d" % (name, number)))

    await asyncio.gather(*(send_from(name) for name in range(4)))
    received = bodies(await receive_exactly(receiver, 40))
    for name in range(4):
        expected = [b"%d-%d" % (name, number) for number in range(10)]
        assert [text for text in received if text.startswith(b"%d-" % name)] == expected
