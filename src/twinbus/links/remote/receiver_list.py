"""The receivers, and the waits for sessions, of one store behind a socket.

They are kept while brokers come and go, and asked for again where the store comes up.
"""

from typing import Final, Protocol

from twinbus.clock import Now
from twinbus.entities.session_locks import SessionLock
from twinbus.errors import OperationTimeout, Unavailable
from twinbus.links.remote.messages import decode_lock
from twinbus.links.remote.operations import (
    CANCEL_ACCEPT,
    CLOSE_RECEIVER,
    DRAINED,
    LOST,
    REMOVED,
    Operation,
)
from twinbus.links.remote.receivers import Home, RemoteReceiver, RemoteWaiter
from twinbus.links.remote.results import decode_error
from twinbus.links.sink import Sink
from twinbus.links.store_link import Answer, ReceiverDescription

NOT_DONE: Final = "The store of this entity is not available; nothing has been done. Try again."
UNKNOWN: Final = (
    "The broker of this entity was lost before it answered: this may have happened or not."
)


class ReceivingStore(Home, Protocol):
    """The store that the receivers are of (remote_store.py)."""

    @property
    def is_open(self) -> bool: ...

    @property
    def is_held(self) -> bool:
        """Is it moving to another broker as planned?"""

    def release_session(self, entity_id: int, lock: SessionLock) -> None: ...


class RemoteReceivers:
    """Those of one store."""

    def __init__(self, store: ReceivingStore) -> None:
        self._store = store
        self._receivers: dict[RemoteReceiver, None] = {}
        self._open_receivers: dict[int, RemoteReceiver] = {}
        self._closed_receivers: dict[int, RemoteReceiver] = {}  # and not confirmed yet
        self._waiters: dict[RemoteWaiter, None] = {}
        self._asked_waiters: dict[int, RemoteWaiter] = {}

    def ask_again(self) -> None:
        """The store is open: its broker is asked for everything that was asked for before."""
        for receiver in list(self._receivers):
            receiver.open()
        now = self._store.now()
        for waiter in list(self._waiters):
            if waiter.number == 0:
                self._ask(waiter, now)

    def open(self, description: ReceiverDescription, sink: Sink) -> RemoteReceiver:
        receiver = RemoteReceiver(self._store, self, description, sink)
        self._receivers[receiver] = None
        if self._store.is_open:
            receiver.open()
        else:
            receiver.down(planned=self._store.is_held)
        return receiver

    def accept_session(
        self, entity_id: int, session_id: str | None, timeout_ms: int, grant: int, then: Answer
    ) -> RemoteWaiter:
        now = self._store.now()
        deadline_ms = now.mono_ms + timeout_ms
        waiter = RemoteWaiter(self._store, self, entity_id, session_id, deadline_ms, grant, then)
        if not self._store.is_reachable:
            waiter.answer(Unavailable(NOT_DONE))
            return waiter
        self._waiters[waiter] = None
        if self._store.is_open:
            self._ask(waiter, now)
        return waiter

    def _ask(self, waiter: RemoteWaiter, now: Now) -> None:
        number = self._store.take_number()
        self._asked_waiters[number] = waiter
        waiter.ask(number, now)

    def leave_broker(self, planned: bool) -> None:
        self._open_receivers.clear()
        self._closed_receivers.clear()
        self._asked_waiters.clear()
        for receiver in list(self._receivers):
            receiver.down(planned)
        for waiter in list(self._waiters):
            waiter.number = 0
            if waiter.grant:  # a lock that somebody wanted to take over is lost with the broker
                self._waiters.pop(waiter, None)
                waiter.answer(Unavailable(UNKNOWN))

    def tick(self) -> None:
        """To be called a few times a second: whoever waits for a session does not wait for ever.

        While the store is open its broker sees to that.
        """
        if self._store.is_open or not self._waiters:
            return
        mono_ms = self._store.now().mono_ms
        for waiter in [each for each in self._waiters if each.deadline_ms <= mono_ms]:
            self._waiters.pop(waiter, None)
            waiter.answer(OperationTimeout("No session became available in time."))

    # -- what receivers and waiters tell -----------------------------------------------------------

    def open_as(self, number: int, receiver: RemoteReceiver) -> None:
        self._open_receivers[number] = receiver

    def forget_receiver(self, receiver: RemoteReceiver) -> None:
        self._receivers.pop(receiver, None)
        if self._open_receivers.pop(receiver.number, None) is not None:
            self._closed_receivers[receiver.number] = receiver
            self._store.speak((CLOSE_RECEIVER, self._store.number, receiver.number))

    def forget_waiter(self, waiter: RemoteWaiter) -> None:
        self._waiters.pop(waiter, None)
        if self._asked_waiters.pop(waiter.number, None) is not None:
            self._store.speak((CANCEL_ACCEPT, self._store.number, waiter.number))

    # -- what the broker tells ---------------------------------------------------------------------

    def deliver(self, operation: Operation) -> None:
        receiver = self._open_receivers.get(operation[2])
        if receiver is not None:
            receiver.delivered(operation[3], operation[4], operation[5])
            return
        closed = self._closed_receivers.get(operation[2])
        if closed is not None:
            closed.give_back(operation[3], operation[4])

    def tell(self, code: int, operation: Operation) -> None:
        receiver = self._open_receivers.get(operation[2])
        if receiver is None:
            return
        if code == DRAINED:
            receiver.drained(operation[3])
            return
        self._receivers.pop(receiver, None)  # nothing to be opened again, or closed
        del self._open_receivers[operation[2]]
        if code == REMOVED:
            receiver.removed()
        elif code == LOST:
            receiver.lost(decode_error(operation[3]))

    def accepted(self, operation: Operation) -> None:
        _, _, number, entity_id, lock, error = operation
        waiter = self._asked_waiters.pop(number, None)
        if waiter is not None:
            self._waiters.pop(waiter, None)
            waiter.answer(decode_error(error) if lock is None else decode_lock(lock))
        elif lock is not None:  # it was cancelled meanwhile
            self._store.release_session(entity_id, decode_lock(lock))

    def closed(self, number: int) -> None:
        """The broker knows that a receiver is closed: nothing more comes for it."""
        self._closed_receivers.pop(number, None)
