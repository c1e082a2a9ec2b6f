"""Connections wired together in memory, and bytes made by hand, for the tests of this room."""

from twinbus.amqp.composites import AmqpError, DeliveryState, Performative, Source, Target
from twinbus.amqp.connection import Connection
from twinbus.amqp.egress import EgressLink
from twinbus.amqp.events import (
    ConnectionClosed,
    CreditChanged,
    DispositionReceived,
    IncomingSettled,
    LinkAttached,
    LinkDetached,
    SaslInitReceived,
    SessionBegun,
    SessionEnded,
)
from twinbus.amqp.frames import (
    AMQP_FRAME,
    AMQP_HEADER,
    SASL_FRAME,
    SASL_HEADER,
    Event,
    FrameBuffer,
    encode_frame,
)
from twinbus.amqp.ingress import DeliveryReceived, DeliveryTooLarge, IngressLink
from twinbus.amqp.performatives import RECEIVER, SENDER, Attach, Begin, Open, decode_performative
from twinbus.amqp.sasl_performatives import SaslInit
from twinbus.amqp.session import AmqpSession
from twinbus.amqp.settings import ConnectionSettings
from twinbus.amqp.states import CLIENT, SERVER

MECHANISMS = ("ANONYMOUS", "PLAIN", "EXTERNAL", "MSSBCBS")
FRAME_SIZE_HUGE = 16_777_216


def make_server(
    require_sasl: bool = True, idle_timeout_ms: int = 0, channel_max: int = 63
) -> Connection:
    return Connection(
        SERVER,
        ConnectionSettings(
            "server",
            sasl_mechanisms=MECHANISMS,
            require_sasl=require_sasl,
            idle_timeout_ms=idle_timeout_ms,
            channel_max=channel_max,
        ),
    )


def make_client(
    frame_size_max: int = 262_144, mechanisms: tuple[str, ...] = ("ANONYMOUS",)
) -> Connection:
    return Connection(
        CLIENT,
        ConnectionSettings(
            "client",
            hostname="broker",
            frame_size_max=frame_size_max,
            sasl_mechanisms=mechanisms,
            idle_timeout_ms=0,
        ),
    )


# --- bytes by hand -------------------------------------------------------------------------------
def frame(channel: int, performative: Performative, body: bytes = b"") -> bytes:
    return encode_frame(channel, performative.encode(), body)


def sasl_frame(performative: Performative) -> bytes:
    return encode_frame(0, performative.encode(), b"", SASL_FRAME)


Read = tuple[int, Performative | None, bytes]


def read_frames(data: bytes) -> list[Read]:
    """(channel, performative, body) of each frame; headers at the beginning are passed over."""
    while data[:4] == b"AMQP":
        data = data[8:]
    buffer = FrameBuffer(FRAME_SIZE_HUGE)
    buffer.feed(data)
    frames: list[Read] = []
    while buffer.next_frame():
        assert buffer.frame_type in {AMQP_FRAME, SASL_FRAME}
        if buffer.start == buffer.end:
            frames.append((buffer.channel, None, b""))
            continue
        performative, at = decode_performative(buffer.data, buffer.start, buffer.end)
        frames.append((buffer.channel, performative, buffer.data[at : buffer.end]))
    assert buffer.unread_bytes() == 0
    return frames


def sent(connection: Connection) -> list[Performative]:
    """The performatives that wait to be sent."""
    found: list[Performative] = []
    for _, performative, _ in read_frames(b"".join(connection.data_to_send())):
        if performative is not None:
            found.append(performative)
    return found


def sasl_flight() -> bytes:
    return SASL_HEADER + sasl_frame(SaslInit("ANONYMOUS", b"", "broker"))


def open_flight(max_frame_size: int = 1_048_576, idle_time_out: int | None = None) -> bytes:
    return AMQP_HEADER + frame(0, Open("peer", "broker", max_frame_size, 65_535, idle_time_out))


def begin_frame(channel: int = 1, window: int = 65_536) -> bytes:
    return frame(channel, Begin(None, 0, window, 65_536))


def attach_frame(role: bool, handle: int = 1, name: str = "link", channel: int = 1) -> bytes:
    initial = 0 if role == SENDER else None
    attach = Attach(name, handle, role, 0, 1, Source("a"), Target("b"), None, False, initial)
    return frame(channel, attach)


