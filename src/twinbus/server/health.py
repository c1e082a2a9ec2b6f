"""What anybody may ask over HTTP: the health check and the front page.

Neither needs a token, so neither says anything about the namespace.  A queue may be named `health`
all the same: a request that carries a token is about entities.
"""

import json
from typing import Final

from twinbus.server.http import Request, Response

# The shape of Microsoft's emulator, so that what waits for that one can wait for this one.
_HEALTHY: Final = json.dumps({"status": "healthy", "message": "twinbus is ready."}).encode()

_FRONT_PAGE: Final = b"""\
twinbus: a self-hosted, durable service bus that speaks Azure Service Bus's protocol.

This port takes AMQP 1.0 (over TCP or WebSockets) and HTTP, plain or TLS. For a connection string,
see `twinbus env`. Entities are managed by ServiceBusAdministrationClient or `twinbus queue`.

GET /health says whether the server is ready.
"""


def answer_in_public(request: Request) -> Response | None:
    """The answer, or None when the request is about something that needs a token."""
    if request.method in ("GET", "HEAD") and "authorization" not in request.headers:
        if request.path == "/health":
            return Response(200, _HEALTHY, "application/json")
        if request.path == "/":
            return Response(200, _FRONT_PAGE)
    return None
