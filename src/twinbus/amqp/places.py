"""Bounds what clients make a server keep: a place for each session, link and token.

The number of channels says nothing about memory: one client with 5,000 links costs as much as 5,000
clients with one.  So the bound is on the sum over all connections, with a much smaller sum for
clients that have not shown a valid credential.  The first few places of every connection are free,
so that nobody can lock the others out by taking them all.
"""

from twinbus.limits import (
    CONNECTION_LINKS_MAX,
    HANDLES_MAX,
    PLACES_FREE,
    PLACES_MAX,
    STRANGER_PLACES_MAX,
)


class ServerPlaces:
    """Over all connections of a server."""

    __slots__ = ("strangers", "taken")

    def __init__(self) -> None:
        self.taken = 0  # by connections that are known
        self.strangers = 0  # by the others


class Places:
    """Of one connection."""

    __slots__ = ("_is_closed", "_server", "is_known", "link_count", "refused_count", "taken")

    def __init__(self, server: ServerPlaces) -> None:
        self._server = server
        self._is_closed = False
        self.is_known = False  # has it shown a valid credential?
        self.taken = 0
        self.link_count = 0  # among them
        self.refused_count = 0  # links refused here that the peer has not detached yet

    def refusal(self) -> str:
        """Why there is no place for one more; "" if there is."""
        if self.taken < PLACES_FREE:
            return ""
        server = self._server
        if self.is_known:
            if server.taken < PLACES_MAX:
                return ""
            return f"all clients together have {PLACES_MAX} sessions, links and tokens; close some"
        if server.strangers < STRANGER_PLACES_MAX:
            return ""
        return (
            f"clients without a valid token have {STRANGER_PLACES_MAX} sessions and links together "
            f"and at most {PLACES_FREE} more each; put a token on $cbs first"
        )

    def link_refusal(self) -> str:
        """The same for a link."""
        if self.link_count >= CONNECTION_LINKS_MAX:
            return f"the connection has {CONNECTION_LINKS_MAX} links; open another connection"
        return self.refusal()

    @property
    def refused_max(self) -> int:
        """How many refused links a peer may leave undetached before it is hung up on."""
        return HANDLES_MAX if self.is_known else PLACES_FREE

    def take(self) -> None:
        self._count(1)

    def give(self) -> None:
        self._count(-1)

    def take_link(self) -> None:
        self.link_count += 1
        self._count(1)

    def give_link(self) -> None:
        self.link_count -= 1
        self._count(-1)

    def know(self) -> None:
        """The peer has shown a valid credential: it counts among the clients now."""
        if not self.is_known:
            taken = self.taken
            self._count(-taken)
            self.is_known = True
            self._count(taken)

    def close(self) -> None:
        """The connection is gone, and everything with it."""
        self._count(-self.taken)
        self._is_closed = True

    def _count(self, change: int) -> None:
        if self._is_closed:
            return
        self.taken += change
        if self.is_known:
            self._server.taken += change
        else:
            self._server.strangers += change
