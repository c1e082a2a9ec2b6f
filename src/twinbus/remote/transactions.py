"""Transactions in a store behind a socket: gathered here, decided there.

The same methods as `broker.transactions.Transactions`.  What is added is checked only for what can
be known here (limits, a message settled twice); everything else is checked by the broker when the
transaction commits, and a refusal is a rollback.  One thing is refused: scheduling, because that
has to tell sequence numbers at once, which are the broker's to give.
"""

from typing import TYPE_CHECKING

from twinbus.broker.transactions import Then, Transaction
from twinbus.clock import Clock, Now
from twinbus.entities.commands import Command, Send, Settle
from twinbus.entities.message import NEVER_MS, Overlay
from twinbus.errors import (
    InvalidOperation,
    NotSupported,
    QuotaExceeded,
    ServerBusy,
    ServiceError,
    TransactionNotFound,
    TransactionRolledBack,
    TransactionTimedOut,
)
from twinbus.limits import (
    TRANSACTION_DURATION_MS_MAX,
    TRANSACTION_MESSAGES_MAX,
    TRANSACTION_SIZE_BYTES_MAX,
    TRANSACTIONS_MAX,
    TRANSACTIONS_SIZE_BYTES_MAX,
)
from twinbus.remote.operations import MESSAGE_OVERHEAD_BYTES

if TYPE_CHECKING:
    from twinbus.remote.store import RemoteStore


class RemoteTransactions:
    """The open transactions of one connection in one store."""

    def __init__(self, store: "RemoteStore", clock: Clock, prefix: bytes) -> None:
        self._store = store
        self._clock = clock
        self._prefix = prefix  # random: an id of another connection fits nowhere
        self._declared = 0
        self._open: dict[bytes, Transaction] = {}
        self._timed_out: dict[bytes, bool] = {}  # the newest of them, to say what became of them

    # -- beginning and adding ----------------------------------------------------------------------

    def declare(self, owner: object) -> Transaction:
        if len(self._open) >= TRANSACTIONS_MAX:
            raise QuotaExceeded(
                f"A connection has at most {TRANSACTIONS_MAX} open transactions; discharge some."
            )
        self._declared += 1
        transaction = Transaction(self._prefix + self._declared.to_bytes(8, "big"), owner)
        self._open[transaction.txn_id] = transaction
        return transaction

    def find(self, txn_id: bytes) -> Transaction:
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

    def add(self, transaction: Transaction, command: Command) -> None:
        """Make a command part of a transaction, or raise why not; then it is no part of it."""
        now = self._clock.now()
        if isinstance(command, Send):
            size = 0
            for message in command.messages:
                size += len(message.body) + MESSAGE_OVERHEAD_BYTES
            self._check_limits(transaction, len(command.messages), size)
            transaction.sends.setdefault(command.entity_id, []).extend(command.messages)
            self._count(transaction, len(command.messages), size, now)
        elif isinstance(command, Settle):
            self._add_settle(transaction, command, now)
        else:
            raise NotSupported("Only sends, schedules and settlements can be in a transaction.")

    def schedule(self, transaction: Transaction, command: Send) -> list[int]:
        """Refused: the numbers would have to be known before the broker has given any."""
        raise NotSupported(
            "Messages cannot be scheduled in a transaction where stores have brokers of their own; "
            "send them with a scheduled enqueue time, or schedule them outside."
        )

    def _add_settle(self, transaction: Transaction, command: Settle, now: Now) -> None:
        size = (MESSAGE_OVERHEAD_BYTES + _overlay_bytes(command.overlay)) * len(command.locks)
        self._check_limits(transaction, len(command.locks), size)
        settled: set[tuple[int, int, int]] = set()
        for number, _ in command.locks:
            key = (command.entity_id, command.subqueue, number)
            if key in settled or key in transaction.settled:
                raise InvalidOperation(
                    f"The message {number} is already settled in this transaction."
                )
            settled.add(key)
        transaction.settled |= settled
        transaction.settles.append(command)
        self._count(transaction, len(command.locks), size, now)

    def _check_limits(self, transaction: Transaction, count: int, size: int) -> None:
        if transaction.message_count + count > TRANSACTION_MESSAGES_MAX:
            raise QuotaExceeded(
                f"A transaction has at most {TRANSACTION_MESSAGES_MAX} messages, sent and settled."
            )
        if transaction.size_bytes + size > TRANSACTION_SIZE_BYTES_MAX:
            raise QuotaExceeded(
                "The messages of a transaction have at most "
                f"{TRANSACTION_SIZE_BYTES_MAX} bytes together."
            )
        if self._store.transaction_bytes + size > TRANSACTIONS_SIZE_BYTES_MAX:
            raise ServerBusy("Too much is waiting in open transactions; try again later.")

    def _count(self, transaction: Transaction, count: int, size: int, now: Now) -> None:
        transaction.message_count += count
        transaction.size_bytes += size
        self._store.transaction_bytes += size
        if transaction.deadline_ms == NEVER_MS:
            transaction.deadline_ms = now.mono_ms + TRANSACTION_DURATION_MS_MAX

    # -- ending ------------------------------------------------------------------------------------

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

    def roll_back(self, transaction: Transaction) -> None:
        """Forget everything it had asked for."""
        self._forget(transaction)
        for ending in transaction.endings:
            ending.rolled_back()

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

    def _time_out(self, transaction: Transaction) -> None:
        self.roll_back(transaction)
        if len(self._timed_out) >= TRANSACTIONS_MAX:
            del self._timed_out[next(iter(self._timed_out))]
        self._timed_out[transaction.txn_id] = True

    def _forget(self, transaction: Transaction) -> None:
        if self._open.pop(transaction.txn_id, None) is not None:
            self._store.transaction_bytes -= transaction.size_bytes


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


def _overlay_bytes(overlay: Overlay | None) -> int:
    if overlay is None:
        return 0
    texts = len(overlay.reason or "") + len(overlay.description or "")
    return 4 * texts + len(overlay.properties or b"")
