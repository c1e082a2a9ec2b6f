"""The router of the server's port: the server itself, WebSockets, messages, entities.

GET   /, /health, /metrics            the server itself (operations/front.py)
…     /$faults…                       what goes wrong on purpose (operations/faults.py)
GET   /, /$page…                      the page, for browsers (page/routes.py)
…     /$pairs…                        what paired clients report (page/pair_reports.py)
GET   /$meter                         what is to be billed (operations/meter.py)
…     /$namespaces…                   namespaces that come and go (operations/namespaces.py)
GET   /$servicebus/websocket          AMQP over WebSockets (websocket.py)
…     /{entity}/messages…             messages (rest/requests.py)
…     everything else                 entities (atom/entities.py)

Each says what a request needs before its body is read; where it says nothing, no body is read.
"""

from dataclasses import dataclass
from typing import Protocol

from twinbus.server.http.access import Claim, HttpAccess
from twinbus.server.http.exchange import Request, Response
from twinbus.server.http.operations.faults import is_about_faults
from twinbus.server.http.operations.front import is_about_server
from twinbus.server.http.operations.meter import is_about_meter
from twinbus.server.http.operations.namespaces import is_about_namespaces
from twinbus.server.http.page.pair_reports import is_about_pairs
from twinbus.server.http.page.routes import is_about_page
from twinbus.server.http.rest.requests import is_about_messages
from twinbus.server.http.websocket import answer_handshake, is_websocket_path


class Answerer(Protocol):
    """Answers some of the requests."""

    def claim(self, request: Request) -> Claim | None:
        """What a request needs, by its head; None: it has no body, whoever sends it."""
        ...

    async def answer(self, request: Request) -> Response: ...


@dataclass
class Router:
    """Looks at a request and passes it to the handler that answers it."""

    access: HttpAccess
    messages: Answerer
    entities: Answerer
    front: Answerer
    faults: Answerer
    meter: Answerer
    namespaces: Answerer
    page: Answerer
    pairs: Answerer

    def body_max(self, request: Request) -> int:
        found = self._find(request)
        return 0 if found is None else self.access.body_max(request, found.claim(request))

    async def answer(self, request: Request) -> Response:
        found = self._find(request)
        return answer_handshake(request) if found is None else await found.answer(request)

    def _find(self, request: Request) -> Answerer | None:
        """Whom a request is for; None: the opening of a WebSocket."""
        segments = request.segments()
        if is_websocket_path(segments):
            return None
        if is_about_page(request, segments):
            return self.page
        if is_about_server(request):
            return self.front
        if is_about_faults(segments):
            return self.faults
        if is_about_pairs(segments):
            return self.pairs
        if is_about_meter(segments):
            return self.meter
        if is_about_namespaces(segments):
            return self.namespaces
        if is_about_messages(request.method, segments):
            return self.messages
        return self.entities
