"""Who may look at the server: its metrics, and the details of its health.

    a token with the Listen claim of a namespace   sees that namespace
    a request from this machine                    sees everything, without a token
    with --open-metrics, anyone                    sees everything

So a scraper on the same machine needs no key.  But a proxy there must not open the door to the
world, and neither must a browser that another site's page sent here: both are recognized by their
headers.
"""

import ipaddress
from typing import Final

from twinbus.errors import Unauthorized
from twinbus.gateway.access.shared_access import LISTEN
from twinbus.gateway.namespaces.namespace import Namespace
from twinbus.server.http.access import AUTHORIZATION, HttpAccess
from twinbus.server.http.exchange import Request

_FORWARDED: Final = ("forwarded", "via", "x-forwarded-for", "x-real-ip")


class Viewers:
    """Checks every request that wants to look behind the front page."""

    def __init__(self, access: HttpAccess, is_open: bool) -> None:
        self._access = access
        self._is_open = is_open

    def scope(self, request: Request) -> Namespace | None:
        """What the request may see: one namespace, or everything (None); else Unauthorized."""
        if AUTHORIZATION in request.headers:
            return self._access.authorize(request, LISTEN, "")
        if self._is_open or is_local(request):
            return None
        raise Unauthorized("A token with the Listen claim is required in Authorization.")


def is_local(request: Request) -> bool:
    """Does it come from this machine, from somebody who means this server?"""
    if not _is_loopback(request.peer) or any(name in request.headers for name in _FORWARDED):
        return False
    host = request.headers.get("host", "").lower()
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name == "localhost" or name.endswith(".localhost") or _is_loopback(name)


def _is_loopback(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
