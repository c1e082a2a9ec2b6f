"""Connections that faults reset, refuse and delay, over real sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from twinbus.clock import Now, SystemClock
from twinbus.gateway.directory.directory import Directory, Entity
from twinbus.gateway.faults.faults import Faults, Wanted
from twinbus.server.http.connection import HttpProtocol
from twinbus.server.http.exchange import Request, Response
from twinbus.server.port.connections import ClientConnections, reset

pytestmark = pytest.mark.proves("A-1", "A-5", "A-6")

NOW = Now(0, 0)
LONG_MS = 500_000  # never over in a test
WAIT_S = 30


class World:
    """Two namespaces and nothing in them."""

    store_count = 1
    broker_count = 0

    def __init__(self) -> None:
        self._directory = Directory()

    def prefix(self, namespace: str) -> str | None:
        return {"first": "", "second": "second:"}.get(namespace)

    def find(self, name: str) -> Entity | None:
        return self._directory.find(name)


class Echo(asyncio.Protocol):
    """Says everything again."""

    def __init__(self) -> None:
        self.settled_namespace: str | None = None
        self.transport: Any = None
        self.is_lost = asyncio.Event()
        self.is_full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"namespace "):
            self.settled_namespace = data.split()[1].decode()
        if data.startswith(b"bye"):
            self.transport.writelines([b"good", b"bye"])
            self.transport.close()
        else:
            self.transport.write(data)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.is_lost.set()


class Door(asyncio.Protocol):
    """What the listener's sniffer does, without the sniffing."""

    def __init__(self, place: "Place") -> None:
        self._place = place
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._place.connections.refuses(self._transport, data):
            reset(self._transport)
            return
        protocol = self._place.make()
        if isinstance(protocol, Echo):
            self._place.echoes.append(protocol)
        self._place.connections.open(self._transport, protocol, data)


class Ledger:
    """A router whose requests all turn out to be for the second namespace (http.Router)."""

    def __init__(self) -> None:
        self.written = 0

    def body_max(self, request: Request) -> int:
        return 0

    async def answer(self, request: Request) -> Response:
        assert request.when_settled is not None
        request.when_settled("second")
        self.written += 1
        return Response(200, b"written")


class Place:
    """A server of echoes, and its faults."""

    def __init__(self) -> None:
        self.faults = Faults(World(), lambda: 0.0)
        self.only: str | None = "first"
        self.connections = ClientConnections(self.faults, self.by_host)
        self.make: Callable[[], asyncio.Protocol] = Echo
        self.echoes: list[Echo] = []
        self.port = 0
        self.faults.observer = self
        self._writers: list[asyncio.StreamWriter] = []

    def by_host(self, host: str | None) -> str | None:
        if host is None:
            return self.only
        label = host.partition(".")[0]
        return label if label in ("first", "second") else None

    def begin(self, fault: Any) -> None:
        self.connections.begin(fault)

    def end(self, fault: Any) -> None:
        self.connections.end()

    async def dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers.append(writer)
        return reader, writer

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.close()


@pytest_asyncio.fixture
async def place() -> AsyncIterator[Place]:
    place = Place()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Door(place), "127.0.0.1", 0)
    place.port = server.sockets[0].getsockname()[1]
    yield place
    place.hang_up()
    for echo in place.echoes:
        await asyncio.wait_for(echo.is_lost.wait(), WAIT_S)
    server.close()
    await server.wait_closed()


async def said(reader: asyncio.StreamReader, text: bytes) -> None:
    assert await asyncio.wait_for(reader.readexactly(len(text)), WAIT_S) == text


async def is_reset(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(1), WAIT_S) == b""
    except ConnectionError:
        return True


async def conversation(place: Place, first: bytes = b"hello") -> Any:
    reader, writer = await place.dial()
    writer.write(first)
    await said(reader, first)
    return reader, writer


@pytest.mark.asyncio
async def test_nothing_in_force(place: Place) -> None:
    reader, writer = await conversation(place)
    writer.write(b"again")
    await said(reader, b"again")
    writer.write(b"bye")
    await said(reader, b"goodbye")
    assert await is_reset(reader)


@pytest.mark.asyncio
async def test_open_ones_are_dropped_once(place: Place) -> None:
    reader, _ = await conversation(place)
    fault = place.faults.add(Wanted("drop-connections", namespace="first"), NOW)
    assert await is_reset(reader)
    assert fault.acted == 1
    await conversation(place)


@pytest.mark.proves("A-1")
@pytest.mark.asyncio
async def test_new_ones_are_refused_and_open_ones_stay(place: Place) -> None:
    reader, writer = await conversation(place)
    fault = place.faults.add(Wanted("refuse-connections", namespace="first"), NOW)
    late_reader, late_writer = await place.dial()
    late_writer.write(b"hello")
    assert await is_reset(late_reader)
    writer.write(b"still here")
    await said(reader, b"still here")
    assert fault.acted == 1
    place.faults.clear(fault)
    await conversation(place)


