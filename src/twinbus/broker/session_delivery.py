"""Delivery from a session entity: one receiver a session, and those who wait for one.

With thousands of session receivers open, a turn looks only at those about which something changed:
new messages in their session, new credit, room on their connection, a lock that ran out.

This module must never let go of a session that somebody else has taken over meanwhile: what a
receiver holds is its grant, and that is what is released.
"""

from twinbus.broker.delivery import (
    TURN_COUNT_MAX,
    Bodies,
    QueueReceivers,
    Receiver,
    Taken,
    finish_drain,
)
from twinbus.broker.session_waiters import SessionWaiters, Waiter
from twinbus.clock import Now
from twinbus.entities.commands import PEEK_LOCK
from twinbus.entities.message import NEVER_MS, Message
from twinbus.entities.queue import Queue
from twinbus.entities.session_locks import SessionLock
from twinbus.errors import EntityNotFound, LinkStolen, ServiceError, SessionLockLost
from twinbus.links.store_link import Answer


class SessionReceivers(QueueReceivers):
    """All receivers of one session entity: by session, and those of its dead-letter queues."""

    __slots__ = ("_by_session", "_stirred", "_waiters")

    def __init__(self, queue: Queue) -> None:
        super().__init__(queue)
        self._by_session: dict[str, Receiver] = {}
        self._stirred: dict[Receiver, None] = {}  # whom to look at in the next turn
        self._waiters = SessionWaiters()

    def count(self) -> int:
        return super().count() + len(self._by_session) + len(self._waiters)

    # -- who receives ----------------------------------------------------------------------------

    def add(self, receiver: Receiver) -> None:
        if receiver.session is None:
            super().add(receiver)
        else:
            self._by_session[receiver.session.session_id] = receiver
            self._stirred[receiver] = None

    def remove(self, receiver: Receiver, now: Now) -> None:
        lock = receiver.session
        if lock is None:
            super().remove(receiver, now)
            return
        self._stirred.pop(receiver, None)
        if self._by_session.get(lock.session_id) is receiver:
            del self._by_session[lock.session_id]
            if receiver.is_exclusive:
                self.queue.release_session(lock.session_id, lock.grant, now)

    def stir(self, receiver: Receiver) -> None:
        if receiver.session is not None:
            self._stirred[receiver] = None
        else:
            super().stir(receiver)

    def stir_all(self) -> None:
        for receiver in self._by_session.values():
            self._stirred[receiver] = None

    def remove_all(self) -> None:
        receivers = list(self._by_session.values())
        self._by_session.clear()
        for receiver in receivers:
            receiver.sink.removed()
        while len(self._waiters):
            self._waiters.answer_next(EntityNotFound("The messaging entity was deleted."))
        super().remove_all()

    # -- who wants to ----------------------------------------------------------------------------

    def accept(
        self, session_id: str | None, timeout_ms: int, grant: int, then: Answer, now: Now
    ) -> Waiter:
        """Find a session for somebody; `then` is called at once or later, unless cancelled."""
        waiter = Waiter(then, now.mono_ms + timeout_ms)
        result: SessionLock | ServiceError
        try:
            self.queue.check_receivable()
            if grant != 0:
                result = self._take_over(session_id or "", grant, now)
            elif session_id is not None:
                result = self._accept_named(session_id, now)
            else:
                self._waiters.add(waiter)
                self._serve_waiters(now)
                return waiter
        except ServiceError as error:
            result = error
        waiter.answer(result)
        return waiter

    def cancel(self, waiter: Waiter) -> None:
        self._waiters.cancel(waiter)

    def _accept_named(self, session_id: str, now: Now) -> SessionLock:
        lock = self.queue.accept_session(session_id, now)
        assert lock is not None
        self._tell_lost()  # the lock of an earlier holder may have run out just now
        return lock

    def _take_over(self, session_id: str, grant: int, now: Now) -> SessionLock:
        lock = self.queue.take_over(session_id, grant, now)
        older = self._by_session.pop(session_id, None)
        if older is not None:
            older.sink.lost(LinkStolen("Another receiver has taken over the session."))
        return lock

    def _serve_waiters(self, now: Now) -> None:
        while len(self._waiters) and self.queue.has_available():
            lock = self.queue.accept_session(None, now)
            if lock is None:
                return
            self._waiters.answer_next(lock)

    def _tell_lost(self) -> None:
        for session_id, grant in self.queue.take_lost():
            receiver = self._by_session.get(session_id)
            if receiver is not None and receiver.holds(grant):
                del self._by_session[session_id]
                receiver.sink.lost(SessionLockLost("The session lock has expired."))

    # -- turns -----------------------------------------------------------------------------------

    def pump(self, store: Bodies, now: Now, taken: list[Taken]) -> int:
        self._tell_lost()
        self._serve_waiters(now)
        for session_id in self.queue.take_stirred():
            receiver = self._by_session.get(session_id)
            if receiver is not None:
                self._stirred[receiver] = None
        left = TURN_COUNT_MAX
        while self._stirred and left > 0:
            receiver = next(iter(self._stirred))
            del self._stirred[receiver]
            try:
                served = self._serve(receiver, store, now, left, taken)
            except BaseException:
                self._stirred[receiver] = None  # its turn comes again
                raise
            left -= served
            if served:
                self._stirred[receiver] = None  # there may be more; the others come first
            elif receiver.drain:
                self._finish_drain(receiver)
        return TURN_COUNT_MAX - left + super().pump(store, now, taken)

    def _finish_drain(self, receiver: Receiver) -> None:
        if receiver.credit == 0 or not self._ready(receiver):
            finish_drain(receiver)

    def next_due_ms(self, due_ms: int, now: Now) -> int:
        deadline_ms = self._waiters.next_deadline_ms()
        if deadline_ms == NEVER_MS:
            return due_ms
        left_ms = max(0, deadline_ms - now.mono_ms)
        return left_ms if due_ms < 0 else min(due_ms, left_ms)

    def tick(self, now: Now) -> None:
        self._waiters.time_out(now.mono_ms)

    def _ready(self, receiver: Receiver) -> bool:
        lock = receiver.session
        if lock is None:
            return super()._ready(receiver)
        return self.queue.session_ready(lock.session_id)

    def _take(self, receiver: Receiver, count: int, now: Now) -> list[Message]:
        lock = receiver.session
        if lock is None:
            return super()._take(receiver, count, now)
        try:
            if receiver.receive_mode == PEEK_LOCK:
                return self.queue.lock_next_of(lock.session_id, lock.grant, count, now)
            return self.queue.take_next_of(lock.session_id, lock.grant, count, now)
        except SessionLockLost:
            return []  # it has just run out: the next tick says so to everybody

    def _locked_until_utc_ms(self, receiver: Receiver, now: Now) -> int:
        lock = receiver.session
        if lock is None:
            return super()._locked_until_utc_ms(receiver, now)
        return self.queue.locked_until_utc_ms(lock.session_id, now)


def receivers_of(queue: Queue) -> QueueReceivers:
    """What the receivers of this entity gather in."""
    return SessionReceivers(queue) if queue.description.requires_session else QueueReceivers(queue)
