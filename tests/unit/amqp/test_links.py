"""Links: answering, credit, drain, settlement."""

import pytest

from tests.unit.amqp.wiring import (
    Pair,
    Shell,
    attach_frame,
    attached_egress,
    attached_ingress,
    describe,
    frame,
    opened_server,
    sent,
)
from twinbus.amqp.composites import (
    ACCEPTED,
    Accepted,
    AmqpError,
    Rejected,
    Source,
    Target,
    rejected,
)
from twinbus.amqp.egress import EgressLink
from twinbus.amqp.events import (
    CreditChanged,
    DispositionReceived,
    IncomingSettled,
    LinkAttached,
    LinkDetached,
)
from twinbus.amqp.ingress import DeliveryReceived, IngressLink
from twinbus.amqp.performatives import RECEIVER, SENDER, Attach, Detach, End, Flow
from twinbus.amqp.transfers import Disposition, Transfer
from twinbus.errors import LocalProtocolError
from twinbus.limits import EGRESS_CREDIT_MAX, INGRESS_CREDIT, UNSETTLED_COUNT_MAX

UINT_MAX = 0xFFFF_FFFF


def pending(shell: Shell, attach: Attach) -> IngressLink | EgressLink:
    """A link that nobody has answered."""
    (event,) = shell.connection.receive_data(frame(1, attach))
    assert isinstance(event, LinkAttached)
    assert isinstance(event.link, (IngressLink, EgressLink))
    return event.link


def flow_frame(
    link: EgressLink, credit: int, delivery_count: int | None, drain: bool = False
) -> bytes:
    flow = Flow(0, 65_536, 0, 65_536, link.peer_handle, delivery_count, credit, None, drain)
    return frame(1, flow)


# --- answering an attach -------------------------------------------------------------------------
def test_answer_echoes_name_modes_source_and_target() -> None:
    shell = opened_server()
    source = Source("amqps://host:1/q", filter={"com.microsoft:session-filter": None})
    attach = Attach("l", 5, RECEIVER, 1, 0, source, Target("t"), properties={"a": "b"})
    link = pending(shell, attach)
    assert link.properties == {"a": "b"}
    assert isinstance(link, EgressLink)
    link.accept({"com.microsoft:locked-until-utc": 1}, None, None, 1_000)
    (answer,) = sent(shell.connection)
    assert isinstance(answer, Attach)
    assert (answer.name, answer.role) == ("l", SENDER)
    assert (answer.snd_settle_mode, answer.rcv_settle_mode) == (1, 0)
    assert answer.source is not None
    assert answer.source.encode() == source.encode()
    assert isinstance(answer.target, Target)
    assert answer.target.address == "t"
    assert answer.initial_delivery_count == 0
    assert answer.max_message_size == 1_000
    assert answer.properties == {"com.microsoft:locked-until-utc": 1}


def test_answer_may_carry_another_source() -> None:
    """A message session's id is granted in the filter of the answer."""
    shell = opened_server()
    link = pending(shell, Attach("l", 5, RECEIVER, 0, 1, Source("q"), Target("t")))
    assert isinstance(link, EgressLink)
    link.accept(source=Source("q", filter={"com.microsoft:session-filter": "id"}))
    (answer,) = sent(shell.connection)
    assert isinstance(answer, Attach)
    assert answer.source is not None
    assert answer.source.filter == {"com.microsoft:session-filter": "id"}


def test_accepted_sender_gets_credit_in_the_same_flight() -> None:
    shell = opened_server()
    link = pending(shell, Attach("l", 5, SENDER, 0, 1, Source("s"), Target("q"), None, False, 3))
    assert isinstance(link, IngressLink)
    link.accept(1_048_576, {"com.microsoft:max-message-batch-size": 5})
    answer, flow = sent(shell.connection)
    assert isinstance(answer, Attach)
    assert answer.role == RECEIVER
    assert answer.max_message_size == 1_048_576
    assert isinstance(flow, Flow)
    assert (flow.handle, flow.delivery_count) == (link.handle, 3)
    assert flow.link_credit == INGRESS_CREDIT
    link.accept()
    link.refuse(AmqpError("amqp:not-found"))
    assert shell.connection.data_to_send() == []


