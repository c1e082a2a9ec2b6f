"""Writing answers: whole ones, and those that go on."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from email.utils import formatdate
from http import HTTPStatus

import h11

from twinbus.clock import Clock
from twinbus.limits import STREAM_STALL_S_MAX
from twinbus.server.http.exchange import Response
from twinbus.server.http.peer import Peer

log = logging.getLogger("twinbus.server")


class ResponseWriter:
    """Writes one answer at a time."""

    def __init__(self, http: h11.Connection, clock: Clock, peer: Peer) -> None:
        self._http = http
        self._clock = clock
        self._peer = peer
        self.is_full = False  # the peer does not read what it has been sent

    def inform(self, status: int, headers: tuple[tuple[str, str], ...] = ()) -> None:
        """A word that is no answer yet."""
        head = h11.InformationalResponse(status_code=status, headers=list(headers))
        self._peer.write(self._http.send(head))

    def send(self, response: Response, *, close: bool, has_body: bool) -> None:
        data = self._http.send(self._response_head(response, close=close)) or b""
        if has_body:
            data += self._http.send(h11.Data(data=response.body)) or b""
        data += self._http.send(h11.EndOfMessage()) or b""
        self._peer.write(data)

    async def send_stream(self, response: Response, stream: AsyncGenerator[bytes, None]) -> None:
        """Send pieces while there are any.

        A peer that reads slowly misses some of them, and one that does not read at all is dropped.
        """
        self._peer.write(self._http.send(self._response_head(response, close=True)))
        loop = asyncio.get_running_loop()
        full_since_s: float | None = None
        try:
            async with aclosing(stream) as pieces:
                async for piece in pieces:
                    transport = self._peer.transport
                    if transport is None or transport.is_closing():
                        break
                    if not self.is_full:
                        full_since_s = None
                        self._peer.write(self._http.send(h11.Data(data=piece)))
                    elif full_since_s is None:
                        full_since_s = loop.time()
                    elif loop.time() - full_since_s > STREAM_STALL_S_MAX:
                        transport.abort()
                        break
        except Exception:  # one stream must not take the server down
            log.exception("a stream failed")
        if not self._peer.is_gone:
            self._peer.write(self._http.send(h11.EndOfMessage()))

    def _response_head(self, response: Response, *, close: bool) -> h11.Response:
        headers = [
            ("Date", formatdate(self._clock.now().utc_ms // 1000, usegmt=True)),
            ("Server", "twinbus"),
            ("X-Content-Type-Options", "nosniff"),
            *response.headers,
        ]
        if response.status != HTTPStatus.NO_CONTENT:  # which has no body to speak of
            headers.append(("Content-Type", response.content_type))
            if response.stream is None:
                headers.append(("Content-Length", str(len(response.body))))
        if close:
            headers.append(("Connection", "close"))
        reason = HTTPStatus(response.status).phrase
        return h11.Response(status_code=response.status, headers=headers, reason=reason)
