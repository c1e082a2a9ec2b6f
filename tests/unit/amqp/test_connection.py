"""Connections: headers, open, close, limits, idle time-outs, and the SDK's very bytes."""

import pytest

from tests.unit.amqp.wiring import (
    Pair,
    Shell,
    attach_frame,
    attached_egress,
    attached_ingress,
    begin_frame,
    closed_with,
    describe,
    frame,
    make_client,
    make_server,
    opened_server,
    read_frames,
    sasl_flight,
    sasl_frame,
    sent,
)
from twinbus.amqp.composites import AmqpError
from twinbus.amqp.connection import Connection
from twinbus.amqp.events import ConnectionClosed, ConnectionOpened, SessionBegun, SessionEnded
from twinbus.amqp.frames import AMQP_HEADER, EMPTY_FRAME, SASL_HEADER, TLS_HEADER
from twinbus.amqp.performatives import (
    RECEIVER,
    SENDER,
    Attach,
    Begin,
    Close,
    Detach,
    End,
    Flow,
    Open,
)
from twinbus.amqp.sasl_performatives import SaslInit
from twinbus.amqp.states import AWAIT_HEADER, CLOSED, OPENED
from twinbus.amqp.transfers import Disposition
from twinbus.errors import LocalProtocolError
from twinbus.limits import OUTPUT_BUFFER_BYTES_MAX, PRE_OPEN_FRAME_SIZE_BYTES_MAX


def list8(code: int, count: int, fields: bytes) -> bytes:
    return bytes((0x00, 0x53, code, 0xC0, len(fields) + 1, count)) + fields


def list32(code: int, count: int, fields: bytes) -> bytes:
    sizes = (len(fields) + 4).to_bytes(4, "big") + count.to_bytes(4, "big")
    return bytes((0x00, 0x53, code, 0xD0)) + sizes + fields


# What azure-servicebus 7.15 (pyamqp) writes after the SASL outcome, in one flight, byte for byte
# but for the names: open, begin, attach of the $cbs receiver and of the $cbs sender.
SDK_OPEN = list32(
    0x10,
    10,
    b"\xa1\x0aSBSender-1\xa1\x09localhost\x70\x00\x10\x00\x00\x60\xff\xff\x40\x40\x40\x40\x40"
    b"\xc1\x23\x02\xa3\x07product\xa1\x17azsdk-python-servicebus",
)
SDK_BEGIN = list8(
    0x11, 8, b"\x40\x43\x70\x00\x01\x00\x00\x70\x00\x01\x00\x00\x70\xff\xff\xff\xff\x40\x40\x40"
)
SDK_TERMINI = (
    b"\x00\x53\x28\xc0\x11\x0b\xa1\x04$cbs\x40\x40\x40\x40\x40\x40\x40\x40\x40\x40"
    b"\x00\x53\x29\xc0\x0d\x07\xa1\x04$cbs\x40\x40\x40\x40\x40\x40"
)
SDK_CBS_RECEIVER = list8(
    0x12,
    14,
    b"\xa1\x08receiver\x52\x02\x56\x01\x50\x00\x50\x00"
    + SDK_TERMINI
    + b"\x40\x40\x40\x40\x40\x40\x40",
)
SDK_CBS_SENDER = list8(
    0x12,
    14,
    b"\xa1\x06sender\x52\x01\x56\x00\x50\x00\x50\x00"
    + SDK_TERMINI
    + b"\x40\x40\x43\x40\x40\x40\x40",
)
# After each attach: link-credit 10,000, also on the link where the SDK is the sender.
SDK_FLOW = b"\x00\x53\x13\xc0\x19\x0b\x43\x70\x00\x01\x00\x00\x43\x70\x00\x01\x00\x00\x52"
SDK_FLOW_CREDIT = b"\x43\x70\x00\x00\x27\x10\x40\x40\x40\x40"


