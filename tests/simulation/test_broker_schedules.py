"""Whole-broker schedules: random work, faults and restarts, one seed each, then a liveness phase.

A schedule sends, receives, settles, peeks, lets time pass and jumps UTC, while turns, commits and
background tasks advance in random steps; now and then the power goes.  What clients were told is
kept aside, and after the last restart everything is drained and compared:

- every acknowledged message that was not acknowledged as completed arrives, with its bytes;
- nothing arrives that was completed, and nothing that nobody sent;
- a message has one lock at a time, and sequence numbers are never used twice.

A failure names its seed; `Schedule(seed).run()` repeats it.
"""

import os
import random

import pytest

from tests.unit.broker.harness import BrokerHarness, SimSink
from twinbus.broker.delivery import Receiver
from twinbus.entities.commands import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    RECEIVE_AND_DELETE,
    RELEASE,
    Lock,
    Reply,
    Send,
    Settle,
)
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.facts import DEAD_LETTER as DEAD_LETTER_QUEUE
from twinbus.entities.facts import MAIN
from twinbus.entities.message import NewMessage
from twinbus.storage.store import Commit
from twinbus.testing.disk import CrashMode, PowerCut

SCHEDULES = 10_000 if os.environ.get("TWINBUS_TEST_SIZE") == "nightly" else 300
PARTS = 20  # of a test each, so that a failure does not hide the rest
STEPS = 150
QUEUES = 3


class Schedule:
    """One seeded run."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.harness = BrokerHarness()
        self.sent: dict[bytes, str] = {}  # body → "unknown" | "acknowledged"
        self.completed: dict[bytes, str] = {}  # body → "unknown" | "acknowledged"
        self.numbers: dict[tuple[int, int], bytes] = {}
        self.receivers: list[tuple[Receiver, SimSink]] = []
        self.commit: Commit | None = None
        self.counted = 0
        description = QueueDescription(lock_duration_ms=5_000, max_delivery_count=4)
        for index in range(QUEUES):
            self.harness.create_queue(f"q{index}", description)

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
        self.power_cut()
        self.check(self.drain())

    def step(self) -> None:
        action = self.rng.choices(
            (self.send, self.settle, self.turn, self.background, self.listen, self.wait,
             self.power_cut_soon),
            (30, 25, 30, 6, 4, 4, 1),
        )[0]  # fmt: skip
        try:
            action()
            self.note_replies()
        except PowerCut:
            self.restart()

    # -- what clients do ---------------------------------------------------------------------------

    def send(self) -> None:
        queue = self.rng.choice(list(self.harness.store.entities.values()))
        bodies = []
        for _ in range(self.rng.randint(1, 5)):
            self.counted += 1
            body = b"%d:" % self.counted + self.rng.randbytes(self.rng.choice((0, 10, 3_000)))
            bodies.append(body)
            self.sent[body] = "unknown"
        self.harness.submit(Send(queue.entity_id, [NewMessage(body) for body in bodies], bodies))

    def listen(self) -> None:
        if len(self.receivers) > 4:
            receiver, _ = self.receivers.pop(self.rng.randrange(len(self.receivers)))
            self.harness.broker.close_receiver(receiver)
        queue = self.rng.choice(list(self.harness.store.entities.values()))
        subqueue = self.rng.choice((MAIN, MAIN, DEAD_LETTER_QUEUE))
        receiver, sink = self.harness.receiver(queue, self.rng.randint(1, 20), subqueue=subqueue)
        self.receivers.append((receiver, sink))

    def settle(self) -> None:
        holding = [(r, s) for r, s in self.receivers if s.locks]
        if not holding:
            return
        receiver, sink = self.rng.choice(holding)
        count = self.rng.randint(1, len(sink.locks))
        locks, sink.locks = sink.locks[:count], sink.locks[count:]
        bodies = {lock: self.body_of(sink, lock) for lock in locks}
        outcomes = [COMPLETE, COMPLETE, COMPLETE, ABANDON, RELEASE]
        if receiver.subqueue == MAIN:
            outcomes.append(DEAD_LETTER)
        outcome = self.rng.choice(outcomes)
        if outcome == COMPLETE:
            for body in bodies.values():
                self.completed.setdefault(body, "unknown")
        queue = receiver.queue
        self.harness.submit(
            Settle(queue.entity_id, receiver.subqueue, locks, outcome, context=bodies)
        )
        self.harness.broker.set_credit(receiver, self.rng.randint(1, 20), drain=False)

    def body_of(self, sink: SimSink, lock: Lock) -> bytes:
        for message, body in zip(reversed(sink.messages), reversed(sink.bodies), strict=True):
            if message.sequence_number == lock[0]:
                return body
        raise AssertionError("a lock without its message")

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
        self.harness.broker.tick()

    def power_cut_soon(self) -> None:
        self.harness.disk.cut_power_after(self.rng.randint(0, 8))

    def power_cut(self) -> None:
        self.restart()

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
        if isinstance(command, Send):
            assert reply.error is None
            assert isinstance(reply.result, list)
            assert isinstance(command.context, list)
            for number, body in zip(reply.result, command.context, strict=True):
                self.sent[body] = "acknowledged"
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

    def drain(self) -> list[bytes]:
        self.harness.pass_time(60_000)  # every lock of before has ended
        self.harness.run()
        found: list[bytes] = []
        for queue in self.harness.store.entities.values():
            for subqueue in (MAIN, DEAD_LETTER_QUEUE):
                _, sink = self.harness.receiver(queue, 100_000, RECEIVE_AND_DELETE, subqueue)
                self.harness.run()
                found += sink.bodies
            assert queue.counts().message_count == 0, "something is stuck"
        return found

    def check(self, found: list[bytes]) -> None:
        arrived = set(found)
        assert len(arrived) == len(found), "the same message is there twice"
        unexpected = arrived - set(self.sent)
        assert not unexpected, "nobody sent this"
        for body, state in self.sent.items():
            if state == "acknowledged" and body not in self.completed:
                assert body in arrived, "an acknowledged message is lost"
        for body, state in self.completed.items():
            if state == "acknowledged":
                assert body not in arrived, "a completed message came back"


@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_loses_or_resurrects(part: int) -> None:  # M-1, M-2
    for seed in range(part, SCHEDULES, PARTS):
        try:
            Schedule(seed).run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
