"""Scheduled messages with the official SDK: schedule, cancel, and arrival when due."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.exceptions import MessageNotFoundError

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
    sync_only,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


def soon() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=1.5)


def tomorrow() -> datetime:
    return datetime.now(UTC) + timedelta(days=1)


def milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


@pytest.mark.proves("M-3")
@pytest.mark.feature("send.schedule")
async def test_scheduled_message_arrives_when_due(sender: Any, receiver: Any) -> None:
    due = soon()
    [number] = await sender.schedule_messages(ServiceBusMessage(b"later", subject="s"), due)
    [waiting] = await peek_all(receiver)
    assert waiting.state is ServiceBusMessageState.SCHEDULED
    assert waiting.sequence_number == number
    assert await nothing_comes(receiver)
    message = await receive_one(receiver)
    assert datetime.now(UTC) >= due - timedelta(milliseconds=1)
    assert (body(message), message.subject) == (b"later", "s")
    assert message.state is ServiceBusMessageState.ACTIVE
    assert message.sequence_number > number
    assert message.enqueued_time_utc >= due - timedelta(milliseconds=1)
    assert milliseconds(message.scheduled_enqueue_time_utc) == milliseconds(due)
    await receiver.complete_message(message)
    assert await peek_all(receiver) == []


@pytest.mark.proves("M-3")
@pytest.mark.feature("send.schedule")
@sync_only
async def test_list_of_scheduled_messages(sender: Any, receiver: Any) -> None:
    numbers = await sender.schedule_messages(
        [ServiceBusMessage(b"%d" % number) for number in range(3)], soon()
    )
    assert len(set(numbers)) == 3
    assert numbers == sorted(numbers)
    messages = await receive_exactly(receiver, 3)
    assert bodies(messages) == [b"0", b"1", b"2"]
    await complete_all(receiver, messages)


@pytest.mark.proves("M-3")
@pytest.mark.feature("send.schedule")
async def test_cancelled_message_never_arrives(sender: Any, receiver: Any) -> None:
    numbers = await sender.schedule_messages(
        [ServiceBusMessage(b"%d" % number) for number in range(3)], tomorrow()
    )
    await sender.cancel_scheduled_messages(numbers[0])
    assert bodies(await peek_all(receiver)) == [b"1", b"2"]
    await sender.cancel_scheduled_messages(numbers[1:])
    assert await peek_all(receiver) == []


@pytest.mark.proves("M-3")
@pytest.mark.feature("send.schedule")
async def test_cancel_is_all_or_nothing(
    new_client: Callable[..., Client], queue: str, receiver: Any
) -> None:
    sender = new_client(retry_total=0).sender(queue)
    [number] = await sender.schedule_messages(ServiceBusMessage(b"stays"), tomorrow())
    with pytest.raises(MessageNotFoundError):
        await sender.cancel_scheduled_messages([number, 4_711])
    assert bodies(await peek_all(receiver)) == [b"stays"]


@pytest.mark.proves("M-3")
@pytest.mark.feature("send.schedule")
@sync_only
async def test_plain_send_with_a_scheduled_time(sender: Any, receiver: Any) -> None:
    due = soon()
    await sender.send_messages(
        [
            ServiceBusMessage(b"later", scheduled_enqueue_time_utc=due),
            ServiceBusMessage(b"now"),
            ServiceBusMessage(b"past", scheduled_enqueue_time_utc=due - timedelta(hours=1)),
        ]
    )
    await sender.send_messages(ServiceBusMessage(b"later still", scheduled_enqueue_time_utc=soon()))
    messages = await receive_exactly(receiver, 2)
    assert bodies(messages) == [b"now", b"past"]
    messages += await receive_exactly(receiver, 2)
    assert bodies(messages[2:]) == [b"later", b"later still"]
    assert messages[2].enqueued_time_utc >= due - timedelta(milliseconds=1)
    await complete_all(receiver, messages)
    assert await peek_all(receiver) == []


@pytest.mark.proves("M-3")
@pytest.mark.feature("send.schedule")
@async_only
async def test_due_message_wakes_a_waiting_receiver_in_order_of_time(
    sender: Any, receiver: Any
) -> None:
    due = soon()
    await sender.schedule_messages(ServiceBusMessage(b"second"), due + timedelta(seconds=0.5))
    await sender.schedule_messages(ServiceBusMessage(b"first"), due)
    assert bodies(await receive_exactly(receiver, 2)) == [b"first", b"second"]
