"""A queue whose main part is read session by session, and what that changes for its steps.

The main part is a SessionPart; the dead-letter queues are ordinary.  Who holds a session, and what
a holder may do, is in sessions.py.

A session lock, and the locks of messages inside it, are not stated as facts: connections do not
survive a restart, so after one every session is free.  A message handed out stays locked for as
long as its session is held.  When the session lock runs out, everything handed out counts one
delivery more; when the holder closes, nothing does.
"""

from typing import Final

from twinbus.clock import Now
from twinbus.entities.commands import ABANDON, Lock, Settle
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.facts import MAIN, Fact, Locked, SessionStateSet
from twinbus.entities.message import ACTIVE, NEVER_MS, SCHEDULED, Message, NewMessage, Overlay
from twinbus.entities.queue import LOCK_LOST, Queue
from twinbus.entities.session_locks import Session
from twinbus.entities.session_part import SessionPart
from twinbus.entities.state import Grants
from twinbus.entities.transitions import has_expired
from twinbus.errors import (
    ArgumentOutOfRange,
    InvalidOperation,
    MessageLockLost,
    ServiceError,
    SessionLockLost,
)
from twinbus.limits import SESSION_ID_CHARS_MAX

SESSION_LOST: Final = (
    "The session lock has expired or was released, or another receiver has the session. Accept "
    "the session again."
)


