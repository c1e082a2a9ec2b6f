"""Any bytes on the port: a clean end of that connection, bounded memory, others still served.

The classes of attack are those that brokers have been caught with: sizes and counts taken on trust,
endless handshakes, floods of connections and links, receivers that never read.
"""

import asyncio
import contextlib
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.memory import memory_bytes
from twinbus.client.connection import BusConnection
from twinbus.errors import QuotaExceeded
from twinbus.limits import (
    BODY_CACHE_BYTES,
    HANDLES_MAX,
    HTTP_REQUEST_DURATION_S_MAX,
    OUTPUT_BUFFER_BYTES_MAX,
)
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.asyncio

SEED = 20_261_118
QUEUE = "others"
FULL_QUEUE = "full"
HANDSHAKE_S = 2.0
MARGIN_S = 5.0  # two busy cores are slow at times
MEBIBYTE = 1 << 20

SASL_HEADER = b"AMQP\x03\x01\x00\x00"
AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
TLS_HELLO_START = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


def frame(body: bytes, *, kind: int = 0, channel: int = 0) -> bytes:
    return struct.pack(">IBBH", len(body) + 8, 2, kind, channel) + body


def performative(code: int, fields: bytes, count: int) -> bytes:
    """A described list with 4-byte size and count, whatever the count really is."""
    return (
        b"\x00\x53" + bytes([code]) + b"\xd0" + struct.pack(">II", len(fields) + 4, count) + fields
    )


SASL_ANONYMOUS = frame(performative(0x41, b"\xa3\x09ANONYMOUS", 1), kind=1)
HANDSHAKE = SASL_HEADER + SASL_ANONYMOUS + AMQP_HEADER
OPEN = frame(performative(0x10, b"\xa1\x04evil", 1))
BEGIN = frame(performative(0x11, b"\x40\x43\x60\x08\x00\x60\x08\x00", 4))


def in_open(value: bytes) -> bytes:
    """An `open` whose last field, the properties map, holds this value."""
    fields = b"\xa1\x04evil" + b"\x40" * 8
    entry = b"\xa3\x01k" + value
    table = b"\xd1" + struct.pack(">II", len(entry) + 4, 2) + entry
    return HANDSHAKE + frame(performative(0x10, fields + table, 10))


