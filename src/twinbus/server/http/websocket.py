"""AMQP over WebSockets: `/$servicebus/websocket` on the port that everything shares.

    socket ─▶ frames (wsproto) ─▶ bytes of binary messages ─▶ AmqpEndpoint
    socket ◀─ frames (wsproto) ◀─ write, writelines ◀─ AmqpEndpoint

To the socket this is a protocol, to the endpoint a transport, and otherwise nothing: the endpoint
keeps its deadlines, its bounds and its back-pressure.  Bytes are passed on as they come, whatever
frames and fragments they come in, so no message of a peer is ever gathered here.  Extensions are
not spoken; compression would let a small frame become a large one.
"""

import asyncio
import base64
import binascii
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import generate_accept_token

from twinbus.server.http.connection import LINGER_DURATION_S
from twinbus.server.http.exchange import Request, Response, error_response

# Service Bus's own name first, then the one of the AMQP WebSocket binding.
SUB_PROTOCOLS: Final = ("AMQPWSB10", "amqp")
VERSION: Final = "13"  # RFC 6455

# Clients bound the messages they take (aiohttp: 4 MiB); the longest with a short head is plenty.
MESSAGE_BYTES_MAX: Final = 65_535
# A read may hold tens of thousands of tiny frames; after so many others get their turn.
TURN_FRAMES_MAX: Final = 256

_PATH: Final = ["$servicebus", "websocket"]
_NONCE_BYTES: Final = 16


def is_websocket_path(segments: list[str]) -> bool:
    """Is this where AMQP over WebSockets is served?"""
    return [segment.lower() for segment in segments] == _PATH


def answer_handshake(request: Request) -> Response:
    """101 with the headers that open the WebSocket, or why not."""
    headers = request.headers
    upgrade = (("Upgrade", "websocket"),)
    if request.method != "GET":
        return error_response(405, "The method is not allowed.", (("Allow", "GET"),))
    if "websocket" not in _tokens(headers.get("upgrade", "").lower()):
        return error_response(426, "AMQP over WebSockets is served here.", upgrade)
    if headers.get("sec-websocket-version") != VERSION:
        version = (*upgrade, ("Sec-WebSocket-Version", VERSION))
        return error_response(426, f"Only WebSocket version {VERSION} is spoken here.", version)
    if "upgrade" not in _tokens(headers.get("connection", "").lower()):
        return error_response(400, "The handshake needs 'Connection: Upgrade'.")
    key = headers.get("sec-websocket-key", "").strip()
    if not _is_nonce(key):
        return error_response(400, "Sec-WebSocket-Key is not 16 bytes in Base64.")
    offered = _tokens(headers.get("sec-websocket-protocol", ""))
    for sub_protocol in SUB_PROTOCOLS:
        if sub_protocol in offered:
            accept = generate_accept_token(key.encode("ascii")).decode("ascii")
            opened = ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", accept)
            chosen = ("Sec-WebSocket-Protocol", sub_protocol)
            return Response(101, b"", headers=(*upgrade, *opened, chosen))
    known = " or ".join(SUB_PROTOCOLS)
    return error_response(400, f"The sub-protocol must be {known}.")


def _tokens(text: str) -> list[str]:
    return [token.strip() for token in text.split(",")]


def _is_nonce(key: str) -> bool:
    try:
        return len(base64.b64decode(key.encode("ascii"), validate=True)) == _NONCE_BYTES
    except (binascii.Error, UnicodeEncodeError):
        return False


class WebSocket(asyncio.Transport, asyncio.Protocol):
    """One open WebSocket: the endpoint's transport, the socket's protocol."""

    def __init__(self, endpoint: asyncio.Protocol) -> None:
        super().__init__()
        self._endpoint = endpoint
        self._frames = Connection(ConnectionType.SERVER)
        self._transport: asyncio.Transport | None = None
        self._held = False  # the endpoint wants nothing more for now
        self._behind = False  # frames of the last read are still to be looked at
        self._deaf = False  # failed: what still comes is read and forgotten

    @property
    def settled_namespace(self) -> str | None:
        """As the endpoint has it."""
        settled: str | None = getattr(self._endpoint, "settled_namespace", None)
        return settled

    # -- what the socket calls ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._endpoint.connection_made(self)

    def data_received(self, data: bytes) -> None:
        if self._deaf or self._frames.state is ConnectionState.CLOSED:
            return
        self._frames.receive_data(data)
        self._advance()

    def pause_writing(self) -> None:
        self._endpoint.pause_writing()

    def resume_writing(self) -> None:
        self._endpoint.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._endpoint.connection_lost(exc)

    # -- what the endpoint calls -------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        if self._transport is None or self._frames.state is not ConnectionState.OPEN:
            return
        data = b"".join(list_of_data)
        for start in range(0, len(data), MESSAGE_BYTES_MAX):
            part = data[start : start + MESSAGE_BYTES_MAX]
            self._transport.write(self._frames.send(BytesMessage(data=part)))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._transport is None else self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._held = True
        self._update_reading()

    def resume_reading(self) -> None:
        self._held = False
        self._update_reading()

    def is_closing(self) -> bool:
        return self._transport is None or self._frames.state is not ConnectionState.OPEN

    def close(self) -> None:
        """Say so and wait for the peer's answer; the endpoint does not wait long (abort)."""
        if self._transport is not None and self._frames.state is ConnectionState.OPEN:
            self._send(CloseConnection(code=CloseReason.NORMAL_CLOSURE))
            self.resume_reading()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -- frames ------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Look at frames of what has been read, TURN_FRAMES_MAX at most."""
        if self._transport is None or self._deaf:
            return
        received: list[bytes | bytearray] = []
        end: CloseConnection | TextMessage | None = None
        count = 0
        for event in islice(self._frames.events(), TURN_FRAMES_MAX):
            count += 1
            if isinstance(event, BytesMessage):
                received.append(event.data)
            elif isinstance(event, Ping):
                self._send(event.response())
            elif isinstance(event, CloseConnection | TextMessage):
                end = event
                break
        if received and self._frames.state is not ConnectionState.LOCAL_CLOSING:
            self._endpoint.data_received(b"".join(received))
        if end is not None:
            self._finish(end)
            return
        self._behind = count == TURN_FRAMES_MAX
        self._update_reading()
        if self._behind:
            asyncio.get_running_loop().call_soon(self._advance)

    def _finish(self, end: CloseConnection | TextMessage) -> None:
        """The peer closes, answers our closing, or has done what it must not."""
        state = self._frames.state
        if isinstance(end, TextMessage):
            self._fail(CloseReason.UNSUPPORTED_DATA, "AMQP comes in binary messages.")
        elif state is ConnectionState.OPEN or state is ConnectionState.LOCAL_CLOSING:
            self._fail(CloseReason(end.code), "These are not WebSocket frames.")
        elif self._transport is not None:
            self._send(end.response())
            self._transport.close()

    def _fail(self, code: CloseReason, reason: str) -> None:
        """Say why and hang up.  At once would take the words along, so read on for a moment."""
        self._send(CloseConnection(code=code, reason=reason))
        self._deaf = True
        self.resume_reading()
        if self._transport is not None:
            if self._transport.can_write_eof():
                self._transport.write_eof()
            asyncio.get_running_loop().call_later(LINGER_DURATION_S, self.abort)

    def _send(self, event: Event) -> None:
        """A control frame; none goes out behind our own closing."""
        may = (ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING)
        if self._transport is not None and self._frames.state in may:
            self._transport.write(self._frames.send(event))

    def _update_reading(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if (self._held or self._behind) and not self._deaf:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()