def raw_frame(channel: int, performative: bytes) -> bytes:
    return (len(performative) + 8).to_bytes(4, "big") + bytes((2, 0, 0, channel)) + performative


def sdk_flight() -> bytes:
    return (
        AMQP_HEADER
        + raw_frame(0, SDK_OPEN)
        + raw_frame(1, SDK_BEGIN)
        + raw_frame(1, SDK_CBS_RECEIVER)
        + raw_frame(1, SDK_CBS_SENDER)
    )


@pytest.mark.parametrize("chunk", [1, 7, 10_000])
def test_opening_flight_of_the_sdk(chunk: int) -> None:
    """sdk-wire 2: header, open, begin and two attaches arrive without waiting for an answer."""
    shell = Shell(make_server())
    shell.feed(SASL_HEADER)
    shell.feed(sasl_frame(SaslInit("ANONYMOUS", b"", "localhost")))
    shell.connection.data_to_send()
    flight = sdk_flight()
    for at in range(0, len(flight), chunk):
        shell.feed(flight[at : at + chunk])
    data = b"".join(shell.connection.data_to_send())
    assert data.startswith(AMQP_HEADER)
    frames = read_frames(data)
    opened, begun, receiver, sender = (performative for _, performative, _ in frames[:4])
    assert isinstance(opened, Open)
    assert isinstance(begun, Begin)
    assert begun.remote_channel == 1
    assert begun.handle_max >= 255
    assert isinstance(receiver, Attach)
    assert (receiver.name, receiver.role, receiver.initial_delivery_count) == (
        "receiver",
        SENDER,
        0,
    )
    assert isinstance(sender, Attach)
    assert (sender.name, sender.role) == ("sender", RECEIVER)
    for answer in (receiver, sender):
        assert answer.source is not None
        assert answer.target is not None
        assert answer.source.address == "$cbs"
    for handle in (b"\x02", b"\x01"):
        shell.feed(raw_frame(1, SDK_FLOW + handle + SDK_FLOW_CREDIT))
    assert [describe(e)[0] for e in shell.events] == [
        "SaslInitReceived",
        "ConnectionOpened",
        "SessionBegun",
        "LinkAttached",
        "LinkAttached",
        "CreditChanged",
    ]
    assert shell.connection.state == OPENED
    peer = shell.connection.peer
    assert (peer.container_id, peer.hostname) == ("SBSender-1", "localhost")
    assert (peer.frame_size_max, peer.idle_timeout_ms) == (1_048_576, 0)
    assert peer.properties == {"product": "azsdk-python-servicebus"}


def test_closing_flight_of_the_sdk() -> None:
    """sdk-wire 11: detaches of other links follow the end of their session, then close."""
    shell = opened_server()
    attached_ingress(shell, 1)
    attached_egress(shell, 2)
    events = shell.feed(
        frame(1, Detach(1, True))
        + frame(1, End())
        + frame(1, Detach(2, False))
        + frame(1, Detach(3, False))
        + frame(0, Close())
    )
    assert [describe(e) for e in events] == [
        ("LinkDetached", "in-1", True, ""),
        ("SessionEnded", 1, ""),
        ("ConnectionClosed", "", True),
    ]
    assert [type(p) for p in sent(shell.connection)] == [Detach, End, Close]


@pytest.mark.parametrize(
    "header",
    [
        TLS_HEADER,
        b"AMQP\x00\x00\x09\x01",
        b"AMQP\x00\x01\x00\x01",
        b"AMQP\x01\x01\x00\x00",
        b"GET / HT",
        bytes(8),
    ],
)
def test_foreign_headers_are_answered_with_ours(header: bytes) -> None:
    connection = make_server()
    assert closed_with(connection.receive_data(header)) == "amqp:connection:framing-error"
    assert b"".join(connection.data_to_send()) == SASL_HEADER
    # After SASL it is the AMQP header that we would have understood.
    shell = Shell(make_server())
    shell.feed(sasl_flight())
    shell.connection.data_to_send()
    assert closed_with(shell.feed(header)) == "amqp:connection:framing-error"
    assert b"".join(shell.connection.data_to_send()) == AMQP_HEADER


