"""A seeded workload on a store, and what may be found after the power was cut.

The workload drives queues, commits and background tasks in a random order, all interleavings
included that the loop, the commit thread and the maintenance thread could produce.  After every
commit it notes down the whole state; a recovered store must be in exactly the last noted state, or
in the one that the commit in flight would have led to.
"""

import random
from dataclasses import replace

from twinbus.clock import Now
from twinbus.entities.commands import ABANDON, COMPLETE, DEAD_LETTER, DEFER, PEEK_LOCK, RELEASE
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.facts import DEAD_LETTER as DEAD_LETTER_QUEUE
from twinbus.entities.facts import MAIN
from twinbus.entities.message import DEFERRED, SCHEDULED, Message, NewMessage, Overlay
from twinbus.entities.queue import Queue
from twinbus.storage.disk import Disk
from twinbus.storage.maintenance import FinishSnapshot
from twinbus.storage.store import Commit, Store, Task

SEGMENT_SIZE = 8_192
SALT = 0x5EED
CACHE_BYTES = 4_096  # so small that bodies come from the disk most of the time
START = Now(utc_ms=1_700_000_000_000, mono_ms=50_000)

Entry = tuple[object, ...]
Overview = dict[str, list[Entry]]


def open_store(disk: Disk, now: Now = START) -> Store:
    return Store.open(disk, now, SALT, SEGMENT_SIZE, CACHE_BYTES)


def messages_of(queue: Queue, subqueue: int) -> list[Message]:
    """All of them, unpublished ones too."""
    found: list[Message] = []
    table = queue._part(subqueue).table
    while run := table.run_from(found[-1].sequence_number + 1 if found else 0, 1_000):
        found.extend(run)
    return found


def overview(store: Store) -> Overview:
    """Everything that must survive, entity by entity."""
    found: Overview = {}
    for queue in store.entities.values():
        counts = queue.counts()
        entries: list[Entry] = [
            (queue.entity_id, queue.description, queue.last_sequence_number),
            (counts.active, counts.deferred, counts.scheduled, counts.dead_letter),
            (counts.size_bytes,),
        ]
        for subqueue in (MAIN, DEAD_LETTER_QUEUE):
            messages = messages_of(queue, subqueue)
            for message, body in zip(messages, store.read_bodies(messages), strict=True):
                entries.append((subqueue, *_entry(message), body))
        found[queue.name] = entries
    return found


def _entry(message: Message) -> Entry:
    overlay = message.overlay
    assert message.state <= SCHEDULED
    return (
        message.sequence_number,
        message.state,
        message.delivery_count,
        message.grant,
        message.enqueued_ms,
        message.expires_ms,
        message.session_id,
        None
        if overlay is None
        else (overlay.reason, overlay.description, overlay.source, overlay.properties),
    )


def bodies_of(found: Overview) -> set[bytes]:
    """Bodies are unique in this workload, so they stand for their messages."""
    return {
        body
        for entries in found.values()
        for *_, body in entries
        if isinstance(body, bytes) and body
    }


