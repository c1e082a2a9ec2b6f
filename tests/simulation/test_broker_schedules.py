"""Whole-broker schedules: random work, faults and restarts, one seed each, then a liveness phase.

A schedule sends, schedules, receives, settles, lets time pass and jumps UTC, while turns, commits
and background tasks advance in random steps; now and then the power goes.  There are queues, a
topic with subscriptions, and forwarding between them, of dead letters too:

    s0 ─▶ q0      news ─▶ all ─▶ q1           q2's dead letters ─▶ graves
    q1            news ─▶ red (correlation)    h0 ─▶ h1 ─▶ h2 ─▶ h3 ─▶ h4 ─✕ one hop too many
    q2            news ─▶ tagged (an action)

A partitioned queue, `passing`, is deleted and made anew while it is sent to and received from.  Its
messages are not followed; but whatever happens to it, every command is answered.

What clients were told is kept aside, and after the last restart everything is drained and compared:

- every acknowledged message that was not acknowledged as completed arrives, with its bytes, and so
  does every one of its copies;
- nothing arrives twice, nothing that was completed, and nothing that nobody sent;
- a message has one lock at a time, and sequence numbers are never used twice;
- no reply is left behind.

A failure names its seed; `Schedule(seed).run()` repeats it.
"""

import itertools
import os
import random
from dataclasses import replace
from typing import Final

import pytest

from tests.unit.broker.actions import by_subject, sql
from tests.unit.broker.harness import BrokerHarness, SimSink
from tests.unit.broker.stored_messages import content, new
from twinbus.broker.delivery import Receiver
from twinbus.entities.commands import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    PEEK_LOCK,
    RECEIVE_AND_DELETE,
    RELEASE,
    CreateEntities,
    DeleteEntities,
    Lock,
    NewEntity,
    Reply,
    Send,
    Settle,
)
from twinbus.entities.descriptions import QueueDescription, SubscriptionDescription
from twinbus.entities.facts import DEAD_LETTER as DEAD_LETTER_QUEUE
from twinbus.entities.facts import MAIN, TRANSFER_DEAD_LETTER
from twinbus.entities.partitions import PARTITION_COUNT, partition_name
from twinbus.entities.queue import Queue
from twinbus.entities.topic import Topic
from twinbus.errors import DiskFull, InvalidOperation
from twinbus.limits import FORWARD_HOPS_MAX
from twinbus.links.store_link import ReceiverDescription, Receiving
from twinbus.storage.log import Commit
from twinbus.testing.disk import CrashMode, PowerCut

SCHEDULES = 10_000 if os.environ.get("TWINBUS_TEST_SIZE") == "nightly" else 300
PARTS = 20  # of a test each, so that a failure does not hide the rest
STEPS = 150

HOPS: Final = [f"h{index}" for index in range(FORWARD_HOPS_MAX + 2)]
# Where a message comes to rest, by the entity in which it may be on its way there.
PLACES: Final = {
    "s0": "q0",
    "news/Subscriptions/all": "q1",
    "graves": "q2",
    **dict.fromkeys(HOPS, "h"),
}
PASSING: Final = "passing"
SENDABLE: Final = ("q0", "q1", "q2", "s0", "h0", "news", "news")

Copy = tuple[str, bytes]  # where it rests, and its body


def place_of(queue: Queue) -> str:
    return PLACES.get(queue.name, queue.name)


class ClosingSink(SimSink):
    """A link that ends with its entity, as clients' links do, and so gives back what it holds."""

    receiving: Receiving

    def removed(self) -> None:
        super().removed()
        self.receiving.close()


