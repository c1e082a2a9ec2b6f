"""What is known of one session, how its holder has it, and when the locks of sessions end."""

from heapq import heapify, heappop, heappush

from twinbus.entities.message import NEVER_MS, Message


class Session:
    """What is known of one session."""

    __slots__ = (
        "apart",
        "end_ms",
        "grant",
        "held",
        "locked_until_ms",
        "message_count",
        "place",
        "ready",
        "session_id",
        "state",
        "updated_ms",
    )

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.message_count = 0  # in the main part, in whatever state
        self.ready: list[int] = []  # heap of the numbers of free messages, lazily deleted
        # Most sessions have neither, so these are made when needed.
        self.held: dict[int, Message] | None = None  # handed out to the holder, by number
        self.apart: set[int] | None = None  # numbers of deferred and scheduled messages
        self.state: bytes | None = None
        self.updated_ms = 0  # UTC; when the state was last set
        self.grant = 0  # of the lock by which it is held; 0 = free
        self.locked_until_ms = 0  # monotonic; meaningful while grant != 0
        self.place = 0  # its entry among the available ones; 0 = not among them
        self.end_ms = NEVER_MS  # its entry among the ends of locks


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


class SessionLockEnds:
    """Held sessions by when their locks end; entries are deleted lazily."""

    __slots__ = ("_ends", "_order", "held_count")

    def __init__(self) -> None:
        self._ends: list[tuple[int, int, Session]] = []  # heap of (when, tie-break, session)
        self._order = 0
        self.held_count = 0

    def expect(self, session: Session) -> None:
        """One entry a session, however often it is renewed."""
        session.end_ms = session.locked_until_ms
        self._order += 1
        heappush(self._ends, (session.end_ms, self._order, session))
        if len(self._ends) > 2 * self.held_count + 64:
            live = [e for e in self._ends if e[2].end_ms == e[0] and e[2].grant != 0]
            for _, _, stale in self._ends:
                if stale.grant == 0:
                    stale.end_ms = NEVER_MS
            heapify(live)
            self._ends = live

    def next_ms(self) -> int:
        """When the next session lock may end; NEVER_MS when none is held."""
        ends = self._ends
        while ends:
            when, _, session = ends[0]
            if session.end_ms == when and session.grant != 0:
                return when
            heappop(ends)
            if session.end_ms == when:
                session.end_ms = NEVER_MS
        return NEVER_MS

    def take_ended(self, mono_ms: int) -> Session | None:
        """A session whose lock has ended, if there is one; it has to be freed."""
        while self.next_ms() <= mono_ms:
            session = heappop(self._ends)[2]
            session.end_ms = NEVER_MS
            if session.locked_until_ms <= mono_ms:
                return session
            self.expect(session)  # it was renewed meanwhile
        return None