def test_client_gives_up_on_a_foreign_header() -> None:
    client = make_client()
    client.open()
    client.data_to_send()
    assert closed_with(client.receive_data(AMQP_HEADER)) == "amqp:connection:framing-error"
    assert client.data_to_send() == []


@pytest.mark.parametrize(
    "data, condition",
    [
        (b"\x00\x00\x00\x07\x02\x00\x00\x00", "amqp:connection:framing-error"),
        (b"\x00\x00\x00\x10\x01\x00\x00\x00" + bytes(8), "amqp:connection:framing-error"),
        (b"\x00\x00\x00\x10\x05\x00\x00\x00" + bytes(8), "amqp:connection:framing-error"),
        (b"\x00\x00\x00\x10\x02\x02\x00\x00" + bytes(8), "amqp:connection:framing-error"),
        (b"\x00\x00\x00\x08\x02\x01\x00\x00", "amqp:connection:framing-error"),
        (b"\xff\xff\xff\xff\x02\x00\x00\x00", "amqp:connection:framing-error"),
        (b"\x00\x00\x00\x09\x02\x00\x00\x00\x40", "amqp:decode-error"),
        (b"\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x19\x45", "amqp:decode-error"),
        (b"\x00\x00\x00\x0d\x02\x00\x00\x01\x00\x53\x17\x45\x40", "amqp:connection:framing-error"),
        (frame(1, Disposition(RECEIVER, 0, 0), b"more"), "amqp:connection:framing-error"),
    ],
)
def test_broken_frames_close_the_connection(data: bytes, condition: str) -> None:
    """C1: whatever a frame's header claims is checked before anything is kept."""
    shell = opened_server()
    events = shell.feed(data)
    assert closed_with(events) == condition
    (close,) = sent(shell.connection)
    assert isinstance(close, Close)
    assert close.error is not None
    assert close.error.condition == condition
    assert shell.connection.receive_data(begin_frame(2)) == []


def test_error_before_open_is_told_after_an_open_of_ours() -> None:
    shell = Shell(make_server())
    shell.feed(sasl_flight())
    shell.feed(AMQP_HEADER)
    shell.connection.data_to_send()
    assert closed_with(shell.feed(begin_frame())) == "amqp:illegal-state"
    assert [type(p) for p in sent(shell.connection)] == [Open, Close]


def test_frames_before_open_are_small() -> None:
    """C4: until somebody is known, 8 KiB is all that is kept."""
    shell = Shell(make_server())
    shell.feed(sasl_flight())
    size = PRE_OPEN_FRAME_SIZE_BYTES_MAX + 1
    events = shell.feed(AMQP_HEADER + size.to_bytes(4, "big") + b"\x02\x00\x00\x00")
    assert closed_with(events) == "amqp:connection:framing-error"


def test_channels_above_the_offered_maximum_close_the_connection() -> None:
    """C9: a peer cannot have more sessions than were offered."""
    shell = opened_server()
    assert isinstance(shell.feed(begin_frame(63))[0], SessionBegun)
    assert closed_with(shell.feed(begin_frame(64))) == "amqp:connection:framing-error"


@pytest.mark.parametrize(
    "bad", [Open("p", None, 511), Open("p", None, 512, 1, 999), Open("p", None, 0)]
)
def test_open_with_impossible_values(bad: Open) -> None:
    shell = Shell(make_server())
    shell.feed(sasl_flight())
    assert closed_with(shell.feed(AMQP_HEADER + frame(0, bad))) == "amqp:invalid-field"


def test_begin_that_answers_nothing_is_refused() -> None:
    shell = opened_server()
    assert closed_with(shell.feed(frame(2, Begin(1, 0, 1, 1)))) == "amqp:not-allowed"


