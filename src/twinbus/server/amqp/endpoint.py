"""The endpoint: one client's AMQP connection, between the socket and the stores.

    bytes ─▶ amqp.Connection ─▶ events ─▶ LinkEvents ─▶ link contexts ─▶ commands ─▶ gateway
    bytes ◀─ amqp.Connection ◀─ link contexts ◀─ replies, deliveries ◀───────────────┘

This room is the only translator between AMQP and Service Bus.  The endpoint itself has what is
about the whole connection: opening it, keeping it alive and ending it.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, cast

from twinbus.amqp.composites import AmqpError
from twinbus.amqp.connection import Connection
from twinbus.amqp.events import ConnectionClosed, ConnectionOpened, SaslInitReceived
from twinbus.amqp.frames import Event
from twinbus.amqp.settings import ConnectionSettings
from twinbus.amqp.states import OPENED, SERVER
from twinbus.errors import ServiceError, Unauthorized
from twinbus.gateway.namespaces.namespace import Namespace
from twinbus.gateway.namespaces.registry import Namespaces
from twinbus.limits import OUTPUT_BUFFER_BYTES_MAX, STRANGER_BYTES_MAX
from twinbus.server.amqp.access import ConnectionAccess
from twinbus.server.amqp.conversation import Conversation
from twinbus.server.amqp.idle import Deadlines, IdleWatch
from twinbus.server.amqp.link_events import LinkEvents
from twinbus.server.amqp.sending import take_deliveries
from twinbus.server.amqp.settlement import amqp_error
from twinbus.server.amqp.stranger_room import StrangerRoom
from twinbus.server.amqp.traffic import Traffic
from twinbus.server.port.client_certificates import ClientCertificates
from twinbus.server.port.strangers import Strangers

log = logging.getLogger("twinbus.server")

TICK_INTERVAL_S: Final = 1.0


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
        self._on_lost = on_lost
        self._deadlines = deadlines
        self.connection = Connection(SERVER, settings)
        places = self.connection.places
        self._access = ConnectionAccess(namespaces, client_certificates, places)
        gateway = namespaces.default.gateway  # all namespaces have the same
        self._traffic = Traffic(self.connection, gateway)
        self.conversation = Conversation(self._access, self._traffic)
        self._link_events = LinkEvents(self.conversation)
        strangers = strangers or Strangers()
        self._stranger_room = StrangerRoom(self.connection, self.conversation, strangers)
        self._loop = asyncio.get_running_loop()
        self._started_ms = self._mono_ms()
        self._idle = IdleWatch(deadlines, self._started_ms)
        self._ticker: asyncio.TimerHandle | None = None

    def _mono_ms(self) -> int:
        return self.namespace.clock.now().mono_ms

    @property
    def namespace(self) -> Namespace:
        return self._access.namespace

    @property
    def settled_namespace(self) -> str | None:
        """For which namespace this connection is, in lower case; None while that is open."""
        return self._access.settled_namespace

    # -- asyncio.Protocol --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._traffic.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._access.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "local"
        self._traffic.transport.set_write_buffer_limits(high=OUTPUT_BUFFER_BYTES_MAX)
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
            link_count = len(self.conversation.links)
            self._receive(piece)
            if self.connection.places.is_known:
                self._stranger_room.release()
                if rest := data[at + len(piece) :]:
                    self._receive(rest)
                return
            attaches = len(self.conversation.links) > link_count
            if not self._stranger_room.took(len(piece), attaches):
                reason = "Too much was sent without a token; put one on $cbs first."
                self.close(AmqpError("amqp:resource-limit-exceeded", reason))
                return

    def _receive(self, data: bytes) -> None:
        self._dispatch_all(self.connection.receive_data(data))
        self._traffic.end_read()

    def pause_writing(self) -> None:
        self._traffic.pause_writing()

    def resume_writing(self) -> None:
        self._traffic.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        log.debug("connection lost", extra=self._access.about())
        if self._ticker is not None:
            self._ticker.cancel()
        self._traffic.transport = None
        self._stranger_room.release()
        for link in list(self.conversation.links):
            self.conversation.links.forget(link)
        self.connection.places.close()
        self._on_lost(self)

    # -- events ------------------------------------------------------------------------------------

    def _dispatch_all(self, events: list[Event]) -> None:
        at = 0
        while at < len(events):
            at = take_deliveries(events, at)
            if at < len(events):
                if not self._link_events.dispatch(events[at]):
                    self._dispatch(events[at])
                at += 1

    def _dispatch(self, event: Event) -> None:
        """What is about the whole connection."""
        if isinstance(event, SaslInitReceived):
            self._authenticate(event)
        elif isinstance(event, ConnectionOpened):
            self._opened()
        elif isinstance(event, ConnectionClosed):
            if event.error is not None:
                reason = f"{event.error.condition}: {event.error.description}"
                log.info("connection closed: %s", reason, extra=self._access.about())
            self._traffic.close()

    def _authenticate(self, event: SaslInitReceived) -> None:
        try:
            self._access.authenticate(event, self._traffic.transport)
        except Unauthorized as error:
            about = self._access.about()
            log.info("refused by SASL %s: %s", event.mechanism, error, extra=about)
            self._dispatch_all(self.connection.sasl_refuse())
            return
        self._dispatch_all(self.connection.sasl_accept())

    def _opened(self) -> None:
        try:
            self._access.settle_by_host(self.connection.peer.hostname, self._traffic.transport)
        except Unauthorized as error:
            self.close(amqp_error(error))
            return
        log.debug("connection opened", extra=self._access.about())
        self._arm_ticker()

    # -- time --------------------------------------------------------------------------------------

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
        age_s = (self._mono_ms() - self._started_ms) / 1_000
        if self.connection.state != OPENED and age_s > self._deadlines.handshake_s:
            reason = "connection closed: the handshake took longer than allowed"
            log.info(reason, extra=self._access.about())
            self._traffic.close()
            return
        if not self.connection.places.is_known and age_s > self._deadlines.cbs_s:
            self.close(AmqpError("amqp:connection:forced", "No token was put on $cbs in time."))
            return
        self._dispatch_all(self.connection.tick(self._mono_ms()))
        self.conversation.transactions.tick()
        self._end_what_idles()
        if self._access.have_claims_shrunk():
            self._link_events.detach_unclaimed()
            self._access.drop_expired_claims()
        self._traffic.flush()

    def _end_what_idles(self) -> None:
        mono_ms = self._mono_ms()
        if self._idle.is_unused(len(self.conversation.links) > 0, mono_ms):
            self.close(AmqpError("amqp:connection:forced", "The connection has no links."))
        elif self._idle.is_due(mono_ms):
            self._link_events.detach_idle(self._idle, mono_ms)

    # -- the end -----------------------------------------------------------------------------------

    def detach_receivers(self, is_meant: Callable[[str], bool], error: ServiceError) -> None:
        """Nobody is to receive from entities of such names any more."""
        self._link_events.detach_receivers(is_meant, error)

    def shut_down(self) -> None:
        """The server is stopping: say so and hang up."""
        error = "The server is shutting down; try again later."
        self.close(AmqpError("amqp:connection:forced", error))

    def close(self, error: AmqpError) -> None:
        """Say why, and hang up whether or not the client answers."""
        if self.connection.state == OPENED:
            self.connection.close(error)
        self._traffic.close()
