"""AMQP by hand: any mechanism, any token, any link, over TCP, TLS or a WebSocket.

What the official SDKs would not even try.  Everything is awaited one answer at a time; an attach
that is refused gives its condition back and raises nothing.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Self

import aiohttp

from twinbus.amqp.composites import Coordinator, Declared, DeliveryState, Source, Target
from twinbus.amqp.connection import Connection
from twinbus.amqp.egress import EgressLink
from twinbus.amqp.endpoints import Link
from twinbus.amqp.events import (
    ConnectionClosed,
    ConnectionOpened,
    DispositionReceived,
    LinkAttached,
    LinkDetached,
)
from twinbus.amqp.frames import Event
from twinbus.amqp.ingress import DeliveryReceived, IngressLink
from twinbus.amqp.settings import ConnectionSettings
from twinbus.amqp.states import CLIENT
from twinbus.message.plain import Properties, decode_message, encode_message, value_section

WAIT_S = 20.0


class Refused(Exception):
    """The server hung up; the text is the condition it gave."""


class RawConnection:
    """One connection with one AMQP session."""

    def __init__(
        self,
        mechanism: str = "ANONYMOUS",
        response: bytes = b"",
        hostname: str | None = None,
        early: str = "",
    ) -> None:
        """`early` is the address of a sender that is attached before anything is answered."""
        settings = ConnectionSettings(
            container_id="raw",
            hostname=hostname,
            sasl_mechanisms=(mechanism,),
            sasl_response=response,
        )
        self._amqp = Connection(CLIENT, settings)
        self._amqp.open()
        self._session = self._amqp.begin()
        if early:
            self._session.attach_sender("early", Source("early"), Target(early))
        self._write: Callable[[bytes], Any] = lambda _: None
        self._reader: asyncio.Task[None] | None = None
        self._closers: list[Callable[[], Any]] = []
        loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[str] = loop.create_future()  # the condition
        self._attached: dict[Link, asyncio.Future[str]] = {}
        self._ended: dict[Link, asyncio.Future[str]] = {}
        self._answers: dict[str, asyncio.Future[Any]] = {}
        self._nodes: dict[str, EgressLink] = {}
        self._count = 0

    @classmethod
    async def tcp(cls, port: int, tls: ssl.SSLContext | None = None, **options: Any) -> Self:
        """`options` are those of the constructor; `asked` is the host name for TLS."""
        asked = options.pop("asked", "localhost") if tls else None
        self = cls(**options)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=tls, server_hostname=asked
        )
        self._write = writer.write
        self._closers.append(writer.transport.abort)
        return await self._run(lambda: reader.read(65_536))

    @classmethod
    async def websocket(cls, port: int, **options: Any) -> Self:
        self = cls(**options)
        client = aiohttp.ClientSession()
        socket = await client.ws_connect(
            f"http://127.0.0.1:{port}/$servicebus/websocket", protocols=["AMQPWSB10"]
        )

        async def read() -> bytes:
            message = await socket.receive()
            return message.data if message.type is aiohttp.WSMsgType.BINARY else b""

        writes: asyncio.Queue[bytes] = asyncio.Queue()

        async def write() -> None:
            while True:
                await socket.send_bytes(await writes.get())

        writer = asyncio.get_running_loop().create_task(write())
        self._write = writes.put_nowait
        self._closers += [writer.cancel, socket.close, client.close]
        return await self._run(read)

    async def _run(self, read: Callable[[], Any]) -> Self:
        async def follow() -> None:
            try:
                while data := await read():
                    for event in self._amqp.receive_data(data):
                        self._dispatch(event)
                    self._flush()
            except OSError as error:  # a refused certificate may only show while reading
                self._lost(str(error))
            else:
                self._lost("hung up")

        self._reader = asyncio.get_running_loop().create_task(follow())
        self._flush()
        try:
            await asyncio.wait_for(asyncio.shield(self._opened), WAIT_S)
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
        for close in self._closers:
            result = close()
            if asyncio.iscoroutine(result):
                await result
        await asyncio.sleep(0.01)  # transports close in later turns of the loop

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _flush(self) -> None:
        data = b"".join(self._amqp.data_to_send())
        if data:
            self._write(data)

    def _dispatch(self, event: Event) -> None:
        if isinstance(event, ConnectionOpened):
            self._opened.set_result(None)
        elif isinstance(event, ConnectionClosed):
            self._lost(event.error.condition if event.error else "closed")
        elif isinstance(event, LinkAttached):
            _finish(self._attached.get(event.link), "")
        elif isinstance(event, LinkDetached):
            condition = event.error.condition if event.error else "detached"
            _finish(self._attached.get(event.link), condition)
            _finish(self._ended.get(event.link), condition)
        elif isinstance(event, DeliveryReceived):
            message = decode_message(event.data)
            waiting = self._answers.pop(str(message.properties.correlation_id), None)
            _finish(waiting, message)
        elif isinstance(event, DispositionReceived):
            for context in event.contexts:
                assert context is None or isinstance(context, asyncio.Future)
                _finish(context, event.state)

    def _lost(self, reason: str) -> None:
        _finish(self.closed, reason)
        waiting: list[asyncio.Future[Any]] = [self._opened, *self._answers.values()]
        for future in (*waiting, *self._attached.values(), *self._ended.values()):
            if not future.done():
                future.set_exception(Refused(reason))
                future.exception()  # nobody may be waiting

    # -- links -----------------------------------------------------------------------------------

    async def attach(
        self,
        role: str,
        address: str,
        session_filter: dict[Any, Any] | None = None,
        properties: dict[Any, Any] | None = None,
    ) -> tuple[Link, str]:
        """A link, and "" or the condition it was refused with; `role` is ours."""
        self._count += 1
        name = f"{address}-{self._count}"
        link: Link
        if role == "sender":
            target = Coordinator([]) if address == "coordinator" else Target(address)
            link = self._session.attach_sender(name, Source(name), target, properties=properties)
        else:
            source = Source(address, filter=session_filter)
            link = self._session.attach_receiver(name, source, Target(name), properties=properties)
        loop = asyncio.get_running_loop()
        self._attached[link] = loop.create_future()
        self._ended[link] = loop.create_future()
        self._flush()
        condition = await asyncio.wait_for(self._attached[link], WAIT_S)
        if condition == "" and isinstance(link, IngressLink):
            link.credit_window = 100  # kept filled up
            link.grant(100)
            self._flush()
        return link, condition

    async def ended(self, link: Link) -> str:
        """Wait for the end of a link; gives the condition."""
        return await asyncio.wait_for(self._ended[link], WAIT_S)

    async def close_link(self, link: Link) -> None:
        link.detach()
        self._flush()

    async def send(self, link: Link, data: bytes) -> DeliveryState | None:
        """Send one encoded message; gives the outcome."""
        assert isinstance(link, EgressLink)
        outcome: asyncio.Future[DeliveryState | None] = asyncio.get_running_loop().create_future()
        self._count += 1
        link.send(self._count.to_bytes(8), data, b"", False, outcome)
        self._flush()
        return await asyncio.wait_for(outcome, WAIT_S)

    async def declare(self, link: Link) -> bytes:
        """Begin a transaction on a coordinator link."""
        body = b"\x00\x53\x77" + b"\x00\x53\x31\x45"  # amqp-value: declare, with nothing in it
        outcome = await self.send(link, body)
        assert isinstance(outcome, Declared), outcome
        return outcome.txn_id

    # -- requests --------------------------------------------------------------------------------

    async def put_token(self, token: str, audience: str) -> int:
        properties: dict[str, object] = {"operation": "put-token", "name": audience}
        answer = await self.request("$cbs", properties, token)
        return int(answer["status-code"])

    async def request(self, address: str, properties: dict[str, object], body: object) -> Any:
        """The properties of the answer, or the condition that the links were refused with."""
        sender = self._nodes.get(address)
        if sender is None:
            _, condition = await self.attach("receiver", address)
            if condition:
                return condition
            link, condition = await self.attach("sender", address)
            if condition:
                return condition
            assert isinstance(link, EgressLink)
            sender = self._nodes[address] = link
        self._count += 1
        message_id = f"request-{self._count}"
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers[message_id] = answer
        data = encode_message(value_section(body), Properties(message_id=message_id), properties)
        sender.send(self._count.to_bytes(8), data, b"", True, None)
        self._flush()
        return (await asyncio.wait_for(answer, WAIT_S)).application_properties


def _finish(future: "asyncio.Future[Any] | None", result: object) -> None:
    if future is not None and not future.done():
        future.set_result(result)
