"""The SASL layer: what comes before AMQP, and that nothing passes it by."""

import pytest

from tests.unit.amqp.wiring import (
    MECHANISMS,
    Shell,
    closed_with,
    make_client,
    make_server,
    open_flight,
    read_frames,
    sasl_flight,
    sasl_frame,
)
from twinbus.amqp.connection import Connection
from twinbus.amqp.events import ConnectionClosed, ConnectionOpened, SaslInitReceived
from twinbus.amqp.frames import AMQP_HEADER, EMPTY_FRAME, SASL_FRAME, SASL_HEADER, encode_frame
from twinbus.amqp.sasl import split_plain
from twinbus.amqp.sasl_performatives import SaslInit, SaslMechanisms, SaslOutcome
from twinbus.amqp.settings import ConnectionSettings
from twinbus.amqp.states import CLOSED, SERVER
from twinbus.limits import PRE_OPEN_FRAME_SIZE_BYTES_MAX


def output(connection: Connection) -> bytes:
    return b"".join(connection.data_to_send())


def test_server_offers_its_mechanisms_after_the_header() -> None:
    connection = make_server()
    assert connection.receive_data(SASL_HEADER) == []
    data = output(connection)
    assert data.startswith(SASL_HEADER)
    offer = read_frames(data)[0][1]
    assert isinstance(offer, SaslMechanisms)
    assert tuple(offer.mechanisms) == MECHANISMS


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_mechanism_reaches_the_shell(mechanism: str) -> None:
    connection = make_server()
    init = sasl_frame(SaslInit(mechanism, b"\x00user\x00secret", "host"))
    (event,) = connection.receive_data(SASL_HEADER + init)
    assert isinstance(event, SaslInitReceived)
    assert (event.mechanism, event.response) == (mechanism, b"\x00user\x00secret")
    assert event.hostname == "host"


def test_init_without_response_is_an_empty_one() -> None:
    connection = make_server()
    (event,) = connection.receive_data(SASL_HEADER + sasl_frame(SaslInit("ANONYMOUS")))
    assert isinstance(event, SaslInitReceived)
    assert event.response == b""


def test_nothing_follows_the_outcome_until_the_clients_header_has_come() -> None:
    """rhea drops what arrives in one piece with the outcome (facts 2.3)."""
    connection = make_server()
    connection.receive_data(sasl_flight())
    output(connection)
    assert connection.sasl_accept() == []
    (outcome,) = read_frames(output(connection))
    assert isinstance(outcome[1], SaslOutcome)
    assert outcome[1].code == 0
    connection.receive_data(AMQP_HEADER)
    assert output(connection) == AMQP_HEADER


def test_bytes_sent_ahead_of_the_outcome_wait_for_the_decision() -> None:
    connection = make_server()
    events = connection.receive_data(sasl_flight() + open_flight()[:30])
    assert [type(e) for e in events] == [SaslInitReceived]
    assert connection.receive_data(open_flight()[30:]) == []
    assert [type(e) for e in connection.sasl_accept()] == [ConnectionOpened]


def test_no_more_than_a_little_may_be_sent_ahead() -> None:
    connection = make_server()
    connection.receive_data(sasl_flight())
    events = connection.receive_data(bytes(5 * PRE_OPEN_FRAME_SIZE_BYTES_MAX))
    assert closed_with(events) == "amqp:connection:framing-error"


def test_refusal_sends_the_outcome_and_closes() -> None:
    connection = make_server()
    connection.receive_data(sasl_flight())
    output(connection)
    events = connection.sasl_refuse()
    assert closed_with(events) == "amqp:unauthorized-access"
    (outcome,) = read_frames(output(connection))
    assert isinstance(outcome[1], SaslOutcome)
    assert outcome[1].code == 1
    assert connection.state == CLOSED
    assert connection.receive_data(open_flight()) == []
    assert connection.sasl_accept() == []
    assert output(connection) == b""


