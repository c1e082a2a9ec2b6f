"""HTTP/1.1 on one connection: bytes in, one request at a time to a router, bytes out.

    bytes ─▶ RequestReader ─▶ Request ─▶ Router ─▶ Response ─▶ ResponseWriter ─▶ bytes

h11 does the protocol; this shell owns the deadlines and the bounds.  It must never buffer more from
a peer than one request head, one body and one read after that; the extra read is how we notice a
peer that hangs up before its answer.  Whatever a peer sends ends in an answer or a closed
connection, never in an exception.

The listener calls `connection_made` and then `data_received` with the bytes it has looked at.
"""

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import h11

from twinbus.clock import Clock
from twinbus.errors import ServerBusy, ServiceError
from twinbus.limits import (
    HTTP_HEAD_BYTES_MAX,
    HTTP_IDLE_DURATION_S_MAX,
    HTTP_REQUEST_DURATION_S_MAX,
    STRANGER_BYTES_MAX,
    THROTTLE_ADVICE_S,
)
from twinbus.server.http.exchange import Request, Response, Router, error_response
from twinbus.server.http.peer import Peer
from twinbus.server.http.reading import (
    CLOSED,
    CONTINUE,
    DROPPED,
    NOTHING,
    READY,
    Refusal,
    RequestReader,
)
from twinbus.server.http.writing import ResponseWriter
from twinbus.server.port.strangers import Strangers

# A refused peer may still be sending.  Closing at once would reset the connection and take our
# answer with it, so for this long we read and forget.
LINGER_DURATION_S: Final = 2.0

# Unsent bytes at which a peer gets no more answers before it has read these.
OUTPUT_BYTES_HIGH: Final = 16_384

# When to try again; the SDKs' HTTP pipeline waits for so long.
_ADVICE: Final = (("Retry-After", str(THROTTLE_ADVICE_S)),)

log = logging.getLogger("twinbus.server")