@pytest.mark.parametrize("role", [SENDER, RECEIVER])
def test_refusal_is_an_empty_attach_and_then_a_detach(role: bool) -> None:
    """sdk-wire 5: a detach for a handle that was not attached makes the SDK close everything."""
    shell = opened_server()
    link = pending(shell, Attach("l", 5, role, 0, 1, Source("s"), Target("q")))
    link.refuse(AmqpError("amqp:not-found", "no such queue"))
    answer, detach = sent(shell.connection)
    assert isinstance(answer, Attach)
    assert (answer.name, answer.source, answer.target) == ("l", None, None)
    assert isinstance(detach, Detach)
    assert (detach.handle, detach.closed) == (answer.handle, True)
    assert detach.error is not None
    assert detach.error.condition == "amqp:not-found"
    assert shell.feed(frame(1, Detach(5, True))) == []
    link.accept()
    assert shell.connection.data_to_send() == []


def test_what_cannot_be_echoed_is_refused() -> None:
    """A symbol may come as a string beyond ASCII; we can read it but not write it."""
    shell = opened_server()
    # attach("l", 5, sender), with a source whose expiry-policy is the string "é"
    source = b"\x00\x53\x28\xc0\x07\x03\x40\x43\xa1\x02\xc3\xa9"
    fields = b"\xa1\x01l\x52\x05\x42\x40\x40" + source
    body = b"\x00\x53\x12\xc0" + bytes((len(fields) + 1, 6)) + fields
    shell.feed((len(body) + 8).to_bytes(4, "big") + b"\x02\x00\x00\x01" + body)
    answer, detach = sent(shell.connection)
    assert isinstance(answer, Attach)
    assert isinstance(detach, Detach)
    assert detach.error is not None
    assert detach.error.condition == "amqp:invalid-field"
    (event,) = shell.feed(frame(1, Detach(5, True)))
    assert describe(event) == ("LinkDetached", "l", True, "amqp:invalid-field")


def test_detach_by_the_peer_is_answered_in_kind() -> None:
    shell = opened_server()
    attached_egress(shell, 2)
    error = AmqpError("amqp:internal-error", "oops")
    (event,) = shell.feed(frame(1, Detach(2, False, error)))
    assert describe(event) == ("LinkDetached", "out-2", False, "amqp:internal-error")
    (answer,) = sent(shell.connection)
    assert isinstance(answer, Detach)
    assert not answer.closed
    assert answer.error is None


def test_detach_of_a_link_not_yet_answered_refuses_it() -> None:
    shell = opened_server()
    link = pending(shell, Attach("l", 5, SENDER, 0, 1, Source("s"), Target("q")))
    link.detach(AmqpError("com.microsoft:timeout"))
    assert [type(p) for p in sent(shell.connection)] == [Attach, Detach]
    link.detach()
    assert shell.connection.data_to_send() == []


@pytest.mark.parametrize("closed", [False, True])
def test_lingering_link_answers_a_detach_only_when_told(closed: bool) -> None:
    """What waits to be said about its deliveries still goes out, and no credit any more."""
    shell = opened_server()
    ingress, egress = attached_ingress(shell, 1), attached_egress(shell, 2)
    ingress.lingers = egress.lingers = True
    shell.feed(frame(1, Transfer(1, 0, b"t", 0)) * 100)
    shell.feed(flow_frame(egress, 5, 0))
    egress.send(bytes(16), b"", b"", False, None)
    shell.feed(frame(1, Disposition(RECEIVER, 0, 0, False, Accepted())))
    shell.connection.data_to_send()
    events = shell.feed(frame(1, Detach(1, closed)) + frame(1, Detach(2, closed)))
    assert [type(event) for event in events] == [LinkDetached, LinkDetached]
    assert shell.connection.data_to_send() == []
    assert egress.send(bytes(16), b"", b"", False, None) == -1
    ingress.settle(0, 99, ACCEPTED)
    egress.settle([0], ACCEPTED)
    assert [type(p) for p in sent(shell.connection)] == [Disposition, Disposition]
    for link in (ingress, egress):
        link.detach(closed=closed)
        link.detach()
        (answer,) = sent(shell.connection)
        assert isinstance(answer, Detach)
        assert (answer.handle, answer.closed) == (link.handle, closed)


