"""A queue on a stage: clocks that the test moves, a log of facts, and crashes.

`told()` gives what the queue stated since the last question as plain tuples, so that a test reads
as commands and expected facts.  `commit()` does what the store does: it writes facts as they are
at that moment and publishes.  `rebuilt()` is the queue that a restart would find.
"""

from twinbus.clock import Now
from twinbus.entities.commands import Lock
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.facts import (
    DEAD_LETTER,
    MAIN,
    TRANSFER_DEAD_LETTER,
    Activated,
    DeadLettered,
    Fact,
    Locked,
    Removed,
    Rescheduled,
    SessionStateSet,
    Stored,
    Unlocked,
)
from twinbus.entities.kinds import make_queue
from twinbus.entities.message import NEVER_MS, Message, NewMessage, Overlay
from twinbus.entities.queue import Queue
from twinbus.entities.session_locks import SessionLock
from twinbus.entities.sessions import SessionQueue
from twinbus.entities.state import Grants

UTC_MS = 1_800_000_000_000
MONO_MS = 50_000


class Scene:
    """One queue, its clocks and its log."""

    def __init__(self, description: QueueDescription | None = None) -> None:
        self.now = Now(UTC_MS, MONO_MS)
        self.facts: list[Fact] = []
        self.log: list[Fact] = []
        self.grants = Grants()
        self.queue = self._new_queue(description or QueueDescription())
        self._told = 0

    def _new_queue(self, description: QueueDescription) -> Queue:
        return make_queue("queue", 7, "orders", description, self.facts, self.grants)

    def advance(self, milliseconds: int, utc_jump_ms: int = 0) -> None:
        """Time passes on both clocks; UTC may jump on top of it."""
        self.now = Now(
            self.now.utc_ms + milliseconds + utc_jump_ms, self.now.mono_ms + milliseconds
        )

    def tick(self) -> None:
        """Tick until nothing is due."""
        self.queue.tick(self.now)
        while self.queue.next_due_ms(self.now) == 0:
            self.queue.tick(self.now)

    def send(self, *messages: NewMessage) -> list[int]:
        """Send, and make it durable."""
        numbers = self.queue.send(list(messages), self.now)
        self.commit()
        return numbers

    def send_bodies(self, *bodies: bytes) -> list[int]:
        return self.send(*[NewMessage(body) for body in bodies])

    def lock(self, count: int = 1, subqueue: int = MAIN) -> list[Lock]:
        """Lock the next messages; returns their locks."""
        return locks_of(self.queue.lock_next(subqueue, count, self.now))

    def settle(
        self, locks: list[Lock], outcome: int, overlay: Overlay | None = None, subqueue: int = MAIN
    ) -> list[str | None]:
        """Settle; returns the name of the error for each lock."""
        results = self.queue.settle(subqueue, locks, outcome, overlay, self.now)
        if results is None:
            return [None] * len(locks)
        return [None if error is None else type(error).__name__ for error in results]

    def peek(self, subqueue: int = MAIN, start: int = 1, count: int = 1_000) -> list[int]:
        return numbers_of(self.queue.peek(subqueue, start, count, self.now))

    def commit(self) -> None:
        """What the store does: write the facts as they stand now, and publish."""
        self.log += [copy_fact(fact) for fact in self.facts]
        del self.facts[:]
        self._told = 0
        self.queue.publish(self.queue.last_sequence_number)

    def told(self) -> list[tuple[object, ...]]:
        """The facts stated since the last question or commit."""
        new = self.facts[self._told :]
        self._told = len(self.facts)
        return [describe(fact) for fact in new]

    def rebuilt(self) -> Queue:
        """The queue that a restart would find, locks running anew from now."""
        queue = make_queue("queue", 7, "orders", self.queue.description, [], Grants())
        for fact in self.log:
            queue.replay(copy_fact(fact), self.now)
        return queue

    def crash(self) -> None:
        """What was not committed is lost."""
        del self.facts[:]
        self._told = 0
        queue = self._new_queue(self.queue.description)
        for fact in self.log:
            queue.replay(copy_fact(fact), self.now)
        self.queue = queue


