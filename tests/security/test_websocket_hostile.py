"""WebSockets from peers that mean no good: a clean end, bounded memory, others served."""

import random
import socket
import ssl
import time
from collections.abc import Iterator
from typing import Self

import pytest
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage

from tests.security.memory import memory_bytes
from twinbus.certificates import ca_certificate
from twinbus.limits import OUTPUT_BUFFER_BYTES_MAX
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.proves("M-10")

HANDSHAKE_S = 1.0
SOCKET_DURATION_S = 30.0

SASL_HEADER = b"AMQP\x03\x01\x00\x00"
HEAD = (
    b"GET /$servicebus/websocket%s HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: %s\r\n\r\n"
)
OPENING = HEAD % (b"", b"AMQPWSB10")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data_dir = tmp_path_factory.mktemp("hostile") / "data"
    with ServerProcess(data_dir, arguments=("--handshake", str(HANDSHAKE_S))) as process:
        yield process


@pytest.fixture(autouse=True)
def unharmed(server: ServerProcess) -> Iterator[None]:
    """After every test a new client is served, and no traceback was logged."""
    yield
    with Peer(server) as peer:
        peer.send(BytesMessage(data=SASL_HEADER))
        assert peer.receive(8).startswith(SASL_HEADER)
    assert "Traceback" not in server.log


class Peer:
    """A WebSocket client that says exactly what it is told to."""

    def __init__(
        self, server: ServerProcess, opening: bytes = OPENING, *, tls: bool = False
    ) -> None:
        self.sock = socket.create_connection(("127.0.0.1", server.port), SOCKET_DURATION_S)
        if tls:
            context = ssl.create_default_context(cafile=str(ca_certificate(server.data_dir)))
            self.sock = context.wrap_socket(self.sock, server_hostname="127.0.0.1")
        self.frames = Connection(ConnectionType.CLIENT)
        self.sock.sendall(opening)
        answer = b""
        while b"\r\n\r\n" not in answer:
            part = self.sock.recv(4_096)
            assert part, answer
            answer += part
        self.head, _, early = answer.partition(b"\r\n\r\n")
        if self.head.startswith(b"HTTP/1.1 101"):
            self.frames.receive_data(early)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, *events: Event) -> None:
        self.sock.sendall(b"".join(self.frames.send(event) for event in events))

    def events(self) -> Iterator[Event]:
        """Everything that comes until the server closes."""
        yield from self.frames.events()
        while True:
            try:
                data = self.sock.recv(65_536)
            except ConnectionResetError:
                return
            if not data:
                return
            self.frames.receive_data(data)
            yield from self.frames.events()

    def receive(self, size: int) -> bytes:
        data = b""
        for event in self.events():
            assert isinstance(event, BytesMessage), event
            data += event.data
            if len(data) >= size:
                break
        return data

    def end(self) -> int:
        """The code with which the server closes; 0 when it just hangs up."""
        for event in self.events():
            if isinstance(event, CloseConnection):
                return event.code
        return 0


@pytest.mark.proves("M-10")
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("path", [b"", b"/"], ids=["bare", "slash"])
@pytest.mark.parametrize("name", [b"AMQPWSB10", b"amqp", b"x, amqp"])
def test_opening(server: ServerProcess, path: bytes, name: bytes, tls: bool) -> None:
    with Peer(server, HEAD % (path, name), tls=tls) as peer:
        assert peer.head.startswith(b"HTTP/1.1 101 ")
        peer.send(BytesMessage(data=SASL_HEADER))
        assert peer.receive(8).startswith(SASL_HEADER)


@pytest.mark.parametrize("name", [b"", b"mqtt", b"AMQPWSB10x", b"\xff", b"a" * 8_000])
def test_wrong_sub_protocol(server: ServerProcess, name: bytes) -> None:
    with Peer(server, HEAD % (b"", name)) as peer:
        assert peer.head.startswith(b"HTTP/1.1 400 ")


def test_data_behind_the_request_is_not_lost(server: ServerProcess) -> None:
    early = Connection(ConnectionType.CLIENT).send(BytesMessage(data=SASL_HEADER))
    with Peer(server, OPENING + bytes(early)) as peer:
        assert peer.receive(8).startswith(SASL_HEADER)


def test_a_byte_at_a_time(server: ServerProcess) -> None:
    with Peer(server) as peer:
        for byte in SASL_HEADER[:-1]:
            peer.send(BytesMessage(data=bytes([byte]), message_finished=False), Ping(payload=b""))
        peer.send(BytesMessage(data=SASL_HEADER[-1:]))
        events = peer.events()
        for _ in SASL_HEADER[:-1]:
            assert next(events) == Pong(payload=b"")
        event = next(events)
        assert isinstance(event, BytesMessage)
        assert event.data.startswith(SASL_HEADER)


def test_text(server: ServerProcess) -> None:
    with Peer(server) as peer:
        peer.send(TextMessage(data="AMQP" * 100_000))
        assert peer.end() == 1003


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_not_masked(server: ServerProcess, tls: bool) -> None:
    with Peer(server, tls=tls) as peer:
        peer.sock.sendall(b"\x82\x08" + SASL_HEADER)
        assert peer.end() == 1002


def test_a_frame_without_end(server: ServerProcess) -> None:
    """Four exbibytes are announced; AMQP inside decides, and nothing is gathered."""
    with Peer(server) as peer:
        peer.sock.sendall(b"\x82\xff" + (1 << 62).to_bytes(8, "big") + b"\0\0\0\0")
        peer.sock.sendall(SASL_HEADER + b"\xff\xff\xff\xff\x02\x01\x00\x00")
        try:
            for _ in range(64):
                peer.sock.sendall(bytes(65_536))
        except OSError:
            pass  # the server has hung up, as it may
        assert peer.end() in (0, 1000)


def test_silence_after_the_upgrade(server: ServerProcess) -> None:
    """The AMQP handshake has its deadline here too, and pings do not prolong it."""
    with Peer(server) as peer:
        started = time.monotonic()
        codes = 0
        for event in peer.events():
            if isinstance(event, CloseConnection):
                codes = event.code
                break
        assert codes == 1000
        assert time.monotonic() - started < HANDSHAKE_S + SOCKET_DURATION_S


def test_a_flood_of_pings_that_nobody_reads(server: ServerProcess) -> None:
    """Answers pile up to the bound, then the peer is not read any more."""
    before = memory_bytes(server)
    ping = bytes(Connection(ConnectionType.CLIENT).send(Ping(payload=bytes(125))))
    with Peer(server) as peer:
        peer.sock.settimeout(0.5)
        data = memoryview(ping * 1_000)
        sent = 0
        try:
            while sent < 8 * OUTPUT_BUFFER_BYTES_MAX:  # a send may take only a part of it
                sent += peer.sock.send(data[sent % len(data) :])
        except OSError:
            pass  # full, or hung up on
        assert sent < 8 * OUTPUT_BUFFER_BYTES_MAX
        assert memory_bytes(server) < before + 4 * OUTPUT_BUFFER_BYTES_MAX


def test_damaged_frames(server: ServerProcess) -> None:
    source = random.Random(20_261_116)
    client = Connection(ConnectionType.CLIENT)
    good = bytes(client.send(BytesMessage(data=SASL_HEADER)) + client.send(Ping(payload=b"p")))
    for _ in range(40):
        data = bytearray(good * 2)
        for _ in range(source.randrange(1, 4)):
            data[source.randrange(len(data))] = source.randrange(256)
        with Peer(server) as peer:
            peer.sock.sendall(data)
            peer.sock.shutdown(socket.SHUT_WR)
            peer.end()
