"""A session queue against a naive model, with crashes, jumping clocks and lost locks.

The model keeps a list of records and a dictionary of held sessions, and searches them from end to
end for everything.  Whatever happens, both must show the same messages in the same states, hand out
a session's messages in strict order, and agree about who holds what.  A crash frees every session;
replaying any tail of the facts a second time must change nothing.
"""

import copy
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.property.test_queue_model import LOCK_MS, Lock, Model, Record
from tests.unit.entities.scene import SessionScene, copy_fact, numbers_of, overview
from twinbus.entities.commands import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DEFER,
    PEEK_LOCK,
    RECEIVE_AND_DELETE,
    RELEASE,
    Settle,
)
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.facts import MAIN
from twinbus.entities.message import ACTIVE, DEFERRED, NEVER_MS, SCHEDULED, NewMessage
from twinbus.entities.session_locks import SessionLock
from twinbus.entities.sessions import ANY_TIME_MS
from twinbus.errors import (
    MessageLockLost,
    MessageNotFound,
    ServiceError,
    SessionCannotBeLocked,
    SessionLockLost,
)

pytestmark = pytest.mark.proves("M-4")

IDS = st.sampled_from(["a", "b", "", "ä"])


@dataclass
class Held:
    """A session as the model's holder has it."""

    grant: int
    until_ms: int


@dataclass
class State:
    """The state of a session."""

    value: bytes
    updated_ms: int


@dataclass
class Sessions:
    """What the model knows beside messages."""

    held: dict[str, Held] = field(default_factory=dict)
    states: dict[str, State] = field(default_factory=dict)


class SessionModel(Model):
    """The naive session queue."""

    def __init__(self, delivery_count_max: int, keeps_expired: bool) -> None:
        super().__init__(delivery_count_max, keeps_expired)
        self.sessions = Sessions()

    def free_of(self, session_id: str) -> list[Record]:
        return [record for record in self.free(MAIN) if record.session_id == session_id]

    def available(self, utc_ms: int) -> set[str]:
        """Sessions that nobody holds and that have something to receive."""
        found = {
            str(record.session_id) for record in self.free(MAIN) if not self.expired(record, utc_ms)
        }
        return found - set(self.sessions.held)

    def holds(self, session_id: str, grant: int, mono_ms: int) -> bool:
        held = self.sessions.held.get(session_id)
        return held is not None and held.grant == grant and held.until_ms > mono_ms

    def holds_message(self, lock: Lock, mono_ms: int) -> Record | None:
        record = self.find(MAIN, lock[0])
        if record is None or record.grant == 0 or record.grant != lock[1]:
            return None
        held = self.sessions.held[str(record.session_id)]
        return record if held.until_ms > mono_ms else None

    def end(self, session_id: str, outcome: int, utc_ms: int) -> None:
        del self.sessions.held[session_id]
        for record in list(self.part(MAIN)):
            if record.session_id == session_id and record.grant:
                self.give_back(record, outcome, None, utc_ms)

    def tick(self, utc_ms: int, mono_ms: int) -> None:
        # A message of a held session carries no end of its own: the session's counts.
        for record in self.part(MAIN):
            record.until_ms = NEVER_MS
        super().tick(utc_ms, mono_ms)
        for session_id, held in list(self.sessions.held.items()):
            if held.until_ms <= mono_ms:
                self.end(session_id, ABANDON, utc_ms)

    def crash(self) -> None:
        self.sessions.held.clear()
        for record in self.part(MAIN):
            record.grant = 0

    def overview(self) -> dict[str, object]:
        seen = super().overview()
        states = self.sessions.states
        seen["session_states"] = sorted((k, s.value, s.updated_ms) for k, s in states.items())
        sizes = [len(record.body) for record in self.records]
        seen["size_bytes"] = sum(sizes) + sum(len(s.value) for s in states.values())
        return seen


