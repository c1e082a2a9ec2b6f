"""Apache Qpid Proton, a second and independent AMQP 1.0 client, against the same server.

What the official SDK never does is tried here: SASL PLAIN, pre-settled sends, small frames, drain,
heartbeats, every AMQP type, and links that must be refused.
"""

import base64
import hashlib
import hmac
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any
from urllib.parse import quote_plus

import pytest
from proton import (
    UNDESCRIBED,
    Array,
    ConnectionException,
    Data,
    Delivery,
    Described,
    Message,
    SSLDomain,
    Timeout,
    byte,
    char,
    decimal128,
    float32,
    int32,
    short,
    symbol,
    timestamp,
    ubyte,
    uint,
    ulong,
    ushort,
)
from proton.reactor import AtLeastOnce, AtMostOnce
from proton.utils import BlockingConnection, LinkDetached, SendException

from twinbus.certificates import ca_certificate
from twinbus.client.connection_string import ConnectionString
from twinbus.limits import MESSAGE_SIZE_BYTES_MAX
from twinbus.testing.server import ServerProcess

# Proton's own annotations are incomplete, so its objects count as untyped here.
Connect = Callable[..., Any]


@pytest.fixture
def connect(server: ServerProcess) -> Iterator[Connect]:
    """Opens connections: SASL PLAIN with the server's own rule and key, or as told."""
    target = ConnectionString.parse(server.connection_string)
    with ExitStack() as connections:

        def make(scheme: str = "amqp", **options: Any) -> Any:
            options = {
                "allowed_mechs": "PLAIN",
                "user": target.key_name,
                "password": target.key,
                "timeout": 10,
                **options,
            }
            connection = BlockingConnection(f"{scheme}://localhost:{server.port}", **options)
            connections.enter_context(closing(connection))
            return connection

        yield make


@pytest.fixture
def connection(connect: Connect) -> Any:
    return connect()


def receive(receiver: Any) -> tuple[Any, Any]:
    """The next message, and its delivery to settle as a test likes."""
    message = receiver.receive(timeout=10)
    return message, receiver.fetcher.unsettled.popleft()


def settle(connection: Any, delivery: Any, outcome: int) -> int:
    """Settle in two steps, as the SDK does: propose the outcome, await the server's answer."""
    delivery.update(outcome)
    connection.wait(lambda: delivery.settled)
    answer = int(delivery.remote_state)
    delivery.settle()
    return answer


def is_empty(connection: Any, address: str) -> bool:
    receiver = connection.create_receiver(address, credit=1, name="is-empty")
    try:
        receiver.receive(timeout=0.3)
    except Timeout:
        return True
    finally:
        receiver.close()
    return False


@pytest.mark.proves("M-1")
@pytest.mark.feature("access.plain")
def test_send_and_receive_with_plain(connection: Any, queue: str) -> None:
    delivery = connection.create_sender(queue).send(Message(body="hello", id="m"))
    assert delivery.remote_state == Delivery.ACCEPTED
    receiver = connection.create_receiver(queue)
    message, delivery = receive(receiver)
    assert (message.body, message.id) == ("hello", "m")
    assert message.annotations[symbol("x-opt-sequence-number")] == 1
    assert settle(connection, delivery, Delivery.ACCEPTED) == Delivery.ACCEPTED
    receiver.close()
    assert is_empty(connection, queue)


@pytest.mark.proves("M-13")
def test_message_without_id_gets_one(connection: Any, queue: str) -> None:
    sender = connection.create_sender(queue)
    sender.send(Message(body="one"))
    sender.send(Message(body="two", subject="kept"))
    receiver = connection.create_receiver(queue, credit=2)
    one, two = receiver.receive(timeout=10), receiver.receive(timeout=10)
    assert len({one.id, two.id, None}) == 3
    assert (one.body, two.body, two.subject) == ("one", "two", "kept")


@pytest.mark.proves("M-12")
@pytest.mark.feature("access.tls")
def test_tls_on_the_same_port(connect: Connect, server: ServerProcess, queue: str) -> None:
    domain = SSLDomain(SSLDomain.MODE_CLIENT)
    domain.set_trusted_ca_db(str(ca_certificate(server.data_dir)))
    domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
    connection = connect("amqps", ssl_domain=domain)
    connection.create_sender(queue).send(Message(body=b"sealed" * 50_000))
    message, _ = receive(connection.create_receiver(queue))
    assert message.body == b"sealed" * 50_000


