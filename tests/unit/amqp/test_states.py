"""Every (state, frame) pair: in the tables, and on a real connection fed with real frames."""

import pytest

from tests.unit.amqp.wiring import (
    Shell,
    attach_frame,
    attached_egress,
    attached_ingress,
    begin_frame,
    closed_with,
    frame,
    make_client,
    make_server,
    open_flight,
    opened_server,
    sasl_flight,
    sasl_frame,
    sent,
)
from twinbus.amqp.composites import Accepted, Performative
from twinbus.amqp.connection import Connection
from twinbus.amqp.events import ConnectionClosed, LinkDetached, SessionEnded
from twinbus.amqp.frames import AMQP_HEADER, EMPTY_FRAME, SASL_HEADER
from twinbus.amqp.performatives import RECEIVER, SENDER, Close, Detach, End, Flow, Open
from twinbus.amqp.sasl_performatives import (
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
)
from twinbus.amqp.states import (
    ATTACH,
    ATTACHED,
    AWAIT_HEADER,
    AWAIT_OPEN,
    BEGIN,
    CLOSE,
    CLOSED,
    CONNECTION,
    DETACH,
    DETACHED,
    DISPOSITION,
    EMPTY,
    END,
    ENDED,
    FLOW,
    ILLEGAL,
    INPUT_NAMES,
    LINK_RECEIVER,
    LINK_SENDER,
    MAPPED,
    OPEN,
    OPENED,
    REFUSALS,
    SASL_AWAIT_HEADER,
    SASL_AWAIT_INIT,
    SASL_AWAIT_MECHANISMS,
    SASL_AWAIT_OUTCOME,
    SASL_CHALLENGE,
    SASL_CLIENT,
    SASL_DONE,
    SASL_INIT,
    SASL_MECHANISMS,
    SASL_OUTCOME,
    SASL_RESPONSE,
    SASL_SERVER,
    SESSION,
    STATE_NAMES,
    TRANSFER,
    UNMAPPED,
    Table,
    advance,
    refusal,
)
from twinbus.amqp.transfers import Disposition, Transfer

TABLES: list[Table] = [CONNECTION, SESSION, LINK_SENDER, LINK_RECEIVER, SASL_CLIENT, SASL_SERVER]


@pytest.mark.parametrize("table", TABLES)
def test_every_pair_has_a_next_state_or_a_refusal(table: Table) -> None:
    for state in table:
        for received in INPUT_NAMES:
            following = advance(table, state, received)
            if following != ILLEGAL:
                assert following in table
            elif state not in {CLOSED, ENDED}:
                assert REFUSALS[state].startswith("amqp:")
                assert STATE_NAMES[state] in refusal(state, received)
                assert INPUT_NAMES[received] in refusal(state, received)


@pytest.mark.parametrize("table", TABLES)
def test_every_state_can_be_reached(table: Table) -> None:
    start = next(iter(table))
    reached = {start}
    for _ in table:
        reached |= {following for state in reached for following in table[state].values()}
    assert reached == set(table)


# --- on a real connection ------------------------------------------------------------------------
FRAMES: dict[int, bytes] = {
    EMPTY: EMPTY_FRAME,
    OPEN: frame(0, Open("peer")),
    BEGIN: begin_frame(1),
    ATTACH: attach_frame(SENDER, 1),
    FLOW: frame(1, Flow(0, 100, 0, 100, 1, 0, 10)),
    TRANSFER: frame(1, Transfer(1, 0, b"tag"), b"body"),
    DISPOSITION: frame(1, Disposition(RECEIVER, 0, 0, True, Accepted())),
    DETACH: frame(1, Detach(1, True)),
    END: frame(1, End()),
    CLOSE: frame(0, Close()),
}
SASL_FRAMES: dict[int, Performative] = {
    SASL_MECHANISMS: SaslMechanisms(["ANONYMOUS"]),
    SASL_INIT: SaslInit("ANONYMOUS", b"", None),
    SASL_CHALLENGE: SaslChallenge(b"?"),
    SASL_RESPONSE: SaslResponse(b"!"),
    SASL_OUTCOME: SaslOutcome(0),
}


