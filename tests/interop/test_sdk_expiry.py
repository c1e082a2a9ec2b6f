"""Time-to-live through the official SDK: gone, or dead-lettered where the queue asks for it."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from tests.interop.sdk import (
    async_only,
    bodies,
    body,
    nothing_comes,
    peek_all,
    receive_one,
    sync_only,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHORT = timedelta(seconds=1)


@pytest.mark.proves("M-3")
@pytest.mark.feature("receive.expiry")
@async_only
async def test_expired_message_is_gone(sender: Any, receiver: Any, dead_letters: Any) -> None:
    await sender.send_messages(
        [ServiceBusMessage(b"short", time_to_live=SHORT), ServiceBusMessage(b"long")]
    )
    await asyncio.sleep(1.2)
    assert body(await receive_one(receiver)) == b"long"
    assert bodies(await peek_all(receiver)) == [b"long"]
    assert await peek_all(dead_letters) == []


@pytest.mark.proves("M-3")
@pytest.mark.feature("receive.expiry")
@pytest.mark.queue(dead_lettering_on_message_expiration=True)
@async_only
async def test_expired_message_is_dead_lettered(
    sender: Any, receiver: Any, dead_letters: Any
) -> None:
    await sender.send_messages(ServiceBusMessage(b"short", time_to_live=SHORT))
    dead = await receive_one(dead_letters)
    assert body(dead) == b"short"
    assert dead.dead_letter_reason == "TTLExpiredException"
    assert await peek_all(receiver) == []
    # Time does not run in the dead-letter queue.
    await asyncio.sleep(1.2)
    await dead_letters.complete_message(dead)


@pytest.mark.proves("M-3")
@pytest.mark.feature("receive.expiry", "entity.quota")
@pytest.mark.queue(default_message_time_to_live="PT1S")
@sync_only
async def test_default_of_the_queue_is_a_ceiling(sender: Any, receiver: Any) -> None:
    await sender.send_messages(
        [ServiceBusMessage(b"none"), ServiceBusMessage(b"more", time_to_live=timedelta(hours=1))]
    )
    assert {message.time_to_live for message in await peek_all(receiver)} == {SHORT}
    await asyncio.sleep(1.2)
    assert await nothing_comes(receiver)
    assert await peek_all(receiver) == []


@pytest.mark.proves("M-3")
@pytest.mark.feature("receive.expiry")
@async_only
async def test_locked_message_outlives_its_time(sender: Any, receiver: Any) -> None:
    await sender.send_messages(ServiceBusMessage(b"short", time_to_live=SHORT))
    message = await receive_one(receiver)
    await asyncio.sleep(1.2)
    await receiver.complete_message(message)
    assert await peek_all(receiver) == []
