"""HTTP/1.1 on one connection: bytes in, one request at a time to a router, bytes out.

h11 does the protocol; this shell owns the transport, the deadlines and the bounds.  It must never
keep more of a peer than one request head, one body and one read of what comes after: that one read
is how a peer that hangs up while its request is answered gets noticed.  Whatever a peer sends ends
in an answer or a closed connection, never in an exception.

A body is kept only if the head shows that it may come: the router is asked before `100 Continue`
and before any byte of it.  One that may not is answered at once, and what still comes of it is read
and forgotten, never taken for a request.  Until a token has been good for something, the peer is a
stranger, who has little room, and all strangers have their room together (strangers.py).

An answer may also go on: a stream of pieces, each whole by itself, for as long as there are any.  A
peer that reads slowly misses some of them, and one that does not read at all is dropped.

The listener calls `connection_made` and then `data_received` with the bytes it has looked at.
"""

import asyncio
import logging
import re
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, Protocol
from urllib.parse import parse_qsl, unquote
from xml.sax.saxutils import escape

import h11

from twinbus.clock import Clock
from twinbus.errors import ServerBusy, ServiceError, Unauthorized, Unavailable
from twinbus.limits import (
    HTTP_BODY_BYTES_MAX,
    HTTP_HEAD_BYTES_MAX,
    HTTP_IDLE_DURATION_S_MAX,
    HTTP_REQUEST_DURATION_S_MAX,
    STRANGER_BYTES_MAX,
    STREAM_STALL_S_MAX,
    THROTTLE_ADVICE_S,
)
from twinbus.server.port.connections import ClientConnection
from twinbus.server.port.strangers import Share, Strangers

# A refused peer may still be sending.  Closing at once would reset the connection and take our
# answer with it, so for this long we read and forget.
LINGER_DURATION_S: Final = 2.0

# Unsent bytes at which a peer gets no more answers before it has read these.
OUTPUT_BYTES_HIGH: Final = 16_384

QUERY_FIELDS_MAX: Final = 32

# What Service Bus says beside the status; .NET reads "SubCode=" up to the dot.
_SUB_CODES: Final[Mapping[int, int]] = {503: 50004}

_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

log = logging.getLogger("twinbus.server")


class Request:
    """One request: its head, and then its body, if that was let in."""

    __slots__ = (
        "_body",
        "headers",
        "method",
        "named_headers",
        "path",
        "peer",
        "query",
        "scheme",
        "when_gone",
        "when_settled",
    )

    def __init__(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        headers: dict[str, str],
        body: bytes | None,
        named_headers: tuple[tuple[str, str], ...] = (),
        scheme: str = "http",
    ) -> None:
        self.method = method
        self.path = path  # still percent-encoded, begins with "/"
        self.query = query
        self.headers = headers  # names in lower case
        self._body = body  # None: it is not all there, or was not let in
        self.named_headers = named_headers  # names as the peer wrote them
        self.scheme = scheme
        self.peer = ""  # the address it came from, where that is known
        # Whoever makes the peer wait for an answer puts here what ends the waiting: it is called
        # when the peer hangs up, and when the server stops.
        self.when_gone: Callable[[], None] | None = None
        # To be told the namespace as soon as a token has said it; raises if that is cut off.
        self.when_settled: Callable[[str], None] | None = None

    @property
    def body(self) -> bytes:
        """All of it.  Nobody may take a body that was not let in for an empty one."""
        if self._body is None:
            raise Unauthorized("The body was not read: the head did not show that it may come.")
        return self._body

    def bring(self, body: bytes) -> None:
        """The body has come."""
        self._body = body

    def segments(self) -> list[str]:
        """The path in pieces, each decoded on its own, so that `%2F` does not divide."""
        return [unquote(segment, errors="strict") for segment in self.path.strip("/").split("/")]


