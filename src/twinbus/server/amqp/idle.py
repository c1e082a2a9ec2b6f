"""How long a client may take, and how long it may do nothing.

What idles is found by looking now and then at numbers that links keep anyway, so that no message
pays for it.  A link is in use when messages, outcomes or credit move on it, even if it is the same
credit again, or when the client asks anything on a $management node: a handler that renews its lock
for an hour moves nothing else.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from twinbus.amqp.egress import EgressLink
from twinbus.amqp.endpoints import Link
from twinbus.amqp.ingress import IngressLink
from twinbus.limits import FIRST_LINK_S_MAX, LAST_LINK_S_MAX, LINK_IDLE_S_MAX
from twinbus.server.amqp.receiving import ReceivingLink

_LOOKS: Final = 10  # within the time after which a link is idle


class Deadlines(NamedTuple):
    """All in seconds; a test may shorten them."""

    handshake_s: float
    cbs_s: float
    first_link_s: float = FIRST_LINK_S_MAX  # until a connection has its first link
    last_link_s: float = LAST_LINK_S_MAX  # after its last one went
    link_idle_s: float = LINK_IDLE_S_MAX


class IdleWatch:
    """Watches the links of one connection."""

    def __init__(self, deadlines: Deadlines, mono_ms: int) -> None:
        self._deadlines = deadlines
        self._had_link = False
        self._linkless_since_ms = mono_ms  # meaningful while there is no link
        self._look_ms = mono_ms
        self._asked = 0  # requests on all $management nodes, and the like
        self._marks: dict[Link, tuple[int, int, int]] = {}  # two numbers, and since when

    def is_unused(self, has_links: bool, mono_ms: int) -> bool:
        """Has the connection been without a link for too long?"""
        if has_links:
            self._had_link = True
            self._linkless_since_ms = mono_ms
            return False
        deadlines = self._deadlines
        limit_s = deadlines.last_link_s if self._had_link else deadlines.first_link_s
        return mono_ms - self._linkless_since_ms > limit_s * 1_000

    def is_due(self, mono_ms: int) -> bool:
        """Is it time to look for idle links again?"""
        return mono_ms >= self._look_ms

    def idle_links(
        self, entity_links: Iterable[Link], other_links: Iterable[Link], mono_ms: int
    ) -> list[Link]:
        """Links to entities that nobody has used for too long.

        `other_links` are those of request/response nodes: they never idle themselves.
        """
        idle_ms = int(self._deadlines.link_idle_s * 1_000)
        self._look_ms = mono_ms + idle_ms // _LOOKS
        asked = sum(link.delivery_count for link in other_links if isinstance(link, IngressLink))
        has_asked = asked != self._asked
        self._asked = asked
        marks: dict[Link, tuple[int, int, int]] = {}
        idle: list[Link] = []
        for link in entity_links:
            count, waiting = _numbers(link)
            known = self._marks.get(link)
            since_ms = mono_ms
            if known is not None and not has_asked and known[:2] == (count, waiting):
                since_ms = known[2]
            marks[link] = (count, waiting, since_ms)
            if mono_ms - since_ms >= idle_ms:
                idle.append(link)
        self._marks = marks
        return idle


def _numbers(link: Link) -> tuple[int, int]:
    """Two numbers of which one changes whenever something moves on the link."""
    if isinstance(link, IngressLink):
        return link.delivery_count, link.unsettled_count
    assert isinstance(link, EgressLink)
    flows = link.context.watch.flows if isinstance(link.context, ReceivingLink) else 0
    return link.delivery_count + flows, link.unsettled_count + link.link_credit