class SessionScene(Scene):
    """The same with a queue that requires sessions."""

    def __init__(self, description: QueueDescription | None = None) -> None:
        super().__init__(description or QueueDescription(requires_session=True))

    @property
    def sessions(self) -> SessionQueue:
        assert isinstance(self.queue, SessionQueue)
        return self.queue

    def send_to(self, session_id: str, *bodies: bytes) -> list[int]:
        """Send to a session, and make it durable."""
        return self.send(*[NewMessage(body, session_id=session_id) for body in bodies])

    def accept(self, session_id: str | None = None) -> SessionLock:
        """Accept a session that must be there."""
        lock = self.sessions.accept_session(session_id, self.now)
        assert lock is not None
        return lock

    def lock_of(self, session: SessionLock, count: int = 1) -> list[Lock]:
        """Lock the next messages of a session; returns their locks."""
        queue = self.sessions
        return locks_of(queue.lock_next_of(session.session_id, session.grant, count, self.now))

    def release(self, session: SessionLock) -> None:
        self.sessions.release_session(session.session_id, session.grant, self.now)


def locks_of(messages: list[Message]) -> list[Lock]:
    return [(message.sequence_number, message.grant) for message in messages]


def numbers_of(messages: list[Message]) -> list[int]:
    return [message.sequence_number for message in messages]


def texts(overlay: Overlay | None) -> tuple[object, ...] | None:
    if overlay is None:
        return None
    return (overlay.reason, overlay.description, overlay.source, overlay.properties)


def describe(fact: Fact) -> tuple[object, ...]:
    """A fact as a tuple, without the entity's number."""
    assert fact.entity_id == 7
    if isinstance(fact, Stored):
        return ("Stored", fact.subqueue, numbers_of(fact.messages))
    if isinstance(fact, Removed):
        return ("Removed", fact.subqueue, fact.sequence_numbers)
    if isinstance(fact, Locked):
        return ("Locked", fact.subqueue, fact.first_grant, fact.sequence_numbers)
    if isinstance(fact, Unlocked):
        overlay = texts(fact.overlay)
        count = fact.delivery_count
        return ("Unlocked", fact.subqueue, fact.sequence_number, count, fact.state, overlay)
    if isinstance(fact, DeadLettered):
        overlay = texts(fact.overlay)
        told = ("DeadLettered", fact.sequence_number, fact.delivery_count, overlay)
        return told if fact.subqueue == DEAD_LETTER else (*told, fact.subqueue)
    if isinstance(fact, Rescheduled):
        overlay = texts(fact.overlay)
        return ("Rescheduled", fact.sequence_number, fact.delivery_count, fact.due_ms, overlay)
    if isinstance(fact, SessionStateSet):
        return ("SessionStateSet", fact.session_id, fact.state, fact.updated_ms)
    assert isinstance(fact, Activated)
    return (
        "Activated",
        fact.sequence_number,
        fact.new_sequence_number,
        fact.enqueued_ms,
        fact.expires_ms,
    )


def copy_message(message: Message) -> Message:
    """What a decoder would make of the encoded message; the end of a lock is not written."""
    copy = Message(
        message.sequence_number,
        message.body,
        message.length,
        message.enqueued_ms,
        message.expires_ms,
        message.session_id,
        message.state,
    )
    copy.position = message.position
    copy.delivery_count = message.delivery_count
    copy.grant = message.grant
    copy.overlay = message.overlay
    return copy


def copy_fact(fact: Fact) -> Fact:
    if isinstance(fact, Stored):
        messages = [copy_message(message) for message in fact.messages]
        return Stored(fact.entity_id, fact.subqueue, messages)
    return fact


def message_view(message: Message) -> tuple[object, ...]:
    """All that a restart must keep of a message."""
    return (
        message.sequence_number,
        message.body,
        message.state,
        message.enqueued_ms,
        message.expires_ms,
        message.delivery_count,
        message.grant,
        texts(message.overlay),
        message.session_id,
    )


def overview(queue: Queue) -> dict[str, object]:
    """All that a restart must keep of a queue, unpublished messages included."""
    published = queue.published
    queue.published = NEVER_MS
    parts = [
        [message_view(message) for message in queue.messages_from(subqueue, 1, 1_000_000)]
        for subqueue in (MAIN, DEAD_LETTER, TRANSFER_DEAD_LETTER)
    ]
    queue.published = published
    counts = queue.counts()
    return {
        "main": parts[0],
        "dead_letter": parts[1],
        "transfer_dead_letter": parts[2],
        "last_sequence_number": queue.last_sequence_number,
        "counts": (counts.active, counts.deferred, counts.scheduled, counts.dead_letter),
        "message_count": counts.message_count,
        "size_bytes": counts.size_bytes,
        "session_states": sorted(queue.session_states()) if isinstance(queue, SessionQueue) else [],
    }
