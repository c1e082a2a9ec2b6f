"""What a message may be at the sending edge, and what is read of it."""

from uuid import UUID

import pytest
import pytest_asyncio

from tests.unit.server.wired import Client, Scene
from twinbus.amqp.composites import Rejected
from twinbus.amqp.events import DispositionReceived
from twinbus.amqp.types import Symbol, Timestamp, ULong
from twinbus.entities.descriptions import QueueDescription, TopicDescription
from twinbus.entities.message import NEVER_MS, NewMessage
from twinbus.errors import (
    ArgumentOutOfRange,
    InvalidOperation,
    MessageSizeExceeded,
)
from twinbus.message.message_id import MessageIds
from twinbus.message.plain import (
    BATCH_FORMAT,
    Properties,
    build_batch,
    data_section,
    encode_message,
)
from twinbus.server.amqp.sending import new_message

PARTITION_KEY = Symbol("x-opt-partition-key")


def read(
    properties: Properties | None = None,
    application_properties: dict[str, object] | None = None,
    annotations: dict[str, object] | None = None,
    needs_keys: bool = False,
    body: bytes = b"body",
) -> NewMessage:
    data = encode_message(
        data_section(body), properties, application_properties, annotations=annotations
    )
    return new_message(data, MessageIds(7), NEVER_MS, needs_keys)


# --- keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message_id, text",
    [
        ("order-1", "order-1"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (ULong(42), "42"),
        (b"\x01\xff", "01ff"),
    ],
)
def test_keys_are_read_where_the_entity_needs_them(message_id: object, text: str) -> None:
    properties = Properties(message_id=message_id, group_id="session")
    annotations: dict[str, object] = {PARTITION_KEY: "session"}
    message = read(properties, annotations=annotations, needs_keys=True)
    assert (message.message_id, message.session_id) == (text, "session")
    assert message.partition_key == "session"


def test_keys_are_not_read_where_nobody_needs_them() -> None:
    message = read(Properties(message_id="order-1", group_id="session"))
    assert (message.message_id, message.session_id) == (None, None)


@pytest.mark.parametrize("properties", [None, Properties(subject="without an id")])
def test_key_of_a_message_that_gets_its_id_from_us(properties: Properties | None) -> None:
    message = read(properties, needs_keys=True)
    assert message.message_id is not None
    assert len(message.message_id) == 32
    assert message.message_id.encode() in message.body


@pytest.mark.asyncio
async def test_entities_say_what_they_need() -> None:
    harness = Scene().harness
    plain = harness.create_queue("plain")
    sessions = harness.create_queue("sessions", QueueDescription(requires_session=True))
    distinct = harness.create_topic("t", TopicDescription(requires_duplicate_detection=True))
    assert [queue.needs_keys for queue in (plain, sessions, distinct)] == [False, True, True]


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.feature("send.limits")
@pytest.mark.parametrize("needs_keys", [False, True])
@pytest.mark.parametrize("subject", [None, "s" * 300])  # short and long forms of the list
def test_ids_of_at_most_128_characters(needs_keys: bool, subject: str | None) -> None:
    for name in ("message_id", "group_id"):
        for letter in ("x", "ü"):  # characters count, not bytes
            fits = Properties(subject=subject)
            setattr(fits, name, letter * 128)
            read(fits, needs_keys=needs_keys)
            setattr(fits, name, letter * 129)
            with pytest.raises(ArgumentOutOfRange, match="129 characters"):
                read(fits, needs_keys=needs_keys)


@pytest.mark.feature("send.limits")
def test_partition_key() -> None:
    read(annotations={PARTITION_KEY: "k" * 128})
    with pytest.raises(ArgumentOutOfRange, match="partition key"):
        read(annotations={PARTITION_KEY: "k" * 129})
    read(Properties(group_id="same"), annotations={PARTITION_KEY: "same"})
    with pytest.raises(InvalidOperation, match="session id"):
        read(Properties(group_id="one"), annotations={PARTITION_KEY: "other"})


