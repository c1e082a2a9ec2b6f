"""The endpoint: one client's AMQP connection, between the socket and the broker.

    bytes ─▶ amqp.Connection ─▶ events ─▶ link contexts ─▶ commands ─▶ broker
    bytes ◀─ amqp.Connection ◀─ link contexts ◀─ replies, deliveries ◀─┘

This room is the only translator between AMQP and Service Bus.  The endpoint itself only dispatches:
what a link means lives in its context (`sending`, `receiving`, `requests`).  Output is flushed once
per loop turn.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, cast

from twinbus.amqp.composites import AmqpError
from twinbus.amqp.connection import Connection
from twinbus.amqp.endpoints import Link
from twinbus.amqp.events import (
    ConnectionClosed,
    ConnectionOpened,
    CreditChanged,
    DeliveryTooLarge,
    DispositionReceived,
    LinkAttached,
    LinkDetached,
    SaslInitReceived,
    SessionBegun,
    SessionEnded,
)
from twinbus.amqp.link import EgressLink
from twinbus.amqp.sasl import split_plain
from twinbus.amqp.settings import ConnectionSettings
from twinbus.amqp.states import OPENED, SERVER
from twinbus.amqp.wire import Event
from twinbus.entities.commands import Command
from twinbus.entities.sessions import SessionLock
from twinbus.errors import LinkStolen, QuotaExceeded, ServiceError, Unauthorized
from twinbus.gateway.access.claims import Claims
from twinbus.gateway.access.shared_access import Grant
from twinbus.gateway.namespaces.namespace import Namespace
from twinbus.gateway.namespaces.registry import Namespaces
from twinbus.gateway.transactions import GatewayTransactions
from twinbus.limits import (
    CONNECTION_UNSETTLED_MAX,
    OUTPUT_BUFFER_BYTES_MAX,
    PENDING_BYTES_MAX,
    STRANGER_BYTES_MAX,
)
from twinbus.message.message_id import MessageIds
from twinbus.server.amqp.attach import attach_link
from twinbus.server.amqp.idle import Deadlines, IdleWatch
from twinbus.server.amqp.receiving import ReceivingLink
from twinbus.server.amqp.request_node import ResponseLink
from twinbus.server.amqp.sending import SendingLink, take_deliveries
from twinbus.server.amqp.settlement import amqp_error
from twinbus.server.port.client_certificates import ClientCertificates, asked_host
from twinbus.server.port.strangers import Share, Strangers

log = logging.getLogger("twinbus.server")

TICK_INTERVAL_S: Final = 1.0
LAST_WORDS_S: Final = 2.0  # how long what was written may take to go out after the end
STRANGER_TRANSACTION_BYTES: Final = 1_024  # what a stranger's counts for, about what it takes


class LinkContext(Protocol):
    """What every link context has: what it needs a claim for, and its end."""

    path: str
    right: str

    def closed(self) -> None: ...


class AmqpEndpoint(asyncio.Protocol):
    """One connection."""

    def __init__(
        self,
        namespaces: Namespaces,
        client_certificates: ClientCertificates,
        settings: ConnectionSettings,
        deadlines: Deadlines,
        on_lost: "Callable[[AmqpEndpoint], None]",
        strangers: Strangers | None = None,
    ) -> None:
        self.namespaces = namespaces
        self.namespace: Namespace = namespaces.default  # until it is settled which one
        self._is_settled = False
        self._client_certificates = client_certificates
        self._on_lost = on_lost
        self.connection = Connection(SERVER, settings)
        self._claims = Claims()
        self._attach_bytes = 0  # what brought a stranger's links: names and all
        self._share = Share(strangers or Strangers())
        # Of the sessions that links of this connection hold, by entity and session id.  A lock is
        # renewed in place when its broker is replaced by another.
        self.session_locks: dict[tuple[int, str], SessionLock] = {}
        self.message_ids = MessageIds(secrets.randbits(64))
        default = namespaces.default
        self._gateway = default.gateway  # all namespaces have the same
        self.transactions = GatewayTransactions(
            self._gateway, default.clock, secrets.token_bytes(8)
        )
        self._peer = ""  # address and port, once it is connected
        self._blocked = False  # the socket's buffer is full
        self._held_back = False  # a receiver has been told to wait for the next flush
        self._deadlines = deadlines
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._links: set[Link] = set()
        self._names: dict[tuple[str, bool], Link] = {}  # the same links, by name and direction
        self._commands: list[Command] = []
        self._unflushed: list[SendingLink] = []
        self._flushing = False
        self._paused = False
        self._started_ms = self.mono_ms()
        self._idle = IdleWatch(deadlines, self._started_ms)
        self._ticker: asyncio.TimerHandle | None = None

    def mono_ms(self) -> int:
        return self.namespace.clock.now().mono_ms

    def now_s(self) -> int:
        return self.namespace.clock.now().utc_ms // 1_000

    @property
    def is_open(self) -> bool:
        return self.connection.state == OPENED

    @property
    def settled_namespace(self) -> str | None:
        """For which namespace this connection is, in lower case; None while that is open."""
        return self.namespace.name.lower() if self._is_settled else None

    # -- asyncio.Protocol ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "local"
        self._transport.set_write_buffer_limits(high=OUTPUT_BUFFER_BYTES_MAX)
        self._arm_ticker()

    def data_received(self, data: bytes) -> None:
        if self.connection.places.is_known:
            self._receive(data)
        else:
            self._receive_from_stranger(data)

    def _receive_from_stranger(self, data: bytes) -> None:
        """In small pieces: after each it is looked at what we have to keep."""
        for at in range(0, len(data), STRANGER_BYTES_MAX):
            piece = data[at : at + STRANGER_BYTES_MAX]
            link_count = len(self._links)
            self._receive(piece)
            if len(self._links) > link_count:
                self._attach_bytes += len(piece)
            if self.connection.places.is_known:
                self._share.release()
                if rest := data[at + len(piece) :]:
                    self._receive(rest)
                return
            kept = self._kept_bytes()
            if kept > STRANGER_BYTES_MAX or not self._share.hold(kept):
                reason = "There is no room for more without a token; put one on $cbs first."
                self.close(AmqpError("amqp:resource-limit-exceeded", reason))
                return

    def _kept_bytes(self) -> int:
        """What a stranger makes us keep beside its sessions and links, which have places."""
        kept = self.connection.kept_bytes + self._attach_bytes
        kept += self.transactions.open_count * STRANGER_TRANSACTION_BYTES
        for link in self._links:
            if isinstance(link.context, ResponseLink):
                kept += link.context.waiting_bytes
        return kept if self._transport is None else kept + self._transport.get_write_buffer_size()

    def _receive(self, data: bytes) -> None:
        self._dispatch_all(self.connection.receive_data(data))
        if self._unflushed:
            self._flush_links()
        if self._commands:
            commands, self._commands = self._commands, []
            self._gateway.submit(commands)
            self._gateway.turn_if_alone(self)
        self.flush()

    def pause_writing(self) -> None:
        """The client does not read.  Neither do we, or its questions would pile up as answers."""
        self._blocked = True
        self._update_reading()

    def resume_writing(self) -> None:
        self._blocked = False
        self._update_reading()
        self._wake_receivers()

    def holds_back(self) -> bool:
        """Receivers must wait: the socket takes no more, or this turn has gathered its share."""
        if self._blocked:
            return True
        connection = self.connection
        self._held_back = (
            connection.output_size >= OUTPUT_BUFFER_BYTES_MAX
            or connection.unsettled_count >= CONNECTION_UNSETTLED_MAX
        )
        return self._held_back

    def _wake_receivers(self) -> None:
        # While too much is unsettled, nobody is asked in vain.
        self._held_back = self.connection.unsettled_count >= CONNECTION_UNSETTLED_MAX
        if self._held_back:
            return
        for link in self._links:
            if isinstance(link.context, ReceivingLink):
                link.context.writable()

    def connection_lost(self, exc: Exception | None) -> None:
        log.debug("connection lost", extra=self._about())
        if self._ticker is not None:
            self._ticker.cancel()
        self._transport = None
        self._share.release()
        for link in list(self._links):
            self._forget(link)
        self.connection.places.close()
        self._on_lost(self)

    # -- events ----------------------------------------------------------------------------------

    def _dispatch_all(self, events: list[Event]) -> None:
        at = 0
        while at < len(events):
            at = take_deliveries(events, at)
            if at < len(events):
                self._dispatch(events[at])
                at += 1

    def _dispatch(self, event: Event) -> None:
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
            self._dispatch_rare(event)

    def _dispatch_rare(self, event: Event) -> None:
        if isinstance(event, LinkAttached):
            self._attach(event.link)
        elif isinstance(event, LinkDetached):
            self._let_go(event)
        elif isinstance(event, SessionBegun):
            event.session.context = {}  # its request/response nodes, by address
        elif isinstance(event, SessionEnded):
            self.flush_commands()  # as with a detach: what came before it counts
            for link in event.session.links.values():
                self._forget(link)
            event.session.links = {}  # the session itself stays until the client ends it too
        elif isinstance(event, DeliveryTooLarge):
            context = event.link.context
            if isinstance(context, SendingLink):
                context.too_large(event)
        elif isinstance(event, SaslInitReceived):
            self._authenticate(event)
        elif isinstance(event, ConnectionOpened):
            self._opened()
        elif isinstance(event, ConnectionClosed):
            if event.error is not None:
                reason = f"{event.error.condition}: {event.error.description}"
                log.info("connection closed: %s", reason, extra=self._about())
            self._close_transport()

    def _authenticate(self, event: SaslInitReceived) -> None:
        """PLAIN and EXTERNAL bring their claim along; the others put tokens on $cbs."""
        try:
            if event.mechanism == "PLAIN":
                self._claim_by_password(event)
            elif event.mechanism == "EXTERNAL":
                self._claim_by_certificate(event)
        except Unauthorized as error:
            log.info("refused by SASL %s: %s", event.mechanism, error, extra=self._about())
            self._dispatch_all(self.connection.sasl_refuse())
            return
        self._dispatch_all(self.connection.sasl_accept())

    def _claim_by_password(self, event: SaslInitReceived) -> None:
        pair = split_plain(event.response)
        if pair is None:
            raise Unauthorized("The PLAIN response is malformed.")
        namespace, grant = self.namespaces.check_plain(*pair, self._hostname(event.hostname))
        self._settle_namespace(namespace)
        self._claim(grant)

    def _claim_by_certificate(self, event: SaslInitReceived) -> None:
        assert self._transport is not None
        grant = self._client_certificates.grant(self._transport.get_extra_info("peercert"))
        named = self.namespaces.by_host(self._hostname(event.hostname))
        self._settle_namespace(named or self.namespaces.default)
        self._claim(grant)

    def _about(self, entity: str = "") -> dict[str, object]:
        """For the log: whom a line is about."""
        about: dict[str, object] = {"connection": self._peer}
        if self._is_settled:
            about["namespace"] = self.namespace.name
        if entity:
            about["entity"] = entity
        return about

    # -- the namespace ---------------------------------------------------------------------------

    def _hostname(self, said: str | None) -> str | None:
        """What the client calls us: in the frame at hand, else when it began to speak TLS."""
        if self.namespaces.by_host(said) is None and self._transport is not None:
            return asked_host(self._transport)
        return said

    def _settle_namespace(self, namespace: Namespace) -> None:
        """The first credential or host name decides; nothing on this connection changes it."""
        if self._is_settled and namespace is not self.namespace:
            raise Unauthorized("This connection is for another namespace.")
        self.namespace = namespace
        self._is_settled = True

    def _opened(self) -> None:
        named = self.namespaces.by_host(self._hostname(self.connection.peer.hostname))
        try:
            if named is not None:
                self._settle_namespace(named)
        except Unauthorized as error:
            self.close(amqp_error(error))
            return
        log.debug("connection opened", extra=self._about())
        self._arm_ticker()

    def _attach(self, link: Link) -> None:
        older = self._names.get((link.name, link.role))
        if older is not None:
            self.flush_commands()
            self.detach(older, LinkStolen(f"A newer link has the name '{link.name[:64]}'."))
        try:
            context = attach_link(self, link)
        except ServiceError as error:
            log.info("link refused: %s", error, extra=self._about())
            link.refuse(amqp_error(error))
            link.forget_terms()
            return
        log.debug("link attached", extra=self._about(context.path))
        link.context = context
        link.lingers = True
        self._links.add(link)
        self._names[link.name, link.role] = link
        if link.answered:
            link.forget_terms()
        if isinstance(link, EgressLink) and isinstance(context, ReceivingLink | ResponseLink):
            context.credit_changed()

    def _let_go(self, event: LinkDetached) -> None:
        """The client has detached.  What it sent and settled before that counts, and is confirmed
        before we agree: some clients wait for the one and take the other for the end of it.
        """
        self.flush_commands()
        self._forget(event.link)
        if event.link.lingers:
            self._gateway.when_durable(partial(self._agree, event))

    def _agree(self, event: LinkDetached) -> None:
        event.link.detach(closed=event.closed)
        self.flush_soon()

    def _forget(self, link: Link) -> None:
        if link in self._links:
            self._links.discard(link)
            del self._names[link.name, link.role]
            cast(LinkContext, link.context).closed()
            link.context = None

    # -- claims ----------------------------------------------------------------------------------

    def put_token(self, token: str, audience: str) -> None:
        """Judge a token, which may settle for which namespace this connection is."""
        hostname = self.namespace.name if self._is_settled else None
        try:
            namespace, grant = self.namespaces.check_token(token, audience, hostname, self.now_s())
            self._settle_namespace(namespace)
        except Unauthorized as error:
            log.info("token refused: %s", error, extra=self._about())
            raise
        self._claim(grant)

    def _claim(self, grant: Grant) -> None:
        places = self.connection.places
        places.know()
        is_new = grant.scope not in self._claims
        refusal = places.refusal() if is_new else ""
        if refusal:
            raise QuotaExceeded(f"No more tokens: {refusal}.")
        self._claims.put(grant)
        if is_new:
            places.take()

    def allowed(self, right: str, path: str) -> bool:
        stands = self.namespace.authorizer.stands
        return self._claims.allow(right, path, self.now_s(), stands)

    def require(self, right: str, path: str) -> None:
        if not self.allowed(right, path):
            raise Unauthorized(
                f"Unauthorized access. '{right}' claim is required to use '{path[:64]}'. Put a "
                "token for it on $cbs, or use a key that has this right."
            )

    def _arm_ticker(self) -> None:
        """Look again in a second, or sooner where the client wants more frequent signs of life."""
        if self._ticker is not None:
            self._ticker.cancel()
        idle_ms = self.connection.peer.idle_timeout_ms
        interval_s = min(TICK_INTERVAL_S, idle_ms / 4_000) if idle_ms else TICK_INTERVAL_S
        self._ticker = self._loop.call_later(interval_s, self._tick)

    def _tick(self) -> None:
        """Deadlines, heartbeats, and claims that have expired on live links."""
        self._arm_ticker()
        age_s = (self.mono_ms() - self._started_ms) / 1_000
        if not self.is_open and age_s > self._deadlines.handshake_s:
            reason = "connection closed: the handshake took longer than allowed"
            log.info(reason, extra=self._about())
            self._close_transport()
            return
        if not self.connection.places.is_known and age_s > self._deadlines.cbs_s:
            self.close(AmqpError("amqp:connection:forced", "No token was put on $cbs in time."))
            return
        self._dispatch_all(self.connection.tick(self.mono_ms()))
        self.transactions.tick()
        self._end_what_idles()
        if self._claims.have_shrunk(self.now_s(), self.namespace.authorizer.stands):
            self._detach_unclaimed()
        self.flush()

    def _end_what_idles(self) -> None:
        mono_ms = self.mono_ms()
        if self._idle.is_unused(self._links, mono_ms):
            self.close(AmqpError("amqp:connection:forced", "The connection has no links."))
            return
        if self._idle.is_due(mono_ms):
            entity_links = [link for link in self._links if _is_for_entity(link)]
            other_links = [link for link in self._links if not _is_for_entity(link)]
            for link in self._idle.idle_links(entity_links, other_links, mono_ms):
                self._force_detach(link, "amqp:link:detach-forced", "Nothing moves on the link.")

    def _force_detach(self, link: Link, condition: str, reason: str) -> None:
        self._forget(link)
        link.detach(AmqpError(condition, reason))
        self.flush_soon()

    def _detach_unclaimed(self) -> None:
        for link in list(self._links):
            if not self._is_claimed(cast(LinkContext, link.context)):
                error = "The token of this link has expired, or its rule is not there any more."
                self.detach(link, Unauthorized(error))
        for _ in range(self._claims.drop_expired(self.now_s())):
            self.connection.places.give()

    def _is_claimed(self, context: LinkContext) -> bool:
        if context.right and not self.allowed(context.right, context.path):
            return False
        via = context.via_path if isinstance(context, SendingLink) else ""
        return not via or self.allowed(context.right, via)

    # -- output ----------------------------------------------------------------------------------

    def submit(self, command: Command) -> None:
        """Collected while events are dispatched, so that one read makes one submission."""
        self._commands.append(command)
        self.flush_soon()

    def flush_link_soon(self, link: SendingLink) -> None:
        self._unflushed.append(link)

    def _flush_links(self) -> None:
        unflushed, self._unflushed = self._unflushed, []
        for link in unflushed:
            link.flush()

    def flush_commands(self) -> None:
        """Have everything decided that came so far: what follows must find it done."""
        self._flush_links()
        while self._commands:  # deliveries that are refused together are tried one by one
            commands, self._commands = self._commands, []
            self._gateway.submit(commands)

    def flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        self._flushing = False
        if self._commands:
            commands, self._commands = self._commands, []
            self._gateway.submit(commands)
        transport = self._transport
        if transport is not None:
            frames = self.connection.data_to_send()
            if frames:
                transport.writelines(frames)
            if self._held_back and not self._blocked:
                self._wake_receivers()
            if self._gateway.pending_bytes > PENDING_BYTES_MAX and not self._paused:
                self._paused = True  # the disk cannot keep up: read no more until it has
                self._update_reading()
                self._gateway.when_durable(self._caught_up)

    def _caught_up(self) -> None:
        self._paused = False
        self._update_reading()

    def _update_reading(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._paused or self._blocked:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def detach(self, link: Link, error: ServiceError) -> None:
        self._force_detach(link, error.amqp_condition, str(error))

    def detach_receivers(self, is_meant: Callable[[str], bool], error: ServiceError) -> None:
        """Nobody is to receive from entities of such names any more."""
        for link in list(self._links):
            if isinstance(link.context, ReceivingLink) and is_meant(link.context.entity_name):
                self.detach(link, error)

    def shut_down(self) -> None:
        """The server is stopping: say so and hang up."""
        error = "The server is shutting down; try again later."
        self.close(AmqpError("amqp:connection:forced", error))

    def close(self, error: AmqpError) -> None:
        """Say why, and hang up whether or not the client answers."""
        if self.is_open:
            self.connection.close(error)
        self._close_transport()

    def _close_transport(self) -> None:
        self.flush()
        if self._transport is not None:
            self._transport.close()
            # A peer that does not read would keep its connection, and our buffer, for good.
            self._loop.call_later(LAST_WORDS_S, self._transport.abort)


def _is_for_entity(link: Link) -> bool:
    return bool(cast(LinkContext, link.context).right)