@pytest.mark.proves("M-12")
@pytest.mark.feature("access.plain")
@pytest.mark.parametrize("user, password", [("RootManageSharedAccessKey", "wrong"), ("who", "x")])
def test_plain_with_a_wrong_key(connect: Connect, user: str, password: str) -> None:
    with pytest.raises(ConnectionException, match=r"[Aa]uthentication failed"):
        connect(user=user, password=password)


@pytest.mark.proves("M-12")
@pytest.mark.feature("access.sas")
def test_nothing_without_a_token(connect: Connect, queue: str) -> None:
    connection = connect(allowed_mechs="ANONYMOUS", user=None, password=None)
    for open_link in (connection.create_sender, connection.create_receiver):
        for address in (queue, f"{queue}/$DeadLetterQueue", f"{queue}/$management", "not-there"):
            # The same answer for what is there and what is not: strangers learn no names.
            with pytest.raises(LinkDetached) as refusal:
                open_link(address)
            assert refusal.value.condition == "amqp:unauthorized-access"


def put_token(connection: Any, audience: str, key: str) -> int:
    """Ask $cbs to take a token for this audience; gives its status code."""
    uri = quote_plus(audience)
    expiry = int(time.time()) + 600
    digest = hmac.digest(key.encode(), f"{uri}\n{expiry}".encode(), hashlib.sha256)
    token = (
        f"SharedAccessSignature sr={uri}&sig={quote_plus(base64.b64encode(digest))}"
        f"&se={expiry}&skn=RootManageSharedAccessKey"
    )
    properties = {
        "operation": "put-token",
        "type": "servicebus.windows.net:sastoken",
        "name": audience,
    }
    request = Message(id="r1", reply_to="$cbs", properties=properties, body=token)
    answers = connection.create_receiver("$cbs")
    requests = connection.create_sender("$cbs")
    requests.send(request)
    answer = answers.receive(timeout=10)
    assert answer.correlation_id == "r1"
    answers.close()
    requests.close()
    return int(answer.properties["status-code"])


@pytest.mark.proves("M-12")
@pytest.mark.feature("access.sas")
def test_claims_open_what_they_name(connect: Connect, server: ServerProcess, queue: str) -> None:
    key = ConnectionString.parse(server.connection_string).key
    server.create_queue(f"{queue}-other")
    connection = connect(allowed_mechs="ANONYMOUS", user=None, password=None)
    assert put_token(connection, f"amqp://localhost/{queue}", "wrong") == 401
    assert put_token(connection, f"amqp://localhost/{queue}", key) == 200
    connection.create_sender(queue).send(Message(body="in"))
    message, _ = receive(connection.create_receiver(queue))
    assert message.body == "in"
    with pytest.raises(LinkDetached) as refusal:
        connection.create_sender(f"{queue}-other")
    assert refusal.value.condition == "amqp:unauthorized-access"


@pytest.mark.parametrize("address", ["not-there", "not-there/$DeadLetterQueue"])
def test_missing_node(connection: Any, address: str) -> None:
    with pytest.raises(LinkDetached) as refusal:
        connection.create_receiver(address)
    assert refusal.value.condition == "amqp:not-found"
    with pytest.raises(LinkDetached):
        connection.create_sender(address)


@pytest.mark.feature("send.settled")
def test_pre_settled_send(connection: Any, queue: str) -> None:
    sender = connection.create_sender(queue, options=AtMostOnce())
    for number in range(10):
        sender.send(Message(body=number))
    receiver = connection.create_receiver(queue, credit=10)
    assert [receiver.receive(timeout=10).body for _ in range(10)] == list(range(10))


@pytest.mark.proves("M-2")
@pytest.mark.feature("receive.modes")
def test_pre_settled_receive(connection: Any, queue: str) -> None:
    sender = connection.create_sender(queue, options=AtLeastOnce())
    for number in range(3):
        sender.send(Message(body=number))
    receiver = connection.create_receiver(queue, credit=3, options=AtMostOnce())
    assert [receiver.receive(timeout=10).body for _ in range(3)] == [0, 1, 2]
    assert not receiver.fetcher.unsettled
    receiver.close()
    assert is_empty(connection, queue)


@pytest.mark.proves("M-2")
@pytest.mark.feature("receive.settle")
def test_released_and_modified(connection: Any, queue: str) -> None:
    connection.create_sender(queue).send(Message(body="again"))
    receiver = connection.create_receiver(queue)
    message, delivery = receive(receiver)
    assert message.delivery_count == 0
    assert settle(connection, delivery, Delivery.RELEASED) == Delivery.RELEASED
    message, delivery = receive(receiver)
    assert message.delivery_count == 0  # released: nobody has looked at it
    delivery.local.failed = True
    assert settle(connection, delivery, Delivery.MODIFIED) == Delivery.MODIFIED
    message, delivery = receive(receiver)
    assert message.delivery_count == 1
    delivery.local.undeliverable = True
    assert settle(connection, delivery, Delivery.MODIFIED) == Delivery.MODIFIED
    assert is_empty(connection, queue)  # deferred


