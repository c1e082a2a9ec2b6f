"""Transactions in a store behind a socket: gathered here, decided there.

What is added is checked only for what can be known here (limits, a message settled twice);
everything else is checked by the broker when the transaction commits, and a refusal is a rollback.
One thing is refused: scheduling, because that has to tell sequence numbers at once, which are the
broker's to give.
"""

from typing import Protocol

from twinbus.clock import Clock
from twinbus.entities.commands import Command, Send
from twinbus.errors import NotSupported, ServiceError, TransactionRolledBack
from twinbus.links.transactions import GatheredTransactions, Then, Transaction


class CommittingStore(Protocol):
    """The store that the transactions are in (remote_store.py)."""

    transaction_bytes: int

    def commit(self, commands: list[Command], size_bytes: int, then: Then) -> None: ...


class RemoteTransactions(GatheredTransactions):
    """The open transactions of one connection in one store."""

    def __init__(self, store: CommittingStore, clock: Clock, prefix: bytes) -> None:
        super().__init__(store, clock, prefix)
        self._store = store

    def schedule(self, transaction: Transaction, command: Send) -> list[int]:
        """Refused: the numbers would have to be known before the broker has given any."""
        raise NotSupported(
            "Messages cannot be scheduled in a transaction where stores have brokers of their own; "
            "send them with a scheduled enqueue time, or schedule them outside."
        )

    def commit(self, transaction: Transaction, then: Then) -> None:
        """Let everything happen; `then` hears when it is durable, or why it is refused."""
        if transaction.failure is not None:
            self.roll_back(transaction)
            text = f"The transaction was rolled back: {transaction.failure}"
            then(TransactionRolledBack(text))
            return
        self._forget(transaction)
        commands: list[Command] = list(transaction.settles)
        for entity_id, messages in transaction.sends.items():
            commands.append(Send(entity_id, messages))
        ending = Discharge(transaction, then)
        self._store.commit(commands, transaction.size_bytes, ending.done)


class Discharge:
    """A commit on its way to the broker and back."""

    __slots__ = ("_then", "_transaction")

    def __init__(self, transaction: Transaction, then: Then) -> None:
        self._transaction = transaction
        self._then = then

    def done(self, error: ServiceError | None) -> None:
        """Where nobody knows, settlements can be said again: the broker knows what it has done."""
        for ending in self._transaction.endings:
            if error is None:
                ending.committed()
            else:
                ending.rolled_back()
        self._then(error)
