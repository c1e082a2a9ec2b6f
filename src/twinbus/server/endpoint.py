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
from typing import Any, Final, Protocol, cast

from twinbus.amqp.composites import AmqpError
from twinbus.amqp.connection import Connection, ConnectionSettings
from twinbus.amqp.events import (
    ConnectionClosed,
    ConnectionOpened,
    CreditChanged,
    DeliveryTooLarge,
    DispositionReceived,
    Event,
    LinkAttached,
    LinkDetached,
    SaslInitReceived,
    SessionBegun,
    SessionEnded,
)
from twinbus.amqp.link import EgressLink, Link
from twinbus.amqp.message_id import MessageIds
from twinbus.amqp.states import OPENED, SERVER
from twinbus.broker.auth import Grant
from twinbus.broker.namespace import Namespace
from twinbus.entities.commands import Command, Reply
from twinbus.errors import ServiceError, Unauthorized
from twinbus.limits import OUTPUT_BUFFER_BYTES_MAX, PENDING_BYTES_MAX
from twinbus.server.attach import attach_link
from twinbus.server.outcomes import amqp_error
from twinbus.server.receiving import ReceivingLink
from twinbus.server.requests import ResponseLink
from twinbus.server.sending import SendingLink, take_deliveries

log = logging.getLogger("twinbus.server")

TICK_INTERVAL_S: Final = 1.0
LAST_WORDS_S: Final = 2.0  # how long what was written may take to go out after the end


class LinkContext(Protocol):
    """What every link context has: what it needs a claim for, and its end."""

    path: str
    right: str

    def closed(self) -> None: ...


class Asked(Protocol):
    """Who gets a reply, with what it wanted to remember."""

    def replied(self, reply: Reply, rest: Any) -> None: ...


class Deadlines:
    """How long a client may take (seconds); a test may shorten them."""

    __slots__ = ("cbs_s", "handshake_s")

    def __init__(self, handshake_s: float, cbs_s: float) -> None:
        self.handshake_s = handshake_s
        self.cbs_s = cbs_s


