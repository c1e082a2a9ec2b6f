"""Transactions in a store, as a gateway sees them: gathered until they are discharged.

declare ─▶ add, add, add: checked, nothing changes ─▶ commit: all of it happens, or nothing
                                                   └▶ roll_back: forgotten
"""

from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from twinbus.clock import Clock, Now
from twinbus.entities.commands import Command, Send, Settle
from twinbus.entities.facts import FACT_OVERHEAD_BYTES
from twinbus.entities.message import NEVER_MS, NewMessage, overlay_bytes
from twinbus.entities.queue import Queue
from twinbus.errors import (
    ArgumentInvalid,
    InvalidOperation,
    NotSupported,
    QuotaExceeded,
    ServerBusy,
    ServiceError,
    TransactionNotFound,
    TransactionTimedOut,
)
from twinbus.limits import (
    TRANSACTION_DURATION_MS_MAX,
    TRANSACTION_MESSAGES_MAX,
    TRANSACTION_SIZE_BYTES_MAX,
    TRANSACTIONS_MAX,
    TRANSACTIONS_SIZE_BYTES_MAX,
)

_SETTLEMENT_BYTES: Final = 256  # what a settlement may take in the log without its overlay

# Hears that a commit is durable, or why it was refused.
Then = Callable[[ServiceError | None], None]


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


class Scheduled:
    """Messages whose numbers were told before the commit."""

    __slots__ = ("messages", "numbers", "queue")

    def __init__(self, queue: Queue, messages: list[NewMessage], numbers: list[int]) -> None:
        self.queue = queue
        self.messages = messages
        self.numbers = numbers


class Transaction(Declared):
    """What has been asked for so far."""

    __slots__ = ("message_count", "scheduled", "sends", "settled", "settles", "size_bytes")

    def __init__(self, txn_id: bytes, owner: object) -> None:
        super().__init__(txn_id, owner)
        self.message_count = 0
        self.size_bytes = 0
        self.sends: dict[int, list[NewMessage]] = {}  # by entity, in the order they came
        self.scheduled: list[Scheduled] = []
        self.settles: list[Settle] = []
        self.settled: set[tuple[int, int, int]] = set()  # entity, subqueue, sequence number

    def messages_for(self, entity_id: int) -> list[NewMessage]:
        """Everything that the commit will store in an entity."""
        messages = list(self.sends.get(entity_id, ()))
        for scheduled in self.scheduled:
            if scheduled.queue.entity_id == entity_id:
                messages += scheduled.messages
        return messages


class StoreTransactions(Protocol):
    """The open transactions of one connection in one store."""

    def declare(self, owner: object) -> Transaction: ...

    def add(self, transaction: Transaction, command: Command) -> None: ...

    def schedule(self, transaction: Transaction, command: Send) -> list[int]: ...

    def commit(self, transaction: Transaction, then: Then) -> None: ...

    def roll_back(self, transaction: Transaction) -> None: ...


class Holder(Protocol):
    """Who bears what waits in the transactions of all connections."""

    transaction_bytes: int


class GatheredTransactions(OpenTransactions[Transaction]):
    """Transactions that gather commands until they are discharged, within limits."""

    def __init__(self, holder: Holder, clock: Clock, prefix: bytes) -> None:
        super().__init__(clock, prefix, Transaction)
        self._holder = holder

    def add(self, transaction: Transaction, command: Command) -> None:
        """Make a command part of a transaction, or raise why not; then it is no part of it."""
        now = self._clock.now()
        if isinstance(command, Send):
            size = self._check_send(transaction, command, now)
            transaction.sends.setdefault(command.entity_id, []).extend(command.messages)
            self._count(transaction, len(command.messages), size, now)
        elif isinstance(command, Settle):
            self._add_settle(transaction, command, now)
        else:
            raise NotSupported("Only sends, schedules and settlements can be in a transaction.")

    def _check_send(self, transaction: Transaction, command: Send, now: Now) -> int:
        """The size of what is sent, if it may be added."""
        if not command.messages:
            raise ArgumentInvalid("There is no message in it.")
        size = 0
        for message in command.messages:
            size += len(message.body) + FACT_OVERHEAD_BYTES
        self._check_limits(transaction, len(command.messages), size)
        return size

    def _add_settle(self, transaction: Transaction, command: Settle, now: Now) -> None:
        size = (_SETTLEMENT_BYTES + overlay_bytes(command.overlay)) * len(command.locks)
        self._check_limits(transaction, len(command.locks), size)
        settled: set[tuple[int, int, int]] = set()
        for number, _ in command.locks:
            key = (command.entity_id, command.subqueue, number)
            if key in settled or key in transaction.settled:
                raise InvalidOperation(
                    f"The message {number} is already settled in this transaction."
                )
            settled.add(key)
        self._check_settle(command, now)
        transaction.settled |= settled
        transaction.settles.append(command)
        self._count(transaction, len(command.locks), size, now)

    def _check_settle(self, command: Settle, now: Now) -> None:
        """Refuse what could not be settled now, as far as that is known."""

    def _size_bytes_max(self) -> int:
        return TRANSACTION_SIZE_BYTES_MAX

    def _check_limits(self, transaction: Transaction, count: int, size: int) -> None:
        if transaction.message_count + count > TRANSACTION_MESSAGES_MAX:
            raise QuotaExceeded(
                f"A transaction has at most {TRANSACTION_MESSAGES_MAX} messages, sent and settled."
            )
        size_max = self._size_bytes_max()
        if transaction.size_bytes + size > size_max:
            raise QuotaExceeded(
                f"The messages of a transaction have at most {size_max} bytes together."
            )
        if self._holder.transaction_bytes + size > TRANSACTIONS_SIZE_BYTES_MAX:
            raise ServerBusy("Too much is waiting in open transactions; try again later.")

    def _count(self, transaction: Transaction, count: int, size: int, now: Now) -> None:
        transaction.message_count += count
        transaction.size_bytes += size
        self._holder.transaction_bytes += size
        if transaction.deadline_ms == NEVER_MS:
            transaction.deadline_ms = now.mono_ms + TRANSACTION_DURATION_MS_MAX

    def roll_back(self, transaction: Transaction) -> None:
        """Forget everything it had asked for."""
        self._forget(transaction)
        for ending in transaction.endings:
            ending.rolled_back()

    def _forget(self, transaction: Transaction) -> None:
        if self._open.pop(transaction.txn_id, None) is not None:
            self._holder.transaction_bytes -= transaction.size_bytes