def test_performatives_with_symbolic_descriptors_are_understood() -> None:
    shell = opened_server()
    attached_ingress(shell)
    # transfer(handle 1, delivery-id 0, tag "t"), described by its name
    performative = b"\x00\xa3\x12amqp:transfer:list\xc0\x07\x03\x52\x01\x43\xa0\x01t"
    (event,) = shell.feed(raw_frame(1, performative + b"body"))
    assert describe(event)[-1] == b"body"
    # disposition(sender, first 5)
    performative = b"\x00\xa3\x15amqp:disposition:list\xc0\x04\x02\x42\x52\x05"
    (event,) = shell.feed(raw_frame(1, performative))
    assert describe(event) == ("IncomingSettled", 5, 5, False, b"")


def test_close_by_us_waits_for_the_peers() -> None:
    shell = opened_server()
    link = attached_egress(shell)
    connection = shell.connection
    connection.close(AmqpError("amqp:connection:forced", "going down"))
    (close,) = sent(connection)
    assert isinstance(close, Close)
    assert close.error is not None
    assert connection.state == CLOSED
    assert not connection.finished
    connection.close()
    link.detach()
    assert link.send(b"t", b"", b"", True, None) == -1
    assert connection.data_to_send() == []
    (event,) = shell.feed(frame(0, Close()))
    assert isinstance(event, ConnectionClosed)
    assert event.by_peer
    assert connection.finished


def test_close_before_open_needs_no_answer() -> None:
    connection = make_server()
    connection.close()
    assert connection.finished
    assert connection.receive_data(SASL_HEADER) == []


def test_close_by_the_peer_is_answered_and_its_error_reported() -> None:
    shell = opened_server()
    (event,) = shell.feed(frame(0, Close(AmqpError("amqp:internal-error", "oops"))))
    assert describe(event) == ("ConnectionClosed", "amqp:internal-error", True)
    assert [type(p) for p in sent(shell.connection)] == [Close]


def test_a_session_may_begin_again_on_its_channel() -> None:
    shell = opened_server()
    shell.feed(frame(1, End()))
    (event,) = shell.feed(begin_frame(1))
    assert isinstance(event, SessionBegun)
    assert [type(p) for p in sent(shell.connection)] == [End, Begin]
    attached_ingress(shell)


# --- idle time-outs ------------------------------------------------------------------------------
def test_silent_peer_is_hung_up_on() -> None:
    shell = opened_server(idle_timeout_ms=10_000)
    connection = shell.connection
    assert connection.tick(1_000) == []
    assert connection.tick(10_999) == []
    events = connection.tick(11_000)
    assert closed_with(events) == "amqp:resource-limit-exceeded"
    assert [type(p) for p in sent(connection)] == [Close]
    assert connection.tick(99_000) == []


def test_any_frame_is_a_sign_of_life() -> None:
    shell = opened_server(idle_timeout_ms=10_000)
    connection = shell.connection
    connection.tick(0)
    for now in range(9_000, 60_000, 9_000):
        shell.feed(EMPTY_FRAME)
        assert connection.tick(now) == []
    assert not connection.finished


def test_peer_hears_from_us_within_half_of_its_time_out() -> None:
    shell = opened_server(peer_idle_ms=8_000)
    connection = shell.connection
    now = 0
    last_sent = 0
    connection.tick(now)
    for _ in range(20):
        now += 2_000
        assert connection.tick(now) == []
        frames = connection.data_to_send()
        if frames:
            assert frames == [EMPTY_FRAME]
            assert now - last_sent <= 4_000
            last_sent = now
    assert now - last_sent <= 4_000


def test_no_empty_frames_while_there_is_traffic() -> None:
    shell = opened_server(peer_idle_ms=8_000)
    link = attached_ingress(shell)
    connection = shell.connection
    connection.tick(0)
    for now in range(2_000, 20_000, 2_000):
        link.grant(5)
        assert len(connection.data_to_send()) == 1
        connection.tick(now)
        assert connection.data_to_send() == []


