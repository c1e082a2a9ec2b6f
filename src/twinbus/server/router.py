"""The router of the server's port: what is public, WebSockets, messages, and entities.

GET   /health, /                      anybody (health.py)
GET   /$servicebus/websocket          AMQP over WebSockets (websocket.py)
…     /{entity}/messages…             messages (rest.py)
…     everything else                 entities (atom.py)
"""

from twinbus.server.health import answer_in_public
from twinbus.server.http import Request, Response
from twinbus.server.http import Router as Answerer
from twinbus.server.rest import RestRouter, is_about_messages
from twinbus.server.websocket import answer_handshake, is_websocket_path


class Router:
    """Looks at a request and gives it to whoever answers it."""

    def __init__(self, messages: RestRouter, entities: Answerer) -> None:
        self._messages = messages
        self._entities = entities

    async def answer(self, request: Request) -> Response:
        segments = request.segments()
        if is_websocket_path(segments):
            return answer_handshake(request)
        public = answer_in_public(request)
        if public is not None:
            return public
        if is_about_messages(request.method, segments):
            return await self._messages.answer(request)
        return await self._entities.answer(request)
