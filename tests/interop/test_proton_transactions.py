"""Transactions with Apache Qpid Proton, which declares, posts, settles and discharges by the book.

The official SDKs for Python and Node have no transactions; Proton's own classes are used wherever
they can express what is wanted.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from proton import (
    UNDESCRIBED,
    Array,
    Data,
    Delivery,
    Described,
    Endpoint,
    Message,
    Timeout,
    int32,
    symbol,
    timestamp,
)
from proton.handlers import TransactionHandler
from proton.reactor import AtMostOnce, SenderOption
from proton.utils import BlockingConnection, LinkDetached, SendException

from tests.interop.test_proton import put_token
from tests.interop.test_proton_sessions import EXCLUSIVE, Ask
from twinbus.client.admin import SUBSCRIPTION, TOPIC
from twinbus.client.connection_string import ConnectionString
from twinbus.testing.server import ServerProcess

TRANSACTIONAL = 0x34
Connect = Callable[..., Any]


class Ends(TransactionHandler):
    """Notes how a transaction ended."""

    def __init__(self) -> None:
        self.end = ""

    def on_transaction_declared(self, event: Any) -> None:
        self.end = "declared"

    def on_transaction_committed(self, event: Any) -> None:
        self.end = "committed"

    def on_transaction_aborted(self, event: Any) -> None:
        self.end = "aborted"

    def on_transaction_declare_failed(self, event: Any) -> None:
        self.end = "declare failed"

    def on_transaction_commit_failed(self, event: Any) -> None:
        self.end = f"commit failed: {event.delivery.remote.condition.name}"


class Client:
    """One connection, which waits where Proton would call back."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def declare(self, settle_before_discharge: bool = False) -> Any:
        handler = Ends()
        transaction = self.connection.container.declare_transaction(
            self.connection.conn, handler, settle_before_discharge
        )
        self.connection.wait(lambda: handler.end)
        assert handler.end == "declared"
        assert len(transaction.id) == 16
        return transaction

    def discharge(self, transaction: Any, *, fail: bool = False) -> str:
        handler = transaction.handler
        handler.end = ""
        transaction.discharge(fail)
        self.connection.wait(lambda: handler.end)
        return str(handler.end)

    def send(self, transaction: Any, sender: Any, body: Any, **properties: Any) -> Any:
        """The delivery, once the server has said what it thinks of it."""
        delivery = transaction.send(sender.link, Message(body=body, **properties))
        self.connection.wait(lambda: delivery.settled)
        return delivery

    def receive(self, receiver: Any) -> tuple[Any, Any]:
        message = receiver.receive(timeout=10)
        return message.body, receiver.fetcher.unsettled.popleft()

    def accept(self, transaction: Any, delivery: Any) -> None:
        transaction.accept(delivery)
        if not transaction.settle_before_discharge:
            self.connection.wait(lambda: delivery.remote_state == TRANSACTIONAL)

    def bodies(self, address: str) -> list[Any]:
        """Everything that is there for the taking, taken."""
        found: list[Any] = []
        receiver = self.connection.create_receiver(
            address, credit=50, name="bodies", options=AtMostOnce()
        )
        try:
            while True:
                found.append(receiver.receive(timeout=1).body)
        except Timeout:
            return found
        finally:
            receiver.close()


@pytest.fixture
def connect(server: ServerProcess) -> Iterator[Connect]:
    with ExitStack() as connections:

        def make(connection_string: str = server.connection_string) -> Client:
            return Client(connections.enter_context(closing(open_connection(connection_string))))

        yield make


def open_connection(connection_string: str) -> Any:
    target = ConnectionString.parse(connection_string)
    return BlockingConnection(
        f"amqp://localhost:{target.port}",
        allowed_mechs="PLAIN",
        user=target.key_name,
        password=target.key,
        timeout=10,
    )


@pytest.fixture
def client(connect: Connect) -> Any:
    return connect()


@pytest.fixture
def pair(server: ServerProcess, request: pytest.FixtureRequest) -> tuple[str, str]:
    """Two queues of the test's own."""
    name = request.node.name.replace("_", "-").replace("[", "-").rstrip("]")
    for suffix in ("a", "b"):
        server.create_queue(f"{name}-{suffix}")
    return f"{name}-a", f"{name}-b"


