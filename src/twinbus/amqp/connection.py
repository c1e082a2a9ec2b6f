"""An AMQP 1.0 connection without I/O: bytes in, events out, bytes out.

    shell                                          Connection
    ─────                                          ──────────
    bytes from the socket ──▶ receive_data(data) ──▶ list of events
    answers               ──▶ link.accept(), link.send(), link.settle(), session.end(), close() …
    bytes to the socket   ◀── data_to_send()
    now and then          ──▶ tick(mono_ms)      ──▶ list of events

Both roles.  A server answers header, SASL header, `open` and `begin` by itself, and leaves to the
shell what needs judgement: the SASL response (`sasl_accept`, `sasl_refuse`) and every `attach`.
A client calls `open()`, `begin()` and a session's `attach_sender` / `attach_receiver` without
waiting in between; what must wait for SASL waits here.

Nothing a peer sends makes receive_data raise: a peer that breaks the protocol gets a close with the
condition (or SASL's outcome, or the header that we speak), the events end with ConnectionClosed,
and whatever follows is ignored.  There is no clock, no randomness and no socket in here.
"""

from typing import Final

from twinbus.amqp.channels import Channels
from twinbus.amqp.composites import AmqpError, Performative
from twinbus.amqp.events import ConnectionClosed, ConnectionOpened, SaslInitReceived
from twinbus.amqp.frames import (
    AMQP_FRAME,
    AMQP_HEADER,
    EMPTY_FRAME,
    PROTOCOL_HEADER_BYTES,
    SASL_FRAME,
    SASL_HEADER,
    Event,
    FrameBuffer,
    Wire,
    encode_frame,
)
from twinbus.amqp.idle import IdleTime
from twinbus.amqp.ingress import receive_transfer, receive_transfer_frame
from twinbus.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    End,
    Flow,
    Open,
    decode_performative,
)
from twinbus.amqp.places import Places
from twinbus.amqp.sasl import Sasl
from twinbus.amqp.session import AmqpSession
from twinbus.amqp.settings import ConnectionSettings, Peer
from twinbus.amqp.settling import receive_disposition
from twinbus.amqp.states import (
    ATTACH,
    AWAIT_HEADER,
    AWAIT_OPEN,
    BEGIN,
    CLIENT,
    CLOSE,
    CLOSED,
    CONNECTION,
    DETACH,
    DISPOSITION,
    EMPTY,
    END,
    FLOW,
    HEADER,
    ILLEGAL,
    OPEN,
    OPENED,
    REFUSALS,
    SERVER,
    TRANSFER,
    advance,
    refusal,
)
from twinbus.amqp.transfers import Disposition, Transfer, decode_disposition
from twinbus.errors import LocalProtocolError, RemoteProtocolError
from twinbus.limits import (
    ATTACH_SIZE_BYTES_MAX,
    FRAME_SIZE_BYTES_MIN,
    IDLE_TIMEOUT_MS_MIN,
    OUTPUT_BUFFER_BYTES_MAX,
    PRE_OPEN_FRAME_SIZE_BYTES_MAX,
)

# What a client may have sent ahead while the shell still judges its SASL response.
_AHEAD_BYTES_MAX: Final = 4 * PRE_OPEN_FRAME_SIZE_BYTES_MAX

# Answers that pile up behind a closed window of the peer.  A shell stops giving us messages long
# before, so only a peer that asks and asks and never lets us answer gets here.
_OUTPUT_BYTES_MAX: Final = 4 * OUTPUT_BUFFER_BYTES_MAX

_CODES: Final[dict[type, int]] = {
    Open: OPEN,
    Begin: BEGIN,
    Attach: ATTACH,
    Flow: FLOW,
    Transfer: TRANSFER,
    Disposition: DISPOSITION,
    Detach: DETACH,
    End: END,
    Close: CLOSE,
}