# --- a shell that says yes -----------------------------------------------------------------------
class Shell:
    """Answers what a server's shell must answer and keeps all events."""

    def __init__(self, connection: Connection, credit: int = 100) -> None:
        self.connection = connection
        self.credit = credit
        self.events: list[Event] = []

    def feed(self, data: bytes) -> list[Event]:
        """Events of `data`, each answered."""
        before = len(self.events)
        self.answer(self.connection.receive_data(data))
        return self.events[before:]

    def answer(self, events: list[Event]) -> None:
        for event in events:
            self.events.append(event)
            if isinstance(event, SaslInitReceived):
                self.answer(self.connection.sasl_accept())
            elif isinstance(event, LinkAttached) and not event.link.answered:
                if isinstance(event.link, IngressLink):
                    event.link.accept(1_000_000, None, self.credit)
                elif isinstance(event.link, EgressLink):
                    event.link.accept()


def opened_server(
    window: int = 65_536,
    max_frame_size: int = 1_048_576,
    idle_timeout_ms: int = 0,
    peer_idle_ms: int | None = None,
) -> Shell:
    """A server whose peer has opened, and begun a session on channel 1; nothing left to send."""
    shell = Shell(make_server(idle_timeout_ms=idle_timeout_ms))
    shell.feed(sasl_flight())
    shell.feed(open_flight(max_frame_size, peer_idle_ms) + begin_frame(1, window))
    shell.connection.data_to_send()
    return shell


def attached_ingress(shell: Shell, handle: int = 1) -> IngressLink:
    """The peer attaches as sender; nothing left to send."""
    shell.feed(attach_frame(SENDER, handle, f"in-{handle}"))
    shell.connection.data_to_send()
    link = shell.connection.channels.sessions[1].links[handle]
    assert isinstance(link, IngressLink)
    return link


def attached_egress(shell: Shell, handle: int = 2) -> EgressLink:
    """The peer attaches as receiver; nothing left to send."""
    shell.feed(attach_frame(RECEIVER, handle, f"out-{handle}"))
    shell.connection.data_to_send()
    link = shell.connection.channels.sessions[1].links[handle]
    assert isinstance(link, EgressLink)
    return link


# --- both roles ----------------------------------------------------------------------------------
class Pair:
    """A client and a server of our own; `pump` carries bytes until nobody has any."""

    def __init__(self, client_frame_size: int = 262_144) -> None:
        self.server = Shell(make_server())
        self.client = Shell(make_client(client_frame_size))
        self.client.connection.open()
        self.session: AmqpSession = self.client.connection.begin()

    def pump(self, chunk: int = 0) -> None:
        """Carry bytes both ways; in pieces of `chunk` bytes unless it is 0."""
        moved = True
        while moved:
            moved = carry(self.client.connection, self.server, chunk)
            moved = carry(self.server.connection, self.client, chunk) or moved


def carry(source: Connection, shell: Shell, chunk: int = 0) -> bool:
    data = b"".join(source.data_to_send())
    step = chunk or max(1, len(data))
    for at in range(0, len(data), step):
        shell.feed(data[at : at + step])
    return bool(data)


# --- comparing -----------------------------------------------------------------------------------
def _error(error: AmqpError | None) -> str:
    return "" if error is None else error.condition


def _state(state: DeliveryState | None) -> bytes:
    return b"" if state is None else state.encode()


def describe(event: Event) -> tuple[object, ...]:
    """An event as plain values, so that two runs can be compared."""
    name = type(event).__name__
    if isinstance(event, SaslInitReceived):
        return (name, event.mechanism, event.response, event.hostname)
    if isinstance(event, ConnectionClosed):
        return (name, _error(event.error), event.by_peer)
    if isinstance(event, SessionBegun):
        return (name, event.session.peer_channel)
    if isinstance(event, SessionEnded):
        return (name, event.session.peer_channel, _error(event.error))
    if isinstance(event, LinkAttached):
        return (name, event.link.name, event.link.peer_handle, event.link.role)
    if isinstance(event, LinkDetached):
        return (name, event.link.name, event.closed, _error(event.error))
    if isinstance(event, DeliveryReceived):
        details = (event.delivery_id, event.tag, event.message_format, event.settled)
        return (name, event.link.name, *details, _state(event.state), event.data)
    if isinstance(event, DeliveryTooLarge):
        return (name, event.link.name, event.delivery_id, event.settled, event.size)
    if isinstance(event, CreditChanged):
        return (name, event.link.name)
    if isinstance(event, DispositionReceived):
        outcome = (event.settled, _state(event.state))
        return (name, event.link.name, *event.delivery_ids, *event.contexts, *outcome)
    if isinstance(event, IncomingSettled):
        return (name, event.first, event.last, event.settled, _state(event.state))
    return (name,)


def closed_with(events: list[Event]) -> str:
    """The condition that the last event closes the connection with."""
    last = events[-1]
    assert isinstance(last, ConnectionClosed)
    assert last.error is not None
    return last.error.condition
