"""A link at which faults refuse what clients ask: commands, receivers, transactions."""

from typing import Any

import pytest

from tests.unit.broker.harness import BrokerHarness, SimSink
from twinbus.entities.commands import (
    COMPLETE,
    PEEK_LOCK,
    Command,
    GetRuntime,
    ListEntities,
    Reply,
    Send,
    Settle,
)
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.facts import MAIN
from twinbus.entities.message import NewMessage
from twinbus.entities.partitions import PARTITION_COUNT, partition_name
from twinbus.errors import ServerBusy, ServiceError, Unavailable
from twinbus.gateway.directory.directory import Entity
from twinbus.gateway.faults.faults import Fault, Faults, Wanted
from twinbus.gateway.faults.link import FaultyLink
from twinbus.links.store_link import ReceiverDescription
from twinbus.links.wrapper import LinkWrapper

pytestmark = pytest.mark.proves("A-1", "A-6")


class Asker:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.errors: list[ServiceError | None] = []

    def replied(self, reply: Reply, rest: object) -> None:
        self.errors.append(reply.error)


class World:
    """One store with a plain queue, another one, and a partitioned one."""

    store_count = 1
    broker_count = 0

    def __init__(self) -> None:
        harness = self.harness = BrokerHarness()
        self.orders = harness.create_queue("orders").entity_id
        self.bills = harness.create_queue("bills").entity_id
        self.own = harness.create_queue("$own").entity_id
        self.wide = [
            harness.create("queue", partition_name("wide", p), QueueDescription()).entity_id
            for p in range(PARTITION_COUNT)
        ]
        self.faults = Faults(self, lambda: 0.0)
        self.link = FaultyLink(harness.broker, 0, self.faults)
        self.link.watch(harness.gateway.directory)

    def prefix(self, namespace: str) -> str | None:
        return "" if namespace == "first" else None

    def find(self, name: str) -> Entity | None:
        return self.harness.gateway.directory.find(name)

    def add(self, kind: str, **scope: Any) -> Fault:
        fault = self.faults.add(Wanted(kind, **scope), self.harness.clock.now())
        self.link.set_work(self.faults.active)
        return fault

    def clear(self, fault: Fault) -> None:
        self.faults.clear(fault)
        self.link.set_work(self.faults.active)

    def submit(self, *commands: Command) -> list[ServiceError | None]:
        """The errors, in the order in which they were told."""
        asker = Asker()
        for command in commands:
            command.context = (asker, None)
        self.link.submit(list(commands))
        self.harness.run()
        return asker.errors

    def send(self, entity_id: int) -> ServiceError | None:
        [error] = self.submit(Send(entity_id, [NewMessage(b"body")]))
        return error

    def receive(self, entity_id: int, **how: Any) -> tuple[Any, SimSink]:
        sink = SimSink()
        receiver = self.link.open_receiver(
            ReceiverDescription(entity_id, MAIN, PEEK_LOCK, **how), sink
        )
        receiver.set_credit(10, False)
        self.harness.run()
        return receiver, sink


@pytest.fixture
def world() -> World:
    return World()


def test_without_faults_nothing_passes_through_it(world: World) -> None:
    assert world.link.submit == world.harness.broker.submit
    fault = world.add("refuse-sends")
    assert world.link.submit != world.harness.broker.submit
    world.clear(fault)
    assert world.link.submit == world.harness.broker.submit
    assert world.link.health == world.harness.broker.health
    assert world.link.open_count == world.link.pending_bytes == 0


@pytest.mark.proves("A-1")
def test_commands_are_refused_one_by_one(world: World) -> None:
    world.add("refuse-sends", entity="orders")
    assert isinstance(world.send(world.orders), Unavailable)
    assert world.send(world.bills) is None
    refused, passed = world.submit(
        Send(world.bills, [NewMessage(b"a")]), Send(world.orders, [NewMessage(b"b")])
    )
    assert isinstance(refused, Unavailable)  # nobody has to be asked for that
    assert passed is None
    assert world.harness.store.entities[world.orders].last_sequence_number == 0


def test_what_the_gateway_asks_for_itself(world: World) -> None:
    world.add("throttle")
    assert world.submit(GetRuntime([world.orders]), ListEntities()) == [None, None]
    assert world.send(world.own) is None
    assert isinstance(world.send(world.orders), ServerBusy)
    _, sink = world.receive(world.orders, relays=True)
    assert sink.errors == []


def test_what_nobody_knows_is_the_stores_to_refuse(world: World) -> None:
    world.add("throttle")
    error = world.send(999)
    assert error is not None
    assert not isinstance(error, ServerBusy)


@pytest.mark.proves("A-6")
def test_one_partition(world: World) -> None:
    world.add("partition-down", entity="wide", partitions=(3,))
    assert isinstance(world.send(world.wide[3]), Unavailable)
    assert world.send(world.wide[4]) is None
    settle = Settle(world.wide[3], MAIN, [(1, 1)], COMPLETE)
    assert isinstance(world.submit(settle)[0], Unavailable)


@pytest.mark.proves("A-1")
def test_receivers_and_sessions_are_refused(world: World) -> None:
    fault = world.add("refuse-receives", entity="orders")
    with pytest.raises(Unavailable):
        world.receive(world.orders)
    with pytest.raises(Unavailable):
        world.link.accept_session(world.orders, "s", 0, 0, lambda result: None)
    world.receive(world.bills)
    world.clear(fault)
    world.receive(world.orders)


@pytest.mark.proves("A-6")
def test_a_receiver_at_a_partition(world: World) -> None:
    fault = world.add("partition-down", entity="wide", partitions=(3,))
    with pytest.raises(Unavailable):
        world.receive(world.wide[3])
    world.receive(world.wide[4])
    world.clear(fault)
    world.receive(world.wide[3])


def test_who_wraps_it_lends_out_what_it_does(world: World) -> None:
    outer = LinkWrapper(world.link, has_work=False)
    assert outer.submit == world.harness.broker.submit
    fault = world.add("refuse-sends")
    assert outer.submit == world.link.submit != world.harness.broker.submit
    world.clear(fault)
    assert outer.submit == world.harness.broker.submit


def test_transactions(world: World) -> None:
    transactions = world.link.transactions(world.harness.clock, b"prefix")
    transaction = transactions.declare(None)
    world.add("refuse-sends", entity="orders")
    with pytest.raises(Unavailable):
        transactions.add(transaction, Send(world.orders, [NewMessage(b"refused")]))
    transactions.add(transaction, Send(world.bills, [NewMessage(b"taken")]))
    ended: list[object] = []
    transactions.commit(transaction, ended.append)
    world.harness.run()
    assert ended == [None]
    assert world.harness.store.entities[world.bills].last_sequence_number == 1