def connection_in(state: int) -> Shell:
    shell = Shell(make_server())
    shell.feed(sasl_flight())
    if state != AWAIT_HEADER:
        shell.feed(AMQP_HEADER)
    if state == OPENED:
        shell.feed(FRAMES[OPEN])
    assert shell.connection.peer_state == state
    return shell


@pytest.mark.parametrize("state", [AWAIT_HEADER, AWAIT_OPEN, OPENED])
@pytest.mark.parametrize("received", FRAMES)
def test_connection_follows_its_table(state: int, received: int) -> None:
    shell = connection_in(state)
    events = shell.feed(FRAMES[received])
    following = advance(CONNECTION, state, received)
    # A session's frame is legal for the connection but, without a session, not for the channel.
    if following == OPENED and advance(SESSION, UNMAPPED, received) == ILLEGAL:
        legal = received in {OPEN, EMPTY}
    else:
        legal = following != ILLEGAL
    if legal:
        assert shell.connection.peer_state == following
        assert all(e.error is None for e in events if isinstance(e, ConnectionClosed))
    else:
        assert closed_with(events) == REFUSALS[state]
    assert shell.connection.receive_data(FRAMES[BEGIN]) == [] or legal


def session_in(state: int) -> Shell:
    shell = Shell(make_server())
    shell.feed(sasl_flight())
    shell.feed(open_flight())
    if state != UNMAPPED:
        shell.feed(FRAMES[BEGIN])
    if state == ENDED:
        shell.feed(FRAMES[END])
    shell.connection.data_to_send()
    return shell


SESSION_FRAMES = [BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END]


@pytest.mark.parametrize("state", [UNMAPPED, MAPPED, ENDED])
@pytest.mark.parametrize("received", SESSION_FRAMES)
def test_session_follows_its_table(state: int, received: int) -> None:
    shell = session_in(state)
    events = shell.feed(FRAMES[received])
    following = advance(SESSION, state, received)
    if following == ILLEGAL:
        assert closed_with(events) == REFUSALS[state]
        return
    assert not shell.connection.finished
    assert shell.connection.channels.peer_state(1) == following
    if state == ENDED and received != BEGIN:
        assert events == []
        assert shell.connection.data_to_send() == []


@pytest.mark.parametrize("received", SESSION_FRAMES)
def test_what_comes_after_our_end_is_dropped_until_the_peer_ends(received: int) -> None:
    shell = session_in(MAPPED)
    shell.connection.channels.sessions[1].end()
    shell.connection.data_to_send()
    events = shell.feed(FRAMES[received])
    if received == BEGIN:
        assert closed_with(events) == REFUSALS[MAPPED]
        return
    assert events == []
    assert shell.connection.data_to_send() == []
    expected = ENDED if received == END else MAPPED
    assert shell.connection.channels.peer_state(1) == expected


LINK_FRAMES = [ATTACH, FLOW, TRANSFER, DETACH]


@pytest.mark.parametrize("peer_sends", [True, False])
@pytest.mark.parametrize("state", [DETACHED, ATTACHED])
@pytest.mark.parametrize("received", LINK_FRAMES)
def test_link_follows_its_table(peer_sends: bool, state: int, received: int) -> None:
    shell = session_in(MAPPED)
    role = SENDER if peer_sends else RECEIVER
    table = LINK_SENDER if peer_sends else LINK_RECEIVER
    if state == ATTACHED:
        shell.feed(attach_frame(role, 1))
        shell.connection.data_to_send()
    session = shell.connection.channels.sessions[1]
    link = session.links.get(1)
    events = shell.feed(attach_frame(role, 1) if received == ATTACH else FRAMES[received])
    following = advance(table, state, received)
    assert not shell.connection.finished
    if following != ILLEGAL:
        now = session.links.get(1)
        assert (DETACHED if now is None else now.peer_state) == following
        return
    if link is not None and received == TRANSFER:
        last = events[-1]
        assert isinstance(last, LinkDetached)
        assert last.error is not None
        assert last.error.condition == "amqp:not-allowed"
        assert [type(p) for p in sent(shell.connection)] == [Detach]
        return
    ended = events[-1]
    assert isinstance(ended, SessionEnded)
    assert ended.error is not None
    assert ended.error.condition == REFUSALS[state]
    assert [type(p) for p in sent(shell.connection)] == [End]


