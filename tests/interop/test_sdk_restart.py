"""The official SDK rides out the death of the server; a module of its own, as it kills it."""

import asyncio
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage

from tests.interop.sdk import (
    Client,
    bodies,
    body,
    peek_all,
    receive_exactly,
    receive_one,
    sync_only,
)
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.proves("M-1")
@pytest.mark.feature("send.durable", "ours.restart")
@sync_only
async def test_clients_ride_out_a_restart(
    server: ServerProcess, queue: str, sender: Any, receiver: Any
) -> None:
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


@pytest.mark.proves("M-4")
@pytest.mark.feature("session.state", "ours.restart")
@pytest.mark.queue(requires_session=True)
@sync_only
async def test_sessions_and_their_state_outlive_the_server(
    server: ServerProcess, client: Client, queue: str
) -> None:
    """Nobody holds a session after a restart; counts and state are as they were acknowledged."""
    async with client.sender(queue) as sender, client.receiver(queue, session_id="s") as receiver:
        texts = (b"1", b"2")
        await sender.send_messages([ServiceBusMessage(text, session_id="s") for text in texts])
        await receiver.abandon_message(await receive_one(receiver))
        await asyncio.to_thread(receiver.session.set_state, b"kept")
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.restart)
    async with client.receiver(queue, session_id=NEXT_AVAILABLE_SESSION) as receiver:
        assert await asyncio.to_thread(receiver.session.get_state) == b"kept"
        messages = await receive_exactly(receiver, 2)
        assert [(body(m), m.delivery_count) for m in messages] == [(b"1", 1), (b"2", 0)]
