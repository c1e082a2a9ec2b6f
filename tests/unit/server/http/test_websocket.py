"""AMQP over WebSockets, over a transport in memory: handshake, frames, closing, bounds."""

import asyncio
import random
from typing import Any

import pytest
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage

from twinbus.server.http.exchange import Request
from twinbus.server.http.websocket import (
    MESSAGE_BYTES_MAX,
    TURN_FRAMES_MAX,
    WebSocket,
    answer_handshake,
    is_websocket_path,
)

pytestmark = [pytest.mark.proves("M-10"), pytest.mark.asyncio]

# The example of RFC 6455 §1.3.
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


class MemoryTransport(asyncio.Transport):
    """The socket's side: what was written, and whether it reads and lives."""

    def __init__(self, *, half_closes: bool) -> None:
        super().__init__({"peername": "somebody"})
        self.half_closes = half_closes
        self.written = bytearray()
        self.limits: tuple[int | None, int | None] = (None, None)
        self.reads = True
        self.closed = False
        self.aborted = False
        self.ended = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        assert not self.ended
        self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limits = (high, low)

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def can_write_eof(self) -> bool:
        return self.half_closes

    def write_eof(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_reading(self) -> bool:
        return self.reads

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = self.closed = True

    def is_closing(self) -> bool:
        return self.closed


class Taker(asyncio.Protocol):
    """Where the endpoint would be: takes bytes, and writes to the transport it was given."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.data = bytearray()
        self.reads = 0
        self.paused = False
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.reads += 1

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False

    def is_paused(self) -> bool:
        return self.paused

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


class Peer:
    """A WebSocket under test, and the client on the other side of it."""

    def __init__(self, *, half_closes: bool = True) -> None:
        self.taker = Taker()
        self.socket = MemoryTransport(half_closes=half_closes)
        self.websocket = WebSocket(self.taker)
        self.websocket.connection_made(self.socket)
        self.client = Connection(ConnectionType.CLIENT)

    def send(self, *events: Event, size: int = 1 << 20) -> None:
        """Let the client say something, in reads of `size` bytes."""
        self.feed(b"".join(self.client.send(event) for event in events), size)

    def feed(self, data: bytes, size: int = 1 << 20) -> None:
        for start in range(0, len(data), size):
            self.websocket.data_received(data[start : start + size])

    def answers(self) -> list[Event]:
        """What the client has heard since the last call."""
        self.client.receive_data(bytes(self.socket.written))
        self.socket.written.clear()
        return list(self.client.events())

    async def turns(self) -> None:
        for _ in range(50):
            await asyncio.sleep(0)


def request(method: str = "GET", **headers: str) -> Request:
    given = {
        "upgrade": "websocket",
        "connection": "keep-alive, Upgrade",
        "sec-websocket-version": "13",
        "sec-websocket-key": KEY,
        "sec-websocket-protocol": "AMQPWSB10",
    }
    given.update({name.replace("_", "-"): value for name, value in headers.items()})
    return Request(method, "/$servicebus/websocket", {}, given, b"")


class TestHandshake:
    @pytest.mark.proves("M-10")
    @pytest.mark.feature("transport.websocket")
    @pytest.mark.parametrize(
        "offered, chosen",
        [
            ("AMQPWSB10", "AMQPWSB10"),
            ("amqp", "amqp"),
            ("amqp, AMQPWSB10", "AMQPWSB10"),
            ("mqtt,amqp", "amqp"),
        ],
    )
    async def test_is_accepted(self, offered: str, chosen: str) -> None:
        answer = answer_handshake(request(sec_websocket_protocol=offered))
        assert answer.status == 101
        assert dict(answer.headers) == {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Accept": ACCEPT,
            "Sec-WebSocket-Protocol": chosen,
        }

    async def test_asks_for_no_extension(self) -> None:
        answer = answer_handshake(request(sec_websocket_extensions="permessage-deflate"))
        assert answer.status == 101
        assert "Sec-WebSocket-Extensions" not in dict(answer.headers)

    @pytest.mark.parametrize(
        "headers, status, reason",
        [
            ({"sec_websocket_protocol": ""}, 400, b"AMQPWSB10 or amqp"),
            ({"sec_websocket_protocol": "mqtt, amqpwsb10"}, 400, b"AMQPWSB10 or amqp"),
            ({"sec_websocket_key": ""}, 400, b"Sec-WebSocket-Key"),
            ({"sec_websocket_key": "AAAA"}, 400, b"Sec-WebSocket-Key"),
            ({"sec_websocket_key": KEY[:-2] + "ä="}, 400, b"Sec-WebSocket-Key"),
            ({"sec_websocket_key": f"{KEY}, {KEY}"}, 400, b"Sec-WebSocket-Key"),
            ({"sec_websocket_version": "8"}, 426, b"version 13"),
            ({"connection": "close"}, 400, b"Connection: Upgrade"),
            ({"upgrade": "h2c"}, 426, b"WebSockets"),
            ({"upgrade": ""}, 426, b"WebSockets"),
        ],
    )
    async def test_is_refused(self, headers: dict[str, str], status: int, reason: bytes) -> None:
        answer = answer_handshake(request(**headers))
        assert answer.status == status
        assert reason in answer.body

    async def test_is_a_get(self) -> None:
        answer = answer_handshake(request("POST"))
        assert answer.status == 405
        assert dict(answer.headers) == {"Allow": "GET"}

    async def test_path(self) -> None:
        assert is_websocket_path(["$servicebus", "websocket"])
        assert is_websocket_path(["$ServiceBus", "WebSocket"])
        assert not is_websocket_path(["$servicebus"])
        assert not is_websocket_path(["$servicebus", "websocket", "x"])


class TestFrames:
    @pytest.mark.proves("M-10")
    @pytest.mark.feature("transport.websocket")
    @pytest.mark.parametrize("size", [1, 7, 1 << 20])
    async def test_bytes_come_through_in_any_frames_and_pieces(self, size: int) -> None:
        peer = Peer()
        whole = random.Random(5).randbytes(70_000)
        peer.send(
            BytesMessage(data=whole[:1]),
            BytesMessage(data=b""),
            BytesMessage(data=whole[1:200], message_finished=False),
            Ping(payload=b"in between"),
            BytesMessage(data=whole[200:300], message_finished=False),
            BytesMessage(data=whole[300:]),
            size=size,
        )
        assert peer.taker.data == whole
        assert peer.answers() == [Pong(payload=b"in between")]

    async def test_one_read_is_one_read(self) -> None:
        """Many small frames in one read reach the endpoint together: they share a commit."""
        peer = Peer()
        peer.send(*(BytesMessage(data=b"x") for _ in range(100)))
        assert peer.taker.reads == 1
        assert len(peer.taker.data) == 100

    async def test_what_has_come_of_a_large_frame_is_not_kept_back(self) -> None:
        peer = Peer()
        frame = bytes(peer.client.send(BytesMessage(data=bytes(100_000))))
        peer.feed(frame[:50_000])
        assert len(peer.taker.data) > 49_000
        assert len(peer.websocket._frames._proto._frame_decoder.buffer) == 0

    @pytest.mark.proves("M-10")
    async def test_writes_are_binary_messages_of_bounded_size(self) -> None:
        peer = Peer()
        whole = random.Random(6).randbytes(3 * MESSAGE_BYTES_MAX)
        peer.taker.transport.writelines([whole[:10], memoryview(whole)[10:]])
        peer.taker.transport.write(b"end")
        messages = peer.answers()
        assert all(isinstance(message, BytesMessage) for message in messages)
        sizes = [len(message.data) for message in messages if isinstance(message, BytesMessage)]
        assert sizes == [MESSAGE_BYTES_MAX] * 3 + [3]
        sent = b"".join(m.data for m in messages if isinstance(m, BytesMessage))
        assert sent == whole + b"end"
        peer.taker.transport.writelines([])
        assert peer.answers() == []

    async def test_a_flood_of_frames_is_taken_in_turns(self) -> None:
        peer = Peer()
        count = 3 * TURN_FRAMES_MAX + 7
        peer.send(*(BytesMessage(data=b"x") for _ in range(count)))
        assert len(peer.taker.data) == TURN_FRAMES_MAX
        assert not peer.socket.is_reading()
        await peer.turns()
        assert len(peer.taker.data) == count
        assert peer.socket.is_reading()

    async def test_lost_between_the_turns(self) -> None:
        peer = Peer()
        peer.send(*(BytesMessage(data=b"x") for _ in range(2 * TURN_FRAMES_MAX)))
        peer.websocket.connection_lost(None)
        await peer.turns()
        assert len(peer.taker.data) == TURN_FRAMES_MAX
        assert peer.taker.lost


class TestTransport:
    @pytest.mark.proves("M-10")
    async def test_back_pressure_both_ways(self) -> None:
        peer = Peer()
        peer.websocket.pause_writing()
        assert peer.taker.is_paused()
        peer.websocket.resume_writing()
        assert not peer.taker.is_paused()
        peer.taker.transport.pause_reading()
        assert not peer.socket.is_reading()
        peer.send(BytesMessage(data=b"was on its way"))  # TLS may still hand over what it has
        assert not peer.socket.is_reading()
        peer.taker.transport.resume_reading()
        assert peer.socket.is_reading()

    async def test_what_the_socket_knows(self) -> None:
        peer = Peer()
        transport = peer.taker.transport
        assert transport.get_extra_info("peername") == "somebody"
        transport.set_write_buffer_limits(high=9)
        assert peer.socket.limits == (9, None)
        transport.write(b"12345")
        assert transport.get_write_buffer_size() == 7
        peer.websocket.connection_lost(None)
        assert transport.get_extra_info("peername", "nobody") == "nobody"
        assert transport.get_write_buffer_size() == 0
        assert transport.is_closing()
        for call in (transport.close, transport.abort, transport.resume_reading):
            call()
        transport.set_write_buffer_limits(high=1)
        transport.write(b"into the void")

    async def test_abort(self) -> None:
        peer = Peer()
        peer.taker.transport.abort()
        assert peer.socket.aborted


class TestClosing:
    @pytest.mark.proves("M-10")
    async def test_by_the_peer(self) -> None:
        peer = Peer()
        peer.send(BytesMessage(data=b"last"), CloseConnection(code=1000, reason="bye"))
        assert peer.taker.data == b"last"
        assert peer.answers() == [CloseConnection(code=1000, reason="bye")]
        assert peer.socket.is_closing()
        assert peer.taker.transport.is_closing()
        peer.feed(b"more")
        assert peer.taker.data == b"last"

    @pytest.mark.proves("M-10")
    async def test_by_the_endpoint(self) -> None:
        peer = Peer()
        transport = peer.taker.transport
        transport.pause_reading()
        transport.write(b"last")
        transport.close()
        transport.close()
        assert transport.is_closing()
        assert peer.socket.is_reading()  # or the peer's answer would not be seen
        transport.write(b"too late")
        peer.send(BytesMessage(data=b"crossing"), Ping(payload=b""))
        last, close = peer.answers()
        assert last == BytesMessage(data=b"last")
        assert isinstance(close, CloseConnection) and close.code == 1000
        assert not peer.socket.is_closing()
        peer.send(close.response())
        assert peer.socket.is_closing()
        assert peer.taker.data == b""

    @pytest.mark.parametrize("half_closes", [True, False], ids=["plain", "tls"])
    @pytest.mark.parametrize(
        "frames, code",
        [
            (b"\x81\x82\0\0\0\0hi", 1003),  # text
            (b"\x82\x02hi", 1002),  # not masked
            (b"\xc2\x82\0\0\0\0hi", 1002),  # a bit of an extension nobody asked for
            (b"\x83\x80\0\0\0\0", 1002),  # an unknown kind
            (b"\x80\x80\0\0\0\0", 1002),  # goes on with nothing
            (b"\x09\x80\0\0\0\0", 1002),  # a ping in pieces
            (b"\x89\xfe\x00\x7e\0\0\0\0", 1002),  # a ping too long
            (b"\x82\xff\xff" + b"\xff" * 7 + b"\0\0\0\0", 1002),  # longer than there is
            (b"\x88\x81\0\0\0\0x", 1002),  # a close of one byte
            (b"\x88\x82\0\0\0\0\x03\xed", 1002),  # 1005 is never sent
            (b"\x88\x84\0\0\0\0\x03\xe8\xff\xff", 1007),  # a reason that is no text
            (b"\x02\x80\0\0\0\0\x82\x80\0\0\0\0", 1002),  # a message within a message
        ],
    )
    async def test_by_doing_what_one_must_not(
        self, frames: bytes, code: int, half_closes: bool
    ) -> None:
        peer = Peer(half_closes=half_closes)
        peer.send(BytesMessage(data=b"good"))
        peer.feed(frames)
        [close] = peer.answers()
        assert isinstance(close, CloseConnection) and close.code == code
        assert peer.taker.data == b"good"
        assert peer.socket.ended == half_closes
        assert not peer.socket.is_closing()  # for a moment: the reason is to arrive
        peer.feed(b"\x82\x81\0\0\0\0x" * 10)
        assert peer.taker.data == b"good"
        assert peer.taker.transport.is_closing()
        peer.websocket.connection_lost(None)
        assert peer.taker.lost

    async def test_garbage_instead_of_the_answer_to_our_close(self) -> None:
        peer = Peer()
        peer.taker.transport.close()
        peer.feed(b"\xff" * 20)
        [close] = peer.answers()
        assert isinstance(close, CloseConnection) and close.code == 1000
        assert peer.taker.data == b""


@pytest.mark.parametrize("seed", range(8))
async def test_damaged_frames_never_raise(seed: int) -> None:
    source = random.Random(seed)
    # A message, a ping, a message in two pieces; masked with zeros, so that the seed says it all.
    good = b"\x82\xfe\0\x82\0\0\0\0" + b"a" * 130 + b"\x89\x81\0\0\0\0b"
    good += b"\x02\x81\0\0\0\0c" + b"\x80\x81\0\0\0\0d"
    for _ in range(100):
        data = bytearray(good * 3)
        for _ in range(source.randrange(1, 5)):
            data[source.randrange(len(data))] = source.randrange(256)
        peer = Peer(half_closes=bool(seed % 2))
        peer.feed(bytes(data), source.randrange(1, 200))
        peer.answers()
        assert len(peer.taker.data) <= len(data)
        peer.websocket.connection_lost(None)


async def test_text_is_refused_before_its_end() -> None:
    peer = Peer()
    peer.send(TextMessage(data="AMQP", message_finished=False))
    [close] = peer.answers()
    assert isinstance(close, CloseConnection) and close.code == 1003