def test_lingering_link_keeps_its_handle_until_it_answers() -> None:
    shell = opened_server()
    first = attached_ingress(shell, 1)
    first.lingers = True
    shell.feed(frame(1, Detach(1, True)))
    second = attached_ingress(shell, 1)  # the peer's own handle is free at once
    assert second.handle != first.handle
    first.detach()
    assert attached_ingress(shell, 2).handle == first.handle


def test_lingering_link_says_nothing_after_the_end_of_its_session() -> None:
    shell = opened_server()
    link = attached_ingress(shell)
    link.lingers = True
    shell.feed(frame(1, Detach(1, True)) + frame(1, End()))
    assert [type(p) for p in sent(shell.connection)] == [End]
    link.settle(0, 0, ACCEPTED)
    link.detach()
    assert shell.connection.data_to_send() == []


# --- ingress credit ------------------------------------------------------------------------------
def deliver(shell: Shell, count: int, settled: bool = False, first: int = 0) -> None:
    for n in range(first, first + count):
        events = shell.feed(frame(1, Transfer(1, n, b"t", 0, settled)))
        assert isinstance(events[-1], DeliveryReceived)


def test_settled_deliveries_are_topped_up_at_half() -> None:
    shell = opened_server()
    link = attached_ingress(shell)
    deliver(shell, 49, True)
    assert shell.connection.data_to_send() == []
    deliver(shell, 1, True)
    (flow,) = sent(shell.connection)
    assert isinstance(flow, Flow)
    assert (flow.handle, flow.delivery_count, flow.link_credit) == (link.handle, 50, 100)


def test_unsettled_deliveries_give_their_credit_back_when_settled() -> None:
    """A sender cannot run ahead of what we get done."""
    shell = opened_server()
    link = attached_ingress(shell)
    deliver(shell, 100)
    assert shell.connection.data_to_send() == []
    assert link.credit == 0
    link.settle(0, 48, ACCEPTED)
    assert [type(p) for p in sent(shell.connection)] == [Disposition]
    link.settle(49, 49, ACCEPTED)
    settled, flow = sent(shell.connection)
    assert isinstance(settled, Disposition)
    assert (settled.role, settled.settled) == (RECEIVER, True)
    assert isinstance(flow, Flow)
    assert (flow.delivery_count, flow.link_credit) == (100, 50)
    assert link.unsettled_count == 50


def test_credit_is_not_enforced() -> None:
    """sdk-wire 5: pyamqp sends whether it has credit or not."""
    shell = opened_server()
    link = attached_ingress(shell)
    deliver(shell, 300)
    assert link.credit == -200
    assert link.attached
    link.settle(0, 299, ACCEPTED)
    _, flow = sent(shell.connection)
    assert isinstance(flow, Flow)
    assert (flow.delivery_count, flow.link_credit) == (300, 100)


def test_flow_of_a_sender_means_nothing() -> None:
    """sdk-wire 4: pyamqp gives credit of 10,000 on the link where it is the sender."""
    shell = opened_server()
    link = attached_ingress(shell)
    assert shell.feed(frame(1, Flow(0, 9, 0, 9, 1, 0, 10_000))) == []
    assert link.credit == 100
    assert shell.connection.data_to_send() == []


def test_sender_that_asks_for_an_echo_gets_our_credit() -> None:
    shell = opened_server()
    attached_ingress(shell)
    shell.feed(frame(1, Flow(0, 9, 0, 9, 1, 0, 0, None, False, True)))
    (flow,) = sent(shell.connection)
    assert isinstance(flow, Flow)
    assert flow.link_credit == 100


