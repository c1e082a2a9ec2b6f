"""Duplicate detection across a crash, with the official SDK; a module of its own, as it kills."""

import asyncio
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from tests.interop.sdk import bodies, peek_all, receive_exactly, sync_only
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.asyncio(loop_scope="module")


def message(text: str, message_id: str) -> ServiceBusMessage:
    return ServiceBusMessage(text, message_id=message_id)


@pytest.mark.proves("M-5")
@pytest.mark.feature("send.duplicates")
@pytest.mark.queue(requires_duplicate_detection=True)
@sync_only
async def test_ids_survive_a_crash(server: ServerProcess, sender: Any, receiver: Any) -> None:
    async with sender, receiver:
        await sender.send_messages([message("first", "a"), message("second", "b")])
        for received in await receive_exactly(receiver, 2):
            await receiver.complete_message(received)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.restart)
        await sender.send_messages([message("again", "a"), message("third", "c")])
        assert bodies(await peek_all(receiver)) == [b"third"]