class Response:
    """One answer.  What a peer has sent goes into headers only after somebody looked at it.

    101 gives the connection away, to the protocol that the server has for it.
    """

    __slots__ = ("body", "content_type", "headers", "status", "stream", "when_unsent")

    def __init__(
        self,
        status: int,
        body: bytes,
        content_type: str = "text/plain; charset=utf-8",
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.headers = headers
        # In place of a body: pieces, until there are no more.  Whoever gives them ends them when
        # the request's `when_gone` is called.
        self.stream: AsyncGenerator[bytes, None] | None = None
        # Called when the peer was gone before its answer could be written.
        self.when_unsent: Callable[[], None] | None = None


class Router(Protocol):
    """What answers requests.  A ServiceError is an answer too."""

    def body_max(self, request: Request) -> int:
        """How many bytes of its body a request may bring, by its head; 0: it is not waited for."""
        ...

    async def answer(self, request: Request) -> Response: ...


def error_response(
    status: int, reason: str, headers: tuple[tuple[str, str], ...] = (), sub_code: int = 0
) -> Response:
    """An error the way Service Bus words it, so that every SDK finds its parts."""
    if status == HTTPStatus.UNAUTHORIZED:
        headers = (*headers, ("WWW-Authenticate", "SharedAccessSignature"))
    sub_code = sub_code or _SUB_CODES.get(status, status * 100)
    detail = f"{reason} SubCode={sub_code}. TrackingId:{uuid.uuid4()}"
    text = f"<Error><Code>{status}</Code><Detail>{xml_text(detail)}</Detail></Error>"
    return Response(status, text.encode(), "application/xml; charset=utf-8", headers)


def _advice(error: ServiceError) -> tuple[tuple[str, str], ...]:
    """When to try again; the SDKs' HTTP pipeline waits for so long."""
    return (("Retry-After", str(THROTTLE_ADVICE_S)),) if isinstance(error, ServerBusy) else ()


def xml_text(text: str) -> str:
    """Escaped, and without the characters that XML 1.0 cannot hold at all."""
    return escape(_NOT_XML.sub("\ufffd", text), {"\r": "&#13;"})


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
        self._share = Share(strangers or Strangers())
        self._http = _new_connection()
        self._transport: asyncio.Transport | None = None
        self._request: Request | None = None  # from its head to its answer
        self._asks_for_head = False  # and wants no body in the answer
        self._head_size = 0
        self._body = bytearray()
        self._body_max = 0
        self._drops = False  # what comes of the body is forgotten
        self._is_last = False  # what comes behind the request in hand is not looked at
        self._answering: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._between_requests = False
        self._output_is_full = False
        self._lingers = False
        self._ends = False  # the server is stopping: no request after this one
        self.settled_namespace: str | None = None  # by the latest token (port/connections.py)

    # -- what asyncio calls ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=OUTPUT_BYTES_HIGH)
        self._arm(HTTP_REQUEST_DURATION_S_MAX)

    def data_received(self, data: bytes) -> None:
        if self._lingers or self._transport is None or self._transport.is_closing():
            return
        if self._between_requests:
            self._between_requests = False
            self._arm(HTTP_REQUEST_DURATION_S_MAX)
        at = 0
        while at < len(data) and self._has_room():
            # Of a stranger little is looked at before it is known what may follow.
            end = len(data) if self.settled_namespace else at + STRANGER_BYTES_MAX
            self._feed(data[at:end])
            at = end
        if at < len(data) and not self._lingers:
            self._is_last = True
        self._count_kept()

    def eof_received(self) -> bool:
        """A peer may close its half and still wait for the answer; TLS cannot."""
        if self._lingers or self._transport is None:
            return False
        self._http.receive_data(b"")
        self._advance()
        self._tell_that_peer_is_gone()
        return self._answering is not None and not self._transport.get_extra_info("ssl_object")

    def connection_lost(self, exc: Exception | None) -> None:
        # A running answer goes on: what it creates or deletes must not stop half-way.
        self._transport = None
        self._share.release()
        self._disarm()
        self._tell_that_peer_is_gone()
        if self._when_lost is not None:
            self._when_lost()

    def pause_writing(self) -> None:
        self._output_is_full = True

    def resume_writing(self) -> None:
        self._output_is_full = False
        if self._lingers or self._transport is None:
            return
        if self._drops:
            self._transport.resume_reading()
        elif self._answering is None:
            self._await_request()

    # -- what the listener calls -------------------------------------------------------------

    def shutdown(self) -> None:
        """Finish the request in hand, if any, then close."""
        self._ends = True
        self._tell_that_peer_is_gone()
        if self._answering is None and self._transport is not None:
            self._transport.close()

    # -- reading -----------------------------------------------------------------------------

    def _has_room(self) -> bool:
        """May more be looked at?  What waits for its turn may be one read, of a stranger less."""
        if self._lingers or self._is_last:
            return False
        return not (self._waits() and self.settled_namespace is None and self._has_unread())

    def _waits(self) -> bool:
        """Is what comes now for later?"""
        return self._output_is_full or (self._answering is not None and not self._drops)

    def _has_unread(self) -> bool:
        return bool(self._http.trailing_data[0])

    def _feed(self, data: bytes) -> None:
        self._http.receive_data(data)
        if self._waits() and self._transport is not None:
            self._transport.pause_reading()
        self._advance()

    def _advance(self) -> None:
        try:
            while not self._lingers and (self._drops or not self._waits()):
                event = self._http.next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED:
                    return
                if isinstance(event, h11.ConnectionClosed):
                    self._close()
                    return
                self._take(event)
        except h11.RemoteProtocolError as error:
            if self._answering is None:
                self._refuse(error.error_status_hint, "The request is not valid HTTP.")
            else:  # nobody wants this body, but where it ends cannot be found either
                self._is_last = True

    def _take(self, event: object) -> None:
        if isinstance(event, h11.Request):
            self._take_head(event)
        elif isinstance(event, h11.Data):
            self._take_part(event.data)
        else:
            assert isinstance(event, h11.EndOfMessage)
            self._take_end()

    def _take_head(self, head: h11.Request) -> None:
        headers = dict(head.headers)
        length = int(headers.get(b"content-length", b"0"))
        self._asks_for_head = head.method == b"HEAD"
        self._head_size = sum(map(len, headers)) + sum(map(len, headers.values()))
        if not head.http_version.startswith(b"1."):
            self._refuse(505, "Only HTTP/1.0 and HTTP/1.1 are spoken here.")
        elif self._head_size > HTTP_HEAD_BYTES_MAX:
            # h11 looks at the size of a head only while it is incomplete.
            self._refuse(431, f"A head may have at most {HTTP_HEAD_BYTES_MAX} bytes.")
        elif b"transfer-encoding" in headers and b"content-length" in headers:
            # Two lengths: somebody in between may believe the other one (RFC 9112 §6.3).
            self._refuse(400, "The request has two lengths.")
        elif length > HTTP_BODY_BYTES_MAX:
            self._refuse_body(head.target.partition(b"?")[0].decode("ascii"))
        elif (request := self._parse(head)) is None:
            self._refuse(400, "The request target is not valid.")
        else:
            self._request = request
            if length or b"transfer-encoding" in headers:
                self._admit(request, length)

    def _parse(self, head: h11.Request) -> Request | None:
        assert self._transport is not None
        scheme = "https" if self._transport.get_extra_info("ssl_object") else "http"
        request = _parse_head(head, scheme)
        if request is not None:
            peer = self._transport.get_extra_info("peername")
            request.peer = str(peer[0]) if isinstance(peer, tuple) else ""
            request.when_settled = self._settle
        return request

    def _admit(self, request: Request, length: int) -> None:
        """Let a body come, or answer without it.  Nothing of it has been looked at."""
        try:
            self._body_max = self._router.body_max(request)
        except Exception:  # answering finds the same, and says so
            log.exception("a head could not be judged method=%s", request.method)
            self._body_max = 0
        if self.settled_namespace is None:
            self._body_max = min(self._body_max, STRANGER_BYTES_MAX - self._head_size)
        if self._body_max == 0 or length > self._body_max:
            self._drop_body()
        elif self._http.they_are_waiting_for_100_continue:
            self._write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))

    def _take_part(self, data: bytes) -> None:
        if self._drops:
            return
        if len(self._body) + len(data) <= self._body_max:
            self._body += data
        elif self._body_max < HTTP_BODY_BYTES_MAX:
            self._drop_body()
        else:
            assert self._request is not None
            self._refuse_body(self._request.path)

    def _take_end(self) -> None:
        if not self._drops:
            assert self._request is not None
            self._request.bring(bytes(self._body))
            self._body.clear()
            self._begin_answer()
            return
        self._drops = False
        if self._answering is None:  # it has its answer, which said that it is the last one
            self._close()

    def _drop_body(self) -> None:
        """Answer as if all were there.  Whoever needs the body finds that it is not."""
        self._body.clear()
        self._drops = True
        self._begin_answer()

    def _refuse_body(self, path: str) -> None:
        # Service Bus's status for a message that is too large; for other requests HTTP's own.
        status = 403 if path.lower().rstrip("/").endswith("/messages") else 413
        self._refuse(status, f"A body may have at most {HTTP_BODY_BYTES_MAX} bytes.")

    def _begin_answer(self) -> None:
        assert self._request is not None
        assert self._transport is not None
        self._disarm()
        if not self._drops and self._has_unread():
            self._transport.pause_reading()
        self._answering = asyncio.get_running_loop().create_task(self._answer(self._request))

    def _count_kept(self) -> None:
        """Have what a stranger makes us keep counted; too much of all of them is not kept."""
        if self._transport is None or self._lingers or self.settled_namespace is not None:
            return
        kept = len(self._http.trailing_data[0])
        if self._request is not None:
            kept += self._head_size + len(self._body)
        if self._output_is_full:
            kept += self._transport.get_write_buffer_size()
        if self._share.hold(kept) or self._answering is not None:
            return
        if self._output_is_full:
            self._transport.abort()  # it does not read what it is told
        else:
            self._refuse(503, "Too many requests without a token are under way; try again later.")

    # -- answering ---------------------------------------------------------------------------

    def _settle(self, namespace: str) -> None:
        """Nothing is done for a namespace that a fault has cut off: the connection is reset."""
        self.settled_namespace = namespace
        self._share.release()
        if isinstance(self._transport, ClientConnection) and not self._transport.may_pass():
            raise Unavailable("The namespace cannot be contacted.")

    async def _answer(self, request: Request) -> None:
        try:
            response = await self._router.answer(request)
        except ServiceError as error:
            if error.http_status == HTTPStatus.UNAUTHORIZED:
                log.info("request refused: %s", error, extra={"connection": request.peer})
            response = error_response(error.http_status, str(error), _advice(error))
        except Exception:  # one request must not take the server down
            log.exception("request failed method=%s", request.method)
            response = error_response(500, "The server failed to answer; see its log.")
        if self._transport is None or self._transport.is_closing():
            self._answering = self._request = None
            if response.when_unsent is not None:
                response.when_unsent()
            return
        if response.stream is not None:
            await self._send_stream(response, response.stream)
            return
        self._answering = self._request = None
        if response.status == HTTPStatus.SWITCHING_PROTOCOLS:
            self._switch(response)
            return
        waits = self._http.they_are_waiting_for_100_continue
        self._send(response, close=self._ends or self._drops or self._is_last)
        if self._is_last or (self._drops and waits):
            self._linger()  # whether the body will come, nobody knows
            return
        if self._drops:
            self._arm(HTTP_REQUEST_DURATION_S_MAX)
            self._advance()
            return
        if self._http.our_state is h11.MUST_CLOSE:
            self._close()
            return
        self._http.start_next_cycle()
        self._asks_for_head = False
        if self._output_is_full:
            self._arm(HTTP_IDLE_DURATION_S_MAX)
            self._count_kept()
        else:
            self._await_request()

    async def _send_stream(self, response: Response, stream: AsyncGenerator[bytes, None]) -> None:
        """Send pieces while there are any; the connection ends with them."""
        self._write(self._http.send(self._response_head(response, close=True)))
        loop = asyncio.get_running_loop()
        full_since_s: float | None = None
        try:
            async with aclosing(stream) as pieces:
                async for piece in pieces:
                    if self._transport is None or self._transport.is_closing():
                        break
                    if not self._output_is_full:
                        full_since_s = None
                        self._write(self._http.send(h11.Data(data=piece)))
                    elif full_since_s is None:
                        full_since_s = loop.time()
                    elif loop.time() - full_since_s > STREAM_STALL_S_MAX:
                        self._transport.abort()
                        break
        except Exception:  # one stream must not take the server down
            log.exception("a stream failed")
        self._answering = self._request = None
        if self._transport is not None and not self._transport.is_closing():
            self._write(self._http.send(h11.EndOfMessage()))
            self._close()

    def _switch(self, response: Response) -> None:
        """Give the connection away, with whatever has come behind the request."""
        transport = self._transport
        assert transport is not None
        if self._upgrade is None or self._ends or self._is_last:
            self._close()
            return
        if self._drops:
            self._refuse(400, "A handshake has no body.")
            return
        self._share.release()
        head = h11.InformationalResponse(status_code=101, headers=list(response.headers))
        self._write(self._http.send(head))
        self._transport = None  # nothing that happens to it concerns us any more
        protocol = self._upgrade()
        transport.set_protocol(protocol)
        transport.resume_reading()
        protocol.connection_made(transport)
        early = self._http.trailing_data[0]
        if early:
            protocol.data_received(early)

    def _tell_that_peer_is_gone(self) -> None:
        if self._request is not None and self._request.when_gone is not None:
            self._request.when_gone()

    def _await_request(self) -> None:
        """Read on.  The next request may be here already, in whole or in part."""
        assert self._transport is not None
        self._transport.resume_reading()
        self._between_requests = not self._has_unread()
        self._arm(
            HTTP_IDLE_DURATION_S_MAX if self._between_requests else HTTP_REQUEST_DURATION_S_MAX
        )
        self._advance()
        self._count_kept()

    def _refuse(self, status: int, reason: str) -> None:
        """Answer an error to something that never became a request, and hang up."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self._close()
            return
        headers = (("Retry-After", str(THROTTLE_ADVICE_S)),) if status == 503 else ()
        self._send(error_response(status, reason, headers), close=True)
        self._linger()

    def _linger(self) -> None:
        """Nothing more is answered, and nothing is kept."""
        self._lingers = True
        self._drops = False
        self._request = None
        self._body.clear()
        self._http = _new_connection()  # with what it has not looked at
        self._share.release()
        self._arm(LINGER_DURATION_S)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            if self._transport.can_write_eof():
                self._transport.write_eof()

    def _send(self, response: Response, *, close: bool) -> None:
        data = self._http.send(self._response_head(response, close=close)) or b""
        if not self._asks_for_head:
            data += self._http.send(h11.Data(data=response.body)) or b""
        data += self._http.send(h11.EndOfMessage()) or b""
        self._write(data)

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

    def _write(self, data: bytes | None) -> None:
        if self._transport is not None and data:
            self._transport.write(data)

    def _close(self) -> None:
        self._disarm()
        if self._transport is not None:
            self._transport.close()

    # -- deadlines ---------------------------------------------------------------------------

    def _arm(self, duration_s: float) -> None:
        self._disarm()
        self._deadline = asyncio.get_running_loop().call_later(duration_s, self._time_is_up)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _time_is_up(self) -> None:
        self._deadline = None
        if self._transport is None:
            return
        if self._lingers or self._output_is_full or self._between_requests or self._drops:
            self._transport.abort()
        else:
            self._refuse(408, "The request did not arrive in time.")


def _new_connection() -> h11.Connection:
    return h11.Connection(h11.SERVER, max_incomplete_event_size=HTTP_HEAD_BYTES_MAX)


def _parse_head(head: h11.Request, scheme: str) -> Request | None:
    """A request from what h11 read; None when the target cannot be understood."""
    target = head.target.decode("ascii")  # h11 lets nothing else through
    if not target.startswith("/"):
        scheme, separator, rest = target.partition("://")
        if not separator or scheme.lower() not in ("http", "https"):
            return None
        target = "/" + rest.partition("/")[2]
    path, _, query_text = target.partition("?")
    headers: dict[str, str] = {}
    named = tuple((n.decode("ascii"), v.decode("latin-1")) for n, v in head.headers.raw_items())
    for written, value in named:
        name = written.lower()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    try:
        fields = parse_qsl(
            query_text, keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX
        )
        method = head.method.decode("ascii")
        request = Request(method, path, dict(fields), headers, None, named, scheme)
        request.segments()
    except ValueError:  # not UTF-8, or too many fields
        return None
    return request
