"""What the links and nodes of one connection share, and all that they know of it.

The endpoint is above this, and so are they; below are the parts:

    access     for which namespace the connection is, and what its client may
    traffic    commands to the stores, frames to the client
    links      those that are open
"""

import secrets
from collections.abc import Iterator
from typing import Protocol, cast

from twinbus.amqp.composites import AmqpError
from twinbus.amqp.endpoints import Link
from twinbus.entities.session_locks import SessionLock
from twinbus.errors import ServiceError
from twinbus.gateway.namespaces.namespace import Namespace
from twinbus.gateway.transactions import GatewayTransactions
from twinbus.message.message_id import MessageIds
from twinbus.server.amqp.access import ConnectionAccess
from twinbus.server.amqp.traffic import Traffic


class LinkContext(Protocol):
    """What every link's context has: the claim it needs, and its end."""

    path: str
    right: str

    def closed(self) -> None: ...


class OpenLinks:
    """The links that have been attached and not detached."""

    def __init__(self) -> None:
        self._by_name: dict[tuple[str, bool], Link] = {}  # a name may be used in both directions

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Link]:
        return iter(self._by_name.values())

    def namesake(self, link: Link) -> Link | None:
        """The open link whose name this one wants."""
        return self._by_name.get((link.name, link.role))

    def add(self, link: Link, context: LinkContext) -> None:
        link.context = context
        self._by_name[link.name, link.role] = link

    def forget(self, link: Link) -> None:
        if self.namesake(link) is link:
            del self._by_name[link.name, link.role]
            context_of(link).closed()
            link.context = None


def context_of(link: Link) -> LinkContext:
    """Of an open link."""
    return cast(LinkContext, link.context)


class Conversation:
    """One client and the server."""

    def __init__(self, access: ConnectionAccess, traffic: Traffic) -> None:
        self.access = access
        self.traffic = traffic
        self.links = OpenLinks()
        self.message_ids = MessageIds(secrets.randbits(64))
        # Of the sessions that links of this connection hold, by entity and session id.  A lock is
        # renewed in place when its broker is replaced by another.
        self.session_locks: dict[tuple[int, str], SessionLock] = {}
        namespace = access.namespace  # all have the same gateway and clock
        self.transactions = GatewayTransactions(
            namespace.gateway, namespace.clock, secrets.token_bytes(8)
        )

    @property
    def namespace(self) -> Namespace:
        return self.access.namespace

    def detach(self, link: Link, error: ServiceError) -> None:
        self.force_detach(link, error.amqp_condition, str(error))

    def force_detach(self, link: Link, condition: str, reason: str) -> None:
        self.links.forget(link)
        link.detach(AmqpError(condition, reason))
        self.traffic.flush_soon()
