"""What happens to the links of one connection: attached, used, detached, idle, without a claim.

What a link means lives in its context (`sending`, `receiving`, `request_node`, `coordinator`).
"""

import logging
from collections.abc import Callable
from functools import partial

from twinbus.amqp.egress import EgressLink
from twinbus.amqp.endpoints import Link
from twinbus.amqp.events import (
    CreditChanged,
    DispositionReceived,
    LinkAttached,
    LinkDetached,
    SessionBegun,
    SessionEnded,
)
from twinbus.amqp.frames import Event
from twinbus.amqp.ingress import DeliveryTooLarge
from twinbus.errors import LinkStolen, ServiceError, Unauthorized
from twinbus.server.amqp.attach import attach_link
from twinbus.server.amqp.conversation import Conversation, LinkContext, context_of
from twinbus.server.amqp.idle import IdleWatch
from twinbus.server.amqp.receiving import ReceivingLink
from twinbus.server.amqp.request_node import ResponseLink
from twinbus.server.amqp.sending import SendingLink
from twinbus.server.amqp.settlement import amqp_error

log = logging.getLogger("twinbus.server")


class LinkEvents:
    """Takes them to the links' contexts."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._traffic = conversation.traffic
        self._links = conversation.links

    def dispatch(self, event: Event) -> bool:
        """All but deliveries; False: this is not about links."""
        if isinstance(event, DispositionReceived):
            context = event.link.context
            if isinstance(context, ReceivingLink):
                context.settle(event)
        elif isinstance(event, CreditChanged):
            context = event.link.context
            if isinstance(context, ReceivingLink):
                context.watch.flowed(event.credit, event.drain)
                context.credit_changed()
            elif isinstance(context, ResponseLink):
                context.credit_changed()
        else:
            return self._dispatch_rare(event)
        return True

    def _dispatch_rare(self, event: Event) -> bool:
        if isinstance(event, LinkAttached):
            self._attach(event.link)
        elif isinstance(event, LinkDetached):
            self._let_go(event)
        elif isinstance(event, SessionBegun):
            event.session.context = {}  # its request/response nodes, by address
        elif isinstance(event, SessionEnded):
            self._traffic.flush_commands()  # as with a detach: what came before it counts
            for link in event.session.links.values():
                self._links.forget(link)
            event.session.links = {}  # the session itself stays until the client ends it too
        elif isinstance(event, DeliveryTooLarge):
            context = event.link.context
            if isinstance(context, SendingLink):
                context.too_large(event)
        else:
            return False
        return True

    def _attach(self, link: Link) -> None:
        conversation = self._conversation
        older = self._links.namesake(link)
        if older is not None:
            self._traffic.flush_commands()
            conversation.detach(older, LinkStolen(f"A newer link has the name '{link.name[:64]}'."))
        try:
            context = attach_link(conversation, link)
        except ServiceError as error:
            log.info("link refused: %s", error, extra=conversation.access.about())
            link.refuse(amqp_error(error))
            link.forget_terms()
            return
        log.debug("link attached", extra=conversation.access.about(context.path))
        link.lingers = True
        self._links.add(link, context)
        if link.answered:
            link.forget_terms()
        if isinstance(link, EgressLink) and isinstance(context, ReceivingLink | ResponseLink):
            context.credit_changed()

    def _let_go(self, event: LinkDetached) -> None:
        """The client has detached.  What it sent and settled before that counts, and is confirmed
        before we agree: some clients wait for the one and take the other for the end of it.
        """
        self._traffic.flush_commands()
        self._links.forget(event.link)
        if event.link.lingers:
            gateway = self._conversation.namespace.gateway
            gateway.when_durable(partial(self._agree, event))

    def _agree(self, event: LinkDetached) -> None:
        event.link.detach(closed=event.closed)
        self._traffic.flush_soon()

    # -- what happens without the client -----------------------------------------------------------

    def detach_receivers(self, is_meant: Callable[[str], bool], error: ServiceError) -> None:
        """Nobody is to receive from entities of such names any more."""
        for link in list(self._links):
            if isinstance(link.context, ReceivingLink) and is_meant(link.context.entity_name):
                self._conversation.detach(link, error)

    def detach_unclaimed(self) -> None:
        """Some claim has expired."""
        for link in list(self._links):
            if not self._is_claimed(context_of(link)):
                error = "The token of this link has expired, or its rule is not there any more."
                self._conversation.detach(link, Unauthorized(error))

    def _is_claimed(self, context: LinkContext) -> bool:
        allowed = self._conversation.access.allowed
        if context.right and not allowed(context.right, context.path):
            return False
        via = context.via_path if isinstance(context, SendingLink) else ""
        return not via or allowed(context.right, via)

    def detach_idle(self, watch: IdleWatch, mono_ms: int) -> None:
        # A link that waits for its session is answered in the time that its client has set.
        links = [link for link in self._links if link.answered]
        entity_links = [link for link in links if context_of(link).right]
        other_links = [link for link in links if not context_of(link).right]
        for link in watch.idle_links(entity_links, other_links, mono_ms):
            if isinstance(link.context, ReceivingLink):
                link.context.watch.interrupted()
            reason = "Nothing moves on the link."
            self._conversation.force_detach(link, "amqp:link:detach-forced", reason)
