"""A queue whose messages belong to sessions, each held by one receiver at a time.

Inside a session the order is strict: a message that comes back is delivered before later ones.
Here is what the holder of a session may do; what sessions change for every other command, and for
locks, is in sessioned_queue.py.

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
    Peek,
    ReceiveDeferred,
    RenewSession,
    SetSessionState,
)
from twinbus.entities.facts import MAIN, SessionStateSet
from twinbus.entities.message import Message
from twinbus.entities.session_locks import Session, SessionLock
from twinbus.entities.sessioned_queue import SESSION_LOST, SessionedQueue, check_session_id
from twinbus.entities.transitions import TRANSITIONS_MAX, has_expired
from twinbus.errors import (
    ArgumentOutOfRange,
    InvalidOperation,
    MessageNotFound,
    MessageSizeExceeded,
    SessionCannotBeLocked,
    SessionLockLost,
)
from twinbus.limits import PAGE_COUNT_MAX, SESSION_STATE_BYTES_MAX

# What clients send for "any session": 9999-12-31T24:00:00Z, beyond every date of theirs.
ANY_TIME_MS: Final = 253_402_300_800_000


class SessionQueue(SessionedQueue):
    """A queue or subscription that requires sessions."""

    __slots__ = ()

    # -- holding a session ----------------------------------------------------------------------

    def check_session(self, subqueue: int, session: SessionLock | None, now: Now) -> None:
        if subqueue != MAIN:  # dead letters are read without
            super().check_session(subqueue, session, now)
        elif session is None:
            raise InvalidOperation(
                f"'{self.shown_name}' requires sessions: a receiver that accepts no session cannot "
                "receive from it."
            )
        else:
            # If the lock has run out on its way here, nobody would tell the receiver any more.
            self.held_session(session.session_id, session.grant, now)

    def check_has_sessions(self) -> None:
        """It has."""

    def accept_session(self, session_id: str | None, now: Now) -> SessionLock | None:
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
            self._sessions.list_if_ready(session)
        return None  # the next tick expires more

    def take_over(self, session_id: str, grant: int, now: Now) -> SessionLock:
        return _lock_of(self.held_session(session_id, grant, now), now)

    def release_session(self, session_id: str, grant: int, now: Now) -> None:
        session = self._sessions.sessions.get(session_id)
        if session is None or session.grant != grant:
            return
        if session.locked_until_ms <= now.mono_ms:
            self._end(session, ABANDON, now)
        else:
            self._end(session, RELEASE, now)

    def renew_session(self, session_id: str, grant: int, now: Now) -> int:
        """Let the lock run anew from now, with those of all messages; until when, in UTC."""
        session = self.held_session(session_id, grant, now)
        duration_ms = self.description.lock_duration_ms
        self._sessions.lock_session(session, grant, now.mono_ms + duration_ms)
        return now.utc_ms + duration_ms

    def held_session(self, session_id: str, grant: int, now: Now) -> Session:
        """The session; whoever does not hold it any more is refused."""
        session = self._sessions.sessions.get(session_id)
        if (
            session is None
            or session.grant == 0
            or session.grant != grant
            or session.locked_until_ms <= now.mono_ms
        ):
            raise SessionLockLost(SESSION_LOST)
        return session

    # -- state ----------------------------------------------------------------------------------

    def session_state(self, session_id: str, grant: int, now: Now) -> bytes | None:
        """What the session's holders have left for each other."""
        return self.held_session(session_id, grant, now).state

    def set_session_state(self, session_id: str, grant: int, state: bytes | None, now: Now) -> None:
        """Keep this state, also when the session has no more messages; None clears it."""
        session = self.held_session(session_id, grant, now)
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
        session = self._sessions.sessions.get(session_id)
        if session is None or self._receive_disabled:
            return False
        return self._sessions.has_ready_of(session)

    def locked_until_utc_ms(self, session_id: str, now: Now) -> int:
        return _lock_of(self._sessions.open(session_id), now).locked_until_utc_ms

    def take_stirred(self) -> list[str]:
        stirred = list(self._sessions.stirred)
        self._sessions.stirred.clear()
        return stirred

    def has_available(self) -> bool:
        return not self._receive_disabled and self._sessions.has_available()

    def lock_next_of(self, session_id: str, grant: int, count: int, now: Now) -> list[Message]:
        messages = self._take_ready_of(session_id, grant, count, now)
        if messages:
            self._lock(MAIN, messages, now)
        return messages

    def take_next_of(self, session_id: str, grant: int, count: int, now: Now) -> list[Message]:
        messages = self._take_ready_of(session_id, grant, count, now)
        if messages:
            self._remove(MAIN, messages)
        return messages

    def _take_ready_of(self, session_id: str, grant: int, count: int, now: Now) -> list[Message]:
        self.check_receivable()
        session = self.held_session(session_id, grant, now)
        self.accessed_utc_ms = now.utc_ms
        expired: list[Message] = []
        messages = self._sessions.take_ready_of(
            session, count, now.utc_ms, expired, TRANSITIONS_MAX
        )
        if expired:
            self._expire(expired)
        return messages

    def receive_deferred(
        self, subqueue: int, sequence_numbers: list[int], receive_mode: int, now: Now
    ) -> list[Message]:
        if subqueue == MAIN:
            raise self._needs_session()
        return super().receive_deferred(subqueue, sequence_numbers, receive_mode, now)

    def receive_deferred_of(
        self, session_id: str, grant: int, sequence_numbers: list[int], receive_mode: int, now: Now
    ) -> list[Message]:
        """Receive deferred messages of a held session by number, all or none."""
        self.held_session(session_id, grant, now)
        for number in sequence_numbers:
            message = self._main.table.get(number)
            if message is not None and message.session_id != session_id:
                raise MessageNotFound(
                    f"No deferred message of this session has the sequence number {number}."
                )
        return super().receive_deferred(MAIN, sequence_numbers, receive_mode, now)

    def peek_session(self, session_id: str, start: int, count: int, now: Now) -> list[Message]:
        count = self._peek_count(count)
        session = self._sessions.sessions.get(session_id)
        seen: list[Message] = []
        number = start
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

    # -- the door for commands --------------------------------------------------------------------

    def _apply_other(self, command: Command, now: Now) -> object:
        """What is about a session is decided here, all else as in any queue."""
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
        return super()._apply_other(command, now)


def _lock_of(session: Session, now: Now) -> SessionLock:
    until_ms = session.locked_until_ms
    until_utc_ms = now.utc_ms + until_ms - now.mono_ms
    return SessionLock(session.session_id, session.grant, until_ms, until_utc_ms)
