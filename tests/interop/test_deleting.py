"""An entity is deleted while somebody receives from it: nobody else waits for an answer.

With the official SDK and its default settings, on one server with one store.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage

from tests.interop.administration import Admin, open_admin
from tests.interop.sdk import Client, async_only, receive_exactly
from twinbus.entities.partitions import PARTITION_COUNT
from twinbus.testing.server import ServerProcess

pytestmark = [pytest.mark.proves("S-4"), pytest.mark.asyncio(loop_scope="module")]

ANSWER_S_MAX = 20  # far beyond what an answer takes, and far below how long none used to come


@pytest_asyncio.fixture(loop_scope="module")
async def admin(server: ServerProcess) -> AsyncIterator[Admin]:
    async with open_admin("async, no TLS", server) as opened:
        yield opened


async def fill(sender: Any) -> None:
    """A message for each partition, so that a receiver with credit 1 is sent more than it takes."""
    for number in range(PARTITION_COUNT):
        await sender.send_messages(ServiceBusMessage(str(number)))


async def delete_and_go_on(delete: Any, admin: Admin, client: Client, other: str) -> None:
    """The delete is answered, and so is everything that others ask for at the same time."""
    async with asyncio.timeout(ANSWER_S_MAX):
        await delete
        await admin.create_queue(other)
        async with client.sender(other) as sender, client.receiver(other) as receiver:
            await sender.send_messages(ServiceBusMessage("goes on"))
            (message,) = await receive_exactly(receiver, 1)
            await receiver.complete_message(message)


@async_only
async def test_a_partitioned_queue(client: Client, admin: Admin) -> None:
    await admin.create_queue("leaving", enable_partitioning=True)
    async with client.sender("leaving") as sender, client.receiver("leaving") as receiver:
        await fill(sender)
        assert await receiver.receive_messages(max_message_count=1)
        await delete_and_go_on(admin.delete_queue("leaving"), admin, client, "staying-1")


@async_only
@pytest.mark.parametrize("is_whole_topic", [True, False])
async def test_a_partitioned_topic(client: Client, admin: Admin, is_whole_topic: bool) -> None:
    topic = f"news-{is_whole_topic}"
    await admin.create_topic(topic, enable_partitioning=True)
    await admin.create_subscription(topic, "all")
    receiving = client.subscription_receiver(topic, "all")
    async with client.topic_sender(topic) as sender, receiving as receiver:
        await fill(sender)
        assert await receiver.receive_messages(max_message_count=1)
        delete = (
            admin.delete_topic(topic) if is_whole_topic else admin.delete_subscription(topic, "all")
        )
        await delete_and_go_on(delete, admin, client, f"staying-{topic}")