class AmqpEndpoint(asyncio.Protocol):
    """One connection."""

    def __init__(
        self,
        namespace: Namespace,
        settings: ConnectionSettings,
        deadlines: Deadlines,
        on_lost: "Callable[[AmqpEndpoint], None]",
    ) -> None:
        self.namespace = namespace
        self._on_lost = on_lost
        self.connection = Connection(SERVER, settings)
        self.grants: list[Grant] = []
        self._checked: list[Grant] = self.grants  # links were last compared with these
        self.message_ids = MessageIds(secrets.randbits(64))
        self._blocked = False  # the socket's buffer is full
        self._held_back = False  # a receiver has been told to wait for the next flush
        self._deadlines = deadlines
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._links: set[Link] = set()
        self._commands: list[Command] = []
        self._unflushed: list[SendingLink] = []
        self._flushing = False
        self._paused = False
        self._started_ms = self.mono_ms()
        self._ticker: asyncio.TimerHandle | None = None

    def mono_ms(self) -> int:
        return self.namespace.clock.now().mono_ms

    def now_s(self) -> int:
        return self.namespace.clock.now().utc_ms // 1_000

    @property
    def is_open(self) -> bool:
        return self.connection.state == OPENED

    # -- asyncio.Protocol ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=OUTPUT_BUFFER_BYTES_MAX)
        self._arm_ticker()

    def data_received(self, data: bytes) -> None:
        self._dispatch_all(self.connection.receive_data(data))
        if self._unflushed:
            unflushed, self._unflushed = self._unflushed, []
            for link in unflushed:
                link.flush()
        if self._commands:
            commands, self._commands = self._commands, []
            broker = self.namespace.broker
            broker.submit(commands)
            broker.hurry(self)
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
        self._held_back = self.connection.output_size >= OUTPUT_BUFFER_BYTES_MAX
        return self._held_back

    def _wake_receivers(self) -> None:
        self._held_back = False
        for link in self._links:
            if isinstance(link.context, ReceivingLink):
                link.context.writable()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        self._transport = None
        for link in list(self._links):
            self._forget(link)
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
            if isinstance(context, ReceivingLink | ResponseLink):
                context.credit_changed()
        else:
            self._dispatch_rare(event)

    def _dispatch_rare(self, event: Event) -> None:
        if isinstance(event, LinkAttached):
            self._attach(event.link)
        elif isinstance(event, LinkDetached):
            self._forget(event.link)
        elif isinstance(event, SessionBegun):
            event.session.context = {}  # its request/response nodes, by address
        elif isinstance(event, SessionEnded):
            for link in [link for link in self._links if link.session is event.session]:
                self._forget(link)
        elif isinstance(event, DeliveryTooLarge):
            context = event.link.context
            if isinstance(context, SendingLink):
                context.too_large(event.delivery_id, event.size, event.settled)
        elif isinstance(event, SaslInitReceived):
            self._authenticate(event)
        elif isinstance(event, ConnectionOpened):
            self._arm_ticker()
        elif isinstance(event, ConnectionClosed):
            if event.error is not None:
                log.info("connection closed: %s", event.error)
            self._close_transport()

    def _authenticate(self, event: SaslInitReceived) -> None:
        """PLAIN brings its claim along; the other mechanisms put tokens on $cbs."""
        if event.mechanism == "PLAIN":
            try:
                self.grants.append(self._plain(event.response))
            except Unauthorized:
                self._dispatch_all(self.connection.sasl_refuse())
                return
        self._dispatch_all(self.connection.sasl_accept())

    def _plain(self, response: bytes) -> Grant:
        parts = response.split(b"\0")
        if len(parts) != 3:
            raise Unauthorized("The PLAIN response is malformed.")
        try:
            user, password = parts[1].decode(), parts[2].decode()
        except UnicodeDecodeError:
            raise Unauthorized("The PLAIN response is not UTF-8.") from None
        return self.namespace.authorizer.check_plain(user, password)

    def _attach(self, link: Link) -> None:
        try:
            context = attach_link(self, link)
        except ServiceError as error:
            link.refuse(amqp_error(error))
            return
        link.context = context
        self._links.add(link)
        if isinstance(link, EgressLink) and isinstance(context, ReceivingLink | ResponseLink):
            context.credit_changed()

    def _forget(self, link: Link) -> None:
        if link in self._links:
            self._links.discard(link)
            cast(LinkContext, link.context).closed()
            link.context = None

    # -- claims ----------------------------------------------------------------------------------

    def allowed(self, right: str, path: str) -> bool:
        now_s = self.now_s()
        return any(grant.allows(right, path, now_s) for grant in self.grants)

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
            log.info("connection closed: the handshake took longer than allowed")
            self._close_transport()
            return
        if not self.grants and age_s > self._deadlines.cbs_s:
            self.close(AmqpError("amqp:connection:forced", "No token was put on $cbs in time."))
            return
        self._dispatch_all(self.connection.tick(self.mono_ms()))
        now_s = self.now_s()
        # Thousands of links are not asked every second for what only changes with the grants.
        if self.grants is not self._checked or any(now_s >= g.expires_s for g in self.grants):
            self._checked = self.grants
            self._detach_unclaimed()
        self.flush()

    def _detach_unclaimed(self) -> None:
        for link in list(self._links):
            context = cast(LinkContext, link.context)
            if context.right and not self.allowed(context.right, context.path):
                self.detach(link, Unauthorized("The token of this link has expired."))

    # -- output ----------------------------------------------------------------------------------

    def submit(self, command: Command) -> None:
        """Collected while events are dispatched, so that one read makes one submission."""
        self._commands.append(command)
        self.flush_soon()

    def flush_link_soon(self, link: SendingLink) -> None:
        self._unflushed.append(link)

    def flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        self._flushing = False
        if self._commands:
            commands, self._commands = self._commands, []
            self.namespace.broker.submit(commands)
        transport = self._transport
        if transport is not None:
            frames = self.connection.data_to_send()
            if frames:
                transport.writelines(frames)
            if self._held_back and not self._blocked:
                self._wake_receivers()
            if self.namespace.broker.pending_bytes > PENDING_BYTES_MAX and not self._paused:
                self._paused = True  # the disk cannot keep up: read no more until it has
                self._update_reading()
                self.namespace.broker.when_durable(self._caught_up)

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
        self._forget(link)
        link.detach(amqp_error(error))
        self.flush_soon()

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


def dispatch_replies(replies: list[Reply]) -> None:
    """Give each reply to the link (or request) that asked."""
    for reply in replies:
        context = reply.command.context
        if context is not None:
            asked, rest = cast(tuple[Asked, object], context)
            asked.replied(reply, rest)
