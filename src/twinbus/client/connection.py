"""A small, fast AMQP client: one connection, senders and receivers on it, many operations at once.

    async with await BusConnection.open(connection_string) as connection:
        sender = await connection.open_sender("orders")
        await asyncio.gather(*(sender.send(body) for body in bodies))
        receiver = await connection.open_receiver("orders")
        received = await receiver.receive()
        await receiver.complete(received)

A send completes when the bus has accepted it, a settlement when the bus has confirmed it.  Nothing
is retried here: when the connection is lost, operations in progress raise `ConnectionLost` and
their outcome is unknown.  Talks to twinbus and Azure only over the wire.
"""

import asyncio
import ssl
from typing import Final, Self, cast

from twinbus.amqp.composites import AmqpError, Source, Target
from twinbus.amqp.connection import Connection
from twinbus.amqp.egress import EgressLink
from twinbus.amqp.endpoints import Link
from twinbus.amqp.events import (
    ConnectionClosed,
    ConnectionOpened,
    CreditChanged,
    DispositionReceived,
    IncomingSettled,
    LinkAttached,
    LinkDetached,
    SessionEnded,
)
from twinbus.amqp.frames import Event
from twinbus.amqp.ingress import DeliveryReceived
from twinbus.amqp.performatives import SECOND, SETTLED, UNSETTLED
from twinbus.amqp.session import AmqpSession
from twinbus.amqp.settings import ConnectionSettings
from twinbus.amqp.states import CLIENT
from twinbus.amqp.types import Symbol, UInt
from twinbus.client.connection_string import ConnectionString
from twinbus.client.links import ConnectionLost, Received, Receiver, Sender, service_error
from twinbus.clock import SystemClock

__all__ = ["BusConnection", "ConnectionLost", "Received", "Receiver", "Sender"]

PORT: Final = 5672
TLS_PORT: Final = 5671
OPEN_DURATION_S_MAX: Final = 20.0
CLOSE_DURATION_S_MAX: Final = 2.0
TICK_INTERVAL_S: Final = 1.0
CREDIT_DEFAULT: Final = 100
# What we take in one message: the most that Azure's largest tier sends.
MESSAGE_SIZE_BYTES_MAX: Final = 104_857_600
_SESSION_FILTER: Final = Symbol("com.microsoft:session-filter")
_TIMEOUT: Final = Symbol("com.microsoft:timeout")


