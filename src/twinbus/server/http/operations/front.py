"""The server's own pages: the front page, `/health` and `/metrics`.

A queue may still have one of these names: clients of entities send the version of the API that
they use (`api-version`), and other visitors do not.
"""

from typing import Final

from twinbus.server.http.access import Claim
from twinbus.server.http.exchange import Request, Response
from twinbus.server.http.operations.health import HealthRequests
from twinbus.server.http.operations.metrics import MetricsRequests

_FRONT_PAGE: Final = b"""\
twinbus: a self-hosted, durable service bus that speaks Azure Service Bus's protocol.

This port takes AMQP 1.0 (over TCP or WebSockets) and HTTP, plain or TLS. For a connection string,
see `twinbus env`. Entities are managed by ServiceBusAdministrationClient or `twinbus queue`.

GET /health says whether the server is ready, GET /metrics what it has counted.
"""


def is_about_server(request: Request) -> bool:
    """Is it asked about the server, and not about an entity?"""
    if request.method not in ("GET", "HEAD") or "api-version" in request.query:
        return False
    if request.path == "/":
        return "authorization" not in request.headers
    return request.path in ("/health", "/metrics")


class FrontRequests:
    """Answers what `is_about_server`."""

    def __init__(self, health: HealthRequests, metrics: MetricsRequests) -> None:
        self._health = health
        self._metrics = metrics

    def claim(self, request: Request) -> Claim | None:
        return None

    async def answer(self, request: Request) -> Response:
        if request.path == "/health":
            return await self._health.answer(request)
        if request.path == "/metrics":
            return await self._metrics.answer(request)
        return Response(200, _FRONT_PAGE)
