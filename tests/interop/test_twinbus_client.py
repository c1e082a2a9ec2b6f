"""Our own AMQP client against a real server: what the official SDK never does on one connection."""

import asyncio

import pytest

from twinbus.client.connection import BusConnection
from twinbus.errors import EntityNotFound, InvalidOperation
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.asyncio

LINKS = 20


@pytest.mark.proves("M-1")
async def test_many_links_share_a_connection(server: ServerProcess) -> None:
    """Their transfers come mixed in one read; each is answered on its own link."""
    queues = [f"shared-{number}" for number in range(LINKS)]
    for queue in queues:
        server.create_queue(queue)
    async with await BusConnection.open(server.connection_string) as connection:
        senders = [await connection.open_sender(queue) for queue in queues]
        receivers = [await connection.open_receiver(queue) for queue in queues]
        bodies = [b"%d" % number for number in range(25)]
        await asyncio.gather(*(sender.send(body) for body in bodies for sender in senders))
        for receiver in receivers:
            for body in bodies:
                received = await receiver.receive(10)
                assert received is not None
                assert received.body == body
                await receiver.complete(received)
            assert await receiver.receive(0) is None


async def test_a_message_larger_than_a_frame_and_every_settlement(server: ServerProcess) -> None:
    server.create_queue("settled")
    body = bytes(range(256)) * 3_000
    async with await BusConnection.open(server.connection_string) as connection:
        sender = await connection.open_sender("settled")
        receiver = await connection.open_receiver("settled")
        await sender.send(body)
        for way, count in ((receiver.release, 0), (receiver.abandon, 0), (receiver.defer, 1)):
            received = await receiver.receive(10)
            assert received is not None
            assert (received.body, received.delivery_count) == (body, count)
            await way(received)
        await sender.send(b"bad")
        received = await receiver.receive(10)
        assert received is not None
        await receiver.dead_letter(received, "no stamp", "the envelope has none")
        with pytest.raises(InvalidOperation):
            await receiver.complete(received)
        dead_letters = await connection.open_receiver("settled/$DeadLetterQueue")
        received = await dead_letters.receive(10)
        assert received is not None
        assert received.message.application_properties == {
            "DeadLetterReason": "no stamp",
            "DeadLetterErrorDescription": "the envelope has none",
        }


async def test_receive_and_delete_and_a_missing_queue(server: ServerProcess) -> None:
    server.create_queue("deleted")
    async with await BusConnection.open(server.connection_string) as connection:
        with pytest.raises(EntityNotFound):
            await connection.open_sender("no-such-queue")
        sender = await connection.open_sender("deleted")
        await sender.send(b"gone")
        receiver = await connection.open_receiver("deleted", receive_and_delete=True)
        received = await receiver.receive(10)
        assert received is not None
        assert (received.body, received.locked_until_ms) == (b"gone", 0)
    assert server.admin.get_queue("deleted").properties["MessageCount"] == "0"
