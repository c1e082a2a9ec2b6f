"""Random transactions over queues and a topic, against a model that is too simple to be wrong.

The model knows for each entity which message is where, and changes only at a commit.  Then the
power is cut at every disk operation of a commit: what is found is what was there before, or what
the commit made of it, and never anything between.
"""

import random
from collections import Counter

import pytest

from tests.unit.broker.harness import BrokerHarness, SimSink
from twinbus.broker.delivery import Receiver
from twinbus.broker.transactions import Transactions
from twinbus.entities.commands import ABANDON, COMPLETE, DEAD_LETTER, DEFER, Lock, Send, Settle
from twinbus.entities.facts import DEAD_LETTER as DEAD_LETTER_QUEUE
from twinbus.entities.facts import MAIN
from twinbus.entities.message import ACTIVE, DEFERRED, SCHEDULED, NewMessage, ProducerKey
from twinbus.entities.queue import Queue
from twinbus.errors import ServiceError, TransactionRolledBack
from twinbus.links.transactions import Transaction
from twinbus.storage.store import Store
from twinbus.testing.clock import SimClock
from twinbus.testing.disk import CrashMode, PowerCut, SimDisk

HOUR_MS = 3_600_000
# After some number of messages before it, a commit of three of these meets the end of a segment:
# there it is seen whether its facts stay together.
LARGE = 12_000
OUTCOMES = (COMPLETE, COMPLETE, ABANDON, DEFER, DEAD_LETTER)

# Entity and body → part, state, delivery count.  Bodies are never used twice.  A number that has
# come from a producer stands among them as NUMBER, with a body that says it.
Model = dict[tuple[str, bytes], tuple[int, int, int]]
Held = tuple[Queue, Lock, bytes]
NUMBER = (-1, -1, 0)


def found_in(store: Store) -> Model:
    """What a store really holds, in the model's words."""
    found: Model = {}
    for queue in store.entities.values():
        for subqueue in (MAIN, DEAD_LETTER_QUEUE):
            messages = queue.messages_from(subqueue, 0, 10_000)
            for message, body in zip(messages, store.read_bodies(messages), strict=True):
                key = (queue.name, body)
                assert key not in found, f"{key} is there twice"
                found[key] = (subqueue, message.state, message.delivery_count)
        if queue.arrivals is not None:
            bounds = queue.arrivals.bounds_of("producer")
            for first, end in zip(bounds[::2], bounds[1::2], strict=True):
                found |= {(queue.name, b"number %d" % each): NUMBER for each in range(first, end)}
    return found