class HttpProtocol(asyncio.Protocol):
    """One connection."""

    def __init__(
        self,
        router: Router,
        clock: Clock,
        when_lost: Callable[[], None] | None = None,
        upgrade: Callable[[], asyncio.Protocol] | None = None,
        strangers: Strangers | None = None,
    ) -> None:
        self._router = router
        self._clock = clock
        self._when_lost = when_lost
        self._upgrade = upgrade  # makes what takes over after a 101
        self._peer = Peer(strangers or Strangers())
        self._begin_http()
        self._is_last = False  # what comes behind the request in hand is not looked at
        self._answering: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._between_requests = False
        self._lingers = False
        self._ends = False  # the server is stopping: no request after this one

    def _begin_http(self) -> None:
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HTTP_HEAD_BYTES_MAX)
        self._reader = RequestReader(self._http, self._router, self._peer)
        self._writer = ResponseWriter(self._http, self._clock, self._peer)

    @property
    def settled_namespace(self) -> str | None:
        """By the latest token (port/connections.py)."""
        return self._peer.settled_namespace

    # -- what asyncio calls ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._peer.transport = transport
        transport.set_write_buffer_limits(high=OUTPUT_BYTES_HIGH)
        self._arm(HTTP_REQUEST_DURATION_S_MAX)

    def data_received(self, data: bytes) -> None:
        if self._lingers or self._peer.is_gone:
            return
        if self._between_requests:
            self._between_requests = False
            self._arm(HTTP_REQUEST_DURATION_S_MAX)
        at = 0
        while at < len(data) and self._has_room():
            # Of a stranger little is looked at before it is known what may follow.
            end = at + STRANGER_BYTES_MAX if self._peer.is_stranger else len(data)
            self._feed(data[at:end])
            at = end
        if at < len(data) and not self._lingers:
            self._is_last = True
        self._count_kept()

    def eof_received(self) -> bool:
        """A peer may close its half and still wait for the answer; TLS cannot."""
        if self._lingers or self._peer.transport is None:
            return False
        self._reader.feed(b"")
        self._advance()
        self._tell_that_peer_is_gone()
        return self._answering is not None and not self._peer.has_tls

    def connection_lost(self, exc: Exception | None) -> None:
        # A running answer goes on: what it creates or deletes must not stop half-way.
        self._peer.transport = None
        self._peer.release()
        self._disarm()
        self._tell_that_peer_is_gone()
        if self._when_lost is not None:
            self._when_lost()

    def pause_writing(self) -> None:
        self._writer.is_full = True

    def resume_writing(self) -> None:
        self._writer.is_full = False
        if self._lingers or self._peer.transport is None:
            return
        if self._reader.drops:
            self._peer.transport.resume_reading()
        elif self._answering is None:
            self._await_request()

    # -- what the listener calls -------------------------------------------------------------

    def shutdown(self) -> None:
        """Finish the request in hand, if any, then close."""
        self._ends = True
        self._tell_that_peer_is_gone()
        if self._answering is None and self._peer.transport is not None:
            self._peer.transport.close()

    # -- reading -----------------------------------------------------------------------------

    def _has_room(self) -> bool:
        """May more be looked at?  What waits for its turn may be one read, of a stranger less."""
        if self._lingers or self._is_last:
            return False
        return not (self._waits() and self._peer.is_stranger and self._reader.has_unread)

    def _waits(self) -> bool:
        """Is what comes now for later?"""
        return self._writer.is_full or (self._answering is not None and not self._reader.drops)

    def _feed(self, data: bytes) -> None:
        self._reader.feed(data)
        if self._waits() and self._peer.transport is not None:
            self._peer.transport.pause_reading()
        self._advance()

    def _advance(self) -> None:
        try:
            while not self._lingers and (self._reader.drops or not self._waits()):
                found = self._reader.read_on()
                if found == NOTHING:
                    return
                if found == CLOSED:
                    self._close()
                    return
                self._take(found)
        except h11.RemoteProtocolError as error:
            if self._answering is None:
                self._refuse(error.error_status_hint, "The request is not valid HTTP.")
            else:  # nobody wants this body, but where it ends cannot be found either
                self._is_last = True

    def _take(self, found: int | Refusal) -> None:
        if isinstance(found, Refusal):
            self._refuse(found.status, found.reason)
        elif found == CONTINUE:
            self._writer.inform(HTTPStatus.CONTINUE)
        elif found == READY:
            self._begin_answer()
        elif found == DROPPED and self._answering is None:
            self._close()  # it has its answer, which said that it is the last one

    def _await_request(self) -> None:
        """Read on.  The next request may be here already, in whole or in part."""
        assert self._peer.transport is not None
        self._peer.transport.resume_reading()
        self._between_requests = not self._reader.has_unread
        self._arm(
            HTTP_IDLE_DURATION_S_MAX if self._between_requests else HTTP_REQUEST_DURATION_S_MAX
        )
        self._advance()
        self._count_kept()

    def _count_kept(self) -> None:
        """Have what a stranger makes us keep counted; too much of all of them is not kept."""
        transport = self._peer.transport
        if transport is None or self._lingers or not self._peer.is_stranger:
            return
        kept = self._reader.kept_bytes
        if self._writer.is_full:
            kept += transport.get_write_buffer_size()
        if self._peer.hold(kept) or self._answering is not None:
            return
        if self._writer.is_full:
            transport.abort()  # it does not read what it is told
        else:
            self._refuse(503, "Too many requests without a token are under way; try again later.")

    # -- answering ---------------------------------------------------------------------------

    def _begin_answer(self) -> None:
        assert self._reader.request is not None
        assert self._peer.transport is not None
        self._disarm()
        if not self._reader.drops and self._reader.has_unread:
            self._peer.transport.pause_reading()
        work = self._answer(self._reader.request)
        self._answering = asyncio.get_running_loop().create_task(work)

    async def _answer(self, request: Request) -> None:
        response = await self._ask(request)
        is_unsent = self._peer.is_gone
        if response.stream is not None and not is_unsent:
            await self._writer.send_stream(response, response.stream)
        self._answering = self._reader.request = None
        if is_unsent:
            if response.when_unsent is not None:
                response.when_unsent()
        elif response.stream is not None:
            if not self._peer.is_gone:
                self._close()
        elif response.status == HTTPStatus.SWITCHING_PROTOCOLS:
            self._switch(response)
        else:
            self._send(response)

    async def _ask(self, request: Request) -> Response:
        try:
            return await self._router.answer(request)
        except ServiceError as error:
            if error.http_status == HTTPStatus.UNAUTHORIZED:
                log.info("request refused: %s", error, extra={"connection": request.peer})
            advice = _ADVICE if isinstance(error, ServerBusy) else ()
            return error_response(error.http_status, str(error), advice)
        except Exception:  # one request must not take the server down
            log.exception("request failed method=%s", request.method)
            return error_response(500, "The server failed to answer; see its log.")

    def _send(self, response: Response) -> None:
        """And what follows: the next request, the rest of a body, or the end."""
        drops, waits = self._reader.drops, self._http.they_are_waiting_for_100_continue
        has_body = not self._reader.asks_for_head
        close = self._ends or drops or self._is_last
        self._writer.send(response, close=close, has_body=has_body)
        if self._is_last or (drops and waits):
            self._linger()  # whether the body will come, nobody knows
        elif drops:
            self._arm(HTTP_REQUEST_DURATION_S_MAX)
            self._advance()
        elif self._http.our_state is h11.MUST_CLOSE:
            self._close()
        else:
            self._http.start_next_cycle()
            self._reader.asks_for_head = False
            if self._writer.is_full:
                self._arm(HTTP_IDLE_DURATION_S_MAX)
                self._count_kept()
            else:
                self._await_request()

    def _switch(self, response: Response) -> None:
        """Give the connection away, with whatever has come behind the request."""
        transport = self._peer.transport
        assert transport is not None
        if self._upgrade is None or self._ends or self._is_last:
            self._close()
            return
        if self._reader.drops:
            self._refuse(400, "A handshake has no body.")
            return
        self._peer.release()
        self._writer.inform(response.status, response.headers)
        self._peer.transport = None  # nothing that happens to it concerns us any more
        protocol = self._upgrade()
        transport.set_protocol(protocol)
        transport.resume_reading()
        protocol.connection_made(transport)
        early = self._http.trailing_data[0]
        if early:
            protocol.data_received(early)

    def _tell_that_peer_is_gone(self) -> None:
        request = self._reader.request
        if request is not None and request.when_gone is not None:
            request.when_gone()

    # -- the end -----------------------------------------------------------------------------

    def _refuse(self, status: int, reason: str) -> None:
        """Answer an error to something that never became a request, and hang up."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self._close()
            return
        response = error_response(status, reason, _ADVICE if status == 503 else ())
        has_body = not self._reader.asks_for_head
        self._writer.send(response, close=True, has_body=has_body)
        self._linger()

    def _linger(self) -> None:
        """Nothing more is answered, and nothing is kept."""
        self._lingers = True
        is_full = self._writer.is_full
        self._begin_http()  # without what the old one has not looked at
        self._writer.is_full = is_full
        self._peer.release()
        self._arm(LINGER_DURATION_S)
        transport = self._peer.transport
        if transport is not None and not transport.is_closing():
            transport.resume_reading()
            if transport.can_write_eof():
                transport.write_eof()

    def _close(self) -> None:
        self._disarm()
        if self._peer.transport is not None:
            self._peer.transport.close()

    def _arm(self, duration_s: float) -> None:
        self._disarm()
        self._deadline = asyncio.get_running_loop().call_later(duration_s, self._time_is_up)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _time_is_up(self) -> None:
        self._deadline = None
        if self._peer.transport is None:
            return
        is_idle = self._writer.is_full or self._between_requests or self._reader.drops
        if self._lingers or is_idle:
            self._peer.transport.abort()
        else:
            self._refuse(408, "The request did not arrive in time.")