class SessionedQueue(Queue):
    """A queue with sessions, as everybody but their holders has it."""

    __slots__ = ("_lost", "_sessions")

    def __init__(
        self,
        entity_id: int,
        name: str,
        description: QueueDescription,
        facts: list[Fact],
        grants: Grants,
    ) -> None:
        super().__init__(entity_id, name, description, facts, grants)
        self._sessions = SessionPart()
        self._main = self._sessions
        self._lost: list[tuple[str, int]] = []  # session id and grant

    # -- in, out and settled --------------------------------------------------------------------

    def _check_ids(self, messages: list[NewMessage]) -> None:
        for new in messages:
            if new.session_id is None:
                if new.is_ping:
                    continue
                raise InvalidOperation(
                    f"'{self.shown_name}' requires sessions: every message must have a session id."
                )
            check_session_id(new.session_id)

    def enqueue(self, messages: list[NewMessage], now: Now) -> list[Message]:
        stored = super().enqueue(messages, now)
        for message in stored:
            if message.state != SCHEDULED:
                self._sessions.index(message)
        return stored

    def publish(self, sequence_number: int) -> None:
        super().publish(sequence_number)
        self._sessions.publish(self.published)

    def has_ready(self, subqueue: int) -> bool:
        return subqueue != MAIN and super().has_ready(subqueue)

    def take_ready(self, subqueue: int, count: int, now: Now) -> list[Message]:
        if subqueue == MAIN:
            raise self._needs_session()
        return super().take_ready(subqueue, count, now)

    def settle(
        self,
        subqueue: int,
        locks: list[Lock],
        outcome: int,
        overlay: Overlay | None,
        now: Now,
        delay_ms: int = 0,
    ) -> list[ServiceError | None] | None:
        if subqueue != MAIN:
            return super().settle(subqueue, locks, outcome, overlay, now, delay_ms)
        self._check_outcome(subqueue, outcome, delay_ms)
        errors = [self._lock_error(lock, now) for lock in locks]
        held = [lock for lock, error in zip(locks, errors, strict=True) if error is None]
        if len(held) == len(locks):
            return super().settle(subqueue, locks, outcome, overlay, now)
        if held:
            self.settle(subqueue, held, outcome, overlay, now)
        return errors

    def check_settle(self, command: Settle, now: Now) -> None:
        if command.subqueue == MAIN:
            for lock in command.locks:
                error = self._lock_error(lock, now)
                if error is not None:
                    raise error
        super().check_settle(command, now)

    def _check_outcome(self, subqueue: int, outcome: int, delay_ms: int) -> None:
        if outcome == ABANDON and delay_ms > 0:
            raise InvalidOperation(
                "A message of a session cannot be made to wait: those behind it would overtake it."
            )
        super()._check_outcome(subqueue, outcome, delay_ms)

    def _lock_error(self, lock: Lock, now: Now) -> ServiceError | None:
        number, grant = lock
        message = self._main.table.get(number)
        if message is None:
            return MessageLockLost(LOCK_LOST)
        session = self._sessions.sessions[message.session_id or ""]
        # A lock older than the session's present one was given under one that is lost.
        if session.locked_until_ms <= now.mono_ms or grant < session.grant:
            return SessionLockLost(SESSION_LOST)
        return None if message.grant == grant else MessageLockLost(LOCK_LOST)

    def renew(self, subqueue: int, locks: list[Lock], now: Now) -> list[int]:
        if subqueue == MAIN:
            raise InvalidOperation(
                "The lock of a message inside a session cannot be renewed; renew the session's."
            )
        return super().renew(subqueue, locks, now)

    def _lock(self, subqueue: int, messages: list[Message], now: Now) -> None:
        if subqueue != MAIN:
            super()._lock(subqueue, messages, now)
            return
        grant = self.grants.next
        for message in messages:
            self._sessions.hold(message, grant)
            grant += 1
        self.grants.next = grant

    def _needs_session(self) -> InvalidOperation:
        return InvalidOperation(
            f"'{self.shown_name}' requires sessions: receive from it by accepting a session."
        )

    # -- time -----------------------------------------------------------------------------------

    def tick(self, now: Now) -> None:
        super().tick(now)
        session = self._sessions.lock_ends.take_ended(now.mono_ms)
        while session is not None:
            self._lose(session, now)
            session = self._sessions.lock_ends.take_ended(now.mono_ms)

    def next_due_ms(self, now: Now) -> int:
        due_ms = super().next_due_ms(now)
        end_ms = self._sessions.lock_ends.next_ms()
        if end_ms == NEVER_MS:
            return due_ms
        left_ms = max(0, end_ms - now.mono_ms)
        return left_ms if due_ms < 0 else min(due_ms, left_ms)

    # -- the end of a session lock --------------------------------------------------------------

    def take_lost(self) -> list[tuple[str, int]]:
        lost = self._lost
        self._lost = []
        return lost

    def _lose(self, session: Session, now: Now) -> None:
        self._lost.append((session.session_id, session.grant))
        self._end(session, ABANDON, now)

    def _end(self, session: Session, outcome: int, now: Now) -> None:
        """Nobody holds the session any more; what was handed out comes back."""
        held = list((session.held or {}).values())
        self._sessions.free_session(session)
        if outcome == ABANDON:
            for message in held:
                self._give_back(MAIN, message, ABANDON, None, now)
        else:
            self._take_back(held, now)
        self._sessions.forget_idle(session)

    def _take_back(self, messages: list[Message], now: Now) -> None:
        """Messages are free as if they had never been handed out: there is no fact to state."""
        expired: list[Message] = []
        for message in messages:
            self._sessions.unlock(message, message.state)
            if has_expired(message, now):
                expired.append(message)
            elif message.state == ACTIVE and message.expires_ms != NEVER_MS:
                self._sessions.table.watch_expiry(message)
        if expired:
            self._expire(expired)

    # -- rebuilding -----------------------------------------------------------------------------

    def restore(self, message: Message, subqueue: int, now: Now) -> None:
        if subqueue == MAIN and message.grant != 0:
            self.grants.next = max(self.grants.next, message.grant + 1)
            message.grant = 0  # whoever held the session is gone
        super().restore(message, subqueue, now)

    def replay(self, fact: Fact, now: Now) -> None:
        if isinstance(fact, SessionStateSet):
            session = self._sessions.open(fact.session_id)
            self._sessions.set_state(session, fact.state, fact.updated_ms)
        else:
            super().replay(fact, now)

    def _replay_locked(self, fact: Locked, now: Now) -> None:
        if fact.subqueue != MAIN:
            super()._replay_locked(fact, now)

    def _seen(self, number: int) -> None:
        super()._seen(number)
        self._sessions.publish(self.published)


def check_session_id(session_id: str) -> None:
    """Any text up to the limit is a session id, the empty one included."""
    if len(session_id) > SESSION_ID_CHARS_MAX:
        raise ArgumentOutOfRange(
            f"The session id has {len(session_id)} characters; allowed are {SESSION_ID_CHARS_MAX}."
        )
