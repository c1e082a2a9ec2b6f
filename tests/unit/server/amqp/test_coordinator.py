"""The coordinator at an endpoint: control links, ids on every kind of link, every way to end."""

import pytest
import pytest_asyncio

from tests.unit.server.wired import Client, Scene
from twinbus.amqp.composites import (
    ACCEPTED,
    Accepted,
    Declare,
    Declared,
    DeliveryState,
    Discharge,
    Modified,
    Rejected,
    TransactionalState,
    transactional,
)
from twinbus.amqp.egress import EgressLink
from twinbus.amqp.events import DispositionReceived, IncomingSettled
from twinbus.amqp.frames import encode_frame
from twinbus.amqp.ingress import DeliveryReceived, IngressLink
from twinbus.amqp.transfers import Transfer
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.queue import Queue
from twinbus.limits import TRANSACTION_DURATION_MS_MAX
from twinbus.message.plain import data_section, encode_message

pytestmark = pytest.mark.asyncio

VALUE = b"\x00\x53\x77"  # the descriptor of a body that is one value
BODY = encode_message(data_section(b"body"))


class Person:
    """A client with a control link."""

    def __init__(self, scene: Scene) -> None:
        self.client: Client = scene.connect()
        self.control = self.client.attach_coordinator()

    def post(
        self, link: EgressLink, data: bytes, txn_id: bytes | None = None, settled: bool = False
    ) -> DeliveryState | None:
        """Send one delivery; gives what the server says about it."""
        session = link.session
        delivery_id = link.deliveries.next_id
        link.deliveries.next_id += 1
        if not settled:
            link.deliveries.unsettled[delivery_id] = (link, None)
            link.unsettled_count += 1
        state = None if txn_id is None else TransactionalState(txn_id)
        transfer = Transfer(link.handle, delivery_id, b"tag", settled=settled, state=state)
        session.wire.write(encode_frame(session.channel, transfer.encode(), data))
        told = [event for event in self.client.pump() if isinstance(event, DispositionReceived)]
        return told[-1].state if told else None

    def declare(self) -> bytes:
        state = self.post(self.control, VALUE + Declare().encode())
        assert isinstance(state, Declared)
        return state.txn_id

    def discharge(self, txn_id: bytes, fail: bool = False) -> str:
        """What became of it: accepted, or why not."""
        return said(self.post(self.control, VALUE + Discharge(txn_id, fail).encode()))

    def dispose(self, link: IngressLink, number: int, state: bytes) -> IncomingSettled | None:
        """Say something about a delivery without settling it; gives the server's answer."""
        link.settle(number, number, state, settled=False)
        told = [event for event in self.client.pump() if isinstance(event, IncomingSettled)]
        return told[-1] if told else None


def said(state: DeliveryState | None) -> str:
    if isinstance(state, Rejected):
        assert state.error is not None
        return state.error.condition
    return type(state).__name__.lower()


@pytest_asyncio.fixture
async def scene() -> Scene:
    return Scene()


@pytest_asyncio.fixture
async def queue(scene: Scene) -> Queue:
    return scene.harness.create_queue("orders")


@pytest_asyncio.fixture
async def person(scene: Scene, queue: Queue) -> Person:
    return Person(scene)


def count(queue: Queue) -> int:
    return queue.counts().message_count


@pytest.mark.proves("M-7")
async def test_commit_and_roll_back(person: Person, queue: Queue) -> None:
    sender = person.client.attach_sender("orders")
    for fail, expected in ((True, 0), (False, 1)):
        txn_id = person.declare()
        state = person.post(sender, BODY, txn_id)
        assert isinstance(state, TransactionalState)
        assert state.txn_id == txn_id
        assert isinstance(state.outcome, Accepted)
        assert count(queue) == 0
        assert person.discharge(txn_id, fail) == "accepted"
        assert count(queue) == expected


@pytest.mark.proves("M-7")
@pytest.mark.feature("transaction.limits")
async def test_times_out(person: Person, scene: Scene, queue: Queue) -> None:
    sender = person.client.attach_sender("orders")
    txn_id = person.declare()
    person.post(sender, BODY, txn_id)
    scene.harness.pass_time(TRANSACTION_DURATION_MS_MAX)
    person.client.tick()
    assert said(person.post(sender, BODY, txn_id)) == "amqp:transaction:timeout"
    assert person.discharge(txn_id) == "amqp:transaction:timeout"
    assert count(queue) == 0
    assert scene.harness.broker.transaction_bytes == 0


@pytest.mark.proves("M-7")
@pytest.mark.feature("transaction.limits")
@pytest.mark.parametrize("what", ["control link", "session", "connection"])
async def test_what_goes_takes_its_transactions_along(
    person: Person, scene: Scene, queue: Queue, what: str
) -> None:
    sender = person.client.attach_sender("orders")
    txn_id = person.declare()
    person.post(sender, BODY, txn_id)
    assert scene.harness.broker.transaction_bytes > 0
    if what == "control link":
        person.control.detach()
        person.client.pump()
        assert said(person.post(sender, BODY, txn_id)) == "amqp:transaction:unknown-id"
    elif what == "session":
        person.client.session.end()
        person.client.pump()
    else:
        person.client.leave()
    assert scene.harness.broker.transaction_bytes == 0
    assert count(queue) == 0


