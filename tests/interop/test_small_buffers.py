"""A client that makes the buffers of its socket small after connecting, as .NET's SDK does.

Where segments are larger than the room that is left, Linux waits 200 ms for more of it, every few
kilobytes.  One such pause may come at the beginning: what the client's kernel has offered before
the buffer became small cannot be taken back, and what it drops of that is sent again by a timer.
Disks and neighbours make pauses too, but not in every try (docs/performance.md).
"""

import asyncio
import socket
import ssl
import time
from typing import Final

import pytest

from twinbus.amqp.composites import Source, Target
from twinbus.amqp.connection import Connection
from twinbus.amqp.events import LinkAttached
from twinbus.amqp.ingress import DeliveryReceived
from twinbus.amqp.performatives import SETTLED
from twinbus.amqp.settings import ConnectionSettings
from twinbus.amqp.states import CLIENT
from twinbus.client.connection import BusConnection
from twinbus.client.connection_string import ConnectionString
from twinbus.testing.server import ServerProcess

pytestmark = [pytest.mark.proves("M-17"), pytest.mark.asyncio]

BUFFER_BYTES: Final = 8_192
CREDIT: Final = 1_000
COUNT: Final = 10_000  # messages of 1 KiB
PAUSE_S: Final = 0.05
PAUSES_GIVEN_UP: Final = 5  # it is clear by then; there used to be one every 16 KiB
TRIES: Final = 3


def connect(server: ServerProcess, tls: bool) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not tls:
        return sock
    trusting = ssl.create_default_context(cafile=server.data_dir / "tls" / "ca.pem")
    return trusting.wrap_socket(sock, server_hostname="localhost")


def pauses(server: ServerProcess, queue: str, tls: bool) -> list[float]:
    """Receive everything; the pauses in it that are too long."""
    target = ConnectionString.parse(server.connection_string)
    settings = ConnectionSettings(
        container_id="small",
        sasl_mechanisms=("PLAIN",),
        sasl_response=f"\0{target.key_name}\0{target.key}".encode(),
    )
    amqp = Connection(CLIENT, settings)
    amqp.open()
    link = amqp.begin().attach_receiver("r", Source(queue), Target("r"), snd_settle_mode=SETTLED)
    found: list[float] = []
    got = asked = 0
    with connect(server, tls) as sock:
        while got < COUNT and len(found) < PAUSES_GIVEN_UP:
            sock.sendall(b"".join(amqp.data_to_send()))
            before = time.monotonic()
            data = sock.recv(65_536)
            assert data, "the server has hung up"
            paused_s = time.monotonic() - before
            if asked and paused_s > PAUSE_S:
                found.append(paused_s)
            for event in amqp.receive_data(data):
                got += isinstance(event, DeliveryReceived)
                if isinstance(event, LinkAttached) or (asked and asked - got < CREDIT // 2):
                    link.grant(CREDIT)
                    asked = got + CREDIT
    return found


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_ten_megabytes_come_without_pauses(server: ServerProcess, tls: bool) -> None:
    tries: list[list[float]] = []
    while not tries or (len(tries[-1]) > 1 and len(tries) < TRIES):
        queue = f"megabytes-{tls}-{len(tries)}"
        server.create_queue(queue)
        async with await BusConnection.open(server.connection_string) as connection:
            sender = await connection.open_sender(queue)
            await asyncio.gather(*(sender.send(bytes(1_024)) for _ in range(COUNT)))
        tries.append(await asyncio.to_thread(pauses, server, queue, tls))
    assert len(tries[-1]) <= 1, tries
