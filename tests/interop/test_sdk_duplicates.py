"""Duplicate detection with the official SDK: a message id counts once.

How long an id is remembered is tested without waiting in tests/unit/entities/test_duplicates.py.
"""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties

from tests.interop.sdk import bodies, peek_all, receive_exactly, sync_only

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.feature("send.duplicates"),
    pytest.mark.queue(
        requires_duplicate_detection=True, duplicate_detection_history_time_window="PT10M"
    ),
]


def message(text: str, message_id: str) -> ServiceBusMessage:
    return ServiceBusMessage(text, message_id=message_id)


@pytest.mark.proves("M-5")
async def test_a_duplicate_is_accepted_and_dropped(sender: Any, receiver: Any) -> None:
    await sender.send_messages(message("first", "a"))
    await sender.send_messages(message("again", "a"))
    await sender.send_messages(message("other", "b"))
    assert bodies(await peek_all(receiver)) == [b"first", b"other"]
    for received in await receive_exactly(receiver, 2):
        await receiver.complete_message(received)
    await sender.send_messages(message("too late", "a"))
    assert await peek_all(receiver) == []


@pytest.mark.proves("M-5")
async def test_duplicates_in_batches(sender: Any, receiver: Any) -> None:
    await sender.send_messages([message("1", "a"), message("2", "a"), message("3", "b")])
    batch: ServiceBusMessageBatch = await sender.create_message_batch()
    for text, message_id in (("4", "b"), ("5", "c"), ("6", "c")):
        batch.add_message(message(text, message_id))
    await sender.send_messages(batch)
    assert bodies(await peek_all(receiver)) == [b"1", b"3", b"5"]


@pytest.mark.proves("M-5")
async def test_every_kind_of_id_counts(sender: Any, receiver: Any) -> None:
    """AMQP lets an id be text, bytes, a number or a UUID."""
    for message_id in ("7", b"seven", 7_000, UUID(int=7)):
        for _ in range(2):
            properties = AmqpMessageProperties(message_id=message_id)  # type: ignore[arg-type]
            annotated = AmqpAnnotatedMessage(data_body=[b"x"], properties=properties)
            await sender.send_messages(annotated)
    assert len(await peek_all(receiver)) == 4


@pytest.mark.proves("M-5")
async def test_messages_without_an_id_are_no_duplicates(sender: Any, receiver: Any) -> None:
    for _ in range(3):
        await sender.send_messages(AmqpAnnotatedMessage(data_body=[b"same"]))
    await sender.send_messages([ServiceBusMessage(b"same"), ServiceBusMessage(b"same")])
    assert len(await peek_all(receiver)) == 5


@pytest.mark.proves("M-5")
async def test_scheduled_messages_count_when_they_are_sent(sender: Any, receiver: Any) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    numbers = await sender.schedule_messages([message("1", "a"), message("2", "b")], tomorrow)
    assert len(set(numbers)) == 2
    await sender.send_messages(message("3", "a"))
    await sender.schedule_messages(message("4", "b"), tomorrow)
    assert bodies(await peek_all(receiver)) == [b"1", b"2"]


@pytest.mark.proves("M-5")
@pytest.mark.queue
@sync_only
async def test_other_queues_take_everything(sender: Any, receiver: Any) -> None:
    for _ in range(2):
        await sender.send_messages(message("x", "a"))
    assert len(await peek_all(receiver)) == 2
