"""The coordinator: a client's control link for transactions, and what carries a transaction's id.

    control link     declare ─▶ declared(id)          discharge(id, fail) ─▶ accepted, or rejected
    sending link     transfer(id) ─▶ transactional-state(id, accepted), or rejected
    receiving link   disposition(id, outcome) ─▶ the same back; settled when the transaction commits
    request link     schedule-message, update-disposition

A transaction belongs to its connection: ids of other connections are unknown here.  When its
control link goes, for whatever reason, it is rolled back.  A rollback undoes the client's
settlements: the messages are still locked, and can be settled again.
"""

import contextlib
from functools import partial
from typing import Final, NamedTuple

from twinbus.amqp.composites import (
    ACCEPTED,
    Coordinator,
    Declare,
    Declared,
    TransactionalState,
    read_transaction_request,
    transactional,
)
from twinbus.amqp.egress import EgressLink
from twinbus.amqp.events import DispositionReceived
from twinbus.amqp.ingress import DeliveryReceived, IngressLink
from twinbus.entities import commands, selections
from twinbus.entities.commands import Command, Lock, Send, Settle
from twinbus.errors import (
    ArgumentInvalid,
    InvalidOperation,
    NotSupported,
    RemoteProtocolError,
    ServiceError,
)
from twinbus.gateway.counting.counters import Enlisted
from twinbus.gateway.transactions import BoundTransaction
from twinbus.message.plain import decode_message
from twinbus.server.amqp.conversation import Conversation
from twinbus.server.amqp.settlement import (
    CONFIRMED,
    UNDECIDED,
    read_delay_of,
    read_outcome,
    refused,
)

CAPABILITIES: Final = [
    "amqp:local-transactions",
    "amqp:multi-txns-per-ssn",
    "amqp:multi-ssns-per-txn",
]
CREDIT: Final = 100
REQUEST_SIZE_BYTES_MAX: Final = 4_096
# Reading, receiving and renewing are done at once, as they are on links: they are never taken back.
_NOT_ENLISTED: Final = (
    selections.Browse,
    commands.GetSessionState,
    selections.ListNumbers,
    commands.ListPartitions,
    commands.ListRules,
    commands.ListSessions,
    commands.Peek,
    commands.ReceiveDeferred,
    commands.RenewLocks,
    commands.RenewSession,
)


class CoordinatorLink:
    """A client's control link.

    It needs no claim: SDKs attach it before they put any token, and it opens nothing.  What is done
    in a transaction comes by links and requests that have been asked for their own.
    """

    path = ""
    right = ""

    def __init__(self, conversation: Conversation, link: IngressLink) -> None:
        self._conversation = conversation
        self._link = link

    def accept(self) -> None:
        self._link.accept(
            max_message_size=REQUEST_SIZE_BYTES_MAX,
            properties=None,
            credit=CREDIT,
            target=Coordinator(CAPABILITIES),
        )

    def received(self, event: DeliveryReceived) -> None:
        try:
            request = read_transaction_request(decode_message(event.data).body)
            if isinstance(request, Declare):
                self._declare(event, request)
            else:
                transaction = self._conversation.transactions.find(request.txn_id)
                self._discharge(event, transaction, request.fail)
        except RemoteProtocolError as error:
            self._settle(event, refused(ArgumentInvalid(f"The request cannot be read: {error}")))
        except ServiceError as error:
            self._settle(event, refused(error))

    def _declare(self, event: DeliveryReceived, request: Declare) -> None:
        limits = self._conversation.namespace.limits
        if not limits.has_transactions:
            raise InvalidOperation(f"Transactions are not supported in the '{limits.tier}' tier.")
        if request.global_id is not None:
            raise NotSupported("Transactions over several resources are not supported.")
        if event.settled:
            raise ArgumentInvalid("A declare must not be settled: its outcome is the id.")
        transaction = self._conversation.transactions.declare(self)
        self._settle(event, Declared(transaction.txn_id).encode())

    def _discharge(
        self, event: DeliveryReceived, transaction: BoundTransaction, fail: bool
    ) -> None:
        conversation = self._conversation
        if fail:
            conversation.transactions.roll_back(transaction)
            self._settle(event, ACCEPTED)
            return
        # What came before on this connection happens before.
        conversation.traffic.flush_commands()
        conversation.transactions.commit(transaction, partial(self.discharged, event))

    def discharged(self, event: DeliveryReceived, error: ServiceError | None) -> None:
        """A commit is durable, or was refused."""
        self._settle(event, ACCEPTED if error is None else refused(error))
        self._conversation.traffic.flush_soon()

    def _settle(self, event: DeliveryReceived, state: bytes) -> None:
        if not event.settled:
            self._link.settle(event.delivery_id, event.delivery_id, state)

    def closed(self) -> None:
        self._conversation.transactions.roll_back_all(self)


