"""The listener: one port for everything; the first bytes decide.

    "AMQP"            → AMQP, plain
    TLS hello (0x16)  → TLS, and then the same question again
    anything else     → HTTP (management, health)

The first bytes are peeked from the socket before a transport exists, so that TLS sees them too.
Where TLS is required, a client without it is told so in its own protocol, and dropped.  A client
that says nothing is dropped at the handshake deadline.  Connections that a fault refuses are reset
once it is known what they want (connections.py).
"""

import asyncio
import contextlib
import logging
import socket
import ssl
import sys
from collections.abc import Callable
from typing import Final, cast

from twinbus.limits import CONNECTIONS_MAX, TCP_SEGMENT_BYTES_MAX, TLS_HANDSHAKE_DURATION_S_MAX
from twinbus.server.port.connections import ClientConnections, reset

log = logging.getLogger("twinbus.server")

TLS_HELLO: Final = 0x16
AMQP_MAGIC: Final = b"AMQP"
BACKLOG: Final = 1_024
# What AMQP 1.0 (2.2) has a server say that speaks only TLS: the header of that layer.
TLS_OFFER: Final = b"AMQP\x02\x01\x00\x00"
TLS_REQUIRED: Final = (
    b"HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"This server takes TLS only: https in place of http.\n"
)

# A factory gets what to call when its connection is gone.
ProtocolFactory = Callable[[Callable[[], None]], asyncio.Protocol]


class Listener:
    """Accepts connections and gives each the protocol it asks for."""

    def __init__(
        self,
        amqp: ProtocolFactory,
        http: ProtocolFactory,
        tls: ssl.SSLContext,
        handshake_s: float,
        requires_tls: bool,
        connections: ClientConnections,
    ) -> None:
        self._amqp = amqp
        self._http = http
        self._connections = connections
        self._tls = tls
        self._handshake_s = handshake_s
        self._requires_tls = requires_tls
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._connection_count = 0

    def bind(self, host: str, port: int) -> int:
        """Listen; returns the port, which the system chooses when `port` is 0."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if sys.platform == "linux":  # agreed in TCP's handshake: too late for an accepted one
                listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, TCP_SEGMENT_BYTES_MAX)
            listening.bind((host, port))
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            raise
        listening.setblocking(False)
        self._sockets.append(listening)
        return cast(int, listening.getsockname()[1])

    def start(self) -> None:
        for listening in self._sockets:
            self._spawn(self._accept(listening))

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listening in self._sockets:
            listening.close()

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(listening)
            except OSError as error:  # out of descriptors: wait for some to come back
                log.warning("cannot accept connections: %s", error)
                await asyncio.sleep(0.1)
                continue
            self._spawn(self._welcome(client))

    async def _welcome(self, client: socket.socket) -> None:
        """Find out what the client speaks and hand the socket over."""
        loop = asyncio.get_running_loop()
        if self._connection_count >= CONNECTIONS_MAX:
            client.close()
            return
        self._connection_count += 1
        try:
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            first = await asyncio.wait_for(_peek(loop, client), self._handshake_s)
            if not first:
                client.close()
                self._connection_count -= 1
                return
            is_tls = first[0] == TLS_HELLO
            amqp, http = self._amqp, self._http
            if self._requires_tls and not is_tls:
                amqp = http = TlsRequired
            await loop.connect_accepted_socket(
                lambda: Sniffer(amqp, http, self._handshake_s, self._left, self._connections),
                client,
                ssl=self._tls if is_tls else None,
                ssl_handshake_timeout=TLS_HANDSHAKE_DURATION_S_MAX if is_tls else None,
            )
        except (OSError, TimeoutError, ssl.SSLError) as error:
            log.info("connection dropped in its handshake: %r", error)
            client.close()
            self._connection_count -= 1

    def _left(self) -> None:
        self._connection_count -= 1


async def _peek(loop: asyncio.AbstractEventLoop, client: socket.socket) -> bytes:
    """Wait for the first byte and look at it without taking it."""
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(client.fileno(), _set, readable)
    try:
        await readable
    finally:
        loop.remove_reader(client.fileno())
    with contextlib.suppress(BlockingIOError):
        return client.recv(1, socket.MSG_PEEK)
    return b""


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class Sniffer(asyncio.Protocol):
    """Waits for enough bytes to tell AMQP from HTTP, then gives way to that protocol."""

    def __init__(
        self,
        amqp: ProtocolFactory,
        http: ProtocolFactory,
        handshake_s: float,
        left: Callable[[], None],
        connections: ClientConnections,
    ) -> None:
        self._amqp = amqp
        self._http = http
        self._handshake_s = handshake_s
        self._left = left
        self._connections = connections
        self._data = b""
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._handshake_s, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._data += data
        if len(self._data) < len(AMQP_MAGIC) and AMQP_MAGIC.startswith(self._data):
            return
        if self._deadline is not None:
            self._deadline.cancel()
        if self._connections.refuses(self._transport, self._data):
            reset(self._transport)
            return
        factory = self._amqp if self._data.startswith(AMQP_MAGIC) else self._http
        self._connections.open(self._transport, factory(self._left), self._data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._left()


class TlsRequired(asyncio.Protocol):
    """Answers clients without TLS where it is required."""

    def __init__(self, left: Callable[[], None]) -> None:
        self._left = left
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(TLS_OFFER if data.startswith(AMQP_MAGIC) else TLS_REQUIRED)
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._left()