@pytest.mark.proves("M-2")
@pytest.mark.feature("receive.settle")
def test_rejected_goes_to_the_dead_letter_queue(connection: Any, queue: str) -> None:
    connection.create_sender(queue).send(Message(body="bad"))
    _, delivery = receive(connection.create_receiver(queue))
    assert settle(connection, delivery, Delivery.REJECTED) == Delivery.REJECTED
    dead_letters = connection.create_receiver(f"{queue}/$DeadLetterQueue")
    message, delivery = receive(dead_letters)
    assert message.body == "bad"
    assert settle(connection, delivery, Delivery.ACCEPTED) == Delivery.ACCEPTED


@pytest.mark.proves("M-2")
@pytest.mark.feature("receive.settle")
def test_settling_in_one_step(connection: Any, queue: str) -> None:
    sender = connection.create_sender(queue)
    sender.send(Message(body="one"))
    sender.send(Message(body="two"))
    receiver = connection.create_receiver(queue)
    receiver.receive(timeout=10)
    receiver.accept()
    assert receiver.receive(timeout=10).body == "two"
    receiver.release(delivered=False)
    assert receiver.receive(timeout=10).body == "two"
    receiver.accept()
    receiver.close()
    assert is_empty(connection, queue)


@pytest.mark.feature("receive.prefetch")
def test_credit_is_never_exceeded(connection: Any, queue: str) -> None:
    sender = connection.create_sender(queue)
    for number in range(10):
        sender.send(Message(body=number))
    # Nothing but flow() gives credit: of a number given here Proton makes twice as much, and more.
    receiver = connection.create_receiver(queue, credit=0)
    receiver.link.flow(4)
    fetched = receiver.fetcher  # receive() would give credit of its own
    connection.wait(lambda: fetched.has_message >= 4)
    connection.container.timeout = 0.2
    connection.container.process()
    assert [fetched.pop().body for _ in range(fetched.has_message)] == list(range(4))
    receiver.link.flow(6)
    connection.wait(lambda: fetched.has_message >= 6)
    assert [fetched.pop().body for _ in range(fetched.has_message)] == list(range(4, 10))


@pytest.mark.feature("receive.prefetch")
def test_drain_returns_unused_credit(connection: Any, queue: str) -> None:
    sender = connection.create_sender(queue)
    for number in range(3):
        sender.send(Message(body=number))
    receiver = connection.create_receiver(queue, credit=0)
    receiver.link.drain(10)
    connection.wait(lambda: receiver.fetcher.has_message == 3 and not receiver.link.draining())
    assert receiver.link.credit == 0
    # Nothing comes on credit that was given back.
    sender.send(Message(body="later"))
    assert receiver.fetcher.has_message == 3
    receiver.link.drain_mode = False
    receiver.link.flow(1)
    connection.wait(lambda: receiver.fetcher.has_message == 4)


@pytest.mark.feature("transport.heartbeat")
def test_large_message_in_small_frames(connect: Connect, queue: str) -> None:
    connection = connect(max_frame_size=1_024)
    text = bytes(range(256)) * 2_000
    connection.create_sender(queue).send(Message(body=text, inferred=True))
    message, _ = receive(connection.create_receiver(queue))
    assert message.body == text


@pytest.mark.feature("send.size")
def test_too_large_message_is_rejected(connection: Any, queue: str) -> None:
    sender = connection.create_sender(queue)
    with pytest.raises(SendException) as refusal:
        sender.send(Message(body=b"x" * (MESSAGE_SIZE_BYTES_MAX + 1)))
    assert refusal.value.state == Delivery.REJECTED
    assert sender.send(Message(body="small")).remote_state == Delivery.ACCEPTED


