"""Reading requests: heads first, then bodies that are allowed.

A body is read only if its head is accepted: the router decides before `100 Continue` and before any
byte of the body.  Otherwise the request is answered at once, and the rest of its body is read and
dropped, never mistaken for a request.
"""

import logging
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

import h11

from twinbus.limits import HTTP_BODY_BYTES_MAX, HTTP_HEAD_BYTES_MAX, STRANGER_BYTES_MAX
from twinbus.server.http.exchange import Request, Router
from twinbus.server.http.peer import Peer

QUERY_FIELDS_MAX: Final = 32

# What comes of reading on, beside a Refusal.
NOTHING: Final = 0  # nothing yet: there is no more to read
MORE: Final = 1
CLOSED: Final = 2  # the peer will send nothing more
CONTINUE: Final = 3  # the peer waits for a word before it sends the body
READY: Final = 4  # the request is to be answered, with its body or without
DROPPED: Final = 5  # a body that nobody wanted is over

log = logging.getLogger("twinbus.server")


class Refusal(NamedTuple):
    """Why a request was refused."""

    status: int
    reason: str


class RequestReader:
    """Reads one request at a time."""

    def __init__(self, http: h11.Connection, router: Router, peer: Peer) -> None:
        self._http = http
        self._router = router
        self._peer = peer
        self.request: Request | None = None  # from its head to its answer
        self.asks_for_head = False  # and wants no body in the answer
        self.drops = False  # what comes of the body is forgotten
        self._head_size = 0
        self._body = bytearray()
        self._body_max = 0

    @property
    def kept_bytes(self) -> int:
        kept = len(self._http.trailing_data[0])
        return kept if self.request is None else kept + self._head_size + len(self._body)

    @property
    def has_unread(self) -> bool:
        return bool(self._http.trailing_data[0])

    def feed(self, data: bytes) -> None:
        self._http.receive_data(data)

    def read_on(self) -> int | Refusal:
        event = self._http.next_event()
        if event is h11.NEED_DATA or event is h11.PAUSED:
            return NOTHING
        if isinstance(event, h11.Request):
            return self._take_head(event)
        if isinstance(event, h11.Data):
            return self._take_part(event.data)
        return self._take_end() if isinstance(event, h11.EndOfMessage) else CLOSED

    def _take_head(self, head: h11.Request) -> int | Refusal:
        headers = dict(head.headers)
        length = int(headers.get(b"content-length", b"0"))
        self.asks_for_head = head.method == b"HEAD"
        self._head_size = sum(map(len, headers)) + sum(map(len, headers.values()))
        if not head.http_version.startswith(b"1."):
            return Refusal(505, "Only HTTP/1.0 and HTTP/1.1 are spoken here.")
        if self._head_size > HTTP_HEAD_BYTES_MAX:
            # h11 looks at the size of a head only while it is incomplete.
            return Refusal(431, f"A head may have at most {HTTP_HEAD_BYTES_MAX} bytes.")
        if b"transfer-encoding" in headers and b"content-length" in headers:
            # Two lengths: somebody in between may believe the other one (RFC 9112 §6.3).
            return Refusal(400, "The request has two lengths.")
        if length > HTTP_BODY_BYTES_MAX:
            return _too_large(head.target.partition(b"?")[0].decode("ascii"))
        request = _parse_head(head, "https" if self._peer.has_tls else "http")
        if request is None:
            return Refusal(400, "The request target is not valid.")
        request.peer = self._peer.address
        request.when_settled = self._peer.settle
        self.request = request
        has_body = length or b"transfer-encoding" in headers
        return self._admit(request, length) if has_body else MORE

    def _admit(self, request: Request, length: int) -> int:
        """Let a body come, or answer without it.  Nothing of it has been looked at."""
        try:
            self._body_max = self._router.body_max(request)
        except Exception:  # answering finds the same, and says so
            log.exception("a head could not be judged method=%s", request.method)
            self._body_max = 0
        if self._peer.is_stranger:
            self._body_max = min(self._body_max, STRANGER_BYTES_MAX - self._head_size)
        if self._body_max == 0 or length > self._body_max:
            return self._drop_body()
        return CONTINUE if self._http.they_are_waiting_for_100_continue else MORE

    def _take_part(self, data: bytes) -> int | Refusal:
        if self.drops:
            return MORE
        if len(self._body) + len(data) <= self._body_max:
            self._body += data
            return MORE
        if self._body_max < HTTP_BODY_BYTES_MAX:
            return self._drop_body()
        assert self.request is not None
        return _too_large(self.request.path)

    def _take_end(self) -> int:
        if self.drops:
            self.drops = False
            return DROPPED
        assert self.request is not None
        self.request.bring(bytes(self._body))
        self._body.clear()
        return READY

    def _drop_body(self) -> int:
        """Answer as if all were there.  Whoever needs the body finds that it is not."""
        self._body.clear()
        self.drops = True
        return READY


def _too_large(path: str) -> Refusal:
    # Service Bus's status for a message that is too large; for other requests HTTP's own.
    status = 403 if path.lower().rstrip("/").endswith("/messages") else 413
    return Refusal(status, f"A body may have at most {HTTP_BODY_BYTES_MAX} bytes.")


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
