"""The router of the server's port: the server itself, WebSockets, messages, entities.

GET   /, /health, /metrics            the server itself (reports.py)
…     /$faults…                       what goes wrong on purpose (fault_requests.py)
GET   /, /$page…                      the page, for browsers (page_requests.py)
…     /$pairs…                        what paired clients report (pair_reports.py)
GET   /$meter                         what is to be billed (meter_requests.py)
…     /$namespaces…                   namespaces that come and go (namespace_requests.py)
GET   /$servicebus/websocket          AMQP over WebSockets (websocket.py)
…     /{entity}/messages…             messages (rest.py)
…     everything else                 entities (atom.py)
"""

from twinbus.server.fault_requests import is_about_faults
from twinbus.server.http import Request, Response
from twinbus.server.http import Router as Answerer
from twinbus.server.meter_requests import is_about_meter
from twinbus.server.namespace_requests import is_about_namespaces
from twinbus.server.page_requests import is_about_page
from twinbus.server.pair_reports import is_about_pairs
from twinbus.server.reports import is_about_server
from twinbus.server.rest import RestRouter, is_about_messages
from twinbus.server.websocket import answer_handshake, is_websocket_path


class Router:
    """Looks at a request and gives it to whoever answers it."""

    def __init__(
        self,
        messages: RestRouter,
        entities: Answerer,
        reports: Answerer,
        faults: Answerer,
        meter: Answerer,
        namespaces: Answerer,
        page: Answerer,
        pairs: Answerer,
    ) -> None:
        self._messages = messages
        self._entities = entities
        self._reports = reports
        self._faults = faults
        self._meter = meter
        self._namespaces = namespaces
        self._page = page
        self._pairs = pairs

    async def answer(self, request: Request) -> Response:
        segments = request.segments()
        if is_websocket_path(segments):
            return answer_handshake(request)
        if is_about_page(request, segments):
            return await self._page.answer(request)
        if is_about_server(request):
            return await self._reports.answer(request)
        if is_about_faults(segments):
            return await self._faults.answer(request)
        if is_about_pairs(segments):
            return await self._pairs.answer(request)
        if is_about_meter(segments):
            return await self._meter.answer(request)
        if is_about_namespaces(segments):
            return await self._namespaces.answer(request)
        if is_about_messages(request.method, segments):
            return await self._messages.answer(request)
        return await self._entities.answer(request)
