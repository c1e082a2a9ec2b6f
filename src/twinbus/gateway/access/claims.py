"""The claims of one connection: what its tokens grant, looked up by path.

.NET puts a token for every link, so a connection with thousands of links has thousands of grants,
and a search through all of them at every attach would be slow.
"""

from collections.abc import Callable

from twinbus.errors import Unauthorized
from twinbus.gateway.access.shared_access import Grant
from twinbus.limits import TOKENS_MAX

Stands = Callable[[Grant], bool]  # is the rule behind a grant still there?


class Claims:
    """At most one grant for each scope; the newest counts."""

    __slots__ = ("_by_scope", "_is_replaced")

    def __init__(self) -> None:
        self._by_scope: dict[str, Grant] = {}
        self._is_replaced = False  # since links were last compared with these

    def __len__(self) -> int:
        return len(self._by_scope)

    def __contains__(self, scope: str) -> bool:
        return scope in self._by_scope

    def put(self, grant: Grant) -> None:
        """Add a grant, in place of the one for the same scope."""
        if grant.scope in self._by_scope:
            self._is_replaced = True
        elif len(self._by_scope) >= TOKENS_MAX:
            raise Unauthorized(f"A connection holds at most {TOKENS_MAX} tokens.")
        self._by_scope[grant.scope] = grant

    def allow(self, right: str, path: str, now_s: int, stands: Stands) -> bool:
        """Does any of them give this right on this entity?"""
        return any(grant.allows(right, path, now_s) and stands(grant) for grant in self._over(path))

    def _over(self, path: str) -> list[Grant]:
        """The grants whose scope may cover a path: those for the path and for what is above it."""
        path = path.strip("/").lower()
        if len(self._by_scope) <= path.count("/") + 2:
            return list(self._by_scope.values())
        scopes = ["", path]
        at = path.find("/")
        while at >= 0:
            scopes.append(path[:at])
            at = path.find("/", at + 1)
        return [self._by_scope[scope] for scope in scopes if scope in self._by_scope]

    def have_shrunk(self, now_s: int, stands: Stands) -> bool:
        """May a link that had its claim have lost it?  Thousands of links are not asked every
        second for what changes only with the grants."""
        is_replaced, self._is_replaced = self._is_replaced, False
        return is_replaced or any(
            now_s >= grant.expires_s or not stands(grant) for grant in self._by_scope.values()
        )

    def drop_expired(self, now_s: int) -> int:
        """Forget what grants nothing any more; says how many there were."""
        expired = [s for s, grant in self._by_scope.items() if now_s >= grant.expires_s]
        for scope in expired:
            del self._by_scope[scope]
        return len(expired)
