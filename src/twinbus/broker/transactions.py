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

from twinbus.broker.store_run import StoreRun
from twinbus.clock import Clock, Now
from twinbus.entities.commands import Send, Settle
from twinbus.entities.facts import MAIN, Stored, gather
from twinbus.entities.message import Message, scheduled_message
from twinbus.entities.queue import Queue
from twinbus.errors import (
    DiskFull,
    InvalidOperation,
    QuotaExceeded,
    ServiceError,
    TransactionRolledBack,
)
from twinbus.limits import TRANSACTION_SIZE_BYTES_MAX
from twinbus.links.transactions import GatheredTransactions, Scheduled, Then, Transaction


class Transactions(GatheredTransactions):
    """The open transactions of one connection in the store of a run."""

    def __init__(self, run: StoreRun, clock: Clock, prefix: bytes) -> None:
        super().__init__(run, clock, prefix)
        self._run = run

    # -- adding ------------------------------------------------------------------------------------

    def schedule(self, transaction: Transaction, command: Send) -> list[int]:
        """Add messages for later; their sequence numbers are known, and theirs, from now on."""
        now = self._clock.now()
        queue = self._run.entity(command.entity_id)
        messages = command.messages
        size = self._check_send(transaction, command, now)
        first = queue.last_sequence_number + 1
        queue.last_sequence_number += len(messages)
        numbers = list(range(first, first + len(messages)))
        transaction.scheduled.append(Scheduled(queue, messages, numbers))
        self._count(transaction, len(messages), size, now)
        return numbers

    def _check_send(self, transaction: Transaction, command: Send, now: Now) -> int:
        queue = self._run.entity(command.entity_id)
        if queue.topic_id:
            raise InvalidOperation("Messages are sent to a topic, not to its subscriptions.")
        size = super()._check_send(transaction, command, now)
        messages = command.messages
        queue.check_more(transaction.messages_for(queue.entity_id), messages, now)
        return size

    def _check_settle(self, command: Settle, now: Now) -> None:
        self._run.entity(command.entity_id).check_settle(command, now)

    def _size_bytes_max(self) -> int:
        # Two thirds of what a frame may hold: the rest is for the copies that topics make.
        return min(TRANSACTION_SIZE_BYTES_MAX, self._run.store.together_size_max * 2 // 3)

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
        self._run.when_durable(Committed(self._run, transaction, waiting, then).durable)

    def _apply(self, transaction: Transaction, now: Now) -> "list[tuple[Queue, list[Message]]]":
        """Check everything, then do everything; returns what is to be put in when durable."""
        if transaction.failure is not None:
            raise transaction.failure
        run = self._run
        queues: dict[int, Queue] = {}
        for entity_id in transaction.sends:
            queues[entity_id] = self._run.entity(entity_id)
        for scheduled in transaction.scheduled:
            entity_id = scheduled.queue.entity_id
            queues[entity_id] = self._run.entity(entity_id)
        self._check_all(transaction, queues, now)
        mark = len(run.store.facts)
        for command in transaction.settles:
            queue = queues.setdefault(command.entity_id, self._run.entity(command.entity_id))
            result = queue.apply(command, now)
            assert result is None, "a settlement failed that had been checked"
        for entity_id, messages in transaction.sends.items():
            queues[entity_id].apply(Send(entity_id, messages), now)
        waiting = self._apply_scheduled(transaction, now)
        gather(run.store.facts, mark)
        run.pending_bytes += transaction.size_bytes
        run.work_count += transaction.message_count
        for queue in queues.values():
            run.touch(queue)
        return waiting

    def _check_all(self, transaction: Transaction, queues: dict[int, Queue], now: Now) -> None:
        """Refuse what could not be applied: after this nothing can go wrong any more."""
        size = transaction.size_bytes
        for entity_id, queue in queues.items():
            messages = transaction.messages_for(entity_id)
            queue.check_send(messages, now)
            size += queue.copied_bytes(messages, now)
        for command in transaction.settles:
            queue = self._run.entity(command.entity_id)
            queue.check_settle(command, now)
            size += queue.overlays_bytes(command.subqueue, command.locks)
        store = self._run.store
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
            ttl_ms = queue.description.default_time_to_live_ms
            messages = [
                scheduled_message(new, number, max(new.scheduled_ms, now.utc_ms), ttl_ms)
                for new, number in zip(scheduled.messages, scheduled.numbers, strict=True)
                if new in fresh
            ]
            if messages:
                self._run.store.facts.append(Stored(queue.entity_id, MAIN, messages))
                waiting.append((queue, messages))
        return waiting


class Committed:
    """A commit on its way to the disk."""

    __slots__ = ("_run", "_then", "_transaction", "_waiting")

    def __init__(
        self,
        run: StoreRun,
        transaction: Transaction,
        waiting: list[tuple[Queue, list[Message]]],
        then: Then,
    ) -> None:
        self._run = run
        self._transaction = transaction
        self._waiting = waiting
        self._then = then

    def durable(self) -> None:
        entities = self._run.store.entities
        for queue, messages in self._waiting:
            if entities.get(queue.entity_id) is queue:  # else it was deleted meanwhile
                for message in messages:
                    queue.put_scheduled(message)
                self._run.touch(queue)
        for ending in self._transaction.endings:
            ending.committed()
        self._then(None)
