"""The main part of a session queue: its messages by session, and which session comes next.

A session is known while it has messages, a state or a holder; after that nothing of it is kept, so
that a queue through which a billion session ids have gone is as small as an empty one.  What a
session needs for delivery is a heap of the numbers of its free messages: lowest first is the strict
order inside a session, and a message that comes back goes in front of the later ones by itself.

Available sessions wait in the order in which they became available.  Entries of the queues and
heaps here are deleted lazily; each is rebuilt when most of it is stale.

This part never decides what becomes of a message or of a lock and never states a fact.
"""

from collections import deque
from heapq import heappop, heappush
from typing import Final

from twinbus.entities.message import ACTIVE, NEVER_MS, Message
from twinbus.entities.session_locks import Session, SessionLockEnds
from twinbus.entities.subqueue import SubQueue

# A session with fewer messages than one in so many is peeked at by its own numbers, which have to
# be sorted; one with more by walking along the table.
PEEK_DENSITY: Final = 16


class SessionPart(SubQueue):
    """Messages by session."""

    __slots__ = (
        "_available",
        "_available_count",
        "_order",
        "_published",
        "_unpublished",
        "lock_ends",
        "sessions",
        "stirred",
    )

    def __init__(self) -> None:
        super().__init__()
        self.sessions: dict[str, Session] = {}
        self.stirred: dict[str, None] = {}  # held sessions with something new to hand out
        self._published = 0
        self._unpublished: deque[tuple[int, Session]] = deque()  # in order of their numbers
        self._available: deque[tuple[int, Session]] = deque()  # (place, session)
        self._available_count = 0
        self._order = 0
        self.lock_ends = SessionLockEnds()

    # -- in and out -----------------------------------------------------------------------------

    def put(self, message: Message) -> None:
        super().put(message)
        self.index(message)

    def index(self, message: Message) -> None:
        """Count a message, which is in the table already, to its session."""
        session = self.open(message.session_id or "")
        message.session_id = session.session_id  # one string for all of them
        session.message_count += 1
        if message.state == ACTIVE:
            self._make_ready(session, message.sequence_number)
        else:
            _put_apart(session, message.sequence_number)

    def remove(self, message: Message) -> None:
        super().remove(message)
        self._leave(message)

    def forget(self, taken: list[Message | None]) -> list[int]:
        numbers = super().forget(taken)
        for message in taken:
            if message is not None:
                self._leave(message)
        return numbers

    def _leave(self, message: Message) -> None:
        session = self.sessions[message.session_id or ""]
        session.message_count -= 1
        _let_go(session, message.sequence_number)
        self.forget_idle(session)

    def hold(self, message: Message, grant: int) -> None:
        """Hand a message out to the holder of its session, for as long as that holds it."""
        message.grant = grant
        message.locked_until_ms = NEVER_MS
        session = self.sessions[message.session_id or ""]
        if session.held is None:
            session.held = {}
        session.held[message.sequence_number] = message

    def unlock(self, message: Message, state: int) -> None:
        super().unlock(message, state)
        session = self.sessions[message.session_id or ""]
        _let_go(session, message.sequence_number)
        if state == ACTIVE:
            self._make_ready(session, message.sequence_number)
        else:
            _put_apart(session, message.sequence_number)

    # -- sessions -------------------------------------------------------------------------------

    def open(self, session_id: str) -> Session:
        """The session of this id, known from now on."""
        session = self.sessions.get(session_id)
        if session is None:
            session = self.sessions[session_id] = Session(session_id)
        return session

    def forget_idle(self, session: Session) -> None:
        """Forget a session of which there is nothing to know."""
        if session.message_count == 0 and session.grant == 0 and session.state is None:
            self._delist(session)
            self.sessions.pop(session.session_id, None)

    def set_state(self, session: Session, state: bytes | None, updated_ms: int) -> None:
        """A state takes room like a message."""
        self.size_bytes += len(state or b"") - len(session.state or b"")
        session.state = state
        session.updated_ms = updated_ms
        self.forget_idle(session)

    def lock_session(self, session: Session, grant: int, until_ms: int) -> None:
        """The session has a holder (or the same one for longer)."""
        if session.grant == 0:
            self.lock_ends.held_count += 1
            self._delist(session)
        session.grant = grant
        session.locked_until_ms = until_ms
        if until_ms < session.end_ms:
            self.lock_ends.expect(session)

    def free_session(self, session: Session) -> None:
        """The session has no holder any more.  Whatever was handed out has to be unlocked next."""
        self.lock_ends.held_count -= 1
        self.stirred.pop(session.session_id, None)
        session.grant = 0
        session.locked_until_ms = 0
        self.list_if_ready(session)

    # -- delivery -------------------------------------------------------------------------------

    def publish(self, published: int) -> None:
        """Everything up to this number is durable: sessions may have become available."""
        self._published = published
        unpublished = self._unpublished
        while unpublished and unpublished[0][0] <= published:
            self._stir(unpublished.popleft()[1])

    def take_ready_of(
        self, session: Session, count: int, utc_ms: int, expired: list[Message], expired_max: int
    ) -> list[Message]:
        """The session's next free messages.  The caller locks or removes each of them at once."""
        taken: list[Message] = []
        last: Message | None = None
        while len(taken) < count and len(expired) < expired_max:
            message = self._first_ready(session)
            if message is None:
                break
            heappop(session.ready)
            if message is last:
                continue  # it came back twice
            last = message
            if message.expires_ms <= utc_ms:
                expired.append(message)
            else:
                taken.append(message)
        return taken

    def find_expired_of(
        self, session: Session, utc_ms: int, expired: list[Message], expired_max: int
    ) -> bool:
        """Is there more in this session than messages that have expired?  Finds those."""
        while len(expired) < expired_max:
            message = self._first_ready(session)
            if message is None or message.expires_ms > utc_ms:
                return message is not None
            heappop(session.ready)
            if not expired or expired[-1] is not message:
                expired.append(message)
        return False

    def has_ready_of(self, session: Session) -> bool:
        """Has this session a free message?"""
        return self._first_ready(session) is not None

    def has_available(self) -> bool:
        """Is a session listed as available?"""
        return self._available_count > 0

    def take_available(self) -> Session | None:
        """The session that has been available for longest; it has to be locked or listed again."""
        available = self._available
        while available:
            place, session = available.popleft()
            if session.place == place:
                self._delist(session)
                if self.has_ready_of(session):
                    return session
        return None

    def _first_ready(self, session: Session) -> Message | None:
        ready = session.ready
        while ready and ready[0] <= self._published:
            message = self.table.get(ready[0])
            if message is not None and message.state == ACTIVE and message.grant == 0:
                return message
            heappop(ready)
        return None

    def _make_ready(self, session: Session, number: int) -> None:
        ready = session.ready
        heappush(ready, number)
        if len(ready) > 2 * session.message_count + 8:
            session.ready = self._without_stale(ready)
        if number <= self._published:
            self._stir(session)
        else:
            self._unpublished.append((number, session))

    def _without_stale(self, numbers: list[int]) -> list[int]:
        live: set[int] = set()
        for number in numbers:
            message = self.table.get(number)
            if message is not None and message.state == ACTIVE and message.grant == 0:
                live.add(number)
        return sorted(live)  # a sorted list is a heap

    def _stir(self, session: Session) -> None:
        if session.grant != 0:
            self.stirred[session.session_id] = None
        else:
            self.list_if_ready(session)

    def list_if_ready(self, session: Session) -> None:
        """A session that nobody has locked goes to the end of those to be had."""
        if session.place != 0 or session.grant != 0 or not self.has_ready_of(session):
            return
        self._order += 1
        session.place = self._order
        self._available.append((self._order, session))
        self._available_count += 1
        if len(self._available) > 2 * self._available_count + 64:
            live = [entry for entry in self._available if entry[1].place == entry[0]]
            self._available = deque(live)

    def _delist(self, session: Session) -> None:
        if session.place != 0:
            session.place = 0
            self._available_count -= 1

    # -- looking --------------------------------------------------------------------------------

    def messages_of(self, session: Session, number: int, count: int) -> list[Message]:
        """The session's messages from this number on, in order and whatever their state.

        `count` at most; fewer than that means that there are no more.
        """
        if session.message_count * PEEK_DENSITY > self.table.count:
            return self._walk_for(session, number, count)
        numbers = set(session.ready)
        numbers.update(session.held or ())
        numbers.update(session.apart or ())
        found: list[Message] = []
        for each in sorted([each for each in numbers if each >= number]):
            message = self.table.get(each)
            if message is not None and message.session_id == session.session_id:
                found.append(message)
                if len(found) == count:
                    break
        return found

    def _walk_for(self, session: Session, number: int, count: int) -> list[Message]:
        found: list[Message] = []
        while len(found) < count:
            run = self.table.run_from(number, count)
            if not run:
                break
            for message in run:
                if message.session_id == session.session_id and len(found) < count:
                    found.append(message)
            number = run[-1].sequence_number + 1
        return found


def _put_apart(session: Session, number: int) -> None:
    if session.apart is None:
        session.apart = set()
    session.apart.add(number)


def _let_go(session: Session, number: int) -> None:
    """The message is no longer handed out, deferred or scheduled."""
    if session.held is not None:
        session.held.pop(number, None)
        if not session.held:
            session.held = None
    if session.apart is not None:
        session.apart.discard(number)
        if not session.apart:
            session.apart = None