class World:
    """A broker, its model, and a client that does things at random."""

    def __init__(self, seed: int, disk: SimDisk | None = None) -> None:
        self.random = random.Random(seed)
        self.harness = harness = BrokerHarness(disk)
        topic = harness.create_topic("t")
        self.targets: list[Queue] = [harness.create_queue(f"q{n}") for n in range(2)]
        sources = [*self.targets, *(harness.create_subscription(topic, f"s{n}") for n in range(2))]
        self.copies = {"t": [queue.name for queue in sources[2:]]}
        self.targets.append(topic)
        self.receivers: list[tuple[Receiver, SimSink]] = [harness.receiver(q) for q in sources]
        self.transactions = Transactions(harness.broker, harness.clock, b"model")
        self.model: Model = {}
        self.made = 0
        self.held: list[Held] = []
        self.ends: Counter[str] = Counter()

    # -- outside of transactions -------------------------------------------------------------------

    def receive(self) -> None:
        """Lock a few messages."""
        receiver, sink = self.random.choice(self.receivers)
        receiver.set_credit(self.random.randrange(1, 4), drain=False)
        self.harness.run()
        receiver.set_credit(0, drain=False)
        for lock, body in zip(sink.locks, sink.bodies, strict=True):
            self.held.append((receiver.queue, lock, body))
        sink.locks.clear()
        sink.bodies.clear()

    def send_plainly(self, count: int) -> None:
        queue = self.targets[0]
        for _ in range(count):
            body = self.new_body(LARGE)
            self.harness.send(queue, body)
            self.harness.run()
            self.model[queue.name, body] = (MAIN, ACTIVE, 0)

    def complete_plainly(self, held: Held) -> None:
        queue, lock, body = held
        self.harness.submit(Settle(queue.entity_id, MAIN, [lock], COMPLETE))
        self.harness.run()
        del self.model[queue.name, body]

    # -- transactions ------------------------------------------------------------------------------

    def fill(self, transaction: Transaction) -> tuple[Model, list[Held]]:
        """Add things at random; gives the model as the commit must make it, and what it settles."""
        after = dict(self.model)
        settled: list[Held] = []
        for _ in range(self.random.randrange(1, 6)):
            kind = self.random.choice(("send", "send", "schedule", "settle", "settle"))
            if kind == "settle":
                if self.held:
                    held = self.held.pop(self.random.randrange(len(self.held)))
                    self._settle(transaction, held, after)
                    settled.append(held)
                continue
            queue = self.random.choice(self.targets)
            length = self.random.choice((6, 240, 6_000))
            bodies = [self.new_body(length) for _ in range(self.random.randrange(1, 4))]
            due_ms = self.harness.clock.now().utc_ms + HOUR_MS if kind == "schedule" else 0
            self.send(transaction, queue, bodies, after, due_ms)
        self._number_all(transaction, after)
        return after, settled

    def send(
        self,
        transaction: Transaction,
        queue: Queue,
        bodies: list[bytes],
        after: Model,
        due_ms: int = 0,
    ) -> None:
        new = [NewMessage(body, scheduled_ms=due_ms) for body in bodies]
        if due_ms:
            self.transactions.schedule(transaction, Send(queue.entity_id, new))
            after |= {(queue.name, body): (MAIN, SCHEDULED, 0) for body in bodies}
            return
        self.transactions.add(transaction, Send(queue.entity_id, new))
        for name in self.copies.get(queue.name, [queue.name]):
            after |= {(name, body): (MAIN, ACTIVE, 0) for body in bodies}

    def _number_all(self, transaction: Transaction, after: Model) -> None:
        """Number what was added, some of it as copies, in the order in which a commit applies it:
        sends go before schedules.  A copy must leave nothing."""
        added = [
            (self._queue(entity_id), new, ACTIVE)
            for entity_id, messages in transaction.sends.items()
            for new in messages
        ]
        for scheduled in transaction.scheduled:
            added += [(scheduled.queue, new, SCHEDULED) for new in scheduled.messages]
        for queue, new, state in added:
            if self.random.random() < 0.5:
                continue
            number = self.random.randrange(1, 60)
            new.producer_key = ProducerKey("producer", number)
            known = (queue.name, b"number %d" % number)
            if known in after:
                names = [queue.name]
                if state == ACTIVE:
                    names = self.copies.get(queue.name, names)
                for name in names:
                    del after[name, new.body]
                self.ends["copy"] += 1
            after[known] = NUMBER

    def _queue(self, entity_id: int) -> Queue:
        return self.harness.store.entities[entity_id]

    def _settle(self, transaction: Transaction, held: Held, after: Model) -> None:
        queue, lock, body = held
        outcome = self.random.choice(OUTCOMES)
        self.transactions.add(transaction, Settle(queue.entity_id, MAIN, [lock], outcome))
        _, state, count = after.pop((queue.name, body))
        if outcome == DEAD_LETTER:
            after[queue.name, body] = (DEAD_LETTER_QUEUE, ACTIVE, count)
        elif outcome == DEFER:
            after[queue.name, body] = (MAIN, DEFERRED, count)
        elif outcome == ABANDON:
            after[queue.name, body] = (MAIN, state, count + 1)
            if count + 1 >= queue.description.max_delivery_count:
                after[queue.name, body] = (DEAD_LETTER_QUEUE, ACTIVE, count + 1)

    def new_body(self, length: int) -> bytes:
        self.made += 1
        return b"%06d" % self.made * (length // 6)

    def transact(self) -> None:
        """One whole transaction, which ends in one of the ways there are."""
        transaction = self.transactions.declare(self)
        after, settled = self.fill(transaction)
        end = self.random.choice(("commit", "commit", "commit", "abort", "spoil"))
        if end == "spoil" and settled:
            self.complete_plainly(settled.pop())
        else:
            end = "commit" if end == "spoil" else end
        self.ends[end] += 1
        if end == "abort":
            self.transactions.roll_back(transaction)
        else:
            results: list[ServiceError | None] = []
            self.transactions.commit(transaction, results.append)
            self.harness.run()
            assert isinstance(
                results.pop(), TransactionRolledBack if end == "spoil" else type(None)
            )
        if end == "commit":
            self.model = after
        else:
            self.held += settled  # their locks hold as before

    def live(self, steps: int) -> None:
        for _ in range(steps):
            self.receive()
            self.transact()
            assert found_in(self.harness.store) == self.model


@pytest.mark.proves("M-7")
@pytest.mark.feature("transaction.commit")
@pytest.mark.parametrize("seed", range(20))
def test_random_transactions(seed: int) -> None:
    world = World(seed)
    world.live(40)
    assert min(world.ends["commit"], world.ends["abort"], world.ends["copy"]) > 0
    # All of it is on disk too.
    world.harness.store.close()
    later = BrokerHarness(world.harness.disk, world.harness.clock)
    assert found_in(later.store) == world.model


def commit_until_cut(earlier: int, operations: int) -> tuple[SimDisk, Model, Model, bool]:
    """A commit with the power cut after so many operations: the disk, the model before and after,
    and whether the client was told that it is done."""
    disk = SimDisk()
    world = World(earlier, disk)
    world.live(2)
    world.send_plainly(earlier)
    transaction = world.transactions.declare(world)
    after, _ = world.fill(transaction)
    for queue in world.targets:
        world.send(transaction, queue, [world.new_body(LARGE)], after)
    results: list[ServiceError | None] = []
    disk.cut_power_after(operations)
    try:
        world.transactions.commit(transaction, results.append)
        world.harness.run()
    except PowerCut:
        pass
    return disk, world.model, after, bool(results)


@pytest.mark.proves("M-7")
@pytest.mark.feature("transaction.crash")
@pytest.mark.parametrize("earlier", [0, *range(14, 22)])
def test_power_cut_at_every_point_of_a_commit(earlier: int) -> None:
    operations = 0
    told = False
    seen_before = seen_after = 0
    while not told:
        disk, before, after, told = commit_until_cut(earlier, operations)
        for trial, mode in enumerate(list(CrashMode) * 3):
            left = disk.after_power_cut(random.Random(f"{operations} {trial}"), mode)
            clock = SimClock()
            clock.advance(1_000_000)
            store = Store.open(left, clock.now(), 7)
            found = found_in(store)
            store.close()
            assert found in (before, after), f"half a commit: operation {operations}, {mode}"
            assert found == after or not told, "an acknowledged commit is gone"
            seen_before += found == before
            seen_after += found == after
        operations += 1
    assert seen_before > 0
    assert seen_after > 0