def test_without_time_outs_there_is_nothing_to_tick() -> None:
    connection = opened_server().connection
    connection.data_to_send()
    for now in (0, 99_000):
        assert connection.tick(now) == []
        assert connection.data_to_send() == []


def test_before_it_is_open_there_is_nothing_to_tick() -> None:
    connection = make_server(idle_timeout_ms=5_000)
    assert connection.tick(0) == []
    assert connection.tick(99_000) == []


# --- client --------------------------------------------------------------------------------------
@pytest.mark.parametrize("chunk", [0, 1, 3])
def test_both_roles_open_and_close(chunk: int) -> None:
    pair = Pair()
    pair.pump(chunk)
    assert pair.client.connection.state == OPENED
    assert pair.server.connection.state == OPENED
    assert [type(e) for e in pair.client.events] == [ConnectionOpened, SessionBegun]
    second = pair.client.connection.begin()
    pair.pump(chunk)
    assert second.live
    second.end()
    pair.pump(chunk)
    assert isinstance(pair.server.events[-1], SessionEnded)
    third = pair.client.connection.begin()
    assert third.channel == second.channel
    pair.client.connection.close()
    pair.pump(chunk)
    assert describe(pair.server.events[-1]) == ("ConnectionClosed", "", True)
    assert describe(pair.client.events[-1]) == ("ConnectionClosed", "", True)


def test_client_cannot_begin_what_the_server_does_not_offer() -> None:
    pair = Pair()
    pair.pump()
    for _ in range(63):
        pair.client.connection.begin()
    with pytest.raises(LocalProtocolError):
        pair.client.connection.begin()
    with pytest.raises(LocalProtocolError):
        make_client().begin()


def test_server_that_begins_a_session_is_refused_by_the_client() -> None:
    pair = Pair()
    pair.pump()
    events = pair.client.feed(begin_frame(5))
    assert closed_with(events) == "amqp:not-allowed"


def test_session_ended_before_the_answer_to_its_begin() -> None:
    pair = Pair()
    pair.session.end()
    pair.pump()
    assert not pair.session.live
    assert [describe(e)[0] for e in pair.client.events] == ["ConnectionOpened"]
    assert pair.client.connection.begin().channel == 0


def test_output_size_counts_what_waits() -> None:
    connection: Connection = opened_server().connection
    assert connection.output_size == 0
    connection.receive_data(begin_frame(2))
    assert connection.output_size == sum(map(len, connection.data_to_send())) > 0
    assert connection.output_size == 0
    assert make_server().state == AWAIT_HEADER


def test_peer_that_asks_but_never_lets_us_answer() -> None:
    """Answers pile up behind its closed window, but not without end."""
    shell = opened_server(window=0)
    link = attached_egress(shell)
    ask = frame(1, Flow(0, 0, 0, 9, 2, 0, 1, None, False, True))
    shell.feed(ask)
    link.send(bytes(16), b"", bytes(1_000), False, None)
    before = shell.connection.output_size
    assert shell.feed(ask)[-1:] != []
    assert shell.connection.output_size > before
    shell.connection._wire.held_bytes = 4 * OUTPUT_BUFFER_BYTES_MAX
    assert closed_with(shell.feed(ask)) == "amqp:resource-limit-exceeded"


def test_attach_and_its_detach_in_one_flight() -> None:
    """The detach is answered by an attach and a detach, and a late `accept` does nothing."""
    shell = opened_server()
    events = shell.connection.receive_data(attach_frame(SENDER, 4) + frame(1, Detach(4, True)))
    assert [describe(e)[0] for e in events] == ["LinkAttached", "LinkDetached"]
    shell.answer(events)
    assert [type(p) for p in sent(shell.connection)] == [Attach, Detach]
