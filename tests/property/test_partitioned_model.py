"""A partitioned queue over several stores against a dictionary.

Links lag, so that commands, credit and deliveries cross each other, and stores go down and come
back.  Whatever happens: no message is lost, none is there twice, those of one key come in the order
they were sent, and no client ever gets more than it has asked for.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.gateway.partitions.partitioned_harness import Asker, Bus, new
from twinbus.entities.commands import (
    ABANDON,
    COMPLETE,
    PEEK_LOCK,
    RECEIVE_AND_DELETE,
    RELEASE,
    Lock,
    Peek,
    Send,
    Settle,
)
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.facts import MAIN
from twinbus.entities.message import Message
from twinbus.entities.partitions import hash_key, partition_of
from twinbus.errors import ServiceError, Unavailable
from twinbus.gateway.partitions.receiver import PartitionedReceiver
from twinbus.links.store_link import DOWN, SLOW, UP, ReceiverDescription

pytestmark = pytest.mark.proves("E-3", "E-9", "E-15")

STORES = 3
LOCK_MS = 10_000
KEYS = st.sampled_from(["a", "b", "c", "d", None])


@dataclass
class Record:
    """A message that was accepted."""

    key: str | None
    number: int


@dataclass
class Client:
    """A receiving link that counts what it has asked for."""

    removes: bool
    credit: int = 0
    asked_to_drain: int = 0
    drained_count: int = 0
    got: list[tuple[bytes, Lock]] = field(default_factory=list)
    is_full: bool = False
    receiver: PartitionedReceiver | None = None

    def deliver(self, messages: list[Message], bodies: list[bytes], until_ms: int) -> None:
        assert (until_ms == 0) == self.removes
        assert len(messages) <= self.credit, "more than it has asked for"
        self.credit -= len(messages)
        for message, body in zip(messages, bodies, strict=True):
            assert message.length == len(body)
            self.got.append((body, (message.sequence_number, message.grant)))

    def full(self) -> bool:
        return self.is_full

    def drained(self) -> None:
        self.drained_count += 1
        assert self.drained_count <= self.asked_to_drain
        self.credit = 0

    def removed(self) -> None:
        raise AssertionError

    def lost(self, error: ServiceError) -> None:
        raise AssertionError(error)


class PartitionedQueueAgainstModel(RuleBasedStateMachine):
    """Whatever happens, nothing is lost, doubled or overtaken within a key."""

    @initialize(lags=st.booleans())
    def begin(self, lags: bool) -> None:
        self.bus = Bus(STORES, lags)
        self.queue = self.bus.create(
            description=QueueDescription(lock_duration_ms=LOCK_MS, max_delivery_count=1_000)
        )
        self.sent = 0
        self.records: dict[bytes, Record] = {}
        self.sending: list[tuple[list[tuple[bytes, str | None]], Asker]] = []
        self.clients: list[Client] = []
        self.settled_gone: set[bytes] = set()

    # -- sending -------------------------------------------------------------------------------

    @rule(key=KEYS, count=st.integers(1, 3))
    def send(self, key: str | None, count: int) -> None:
        bodies = [b"%d" % (self.sent + i) for i in range(count)]
        self.sent += count
        asker = self.bus.start(self.queue, Send(0, [new(body, key) for body in bodies]))
        self.sending.append(([(body, key) for body in bodies], asker))

    def take_replies(self) -> None:
        for bodies, asker in self.sending:
            if not asker.replies:
                continue
            reply = asker.replies[0]
            assert len(asker.replies) == 1
            key = bodies[0][1]
            if reply.error is not None:
                assert isinstance(reply.error, Unavailable)
                is_up = [sim.health != DOWN for sim in self.bus.sims]
                assert key is not None or not any(is_up), "E-7"
                continue
            assert isinstance(reply.result, list)
            for (body, _), number in zip(bodies, reply.result, strict=True):
                if key is not None:
                    assert partition_of(number) == hash_key(key), "E-3"
                self.records[body] = Record(key, number)
        self.sending = [each for each in self.sending if not each[1].replies]

    # -- receiving -----------------------------------------------------------------------------

    @precondition(lambda self: len(self.clients) < 3)
    @rule(removes=st.booleans())
    def open(self, removes: bool) -> None:
        client = Client(removes)
        mode = RECEIVE_AND_DELETE if removes else PEEK_LOCK
        try:
            client.receiver = PartitionedReceiver(
                self.bus, self.queue, ReceiverDescription(self.queue.entity_id, MAIN, mode), client
            )
        except Unavailable:
            assert all(sim.health == DOWN for sim in self.bus.sims)
        else:
            self.clients.append(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), more=st.integers(-20, 40), drain=st.booleans())
    def grant(self, data: st.DataObject, more: int, drain: bool) -> None:
        client = data.draw(st.sampled_from(self.clients))
        assert client.receiver is not None
        if client.removes:
            more = abs(more)  # what was removed for a credit that is taken back stays with the link
        client.credit = max(0, client.credit + more)
        if drain:
            client.asked_to_drain += 1
        client.receiver.set_credit(client.credit, drain)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def fill_or_empty(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        assert client.receiver is not None
        client.is_full = not client.is_full
        if not client.is_full:
            client.receiver.resume()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        assert client.receiver is not None
        client.receiver.close()
        self.bus.settle()  # what was being removed still arrives
        self.take_received()
        self.clients.remove(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), outcome=st.sampled_from([COMPLETE, COMPLETE, ABANDON, RELEASE]))
    def settle(self, data: st.DataObject, outcome: int) -> None:
        client = data.draw(st.sampled_from(self.clients))
        count = data.draw(st.integers(0, len(client.got)))
        held, client.got = client.got[:count], client.got[count:]
        if not held or client.removes:
            return
        asker = self.bus.ask(self.queue, Settle(0, MAIN, [lock for _, lock in held], outcome))
        reply = asker.replies[0]
        if reply.error is not None:  # all are in one partition, and that is down
            assert isinstance(reply.error, Unavailable)
            return
        errors = asker.result or [None] * len(held)
        for (body, _), error in zip(held, errors, strict=True):
            if error is None and outcome == COMPLETE:
                self.mark_gone(body)

    def take_received(self) -> None:
        for client in self.clients:
            if client.removes:
                for body, _ in client.got:
                    self.mark_gone(body)
                client.got = []

    def mark_gone(self, body: bytes) -> None:
        assert body not in self.settled_gone, "handed out twice, or completed twice"
        self.settled_gone.add(body)

    # -- what goes on ----------------------------------------------------------------------------

    @rule(store=st.integers(0, STORES - 1), health=st.sampled_from([UP, SLOW, DOWN]))
    def fare(self, store: int, health: int) -> None:
        if health == DOWN:
            self.bus.settle()  # nothing is on its way: what may have happened is another test's
        self.bus.sims[store].health = health

    @rule(store=st.integers(0, STORES - 1))
    def step(self, store: int) -> None:
        self.bus.sims[store].settle()

    @rule()
    def run(self) -> None:
        self.bus.settle()

    @rule(duration_ms=st.sampled_from([100, 1_000, 3_000, 12_000]))
    def pass_time(self, duration_ms: int) -> None:
        self.bus.pass_time(duration_ms)

    # -- what must hold ----------------------------------------------------------------------------

    @invariant()
    def replies_and_deliveries_are_right(self) -> None:
        if hasattr(self, "bus"):
            self.take_replies()
            self.take_received()

    def teardown(self) -> None:
        """Everything comes back, and is received once, in order."""
        if not hasattr(self, "bus"):
            return
        for sim in self.bus.sims:
            sim.health = UP
        self.bus.settle()
        for client in self.clients:
            assert client.receiver is not None
            client.receiver.close()
        self.bus.settle()
        self.take_replies()
        self.take_received()
        self.bus.pass_time(LOCK_MS + 6_000)
        assert not self.sending
        left = {body for body in self.records if body not in self.settled_gone}
        self.check_peek(left)
        self.check_receive(left)

    def check_peek(self, left: set[bytes]) -> None:
        seen: list[bytes] = []
        number = 0
        while True:
            found = self.bus.ask(self.queue, Peek(0, MAIN, number, 7)).result
            if not found:
                break
            seen += [each.body for each in found]
            number = found[-1].message.sequence_number + 1
        assert sorted(seen) == sorted(left)

    def check_receive(self, left: set[bytes]) -> None:
        last = Client(removes=False)
        last.receiver = PartitionedReceiver(
            self.bus, self.queue, ReceiverDescription(self.queue.entity_id, MAIN, PEEK_LOCK), last
        )
        for _ in range(len(left) // 5 + 2):
            last.credit += 5
            last.receiver.set_credit(last.credit, drain=False)
            self.bus.settle()
        bodies = [body for body, _ in last.got]
        assert sorted(bodies) == sorted(left)
        by_key: dict[str, list[int]] = {}
        for body in bodies:
            record = self.records[body]
            if record.key is not None:
                by_key.setdefault(record.key, []).append(int(body))
        for numbers in by_key.values():
            assert numbers == sorted(numbers)


TestPartitionedQueue = PartitionedQueueAgainstModel.TestCase
TestPartitionedQueue.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