HOSTILE = {
    "nothing but zeros": bytes(4096),
    "an older protocol": b"AMQP\x00\x00\x09\x01",
    "an unknown protocol id": b"AMQP\x07\x01\x00\x00",
    "AMQP without SASL": AMQP_HEADER + OPEN,
    "HTTP without sense": b"GET / HTTP/9.9\r\n\r\n",
    "an HTTP request with an endless header": b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000,
    "an HTTP request with many headers": b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000,
    "an HTTP body of four gigabytes": b"PUT /q HTTP/1.1\r\nContent-Length: 4294967296\r\n\r\n",
    "an HTTP body of negative size": b"PUT /q HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    "TLS without sense": TLS_HELLO_START + bytes(range(256)) * 20,
    "a TLS record of the wrong version": b"\x16\x09\x09\x40\x00" + bytes(512),
    "a SASL frame of four gigabytes": SASL_HEADER + b"\xff\xff\xff\xff\x02\x01\x00\x00",
    "a SASL frame smaller than its header": SASL_HEADER + b"\x00\x00\x00\x07\x02\x01\x00",
    "a SASL frame with a wrong data offset": SASL_HEADER
    + b"\x00\x00\x00\x10\xff\x01\x00\x00"
    + bytes(8),
    "a SASL mechanism nobody has": SASL_HEADER
    + frame(performative(0x41, b"\xa3\x03XXX", 1), kind=1),
    "PLAIN without its parts": SASL_HEADER
    + frame(performative(0x41, b"\xa3\x05PLAIN\xa0\x01x", 2), kind=1),
    "a frame of four gigabytes": HANDSHAKE + b"\xff\xff\xff\xff\x02\x00\x00\x00",
    "a frame beyond the size allowed before open": HANDSHAKE
    + struct.pack(">IBBH", 60_000, 2, 0, 0),
    "an unknown frame type": HANDSHAKE + frame(b"", kind=9),
    "a frame that is no performative": HANDSHAKE + frame(b"\x40\x40\x40"),
    "an open of another performative": HANDSHAKE + BEGIN,
    "an open twice": HANDSHAKE + OPEN + OPEN,
    "a list that claims four billion elements": HANDSHAKE
    + frame(b"\x00\x53\x10\xd0\xff\xff\xff\xff\xff\xff\xff\xff"),
    "a list with more elements than bytes": HANDSHAKE + frame(performative(0x10, b"\x40", 60_000)),
    "an array of four billion nulls": in_open(b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40"),
    "an array of a million empty lists": in_open(b"\xf0\x00\x00\x00\x05\x00\x0f\x42\x40\x45"),
    "values nested a thousand deep": in_open(
        b"\xd0\x00\x00\x00\x05\x00\x00\x00\x01" * 700 + b"\x40"
    ),
    "descriptors of descriptors": in_open(b"\x00" * 2_000 + b"\x40"),
    "a string longer than its frame": in_open(b"\xb1\x7f\xff\xff\xff"),
    "text that is not UTF-8": in_open(b"\xa1\x02\xff\xfe"),
    "a map with half an entry": HANDSHAKE
    + frame(performative(0x10, b"\xa1\x04evil" + b"\x40" * 8 + b"\xc1\x03\x01\xa3\x00", 10)),
    "a begin on a channel beyond the limit": HANDSHAKE
    + OPEN
    + frame(performative(0x11, b"\x40\x43\x60\x08\x00\x60\x08\x00", 4), channel=60_000),
    "an attach without a session": HANDSHAKE
    + OPEN
    + frame(performative(0x12, b"\xa1\x01l\x43\x41", 3)),
    "a transfer without a link": HANDSHAKE
    + OPEN
    + BEGIN
    + frame(performative(0x14, b"\x43\x43", 2))
    + frame(b"\xff"),
    "a disposition of everything": HANDSHAKE
    + OPEN
    + BEGIN
    + frame(performative(0x15, b"\x41\x43\x70\xff\xff\xff\xff\x41", 4)) * 200
    + frame(b"\xff"),
}


class Target:
    """The server under attack, seen from outside."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self.connection_string = server.connection_string

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._server.port)

    def memory_bytes(self) -> int:
        return memory_bytes(self._server)

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self._server.pid}/fd").iterdir()))

    async def wait_for_open_files(self, most: int) -> None:
        for _ in range(100):
            if self.open_files() <= most:
                return
            await asyncio.sleep(0.05)
        pytest.fail(f"{self.open_files()} files are open, not {most}")

    async def assert_serves_others(self) -> None:
        """Somebody else can send, receive and complete, and no bug has shown itself."""
        async with asyncio.timeout(MARGIN_S):
            async with await BusConnection.open(self.connection_string) as connection:
                sender = await connection.open_sender(QUEUE)
                await sender.send(b"hello")
                receiver = await connection.open_receiver(QUEUE, credit=1)
                received = await receiver.receive(MARGIN_S)
                assert received is not None
                assert received.body == b"hello"
                await receiver.complete(received)
        assert "Traceback" not in self._server.log, self._server.log


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    data_dir = tmp_path_factory.mktemp("target") / "data"
    with ServerProcess(data_dir, arguments=("--handshake", str(HANDSHAKE_S))) as server:
        for queue in (QUEUE, FULL_QUEUE):
            server.create_queue(queue)
        yield Target(server)


async def until_closed(reader: asyncio.StreamReader) -> None:
    """Read until the server has hung up."""
    with contextlib.suppress(ConnectionError):
        while await reader.read(65_536):
            pass


async def attack(target: Target, data: bytes) -> None:
    """Send these bytes; the server must hang up, at the latest when a deadline has passed."""
    reader, writer = await target.connect()
    try:
        writer.write(data)
        async with asyncio.timeout(HTTP_REQUEST_DURATION_S_MAX + MARGIN_S):
            await until_closed(reader)
    finally:
        writer.close()


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_bytes_end_their_connection_only(target: Target, name: str) -> None:
    before = target.memory_bytes()
    await attack(target, HOSTILE[name])
    assert target.memory_bytes() - before < 32 * MEBIBYTE
    await target.assert_serves_others()


async def test_random_bytes_end_their_connection_only(target: Target) -> None:
    """Pure noise, and noise behind each stage of a good handshake."""
    noise = random.Random(SEED)
    starts = (b"", b"AMQP", SASL_HEADER, HANDSHAKE, HANDSHAKE + OPEN, HANDSHAKE + OPEN + BEGIN)
    attacks = [start + noise.randbytes(noise.randrange(16, 600)) for start in starts * 40]
    before = target.memory_bytes()
    await asyncio.gather(*(attack(target, data) for data in attacks))
    assert target.memory_bytes() - before < 32 * MEBIBYTE
    await target.assert_serves_others()


# What was sent at once, and what follows byte by byte, too slowly ever to be a whole handshake.
SLOW = {
    "silence": (b"", b""),
    "a header": (b"", SASL_HEADER),
    "a SASL frame": (SASL_HEADER, SASL_ANONYMOUS),
    "an open": (HANDSHAKE, OPEN),
    "an HTTP request": (b"GET / HTTP/1.1\r\nHost: x\r\n", b"X: " + b"y" * 100),
    "a TLS hello": (b"", TLS_HELLO_START + bytes(100)),
}


async def drip(writer: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        for place in range(len(data)):
            writer.write(data[place : place + 1])
            await writer.drain()
            await asyncio.sleep(0.4)


@pytest.mark.parametrize("name", SLOW)
async def test_slow_handshakes_are_cut_off(target: Target, name: str) -> None:
    """A byte now and then buys no time: the deadline is for the whole handshake."""
    start, rest = SLOW[name]
    connections = [await target.connect() for _ in range(10)]
    for _, writer in connections:
        writer.write(start)
    drips = [asyncio.create_task(drip(writer, rest)) for _, writer in connections]
    await target.assert_serves_others()
    async with asyncio.timeout(HTTP_REQUEST_DURATION_S_MAX + MARGIN_S):
        for reader, _ in connections:
            await until_closed(reader)
    for task in drips:
        task.cancel()
    await asyncio.gather(*drips, return_exceptions=True)
    for _, writer in connections:
        writer.close()


async def test_a_thousand_idle_connections_cost_little_and_leave_nothing(target: Target) -> None:
    files_before, before = target.open_files(), target.memory_bytes()
    opened = await asyncio.gather(*(target.connect() for _ in range(1_000)))
    for _, writer in opened:
        writer.write(HANDSHAKE + OPEN)
    for reader, _ in opened:
        await reader.readuntil(b"AMQP\x00\x01\x00\x00")
    await target.assert_serves_others()
    assert target.memory_bytes() - before < len(opened) * 64 * 1024
    for _, writer in opened:
        writer.close()
    await target.wait_for_open_files(files_before + 20)
    await target.assert_serves_others()


async def test_links_beyond_the_limit_are_refused(target: Target) -> None:
    before = target.memory_bytes()
    connection = await BusConnection.open(target.connection_string)
    sender = await connection.open_sender(QUEUE)
    for _ in range(HANDLES_MAX - 1):
        last = await connection.open_receiver(QUEUE, credit=0)
    for _ in range(3):
        with pytest.raises(QuotaExceeded, match=f"{HANDLES_MAX} links"):
            await connection.open_receiver(QUEUE, credit=0)
    await sender.send(b"the session and its links go on")
    last.set_credit(1)
    received = await last.receive(MARGIN_S)
    assert received is not None
    await last.complete(received)
    connection.abort()
    assert target.memory_bytes() - before < 32 * MEBIBYTE
    await target.assert_serves_others()


async def test_receivers_that_never_read_cost_bounded_memory(target: Target) -> None:
    """Each gets as much as its connection may hold, not the whole queue."""
    count, body = 400, bytes(200_000)
    async with await BusConnection.open(target.connection_string) as connection:
        sender = await connection.open_sender(FULL_QUEUE)
        for _ in range(count // 20):
            await asyncio.gather(*(sender.send(body) for _ in range(20)))
    before = target.memory_bytes()
    stuck = []
    for _ in range(4):
        connection = await BusConnection.open(target.connection_string)
        stuck.append(connection)
        await connection.open_receiver(FULL_QUEUE, credit=count)
        connection.pause_reading()
    await target.assert_serves_others()
    async with await BusConnection.open(target.connection_string) as connection:
        receiver = await connection.open_receiver(FULL_QUEUE, credit=1)
        assert await receiver.receive(MARGIN_S) is not None, "nothing left for a good receiver"
    # Both the transport and the connection may hold one buffer, and a body cache fills once.
    allowed = len(stuck) * 2 * OUTPUT_BUFFER_BYTES_MAX + BODY_CACHE_BYTES
    assert target.memory_bytes() - before < allowed
    files_before = target.open_files()
    for connection in stuck:
        connection.abort()
    await target.wait_for_open_files(files_before - len(stuck))
    await target.assert_serves_others()