class Schedule:
    """One seeded run."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.harness = BrokerHarness()
        self.copies: dict[bytes, list[Copy]] = {}
        self.sent: dict[Copy, str] = {}  # "unknown" | "acknowledged"
        self.completed: dict[Copy, str] = {}  # "unknown" | "acknowledged"
        self.numbers: dict[tuple[int, int], bytes] = {}
        self.receivers: list[tuple[Receiver, SimSink]] = []
        self.commit: Commit | None = None
        self.counted = 0
        self.create()

    def create(self) -> None:
        harness = self.harness
        plain = QueueDescription(lock_duration_ms=5_000, max_delivery_count=4)
        harness.create_queue("graves", plain)
        harness.create_queue("q0", plain)
        harness.create_queue("q1", plain)
        harness.create_queue("q2", replace(plain, forward_dead_lettered_messages_to="graves"))
        harness.create_queue("s0", replace(plain, forward_to="q0"))
        harness.create_queue(HOPS[-1], plain)
        for name, target in reversed(list(itertools.pairwise(HOPS))):
            harness.create_queue(name, replace(plain, forward_to=target))
        topic = harness.create_topic()
        description = SubscriptionDescription(lock_duration_ms=5_000, max_delivery_count=4)
        harness.create_subscription(topic, "all", SubscriptionDescription(forward_to="q1"))
        harness.create_subscription(topic, "red", description, by_subject("red"))
        harness.create_subscription(topic, "tagged", description, sql("1 = 1", "SET tag = 1"))
        self.make_passing()

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
        self.answer_all()
        self.power_cut()
        self.check(self.drain())

    def step(self) -> None:
        action = self.rng.choices(
            (self.send, self.settle, self.turn, self.background, self.listen, self.wait,
             self.pass_by, self.power_cut_soon),
            (30, 25, 30, 6, 4, 4, 12, 1),
        )[0]  # fmt: skip
        try:
            action()
            self.note_replies()
        except PowerCut:
            self.restart()

    # -- what clients do ---------------------------------------------------------------------------

    def send(self) -> None:
        store = self.harness.store
        queue = store.entities[store.names[self.rng.choice(SENDABLE)]]
        messages = []
        bodies = []
        for _ in range(self.rng.randint(1, 5)):
            self.counted += 1
            body = b"%d:" % self.counted + self.rng.randbytes(self.rng.choice((0, 10, 3_000)))
            bodies.append(body)
            subject = self.rng.choice(("red", "blue"))
            due_ms = 0
            if self.rng.random() < 0.1:
                due_ms = self.harness.clock.now().utc_ms + self.rng.choice((1, 5_000, 20_000))
            messages.append(new(body, subject, scheduled_ms=due_ms))
            self.copies[body] = copies(queue, subject, body)
            for copy in self.copies[body]:
                self.sent[copy] = "unknown"
        self.harness.submit(Send(queue.entity_id, messages, bodies))

    def listen(self) -> None:
        if len(self.receivers) > 6:
            receiver, _ = self.receivers.pop(self.rng.randrange(len(self.receivers)))
            receiver.close()
        entities = self.harness.store.entities.values()
        queue = self.rng.choice([each for each in entities if each.shown_name != PASSING])
        subqueue = self.rng.choice((MAIN, MAIN, DEAD_LETTER_QUEUE, TRANSFER_DEAD_LETTER))
        try:
            receiver, sink = self.harness.receiver(
                queue, self.rng.randint(1, 20), subqueue=subqueue
            )
        except InvalidOperation:
            return  # a topic, or something that is forwarded
        self.receivers.append((receiver, sink))

    def settle(self) -> None:
        holding = [(r, s) for r, s in self.receivers if s.locks]
        if not holding:
            return
        receiver, sink = self.rng.choice(holding)
        count = self.rng.randint(1, len(sink.locks))
        locks, sink.locks = sink.locks[:count], sink.locks[count:]
        place = place_of(receiver.queue)
        held = {lock: (place, self.body_of(sink, lock)) for lock in locks}
        outcomes = [COMPLETE, COMPLETE, COMPLETE, ABANDON, RELEASE]
        if receiver.subqueue == MAIN:
            outcomes.append(DEAD_LETTER)
        outcome = self.rng.choice(outcomes)
        if outcome == COMPLETE:
            for copy in held.values():
                self.completed.setdefault(copy, "unknown")
        queue = receiver.queue
        self.harness.submit(
            Settle(queue.entity_id, receiver.subqueue, locks, outcome, context=held)
        )
        receiver.set_credit(self.rng.randint(1, 20), drain=False)

    def body_of(self, sink: SimSink, lock: Lock) -> bytes:
        for message, body in zip(reversed(sink.messages), reversed(sink.bodies), strict=True):
            if message.sequence_number == lock[0]:
                return content(body)
        raise AssertionError("a lock without its message")

    # -- the queue that comes and goes -------------------------------------------------------------

    def make_passing(self) -> None:
        description = QueueDescription(lock_duration_ms=5_000, enable_partitioning=True)
        names = [partition_name(PASSING, index) for index in range(PARTITION_COUNT)]
        self.harness.ask(CreateEntities([NewEntity("queue", n, description) for n in names]))

    def pass_by(self) -> None:
        """Send to it, receive from it, delete it, or make it anew."""
        directory = self.harness.gateway.directory
        entity = directory.find(PASSING)
        if entity is None:
            if self.commit is None:  # `ask` goes on to the end
                self.make_passing()
            return
        gateway, choice = self.harness.gateway, self.rng.random()
        if choice < 0.6:
            messages = [new(b"passing", "red") for _ in range(8)]
            partition = self.rng.choice(entity.parts)
            self.harness.submit(Send(partition.entity_id, messages))
        elif choice < 0.85:
            sink = ClosingSink()
            sink.receiving = gateway.open_receiver(
                ReceiverDescription(entity.entity_id, MAIN, PEEK_LOCK), sink
            )
            sink.receiving.set_credit(self.rng.choice((1, 1, 30)), False)
        else:
            directory.remove(entity)
            self.harness.submit(DeleteEntities([part.entity_id for part in entity.parts]))

    # -- what the machine does ---------------------------------------------------------------------

    def turn(self) -> None:
        if self.commit is None:
            self.commit = self.harness.turn()
        else:
            commit, self.commit = self.commit, None
            self.harness.write(commit)

    def background(self) -> None:
        self.harness.maintain()

    def wait(self) -> None:
        self.harness.clock.advance(self.rng.choice((10, 1_000, 6_000)))
        if self.rng.random() < 0.2:
            self.harness.clock.jump_utc(self.rng.choice((-3_600_000, 86_400_000)))
        self.harness.broker.entities.tick()

    def power_cut_soon(self) -> None:
        self.harness.disk.cut_power_after(self.rng.randint(0, 8))

    def power_cut(self) -> None:
        self.restart()

    def answer_all(self) -> None:
        """Whoever asked has his answer as soon as nothing is left to do."""
        try:
            if self.commit is not None:
                self.turn()
            self.harness.run()
        except PowerCut:
            self.restart()
        assert self.harness.broker.open_count == 0, "replies are left behind"

    def restart(self) -> None:
        self.note_replies()
        mode = self.rng.choice(list(CrashMode))
        disk = self.harness.disk.after_power_cut(self.rng, mode)
        self.harness = BrokerHarness(disk, self.harness.clock)
        self.receivers = []
        self.commit = None

    # -- what clients were told --------------------------------------------------------------------

    def note_replies(self) -> None:
        for reply in self.harness.replies:
            self.note(reply)
        self.harness.replies.clear()

    def note(self, reply: Reply) -> None:
        command = reply.command
        if command.context is None:
            return  # about the queue that comes and goes
        if isinstance(command, Send) and reply.error is not None:
            assert isinstance(reply.error, DiskFull)  # background tasks are few
            assert isinstance(command.context, list)
            for body in command.context:
                for copy in self.copies[body]:
                    del self.sent[copy]
        elif isinstance(command, Send):
            assert isinstance(reply.result, list)
            assert isinstance(command.context, list)
            for number, body in zip(reply.result, command.context, strict=True):
                for copy in self.copies[body]:
                    self.sent[copy] = "acknowledged"
                key = (command.entity_id, number)
                assert self.numbers.setdefault(key, body) == body, "a number was used twice"
        elif isinstance(command, Settle) and command.outcome == COMPLETE:
            assert isinstance(command.context, dict)
            errors = reply.result or [None] * len(command.locks)
            assert isinstance(errors, list)
            for lock, error in zip(command.locks, errors, strict=True):
                if error is None:
                    self.completed[command.context[lock]] = "acknowledged"

    # -- the end -----------------------------------------------------------------------------------

    def drain(self) -> list[Copy]:
        # Every lock of before has ended, and what was scheduled is due, wherever UTC has gone.
        self.harness.clock.jump_utc(30 * 86_400_000)
        self.harness.pass_time(60_000)
        self.harness.run()
        found: list[Copy] = []
        entities = [
            queue for queue in self.harness.store.entities.values() if queue.shown_name != PASSING
        ]
        for queue in entities:
            for subqueue in (MAIN, DEAD_LETTER_QUEUE, TRANSFER_DEAD_LETTER):
                try:
                    _, sink = self.harness.receiver(queue, 100_000, RECEIVE_AND_DELETE, subqueue)
                except InvalidOperation:
                    continue
                self.harness.run()
                found += [(place_of(queue), content(body)) for body in sink.bodies]
        for queue in entities:
            assert queue.counts().message_count == 0, "something is stuck"
        return found

    def check(self, found: list[Copy]) -> None:
        arrived = set(found)
        assert len(arrived) == len(found), "the same message is there twice"
        unexpected = arrived - set(self.sent)
        assert not unexpected, "nobody sent this"
        for copy, state in self.sent.items():
            if state == "acknowledged" and copy not in self.completed:
                assert copy in arrived, "an acknowledged message is lost"
        for copy, state in self.completed.items():
            if state == "acknowledged":
                assert copy not in arrived, "a completed message came back"


def copies(queue: Queue, subject: str, body: bytes) -> list[Copy]:
    """What must come of a message that is sent to this entity."""
    if not isinstance(queue, Topic):
        return [(place_of(queue), body)]
    made = [("q1", body), ("news/Subscriptions/tagged", body)]
    if subject == "red":
        made.append(("news/Subscriptions/red", body))
    return made


@pytest.mark.proves("M-1", "M-2", "M-6", "M-8")
@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_loses_or_resurrects(part: int) -> None:
    for seed in range(part, SCHEDULES, PARTS):
        try:
            Schedule(seed).run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