class Workload:
    """Drives one store until it is told to stop or the disk gives up."""

    def __init__(self, store: Store, seed: int, now: Now = START) -> None:
        self.store = store
        self.rng = random.Random(seed)
        self.now = Now(now.utc_ms, now.mono_ms)
        self.durable = overview(store)  # the state after the last finished commit
        self.pending: Overview | None = None  # the state after the commit in flight
        self.whole = True  # the commit in flight, or the last one, took all facts there were
        self.exact = True  # no commit that was not whole since `durable` was noted
        self._commit: Commit | None = None
        self._task: Task | None = None
        self._sent = seed * 1_000_000
        if not store.entities:
            store.create_queue("First", QueueDescription(lock_duration_ms=5_000))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        """One thing that one of the three threads does."""
        choice = self.rng.random()
        if choice < 0.45:
            # After a commit that took only a part, the next one must come before anything new
            # happens: otherwise no noted state would ever again be one that the disk can hold.
            if self.whole:
                self._act()
        elif choice < 0.70:
            self.begin_or_finish_commit()
        else:
            self.begin_or_finish_task()

    # -- commits and tasks -----------------------------------------------------------------------

    def begin_or_finish_commit(self) -> None:
        if self._commit is None:
            self._commit = self.store.begin_commit()
            if self._commit is not None:
                self.whole = not self.store.facts
                self.exact = self.exact and self.whole
                self.pending = overview(self.store)
        else:
            self._commit.write()
            self.store.finish_commit(self._commit)
            self._commit = None
            if self.whole:
                assert self.pending is not None
                self.durable = self.pending
                self.pending = None
                self.exact = True

    def begin_or_finish_task(self) -> None:
        if self._task is None:
            self._task = self.store.next_task(self.now)
        else:
            task = self._task
            task.run()
            self._task = None
            self.store.finish_task(task)

    @property
    def finishing_snapshot(self) -> bool:
        """Is the task that runs next the one that completes a snapshot?"""
        return isinstance(self._task, FinishSnapshot)

    def commit_all(self) -> None:
        """Make everything durable; background work may remain."""
        while self._commit is not None or self.store.facts:
            self.begin_or_finish_commit()
            if self._commit is None:
                self.begin_or_finish_task()

    def commit_without_tasks(self) -> None:
        """Make everything durable that fits without background work."""
        while self._commit is not None or self.store.facts:
            self.begin_or_finish_commit()
            if self._commit is None and self.store.facts and self.store._log.ready_segment == 0:
                return

    def settle_down(self) -> None:
        """Commit everything and finish all background work."""
        for _ in range(500):
            if self._commit is None and not self.store.facts and self._task is None:
                self._task = self.store.next_task(self.now)
                if self._task is None:
                    return
            if self._task is not None:
                self.begin_or_finish_task()
            self.begin_or_finish_commit()
        raise AssertionError("the store does not come to rest")

    # -- queues ----------------------------------------------------------------------------------

    def _act(self) -> None:
        rng = self.rng
        now = self.now
        now.mono_ms += rng.randrange(400)
        now.utc_ms += rng.randrange(400)
        if rng.random() < 0.03:
            self._change_entities()
        queue = rng.choice(list(self.store.entities.values()))
        queue.tick(now)
        often = [self._send, self._receive, self._settle]
        action = rng.choice([*often, *often, self._cancel, self._deferred, self._take])
        action(queue)

    def _change_entities(self) -> None:
        store = self.store
        names = list(store.names)
        choice = self.rng.random()
        if choice < 0.4:
            name = f"Queue-{self.rng.randrange(100)}"
            if name.lower() not in names:
                store.create_queue(name, QueueDescription(lock_duration_ms=5_000))
        elif choice < 0.7 and len(names) > 1:
            store.delete_queue(store.names[self.rng.choice(names)])
        else:
            entity_id = store.names[self.rng.choice(names)]
            description = store.entities[entity_id].description
            metadata = str(self.rng.randrange(100))
            store.update_queue(entity_id, replace(description, user_metadata=metadata))

    def _send(self, queue: Queue) -> None:
        rng = self.rng
        if queue.counts().message_count > 40 or not self.store.room_for(2_600):
            return
        messages = []
        for _ in range(rng.choice([1, 1, 1, 3])):
            self._sent += 1
            body = b"%d:" % self._sent + rng.randbytes(rng.choice([0, 5, 100, 300, 700]))
            due = self.now.utc_ms + rng.randrange(1, 3_000) if rng.random() < 0.2 else 0
            session = rng.choice(["", "günther"]) if rng.random() < 0.1 else None
            life = 2_000 if rng.random() < 0.1 else 1 << 62
            messages.append(NewMessage(body, life, due, session_id=session))
        queue.send(messages, self.now)

    def _receive(self, queue: Queue) -> None:
        queue.lock_next(self._subqueue(), self.rng.randrange(1, 4), self.now)

    def _take(self, queue: Queue) -> None:
        queue.take_next(self._subqueue(), 1, self.now)

    def _settle(self, queue: Queue) -> None:
        subqueue = self._subqueue()
        locked = [m for m in messages_of(queue, subqueue) if m.grant]
        if not locked:
            return
        chosen = self.rng.sample(locked, self.rng.randrange(1, len(locked) + 1))
        outcomes = [COMPLETE, COMPLETE, ABANDON, DEFER, RELEASE]
        outcome = self.rng.choice([*outcomes, DEAD_LETTER] if subqueue == MAIN else outcomes)
        changed = self.rng.random() < 0.3
        overlay = Overlay("because", None, None, b"\xc1\x01\x00") if changed else None
        locks = [(m.sequence_number, m.grant) for m in chosen]
        queue.settle(subqueue, locks, outcome, overlay, self.now)

    def _cancel(self, queue: Queue) -> None:
        waiting = [m for m in messages_of(queue, MAIN) if m.state == SCHEDULED]
        if waiting:
            queue.cancel_scheduled([self.rng.choice(waiting).sequence_number], self.now)

    def _deferred(self, queue: Queue) -> None:
        waiting = [m for m in messages_of(queue, MAIN) if m.state == DEFERRED and not m.grant]
        waiting = [m for m in waiting if m.expires_ms > self.now.utc_ms]
        if waiting:
            number = self.rng.choice(waiting).sequence_number
            queue.receive_deferred(MAIN, [number], PEEK_LOCK, self.now)

    def _subqueue(self) -> int:
        return MAIN if self.rng.random() < 0.8 else DEAD_LETTER_QUEUE

    # -- judgement -------------------------------------------------------------------------------

    def check(self, recovered: Store) -> None:
        """Is this a state that a power cut right now may leave?"""
        found = overview(recovered)
        pending = self.durable if self.pending is None else self.pending
        if self.exact:
            assert found in (self.durable, pending)
            return
        lost = (bodies_of(self.durable) & bodies_of(pending)) - bodies_of(found)
        invented = bodies_of(found) - bodies_of(self.durable) - bodies_of(pending)
        assert not lost
        assert not invented
