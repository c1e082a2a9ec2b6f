"""The AMQP client against a bus of a few lines that stands on the same sans-I/O core."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from twinbus.amqp.composites import (
    ACCEPTED,
    REJECTED,
    AmqpError,
    Modified,
    Rejected,
    Released,
    modified,
    rejected,
)
from twinbus.amqp.connection import Connection
from twinbus.amqp.egress import EgressLink
from twinbus.amqp.events import (
    ConnectionClosed,
    CreditChanged,
    DispositionReceived,
    LinkAttached,
    SaslInitReceived,
)
from twinbus.amqp.frames import Event
from twinbus.amqp.ingress import DeliveryReceived, IngressLink
from twinbus.amqp.settings import ConnectionSettings
from twinbus.amqp.states import SERVER
from twinbus.client.connection import BusConnection
from twinbus.client.links import ConnectionLost
from twinbus.errors import EntityNotFound, MessageLockLost, QuotaExceeded
from twinbus.message.plain import data_section, decode_message, encode_message

pytestmark = pytest.mark.asyncio


class SmallBus(asyncio.Protocol):
    """Keeps messages in a list.  Queues named missing, full, late and silent misbehave."""

    def __init__(self) -> None:
        settings = ConnectionSettings("bus", sasl_mechanisms=("PLAIN",), require_sasl=True)
        self.connection = Connection(SERVER, settings)
        self.stored: list[bytes] = []
        self.states: list[object] = []
        self.filters: list[object] = []
        self.properties: list[object] = []
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        events = self.connection.receive_data(data)
        while events:
            event = events.pop(0)
            events += self.react(event)
        self.flush()

    def flush(self) -> None:
        assert self.transport is not None
        self.transport.writelines(self.connection.data_to_send())
        if self.connection.finished:
            self.transport.close()

    def react(self, event: Event) -> list[Event]:
        if isinstance(event, SaslInitReceived):
            known = event.response == b"\0rule\0secret"
            return self.connection.sasl_accept() if known else self.connection.sasl_refuse()
        if isinstance(event, LinkAttached):
            self.attach(event.link)
        elif isinstance(event, DeliveryReceived):
            self.take(event)
        elif isinstance(event, CreditChanged) and isinstance(event.link, EgressLink):
            self.deliver(event.link)
        elif isinstance(event, DispositionReceived):
            self.confirm(event)
        elif isinstance(event, ConnectionClosed):
            self.flush()
        return []

    def attach(self, link: object) -> None:
        assert isinstance(link, EgressLink | IngressLink)
        terminus = link.source if isinstance(link, EgressLink) else link.target
        address = getattr(terminus, "address", "")
        link.context = address
        if address == "missing":
            link.refuse(AmqpError("amqp:not-found", "no such queue"))
        elif isinstance(link, EgressLink):
            self.filters.append(link.source.filter if link.source is not None else None)
            self.properties.append(link.properties)
            link.accept()
        else:
            link.accept(credit=2)

    def take(self, event: DeliveryReceived) -> None:
        if event.link.context == "silent":
            return
        full = event.link.context == "full"
        state = rejected(AmqpError("amqp:resource-limit-exceeded", "full")) if full else ACCEPTED
        if not full:
            self.stored.append(event.data)
        event.link.settle(event.delivery_id, event.delivery_id, state)

    def deliver(self, link: EgressLink) -> None:
        while self.stored and link.credit > 0:
            body = decode_message(self.stored.pop(0)).body
            assert isinstance(body, bytes)
            annotations = {"x-opt-sequence-number": 7, "x-opt-locked-until": 99}
            data = encode_message(data_section(body), annotations=dict(annotations))
            link.send(bytes(16), data, b"", False, None)

    def confirm(self, event: DispositionReceived) -> None:
        self.states.append(event.state)
        if event.link.context == "silent":
            return
        state = ACCEPTED
        if event.link.context == "late":
            state = rejected(AmqpError("com.microsoft:message-lock-lost", "too late"))
        elif isinstance(event.state, Rejected):
            state = REJECTED
        elif isinstance(event.state, Modified):
            state = modified(True, False)
        event.link.settle(event.delivery_ids, state)


Dial = Callable[..., Awaitable[BusConnection]]


@asynccontextmanager
async def a_bus() -> AsyncIterator[tuple[SmallBus, Dial]]:
    bus = SmallBus()
    server = await asyncio.get_running_loop().create_server(lambda: bus, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def dial(key: str = "secret") -> BusConnection:
        return await BusConnection.open(
            f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=rule;SharedAccessKey={key};"
            "UseDevelopmentEmulator=true"
        )

    async with server:
        yield bus, dial


async def test_messages_go_there_and_back_and_are_settled() -> None:
    async with a_bus() as (bus, dial), await dial() as connection:
        sender = await connection.open_sender("q")
        # More than the bus's credit of two: the rest waits for more.
        await asyncio.gather(*(sender.send(b"%d" % number) for number in range(10)))
        receiver = await connection.open_receiver("q", credit=3)
        bodies = []
        for _ in range(10):
            received = await receiver.receive()
            assert received is not None
            assert (received.sequence_number, received.locked_until_ms) == (7, 99)
            bodies.append(received.body)
            await receiver.complete(received)
        assert bodies == [b"%d" % number for number in range(10)]
        assert len(bus.states) == 10
        assert await receiver.receive(0.01) is None


async def test_every_way_to_settle_is_spoken_as_service_bus_does() -> None:
    async with a_bus() as (bus, dial), await dial() as connection:
        bus.stored = [encode_message(data_section(b"x"))] * 4
        receiver = await connection.open_receiver("q")
        for way in (receiver.abandon, receiver.defer, receiver.release):
            received = await receiver.receive()
            assert received is not None
            await way(received)
        received = await receiver.receive()
        assert received is not None
        await receiver.dead_letter(received, "no stamp", "the envelope has none")
        abandoned, deferred, released, dead_lettered = bus.states
        assert isinstance(abandoned, Modified)
        assert not abandoned.undeliverable_here
        assert isinstance(deferred, Modified)
        assert deferred.undeliverable_here
        assert isinstance(released, Released)
        assert isinstance(dead_lettered, Rejected)
        assert dead_lettered.error is not None
        assert dead_lettered.error.condition == "com.microsoft:dead-letter"
        assert dead_lettered.error.info == {
            "DeadLetterReason": "no stamp",
            "DeadLetterErrorDescription": "the envelope has none",
        }


async def test_a_session_is_asked_for_as_service_bus_does() -> None:
    async with a_bus() as (bus, dial), await dial() as connection:
        bus.stored.append(encode_message(data_section(b"x")))
        receiver = await connection.open_session_receiver("orders", "s", wait_s=1.5)
        received = await receiver.receive()
        assert received is not None
        await receiver.complete(received)
        await connection.open_session_receiver("orders", wait_s=0)
        assert bus.filters == [
            {"com.microsoft:session-filter": "s"},
            {"com.microsoft:session-filter": None},
        ]
        assert bus.properties == [{"com.microsoft:timeout": 1_500}, {"com.microsoft:timeout": 0}]


async def test_what_the_bus_refuses_is_raised_by_its_name() -> None:
    async with a_bus() as (bus, dial), await dial() as connection:
        with pytest.raises(EntityNotFound, match="no such queue"):
            await connection.open_sender("missing")
        with pytest.raises(EntityNotFound, match="no such queue"):
            await connection.open_receiver("missing")
        sender = await connection.open_sender("full")
        with pytest.raises(QuotaExceeded):
            await sender.send(b"x")
        bus.stored.append(encode_message(data_section(b"x")))
        receiver = await connection.open_receiver("late")
        received = await receiver.receive()
        assert received is not None
        with pytest.raises(MessageLockLost):
            await receiver.complete(received)


async def test_a_wrong_key_is_refused() -> None:
    async with a_bus() as (_, dial):
        with pytest.raises(ConnectionLost):
            await dial("wrong")


async def test_what_is_under_way_when_the_connection_dies_is_unknown() -> None:
    async with a_bus() as (bus, dial), await dial() as connection:
        sender = await connection.open_sender("silent")
        bus.stored.append(encode_message(data_section(b"x")))
        receiver = await connection.open_receiver("silent")
        received = await receiver.receive()
        assert received is not None
        operations = [sender.send(b"x") for _ in range(5)]  # beyond credit, too
        operations.append(receiver.complete(received))
        waiter = asyncio.ensure_future(receiver.receive())
        await asyncio.sleep(0)
        assert bus.transport is not None
        bus.transport.abort()
        ends = await asyncio.gather(*operations, waiter, return_exceptions=True)
        assert {type(end) for end in ends} == {ConnectionLost}
        with pytest.raises(ConnectionLost):
            sender.raise_if_closed()
        with pytest.raises(ConnectionLost):
            await sender.send(b"x")
        with pytest.raises(ConnectionLost):
            await receiver.receive()


async def test_links_of_a_connection_that_has_died_are_refused_by_its_error() -> None:
    async with a_bus() as (bus, dial), await dial() as connection:
        bus.connection.close()  # as a server that is told to end just after it has let us in
        bus.flush()
        await connection._ended
        with pytest.raises(ConnectionLost):
            await connection.open_sender("q")
        with pytest.raises(ConnectionLost):
            await connection.open_receiver("q")


async def test_giving_up_on_an_attach_disturbs_nobody() -> None:
    async with a_bus() as (_, dial), await dial() as connection:
        given_up = asyncio.ensure_future(connection.open_sender("q"))
        await asyncio.sleep(0)
        given_up.cancel()
        sender = await connection.open_sender("q")
        await sender.send(b"x")
