"""Sessions: windows, handles, large deliveries, and dispositions over any range."""

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
    opened_server,
    read_frames,
    sent,
)
from twinbus.amqp.composites import ACCEPTED, Accepted, Received, Source, Target
from twinbus.amqp.egress import EgressLink
from twinbus.amqp.events import (
    DispositionReceived,
    IncomingSettled,
    LinkAttached,
    LinkDetached,
    SessionEnded,
)
from twinbus.amqp.frames import Event, FrameBuffer, serial_distance
from twinbus.amqp.ingress import DeliveryReceived, DeliveryTooLarge
from twinbus.amqp.performatives import RECEIVER, SENDER, Attach, Begin, Detach, End, Flow
from twinbus.amqp.transfers import Disposition, Transfer
from twinbus.errors import LocalProtocolError
from twinbus.limits import (
    HANDLES_MAX,
    PARTIAL_DELIVERY_BYTES_MAX,
    SESSION_WINDOW,
    UNSETTLED_COUNT_MAX,
)

UINT_MAX = 0xFFFF_FFFF


def credit_frame(link: EgressLink, credit: int, window: int = 65_536, seen: int = 0) -> bytes:
    """The receiver's flow; `seen` is the next transfer frame it expects."""
    flow = Flow(seen, window, 0, 65_536, link.peer_handle, link.delivery_count, credit)
    return frame(1, flow)


def ended_with(events: list[Event]) -> str:
    last = events[-1]
    assert isinstance(last, SessionEnded)
    assert last.error is not None
    return last.error.condition


def detached_with(events: list[Event]) -> str:
    last = events[-1]
    assert isinstance(last, LinkDetached)
    assert last.error is not None
    return last.error.condition


def transfers(shell: Shell) -> list[tuple[Transfer, bytes]]:
    found: list[tuple[Transfer, bytes]] = []
    for _, performative, body in read_frames(b"".join(shell.connection.data_to_send())):
        if isinstance(performative, Transfer):
            found.append((performative, body))
    return found


# --- incoming ------------------------------------------------------------------------------------
def test_delivery_in_one_frame() -> None:
    shell = opened_server()
    link = attached_ingress(shell)
    transfer = Transfer(1, 7, b"tag", 0x80013700)
    (event,) = shell.feed(frame(1, transfer, b"body"))
    assert isinstance(event, DeliveryReceived)
    assert event.link is link
    assert describe(event)[2:] == (7, b"tag", 0x80013700, False, b"", b"body")


@pytest.mark.parametrize("repeat_id", [True, False])
def test_frames_of_a_large_delivery_are_joined(repeat_id: bool) -> None:
    """pyamqp repeats id, tag and format in each frame; proton leaves them out."""
    shell = opened_server()
    attached_ingress(shell, 1)
    attached_ingress(shell, 3)
    more = Transfer(1, 0, b"t", 5, False, True)
    rest = more if repeat_id else Transfer(1, -1, None, 0, False, True)
    last = Transfer(1, 0, b"t", 5) if repeat_id else Transfer(1)
    events = shell.feed(
        frame(1, more, b"one ")
        + frame(1, rest, b"two ")
        + frame(1, Transfer(3, 1, b"u"), b"between")
        + frame(1, last, b"three")
    )
    assert [describe(e)[-1] for e in events] == [b"between", b"one two three"]
    assert describe(events[1])[2:5] == (0, b"t", 5)
    assert shell.connection._wire.partial_bytes == 0


def test_delivery_is_settled_if_any_of_its_frames_says_so() -> None:
    shell = opened_server()
    link = attached_ingress(shell)
    first = Transfer(1, 0, b"t", 0, False, True)
    last = Transfer(1, -1, None, 0, True)
    (event,) = shell.feed(frame(1, first, b"a") + frame(1, last, b"b"))
    assert isinstance(event, DeliveryReceived)
    assert event.settled
    assert link.unsettled_count == 0