@pytest.mark.proves("A-5")
@pytest.mark.asyncio
async def test_a_namespace_that_is_cut_off(place: Place) -> None:
    reader, _ = await conversation(place)
    fault = place.faults.add(Wanted("cut-namespace", namespace="first"), NOW)
    assert await is_reset(reader)
    late_reader, late_writer = await place.dial()
    late_writer.write(b"hello")
    assert await is_reset(late_reader)
    place.faults.clear(fault)
    await conversation(place)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "request_line",
    [
        b"GET /$faults HTTP/1.1\r\n",
        b"DELETE /%24faults/3 HTTP/1.1\r\n",
        b"GET /health HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\n",
        b"GET /$page/state?top=1 HTTP/1.1\r\n",
    ],
)
async def test_faults_can_always_be_cleared(place: Place, request_line: bytes) -> None:
    place.faults.add(Wanted("cut-namespace", namespace="first"), NOW)
    place.faults.add(Wanted("delay-connections", delay_ms=LONG_MS), NOW)
    reader, _ = await conversation(place, request_line)
    place.faults.add(Wanted("drop-connections"), NOW)
    place.hang_up()
    assert await reader.read() == b""


@pytest.mark.asyncio
async def test_whose_connection_it_is_by_its_host(place: Place) -> None:
    place.only = None
    place.faults.add(Wanted("refuse-connections", namespace="second"), NOW)
    await conversation(place, b"GET /q HTTP/1.1\r\nHost: first.localhost\r\n\r\n")
    await conversation(place, b"GET /q HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    reader, writer = await place.dial()
    writer.write(b"GET /q HTTP/1.1\r\nX: y\r\nhost:  second.localhost:80\r\n\r\n")
    assert await is_reset(reader)


@pytest.mark.asyncio
async def test_whose_connection_it_is_by_what_it_says_later(place: Place) -> None:
    place.only = None
    early_reader, early_writer = await conversation(place)  # nobody knows yet
    place.faults.add(Wanted("cut-namespace", namespace="second"), NOW)
    reader, writer = await conversation(place)
    writer.write(b"namespace first")
    await said(reader, b"namespace first")
    for stray_reader, stray_writer in ((early_reader, early_writer), await conversation(place)):
        stray_writer.write(b"namespace second")
        assert await is_reset(stray_reader)


@pytest.mark.proves("A-1", "A-5")
@pytest.mark.asyncio
@pytest.mark.parametrize("kind, stays", [("cut-namespace", False), ("refuse-connections", True)])
async def test_whose_request_it_is_by_its_token(place: Place, kind: str, stays: bool) -> None:
    """What cannot come through is not done either."""
    ledger = Ledger()
    place.only = None
    place.make = lambda: HttpProtocol(ledger, SystemClock())
    asks = b"PUT /orders HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    open_reader, open_writer = await place.dial()
    open_writer.write(asks)
    await asyncio.wait_for(open_reader.readuntil(b"written"), WAIT_S)
    place.faults.add(Wanted(kind, namespace="second"), NOW)
    reader, writer = await place.dial()
    writer.write(asks)
    assert await is_reset(reader)
    assert ledger.written == 1
    if stays:
        open_writer.write(asks)
        await asyncio.wait_for(open_reader.readuntil(b"written"), WAIT_S)
    else:
        assert await is_reset(open_reader)


@pytest.mark.asyncio
async def test_everything_is_late_and_in_order(place: Place) -> None:
    reader, writer = await conversation(place)
    fault = place.faults.add(Wanted("delay-connections", namespace="first", delay_ms=20), NOW)
    for number in range(10):
        writer.write(b"%d" % number)
        await writer.drain()
        await asyncio.sleep(0)
    await said(reader, b"0123456789")
    assert fault.acted >= 2  # on the way in, and on the way out
    writer.write(b"bye")
    await said(reader, b"goodbye")
    assert await is_reset(reader)


@pytest.mark.asyncio
async def test_what_was_held_up_arrives_when_the_fault_ends(place: Place) -> None:
    reader, writer = await conversation(place)
    fault = place.faults.add(Wanted("delay-connections", delay_ms=LONG_MS), NOW)
    writer.write(b"held up")
    await until(lambda: fault.acted > 0)
    place.faults.clear(fault)
    await said(reader, b"held up")
    writer.write(b"as before")
    await said(reader, b"as before")


@pytest.mark.asyncio
async def test_what_was_written_first_arrives_first_when_the_fault_ends(place: Place) -> None:
    reader, writer = await conversation(place)
    fault = place.faults.add(Wanted("delay-connections", delay_ms=LONG_MS), NOW)
    place.echoes[0].transport.write(b"first, ")
    writer.write(b"then the answer")
    await until(lambda: fault.acted > 1)
    place.faults.clear(fault)
    await said(reader, b"first, then the answer")


@pytest.mark.asyncio
async def test_who_hangs_up_meanwhile(place: Place) -> None:
    _, writer = await conversation(place)
    place.faults.add(Wanted("delay-connections", delay_ms=LONG_MS), NOW)
    writer.write(b"never heard")
    writer.close()
    await asyncio.wait_for(place.echoes[0].is_lost.wait(), WAIT_S)


@pytest.mark.asyncio
async def test_what_is_held_back_is_bounded(place: Place) -> None:
    _, writer = await conversation(place)
    fault = place.faults.add(Wanted("delay-connections", delay_ms=LONG_MS), NOW)
    connection = place.echoes[0].transport
    connection.write(bytes(9_000_000))
    assert place.echoes[0].is_full
    writer.write(bytes(50_000_000))
    await until(lambda: writer.transport.get_write_buffer_size() > 0 and fault.acted > 5)
    assert connection.get_write_buffer_size() < 10_000_000
    connection.abort()
    writer.transport.abort()


async def until(holds: Callable[[], bool]) -> None:
    """Let the loop turn until something is so."""
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - what it waits for has no event
            await asyncio.sleep(0)