def test_rejection_names_its_error_in_three_fields() -> None:
    shell = opened_server()
    link = attached_ingress(shell)
    deliver(shell, 1)
    link.settle(0, 0, rejected(AmqpError("amqp:link:message-size-exceeded", "too large")))
    (settled,) = sent(shell.connection)
    assert isinstance(settled, Disposition)
    assert isinstance(settled.state, Rejected)
    assert settled.state.error is not None
    assert settled.state.error.condition == "amqp:link:message-size-exceeded"


def test_credit_may_be_given_by_hand_only() -> None:
    shell = opened_server()
    link = pending(shell, Attach("l", 1, SENDER, 0, 1, Source("s"), Target("q"), None, False, 0))
    assert isinstance(link, IngressLink)
    link.accept(1_000, None, 0)
    assert [type(p) for p in sent(shell.connection)] == [Attach]
    deliver(shell, 3)
    link.settle(0, 2, ACCEPTED)
    assert [type(p) for p in sent(shell.connection)] == [Disposition]


def test_drain_is_over_when_the_sender_says_that_the_credit_is_gone() -> None:
    shell = opened_server()
    link = attached_ingress(shell)
    link.grant(5, True)
    shell.connection.data_to_send()
    assert shell.feed(frame(1, Flow(0, 9, 0, 9, 1, 0, 5))) == []
    assert shell.feed(frame(1, Flow(0, 9, 0, 9, 1, 3, 2))) == []
    assert (link.credit, link.drain) == (2, True)
    (event,) = shell.feed(frame(1, Flow(0, 9, 0, 9, 1, 5, 0)))
    assert isinstance(event, CreditChanged)
    assert (link.credit, link.drain) == (0, False)


# --- egress credit -------------------------------------------------------------------------------
def test_credit_is_absolute_and_less_what_is_under_way() -> None:
    shell = opened_server()
    link = attached_egress(shell)
    (event,) = shell.feed(flow_frame(link, 10, 0))
    assert isinstance(event, CreditChanged)
    assert event.link is link
    assert link.credit == 10
    for _ in range(4):
        link.send(bytes(16), b"", b"", True, None)
    assert link.credit == 6
    shell.feed(flow_frame(link, 10, 1))
    assert link.credit == 7
    shell.feed(flow_frame(link, 2, 0))
    assert link.credit == 0
    with pytest.raises(LocalProtocolError):
        link.send(bytes(16), b"", b"", True, None)


def test_flow_without_delivery_count_counts_from_the_start() -> None:
    """A receiver that has not seen our attach yet does not know the count."""
    shell = opened_server()
    link = attached_egress(shell)
    shell.feed(flow_frame(link, 3, None))
    assert link.credit == 3


def test_flow_without_credit_changes_nothing() -> None:
    shell = opened_server()
    link = attached_egress(shell)
    shell.feed(flow_frame(link, 3, 0))
    shell.feed(frame(1, Flow(0, 9, 0, 9, 2)))
    assert link.credit == 3


def test_credit_given_before_our_answer_is_kept() -> None:
    shell = opened_server()
    link = pending(shell, Attach("l", 5, RECEIVER, 0, 1, Source("q"), Target("t")))
    assert isinstance(link, EgressLink)
    (event,) = shell.connection.receive_data(flow_frame(link, 7, None, True))
    assert isinstance(event, CreditChanged)
    assert shell.connection.data_to_send() == []
    link.accept()
    assert (link.credit, link.drain) == (7, True)


@pytest.mark.parametrize("count", [0, 5, 7, UINT_MAX, 0x8000_0000])
def test_credit_survives_wrap_and_nonsense(count: int) -> None:
    """C9: credit of 2**32 - 1, and counts that we never reached."""
    shell = opened_server()
    link = attached_egress(shell)
    link.delivery_count = 5
    shell.feed(flow_frame(link, UINT_MAX, count))
    assert 0 <= link.credit <= EGRESS_CREDIT_MAX
    if count in {0, 5}:
        assert link.credit == EGRESS_CREDIT_MAX
    assert link.link_credit <= UINT_MAX