@pytest.mark.feature("send.limits")
def test_properties_of_at_most_64_kilobytes() -> None:
    read(application_properties={"a": "x" * 30_000, "b": "x" * 30_000})
    with pytest.raises(MessageSizeExceeded, match="65536"):
        read(application_properties={"a": "x" * 30_000, "b": "x" * 30_000, "c": "x" * 6_000})
    with pytest.raises(MessageSizeExceeded, match="65536"):
        read(annotations={Symbol("x"): "x" * 66_000})
    with pytest.raises(MessageSizeExceeded, match="65536"):
        read(Properties(subject="x" * 66_000))
    with pytest.raises(MessageSizeExceeded, match="'a' has 3"):
        read(application_properties={"a": "x" * 33_000})
    read(body=b"x" * 200_000)  # the body is no property


def test_scheduled_and_keyed() -> None:
    annotations: dict[str, object] = {
        Symbol("x-opt-scheduled-enqueue-time"): Timestamp(123),
        PARTITION_KEY: "key",
    }
    message = read(annotations=annotations)
    assert (message.scheduled_ms, message.partition_key) == (123, "key")


# --- at the link ----------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def client() -> Client:
    scene = Scene()
    scene.harness.create_queue("small", QueueDescription(max_message_size_kilobytes=2))
    return scene.connect()


def refusal(client: Client) -> tuple[str, str] | None:
    """Condition and text of what the server said last; None when it accepted."""
    told = [event for event in client.pump() if isinstance(event, DispositionReceived)]
    state = told[-1].state
    if not isinstance(state, Rejected):
        return None
    assert state.error is not None
    return state.error.condition, state.error.description or ""


@pytest.mark.feature("send.size")
@pytest.mark.asyncio
async def test_entity_limits_the_size_of_messages(client: Client) -> None:
    sender = client.attach_sender("small")
    assert sender.peer_max_message_size == 2_048
    sender.send(b"1", encode_message(data_section(b"x" * 2_000)), b"", False, None)
    assert refusal(client) is None
    data = encode_message(data_section(b"x" * 2_100))
    sender.send(b"2", data, b"", False, None)
    told = refusal(client)
    assert told is not None
    assert told[0] == "amqp:link:message-size-exceeded"
    assert str(len(data)) in told[1]
    assert "2048" in told[1]
    sender.send(b"3", encode_message(data_section(b"x")), b"", False, None)
    assert refusal(client) is None


@pytest.mark.feature("send.size")
@pytest.mark.asyncio
async def test_changed_limit_counts_on_open_links(client: Client) -> None:
    sender = client.attach_sender("small")
    harness = client.scene.harness
    small = harness.store.entities[1]
    harness.update(small, QueueDescription(max_message_size_kilobytes=1))
    data = encode_message(data_section(b"x" * 1_500))
    sender.send(b"1", encode_message(data_section(b"x")), b"", False, None)
    assert refusal(client) is None
    sender.send(b"2", data, b"", False, None)
    assert refusal(client) is not None


@pytest.mark.asyncio
async def test_one_bad_message_refuses_its_batch(client: Client) -> None:
    sender = client.attach_sender("small")
    good = encode_message(data_section(b"x"))
    bad = encode_message(data_section(b"x"), Properties(message_id="x" * 129))
    sender.send(b"1", build_batch([good, bad]), b"", False, None, BATCH_FORMAT)
    told = refusal(client)
    assert told is not None
    assert told[0] == "com.microsoft:argument-out-of-range"
    sender.send(b"2", build_batch([good, good]), b"", False, None, BATCH_FORMAT)
    assert refusal(client) is None
    assert client.scene.harness.store.entities[1].counts().active == 2


@pytest.mark.asyncio
async def test_nothing_is_sent_to_subscriptions(client: Client) -> None:
    topic = client.scene.harness.create_topic("news")
    client.scene.harness.create_subscription(topic, "mine")
    assert client.attach_sender("news").attached
    client.attach_sender("news/Subscriptions/mine")
    assert client.refusal() == "amqp:not-allowed"
