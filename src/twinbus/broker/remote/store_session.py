"""One store in a broker process: operations in, the broker's answers out.

What a broker says by calls (replies, deliveries, answers to waits) becomes operations here, and
nothing of a store is said any more once it has been given up.
"""

from collections.abc import Callable

from twinbus.broker.broker import Broker
from twinbus.broker.delivery import Receiver
from twinbus.broker.session_waiters import Waiter
from twinbus.clock import Clock
from twinbus.entities.commands import Command, Reply
from twinbus.entities.message import Message
from twinbus.entities.session_locks import SessionLock
from twinbus.errors import ServiceError, TransactionRolledBack
from twinbus.links.remote.codec import decode_command
from twinbus.links.remote.messages import decode_lock, encode_lock, encode_message
from twinbus.links.remote.operations import (
    ACCEPT,
    ACCEPTED,
    CANCEL_ACCEPT,
    CLOSE_RECEIVER,
    COMMIT,
    COMMITTED,
    CONSUMED,
    CREDIT,
    DELIVERIES,
    DRAINED,
    DURABLE,
    ENTITY_GONE,
    LOST,
    MESSAGE_OVERHEAD_BYTES,
    OPEN_RECEIVER,
    RELEASE_SESSION,
    REMOVED,
    REPLY,
    WINDOW_BYTES,
    Operation,
)
from twinbus.links.remote.results import encode_error, encode_reply
from twinbus.links.store_link import ReceiverDescription

Say = Callable[[Operation], None]


class StoreSession:
    """A store that this process runs."""

    def __init__(self, number: int, say: Say, is_full: Callable[[], bool], clock: Clock) -> None:
        self.number = number
        self._say = say
        self.is_full = is_full  # does the socket hold more than it should?
        self._clock = clock
        self._broker: Broker | None = None
        self._is_given_up = False
        self._receivers: dict[int, HostReceiver] = {}
        self._waits: dict[int, HostWait] = {}

    @property
    def broker(self) -> Broker:
        assert self._broker is not None, "the store is open"
        return self._broker

    def run_by(self, broker: Broker) -> None:
        self._broker = broker
        broker.entities.on_gone = self._entity_gone

    def give_up(self) -> None:
        """Say nothing more: the store has failed or is closed."""
        self._is_given_up = True
        self._receivers.clear()
        self._waits.clear()

    def say(self, operation: Operation) -> None:
        if not self._is_given_up:
            self._say(operation)

    # -- what the gateway asks ---------------------------------------------------------------------

    def submit(self, commands: list[Command]) -> None:
        self.broker.submit(commands)

    def handle(self, operation: Operation) -> None:
        """Anything but commands."""
        code: int = operation[0]
        number: int = operation[2]
        if code == CREDIT:
            receiver = self._receivers.get(number)
            if receiver is not None:
                receiver.set_limit(operation[3], operation[4])
        elif code == CONSUMED:
            receiver = self._receivers.get(number)
            if receiver is not None:
                receiver.consumed(operation[3])
        elif code == OPEN_RECEIVER:
            self._open_receiver(operation)
        elif code == CLOSE_RECEIVER:
            receiver = self._receivers.pop(number, None)
            if receiver is not None:
                receiver.close()
            self.say(operation)
        elif code == DURABLE:
            self.broker.when_durable(Echo(self, operation).say)
        elif code == ACCEPT:
            self._accept(operation)
        elif code == CANCEL_ACCEPT:
            wait = self._waits.pop(number, None)
            if wait is not None:
                wait.cancel()
        elif code == RELEASE_SESSION:
            self.broker.release_session(number, decode_lock(operation[3]))
        elif code == COMMIT:
            self._commit(operation)
        else:
            raise AssertionError(f"operation {code} is none of a store's")

    def close_receivers(self) -> None:
        """The store is to be closed: nobody gets anything more."""
        for receiver in list(self._receivers.values()):
            receiver.close()
        for wait in list(self._waits.values()):
            wait.cancel()
        self._waits.clear()

    def resume(self) -> None:
        """The socket has room again."""
        for receiver in list(self._receivers.values()):
            receiver.resume_if_stopped()

    def _open_receiver(self, operation: Operation) -> None:
        number: int = operation[2]
        receiver = HostReceiver(self, number)
        try:
            receiver.open(operation)
        except ServiceError as error:
            self.say((LOST, self.number, number, encode_error(error)))
            return
        self._receivers[number] = receiver
        receiver.set_limit(operation[9], operation[10])

    def _accept(self, operation: Operation) -> None:
        _, _, number, entity_id, session_id, timeout_ms, grant = operation
        wait = HostWait(self, number, entity_id)
        self._waits[number] = wait
        try:
            wait.waiter = self.broker.accept_session(
                entity_id, session_id, timeout_ms, grant, wait.answered
            )
        except ServiceError as error:
            wait.answered(error)

    def end_receiver(self, number: int) -> None:
        self._receivers.pop(number, None)

    def end_wait(self, number: int) -> None:
        self._waits.pop(number, None)

    def _commit(self, operation: Operation) -> None:
        commit = HostCommit(self, operation[2])
        transactions = self.broker.transactions(self._clock, b"")
        transaction = transactions.declare(commit)
        try:
            for each in operation[3]:
                transactions.add(transaction, decode_command(each))
        except ServiceError as error:
            transactions.roll_back(transaction)
            commit.done(TransactionRolledBack(f"The transaction was rolled back: {error}"))
            return
        transactions.commit(transaction, commit.done)

    # -- what the broker tells ---------------------------------------------------------------------

    def replied(self, replies: list[Reply]) -> None:
        store = self.number
        for reply in replies:
            number = reply.command.context
            if number:  # 0: nobody wants to know
                form, value = encode_reply(reply)
                self.say((REPLY, store, number, form, value))

    def _entity_gone(self, entity_id: int) -> None:
        self.say((ENTITY_GONE, self.number, entity_id))


