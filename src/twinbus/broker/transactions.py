"""Transactions: commands that happen together or not at all.

    declare ─▶ add, add, add: checked, nothing changes ─▶ commit: checked again, all applied at once
                                                       └▶ roll_back: forgotten

A commit is decided like any other command, between two others; its facts are one `Together`, which
the store writes into one frame, so that a crash leaves all of them or none.  Whoever asked hears of
it when that frame is durable.

Until then nobody else sees anything of a transaction: no message is stored and no lock ends.  A
lock may run out meanwhile, or the message be settled by other means; then the commit is refused and
nothing of the transaction happens.  Nothing here may change an entity before everything has been
checked.
"""

from collections.abc import Callable
from typing import Final, Protocol

from twinbus.broker.broker import FACT_OVERHEAD_BYTES, Broker
from twinbus.clock import Clock, Now
from twinbus.entities.commands import Command, Send, Settle
from twinbus.entities.facts import MAIN, Stored, gather
from twinbus.entities.message import NEVER_MS, SCHEDULED, Message, NewMessage, overlay_bytes
from twinbus.entities.queue import Queue
from twinbus.entities.topic import Topic
from twinbus.errors import (
    ArgumentInvalid,
    DiskFull,
    EntityNotFound,
    InvalidOperation,
    NotSupported,
    QuotaExceeded,
    ServerBusy,
    ServiceError,
    TransactionRolledBack,
)
from twinbus.limits import (
    TRANSACTION_DURATION_MS_MAX,
    TRANSACTION_MESSAGES_MAX,
    TRANSACTION_SIZE_BYTES_MAX,
    TRANSACTIONS_SIZE_BYTES_MAX,
)
from twinbus.links.transactions import Declared, OpenTransactions

_SETTLEMENT_BYTES: Final = 256  # what a settlement may take in the log without its overlay

Then = Callable[[ServiceError | None], None]


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


