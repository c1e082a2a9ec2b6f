"""A queue whose messages belong to sessions, each held by one receiver at a time.

The main part is read session by session (session_part.py); the dead-letter queues are ordinary.
Inside a session the order is strict: a message that comes back is delivered before later ones.

A session lock, and the locks of messages inside it, are not stated as facts: connections do not
survive a restart, so after one every session is free.  A message handed out stays locked for as
long as its session is held.  When the session lock runs out, everything handed out counts one
delivery more; when the holder closes, nothing does.

This module must never let two holders have a session at once: every use of a session names the
grant of its lock, and grants are never used twice.
"""

from typing import Final

from twinbus.clock import Now
from twinbus.entities.commands import (
    ABANDON,
    RELEASE,
    Command,
    GetSessionState,
    ListSessions,
    Lock,
    Peek,
    ReceiveDeferred,
    RenewSession,
    SetSessionState,
)
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.facts import MAIN, Fact, Locked, SessionStateSet
from twinbus.entities.message import ACTIVE, NEVER_MS, SCHEDULED, Message, NewMessage, Overlay
from twinbus.entities.queue import LOCK_LOST, Queue
from twinbus.entities.session_part import Session, SessionPart
from twinbus.entities.state import Grants
from twinbus.entities.transitions import TRANSITIONS_MAX, has_expired
from twinbus.errors import (
    ArgumentOutOfRange,
    InvalidOperation,
    MessageLockLost,
    MessageNotFound,
    MessageSizeExceeded,
    ServiceError,
    SessionCannotBeLocked,
    SessionLockLost,
)
from twinbus.limits import (
    PAGE_COUNT_MAX,
    PEEK_COUNT_MAX,
    SESSION_ID_CHARS_MAX,
    SESSION_STATE_BYTES_MAX,
)

# What clients send for "any session": 9999-12-31T24:00:00Z, beyond every date of theirs.
ANY_TIME_MS: Final = 253_402_300_800_000

_SESSION_LOST: Final = (
    "The session lock has expired or was released, or another receiver has the session. Accept "
    "the session again."
)


class SessionLock:
    """A session as its holder has it."""

    __slots__ = ("grant", "locked_until_ms", "locked_until_utc_ms", "session_id")

    def __init__(
        self, session_id: str, grant: int, locked_until_ms: int, locked_until_utc_ms: int
    ) -> None:
        self.session_id = session_id
        self.grant = grant
        self.locked_until_ms = locked_until_ms  # monotonic
        self.locked_until_utc_ms = locked_until_utc_ms


