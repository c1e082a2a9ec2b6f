"""The official SDK rides out the death of the server; a module of its own, as it kills it."""

import asyncio
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from tests.interop.sdk import bodies, peek_all, receive_exactly, sync_only
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.asyncio(loop_scope="module")


@sync_only
async def test_clients_ride_out_a_restart(
    server: ServerProcess, queue: str, sender: Any, receiver: Any
) -> None:  # M-1
    """A killed server comes back with everything it acknowledged; the SDK finds it by itself."""
    async with sender, receiver:
        await sender.send_messages(ServiceBusMessage(b"before"))
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.restart)
        await sender.send_messages(ServiceBusMessage(b"after"))
        messages = await receive_exactly(receiver, 2)
        assert bodies(messages) == [b"before", b"after"]
        for message in messages:
            await receiver.complete_message(message)
        assert await peek_all(receiver) == []