@pytest.mark.parametrize("received", LINK_FRAMES)
def test_what_comes_after_our_detach_is_dropped_until_the_peer_detaches(received: int) -> None:
    shell = opened_server()
    link = attached_ingress(shell)
    link.detach()
    shell.connection.data_to_send()
    events = shell.feed(FRAMES[received])
    if received == ATTACH:
        assert isinstance(events[-1], SessionEnded)
        return
    assert events == []
    assert shell.connection.data_to_send() == []
    assert (1 in shell.connection.channels.sessions[1].links) == (received != DETACH)


@pytest.mark.parametrize("received", FRAMES)
def test_what_comes_after_our_close_is_dropped_until_the_peer_closes(received: int) -> None:
    shell = opened_server()
    attached_egress(shell)
    shell.connection.close()
    shell.connection.data_to_send()
    events = shell.feed(FRAMES[received])
    if received == CLOSE:
        closed = events[-1]
        assert isinstance(closed, ConnectionClosed)
        assert closed.error is None
    elif received == OPEN:
        assert closed_with(events) == REFUSALS[OPENED]
    else:
        assert events == []
    assert shell.connection.data_to_send() == []


# --- SASL ----------------------------------------------------------------------------------------
def sasl_server_in(state: int) -> Connection:
    """A server whose client is in `state`; the server does not decide."""
    connection = make_server()
    if state != SASL_AWAIT_HEADER:
        connection.receive_data(SASL_HEADER)
    if state == SASL_DONE:
        connection.receive_data(sasl_frame(SASL_FRAMES[SASL_INIT]))
        connection.sasl_accept()
    return connection


@pytest.mark.parametrize("state", [SASL_AWAIT_HEADER, SASL_AWAIT_INIT, SASL_DONE])
@pytest.mark.parametrize("received", SASL_FRAMES)
def test_sasl_server_follows_the_clients_table(state: int, received: int) -> None:
    connection = sasl_server_in(state)
    events = connection.receive_data(sasl_frame(SASL_FRAMES[received]))
    if advance(SASL_CLIENT, state, received) != ILLEGAL:
        assert not connection.finished
        return
    expected = "amqp:connection:framing-error" if state == SASL_DONE else REFUSALS[state]
    assert closed_with(events) == expected


@pytest.mark.parametrize(
    "state", [SASL_AWAIT_HEADER, SASL_AWAIT_MECHANISMS, SASL_AWAIT_OUTCOME, SASL_DONE]
)
@pytest.mark.parametrize("received", SASL_FRAMES)
def test_sasl_client_follows_the_servers_table(state: int, received: int) -> None:
    connection = make_client()
    connection.open()
    steps = [
        SASL_HEADER,
        sasl_frame(SASL_FRAMES[SASL_MECHANISMS]),
        sasl_frame(SASL_FRAMES[SASL_OUTCOME]),
    ]
    order = [SASL_AWAIT_HEADER, SASL_AWAIT_MECHANISMS, SASL_AWAIT_OUTCOME, SASL_DONE]
    for step in steps[: order.index(state)]:
        connection.receive_data(step)
    events = connection.receive_data(sasl_frame(SASL_FRAMES[received]))
    if advance(SASL_SERVER, state, received) != ILLEGAL:
        assert not connection.finished
        return
    expected = "amqp:connection:framing-error" if state == SASL_DONE else REFUSALS[state]
    assert closed_with(events) == expected
