"""What a message may be, and what is read of it."""

from uuid import UUID

import pytest

from tests.unit.server.wired import Scene
from twinbus.amqp.types import Symbol, Timestamp, ULong
from twinbus.entities.descriptions import QueueDescription, TopicDescription
from twinbus.entities.message import NEVER_MS, NewMessage
from twinbus.errors import ArgumentOutOfRange, InvalidOperation, MessageSizeExceeded
from twinbus.message.incoming import new_message
from twinbus.message.message_id import MessageIds
from twinbus.message.plain import Properties, data_section, encode_message

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
