"""The open transactions of a connection: their ids, their owners, and their time.

What is in a transaction, and how it ends, is told by whoever keeps them: the broker of a store
(transactions.py), the far end of a socket (remote), the gateway over all stores.
"""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from twinbus.clock import Clock
from twinbus.entities.message import NEVER_MS
from twinbus.errors import QuotaExceeded, ServiceError, TransactionNotFound, TransactionTimedOut
from twinbus.limits import TRANSACTION_DURATION_MS_MAX, TRANSACTIONS_MAX


class Ending(Protocol):
    """Whoever did something in a transaction and wants to know how it ends."""

    def committed(self) -> None: ...

    def rolled_back(self) -> None: ...


class Declared:
    """Base of all transactions."""

    __slots__ = ("deadline_ms", "endings", "failure", "owner", "txn_id")

    def __init__(self, txn_id: bytes, owner: object) -> None:
        self.txn_id = txn_id
        self.owner = owner  # whose end ends it: the control link
        self.deadline_ms = NEVER_MS  # monotonic; counts from the first operation
        self.endings: list[Ending] = []
        # Something was refused and nobody could be told: the commit has to be refused too.
        self.failure: ServiceError | None = None


T = TypeVar("T", bound=Declared)


class OpenTransactions(Generic[T]):
    """Declared and not discharged."""

    def __init__(self, clock: Clock, prefix: bytes, make: Callable[[bytes, object], T]) -> None:
        self._clock = clock
        self._prefix = prefix  # random: an id of another connection fits nowhere
        self._make = make
        self._declared = 0
        self._open: dict[bytes, T] = {}
        self._timed_out: dict[bytes, bool] = {}  # the newest of them, to say what became of them

    @property
    def open_count(self) -> int:
        return len(self._open)

    def declare(self, owner: object) -> T:
        if len(self._open) >= TRANSACTIONS_MAX:
            raise QuotaExceeded(
                f"A connection has at most {TRANSACTIONS_MAX} open transactions; discharge some."
            )
        self._declared += 1
        transaction = self._make(self._prefix + self._declared.to_bytes(8, "big"), owner)
        self._open[transaction.txn_id] = transaction
        return transaction

    def find(self, txn_id: bytes) -> T:
        """The open transaction with this id."""
        transaction = self._open.get(txn_id)
        if transaction is not None and transaction.deadline_ms > self._clock.now().mono_ms:
            return transaction
        if transaction is not None:
            self._time_out(transaction)
        if txn_id in self._timed_out:
            raise TransactionTimedOut(
                "The transaction took longer than "
                f"{TRANSACTION_DURATION_MS_MAX // 1_000} seconds and was rolled back."
            )
        raise TransactionNotFound(
            "No open transaction of this connection has this id; it may have been discharged."
        )

    def roll_back(self, transaction: T) -> None:
        """Forget everything it had asked for."""
        raise NotImplementedError

    def roll_back_all(self, owner: object) -> None:
        """The control link of these transactions is gone."""
        for transaction in [one for one in self._open.values() if one.owner is owner]:
            self.roll_back(transaction)

    def tick(self) -> None:
        """Roll back what has taken too long."""
        if self._open:
            mono_ms = self._clock.now().mono_ms
            for transaction in [t for t in self._open.values() if t.deadline_ms <= mono_ms]:
                self._time_out(transaction)

    def _time_out(self, transaction: T) -> None:
        self.roll_back(transaction)
        if len(self._timed_out) >= TRANSACTIONS_MAX:
            del self._timed_out[next(iter(self._timed_out))]
        self._timed_out[transaction.txn_id] = True