async def test_commit_of_a_lost_lock_names_the_reason(
    person: Person, scene: Scene, queue: Queue
) -> None:
    sender = person.client.attach_sender("orders")
    person.post(sender, BODY)
    receiver = person.client.attach_receiver("orders", credit=1)
    txn_id = person.declare()
    person.dispose(receiver, 0, transactional(txn_id, ACCEPTED))
    person.post(sender, BODY, txn_id)
    scene.harness.pass_time(queue.description.lock_duration_ms)
    assert person.discharge(txn_id) == "amqp:transaction:rollback"
    assert count(queue) == 1


async def test_settlement_waits_for_the_commit(person: Person, queue: Queue) -> None:
    person.post(person.client.attach_sender("orders"), BODY)
    receiver = person.client.attach_receiver("orders", credit=1)
    txn_id = person.declare()
    answer = person.dispose(receiver, 0, transactional(txn_id, ACCEPTED))
    assert answer is not None
    assert not answer.settled
    assert isinstance(answer.state, TransactionalState)
    assert isinstance(answer.state.outcome, Accepted)
    assert count(queue) == 1
    person.client.settled()
    assert person.discharge(txn_id) == "accepted"
    (settled,) = person.client.settled()
    assert settled.settled
    assert isinstance(settled.state, Accepted)
    assert count(queue) == 0


async def test_rolled_back_settlement_can_be_said_again(person: Person, queue: Queue) -> None:
    person.post(person.client.attach_sender("orders"), BODY)
    receiver = person.client.attach_receiver("orders", credit=1)
    txn_id = person.declare()
    person.dispose(receiver, 0, transactional(txn_id, ACCEPTED))
    assert person.discharge(txn_id, fail=True) == "accepted"
    answer = person.dispose(receiver, 0, Modified(False, True).encode())
    assert answer is not None
    assert answer.settled
    assert queue.counts().deferred == 1


async def test_transaction_without_an_outcome_decides_nothing(person: Person, queue: Queue) -> None:
    person.post(person.client.attach_sender("orders"), BODY)
    receiver = person.client.attach_receiver("orders", credit=1)
    txn_id = person.declare()
    assert person.dispose(receiver, 0, TransactionalState(txn_id).encode()) is None
    assert person.dispose(receiver, 0, ACCEPTED) is not None
    assert count(queue) == 0


async def test_settled_settlement_that_fails_fails_the_commit(
    person: Person, scene: Scene, queue: Queue
) -> None:
    sender = person.client.attach_sender("orders")
    person.post(sender, BODY)
    receiver = person.client.attach_receiver("orders", credit=1)
    txn_id = person.declare()
    scene.harness.pass_time(queue.description.lock_duration_ms)
    receiver.settle(0, 0, transactional(txn_id, ACCEPTED))
    person.post(sender, BODY, txn_id)
    assert person.discharge(txn_id) == "amqp:transaction:rollback"
    assert count(queue) == 1


async def test_too_large_and_settled_fails_the_commit(person: Person, scene: Scene) -> None:
    small = scene.harness.create_queue("small", QueueDescription(max_message_size_kilobytes=1))
    sender = person.client.attach_sender("small")
    txn_id = person.declare()
    person.post(sender, BODY, txn_id)
    large = encode_message(data_section(b"x" * 1_024))
    assert person.post(sender, large, txn_id, settled=True) is None
    assert person.discharge(txn_id) == "amqp:transaction:rollback"
    assert count(small) == 0


async def test_what_came_before_happens_before(person: Person, queue: Queue) -> None:
    """A plain send and the commit in one read keep their order."""
    sender = person.client.attach_sender("orders")
    txn_id = person.declare()
    person.post(sender, BODY, txn_id)
    plain = encode_message(data_section(b"plain"))
    sender.send(b"plain", plain, b"", True, None)
    assert person.discharge(txn_id) == "accepted"
    receiver = person.client.attach_receiver("orders", credit=2)
    assert receiver.attached
    received = [e for e in person.client.events if isinstance(e, DeliveryReceived)]
    assert [b"plain" in event.data for event in received] == [True, False]


async def test_other_people_cannot_use_an_id(person: Person, scene: Scene, queue: Queue) -> None:
    txn_id = person.declare()
    stranger = Person(scene)
    sender = stranger.client.attach_sender("orders")
    assert said(stranger.post(sender, BODY, txn_id)) == "amqp:transaction:unknown-id"
    assert stranger.discharge(txn_id, fail=True) == "amqp:transaction:unknown-id"
    assert person.discharge(txn_id) == "accepted"
    assert person.discharge(txn_id) == "amqp:transaction:unknown-id"


@pytest.mark.parametrize(
    "data, condition",
    [
        (b"", "com.microsoft:argument-error"),
        (b"nonsense", "com.microsoft:argument-error"),
        (VALUE + Accepted().encode(), "com.microsoft:argument-error"),
        (VALUE + Declare(b"global").encode(), "amqp:not-implemented"),
        (VALUE + Discharge(b"").encode(), "amqp:transaction:unknown-id"),
    ],
)
async def test_bad_requests_are_refused(person: Person, data: bytes, condition: str) -> None:
    assert said(person.post(person.control, data)) == condition
    assert person.discharge(person.declare()) == "accepted"


async def test_settled_declare_declares_nothing(person: Person) -> None:
    assert person.post(person.control, VALUE + Declare().encode(), settled=True) is None
    assert person.client.endpoint.conversation.transactions._open == {}