def test_delivery_count_wraps() -> None:
    shell = opened_server()
    link = attached_egress(shell)
    link.delivery_count = UINT_MAX
    shell.feed(flow_frame(link, 3, UINT_MAX))
    assert link.credit == 3
    link.send(bytes(16), b"", b"", True, None)
    assert (link.delivery_count, link.credit) == (0, 2)
    shell.feed(flow_frame(link, 3, UINT_MAX))
    assert link.credit == 2


def test_receiver_that_settles_nothing_gets_no_more() -> None:
    shell = opened_server()
    link = attached_egress(shell)
    shell.feed(flow_frame(link, 10, 0))
    link.unsettled_count = UNSETTLED_COUNT_MAX - 3
    assert link.credit == 3


def test_drain_gives_back_what_is_left() -> None:
    shell = opened_server()
    link = attached_egress(shell)
    shell.feed(flow_frame(link, 10, 0, True))
    assert link.drain
    assert shell.connection.data_to_send() == []
    link.send(bytes(16), b"", b"", True, None)
    link.drained()
    _, flow = sent(shell.connection)
    assert isinstance(flow, Flow)
    assert (flow.delivery_count, flow.link_credit, flow.drain) == (10, 0, True)
    assert (link.credit, link.drain) == (0, False)
    link.drained()
    assert shell.connection.data_to_send() == []


def test_drain_without_credit_is_answered_at_once() -> None:
    """sdk-wire 11: pyamqp closes a receiver with credit 0 and drain."""
    shell = opened_server()
    link = attached_egress(shell)
    shell.feed(flow_frame(link, 10, 0))
    (event,) = shell.feed(flow_frame(link, 0, 0, True))
    assert isinstance(event, CreditChanged)
    assert link.credit == 0
    (flow,) = sent(shell.connection)
    assert isinstance(flow, Flow)
    assert (flow.handle, flow.link_credit, flow.drain) == (link.handle, 0, True)


def test_echo_is_answered() -> None:
    shell = opened_server()
    link = attached_egress(shell)
    shell.feed(frame(1, Flow(0, 9, 0, 9, 2, 0, 4, None, False, True)))
    (flow,) = sent(shell.connection)
    assert isinstance(flow, Flow)
    assert (flow.handle, flow.link_credit) == (link.handle, 4)


def test_settlements_are_sent_in_ranges() -> None:
    shell = opened_server()
    link = attached_egress(shell)
    shell.feed(flow_frame(link, 10, 0))
    for n in range(8):
        link.send(bytes(16), b"", b"", False, n)
    shell.connection.data_to_send()
    link.settle([0, 1, 2, 5, 7, 99], ACCEPTED)
    ranges = [(p.first, p.last) for p in sent(shell.connection) if isinstance(p, Disposition)]
    assert ranges == [(0, 2), (5, 5), (7, 7)]
    assert list(link.deliveries.unsettled) == [3, 4, 6]
    assert link.unsettled_count == 3
    link.settle([0, 1, 2], ACCEPTED)
    assert shell.connection.data_to_send() == []


def test_detach_forgets_only_its_own_deliveries() -> None:
    shell = opened_server()
    one = attached_egress(shell, 1)
    two = attached_egress(shell, 2)
    shell.feed(flow_frame(one, 5, 0) + flow_frame(two, 5, 0))
    one.send(bytes(16), b"", b"", False, None)
    two.send(bytes(16), b"", b"", False, None)
    shell.feed(frame(1, Detach(1, True)))
    assert list(two.deliveries.unsettled) == [1]
    assert (one.unsettled_count, two.unsettled_count) == (0, 1)