class BusConnection(asyncio.Protocol):
    """One connection to a namespace, with one AMQP session on it."""

    def __init__(self, target: ConnectionString) -> None:
        self._loop = asyncio.get_running_loop()
        self._target = target
        user, password = target.key_name.encode(), target.key.encode()
        settings = ConnectionSettings(
            container_id=f"twinbus-client-{id(self):x}",
            hostname=target.host,
            sasl_mechanisms=("PLAIN",),
            sasl_response=b"\0" + user + b"\0" + password,
        )
        self._connection = Connection(CLIENT, settings)
        self._connection.open()
        self._session = self._connection.begin()
        self._transport: asyncio.Transport | None = None
        self._flushing = False
        self._link_count = 0
        self._links: set[Sender | Receiver] = set()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._ticker: asyncio.TimerHandle | None = None
        self.error: ConnectionLost | None = None  # why it is gone; None while it lives
        self.writable = True

    @classmethod
    async def open(cls, connection_string: str, *, tls: ssl.SSLContext | None = None) -> Self:
        """Connect; over TLS unless the connection string says `UseDevelopmentEmulator=true`."""
        target = ConnectionString.parse(connection_string)
        if not target.development_emulator and tls is None:
            tls = ssl.create_default_context()
        connection = cls(target)
        port = target.port or (PORT if tls is None else TLS_PORT)
        async with asyncio.timeout(OPEN_DURATION_S_MAX):
            await connection._loop.create_connection(lambda: connection, target.host, port, ssl=tls)
            try:
                await connection._opened
            except BaseException:
                connection.abort()
                raise
        return connection

    @property
    def product(self) -> str | None:
        """The bus's name for itself in its `open`; Azure sends none."""
        told = (self._connection.peer.properties or {}).get("product")
        return told if isinstance(told, str) else None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open_sender(self, queue: str) -> Sender:
        """A link to send to a queue; raises the reason if the bus refuses it."""
        name = self._next_name(queue)
        link = self._living_session().attach_sender(
            name, Source(name), Target(queue), snd_settle_mode=UNSETTLED
        )
        sender = Sender(self, link)
        await self._attach(sender)
        return sender

    async def open_receiver(
        self, queue: str, *, credit: int = CREDIT_DEFAULT, receive_and_delete: bool = False
    ) -> Receiver:
        """A link to receive from a queue, or from a subqueue: `orders/$DeadLetterQueue`.

        `credit` is how many unsettled messages may be here; they are requested at once.
        """
        settle_mode = SETTLED if receive_and_delete else UNSETTLED
        return await self._open_receiver(Source(queue), credit, settle_mode)

    async def open_session_receiver(
        self,
        queue: str,
        session_id: str | None = None,
        *,
        wait_s: float,
        credit: int = CREDIT_DEFAULT,
        receive_and_delete: bool = False,
    ) -> Receiver:
        """Receive from a session, the next available one if none is named.

        The bus looks for one for up to `wait_s`; then the receiver ends with an error.
        """
        source = Source(queue, filter={_SESSION_FILTER: session_id})
        properties: dict[object, object] = {_TIMEOUT: UInt(int(wait_s * 1_000))}
        settle_mode = SETTLED if receive_and_delete else UNSETTLED
        return await self._open_receiver(source, credit, settle_mode, properties)

    async def _open_receiver(
        self,
        source: Source,
        credit: int,
        settle_mode: int,
        properties: dict[object, object] | None = None,
    ) -> Receiver:
        name = self._next_name(source.address or "")
        link = self._living_session().attach_receiver(
            name,
            source,
            Target(name),
            snd_settle_mode=settle_mode,
            rcv_settle_mode=SECOND,
            properties=properties,
            max_message_size=MESSAGE_SIZE_BYTES_MAX,
        )
        receiver = Receiver(self, link, credit)
        await self._attach(receiver)
        return receiver

    async def close(self) -> None:
        """Send `close` and wait a while for the answer."""
        if self.error is None:
            self._connection.close()
            self.flush()
            await asyncio.wait([self._ended], timeout=CLOSE_DURATION_S_MAX)
        self.abort()

    def abort(self) -> None:
        """Close the socket at once."""
        if self._transport is not None:
            self._transport.abort()
        self._lost("closed by this client")

    def pause_reading(self) -> None:
        """Stop reading from the socket, to test how the bus reacts."""
        if self._transport is not None:
            self._transport.pause_reading()

    def flush_soon(self) -> None:
        """Send everything collected by the end of this loop turn, in one write."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def forget(self, link: Sender | Receiver) -> None:
        """The link has detached: tell it nothing more."""
        self._links.discard(link)
        self.flush_soon()

    def flush(self) -> None:
        self._flushing = False
        if self._transport is not None and self._connection.output_size:
            self._transport.writelines(self._connection.data_to_send())

    async def _attach(self, link: Sender | Receiver) -> None:
        self._links.add(link)
        self.flush_soon()
        await link.attached

    def _living_session(self) -> AmqpSession:
        if self.error is not None:  # the bus may have gone as soon as it had let us in
            raise self.error
        return self._session

    def _next_name(self, queue: str) -> str:
        self._link_count += 1
        return f"{queue}-{self._link_count}"

    # -- what asyncio calls ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._tick()

    def data_received(self, data: bytes) -> None:
        for event in self._connection.receive_data(data):
            self._dispatch(event)
        self.flush()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        for link in self._links:
            if isinstance(link, Sender):
                link.send_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost(f"lost: {exc}" if exc else "closed by the bus")

    def _tick(self) -> None:
        """Send heartbeats, and end a connection that stays silent."""
        if self.error is None:
            self._ticker = self._loop.call_later(TICK_INTERVAL_S, self._tick)
            for event in self._connection.tick(SystemClock().now().mono_ms):
                self._dispatch(event)
            self.flush()

    # -- events ------------------------------------------------------------------------------------

    def _dispatch(self, event: Event) -> None:
        if isinstance(event, DispositionReceived):
            cast(Sender, event.link.context).disposed(event)
        elif isinstance(event, DeliveryReceived):
            cast(Receiver, event.link.context).delivered(event)
        elif isinstance(event, IncomingSettled):
            for link in self._links:
                if isinstance(link, Receiver):
                    link.confirmed(event)
        elif isinstance(event, CreditChanged):
            if isinstance(event.link, EgressLink):
                cast(Sender, event.link.context).send_waiting()
            else:
                cast(Receiver, event.link.context).drained()
        elif isinstance(event, LinkAttached):
            cast(Sender | Receiver, event.link.context).agreed()
        elif isinstance(event, LinkDetached):
            self._detached(event.link, event.error)
        elif isinstance(event, ConnectionOpened):
            if not self._opened.done():  # its owner may have given up waiting
                self._opened.set_result(None)
        elif isinstance(event, SessionEnded | ConnectionClosed):
            self._hang_up(event.error)

    def _detached(self, gone: Link, error: AmqpError | None) -> None:
        link = cast(Sender | Receiver, gone.context)
        self._links.discard(link)
        link.end(service_error(error))

    def _hang_up(self, error: AmqpError | None) -> None:
        self.flush()
        if self._transport is not None:
            self._transport.close()
        if error is None:
            self._lost("closed")
        else:
            self._lost(f"closed: {error.condition} {error.description}", error.condition)

    def _lost(self, reason: str, condition: str = "") -> None:
        if self.error is not None:
            return
        self.error = ConnectionLost(f"connection to {self._target.authority} {reason}", condition)
        if self._ticker is not None:
            self._ticker.cancel()
        for link in self._links:
            link.end(self.error)
        if not self._opened.done():
            self._opened.set_exception(self.error)
        self._ended.set_result(None)