@pytest.mark.proves("M-7")
@pytest.mark.feature("transaction.commit")
def test_commit(client: Client, pair: tuple[str, str]) -> None:
    senders = [client.connection.create_sender(queue) for queue in pair]
    transaction = client.declare()
    for number in range(3):
        for sender in senders:
            delivery = client.send(transaction, sender, number)
            assert delivery.remote_state == TRANSACTIONAL
    assert client.bodies(pair[0]) == []
    assert client.discharge(transaction) == "committed"
    assert client.bodies(pair[0]) == client.bodies(pair[1]) == [0, 1, 2]


@pytest.mark.proves("M-7")
@pytest.mark.feature("transaction.commit")
def test_abort(client: Client, pair: tuple[str, str]) -> None:
    sender = client.connection.create_sender(pair[0])
    transaction = client.declare()
    client.send(transaction, sender, "never")
    assert client.discharge(transaction, fail=True) == "aborted"
    assert client.bodies(pair[0]) == []


@pytest.mark.proves("M-7")
@pytest.mark.feature("transaction.commit")
@pytest.mark.parametrize("settle_before_discharge", [False, True])
def test_settle_and_send_are_one(
    client: Client, pair: tuple[str, str], settle_before_discharge: bool
) -> None:
    source, target = pair
    client.connection.create_sender(source).send(Message(body="order"))
    receiver = client.connection.create_receiver(source, credit=1)
    sender = client.connection.create_sender(target)
    transaction = client.declare(settle_before_discharge)
    body, delivery = client.receive(receiver)
    client.accept(transaction, delivery)
    client.send(transaction, sender, f"invoice for {body}")
    assert client.discharge(transaction) == "committed"
    if not settle_before_discharge:
        client.connection.wait(lambda: delivery.settled)
        assert delivery.remote_state == Delivery.ACCEPTED
    receiver.close()
    assert client.bodies(source) == []
    assert client.bodies(target) == ["invoice for order"]


@pytest.mark.feature("transaction.commit")
def test_aborted_settlement_can_be_said_again(client: Client, pair: tuple[str, str]) -> None:
    """After an abort Proton releases what it had accepted, on the same link."""
    queue = pair[0]
    client.connection.create_sender(queue).send(Message(body="order"))
    receiver = client.connection.create_receiver(queue, credit=1)
    transaction = client.declare()
    _, delivery = client.receive(receiver)
    client.accept(transaction, delivery)
    assert client.discharge(transaction, fail=True) == "aborted"
    assert client.receive(receiver)[0] == "order"


@pytest.mark.proves("M-4", "M-6", "M-7")
@pytest.mark.feature("transaction.commit")
@pytest.mark.parametrize("fail", [False, True])
def test_from_a_session_to_a_topic(client: Client, server: ServerProcess, fail: bool) -> None:
    """A session's message is settled, a topic's copies are made, together or not."""
    source, topic = f"steps-{fail}", f"progress-{fail}"
    server.create_queue(source, requires_session=True)
    server.admin.create(TOPIC, [topic], {})
    subscriptions = [f"{topic}/Subscriptions/{name}" for name in ("one", "two")]
    for name in ("one", "two"):
        server.admin.create(SUBSCRIPTION, [topic, name], {})
    client.connection.create_sender(source).send(Message(body="order", group_id="s"))
    receiver = client.connection.create_receiver(source, credit=1, options=Ask(EXCLUSIVE, "s"))
    onward = client.connection.create_sender(source, name="onward")
    transaction = client.declare()
    _, delivery = client.receive(receiver)
    client.accept(transaction, delivery)
    client.send(transaction, onward, "next", group_id="s")
    client.send(transaction, client.connection.create_sender(topic), "done")
    assert [client.bodies(each) for each in subscriptions] == [[], []]
    end = client.discharge(transaction, fail=fail)
    assert end == ("aborted" if fail else "committed")
    expected = [] if fail else ["done"]
    assert [client.bodies(each) for each in subscriptions] == [expected, expected]
    receiver.close()
    receiver = client.connection.create_receiver(source, credit=1, options=Ask(EXCLUSIVE, "s"))
    assert client.receive(receiver)[0] == ("order" if fail else "next")