def test_mechanism_that_was_not_offered_is_refused() -> None:
    connection = make_server()
    connection.receive_data(SASL_HEADER)
    output(connection)
    events = connection.receive_data(sasl_frame(SaslInit("SCRAM-SHA-1", b"")))
    assert closed_with(events) == "amqp:unauthorized-access"
    assert isinstance(read_frames(output(connection))[0][1], SaslOutcome)


def test_amqp_header_without_sasl_is_answered_with_the_sasl_header() -> None:
    """C6: nobody gets past SASL by leaving it out."""
    connection = make_server(require_sasl=True)
    events = connection.receive_data(open_flight())
    assert closed_with(events) == "amqp:connection:framing-error"
    assert output(connection) == SASL_HEADER


def test_amqp_header_without_sasl_is_fine_where_sasl_is_not_required() -> None:
    connection = make_server(require_sasl=False)
    events = connection.receive_data(open_flight())
    assert [type(e) for e in events] == [ConnectionOpened]
    assert output(connection).startswith(AMQP_HEADER)


def test_sasl_header_where_no_mechanism_is_offered() -> None:
    connection = Connection(SERVER, ConnectionSettings("server"))
    assert closed_with(connection.receive_data(SASL_HEADER)) == "amqp:connection:framing-error"
    assert output(connection) == AMQP_HEADER


def test_client_and_server_agree() -> None:
    client = make_client(mechanisms=("PLAIN",))
    client.settings.sasl_response = b"\x00user\x00secret"
    server = Shell(make_server())
    client.open()
    # Only SASL's own header may go out before the outcome.
    assert output(client) == SASL_HEADER
    server.feed(SASL_HEADER)
    client.receive_data(output(server.connection))
    server.feed(output(client))
    event = server.events[0]
    assert isinstance(event, SaslInitReceived)
    assert split_plain(event.response) == ("user", "secret")
    client.receive_data(output(server.connection))
    assert output(client).startswith(AMQP_HEADER)


def test_client_closes_when_its_mechanism_is_missing_or_refused() -> None:
    client = make_client(mechanisms=("EXTERNAL",))
    client.open()
    output(client)
    events = client.receive_data(SASL_HEADER + sasl_frame(SaslMechanisms(["PLAIN"])))
    assert closed_with(events) == "amqp:unauthorized-access"
    assert output(client) == b""

    client = make_client()
    client.open()
    offer = SASL_HEADER + sasl_frame(SaslMechanisms(["ANONYMOUS"]))
    events = client.receive_data(offer + sasl_frame(SaslOutcome(1)))
    assert isinstance(events[-1], ConnectionClosed)
    assert closed_with(events) == "amqp:unauthorized-access"


def test_frames_of_the_wrong_kind_during_sasl() -> None:
    connection = make_server()
    connection.receive_data(SASL_HEADER)
    events = connection.receive_data(EMPTY_FRAME)
    assert closed_with(events) == "amqp:connection:framing-error"
    connection = make_server()
    connection.receive_data(SASL_HEADER)
    init = encode_frame(0, SaslInit("ANONYMOUS").encode(), b"more", SASL_FRAME)
    assert closed_with(connection.receive_data(init)) == "amqp:connection:framing-error"


def test_a_decision_that_nobody_asked_for_does_nothing() -> None:
    connection = make_server()
    assert connection.sasl_accept() == []
    assert connection.sasl_refuse() == []
    assert output(connection) == b""


def test_client_without_sasl() -> None:
    client = make_client(mechanisms=())
    client.open()
    server = Shell(make_server(require_sasl=False))
    assert [type(e) for e in server.feed(output(client))] == [ConnectionOpened]
    assert [type(e) for e in client.receive_data(output(server.connection))] == [ConnectionOpened]


@pytest.mark.parametrize(
    "response", [b"", b"user", b"\x00user", b"\x00a\x00b\x00c", b"\x00\xff\x00b", b"\x00a\x00\xff"]
)
def test_malformed_plain_responses_are_none(response: bytes) -> None:
    assert split_plain(response) is None