# --- receiving links ------------------------------------------------------------------------------


class SettledDeliveries(NamedTuple):
    """Deliveries that a client has settled in a transaction."""

    link: EgressLink
    ids: list[int]
    contexts: list[object]
    state: bytes

    def committed(self) -> None:
        self.link.settle(self.ids, self.state)

    def rolled_back(self) -> None:
        self.link.reopen(self.ids, self.contexts)


def settle_in_transaction(
    conversation: Conversation, event: DispositionReceived, entity_id: int, subqueue: int
) -> None:
    """A disposition that carries a transaction's id."""
    state, link, ids = event.state, event.link, event.delivery_ids
    assert isinstance(state, TransactionalState)
    outcome, overlay = read_outcome(state.outcome, event.settled)
    if outcome == UNDECIDED:
        link.reopen(ids, event.contexts)
        return
    locks: list[Lock] = event.contexts  # type: ignore[assignment]  # what deliver() put there
    try:
        command = Settle(entity_id, subqueue, locks, outcome, overlay)
        command.delay_ms = read_delay_of(state.outcome, outcome)
        transaction = add_to_transaction(conversation, state.txn_id, command)
    except ServiceError as error:
        if event.settled:
            fail_transaction(conversation, state.txn_id, error)
        else:
            link.settle(ids, refused(error))
    else:
        if not event.settled:
            confirmed = CONFIRMED[outcome]
            link.confirm(ids, transactional(state.txn_id, confirmed))
            ending = SettledDeliveries(link, ids, event.contexts, confirmed)
            transaction.endings.append(ending)
    conversation.traffic.flush_soon()


# --- sending links and requests -------------------------------------------------------------------


def add_to_transaction(
    conversation: Conversation, txn_id: bytes, command: Command
) -> BoundTransaction:
    """Make a command part of a transaction, or raise why not."""
    transaction = conversation.transactions.find(txn_id)
    entity = conversation.namespace.gateway.directory.by_id.get(command.entity_id)
    conversation.transactions.add(transaction, command)
    if entity is not None:
        transaction.endings.append(Enlisted(entity.metrics, command))
        if isinstance(command, Send):
            meter = conversation.namespace.meter_of(entity)
            transaction.endings.append(Enlisted(meter, command))
    return transaction


def fail_transaction(conversation: Conversation, txn_id: bytes, error: ServiceError) -> None:
    """Something could not be part of a transaction, and the client had settled it: it cannot be
    told now and must not believe that the transaction holds it, so the commit will say so."""
    with contextlib.suppress(ServiceError):  # of a transaction that is gone nobody believes it
        conversation.transactions.find(txn_id).failure = error


def is_enlisted(command: Command) -> bool:
    """Must a request with a transaction's id wait for the transaction?"""
    return not isinstance(command, _NOT_ENLISTED)


def enlist_request(conversation: Conversation, txn_id: bytes, command: Command) -> object:
    """Make a $management request part of a transaction; returns what its answer says."""
    transactions = conversation.transactions
    transaction = transactions.find(txn_id)
    if isinstance(command, Send):
        return transactions.schedule(transaction, command)
    transactions.add(transaction, command)
    return None
