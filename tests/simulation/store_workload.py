"""A seeded workload on a store, and what may be found after the power was cut.

The workload drives entities of all kinds, commits and background tasks in a random order, all
interleavings included that the loop, the commit thread and the maintenance thread could produce.
After every commit it notes down the whole state; a recovered store must be in exactly the last
noted state, or in the one that the commit in flight would have led to.
"""

import random
from dataclasses import replace
from uuid import UUID

from twinbus.broker.store_run import finish_commit
from twinbus.clock import Now
from twinbus.entities.commands import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DEFER,
    PEEK_LOCK,
    RELEASE,
    Send,
)
from twinbus.entities.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.entities.duplicates import DIGEST_SIZE, ENTRY_SIZE, digest_of
from twinbus.entities.facts import DEAD_LETTER as DEAD_LETTER_QUEUE
from twinbus.entities.facts import MAIN, TRANSFER_DEAD_LETTER, gather
from twinbus.entities.fields import Changes, Fields
from twinbus.entities.message import DEFERRED, SCHEDULED, Message, NewMessage, Overlay, ProducerKey
from twinbus.entities.queue import Queue
from twinbus.entities.rule_descriptions import (
    SQL,
    ActionDescription,
    FilterDescription,
    RuleDescription,
    default_rule,
)
from twinbus.entities.session_locks import SessionLock
from twinbus.entities.sessions import SessionQueue
from twinbus.entities.topic import Topic
from twinbus.errors import SessionCannotBeLocked, SessionLockLost
from twinbus.storage.disk import Disk
from twinbus.storage.log import Commit
from twinbus.storage.maintenance import FinishSnapshot, Task
from twinbus.storage.store import Store

SEGMENT_SIZE = 12_288
SALT = 0x5EED
CACHE_BYTES = 4_096  # so small that bodies come from the disk most of the time
START = Now(utc_ms=1_700_000_000_000, mono_ms=50_000)

LOCK_MS = 5_000
WINDOW_MS = 604_800_000  # of duplicate detection: longer than any test
SESSIONS = ["", "günther", "ada"]
PRODUCERS = ["a", "b/~3"]
PARTS = (MAIN, DEAD_LETTER_QUEUE, TRANSFER_DEAD_LETTER)

Entry = tuple[object, ...]
Overview = dict[str, list[Entry]]


class ShortCodec:
    """Messages of this workload are no AMQP: a number, a colon and noise."""

    def read_fields(self, stored: bytes) -> Fields:
        return Fields({}, {"number": int(stored.partition(b":")[0])})

    def read_keys(self, stored: bytes) -> tuple[str | None, str | None, str | None]:
        return None, None, None

    def read_properties(self, encoded: bytes) -> dict[str, object]:
        return {}

    def rewrite(self, stored: bytes, changes: Changes) -> bytes:
        return stored + b"!"

    def new_id(self) -> UUID:
        return UUID(int=1)


def open_store(disk: Disk, now: Now = START) -> Store:
    store = Store.open(disk, now, SALT, SEGMENT_SIZE, CACHE_BYTES)
    for queue in store.entities.values():
        if isinstance(queue, Topic):
            queue.codec = ShortCodec()
    return store


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
            (queue.entity_id, queue.kind, queue.topic_id, queue.description),
            (queue.last_sequence_number,),
            (counts.active, counts.deferred, counts.scheduled, counts.dead_letter),
            (counts.transfer_dead_letter, counts.size_bytes),
            (ids_of(queue),),
            ([] if queue.carried is None else queue.carried.all(),),
            (numbers_of(queue),),
        ]
        if isinstance(queue, Topic):
            entries.append((sorted(queue.subscriptions),))
        if isinstance(queue, SessionQueue):
            entries.append((sorted(queue.session_states()),))
        for subqueue in PARTS:
            messages = messages_of(queue, subqueue)
            # Whoever holds a session does not survive, and neither do locks inside it.
            locks = not (isinstance(queue, SessionQueue) and subqueue == MAIN)
            for message, body in zip(messages, store.read_bodies(messages), strict=True):
                entries.append((subqueue, *_entry(message, locks), body))
        found[queue.name] = entries
    for rule in store.rules.values():
        subscription = store.entities[rule.subscription_id]
        found[f"{subscription.name}/{rule.description.name}"] = [
            (rule.rule_id, rule.description.to_json())
        ]
    return found


def numbers_of(queue: Queue) -> dict[str, list[int]]:
    """Which numbers of producers have come; in which order these sent last may be lost."""
    arrivals = queue.arrivals
    if arrivals is None:
        return {}
    return {producer: list(arrivals.bounds_of(producer)) for producer in arrivals.producers()}