class Connection:
    """One side of a connection; see the module's docstring."""

    __slots__ = (
        "_awaits_decision",
        "_buffer",
        "_idle",
        "_sasl",
        "_wire",
        "channels",
        "finished",
        "own_state",
        "peer",
        "peer_state",
        "role",
        "settings",
    )

    def __init__(self, role: int, settings: ConnectionSettings) -> None:
        self.role = role
        self.settings = settings
        self.peer = Peer()
        self.own_state: int = AWAIT_HEADER
        self.peer_state: int = AWAIT_HEADER
        self.finished = False  # nothing more will be read: send what is queued, then hang up
        self._wire = Wire(Places(settings.places))
        self.channels = Channels(role, settings, self.peer, self._wire)
        if role == CLIENT:
            self.places.know()  # whom it has asked for something, it knows
        self._buffer = FrameBuffer(PRE_OPEN_FRAME_SIZE_BYTES_MAX)
        self._sasl: Sasl | None = None
        self._awaits_decision = False
        self._idle = IdleTime()

    # --- for the shell ---------------------------------------------------------------------------
    @property
    def state(self) -> int:
        """OPENED when both sides are; CLOSED once either has closed; else what is still awaited."""
        if self.finished or self.own_state == CLOSED:
            return CLOSED
        return min(self.own_state, self.peer_state)

    @property
    def places(self) -> Places:
        """What it has of the server; the shell says when the peer is known and when it is gone."""
        return self._wire.places

    @property
    def unsettled_count(self) -> int:
        """Deliveries of ours, on all links, that wait for their settlement."""
        return self._wire.unsettled_count

    @property
    def output_size(self) -> int:
        """Bytes that wait to be sent, also those held back by a closed window of the peer."""
        return self._wire.size + self._wire.held_bytes

    @property
    def kept_bytes(self) -> int:
        """What this peer makes us keep: unfinished frames and deliveries, and what it must read."""
        return self._buffer.unread_bytes() + self._wire.partial_bytes + self.output_size

    def data_to_send(self) -> list[bytes]:
        """All there is to send, in order; empty when there is nothing."""
        sasl = self._sasl
        if sasl is not None and (sasl.output or not sasl.accepted):
            frames = sasl.output
            sasl.output = []
            return frames + self._wire.take() if sasl.accepted else frames
        frames = self._wire.take()
        if frames:
            self._idle.sent = True
        return frames

    def receive_data(self, data: bytes) -> list[Event]:
        """Take in what has arrived, in pieces of any size; what it means, in order."""
        if self.finished:
            return []
        self._idle.received = True
        wire = self._wire
        try:
            self._buffer.feed(data)
            self._process()
            if self.output_size > _OUTPUT_BYTES_MAX:
                raise RemoteProtocolError(
                    "more to send than this peer takes", "amqp:resource-limit-exceeded"
                )
        except RemoteProtocolError as error:
            self._fail(AmqpError(error.condition, str(error)))
        events = wire.events
        if events:
            wire.events = []
        return events

    def open(self) -> None:
        """Client: begin to speak."""
        settings = self.settings
        if settings.sasl_mechanisms:
            self._sasl = Sasl(
                CLIENT, settings.sasl_mechanisms, settings.sasl_response, settings.hostname
            )
            self._sasl.start()
        self._send_header()
        self._send_open()

    def begin(self) -> AmqpSession:
        """Client: begin a session; SessionBegun tells when the peer has agreed."""
        if self.own_state != OPENED:
            raise LocalProtocolError("begin on a connection that is not open")
        highest = self.settings.channel_max
        if self.peer_state == OPENED:
            highest = min(highest, self.peer.channel_max)
        return self.channels.begin(highest)

    def sasl_accept(self) -> list[Event]:
        """Server: the SASL response is good.  The events are those of bytes that came ahead."""
        if self._sasl is None or not self._awaits_decision or self.finished:
            return []
        self._awaits_decision = False
        self._sasl.decide(True)
        return self.receive_data(b"")

    def sasl_refuse(self) -> list[Event]:
        """Server: the SASL response is no good; tells the client so and ends with
        ConnectionClosed."""
        if self._sasl is None or not self._awaits_decision or self.finished:
            return []
        self._awaits_decision = False
        self._fail(AmqpError("amqp:unauthorized-access", "SASL response refused"))
        events = self._wire.events
        self._wire.events = []
        return events

    def close(self, error: AmqpError | None = None) -> None:
        """Close; ConnectionClosed comes with the peer's answer.  Before `open` there is nothing to
        wait for and `finished` is set at once."""
        if self.finished or self.own_state == CLOSED:
            return
        if self.own_state == OPENED:
            self._send_close(error)
        else:
            self.finished = True

    # --- time ------------------------------------------------------------------------------------
    def tick(self, mono_ms: int) -> list[Event]:
        """Look at the idle time-outs of both sides; call it four times within the shorter."""
        if self.finished or self.own_state != OPENED or self.peer_state != OPENED:
            return []
        idle = self._idle
        idle.tick(mono_ms)
        if idle.is_over(mono_ms, self.settings.idle_timeout_ms):
            self._fail(AmqpError("amqp:resource-limit-exceeded", "idle: nothing was received"))
            events = self._wire.events
            self._wire.events = []
            return events
        if idle.must_speak(mono_ms, self.peer.idle_timeout_ms):
            self._wire.write(EMPTY_FRAME)
        return []

    # --- receiving: headers and SASL -------------------------------------------------------------
    def _process(self) -> None:
        """Work through the buffer, layer by layer."""
        buffer = self._buffer
        while not self.finished:
            if self._awaits_decision:
                if buffer.unread_bytes() > _AHEAD_BYTES_MAX:
                    raise RemoteProtocolError("too much sent before the SASL outcome")
                return
            if self.peer_state != AWAIT_HEADER:
                self._receive_frames()
                return
            sasl = self._sasl
            if sasl is None or sasl.expects_header:
                header = buffer.take(PROTOCOL_HEADER_BYTES)
                if header is None:
                    return
                self._receive_header(header)
            else:
                if not buffer.next_frame():
                    return
                self._receive_sasl_frame(sasl)

    def _receive_header(self, header: bytes) -> None:
        settings = self.settings
        sasl = self._sasl
        wants_sasl = settings.require_sasl if sasl is None else not sasl.decided
        if header == SASL_HEADER:
            if sasl is None and self.role == SERVER and settings.sasl_mechanisms:
                sasl = Sasl(SERVER, settings.sasl_mechanisms, b"", None)
                self._sasl = sasl
            if sasl is not None and not sasl.decided:
                sasl.receive_header()
                return
        elif header == AMQP_HEADER and not wants_sasl:
            self.peer_state = advance(CONNECTION, self.peer_state, HEADER)
            if self.role == SERVER:
                self._send_header()
            return
        # Not what we speak here: a server says what it speaks, and both hang up.
        if self.role == SERVER:
            self._wire.write(SASL_HEADER if wants_sasl else AMQP_HEADER)
        self._finish(AmqpError(REFUSALS[AWAIT_HEADER], "protocol header not supported"), False)

    def _receive_sasl_frame(self, sasl: Sasl) -> None:
        buffer = self._buffer
        if buffer.frame_type != SASL_FRAME:
            raise RemoteProtocolError("not a SASL frame")
        performative, at = decode_performative(buffer.data, buffer.start, buffer.end)
        if at != buffer.end:
            raise RemoteProtocolError("SASL frame with bytes left over")
        sasl.receive(performative)
        init = sasl.init
        if init is not None:
            self._awaits_decision = True
            self._wire.events.append(
                SaslInitReceived(init.mechanism, init.initial_response or b"", init.hostname)
            )

    # --- receiving: frames -----------------------------------------------------------------------
    def _receive_frames(self) -> None:
        """The loop every message comes through: the two frequent performatives first."""
        buffer = self._buffer
        sessions = self.channels.sessions
        while buffer.next_frame():
            data = buffer.data
            start = buffer.start
            end = buffer.end
            if buffer.frame_type != AMQP_FRAME:
                raise RemoteProtocolError("SASL frame after SASL")
            if end - start > 3 and data[start] == 0x00 and data[start + 1] == 0x53:
                code = data[start + 2]
                if code == TRANSFER:
                    session = sessions.get(buffer.channel)
                    if session is not None and session.live:
                        receive_transfer_frame(session, data, start + 3, end)
                        continue
                elif code == DISPOSITION:
                    session = sessions.get(buffer.channel)
                    if session is not None and session.live:
                        disposition, at = decode_disposition(data, start + 3, end)
                        if at != end:
                            raise RemoteProtocolError("disposition with bytes left over")
                        receive_disposition(session, disposition)
                        continue
            self._receive_frame(data, start, end, buffer.channel)
            if self.finished:
                return

    def _receive_frame(self, data: bytes, start: int, end: int, channel: int) -> None:
        """Any frame, by the tables."""
        code: int = EMPTY
        performative: Performative | None = None
        at = end
        if start < end:
            performative, at = decode_performative(data, start, end)
            code = _CODES.get(type(performative), -1)
            if at != end and code != TRANSFER:
                raise RemoteProtocolError(f"{type(performative).__name__} with bytes left over")
        state = advance(CONNECTION, self.peer_state, code)
        if state == ILLEGAL:
            raise RemoteProtocolError(refusal(self.peer_state, code), REFUSALS[self.peer_state])
        self.peer_state = state
        if code == ATTACH and end - start > ATTACH_SIZE_BYTES_MAX:
            raise RemoteProtocolError(
                f"attach of {end - start} bytes, {ATTACH_SIZE_BYTES_MAX} is the most",
                "amqp:resource-limit-exceeded",
            )
        if isinstance(performative, Close):
            self._receive_close(performative)
        elif self.own_state == CLOSED or performative is None:
            return  # sent before the peer heard our close; or a mere sign of life
        elif isinstance(performative, Open):
            self._receive_open(performative)
        elif self.channels.may_receive(channel, code):
            self._receive_on_channel(channel, performative, data, at, end)

    def _receive_open(self, received: Open) -> None:
        if received.max_frame_size < FRAME_SIZE_BYTES_MIN:
            raise RemoteProtocolError("max-frame-size below 512", "amqp:invalid-field")
        idle_ms = received.idle_time_out or 0
        if 0 < idle_ms < IDLE_TIMEOUT_MS_MIN:
            raise RemoteProtocolError(
                f"idle-time-out below {IDLE_TIMEOUT_MS_MIN} ms", "amqp:invalid-field"
            )
        peer = self.peer
        peer.container_id = received.container_id
        peer.hostname = received.hostname
        peer.frame_size_max = received.max_frame_size
        peer.channel_max = received.channel_max
        peer.idle_timeout_ms = idle_ms
        peer.properties = received.properties
        self._wire.frame_size_max = received.max_frame_size
        self._buffer.frame_size_max = self.settings.frame_size_max
        if self.own_state == AWAIT_OPEN:
            self._send_open()
        self._wire.events.append(ConnectionOpened())

    def _receive_close(self, received: Close) -> None:
        if self.own_state == OPENED:
            self._send_close(None)
        self._finish(received.error, True)

    def _receive_on_channel(
        self, channel: int, performative: Performative, data: bytes, at: int, end: int
    ) -> None:
        """A session's frame that is allowed; the body of a transfer is `data[at:end]`."""
        if isinstance(performative, Begin):
            self.channels.receive_begin(channel, performative)
            return
        if isinstance(performative, End):
            self.channels.receive_end(channel, performative)
            return
        session = self.channels.sessions[channel]
        if isinstance(performative, Flow):
            session.receive_flow(performative)
        elif isinstance(performative, Attach):
            session.receive_attach(performative)
        elif isinstance(performative, Detach):
            session.receive_detach(performative)
        elif isinstance(performative, Transfer):
            receive_transfer(session, performative, data[at:end])
        elif isinstance(performative, Disposition):
            receive_disposition(session, performative)

    # --- sending ---------------------------------------------------------------------------------
    def _send_header(self) -> None:
        self._wire.write(AMQP_HEADER)
        self.own_state = AWAIT_OPEN

    def _send_open(self) -> None:
        settings = self.settings
        message = Open(
            settings.container_id,
            settings.hostname,
            settings.frame_size_max,
            settings.channel_max,
            settings.idle_timeout_ms or None,
            None,
            None,
            None,
            None,
            settings.properties,
        )
        self._wire.write(encode_frame(0, message.encode()))
        self.own_state = OPENED

    def _send_close(self, error: AmqpError | None) -> None:
        self.channels.abandon()
        self._wire.write(encode_frame(0, Close(error).encode()))
        self.own_state = CLOSED

    # --- the end ---------------------------------------------------------------------------------
    def _fail(self, error: AmqpError) -> None:
        """The peer broke the protocol: tell it on the layer where it is."""
        sasl = self._sasl
        if sasl is not None and not sasl.decided:
            if self.role == SERVER:
                sasl.decide(False)
        else:
            if self.own_state == AWAIT_OPEN:
                self._send_open()  # a close must follow an open
            if self.own_state == OPENED:
                self._send_close(error)
        self._finish(error, False)

    def _finish(self, error: AmqpError | None, by_peer: bool) -> None:
        self.finished = True
        self.own_state = CLOSED
        self._wire.events.append(ConnectionClosed(error, by_peer))
