"""Who has put no token makes the server keep little, over AMQP too.

Anybody may open a connection, and attach to the nodes on which tokens are put and requests refused.
What he sends there ends the connection when it gets to be more than a token would be.
"""

import asyncio
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tests.security.memory import PEAK, memory_bytes
from tests.security.raw_amqp import RawConnection
from twinbus.amqp.composites import Source, Target
from twinbus.amqp.egress import EgressLink
from twinbus.client.connection_string import ConnectionString
from twinbus.client.sas import make_sas_token
from twinbus.clock import SystemClock
from twinbus.limits import FRAME_SIZE_BYTES_MAX, STRANGER_BYTES_MAX, STRANGERS_BYTES_MAX
from twinbus.message.plain import Properties, encode_message, value_section
from twinbus.testing.server import ServerProcess

pytestmark = [pytest.mark.proves("M-11", "M-12"), pytest.mark.asyncio]

TOO_MUCH = "amqp:resource-limit-exceeded"
WAIT_S = 20.0
CONNECTIONS = 30


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("strangers") / "data") as process:
        process.create_queue("orders")
        yield process
    assert "Traceback" not in process.log


async def ended(connection: RawConnection) -> str:
    return await asyncio.wait_for(asyncio.shield(connection.closed), WAIT_S)


async def heard_the_end(connection: RawConnection) -> bool:
    """Wait a moment for it: what is written after the end would reset the connection."""
    await asyncio.wait({connection.closed}, timeout=0.2)
    return connection.closed.done()


def unfinished(link: EgressLink, size: int) -> bytes:
    """The first frame of a delivery that never ends."""
    fields = b"\x52" + bytes([link.handle]) + b"\x43\xa0\x01t\x43\x42\x41"
    transfer = b"\x00\x53\x14\xc0" + bytes([len(fields) + 1, 6]) + fields
    return struct.pack(">IBBH", 8 + len(transfer) + size, 2, 0, 0) + transfer + bytes(size)


async def sender(connection: RawConnection, address: str) -> EgressLink:
    link, condition = await connection.attach("sender", address)
    assert condition == ""
    assert isinstance(link, EgressLink)
    return link


@pytest.mark.parametrize("transport", ["tcp", "websocket"])
async def test_unfinished_deliveries(server: ServerProcess, transport: str) -> None:
    """Twenty on each connection, a quarter of a megabyte each, thirty times."""
    before = memory_bytes(server, PEAK)
    for _ in range(CONNECTIONS):
        opened: RawConnection = await getattr(RawConnection, transport)(server.port)
        async with opened as connection:
            links = [await sender(connection, "$cbs") for _ in range(20)]
            for link in links:
                connection._write(unfinished(link, FRAME_SIZE_BYTES_MAX - 100))
            await ended(connection)  # whoever has so much under way may not hear why
    assert memory_bytes(server, PEAK) - before < STRANGERS_BYTES_MAX


@pytest.mark.parametrize("address", ["$cbs", "coordinator"])
async def test_half_a_frame(server: ServerProcess, address: str) -> None:
    async with await RawConnection.tcp(server.port) as connection:
        link = await sender(connection, address)
        connection._write(unfinished(link, 2 * STRANGER_BYTES_MAX)[:-1])
        assert await ended(connection) == TOO_MUCH


async def test_what_links_are_called(server: ServerProcess) -> None:
    async with await RawConnection.tcp(server.port) as connection:
        for number in range(4):
            name = str(number) * 30_000
            connection._session.attach_sender(name, Source("x"), Target("$cbs"))
            connection._flush()
            if await heard_the_end(connection):
                break
        assert await ended(connection) == TOO_MUCH


async def test_transactions(server: ServerProcess) -> None:
    async with await RawConnection.tcp(server.port) as connection:
        link = await sender(connection, "coordinator")
        for _ in range(200):  # one at a time: what is written after the end would reset it
            asked = asyncio.ensure_future(connection.declare(link))
            either: set[asyncio.Future[Any]] = {asked, connection.closed}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if connection.closed.done():
                asked.cancel()
                break
        assert await ended(connection) == TOO_MUCH


async def test_answers_that_are_never_taken(server: ServerProcess) -> None:
    """An answer has the id of its request in it, and waits for credit."""
    async with await RawConnection.tcp(server.port) as connection:
        connection._session.attach_receiver("answers", Source("$cbs"), Target("answers"))
        link = await sender(connection, "$cbs")
        request = encode_message(value_section("x"), Properties(message_id="i" * 30_000), {})
        for number in range(4):
            link.send(number.to_bytes(8), request, b"", True, None)
            connection._flush()
            if await heard_the_end(connection):
                break
        assert await ended(connection) == TOO_MUCH


async def test_who_has_put_a_token_has_all_the_room_there_is(server: ServerProcess) -> None:
    target = ConnectionString.parse(server.connection_string)
    expires_s = SystemClock().now().utc_ms // 1_000 + 300
    token = make_sas_token("sb://h/", target.key_name, target.key, expires_s)
    async with await RawConnection.tcp(server.port) as connection:
        assert await connection.put_token(token, "sb://h/") == 200
        links = [await sender(connection, "orders") for _ in range(100)]
        for link in links[:10]:
            connection._write(unfinished(link, FRAME_SIZE_BYTES_MAX - 100))
        message = encode_message(value_section("x" * 900_000), Properties(), {})
        assert await connection.send(links[20], message) is not None


async def test_an_address_that_is_no_uri(server: ServerProcess) -> None:
    """Found on the way: it ended the connection without a word, and left a traceback."""
    async with await RawConnection.tcp(server.port) as connection:
        _, condition = await connection.attach("sender", "x://[")
        assert condition == "amqp:unauthorized-access"