def test_aborted_delivery_vanishes() -> None:
    shell = opened_server()
    link = attached_ingress(shell)
    begun = Transfer(1, 0, b"t", 0, False, True)
    aborted = Transfer(1, 0, b"t", 0, False, False, None, None, False, True)
    assert shell.feed(frame(1, begun, b"a") + frame(1, aborted)) == []
    assert link.delivery_count == 1
    assert shell.connection._wire.partial_bytes == 0
    (event,) = shell.feed(frame(1, Transfer(1, 1, b"u"), b"whole"))
    assert describe(event)[-1] == b"whole"


@pytest.mark.parametrize("pieces", [1, 3])
def test_too_large_delivery_is_thrown_away_and_reported(pieces: int) -> None:
    shell = opened_server()
    link = attached_ingress(shell)
    link.max_message_size = 100
    data = b""
    for n in range(pieces):
        data += frame(1, Transfer(1, 4, b"t", 0, False, n < pieces - 1), bytes(300 // pieces))
    (event,) = shell.feed(data)
    assert isinstance(event, DeliveryTooLarge)
    assert (event.link, event.delivery_id, event.size) == (link, 4, 300)
    assert not event.settled
    assert shell.connection._wire.partial_bytes == 0
    (after,) = shell.feed(frame(1, Transfer(1, 5, b"u"), bytes(100)))
    assert isinstance(after, DeliveryReceived)


def test_unfinished_deliveries_of_a_connection_are_bounded() -> None:
    shell = opened_server()
    attached_ingress(shell)
    shell.connection._wire.partial_bytes = PARTIAL_DELIVERY_BYTES_MAX - 1_000
    part = frame(1, Transfer(1, 0, b"t", 0, False, True), bytes(1_000))
    assert shell.feed(part) == []
    assert closed_with(shell.feed(part)) == "amqp:resource-limit-exceeded"


@pytest.mark.parametrize(
    "transfer, condition",
    [
        (Transfer(1), "amqp:invalid-field"),
        (Transfer(1, 0), "amqp:invalid-field"),
        (Transfer(1, -1, b"t"), "amqp:invalid-field"),
        (Transfer(1, 0, b"t", 0, False, False, None, None, True), "amqp:not-implemented"),
    ],
)
def test_transfers_that_make_no_sense_detach_the_link(transfer: Transfer, condition: str) -> None:
    shell = opened_server()
    attached_ingress(shell)
    assert detached_with(shell.feed(frame(1, transfer))) == condition
    assert [type(p) for p in sent(shell.connection)] == [Detach]


def test_a_delivery_cannot_begin_inside_another() -> None:
    shell = opened_server()
    attached_ingress(shell)
    shell.feed(frame(1, Transfer(1, 0, b"t", 0, False, True), b"a"))
    assert detached_with(shell.feed(frame(1, Transfer(1, 1, b"u")))) == "amqp:not-allowed"
    assert shell.connection._wire.partial_bytes == 0


def test_transfer_before_the_link_is_answered_is_refused() -> None:
    """Nobody has checked yet whether the peer may send there."""
    shell = opened_server()
    data = attach_frame(SENDER, 1) + frame(1, Transfer(1, 0, b"t"), b"body")
    events = shell.connection.receive_data(data)
    assert detached_with(events) == "amqp:link:transfer-limit-exceeded"
    assert [type(p) for p in sent(shell.connection)] == [Attach, Detach]


@pytest.mark.parametrize("frames", [1, 2])
def test_unsettled_deliveries_of_a_link_are_bounded(frames: int) -> None:
    shell = opened_server()
    link = attached_ingress(shell)
    link.unsettled_count = UNSETTLED_COUNT_MAX - 1
    part = frame(1, Transfer(1, 0, b"t", 0, False, True)) * (frames - 1)
    whole = part + frame(1, Transfer(1, 0, b"t"))
    assert isinstance(shell.feed(whole)[-1], DeliveryReceived)
    assert detached_with(shell.feed(whole)) == "amqp:resource-limit-exceeded"


def test_incoming_window_is_stated_anew_at_half() -> None:
    shell = opened_server()
    link = attached_ingress(shell)
    link.credit_window = 0
    one = frame(1, Transfer(1, 0, b"t", 0, True))
    shell.feed(one * (SESSION_WINDOW // 2 - 1))
    assert shell.connection.data_to_send() == []
    shell.feed(one)
    (flow,) = sent(shell.connection)
    assert isinstance(flow, Flow)
    assert flow.handle is None
    assert (flow.next_incoming_id, flow.incoming_window) == (SESSION_WINDOW // 2, SESSION_WINDOW)


def test_peer_that_counts_deliveries_sets_our_count_by_its_flow() -> None:
    """pyamqp counts one per delivery where we count frames; its flow brings us together."""
    shell = opened_server()
    link = attached_ingress(shell)
    part = frame(1, Transfer(1, 0, b"t", 0, False, True), b"x")
    shell.feed(part * 10 + frame(1, Transfer(1, 0, b"t"), b"x"))
    assert link.session.next_incoming_id == 11
    shell.feed(frame(1, Flow(0, 100, 1, 100, None, None, None, None, False, True)))
    (flow,) = sent(shell.connection)
    assert isinstance(flow, Flow)
    assert flow.next_incoming_id == 1


# --- outgoing ------------------------------------------------------------------------------------
def test_transfers_wait_for_the_peers_window_and_keep_their_order() -> None:
    shell = opened_server(window=2)
    link = attached_egress(shell)
    shell.feed(credit_frame(link, 10, window=2))
    for n in range(5):
        assert link.send(bytes(16), b"", b"%d" % n, False, n) == n
    held = shell.connection.output_size
    assert [body for _, body in transfers(shell)] == [b"0", b"1"]
    assert 0 < shell.connection.output_size < held
    link.detach()
    assert sent(shell.connection) == []
    shell.feed(frame(1, Flow(2, 2, 0, 100)))
    assert [body for _, body in transfers(shell)] == [b"2", b"3"]
    # The peer has seen three frames and takes two: one is under way.
    shell.feed(frame(1, Flow(3, 2, 0, 100)))
    rest = sent(shell.connection)
    assert [type(p) for p in rest] == [Transfer, Detach]
    assert shell.connection.output_size == 0


def test_large_message_is_split_at_the_peers_frame_size() -> None:
    shell = opened_server(max_frame_size=512)
    link = attached_egress(shell)
    shell.feed(credit_frame(link, 10))
    body = bytes(range(256)) * 8
    link.send(b"t" * 16, body[:100], body[100:], False, None)
    data = b"".join(shell.connection.data_to_send())
    frames = [(p, part) for _, p, part in read_frames(data) if isinstance(p, Transfer)]
    assert b"".join(part for _, part in frames) == body
    assert [t.more for t, _ in frames] == [True] * (len(frames) - 1) + [False]
    # Continuations carry neither id nor tag: a repeated id without tag confuses pyamqp.
    assert [t.delivery_id for t, _ in frames] == [0] + [-1] * (len(frames) - 1)
    assert max(len(part) for _, part in frames) <= 512
    assert link.session.next_outgoing_id == len(frames)
    assert link.deliveries.next_id == 1


def test_no_piece_is_empty() -> None:
    """A transport of Python 3.12 tries for ever to send a last piece that has no bytes."""
    shell = opened_server()
    link = attached_egress(shell)
    shell.feed(credit_frame(link, 10))
    for prefix, bare in ((b"prefix", b"bare"), (b"prefix", b""), (b"", b"bare"), (b"", b"")):
        link.send(bytes(16), prefix, bare, False, None)
    pieces = shell.connection.data_to_send()
    assert all(pieces)
    assert [body for _, _, body in read_frames(b"".join(pieces))] == [
        *(b"prefixbare", b"prefix", b"bare", b"")
    ]


@pytest.mark.parametrize("size", [446, 447, 448, 512, 894, 895])
def test_no_frame_is_larger_than_the_peer_takes(size: int) -> None:
    shell = opened_server(max_frame_size=512)
    link = attached_egress(shell)
    shell.feed(credit_frame(link, 10))
    link.send(b"t" * 32, b"", bytes(size), False, None, 0x80013700)
    data = b"".join(shell.connection.data_to_send())
    frames = FrameBuffer(frame_size_max=512)  # refuses any that is larger
    frames.feed(data)
    while frames.next_frame():
        pass
    assert frames.unread_bytes() == 0
    assert b"".join(part for _, _, part in read_frames(data)) == bytes(size)


def test_disposition_is_reported_with_the_contexts() -> None:
    shell = opened_server()
    link = attached_egress(shell)
    shell.feed(credit_frame(link, 10))
    for n in range(4):
        link.send(bytes(16), b"", b"", False, f"context {n}")
    link.send(bytes(16), b"", b"", True, "settled at once")
    (event,) = shell.feed(frame(1, Disposition(RECEIVER, 1, 1, False, Accepted())))
    assert isinstance(event, DispositionReceived)
    assert (event.delivery_ids, event.contexts) == ([1], ["context 1"])
    assert isinstance(event.state, Accepted)
    assert link.unsettled_count == 4
    (event,) = shell.feed(frame(1, Disposition(RECEIVER, 0, 2, True, Accepted())))
    assert isinstance(event, DispositionReceived)
    assert event.delivery_ids == [0, 2]
    assert link.unsettled_count == 1
    assert shell.feed(frame(1, Disposition(RECEIVER, 0, 2, True, Accepted()))) == []
    assert shell.feed(frame(1, Disposition(RECEIVER, 4, 4, True, Accepted()))) == []


@pytest.mark.parametrize("last", [1, 3])
def test_a_delivery_is_reported_once(last: int) -> None:
    """C9: a receiver that repeats itself makes no work for anybody."""
    shell = opened_server()
    link = attached_egress(shell)
    shell.feed(credit_frame(link, 10))
    for n in range(4):
        link.send(bytes(16), b"", b"", False, n)
    again = frame(1, Disposition(RECEIVER, 1, last, False, Accepted()))
    assert len(shell.feed(again * 5)) == 1
    assert link.unsettled_count == 4
    # The receiver may settle by itself before we answer; our answer then says nothing.
    assert shell.feed(frame(1, Disposition(RECEIVER, 1, last, True, Accepted()))) == []
    assert link.unsettled_count == 4 - last
    shell.connection.data_to_send()
    link.settle([1], ACCEPTED)
    assert shell.connection.data_to_send() == []


@pytest.mark.parametrize("state", [None, Received(0, 0)])
def test_what_is_no_outcome_yet_is_not_reported(state: Received | None) -> None:
    shell = opened_server()
    link = attached_egress(shell)
    shell.feed(credit_frame(link, 10))
    link.send(bytes(16), b"", b"", False, "context")
    assert shell.feed(frame(1, Disposition(RECEIVER, 0, 0, False, state))) == []
    (event,) = shell.feed(frame(1, Disposition(RECEIVER, 0, 0, False, Accepted())))
    assert isinstance(event, DispositionReceived)
    assert event.contexts == ["context"]


def test_ranges_of_nothing_are_not_looked_through_forever() -> None:
    """C9: 30 bytes that make us walk over every unsettled delivery, again and again."""
    shell = opened_server()
    link = attached_egress(shell)
    shell.feed(credit_frame(link, 2_000))
    for n in range(2_000):
        link.send(bytes(16), b"", b"", False, n)
    nothing = frame(1, Disposition(RECEIVER, 2_000, 1_000_000, False, Accepted()))
    assert shell.feed(nothing * 400) == []
    assert closed_with(shell.feed(nothing * 200)) == "amqp:resource-limit-exceeded"


def test_disposition_over_several_links_is_grouped() -> None:
    shell = opened_server()
    one = attached_egress(shell, 1)
    two = attached_egress(shell, 2)
    shell.feed(credit_frame(one, 10) + credit_frame(two, 10))
    for n in range(6):
        (one if n % 2 else two).send(bytes(16), b"", b"", False, n)
    events = shell.feed(frame(1, Disposition(RECEIVER, 0, 5, True, None)))
    assert [describe(e)[1:7] for e in events] == [
        ("out-2", 0, 2, 4, 0, 2),
        ("out-1", 1, 3, 5, 1, 3),
    ]


def test_range_with_gaps_reports_what_is_left() -> None:
    shell = opened_server()
    link = attached_egress(shell)
    shell.feed(credit_frame(link, 10))
    for n in range(5):
        link.send(bytes(16), b"", b"", n == 1, n)
    (event,) = shell.feed(frame(1, Disposition(RECEIVER, 0, 2, True, Accepted())))
    assert isinstance(event, DispositionReceived)
    assert event.delivery_ids == [0, 2]


@pytest.mark.parametrize("first, last", [(0, UINT_MAX), (3, 2), (5, 4)])
def test_range_of_all_numbers_costs_only_what_is_unsettled(first: int, last: int) -> None:
    """C9: a range names up to 2**32 deliveries; a handful exist."""
    shell = opened_server()
    link = attached_egress(shell)
    shell.feed(credit_frame(link, 10))
    for n in range(5):
        link.send(bytes(16), b"", b"", False, n)
    (event,) = shell.feed(frame(1, Disposition(RECEIVER, first, last, True, Accepted())))
    assert isinstance(event, DispositionReceived)
    assert event.delivery_ids == [0, 1, 2, 3, 4]


def test_delivery_ids_wrap_around() -> None:
    shell = opened_server()
    link = attached_egress(shell)
    shell.feed(credit_frame(link, 10))
    link.deliveries.next_id = UINT_MAX - 1
    ids = [link.send(bytes(16), b"", b"", False, n) for n in range(4)]
    assert ids == [UINT_MAX - 1, UINT_MAX, 0, 1]
    shell.connection.data_to_send()
    (event,) = shell.feed(frame(1, Disposition(RECEIVER, UINT_MAX, 0, False, Accepted())))
    assert isinstance(event, DispositionReceived)
    assert event.delivery_ids == [UINT_MAX, 0]
    link.settle(ids, ACCEPTED)
    (settled,) = sent(shell.connection)
    assert isinstance(settled, Disposition)
    assert (settled.first, settled.last) == (UINT_MAX - 1, 1)
    assert link.deliveries.unsettled == {}


def test_senders_disposition_is_handed_on_as_it_came() -> None:
    shell = opened_server()
    (event,) = shell.feed(frame(1, Disposition(SENDER, 3, UINT_MAX, True, Accepted())))
    assert isinstance(event, IncomingSettled)
    assert (event.first, event.last, event.settled) == (3, UINT_MAX, True)


# --- handles -------------------------------------------------------------------------------------
def test_links_of_a_session_are_bounded() -> None:
    shell = opened_server()
    for handle in range(HANDLES_MAX):
        assert isinstance(shell.feed(attach_frame(SENDER, handle, f"l{handle}"))[0], LinkAttached)
    shell.connection.data_to_send()
    assert shell.feed(attach_frame(SENDER, HANDLES_MAX, "one more")) == []
    attach, detach = sent(shell.connection)
    assert isinstance(attach, Attach)
    assert isinstance(detach, Detach)
    assert (attach.name, attach.target) == ("one more", None)
    assert detach.error is not None
    assert detach.error.condition == "amqp:resource-limit-exceeded"
    assert str(HANDLES_MAX) in str(detach.error.description)
    shell.feed(frame(1, Detach(HANDLES_MAX, True)))
    shell.feed(frame(1, Detach(0, True)))
    (event,) = shell.feed(attach_frame(SENDER, HANDLES_MAX, "another"))
    assert isinstance(event, LinkAttached)


def test_numbers_of_handles_may_be_high_but_not_above_the_offer() -> None:
    shell = opened_server()
    session = shell.connection.channels.sessions[1]
    shell.feed(attach_frame(SENDER, session.handle_max))
    assert session.links[session.handle_max].handle == 0
    events = shell.feed(attach_frame(SENDER, session.handle_max + 1))
    assert closed_with(events) == "amqp:connection:framing-error"


def test_peer_with_few_handles_of_its_own() -> None:
    """We could not name more links to it than its handle-max allows."""
    shell = opened_server()
    shell.feed(frame(2, Begin(None, 0, 100, 100, 0)))
    shell.feed(attach_frame(SENDER, 0, "a", 2))
    assert ended_with(shell.feed(attach_frame(SENDER, 1, "b", 2))) == "amqp:resource-limit-exceeded"


def test_handles_are_used_again() -> None:
    shell = opened_server()
    for _ in range(3):
        link = attached_ingress(shell, 1)
        assert link.handle == 0
        shell.feed(frame(1, Detach(1, True)))
        assert [type(p) for p in sent(shell.connection)] == [Detach]


def test_end_of_a_session_takes_its_links_along() -> None:
    shell = opened_server()
    ingress = attached_ingress(shell, 1)
    egress = attached_egress(shell, 2)
    shell.feed(credit_frame(egress, 5))
    egress.send(bytes(16), b"", b"", False, None)
    shell.connection.data_to_send()
    (event,) = shell.feed(frame(1, End()))
    assert isinstance(event, SessionEnded)
    assert set(event.session.links.values()) == {ingress, egress}
    assert [type(p) for p in sent(shell.connection)] == [End]
    ingress.settle(0, 0, ACCEPTED)
    ingress.grant(5)
    egress.settle([0], ACCEPTED)
    egress.drained()
    ingress.detach()
    assert egress.credit == 0
    assert egress.send(bytes(16), b"", b"", False, None) == -1
    event.session.end()
    assert shell.connection.data_to_send() == []


def test_end_drops_what_was_held_back() -> None:
    shell = opened_server(window=0)
    link = attached_egress(shell)
    shell.feed(credit_frame(link, 5, window=0))
    link.send(bytes(16), b"", b"body", False, None)
    assert shell.connection.output_size > 0
    link.session.end()
    assert [type(p) for p in sent(shell.connection)] == [End]
    assert shell.connection.output_size == 0


def test_other_sessions_do_not_notice() -> None:
    shell = opened_server()
    shell.feed(begin_frame(2))
    shell.connection.data_to_send()
    assert ended_with(shell.feed(frame(2, Detach(9, True)))) == "amqp:session:unattached-handle"
    link = attached_ingress(shell, 1)
    assert link.attached


# --- client --------------------------------------------------------------------------------------
def test_client_attaches_in_both_directions_under_one_name() -> None:
    pair = Pair()
    sender = pair.session.attach_sender("name", Source("a"), Target("q"))
    receiver = pair.session.attach_receiver("name", Source("q"), Target("a"), 0, 1, None, 5_000)
    pair.pump()
    assert sender.attached
    assert receiver.attached
    assert receiver.max_message_size == 5_000
    links = [e.link for e in pair.client.events if isinstance(e, LinkAttached)]
    assert links == [sender, receiver]
    pair.session.end()
    with pytest.raises(LocalProtocolError):
        pair.session.attach_sender("late", Source("a"), Target("q"))


def test_client_cannot_attach_more_than_the_server_names() -> None:
    pair = Pair()
    pair.pump()
    pair.session.peer_handle_max = 0
    pair.session.attach_sender("one", Source("a"), Target("q"))
    with pytest.raises(LocalProtocolError):
        pair.session.attach_sender("two", Source("a"), Target("q"))


def test_transfer_by_a_receiver_we_have_detached_is_dropped() -> None:
    shell = opened_server()
    attached_egress(shell, 2).detach()
    shell.connection.data_to_send()
    assert shell.feed(frame(1, Transfer(2, 0, b"t"))) == []
    assert shell.connection.data_to_send() == []


def test_client_detaches_before_the_answer() -> None:
    pair = Pair()
    sender = pair.session.attach_sender("name", Source("a"), Target("q"))
    sender.detach()
    pair.pump()
    assert [e for e in pair.client.events if isinstance(e, LinkAttached)] == []
    again = pair.session.attach_sender("name", Source("a"), Target("q"))
    pair.pump()
    assert again.attached
    assert again.handle == sender.handle


@pytest.mark.parametrize(
    "start, end, distance",
    [(0, 5, 5), (5, 0, -5), (UINT_MAX, 1, 2), (1, UINT_MAX, -2), (0, 0x7FFF_FFFF, 0x7FFF_FFFF)],
)
def test_serial_numbers(start: int, end: int, distance: int) -> None:
    assert serial_distance(start, end) == distance