@pytest.mark.proves("M-4", "M-7")
@pytest.mark.feature("transaction.commit")
def test_message_without_a_session_is_refused_at_once(
    client: Client, server: ServerProcess
) -> None:
    """The client knows before it decides what becomes of the rest."""
    server.create_queue("keyed", requires_session=True)
    server.create_queue("unkeyed")
    senders = [client.connection.create_sender(name) for name in ("unkeyed", "keyed")]
    transaction = client.declare()
    delivery = client.send(transaction, senders[0], "x")
    assert delivery.remote_state == TRANSACTIONAL
    delivery = client.send(transaction, senders[1], "x")
    assert delivery.remote_state == Delivery.REJECTED
    assert client.discharge(transaction) == "committed"
    assert client.bodies("unkeyed") == ["x"]


@pytest.mark.feature("transaction.commit")
def test_every_outcome_in_a_transaction(client: Client, pair: tuple[str, str]) -> None:
    queue = pair[0]
    sender = client.connection.create_sender(queue)
    for name in ("accept", "reject", "release"):
        sender.send(Message(body=name))
    receiver = client.connection.create_receiver(queue, credit=3)
    transaction = client.declare()
    for state in (Delivery.ACCEPTED, Delivery.REJECTED, Delivery.RELEASED):
        _, delivery = client.receive(receiver)
        transaction.update(delivery, state)
    receiver.close()  # what was said on it still counts
    assert client.discharge(transaction) == "committed"
    assert client.bodies(queue) == ["release"]
    assert client.bodies(f"{queue}/$DeadLetterQueue") == ["reject"]


@pytest.mark.proves("M-7")
@pytest.mark.feature("transaction.limits")
def test_closing_rolls_back(client: Client, connect: Connect, pair: tuple[str, str]) -> None:
    """The control link or the whole connection may go."""
    source, target = pair
    client.connection.create_sender(source).send(Message(body="order"))
    for whole_connection in (False, True):
        leaving = connect()
        sender = leaving.connection.create_sender(target)
        transaction = leaving.declare()
        leaving.send(transaction, sender, "never")
        if whole_connection:
            leaving.connection.close()
        else:
            control = leaving.connection.conn._txn_ctrl
            control.close()
            leaving.connection.wait(lambda link=control: link.state & Endpoint.REMOTE_CLOSED)
            with pytest.raises(SendException) as refusal:
                raise_refusal(leaving.send(transaction, sender, "too late"))
            assert refusal.value.args == ("amqp:transaction:unknown-id",)
    assert client.bodies(target) == []


def raise_refusal(delivery: Any) -> None:
    assert delivery.remote_state == Delivery.REJECTED
    raise SendException(delivery.remote.condition.name)


def test_unknown_and_foreign_ids(client: Client, connect: Connect, pair: tuple[str, str]) -> None:
    transaction = client.declare()
    stranger = connect()
    own = stranger.declare()
    sender = stranger.connection.create_sender(pair[0])
    for txn_id in (transaction.id, b"", b"x" * 100):
        own.id = txn_id
        with pytest.raises(SendException) as refusal:
            raise_refusal(stranger.send(own, sender, "never"))
        assert refusal.value.args == ("amqp:transaction:unknown-id",)
        assert stranger.discharge(own) == "commit failed: amqp:transaction:unknown-id"
    client.connection.create_sender(pair[0]).send(Message(body="order"))
    receiver = stranger.connection.create_receiver(pair[0], credit=1)
    _, delivery = stranger.receive(receiver)
    own.accept(delivery)
    stranger.connection.wait(lambda: delivery.remote_state)
    assert delivery.remote_state == Delivery.REJECTED
    assert delivery.remote.condition.name == "amqp:transaction:unknown-id"