class Transactions(GatheredTransactions):
    """The open transactions of one connection in the store of a broker."""

    def __init__(self, broker: Broker, clock: Clock, prefix: bytes) -> None:
        super().__init__(broker, clock, prefix)
        self._broker = broker

    # -- adding ------------------------------------------------------------------------------------

    def schedule(self, transaction: Transaction, command: Send) -> list[int]:
        """Add messages for later; their sequence numbers are known, and theirs, from now on."""
        now = self._clock.now()
        queue = self._entity(command.entity_id)
        messages = command.messages
        size = self._check_send(transaction, command, now)
        first = queue.last_sequence_number + 1
        queue.last_sequence_number += len(messages)
        numbers = list(range(first, first + len(messages)))
        transaction.scheduled.append(Scheduled(queue, messages, numbers))
        self._count(transaction, len(messages), size, now)
        return numbers

    def _check_send(self, transaction: Transaction, command: Send, now: Now) -> int:
        queue = self._entity(command.entity_id)
        if queue.topic_id:
            raise InvalidOperation("Messages are sent to a topic, not to its subscriptions.")
        size = super()._check_send(transaction, command, now)
        messages = command.messages
        if isinstance(queue, Topic):  # matching all of them again each time would take too long
            queue.check_send(messages, now)
        else:
            queue.check_send(transaction.messages_for(queue.entity_id) + messages, now)
        return size

    def _check_settle(self, command: Settle, now: Now) -> None:
        _check_settle(self._entity(command.entity_id), command, now)

    def _size_bytes_max(self) -> int:
        # Two thirds of what a frame may hold: the rest is for the copies that topics make.
        return min(TRANSACTION_SIZE_BYTES_MAX, self._broker.store.together_size_max * 2 // 3)

    def _entity(self, entity_id: int) -> Queue:
        queue = self._broker.store.entities.get(entity_id)
        if queue is None:
            raise EntityNotFound("The messaging entity could not be found.")
        return queue

    # -- ending ------------------------------------------------------------------------------------

    def commit(self, transaction: Transaction, then: Then) -> None:
        """Let everything happen; `then` hears when it is durable, or at once why it is refused."""
        try:
            waiting = self._apply(transaction, self._clock.now())
        except ServiceError as error:
            self.roll_back(transaction)
            then(TransactionRolledBack(f"The transaction was rolled back: {error}"))
            return
        self._forget(transaction)
        self._broker.when_durable(Committed(self._broker, transaction, waiting, then).durable)

    def _apply(self, transaction: Transaction, now: Now) -> "list[tuple[Queue, list[Message]]]":
        """Check everything, then do everything; returns what is to be put in when durable."""
        if transaction.failure is not None:
            raise transaction.failure
        broker = self._broker
        queues: dict[int, Queue] = {}
        for entity_id in transaction.sends:
            queues[entity_id] = self._entity(entity_id)
        for scheduled in transaction.scheduled:
            entity_id = scheduled.queue.entity_id
            queues[entity_id] = self._entity(entity_id)
        self._check_all(transaction, queues, now)
        mark = len(broker.store.facts)
        for command in transaction.settles:
            queue = queues.setdefault(command.entity_id, self._entity(command.entity_id))
            result = queue.apply(command, now)
            assert result is None, "a settlement failed that had been checked"
        for entity_id, messages in transaction.sends.items():
            queues[entity_id].send(messages, now)
        waiting = self._apply_scheduled(transaction, now)
        gather(broker.store.facts, mark)
        broker.pending_bytes += transaction.size_bytes
        broker.work_count += transaction.message_count
        for queue in queues.values():
            broker.touch(queue)
        return waiting

    def _check_all(self, transaction: Transaction, queues: dict[int, Queue], now: Now) -> None:
        """Refuse what could not be applied: after this nothing can go wrong any more."""
        size = transaction.size_bytes
        for entity_id, queue in queues.items():
            messages = transaction.messages_for(entity_id)
            queue.check_send(messages, now)
            if isinstance(queue, Topic):
                size += queue.copied_bytes(messages, now)
        for command in transaction.settles:
            queue = self._entity(command.entity_id)
            _check_settle(queue, command, now)
            size += queue.overlays_bytes(command.subqueue, command.locks)
        store = self._broker.store
        if size > store.together_size_max:
            raise QuotaExceeded(
                f"With its copies and what its messages carry already, it takes {size} bytes; "
                f"{store.together_size_max} can be written at once."
            )
        if queues and not store.room_for(size):
            raise DiskFull("The disk is full: no new message can be stored.")

    def _apply_scheduled(
        self, transaction: Transaction, now: Now
    ) -> "list[tuple[Queue, list[Message]]]":
        """State scheduled messages under the numbers that were told.

        Newer numbers may be published already, which would make these visible before they are
        durable.  So they are stated, and put in only when the frame is written.
        """
        waiting: list[tuple[Queue, list[Message]]] = []
        for scheduled in transaction.scheduled:
            queue = scheduled.queue
            fresh = queue.remember(scheduled.messages, now)
            messages = [
                _scheduled_message(queue, new, number, now)
                for new, number in zip(scheduled.messages, scheduled.numbers, strict=True)
                if new in fresh
            ]
            if messages:
                self._broker.store.facts.append(Stored(queue.entity_id, MAIN, messages))
                waiting.append((queue, messages))
        return waiting


class Committed:
    """A commit on its way to the disk."""

    __slots__ = ("_broker", "_then", "_transaction", "_waiting")

    def __init__(
        self,
        broker: Broker,
        transaction: Transaction,
        waiting: list[tuple[Queue, list[Message]]],
        then: Then,
    ) -> None:
        self._broker = broker
        self._transaction = transaction
        self._waiting = waiting
        self._then = then

    def durable(self) -> None:
        entities = self._broker.store.entities
        for queue, messages in self._waiting:
            if entities.get(queue.entity_id) is queue:  # else it was deleted meanwhile
                for message in messages:
                    queue.put_scheduled(message)
                self._broker.touch(queue)
        for ending in self._transaction.endings:
            ending.committed()
        self._then(None)


def _check_settle(queue: Queue, command: Settle, now: Now) -> None:
    queue.check_settle(command.subqueue, command.locks, command.outcome, now, command.delay_ms)


def _scheduled_message(queue: Queue, new: NewMessage, number: int, now: Now) -> Message:
    due_ms = max(new.scheduled_ms, now.utc_ms)
    ttl_ms = min(new.time_to_live_ms, queue.description.default_time_to_live_ms)
    expires_ms = NEVER_MS if ttl_ms == NEVER_MS else due_ms + ttl_ms
    body = new.body
    return Message(number, body, len(body), due_ms, expires_ms, new.session_id, SCHEDULED)