class SessionQueue(Queue):
    """A queue or subscription that requires sessions."""

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

    # -- holding a session ----------------------------------------------------------------------

    def accept_session(self, session_id: str | None, now: Now) -> SessionLock | None:
        """Lock this session, or the one that has been available for longest.

        None when no session is available.  One that is named may be new and empty.
        """
        self.check_receivable()
        if session_id is None:
            session = self._next_available(now)
            if session is None:
                return None
        else:
            session = self._free_session(session_id, now)
        self.accessed_utc_ms = now.utc_ms
        grant = self.grants.next
        self.grants.next = grant + 1
        until_ms = now.mono_ms + self.description.lock_duration_ms
        self._sessions.lock_session(session, grant, until_ms)
        return _lock_of(session, now)

    def _free_session(self, session_id: str, now: Now) -> Session:
        check_session_id(session_id)
        session = self._sessions.open(session_id)
        if session.grant != 0:
            if session.locked_until_ms > now.mono_ms:
                raise SessionCannotBeLocked(
                    f"The session '{session_id[:64]}' is held by another receiver; try again when "
                    "it is released, or accept the next available session."
                )
            self._lose(session, now)
            session = self._sessions.open(session_id)
        return session

    def _next_available(self, now: Now) -> Session | None:
        left = TRANSITIONS_MAX
        while left > 0:
            session = self._sessions.take_available()
            if session is None:
                return None
            expired: list[Message] = []
            found = self._sessions.find_expired_of(session, now.utc_ms, expired, left)
            left -= len(expired)
            if expired:
                self._expire(expired)
            if found:
                return session
            self._sessions.list_again(session)
        return None  # the next tick expires more

    def take_over(self, session_id: str, grant: int, now: Now) -> SessionLock:
        """Another receiver goes on under the same lock."""
        return _lock_of(self._held_session(session_id, grant, now), now)

    def check_held(self, session_id: str, grant: int, now: Now) -> None:
        """Refuse whoever does not hold the session any more."""
        self._held_session(session_id, grant, now)

    def release_session(self, session_id: str, grant: int, now: Now) -> None:
        """The holder closes: locks end, delivery counts stay.  Too late, it changes nothing."""
        session = self._sessions.sessions.get(session_id)
        if session is None or session.grant != grant:
            return
        if session.locked_until_ms <= now.mono_ms:
            self._end(session, ABANDON, now)
        else:
            self._end(session, RELEASE, now)

    def renew_session(self, session_id: str, grant: int, now: Now) -> int:
        """Let the lock run anew from now, with those of all messages; until when, in UTC."""
        session = self._held_session(session_id, grant, now)
        duration_ms = self.description.lock_duration_ms
        self._sessions.lock_session(session, grant, now.mono_ms + duration_ms)
        return now.utc_ms + duration_ms

    def take_lost(self) -> list[tuple[str, int]]:
        """Session locks that ran out since the last question, as session id and grant."""
        lost = self._lost
        self._lost = []
        return lost

    def _lose(self, session: Session, now: Now) -> None:
        self._lost.append((session.session_id, session.grant))
        self._end(session, ABANDON, now)

    def _held_session(self, session_id: str, grant: int, now: Now) -> Session:
        session = self._sessions.sessions.get(session_id)
        if (
            session is None
            or session.grant == 0
            or session.grant != grant
            or session.locked_until_ms <= now.mono_ms
        ):
            raise SessionLockLost(_SESSION_LOST)
        return session

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

    # -- state ----------------------------------------------------------------------------------

    def session_state(self, session_id: str, grant: int, now: Now) -> bytes | None:
        """What the session's holders have left for each other."""
        return self._held_session(session_id, grant, now).state

    def set_session_state(self, session_id: str, grant: int, state: bytes | None, now: Now) -> None:
        """Keep this state, also when the session has no more messages; None clears it."""
        session = self._held_session(session_id, grant, now)
        size = len(state or b"")
        if size > SESSION_STATE_BYTES_MAX:
            raise MessageSizeExceeded(
                f"The session state has {size} bytes; allowed are {SESSION_STATE_BYTES_MAX}."
            )
        grown = size - len(session.state or b"")
        if grown > 0 and self.size_bytes() + grown > self._size_bytes_max:
            raise self._quota_exceeded()
        self._sessions.set_state(session, state, now.utc_ms)
        self.facts.append(SessionStateSet(self.entity_id, session_id, state, now.utc_ms))

    def session_states(self) -> list[tuple[str, bytes, int]]:
        """For snapshots: each session that has a state, the state, and when it was set (UTC)."""
        return [
            (session.session_id, session.state, session.updated_ms)
            for session in self._sessions.sessions.values()
            if session.state is not None
        ]

    def list_sessions(self, updated_since_ms: int, skip: int, top: int) -> list[str]:
        """Ids of the sessions with messages or a state, sorted, a page of them.

        A time asks for those whose state was set after it.
        """
        if skip < 0 or top < 0:
            raise ArgumentOutOfRange("'skip' and 'top' must not be negative.")
        found: list[str] = []
        for session in self._sessions.sessions.values():
            if updated_since_ms >= ANY_TIME_MS:
                listed = session.message_count > 0 or session.state is not None
            else:
                listed = session.state is not None and session.updated_ms > updated_since_ms
            if listed:
                found.append(session.session_id)
        return sorted(found)[skip : skip + min(top, PAGE_COUNT_MAX)]

    # -- receiving from a session ---------------------------------------------------------------

    def session_ready(self, session_id: str) -> bool:
        """Would `lock_next_of` find something (or at least something that has expired)?"""
        session = self._sessions.sessions.get(session_id)
        if session is None or self._receive_disabled:
            return False
        return self._sessions.has_ready_of(session)

    def locked_until_utc_ms(self, session_id: str, now: Now) -> int:
        """Until when a held session, and what was handed out from it, is locked."""
        return _lock_of(self._sessions.open(session_id), now).locked_until_utc_ms

    def take_stirred(self) -> list[str]:
        """Held sessions that have got something to hand out since the last question."""
        stirred = list(self._sessions.stirred)
        self._sessions.stirred.clear()
        return stirred

    def has_available(self) -> bool:
        """May a session be available?  Only `accept_session` knows for certain."""
        return not self._receive_disabled and self._sessions.has_available()

    def lock_next_of(self, session_id: str, grant: int, count: int, now: Now) -> list[Message]:
        """Lock the next free messages of a held session, `count` at most."""
        messages = self._take_ready_of(session_id, grant, count, now)
        if messages:
            self._lock(MAIN, messages, now)
        return messages

    def take_next_of(self, session_id: str, grant: int, count: int, now: Now) -> list[Message]:
        """Receive and delete from a held session."""
        messages = self._take_ready_of(session_id, grant, count, now)
        if messages:
            self._remove(MAIN, messages)
        return messages

    def _take_ready_of(self, session_id: str, grant: int, count: int, now: Now) -> list[Message]:
        self.check_receivable()
        session = self._held_session(session_id, grant, now)
        self.accessed_utc_ms = now.utc_ms
        expired: list[Message] = []
        messages = self._sessions.take_ready_of(
            session, count, now.utc_ms, expired, TRANSITIONS_MAX
        )
        if expired:
            self._expire(expired)
        return messages

    def receive_deferred_of(
        self,
        session_id: str,
        grant: int,
        sequence_numbers: list[int],
        receive_mode: int,
        now: Now,
    ) -> list[Message]:
        """Receive deferred messages of a held session by number, all or none."""
        self._held_session(session_id, grant, now)
        for number in sequence_numbers:
            message = self._main.table.get(number)
            if message is not None and message.session_id != session_id:
                raise MessageNotFound(
                    f"No deferred message of this session has the sequence number {number}."
                )
        return super().receive_deferred(MAIN, sequence_numbers, receive_mode, now)

    def peek_session(
        self, session_id: str, from_sequence_number: int, count: int, now: Now
    ) -> list[Message]:
        """Look at the messages of one session; nobody needs to hold it for that."""
        self.check_receivable()
        if count < 1:
            raise ArgumentOutOfRange(f"A peek asks for at least 1 message, not {count}.")
        session = self._sessions.sessions.get(session_id)
        seen: list[Message] = []
        count = min(count, PEEK_COUNT_MAX)
        number = from_sequence_number
        while session is not None and len(seen) < count:
            found = self._sessions.messages_of(session, number, count)
            for message in found:
                if message.sequence_number > self.published or len(seen) == count:
                    return seen
                if not has_expired(message, now):
                    seen.append(message)
            if len(found) < count:
                break
            number = found[-1].sequence_number + 1
        return seen

    # -- what is different about the main part --------------------------------------------------

    def check_send(self, messages: list[NewMessage], now: Now) -> None:
        super().check_send(messages, now)
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

    def receive_deferred(
        self, subqueue: int, sequence_numbers: list[int], receive_mode: int, now: Now
    ) -> list[Message]:
        if subqueue == MAIN:
            raise self._needs_session()
        return super().receive_deferred(subqueue, sequence_numbers, receive_mode, now)

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

    def check_settle(
        self, subqueue: int, locks: list[Lock], outcome: int, now: Now, delay_ms: int = 0
    ) -> None:
        if subqueue == MAIN:
            for lock in locks:
                error = self._lock_error(lock, now)
                if error is not None:
                    raise error
        super().check_settle(subqueue, locks, outcome, now, delay_ms)

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
            return SessionLockLost(_SESSION_LOST)
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

    # -- time and any command -------------------------------------------------------------------

    def tick(self, now: Now) -> None:
        super().tick(now)
        session = self._sessions.take_ended(now.mono_ms)
        while session is not None:
            self._lose(session, now)
            session = self._sessions.take_ended(now.mono_ms)

    def next_due_ms(self, now: Now) -> int:
        due_ms = super().next_due_ms(now)
        end_ms = self._sessions.next_end_ms()
        if end_ms == NEVER_MS:
            return due_ms
        left_ms = max(0, end_ms - now.mono_ms)
        return left_ms if due_ms < 0 else min(due_ms, left_ms)

    def apply(self, command: Command, now: Now) -> object:
        if isinstance(command, RenewSession):
            return self.renew_session(command.session_id, command.grant, now)
        if isinstance(command, GetSessionState):
            return self.session_state(command.session_id, command.grant, now)
        if isinstance(command, SetSessionState):
            self.set_session_state(command.session_id, command.grant, command.state, now)
            return None
        if isinstance(command, ListSessions):
            return self.list_sessions(command.updated_since_ms, command.skip, command.top)
        if isinstance(command, Peek):
            session_id = command.session_id
            if session_id is not None and command.subqueue == MAIN:
                number = command.from_sequence_number
                return self.peek_session(session_id, number, command.count, now)
        if isinstance(command, ReceiveDeferred):
            session_id = command.session_id
            if session_id is not None and command.subqueue == MAIN:
                numbers, mode = command.sequence_numbers, command.receive_mode
                return self.receive_deferred_of(
                    session_id, command.session_grant, numbers, mode, now
                )
        return super().apply(command, now)

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


def _lock_of(session: Session, now: Now) -> SessionLock:
    until_ms = session.locked_until_ms
    until_utc_ms = now.utc_ms + until_ms - now.mono_ms
    return SessionLock(session.session_id, session.grant, until_ms, until_utc_ms)
