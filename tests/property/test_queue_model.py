"""The queue against a naive model, with crashes and jumping clocks.

The model is a list of records that is searched from end to end for everything.  It shares nothing
with the queue but the words: no cursor, no heap, no blocks, no facts.  After every step both must
show the same messages in the same states; a crash throws away what was not committed, and replaying
any tail of the facts a second time must change nothing.
"""

import copy
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.entities.scene import Scene, copy_fact, numbers_of, overview, texts
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
from twinbus.entities.facts import DEAD_LETTER as DLQ
from twinbus.entities.facts import MAIN
from twinbus.entities.facts import TRANSFER_DEAD_LETTER as TRANSFER
from twinbus.entities.message import ACTIVE, DEFERRED, NEVER_MS, SCHEDULED, NewMessage, Overlay
from twinbus.errors import MessageLockLost, MessageNotFound

pytestmark = pytest.mark.proves("M-2", "M-3")

LOCK_MS = 5_000
Lock = tuple[int, int]


@dataclass
class Record:
    """One message of the model."""

    number: int
    body: bytes
    enqueued_ms: int
    expires_ms: int
    state: int = ACTIVE
    part: int = MAIN
    count: int = 0
    grant: int = 0
    until_ms: int = 0
    overlay: dict[str, str | bytes] = field(default_factory=dict)
    has_overlay: bool = False
    session_id: str | None = None


class Model:
    """The naive queue."""

    def __init__(self, delivery_count_max: int, keeps_expired: bool) -> None:
        self.records: list[Record] = []
        self.last = 0
        self.published = 0
        self.delivery_count_max = delivery_count_max
        self.keeps_expired = keeps_expired

    def part(self, part: int) -> list[Record]:
        found = [record for record in self.records if record.part == part]
        return sorted(found, key=lambda record: record.number)

    def visible(self, part: int) -> list[Record]:
        return [r for r in self.part(part) if part != MAIN or r.number <= self.published]

    def free(self, part: int) -> list[Record]:
        return [r for r in self.visible(part) if r.state == ACTIVE and r.grant == 0]

    def find(self, part: int, number: int) -> Record | None:
        for record in self.records:
            if record.part == part and record.number == number:
                return record
        return None

    def held(self, part: int, lock: Lock, mono_ms: int) -> Record | None:
        record = self.find(part, lock[0])
        if record is None or record.grant == 0 or record.grant != lock[1]:
            return None
        return record if record.until_ms > mono_ms else None

    def expired(self, record: Record, utc_ms: int) -> bool:
        is_free = record.state == ACTIVE and record.grant == 0
        return record.part == MAIN and is_free and record.expires_ms <= utc_ms

    def expire(self, record: Record) -> None:
        if self.keeps_expired:
            text = "The message expired and was dead lettered."
            self.bury(record, {"reason": "TTLExpiredException", "description": text})
        else:
            self.records.remove(record)

    def bury(self, record: Record, changes: dict[str, str | bytes], part: int = DLQ) -> None:
        record.overlay.update(changes)
        record.has_overlay = True
        record.part, record.state, record.grant = part, ACTIVE, 0

    def take(self, part: int, count: int, utc_ms: int) -> list[Record]:
        taken: list[Record] = []
        for record in self.free(part):
            if len(taken) == count:
                break
            if self.expired(record, utc_ms):
                self.expire(record)
            else:
                taken.append(record)
        return taken

    def give_back(
        self,
        record: Record,
        outcome: int,
        changes: dict[str, str | bytes] | None,
        utc_ms: int,
        delayed: bool = False,
    ) -> None:
        record.count += outcome == ABANDON and record.part == MAIN
        if changes is not None:
            record.overlay.update(changes)
            record.has_overlay = True
        record.grant = 0
        if outcome == DEAD_LETTER:
            self.bury(record, {})
        elif outcome == DEFER:
            record.state = DEFERRED
        elif outcome == ABANDON and record.part == MAIN and record.count >= self.delivery_count_max:
            count = self.delivery_count_max
            text = f"Message could not be consumed after {count} delivery attempts."
            self.bury(record, {"reason": "MaxDeliveryCountExceeded", "description": text})
        elif self.expired(record, utc_ms) and not delayed:
            self.expire(record)

    def tick(self, utc_ms: int, mono_ms: int) -> None:
        for record in list(self.records):
            if record.grant and record.until_ms <= mono_ms:
                self.give_back(record, ABANDON, None, utc_ms)
        due = [
            (record.enqueued_ms, record.number, record)
            for record in self.part(MAIN)
            if record.state == SCHEDULED and record.enqueued_ms <= utc_ms
        ]
        for _, number, record in sorted(due, key=lambda entry: entry[:2]):
            if number > self.published:
                break  # order of time goes first: the later ones wait until it is durable
            self.last += 1
            if record.expires_ms != NEVER_MS:
                record.expires_ms += utc_ms - record.enqueued_ms
            record.number, record.enqueued_ms, record.state = self.last, utc_ms, ACTIVE
        for record in self.visible(MAIN):
            if self.expired(record, utc_ms):
                self.expire(record)

    def is_due(self, utc_ms: int, mono_ms: int) -> bool:
        return (
            any(r.grant and r.until_ms <= mono_ms for r in self.records)
            or any(r.state == SCHEDULED and r.enqueued_ms <= utc_ms for r in self.visible(MAIN))
            or any(self.expired(r, utc_ms) for r in self.visible(MAIN))
        )

    def overview(self) -> dict[str, object]:
        parts = (MAIN, DLQ, TRANSFER)
        views = {part: [_view(record) for record in self.part(part)] for part in parts}
        states = [record.state for record in self.part(MAIN)]
        return {
            "main": views[MAIN],
            "dead_letter": views[DLQ],
            "transfer_dead_letter": views[TRANSFER],
            "last_sequence_number": self.last,
            "counts": (
                states.count(ACTIVE),
                states.count(DEFERRED),
                states.count(SCHEDULED),
                len(views[DLQ]),
            ),
            "message_count": len(self.records),
            "size_bytes": sum(len(record.body) for record in self.records),
            "session_states": [],
        }