def ids_of(queue: Queue) -> list[bytes]:
    """What duplicate detection remembers, with the times."""
    found: list[bytes] = []
    place = 0 if queue.history is not None else -1
    while queue.history is not None and place >= 0:
        entries, place = queue.history.piece(place)
        found += [entries[at : at + ENTRY_SIZE] for at in range(0, len(entries), ENTRY_SIZE)]
    return sorted(found)


def _entry(message: Message, locks: bool) -> Entry:
    overlay = message.overlay
    assert message.state <= SCHEDULED
    return (
        message.sequence_number,
        message.state,
        message.delivery_count,
        message.grant if locks else 0,
        message.enqueued_ms,
        message.expires_ms,
        message.session_id,
        None
        if overlay is None
        else (
            overlay.reason,
            overlay.description,
            overlay.source,
            overlay.properties,
            overlay.hop_count,
            overlay.enqueued_sequence_number,
        ),
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
        self._held: dict[int, SessionLock] = {}  # entity id → the session that somebody has
        if not store.entities:
            store.create_entity("queue", "First", QueueDescription(lock_duration_ms=LOCK_MS))
        if seed % 2:  # the others stay with queues, as logs of the first versions had them
            self._make_all_kinds()

    def _make_all_kinds(self) -> None:
        store = self.store
        if "once" not in store.names:
            seen_once = QueueDescription(
                requires_duplicate_detection=True,
                duplicate_detection_window_ms=WINDOW_MS,
                lock_duration_ms=LOCK_MS,
            )
            store.create_entity("queue", "Once", seen_once)
        if "steps" not in store.names:
            in_sessions = QueueDescription(requires_session=True, lock_duration_ms=LOCK_MS)
            store.create_entity("queue", "Steps", in_sessions)
        if "news" not in store.names:
            self._make_topic()

    def _make_topic(self) -> None:
        """A topic with three subscriptions: one gets all, one also a changed copy, one sessions."""
        store = self.store
        mark = len(store.facts)
        described = TopicDescription(
            requires_duplicate_detection=True, duplicate_detection_window_ms=WINDOW_MS
        )
        topic = store.create_entity("topic", "News", described)
        assert isinstance(topic, Topic)
        topic.codec = ShortCodec()
        gather(store.facts, mark)
        for name in ("all", "some", "steps"):
            mark = len(store.facts)
            settings = SubscriptionDescription(
                lock_duration_ms=LOCK_MS, requires_session=name == "steps"
            )
            subscription = store.create_entity(
                "subscription", f"News/Subscriptions/{name}", settings
            )
            store.create_rule(subscription.entity_id, default_rule())
            if name == "some":
                odd = FilterDescription(SQL, "number % 3 = 1")
                changed = RuleDescription("changed", odd, ActionDescription("SET mark = 1"))
                store.create_rule(subscription.entity_id, changed)
            gather(store.facts, mark)

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
            finish_commit(self.store, self._commit)
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
        if isinstance(queue, Topic):
            ways = [self._publish, self._publish, self._number, self._fan_out_due, self._cancel]
            rng.choice(ways)(queue)
            return
        often = [self._send, self._receive, self._settle]
        rare = [self._cancel, self._deferred, self._take, self._undefer, self._transfer]
        if isinstance(queue, SessionQueue):
            rare += [self._set_state, self._set_state]
            often = [self._hold, *often]
        elif queue.kind == "queue":  # copies in subscriptions have their bodies in common
            rare += [self._forward, self._carry, self._number, self._number]
        rng.choice([*often, *often, *rare])(queue)

    def _change_entities(self) -> None:
        store = self.store
        queues = [each for each in store.entities.values() if each.kind == "queue"]
        choice = self.rng.random()
        if choice < 0.4:
            name = f"Queue-{self.rng.randrange(100)}"
            if name.lower() not in store.names:
                store.create_entity("queue", name, QueueDescription(lock_duration_ms=LOCK_MS))
        elif choice < 0.6 and len(queues) > 1:
            store.delete_entities([self.rng.choice(queues).entity_id])
        elif choice < 0.7 and "news" in store.names:
            store.delete_entities([store.names["news"]])
        elif choice < 0.8 and "news" not in store.names and "steps" in store.names:
            self._make_topic()
        elif choice < 0.9 and store.rules:
            store.delete_rule(self.rng.choice(list(store.rules)))
        else:
            queue = self.rng.choice(list(store.entities.values()))
            metadata = str(self.rng.randrange(100))
            changed = replace(queue.description, user_metadata=metadata)
            store.update_entity(queue.entity_id, changed)

    def _new_message(self, session_id: str | None) -> NewMessage:
        rng = self.rng
        self._sent += 1
        body = b"%d:" % self._sent + rng.randbytes(rng.choice([0, 5, 100, 300, 700]))
        due = self.now.utc_ms + rng.randrange(1, 3_000) if rng.random() < 0.2 else 0
        life = 2_000 if rng.random() < 0.1 else 1 << 62
        message_id = str(self._sent)
        if rng.random() < 0.3:  # sent once before, most likely; then nothing may come of this one
            message_id = str(self._sent - rng.randrange(1, 10))
            body = message_id.encode() + b":" + rng.randbytes(9)
        return NewMessage(body, life, due, message_id=message_id, session_id=session_id)

    def _send(self, queue: Queue) -> None:
        if queue.topic_id or queue.counts().message_count > 40 or not self.store.room_for(2_600):
            return
        messages = []
        for _ in range(self.rng.choice([1, 1, 1, 3])):
            session = self.rng.choice(SESSIONS) if self.rng.random() < 0.1 else None
            if isinstance(queue, SessionQueue):
                session = self.rng.choice(SESSIONS)
            messages.append(self._new_message(session))
        queue.send(messages, self.now)

    def _receive(self, queue: Queue) -> None:
        subqueue = self._subqueue()
        count = self.rng.randrange(1, 4)
        lock = self._held.get(queue.entity_id)
        if subqueue != MAIN or not isinstance(queue, SessionQueue):
            queue.lock_next(subqueue, count, self.now)
        elif lock is not None:
            try:
                queue.lock_next_of(lock.session_id, lock.grant, count, self.now)
            except SessionLockLost:
                del self._held[queue.entity_id]

    def _take(self, queue: Queue) -> None:
        subqueue = self._subqueue()
        if subqueue != MAIN or not isinstance(queue, SessionQueue):
            queue.take_next(subqueue, 1, self.now)

    # -- sessions --------------------------------------------------------------------------------

    def _hold(self, queue: Queue) -> None:
        """Accept a session, or let go of the one that is held."""
        assert isinstance(queue, SessionQueue)
        lock = self._held.pop(queue.entity_id, None)
        if lock is not None:
            queue.release_session(lock.session_id, lock.grant, self.now)
            return
        try:
            wanted = self.rng.choice([None, None, *SESSIONS])
            accepted = queue.accept_session(wanted, self.now)
        except SessionCannotBeLocked:
            return
        if accepted is not None:
            self._held[queue.entity_id] = accepted

    def _set_state(self, queue: Queue) -> None:
        assert isinstance(queue, SessionQueue)
        lock = self._held.get(queue.entity_id)
        if lock is None or not self.store.room_for(600):
            return
        state = self.rng.choice([None, b"", self.rng.randbytes(50), self.rng.randbytes(500)])
        try:
            queue.set_session_state(lock.session_id, lock.grant, state, self.now)
        except SessionLockLost:
            del self._held[queue.entity_id]

    # -- topics, and what moves from one entity to another ---------------------------------------

    def _publish(self, topic: Queue) -> None:
        assert isinstance(topic, Topic)
        waiting = [each.counts().message_count for each in topic.subscriptions.values()]
        if max(waiting, default=0) > 40 or not self.store.room_for(2_600):
            return
        topic.send([self._new_message(self.rng.choice(SESSIONS))], self.now)

    def _fan_out_due(self, topic: Queue) -> None:
        assert isinstance(topic, Topic)
        if self.store.room_for(2_600):
            due = topic.take_due(1, self.now)
            if not due:
                return
            topic.fan_out_due(due, self.store.read_bodies(due), self.now)

    def _forward(self, queue: Queue) -> None:
        """Into another queue, in one step: never in both, never in none."""
        targets = [
            each
            for each in self.store.entities.values()
            if each.kind == "queue" and each.history is None and each is not queue
        ]
        targets = [each for each in targets if not isinstance(each, SessionQueue)]
        if not targets or not self.store.room_for(1_500):
            return
        facts = self.store.facts
        mark = len(facts)
        found = queue.take_ready(MAIN, 1, self.now)
        if found:
            new = NewMessage(self.store.read_bodies(found)[0])
            number = found[0].sequence_number
            new.overlay = Overlay(hop_count=1, enqueued_sequence_number=number)
            self.rng.choice(targets).send([new], self.now)
            queue.remove(MAIN, found)
        gather(facts, mark)

    def _carry(self, queue: Queue) -> None:
        """From another store, and some of it for the second time."""
        if queue.counts().message_count > 40 or not self.store.room_for(2_600):
            return
        carrier = self.rng.choice(["near", "far"])
        numbers: list[int] = []
        if queue.carried is not None:
            numbers = list(queue.carried.of(carrier))[-3:]
        messages = [NewMessage(b"%d:again" % number) for number in numbers]
        for _ in range(self.rng.randrange(1, 3)):
            messages.append(self._new_message(None))
            numbers.append(self._sent)
        send = Send(queue.entity_id, messages)
        send.carrier, send.carrier_numbers = carrier, numbers
        if queue.carried is not None and self.rng.random() < 0.3:
            send.carrier_completed = queue.carried.of(carrier)
        given = queue.send_carried(send, self.now)
        assert not any(given[:-2]), "what has come before is stored again"

    def _number(self, queue: Queue) -> None:
        """Messages that their producer has numbered, and some of them for the second time."""
        waiting = [queue, *queue.subscriptions.values()] if isinstance(queue, Topic) else [queue]
        is_full = max(each.counts().message_count for each in waiting) > 40
        if is_full or not self.store.room_for(2_600):
            return
        producer = self.rng.choice(PRODUCERS)
        messages: list[NewMessage] = []
        for number in numbers_of(queue).get(producer, [])[-2:-1]:
            messages.append(NewMessage(b"%d:again" % number))
            messages[-1].producer_key = ProducerKey(producer, number)
        known = len(messages)
        for _ in range(self.rng.randrange(1, 3)):
            messages.append(self._new_message(self.rng.choice(SESSIONS)))
            messages[-1].producer_key = ProducerKey(producer, self._sent)
            self._sent += self.rng.randrange(2)
        given = queue.send(messages, self.now)
        assert not any(given[:known]), "what has come before is stored again"

    def _transfer(self, queue: Queue) -> None:
        subqueue = self._subqueue()
        if subqueue != MAIN or not isinstance(queue, SessionQueue):
            found = queue.take_ready(subqueue, 1, self.now)
            queue.dead_letter(subqueue, found, Overlay("moved"), TRANSFER_DEAD_LETTER)

    # -- settling --------------------------------------------------------------------------------

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
        delay_ms = 0
        if outcome == ABANDON and subqueue == MAIN and not isinstance(queue, SessionQueue):
            delay_ms = self.rng.choice([0, 1_500])
        queue.settle(subqueue, locks, outcome, overlay, self.now, delay_ms)

    def _cancel(self, queue: Queue) -> None:
        waiting = [m for m in messages_of(queue, MAIN) if m.state == SCHEDULED]
        if waiting:
            queue.cancel_scheduled([self.rng.choice(waiting).sequence_number], self.now)

    def _deferred(self, queue: Queue) -> None:
        waiting = [m for m in messages_of(queue, MAIN) if m.state == DEFERRED and not m.grant]
        waiting = [m for m in waiting if m.expires_ms > self.now.utc_ms]
        if waiting and not isinstance(queue, SessionQueue):
            number = self.rng.choice(waiting).sequence_number
            queue.receive_deferred(MAIN, [number], PEEK_LOCK, self.now)

    def _undefer(self, queue: Queue) -> None:
        waiting = [m for m in messages_of(queue, MAIN) if m.state == DEFERRED and not m.grant]
        if waiting:
            queue.undefer([self.rng.choice(waiting).sequence_number], self.now)

    def _subqueue(self) -> int:
        return MAIN if self.rng.random() < 0.8 else DEAD_LETTER_QUEUE

    # -- judgement -------------------------------------------------------------------------------

    def check(self, recovered: Store) -> None:
        """Is this a state that a power cut right now may leave?"""
        found = overview(recovered)
        check_whole(recovered)
        pending = self.durable if self.pending is None else self.pending
        if self.exact:
            assert found in (self.durable, pending)
            return
        lost = (bodies_of(self.durable) & bodies_of(pending)) - bodies_of(found)
        invented = bodies_of(found) - bodies_of(self.durable) - bodies_of(pending)
        assert not lost
        assert not invented


def check_whole(store: Store) -> None:
    """Was everything that is true only together either written or not?"""
    places: dict[bytes, str] = {}
    for queue in store.entities.values():
        remembered = {entry[:DIGEST_SIZE] for entry in ids_of(queue)}
        for subqueue in PARTS:
            messages = messages_of(queue, subqueue)
            for body in store.read_bodies(messages):
                if queue.kind == "queue":
                    assert body not in places, "a message is where it was and where it went"
                    places[body] = queue.name
                if queue.history is not None:
                    message_id = body.partition(b":")[0].decode()
                    digest = digest_of(NewMessage(b"", message_id=message_id), False)
                    assert digest in remembered, "a message is here, and its id is not known"
        if queue.kind == "subscription":
            topic = store.entities[queue.topic_id]
            assert isinstance(topic, Topic)
            assert topic.subscriptions[queue.entity_id] is queue
    for rule in store.rules.values():
        assert rule.subscription_id in store.entities
