"""Which namespace a viewer looks at, and whether it may see the others too.

a token          its namespace, and no other
no token         viewers that need none (viewers.py) choose with ?namespace=; the default is
                 the host's namespace, or the first
"""

from twinbus.errors import EntityNotFound, Unauthorized
from twinbus.gateway.namespaces.namespace import Namespace
from twinbus.gateway.namespaces.registry import Namespaces
from twinbus.server.http.exchange import Request
from twinbus.server.http.viewers import Viewers


class PageScope:
    """Asked before anything is shown."""

    def __init__(self, viewers: Viewers, namespaces: Namespaces) -> None:
        self._viewers = viewers
        self._namespaces = namespaces

    def look(self, request: Request) -> tuple[Namespace, bool]:
        """The namespace, and whether all of them may be seen; Unauthorized if not even that."""
        seen = self._viewers.scope(request)
        wanted = request.query.get("namespace", "").lower()
        if seen is not None:
            if wanted and wanted != seen.name.lower():
                raise Unauthorized("The token is for another namespace.")
            return seen, False
        if not wanted:
            by_host = self._namespaces.by_host(request.headers.get("host"))
            return by_host or self._namespaces.default, True
        for each in self._namespaces.all():
            if each.name.lower() == wanted:
                return each, True
        raise EntityNotFound(f"There is no namespace '{wanted[:64]}'.")