def _view(record: Record) -> tuple[object, ...]:
    overlay = None
    if record.has_overlay:
        overlay = texts(Overlay(**record.overlay))  # type: ignore[arg-type]  # by field
    return (
        record.number,
        record.body,
        record.state,
        record.enqueued_ms,
        record.expires_ms,
        record.count,
        record.grant,
        overlay,
        record.session_id,
    )


PARTS = st.sampled_from([MAIN, MAIN, MAIN, DLQ, DLQ, TRANSFER])
CHANGES = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {},
        optional={
            "reason": st.sampled_from(["r1", "r2"]),
            "description": st.sampled_from(["d1", "d2"]),
            "properties": st.sampled_from([b"p1", b"p2"]),
        },
    ),
)


class QueueAgainstModel(RuleBasedStateMachine):
    """Whatever happens, both agree."""

    @initialize(delivery_count_max=st.integers(1, 4), keeps_expired=st.booleans())
    def begin(self, delivery_count_max: int, keeps_expired: bool) -> None:
        self.scene = Scene(
            QueueDescription(
                lock_duration_ms=LOCK_MS,
                max_delivery_count=delivery_count_max,
                dead_lettering_on_message_expiration=keeps_expired,
            )
        )
        self.model = Model(delivery_count_max, keeps_expired)
        self.durable = copy.deepcopy(self.model)
        never_given = [(MAIN, (1, 0)), (DLQ, (2, 10**9))]
        self.locks: list[tuple[int, Lock]] = list(never_given)
        self.sent = 0

    # -- sending --------------------------------------------------------------------------------

    @rule(
        count=st.integers(1, 4),
        ttl_ms=st.sampled_from([NEVER_MS, NEVER_MS, 1, 2_000, 20_000]),
        delay_ms=st.sampled_from([0, 0, 0, 0, -5, 1, 3_000, 30_000]),
        is_committed=st.sampled_from([True, True, False]),
    )
    def send(self, count: int, ttl_ms: int, delay_ms: int, is_committed: bool) -> None:
        now = self.scene.now
        due_ms = now.utc_ms + delay_ms if delay_ms else 0
        new = []
        for _ in range(count):
            self.sent += 1
            body = b"m" * (self.sent % 5)
            new.append(NewMessage(body, ttl_ms, due_ms))
            enqueued_ms = max(due_ms, now.utc_ms)
            expires_ms = NEVER_MS if ttl_ms == NEVER_MS else enqueued_ms + ttl_ms
            self.model.last += 1
            record = Record(self.model.last, body, enqueued_ms, expires_ms)
            record.state = SCHEDULED if due_ms > now.utc_ms else ACTIVE
            self.model.records.append(record)
        expected = list(range(self.model.last - count + 1, self.model.last + 1))
        assert self.scene.queue.send(new, now) == expected
        if is_committed:
            self.commit()

    @rule()
    def commit(self) -> None:
        self.scene.commit()
        self.model.published = self.model.last
        self.durable = copy.deepcopy(self.model)

    # -- receiving ------------------------------------------------------------------------------

    @rule(part=PARTS, count=st.integers(1, 5))
    def lock_next(self, part: int, count: int) -> None:
        now = self.scene.now
        messages = self.scene.queue.lock_next(part, count, now)
        records = self.model.take(part, count, now.utc_ms)
        assert numbers_of(messages) == [record.number for record in records]
        self._locked(part, records, [message.grant for message in messages])

    @rule(part=PARTS, count=st.integers(1, 2))
    def take_next(self, part: int, count: int) -> None:
        now = self.scene.now
        messages = self.scene.queue.take_next(part, count, now)
        records = self.model.take(part, count, now.utc_ms)
        assert numbers_of(messages) == [record.number for record in records]
        for record in records:
            self.model.records.remove(record)

    @rule(part=PARTS, data=st.data(), mode=st.sampled_from([PEEK_LOCK, RECEIVE_AND_DELETE]))
    def receive_deferred(self, part: int, data: st.DataObject, mode: int) -> None:
        now = self.scene.now
        known = [r.number for r in self.model.part(part) if r.state == DEFERRED] or [1]
        choice = st.sampled_from(known) | st.integers(1, self.model.last + 1)
        numbers = data.draw(st.lists(choice, min_size=1, max_size=3, unique=True))
        records = [self.model.find(part, number) for number in numbers]
        found = [r for r in records if r is not None and r.state == DEFERRED and r.grant == 0]
        expired = [r for r in found if part == MAIN and r.expires_ms <= now.utc_ms]
        if len(found) < len(numbers) or expired:
            if len(found) == len(numbers):
                for record in expired:
                    self.model.expire(record)
            try:
                self.scene.queue.receive_deferred(part, numbers, mode, now)
            except MessageNotFound:
                return
            raise AssertionError("received what is not deferred")
        messages = self.scene.queue.receive_deferred(part, numbers, mode, now)
        assert numbers_of(messages) == numbers
        if mode == PEEK_LOCK:
            self._locked(part, found, [message.grant for message in messages])
        else:
            for record in found:
                self.model.records.remove(record)

    def _locked(self, part: int, records: list[Record], grants: list[int]) -> None:
        for record, grant in zip(records, grants, strict=True):
            assert (part, (record.number, grant)) not in self.locks, "a grant was given twice"
            record.grant, record.until_ms = grant, self.scene.now.mono_ms + LOCK_MS
            self.locks.append((part, (record.number, grant)))

    @rule(part=PARTS, start=st.integers(0, 40), count=st.integers(1, 9))
    def peek(self, part: int, start: int, count: int) -> None:
        now = self.scene.now
        messages = self.scene.queue.peek(part, start, count, now)
        records = [
            record
            for record in self.model.visible(part)
            if record.number >= start and not self.model.expired(record, now.utc_ms)
        ]
        assert numbers_of(messages) == [record.number for record in records[:count]]

    # -- settling -------------------------------------------------------------------------------

    @rule(
        data=st.data(),
        outcome=st.sampled_from([COMPLETE, ABANDON, ABANDON, DEFER, DEAD_LETTER, RELEASE]),
        changes=CHANGES,
        delay_ms=st.sampled_from([0, 0, 0, 4_000]),
    )
    def settle(
        self,
        data: st.DataObject,
        outcome: int,
        changes: dict[str, str | bytes] | None,
        delay_ms: int,
    ) -> None:
        now = self.scene.now
        part, locks = self._some_locks(data)
        if part != MAIN:
            delay_ms = 0  # refused as a whole, like dead-lettering; unit tests show it
            outcome = COMPLETE if outcome == DEAD_LETTER else outcome
        overlay = None if changes is None else Overlay(**changes)  # type: ignore[arg-type]
        fits = all(self.model.held(part, lock, now.mono_ms) for lock in locks)
        try:
            settle = Settle(7, part, locks, outcome, overlay)
            settle.delay_ms = delay_ms
            self.scene.queue.check_settle(settle, now)
        except MessageLockLost:
            assert not fits
        else:
            assert fits
        results = self.scene.queue.settle(part, locks, outcome, overlay, now, delay_ms)
        expected = []
        for lock in locks:
            record = self.model.held(part, lock, now.mono_ms)
            expected.append(record is not None)
            if record is None:
                continue
            if outcome == COMPLETE:
                self.model.records.remove(record)
            else:
                if outcome == DEAD_LETTER:
                    changes = changes or {}
                delayed = outcome == ABANDON and delay_ms > 0
                self.model.give_back(record, outcome, changes, now.utc_ms, delayed)
                if delayed and record.part == MAIN:
                    record.state, record.enqueued_ms = SCHEDULED, now.utc_ms + delay_ms
        if results is None:
            assert all(expected)
        else:
            assert [error is None for error in results] == expected
            assert all(e is None or isinstance(e, MessageLockLost) for e in results)

    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        now = self.scene.now
        part, locks = self._some_locks(data)
        records = [self.model.held(part, lock, now.mono_ms) for lock in locks]
        try:
            until = self.scene.queue.renew(part, locks, now)
        except MessageLockLost:
            assert None in records
            return
        assert until == [now.utc_ms + LOCK_MS] * len(locks)
        for record in records:
            assert record is not None
            record.until_ms = now.mono_ms + LOCK_MS

    def _some_locks(self, data: st.DataObject) -> tuple[int, list[Lock]]:
        """Mostly locks that are held, sometimes any that was ever given."""
        held = [(r.part, (r.number, r.grant)) for r in self.model.records if r.grant]
        if not held or data.draw(st.integers(0, 4)) == 0:
            held += self.locks
        part, first = data.draw(st.sampled_from(held))
        others = [lock for its_part, lock in held if its_part == part]
        return part, [first, *data.draw(st.lists(st.sampled_from(others), max_size=3))]

    @rule(data=st.data())
    @precondition(lambda self: any(r.state == SCHEDULED for r in self.model.records))
    def cancel_scheduled(self, data: st.DataObject) -> None:
        scheduled = [r.number for r in self.model.records if r.state == SCHEDULED]
        choice = st.sampled_from(scheduled) | st.integers(1, self.model.last + 1)
        numbers = data.draw(st.lists(choice, min_size=1, max_size=2, unique=True))
        try:
            self.scene.queue.cancel_scheduled(numbers, self.scene.now)
        except MessageNotFound:
            assert not set(numbers) <= set(scheduled)
            return
        assert set(numbers) <= set(scheduled)
        self.model.records = [
            r for r in self.model.records if r.part != MAIN or r.number not in numbers
        ]

    # -- many at once ---------------------------------------------------------------------------

    @rule(part=st.sampled_from([MAIN, DLQ]), count=st.integers(1, 3))
    def move_to_transfer(self, part: int, count: int) -> None:
        """What forwarding does with messages that it cannot deliver."""
        now = self.scene.now
        messages = self.scene.queue.take_ready(part, count, now)
        records = self.model.take(part, count, now.utc_ms)
        assert numbers_of(messages) == [record.number for record in records]
        self.scene.queue.dead_letter(part, messages, Overlay("no target"), TRANSFER)
        for record in records:
            self.model.bury(record, {"reason": "no target"}, TRANSFER)

    @rule(data=st.data())
    @precondition(lambda self: any(r.state == DEFERRED for r in self.model.part(MAIN)))
    def undefer(self, data: st.DataObject) -> None:
        now = self.scene.now
        known = [r.number for r in self.model.part(MAIN) if r.state == DEFERRED]
        choice = st.sampled_from(known) | st.integers(1, self.model.last + 1)
        numbers = data.draw(st.lists(choice, min_size=1, max_size=3, unique=True))
        records = [self.model.find(MAIN, number) for number in numbers]
        found = [r for r in records if r is not None and r.state == DEFERRED and r.grant == 0]
        try:
            self.scene.queue.undefer(numbers, now)
        except MessageNotFound:
            assert len(found) < len(numbers)
            return
        assert len(found) == len(numbers)
        for record in found:
            record.state = ACTIVE
            if self.model.expired(record, now.utc_ms):
                self.model.expire(record)

    @rule(part=PARTS, numbers=st.lists(st.integers(1, 40), max_size=6))
    def remove_free(self, part: int, numbers: list[int]) -> None:
        gone = [r for r in self.model.visible(part) if r.number in numbers and r.grant == 0]
        assert self.scene.queue.remove_free(part, numbers) == len(gone)
        for record in gone:
            self.model.records.remove(record)

    # -- time and crashes -----------------------------------------------------------------------

    @rule(
        milliseconds=st.sampled_from([1, 999, 2_500, 2_500, LOCK_MS - 1, LOCK_MS, 31_000]),
        jump_ms=st.sampled_from([0, 0, 0, 0, -3_600_000, -1_500, 1_500, 3_600_000]),
        is_ticked=st.booleans(),
    )
    def advance(self, milliseconds: int, jump_ms: int, is_ticked: bool) -> None:
        self.scene.advance(milliseconds, jump_ms)
        if is_ticked:
            self.tick()

    @rule()
    def tick(self) -> None:
        self.scene.tick()
        self.model.tick(self.scene.now.utc_ms, self.scene.now.mono_ms)

    @rule(data=st.data(), is_committed=st.booleans())
    def crash(self, data: st.DataObject, is_committed: bool) -> None:
        """Recovery sees the committed facts, and a tail of them twice."""
        if is_committed:
            self.commit()
        self.scene.crash()
        self.scene.grants.next += 1_000  # as the store does, past what was never committed
        start = data.draw(st.integers(0, len(self.scene.log)))
        for fact in self.scene.log[start:]:
            self.scene.queue.replay(copy_fact(fact), self.scene.now)
        self.model = copy.deepcopy(self.durable)
        for record in self.model.records:
            record.until_ms = self.scene.now.mono_ms + LOCK_MS

    # -- both agree -----------------------------------------------------------------------------

    @invariant()
    def shows_the_same(self) -> None:
        assert overview(self.scene.queue) == self.model.overview()

    @invariant()
    def knows_whether_something_is_ready(self) -> None:
        for part in (MAIN, DLQ, TRANSFER):
            assert self.scene.queue.has_ready(part) == bool(self.model.free(part))

    @invariant()
    def knows_when_something_is_due(self) -> None:
        now = self.scene.now
        due_ms = self.scene.queue.next_due_ms(now)
        if self.model.is_due(now.utc_ms, now.mono_ms):
            has_unpublished = self.model.last > self.model.published
            assert due_ms == 0 or (due_ms == 1 and has_unpublished)
        ends = [r.until_ms - now.mono_ms for r in self.model.records if r.grant]
        ends += [r.enqueued_ms - now.utc_ms for r in self.model.records if r.state == SCHEDULED]
        ends += [
            record.expires_ms - now.utc_ms
            for record in self.model.part(MAIN)
            if record.state == ACTIVE and record.grant == 0 and record.expires_ms != NEVER_MS
        ]
        if ends:
            assert 0 <= due_ms <= max(1, min(ends)), "a timer would come too late"


QueueAgainstModel.TestCase.settings = settings(
    max_examples=200, stateful_step_count=50, deadline=None
)
TestQueueAgainstModel = QueueAgainstModel.TestCase
