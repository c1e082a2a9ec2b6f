"""One request and its answer, as handlers see them."""

import json
import re
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Protocol
from urllib.parse import unquote
from xml.sax.saxutils import escape

from twinbus.errors import Unauthorized

# What Service Bus says beside the status; .NET reads "SubCode=" up to the dot.
_SUB_CODES: Final[Mapping[int, int]] = {503: 50004}

_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(slots=True, eq=False)
class Request:
    """One request: its head, and then its body, if that was let in."""

    method: str
    path: str  # still percent-encoded, begins with "/"
    query: dict[str, str]
    headers: dict[str, str]  # names in lower case
    _body: bytes | None  # None: it is not all there, or was not let in
    named_headers: tuple[tuple[str, str], ...] = ()  # names as the peer wrote them
    scheme: str = "http"
    peer: str = ""  # the address it came from, where that is known
    # Whoever makes the peer wait for an answer puts here what ends the waiting: it is called when
    # the peer hangs up, and when the server stops.
    when_gone: Callable[[], None] | None = None
    # To be told the namespace as soon as a token has said it; raises if that is cut off.
    when_settled: Callable[[str], None] | None = None

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


@dataclass(slots=True, eq=False)
class Response:
    """One answer.  Text from a peer goes into headers only after it has been checked.

    101 hands the connection over to the protocol that the server has for it.
    """

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()
    # In place of a body: pieces, until there are no more.  Whoever gives them ends them when the
    # request's `when_gone` is called.
    stream: AsyncGenerator[bytes, None] | None = None
    # Called when the peer was gone before its answer could be written.
    when_unsent: Callable[[], None] | None = None


class Router(Protocol):
    """What answers requests.  A ServiceError is an answer too."""

    def body_max(self, request: Request) -> int:
        """How many bytes of its body a request may bring, by its head; 0: it is not waited for."""
        ...

    async def answer(self, request: Request) -> Response: ...


def json_response(
    status: int, document: object, headers: tuple[tuple[str, str], ...] = ()
) -> Response:
    return Response(status, json.dumps(document).encode(), "application/json", headers)


def read_json(text: str | bytes) -> Any:
    """What a peer has written as JSON; None if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


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


def xml_text(text: str) -> str:
    """Escaped, and without the characters that XML 1.0 cannot hold at all."""
    return escape(_NOT_XML.sub("\ufffd", text), {"\r": "&#13;"})