@pytest.mark.feature("send.properties")
def test_every_type_of_value_comes_back(connection: Any, queue: str) -> None:
    values: dict[str, Any] = {
        "null": None,
        "boolean": True,
        "ubyte": ubyte(255),
        "ushort": ushort(65_535),
        "uint": uint(4_294_967_295),
        "ulong": ulong(2**64 - 1),
        "byte": byte(-128),
        "short": short(-32_768),
        "int": int32(-(2**31)),
        "long": -(2**63),
        "float": float32(0.5),
        "double": 1e300,
        "decimal128": decimal128(bytes(range(16))),
        "char": char("€"),
        "timestamp": timestamp(1_700_000_000_000),
        "uuid": uuid.UUID(int=42),
        "string": "ä€😀",
        "symbol": symbol("sym"),
    }
    body: dict[str, Any] = {
        "list": [1, [2, [3]]],
        "map": {"nested": {1: "one"}},
        "array": Array(UNDESCRIBED, Data.INT, 1, 2, 3),  # type: ignore[arg-type]
        "described": Described(symbol("example:type"), "value"),
        "binary": b"\x00\xff",
    }
    sent = Message(body=body, properties=values, annotations={symbol("x-opt-mine"): ulong(7)})
    connection.create_sender(queue).send(sent)
    message, _ = receive(connection.create_receiver(queue))
    assert message.properties == values
    assert {name: type(value) for name, value in message.properties.items()} == {
        name: type(value) for name, value in values.items()
    }
    assert message.body == body
    assert message.annotations[symbol("x-opt-mine")] == 7


@pytest.mark.feature("transport.heartbeat")
def test_idle_connection_is_kept_alive(connect: Connect, queue: str) -> None:
    """The client gives up after two seconds of silence, so the server must not be silent."""
    connection = connect(heartbeat=2)
    until = time.monotonic() + 4
    while time.monotonic() < until:
        connection.container.timeout = 0.1
        connection.container.process()
    assert not connection.disconnected
    connection.create_sender(queue).send(Message(body="still here"))


@pytest.mark.proves("M-1")
def test_links_on_one_connection_do_not_disturb_each_other(
    connection: Any, server: ServerProcess, queue: str
) -> None:
    names = [f"{queue}-{number}" for number in range(20)]
    for name in names:
        server.create_queue(name)
    senders = [connection.create_sender(name) for name in names]
    receivers = [connection.create_receiver(name) for name in names]
    for name, sender in zip(names, senders, strict=True):
        sender.send(Message(body=name))
    for name, receiver in zip(names, receivers, strict=True):
        assert receiver.receive(timeout=10).body == name
        receiver.accept()


@pytest.mark.proves("M-3")
@pytest.mark.feature("receive.peek")
def test_peek_over_management(connection: Any, queue: str) -> None:
    connection.create_sender(queue).send(Message(body="seen"))
    request = Message(
        id=ulong(1),
        reply_to=f"{queue}/$management",
        properties={"operation": "com.microsoft:peek-message"},
        body={"from-sequence-number": 1, "message-count": int32(10)},
    )
    answers = connection.create_receiver(f"{queue}/$management")
    connection.create_sender(f"{queue}/$management").send(request)
    answer = answers.receive(timeout=10)
    assert answer.correlation_id == ulong(1)
    assert answer.properties["statusCode"] == 200
    [entry] = answer.body["messages"]
    peeked: Any = Message()
    peeked.decode(bytes(entry["message"]))
    assert peeked.body == "seen"


def test_unknown_management_operation(connection: Any, queue: str) -> None:
    request = Message(id="r", properties={"operation": "com.microsoft:levitate"}, body={})
    answers = connection.create_receiver(f"{queue}/$management")
    connection.create_sender(f"{queue}/$management").send(request)
    answer = answers.receive(timeout=10)
    assert answer.correlation_id == "r"
    assert answer.properties["statusCode"] >= 400
    assert answer.properties["errorCondition"] == "amqp:not-implemented"


def test_newer_link_steals_the_name(connection: Any, queue: str) -> None:
    """AMQP 1.0 §2.6.1: of two links with one name the newer one stays."""
    connection.create_sender(queue, name="mine")
    with pytest.raises(LinkDetached) as stolen:  # of the older one, while the newer one attaches
        connection.create_sender(queue, name="mine")
    assert stolen.value.condition == "amqp:link:stolen"
    connection.create_sender(queue, name="other").send(Message(body="none the worse"))
    message, _ = receive(connection.create_receiver(queue))
    assert message.body == "none the worse"


def test_a_time_that_no_log_can_hold_is_refused(connection: Any, queue: str) -> None:
    """Together with a time to live it was more than 64 bits, and stopped every answer."""
    sender = connection.create_sender(queue)
    due = symbol("x-opt-scheduled-enqueue-time")
    for time_ms in ((1 << 63) - 1, 253_402_300_800_000):
        message = Message(body="late", ttl=60, annotations={due: timestamp(time_ms)})
        with pytest.raises(SendException) as refused:
            sender.send(message)
        assert refused.value.state == Delivery.REJECTED
    last = Message(body="9999", ttl=60, annotations={due: timestamp(253_402_300_799_999)})
    assert sender.send(last).remote_state == Delivery.ACCEPTED
    assert sender.send(Message(body="goes on")).remote_state == Delivery.ACCEPTED