@pytest.mark.proves("M-7")
@pytest.mark.feature("transaction.limits")
def test_hundred_messages(client: Client, pair: tuple[str, str]) -> None:
    sender = client.connection.create_sender(pair[0])
    transaction = client.declare()
    for number in range(100):
        transaction.send(sender.link, Message(body=number))
    with pytest.raises(SendException) as refusal:
        raise_refusal(client.send(transaction, sender, "one too many"))
    assert refusal.value.args == ("amqp:resource-limit-exceeded",)
    assert client.discharge(transaction) == "committed"
    assert len(client.bodies(pair[0])) == 100


def test_refused_and_settled_send_fails_the_commit(client: Client, pair: tuple[str, str]) -> None:
    """Who sends settled hears of a refusal only when the commit is refused."""
    sender = client.connection.create_sender(pair[0], options=AtMostOnce())
    transaction = client.declare()
    transaction.send(sender.link, Message(body="good"))
    transaction.send(sender.link, Message(body="bad", id="x" * 129))
    assert client.discharge(transaction) == "commit failed: amqp:transaction:rollback"
    assert client.bodies(pair[0]) == []


@pytest.mark.feature("transaction.commit")
def test_large_messages_in_a_transaction(client: Client, pair: tuple[str, str]) -> None:
    """They come in several frames, of which the first alone may name the transaction."""
    sender = client.connection.create_sender(pair[0])
    transaction = client.declare()
    for letter in "ab":
        client.send(transaction, sender, letter * 700_000)
    assert client.bodies(pair[0]) == []
    assert client.discharge(transaction) == "committed"
    assert [body[0] for body in client.bodies(pair[0])] == ["a", "b"]


def test_many_at_a_time(client: Client, pair: tuple[str, str]) -> None:
    sender = client.connection.create_sender(pair[0])
    transactions = [client.declare() for _ in range(5)]
    for number, transaction in enumerate(transactions):
        client.send(transaction, sender, number)
    for number in (3, 1, 4):
        assert client.discharge(transactions[number]) == "committed"
    assert client.discharge(transactions[0], fail=True) == "aborted"
    assert client.bodies(pair[0]) == [3, 1, 4]


def test_nonsense_on_the_control_link(client: Client) -> None:
    transaction = client.declare()
    control = client.connection.conn._txn_ctrl
    for body in ("hello", Described(symbol("amqp:accepted:list"), []), None):
        delivery = control.send(Message(body=body))
        client.connection.wait(lambda d=delivery: d.settled)
        assert delivery.remote_state == Delivery.REJECTED
    assert client.discharge(transaction) == "committed"


def array(kind: int, value: Any) -> Any:
    return Array(UNDESCRIBED, kind, value)  # type: ignore[arg-type]  # so says its documentation


def defer(client: Client, delivery: Any) -> None:
    delivery.local.undeliverable = True
    delivery.update(Delivery.MODIFIED)
    client.connection.wait(lambda: delivery.settled)
    delivery.settle()


# --- $management ----------------------------------------------------------------------------------


