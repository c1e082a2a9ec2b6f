"""Transactions on the wire: what carries an id, and deliveries that wait for the end."""

import pytest

from tests.unit.amqp.wiring import (
    Shell,
    attached_egress,
    attached_ingress,
    frame,
    opened_server,
    sent,
)
from twinbus.amqp.composites import (
    ACCEPTED,
    Accepted,
    DeliveryState,
    Modified,
    Rejected,
    TransactionalState,
    transactional,
)
from twinbus.amqp.egress import EgressLink
from twinbus.amqp.events import DispositionReceived, LinkDetached
from twinbus.amqp.ingress import DeliveryReceived, DeliveryTooLarge
from twinbus.amqp.performatives import RECEIVER, Flow
from twinbus.amqp.transfers import Disposition, Transfer

TXN_ID = b"transaction-0001"
TAG = b"t" * 16


def in_transaction(outcome: DeliveryState | None = None) -> TransactionalState:
    return TransactionalState(TXN_ID, outcome)


def dispose(
    shell: Shell, first: int, last: int, state: DeliveryState | None, settled: bool = False
) -> list[DispositionReceived]:
    events = shell.feed(frame(1, Disposition(RECEIVER, first, last, settled, state)))
    return [event for event in events if isinstance(event, DispositionReceived)]


@pytest.fixture
def shell() -> Shell:
    return opened_server()


@pytest.fixture
def egress(shell: Shell) -> EgressLink:
    """A link with three deliveries on their way."""
    link = attached_egress(shell, 2)
    shell.feed(frame(1, Flow(0, 1_000, 0, 1_000, 2, 0, 100)))
    for number in range(3):
        link.send(TAG, b"body", b"", False, f"context {number}")
    shell.connection.data_to_send()
    return link


def test_encoded_transactional_state_reads_back() -> None:
    assert transactional(TXN_ID, ACCEPTED) == in_transaction(Accepted()).encode()


# --- transfers ------------------------------------------------------------------------------------


def test_transfer_brings_its_state(shell: Shell) -> None:
    attached_ingress(shell, 1)
    transfer = Transfer(1, 0, TAG, state=in_transaction())
    for number in range(3):  # what repeats is not mistaken for something plain
        transfer.delivery_id = number
        (event,) = shell.feed(frame(1, transfer, b"body"))
        assert isinstance(event, DeliveryReceived)
        assert isinstance(event.state, TransactionalState)
        assert event.state.txn_id == TXN_ID
    (event,) = shell.feed(frame(1, Transfer(1, 3, TAG), b"body"))
    assert isinstance(event, DeliveryReceived)
    assert event.state is None


@pytest.mark.parametrize("named_in", [0, 1, 2])
def test_any_frame_of_a_delivery_may_name_the_transaction(shell: Shell, named_in: int) -> None:
    attached_ingress(shell, 1)
    events = []
    for number in range(3):
        state = in_transaction() if number == named_in else None
        transfer = Transfer(1, 0, TAG, more=number < 2, state=state)
        events += shell.feed(frame(1, transfer, b"part"))
    (event,) = events
    assert isinstance(event, DeliveryReceived)
    assert isinstance(event.state, TransactionalState)
    (event,) = shell.feed(frame(1, Transfer(1, 1, TAG, more=False), b"plain"))
    assert isinstance(event, DeliveryReceived)
    assert event.state is None


def test_too_large_delivery_tells_its_transaction(shell: Shell) -> None:
    link = attached_ingress(shell, 1)
    link.max_message_size = 3
    transfer = Transfer(1, 0, TAG, settled=True, state=in_transaction())
    (event,) = shell.feed(frame(1, transfer, b"body"))
    assert isinstance(event, DeliveryTooLarge)
    assert isinstance(event.state, TransactionalState)


# --- dispositions ---------------------------------------------------------------------------------


def test_confirmed_deliveries_wait(shell: Shell, egress: EgressLink) -> None:
    (event,) = dispose(shell, 0, 1, in_transaction(Accepted()))
    assert event.contexts == ["context 0", "context 1"]
    egress.confirm(event.delivery_ids, transactional(TXN_ID, ACCEPTED))
    for number, performative in enumerate(sent(shell.connection)):
        assert isinstance(performative, Disposition)
        assert (performative.first, performative.last, performative.settled) == (number, number, 0)
        assert isinstance(performative.state, TransactionalState)
        assert isinstance(performative.state.outcome, Accepted)
    assert egress.unsettled_count == 3
    egress.settle(event.delivery_ids, ACCEPTED)
    (performative,) = sent(shell.connection)
    assert isinstance(performative, Disposition)
    assert (performative.first, performative.last, performative.settled) == (0, 1, 1)
    assert egress.unsettled_count == 1


def test_reopened_delivery_is_reported_again(shell: Shell, egress: EgressLink) -> None:
    (event,) = dispose(shell, 0, 0, in_transaction(Accepted()))
    assert dispose(shell, 0, 0, Accepted()) == []  # a delivery is reported once
    egress.reopen(event.delivery_ids, event.contexts)
    (event,) = dispose(shell, 0, 0, Modified(True))
    assert event.contexts == ["context 0"]
    assert isinstance(event.state, Modified)


def test_what_the_receiver_settled_is_not_reopened(shell: Shell, egress: EgressLink) -> None:
    (event,) = dispose(shell, 0, 0, in_transaction(Accepted()))
    dispose(shell, 0, 0, in_transaction(Accepted()), settled=True)
    egress.reopen(event.delivery_ids, event.contexts)
    egress.confirm(event.delivery_ids, ACCEPTED)
    egress.settle(event.delivery_ids, ACCEPTED)
    assert sent(shell.connection) == []
    assert egress.unsettled_count == 2


def test_link_that_is_gone_confirms_nothing(shell: Shell, egress: EgressLink) -> None:
    (event,) = dispose(shell, 0, 0, in_transaction(Rejected()))
    egress.detach()
    shell.connection.data_to_send()
    egress.confirm(event.delivery_ids, ACCEPTED)
    egress.reopen(event.delivery_ids, event.contexts)
    assert sent(shell.connection) == []


def test_same_outcome_in_another_transaction_is_another(shell: Shell, egress: EgressLink) -> None:
    """Dispositions are known by their raw ends; an id is part of that end."""
    found = []
    for number, txn_id in enumerate((b"a" * 16, b"b" * 16)):
        (event,) = dispose(shell, number, number, TransactionalState(txn_id, Accepted()))
        assert isinstance(event.state, TransactionalState)
        found.append(event.state.txn_id)
    assert found == [b"a" * 16, b"b" * 16]


def test_acquiring_in_a_transaction_is_refused(shell: Shell) -> None:
    attached_egress(shell, 2)
    flow = Flow(0, 1_000, 0, 1_000, 2, 0, 100, properties={"txn-id": TXN_ID})
    (event,) = shell.feed(frame(1, flow))
    assert isinstance(event, LinkDetached)
    assert event.error is not None
    assert event.error.condition == "amqp:not-implemented"
