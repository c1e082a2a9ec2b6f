"""Message locks seen through the official SDK: they end, they are renewed, they are enforced.

The shortest lock that Service Bus allows lasts five seconds, so these tests wait for real.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import azure.servicebus
import azure.servicebus.aio
import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageLockLostError

from tests.interop.sdk import (
    Client,
    async_only,
    body,
    nothing_comes,
    peek_all,
    receive_one,
    sync_only,
)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.queue(lock_duration="PT5S")]


async def sleep_until(moment: datetime) -> None:
    await asyncio.sleep((moment - datetime.now(UTC)).total_seconds() + 0.1)


@asynccontextmanager
async def auto_renewing_receiver(client: Client, queue: str) -> AsyncIterator[Any]:
    module = azure.servicebus if client.flavour == "sync" else azure.servicebus.aio
    renewer = module.AutoLockRenewer(max_lock_renewal_duration=60)
    async with client.receiver(queue, auto_lock_renewer=renewer) as receiver:
        yield receiver
    closing = renewer.close()
    if closing is not None:
        await closing


@pytest.mark.proves("M-2")
@pytest.mark.feature("receive.locks")
@async_only
async def test_expired_lock_frees_the_message(sender: Any, receiver: Any, other: Any) -> None:
    await sender.send_messages(ServiceBusMessage(b"slow"))
    late = await receive_one(receiver)
    [again] = await other.receive_messages(max_wait_time=20)
    assert datetime.now(UTC) >= late.locked_until_utc
    assert body(again) == b"slow"
    assert again.delivery_count == 1
    assert again.lock_token != late.lock_token
    with pytest.raises(MessageLockLostError):
        await receiver.complete_message(late)
    with pytest.raises(MessageLockLostError):
        await receiver.renew_message_lock(late)
    # Being late with the first lock does no harm to the second.
    assert len(await peek_all(receiver)) == 1


@pytest.mark.proves("M-2")
@pytest.mark.feature("receive.locks")
@sync_only
async def test_renewed_lock_holds(sender: Any, receiver: Any, other: Any) -> None:
    await sender.send_messages(ServiceBusMessage(b"slow"))
    message = await receive_one(receiver)
    first_end = message.locked_until_utc
    await asyncio.sleep(3)
    assert await receiver.renew_message_lock(message) > first_end
    await sleep_until(first_end)
    assert await nothing_comes(other)
    await receiver.complete_message(message)
    assert await peek_all(receiver) == []


@pytest.mark.proves("M-2")
@pytest.mark.feature("receive.locks")
async def test_auto_lock_renewer(client: Client, queue: str, sender: Any, other: Any) -> None:
    await sender.send_messages(ServiceBusMessage(b"very slow"))
    async with auto_renewing_receiver(client, queue) as receiver:
        message = await receive_one(receiver)
        first_end = message.locked_until_utc
        await sleep_until(first_end)
        assert await nothing_comes(other)
        assert message.auto_renew_error is None
        await receiver.complete_message(message)
        assert await peek_all(receiver) == []


@pytest.mark.proves("M-2")
@pytest.mark.feature("receive.delivery-count")
@pytest.mark.queue(lock_duration="PT5S", max_delivery_count=1)
@async_only
async def test_expiry_counts_towards_the_maximum(
    sender: Any, receiver: Any, dead_letters: Any
) -> None:
    await sender.send_messages(ServiceBusMessage(b"never settled"))
    await receive_one(receiver)
    [dead] = await dead_letters.receive_messages(max_wait_time=20)
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
    await dead_letters.complete_message(dead)