class HostReceiver:
    """A receiver of the gateway's, as the broker sees it: a Sink."""

    def __init__(self, store: StoreSession, number: int) -> None:
        self._store = store
        self._number = number
        self._receiver: Receiver | None = None
        self._sent = 0  # messages in all
        self._unread_bytes = 0  # sent, and not known to have been handed over
        self._drain = 0
        self._is_stopped = False  # it was full when the broker asked

    def open(self, operation: Operation) -> None:
        _, _, _, entity_id, subqueue, receive_mode, lock, is_exclusive, relays, _, _ = operation
        session = None if lock is None else decode_lock(lock)
        description = ReceiverDescription(
            entity_id, subqueue, receive_mode, session, is_exclusive, relays
        )
        self._receiver = self._store.broker.open_receiver(description, self)

    def set_limit(self, limit: int, drain: int) -> None:
        """So many may have come in all; the gateway cannot know what is on its way to it."""
        receiver = self._receiver
        if receiver is not None:
            self._drain = drain
            receiver.set_credit(max(0, limit - self._sent), drain != 0)

    def consumed(self, size: int) -> None:
        self._unread_bytes -= size
        self.resume_if_stopped()

    def resume_if_stopped(self) -> None:
        if self._is_stopped and self._receiver is not None:
            self._is_stopped = False
            self._receiver.resume()

    def close(self) -> None:
        if self._receiver is not None:
            self._receiver.close()

    # -- what the broker calls ---------------------------------------------------------------------

    def deliver(
        self, messages: list[Message], bodies: list[bytes], locked_until_utc_ms: int
    ) -> None:
        entries: list[Operation] = []
        size = 0
        for message, body in zip(messages, bodies, strict=True):
            entries.append(encode_message(message, body))
            size += len(body) + MESSAGE_OVERHEAD_BYTES
        self._sent += len(messages)
        self._unread_bytes += size
        store = self._store
        store.say((DELIVERIES, store.number, self._number, locked_until_utc_ms, entries, size))

    def full(self) -> bool:
        if self._unread_bytes > WINDOW_BYTES or self._store.is_full():
            self._is_stopped = True
            return True
        return False

    def drained(self) -> None:
        self._store.say((DRAINED, self._store.number, self._number, self._drain))

    def removed(self) -> None:
        self._end()
        self._store.say((REMOVED, self._store.number, self._number))

    def lost(self, error: ServiceError) -> None:
        self._end()
        self._store.say((LOST, self._store.number, self._number, encode_error(error)))

    def _end(self) -> None:
        """With what it is told now the gateway forgets it, and does not close it any more."""
        self.close()
        self._store.end_receiver(self._number)


class HostWait:
    """A wait for a session."""

    def __init__(self, store: StoreSession, number: int, entity_id: int) -> None:
        self._store = store
        self._number = number
        self._entity_id = entity_id
        self.waiter: Waiter | None = None  # while it waits

    def answered(self, result: SessionLock | ServiceError) -> None:
        store = self._store
        store.end_wait(self._number)
        lock = encode_lock(result) if isinstance(result, SessionLock) else None
        error = None if isinstance(result, SessionLock) else encode_error(result)
        store.say((ACCEPTED, store.number, self._number, self._entity_id, lock, error))

    def cancel(self) -> None:
        if self.waiter is not None:
            self.waiter.cancel()


class HostCommit:
    """A transaction under way."""

    def __init__(self, store: StoreSession, number: int) -> None:
        self._store = store
        self._number = number

    def done(self, error: ServiceError | None) -> None:
        told = None if error is None else encode_error(error)
        self._store.say((COMMITTED, self._store.number, self._number, told))


class Echo:
    """Something to be said later."""

    def __init__(self, store: StoreSession, operation: Operation) -> None:
        self._store = store
        self._operation = operation

    def say(self) -> None:
        self._store.say(self._operation)