# --- both roles ----------------------------------------------------------------------------------
@pytest.mark.parametrize("chunk", [0, 1, 50])
def test_message_there_and_back(chunk: int) -> None:
    """Client sends, server accepts; server sends, client settles in two steps."""
    pair = Pair(client_frame_size=512)
    sender = pair.session.attach_sender("s", Source("s"), Target("q"), 0, 1)
    receiver = pair.session.attach_receiver("r", Source("q"), Target("r"), 0, 1)
    pair.pump(chunk)
    assert sender.credit == 100
    sender.send(b"1", b"pre", b"fix" * 1_000, False, "mine")
    pair.pump(chunk)
    arrived = pair.server.events[-1]
    assert isinstance(arrived, DeliveryReceived)
    assert arrived.data == b"pre" + b"fix" * 1_000
    arrived.link.settle(arrived.delivery_id, arrived.delivery_id, ACCEPTED)
    pair.pump(chunk)
    confirmed = pair.client.events[-1]
    assert isinstance(confirmed, DispositionReceived)
    assert confirmed.contexts == ["mine"]
    assert confirmed.settled

    receiver.grant(2)
    pair.pump(chunk)
    granted = pair.server.events[-1]
    assert isinstance(granted, CreditChanged)
    egress = granted.link
    assert isinstance(egress, EgressLink)
    egress.send(bytes(16), b"a" * 600, b"b" * 600, False, "lock")
    pair.pump(chunk)
    received = pair.client.events[-1]
    assert isinstance(received, DeliveryReceived)
    assert received.data == b"a" * 600 + b"b" * 600
    receiver.settle(received.delivery_id, received.delivery_id, ACCEPTED, False)
    pair.pump(chunk)
    wanted = pair.server.events[-1]
    assert isinstance(wanted, DispositionReceived)
    assert (wanted.contexts, wanted.settled) == (["lock"], False)
    egress.settle(wanted.delivery_ids, ACCEPTED)
    pair.pump(chunk)
    final = pair.client.events[-1]
    assert isinstance(final, IncomingSettled)
    assert isinstance(final.state, Accepted)
    assert egress.deliveries.unsettled == {}


def test_client_drains_its_receiver() -> None:
    pair = Pair()
    receiver = pair.session.attach_receiver("r", Source("q"), Target("r"))
    pair.pump()
    receiver.grant(5, True)
    pair.pump()
    granted = pair.server.events[-1]
    assert isinstance(granted, CreditChanged)
    egress = granted.link
    assert isinstance(egress, EgressLink)
    assert egress.drain
    egress.send(bytes(16), b"", b"only one", True, None)
    egress.drained()
    pair.pump()
    names = [describe(e)[0] for e in pair.client.events[-2:]]
    assert names == ["DeliveryReceived", "CreditChanged"]
    assert (receiver.credit, receiver.drain) == (0, False)
    assert receiver.delivery_count == egress.delivery_count == 5


def test_client_sees_a_refusal_as_a_detach() -> None:
    pair = Pair()
    pair.pump()
    sender = pair.session.attach_sender("s", Source("s"), Target("missing"))
    data = b"".join(pair.client.connection.data_to_send())
    (event,) = pair.server.connection.receive_data(data)
    assert isinstance(event, LinkAttached)
    event.link.refuse(AmqpError("amqp:not-found", "no such queue"))
    pair.pump()
    refused = pair.client.events[-1]
    assert isinstance(refused, LinkDetached)
    assert refused.link is sender
    assert refused.error is not None
    assert refused.error.condition == "amqp:not-found"
    assert not any(isinstance(e, LinkAttached) for e in pair.client.events)
    assert pair.server.connection.channels.sessions[0].links == {}


def test_attach_of_the_same_name_twice_makes_two_links() -> None:
    shell = opened_server()
    first = shell.feed(attach_frame(SENDER, 1, "same"))[0]
    second = shell.feed(attach_frame(SENDER, 2, "same"))[0]
    assert isinstance(first, LinkAttached)
    assert isinstance(second, LinkAttached)
    assert first.link is not second.link