class SessionQueueAgainstModel(RuleBasedStateMachine):
    """Whatever happens, both agree."""

    @initialize(delivery_count_max=st.integers(1, 4), keeps_expired=st.booleans())
    def begin(self, delivery_count_max: int, keeps_expired: bool) -> None:
        self.scene = SessionScene(
            QueueDescription(
                requires_session=True,
                lock_duration_ms=LOCK_MS,
                max_delivery_count=delivery_count_max,
                dead_lettering_on_message_expiration=keeps_expired,
            )
        )
        self.model = SessionModel(delivery_count_max, keeps_expired)
        self.durable = copy.deepcopy(self.model)
        self.given: list[SessionLock] = [SessionLock("a", 10**9, 0, 0)]  # never given in truth
        self.locks: list[Lock] = [(1, 10**9)]
        self.sent = 0

    def _some_session(self, data: st.DataObject) -> SessionLock:
        """Mostly a session that is held, sometimes any lock that was ever given."""
        held = [each for each in self.given if self._is_held(each)]
        if not held or data.draw(st.integers(0, 5)) == 0:
            held = self.given
        return data.draw(st.sampled_from(held))

    def _is_held(self, lock: SessionLock) -> bool:
        return self.model.holds(lock.session_id, lock.grant, self.scene.now.mono_ms)

    # -- sending --------------------------------------------------------------------------------

    @rule(
        ids=st.lists(IDS, min_size=1, max_size=4),
        ttl_ms=st.sampled_from([NEVER_MS, NEVER_MS, 1, 2_000, 20_000]),
        delay_ms=st.sampled_from([0, 0, 0, 0, 1, 3_000]),
        is_committed=st.sampled_from([True, True, False]),
    )
    def send(self, ids: list[str], ttl_ms: int, delay_ms: int, is_committed: bool) -> None:
        now = self.scene.now
        due_ms = now.utc_ms + delay_ms if delay_ms else 0
        new = []
        for session_id in ids:
            self.sent += 1
            body = b"m" * (self.sent % 5)
            new.append(NewMessage(body, ttl_ms, due_ms, session_id=session_id))
            enqueued_ms = max(due_ms, now.utc_ms)
            expires_ms = NEVER_MS if ttl_ms == NEVER_MS else enqueued_ms + ttl_ms
            self.model.last += 1
            record = Record(self.model.last, body, enqueued_ms, expires_ms, session_id=session_id)
            record.state = SCHEDULED if due_ms > now.utc_ms else ACTIVE
            self.model.records.append(record)
        self.scene.queue.send(new, now)
        if is_committed:
            self.commit()

    @rule()
    @precondition(lambda self: self.scene.facts)
    def commit(self) -> None:
        self.scene.commit()
        self.model.published = self.model.last
        self.durable = copy.deepcopy(self.model)

    # -- holding --------------------------------------------------------------------------------

    @rule(session_id=IDS)
    @precondition(lambda self: self.sent)
    def accept(self, session_id: str) -> None:
        now = self.scene.now
        held = self.model.sessions.held.get(session_id)
        try:
            lock = self.scene.accept(session_id)
        except SessionCannotBeLocked:
            assert held is not None
            assert held.until_ms > now.mono_ms
            return
        if held is not None:
            assert held.until_ms <= now.mono_ms
            self.model.end(session_id, ABANDON, now.utc_ms)
        self._accepted(lock, session_id)

    @rule()
    @precondition(lambda self: self.model.free(MAIN))
    def accept_next(self) -> None:
        now = self.scene.now
        lock = self.scene.sessions.accept_session(None, now)
        available = self.model.available(now.utc_ms)
        # On the way it expires what it meets, which may not be all that there is.
        for record in list(self.model.free(MAIN)):
            if self.model.expired(record, now.utc_ms) and not self._is_there(record):
                self.model.expire(record)
        if lock is None:
            assert not available
            return
        assert lock.session_id in available
        self._accepted(lock, lock.session_id)

    def _is_there(self, record: Record) -> bool:
        found = self.scene.queue.messages_from(MAIN, record.number, 1)
        return numbers_of(found) == [record.number]

    def _accepted(self, lock: SessionLock, session_id: str) -> None:
        now = self.scene.now
        assert lock.session_id == session_id
        assert lock.grant not in [each.grant for each in self.given]
        assert lock.locked_until_ms == now.mono_ms + LOCK_MS
        assert lock.locked_until_utc_ms == now.utc_ms + LOCK_MS
        self.given.append(lock)
        self.model.sessions.held[session_id] = Held(lock.grant, now.mono_ms + LOCK_MS)

    @rule(data=st.data())
    @precondition(lambda self: self.model.sessions.held)
    def renew(self, data: st.DataObject) -> None:
        lock = self._some_session(data)
        now = self.scene.now
        try:
            until_ms = self.scene.sessions.renew_session(lock.session_id, lock.grant, now)
        except SessionLockLost:
            assert not self._is_held(lock)
            return
        assert self._is_held(lock)
        assert until_ms == now.utc_ms + LOCK_MS
        self.model.sessions.held[lock.session_id].until_ms = now.mono_ms + LOCK_MS

    @rule(data=st.data())
    @precondition(lambda self: self.model.sessions.held)
    def release(self, data: st.DataObject) -> None:
        lock = self._some_session(data)
        now = self.scene.now
        self.scene.release(lock)
        held = self.model.sessions.held.get(lock.session_id)
        if held is not None and held.grant == lock.grant:
            outcome = RELEASE if self._is_held(lock) else ABANDON
            self.model.end(lock.session_id, outcome, now.utc_ms)

    @rule(data=st.data(), state=st.sampled_from([None, b"", b"s", b"state"]))
    @precondition(lambda self: self.model.sessions.held)
    def set_state(self, data: st.DataObject, state: bytes | None) -> None:
        lock = self._some_session(data)
        now = self.scene.now
        try:
            self.scene.sessions.set_session_state(lock.session_id, lock.grant, state, now)
        except SessionLockLost:
            assert not self._is_held(lock)
            return
        assert self._is_held(lock)
        if state is None:
            self.model.sessions.states.pop(lock.session_id, None)
        else:
            self.model.sessions.states[lock.session_id] = State(state, now.utc_ms)
        got = self.scene.sessions.session_state(lock.session_id, lock.grant, now)
        assert got == state

    # -- receiving ------------------------------------------------------------------------------

    @rule(data=st.data(), count=st.integers(1, 4), is_locking=st.sampled_from([True, True, False]))
    @precondition(lambda self: self.model.sessions.held)
    def receive(self, data: st.DataObject, count: int, is_locking: bool) -> None:
        self._receive(self._some_session(data), count, is_locking)

    @rule(data=st.data(), count=st.integers(1, 3))
    @precondition(lambda self: self.model.free(MAIN))
    def receive_something(self, data: st.DataObject, count: int) -> None:
        """Steers to where there is something to receive: by itself chance rarely comes there."""
        free = sorted({str(record.session_id) for record in self.model.free(MAIN)})
        session_id = data.draw(st.sampled_from(free))
        self.accept(session_id)
        held = self.model.sessions.held[session_id]
        [lock] = [each for each in self.given if each.grant == held.grant]
        self._receive(lock, count, is_locking=True)

    def _receive(self, lock: SessionLock, count: int, is_locking: bool) -> None:
        now, queue = self.scene.now, self.scene.sessions
        take = queue.lock_next_of if is_locking else queue.take_next_of
        try:
            messages = take(lock.session_id, lock.grant, count, now)
        except SessionLockLost:
            assert not self._is_held(lock)
            return
        assert self._is_held(lock)
        records: list[Record] = []
        for record in self.model.free_of(lock.session_id):
            if len(records) == count:
                break
            if self.model.expired(record, now.utc_ms):
                self.model.expire(record)
            else:
                records.append(record)
        assert numbers_of(messages) == [record.number for record in records]
        self._taken(records, [message.grant for message in messages], is_locking)

    def _taken(self, records: list[Record], grants: list[int], is_locking: bool) -> None:
        for record, grant in zip(records, grants, strict=True):
            if is_locking:
                record.grant = grant
                self.locks.append((record.number, grant))
            else:
                self.model.records.remove(record)

    @rule(data=st.data(), mode=st.sampled_from([PEEK_LOCK, PEEK_LOCK, RECEIVE_AND_DELETE]))
    @precondition(lambda self: any(r.state == DEFERRED for r in self.model.part(MAIN)))
    def receive_deferred(self, data: st.DataObject, mode: int) -> None:
        lock = self._some_session(data)
        now = self.scene.now
        known = [r.number for r in self.model.part(MAIN) if r.state == DEFERRED] or [1]
        numbers = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=2, unique=True))
        records = [self.model.find(MAIN, number) for number in numbers]
        found = [
            r
            for r in records
            if r is not None
            and r.state == DEFERRED
            and r.grant == 0
            and r.session_id == lock.session_id
        ]
        expired = [r for r in found if r.expires_ms <= now.utc_ms]
        is_whole = len(found) == len(numbers)
        try:
            messages = self.scene.sessions.receive_deferred_of(
                lock.session_id, lock.grant, numbers, mode, now
            )
        except SessionLockLost:
            assert not self._is_held(lock)
            return
        except MessageNotFound:
            assert not is_whole or expired
            for record in expired if is_whole else []:
                self.model.expire(record)
            return
        assert self._is_held(lock)
        assert is_whole
        assert not expired
        self._taken(found, [message.grant for message in messages], mode == PEEK_LOCK)

    @rule(session_id=IDS, start=st.integers(0, 30), count=st.integers(1, 6))
    @precondition(lambda self: self.model.visible(MAIN))
    def peek(self, session_id: str, start: int, count: int) -> None:
        now = self.scene.now
        messages = self.scene.sessions.peek_session(session_id, start, count, now)
        records = [
            record
            for record in self.model.visible(MAIN)
            if record.session_id == session_id
            and record.number >= start
            and not self.model.expired(record, now.utc_ms)
        ]
        assert numbers_of(messages) == [record.number for record in records[:count]]

    # -- settling -------------------------------------------------------------------------------

    @rule(
        data=st.data(),
        outcome=st.sampled_from([COMPLETE, ABANDON, ABANDON, DEFER, DEAD_LETTER, RELEASE]),
    )
    @precondition(lambda self: any(r.grant for r in self.model.part(MAIN)))
    def settle(self, data: st.DataObject, outcome: int) -> None:
        now = self.scene.now
        held = [(r.number, r.grant) for r in self.model.part(MAIN) if r.grant]
        if not held or data.draw(st.integers(0, 4)) == 0:
            held += self.locks
        locks = data.draw(st.lists(st.sampled_from(held), min_size=1, max_size=3, unique=True))
        expected = [self.model.holds_message(lock, now.mono_ms) is not None for lock in locks]
        try:
            self.scene.queue.check_settle(Settle(7, MAIN, locks, outcome), now)
        except (MessageLockLost, SessionLockLost):
            assert not all(expected)
        else:
            assert all(expected)
        results = self.scene.queue.settle(MAIN, locks, outcome, None, now)
        for lock in locks:
            record = self.model.holds_message(lock, now.mono_ms)
            if record is None:
                continue
            if outcome == COMPLETE:
                self.model.records.remove(record)
            else:
                changes: dict[str, str | bytes] | None = {} if outcome == DEAD_LETTER else None
                self.model.give_back(record, outcome, changes, now.utc_ms)
        assert _passed(results, len(locks)) == expected

    @rule(data=st.data())
    @precondition(lambda self: any(r.state == SCHEDULED for r in self.model.records))
    def cancel_scheduled(self, data: st.DataObject) -> None:
        scheduled = [r for r in self.model.records if r.state == SCHEDULED]
        record = data.draw(st.sampled_from(scheduled))
        self.scene.queue.cancel_scheduled([record.number], self.scene.now)
        self.model.records.remove(record)

    # -- time and crashes -----------------------------------------------------------------------

    @rule(
        milliseconds=st.sampled_from([1, 1, 999, 999, 2_500, LOCK_MS - 1, LOCK_MS, 31_000]),
        jump_ms=st.sampled_from([0, 0, 0, 0, -1_500, 1_500, 3_600_000]),
        is_ticked=st.booleans(),
    )
    @precondition(lambda self: self.sent)
    def advance(self, milliseconds: int, jump_ms: int, is_ticked: bool) -> None:
        self.scene.advance(milliseconds, jump_ms)
        if is_ticked:
            self.tick()

    @rule()
    @precondition(lambda self: self.sent)
    def tick(self) -> None:
        now = self.scene.now
        lost = {
            (session_id, held.grant)
            for session_id, held in self.model.sessions.held.items()
            if held.until_ms <= now.mono_ms
        }
        self.scene.sessions.take_lost()
        self.scene.tick()
        self.model.tick(now.utc_ms, now.mono_ms)
        assert set(self.scene.sessions.take_lost()) == lost

    @rule(data=st.data(), is_committed=st.booleans())
    @precondition(lambda self: self.sent)
    def crash(self, data: st.DataObject, is_committed: bool) -> None:
        """Every session is free then; recovery sees a tail of the facts twice."""
        if is_committed:
            self.commit()
        self.scene.crash()
        self.scene.grants.next += 1_000  # as the store does, past what was never committed
        start = data.draw(st.integers(0, len(self.scene.log)))
        for fact in self.scene.log[start:]:
            self.scene.queue.replay(copy_fact(fact), self.scene.now)
        self.model = copy.deepcopy(self.durable)
        self.model.crash()

    # -- both agree -----------------------------------------------------------------------------

    @invariant()
    def shows_the_same(self) -> None:
        assert overview(self.scene.queue) == self.model.overview()

    @invariant()
    def knows_which_sessions_there_are(self) -> None:
        model = self.model
        with_messages = {str(record.session_id) for record in model.part(MAIN)}
        expected = sorted(with_messages | set(model.sessions.states))
        assert self.scene.sessions.list_sessions(ANY_TIME_MS, 0, 100) == expected
        known = self.scene.sessions._sessions.sessions
        assert set(known) == set(expected) | set(model.sessions.held), "a session is left over"

    @invariant()
    def knows_whether_something_is_ready(self) -> None:
        for session_id in ("a", "b", "", "ä"):
            ready = bool(self.model.free_of(session_id))
            assert self.scene.sessions.session_ready(session_id) == ready
        free = {str(r.session_id) for r in self.model.free(MAIN)} - set(self.model.sessions.held)
        assert not free or self.scene.sessions.has_available()

    @invariant()
    def knows_when_a_session_lock_ends(self) -> None:
        now = self.scene.now
        ends = [held.until_ms - now.mono_ms for held in self.model.sessions.held.values()]
        if ends:
            assert 0 <= self.scene.queue.next_due_ms(now) <= max(0, min(ends))


def _passed(results: list[ServiceError | None] | None, count: int) -> list[bool]:
    return [True] * count if results is None else [error is None for error in results]


SessionQueueAgainstModel.TestCase.settings = settings(
    max_examples=200, stateful_step_count=50, deadline=None
)
TestSessionQueueAgainstModel = SessionQueueAgainstModel.TestCase