@pytest.mark.proves("M-7")
@pytest.mark.feature("transaction.commit")
def test_schedule_and_settle_by_request(client: Client, pair: tuple[str, str]) -> None:
    """Requests on $management with a transaction's id are part of it."""
    queue = pair[0]
    connection = client.connection
    connection.create_sender(queue).send(Message(body="order"))
    receiver = connection.create_receiver(queue, credit=1)
    _, delivery = client.receive(receiver)
    requests = connection.create_sender(f"{queue}/$management")
    responses = connection.create_receiver(f"{queue}/$management", credit=5)

    def request(operation: str, body: dict[str, Any], transaction: Any = None) -> Any:
        message = Message(body=body, properties={"operation": operation}, id="1", reply_to="me")
        if transaction is None:
            requests.send(message)
        else:
            transaction.send(requests.link, message)
        return responses.receive(timeout=10)

    def states() -> list[int]:
        peek = {"from-sequence-number": 0, "message-count": int32(9)}
        response = request("com.microsoft:peek-message", peek)
        if response.properties["statusCode"] == 204:
            return []
        found = []
        for entry in response.body["messages"]:
            message = Message()
            message.decode(entry["message"])
            assert message.annotations is not None
            found.append(message.annotations.get(symbol("x-opt-message-state"), 0))
        return found

    due = timestamp(int(time.time() * 1_000) + 3_600_000)
    later = Message(body="later", annotations={symbol("x-opt-scheduled-enqueue-time"): due})
    entry = {"message": later.encode(), "message-id": "1"}
    transaction = client.declare()
    answer = request("com.microsoft:schedule-message", {"messages": [entry]}, transaction)
    assert list(answer.body["sequence-numbers"].elements) == [2]
    defer(client, delivery)
    deferred = {"sequence-numbers": array(Data.LONG, 1), "receiver-settle-mode": 1}
    locked = request("com.microsoft:receive-by-sequence-number", deferred, transaction)
    token = array(Data.UUID, locked.body["messages"][0]["lock-token"])
    complete = {"disposition-status": "completed", "lock-tokens": token}
    assert request("com.microsoft:update-disposition", complete, transaction).body == {}
    # Receiving and reading are done at once; what could not be taken back is refused.
    assert states() == [1]
    cancel = {"sequence-numbers": array(Data.LONG, 2)}
    refusal = request("com.microsoft:cancel-scheduled-message", cancel, transaction)
    assert refusal.properties["statusCode"] == 501
    assert client.discharge(transaction) == "committed"
    assert states() == [2]


# --- send-via -------------------------------------------------------------------------------------


class Via(SenderOption):
    """Names the entity that messages are really for."""

    def __init__(self, destination: str) -> None:
        self._destination = destination

    def apply(self, link: Any) -> None:
        link.properties = {symbol("com.microsoft:transfer-destination-address"): self._destination}


@pytest.mark.proves("M-7")
@pytest.mark.feature("transaction.via")
def test_send_via(client: Client, pair: tuple[str, str]) -> None:
    via, destination = pair
    client.connection.create_sender(via).send(Message(body="order"))
    receiver = client.connection.create_receiver(via, credit=1)
    sender = client.connection.create_sender(via, name="via", options=Via(destination))
    echoed = sender.link.remote_properties
    assert echoed["com.microsoft:transfer-destination-address"] == destination
    transaction = client.declare()
    _, delivery = client.receive(receiver)
    client.accept(transaction, delivery)
    client.send(transaction, sender, "invoice")
    assert client.bodies(destination) == []
    assert client.discharge(transaction) == "committed"
    receiver.close()
    assert client.bodies(via) == []
    assert client.bodies(destination) == ["invoice"]
    sender.send(Message(body="without a transaction"))
    assert client.bodies(destination) == ["without a transaction"]


@pytest.mark.feature("transaction.via")
def test_send_via_is_refused(client: Client, pair: tuple[str, str]) -> None:
    for via, destination in ((pair[0], "not-there"), ("not-there", pair[1])):
        with pytest.raises(LinkDetached) as refusal:
            client.connection.create_sender(via, options=Via(destination))
        assert refusal.value.condition == "amqp:not-found"
    with pytest.raises(LinkDetached) as refusal:
        client.connection.create_sender(pair[0], options=Via(f"{pair[1]}/$DeadLetterQueue"))
    assert refusal.value.condition == "amqp:not-allowed"


@pytest.mark.feature("transaction.via")
@pytest.mark.parametrize("allowed", ["a", "b"])
def test_send_via_needs_the_right_on_both(
    server: ServerProcess, pair: tuple[str, str], allowed: str
) -> None:
    """A token for one of the two is not enough."""
    target = ConnectionString.parse(server.connection_string)
    connection = BlockingConnection(
        f"amqp://localhost:{target.port}", allowed_mechs="ANONYMOUS", timeout=10
    )
    with closing(connection):
        audience = f"amqp://localhost/{pair[0][:-1]}{allowed}"
        assert put_token(connection, audience, target.key) == 200
        with pytest.raises(LinkDetached) as refusal:
            connection.create_sender(pair[0], options=Via(pair[1]))
        assert refusal.value.condition == "amqp:unauthorized-access"
