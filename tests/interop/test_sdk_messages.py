"""What a message says comes back as it was said: bodies of every kind, every property."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import (
    AmqpAnnotatedMessage,
    AmqpMessageBodyType,
    AmqpMessageHeader,
    AmqpMessageProperties,
)

from tests.interop.sdk import body, peek_all, receive_one

pytestmark = pytest.mark.asyncio(loop_scope="module")

MOMENT = datetime(2026, 11, 15, 12, 30, tzinfo=UTC)

DATA_BODIES: list[tuple[ServiceBusMessage | AmqpAnnotatedMessage, list[bytes]]] = [
    (ServiceBusMessage(b"bytes \x00\xff"), [b"bytes \x00\xff"]),
    (ServiceBusMessage("text ä€"), ["text ä€".encode()]),
    (ServiceBusMessage(b""), [b""]),
    (AmqpAnnotatedMessage(data_body=[b"two", b"sections"]), [b"two", b"sections"]),
]

# The SDK reads strings as bytes.
VALUE_BODIES: list[tuple[Any, Any]] = [
    ("text", b"text"),
    (17, 17),
    (-2_000_000_000, -2_000_000_000),
    (1.5, 1.5),
    (True, True),
    (uuid.UUID(int=7), uuid.UUID(int=7)),
    ([1, "two", [3.0]], [1, b"two", [3.0]]),
    ({"key": {"nested": [True, None]}}, {b"key": {b"nested": [True, None]}}),
]


@pytest.mark.proves("M-13")
@pytest.mark.feature("send.bodies")
async def test_data_bodies(sender: Any, receiver: Any) -> None:
    for message, _ in DATA_BODIES:
        await sender.send_messages(message)
    messages = await peek_all(receiver)
    assert [message.body_type for message in messages] == [AmqpMessageBodyType.DATA] * 4
    assert [list(message.body) for message in messages] == [sections for _, sections in DATA_BODIES]


@pytest.mark.proves("M-13")
@pytest.mark.feature("send.bodies")
async def test_value_bodies(sender: Any, receiver: Any) -> None:
    for value, _ in VALUE_BODIES:
        await sender.send_messages(AmqpAnnotatedMessage(value_body=value))
    messages = await peek_all(receiver)
    assert {message.body_type for message in messages} == {AmqpMessageBodyType.VALUE}
    assert [message.body for message in messages] == [value for _, value in VALUE_BODIES]


@pytest.mark.proves("M-13")
@pytest.mark.feature("send.bodies")
async def test_sequence_body(sender: Any, receiver: Any) -> None:
    await sender.send_messages(AmqpAnnotatedMessage(sequence_body=[[1, 2], [], ["three"]]))
    message = await receive_one(receiver)
    assert message.body_type is AmqpMessageBodyType.SEQUENCE
    assert list(message.body) == [[1, 2], [], [b"three"]]


@pytest.mark.proves("M-13")
@pytest.mark.feature("send.bodies")
async def test_no_body_at_all(sender: Any, receiver: Any) -> None:
    await sender.send_messages(ServiceBusMessage(None, message_id="bodiless"))
    message = await receive_one(receiver)
    assert message.message_id == "bodiless"
    assert message.body is None
    await receiver.complete_message(message)


@pytest.mark.proves("M-13")
@pytest.mark.feature("send.properties")
async def test_system_properties(sender: Any, receiver: Any) -> None:
    properties: dict[str, Any] = {
        "message_id": "id-ä",
        "session_id": "session-1",  # kept, also where sessions mean nothing
        "correlation_id": "correlation",
        "subject": "subject",
        "to": "to",
        "reply_to": "reply-to",
        "reply_to_session_id": "reply-to-session",
        "content_type": "application/json",
        "partition_key": "session-1",
        "time_to_live": timedelta(hours=3),
    }
    await sender.send_messages(ServiceBusMessage(b"{}", **properties))
    message = await receive_one(receiver)
    assert {name: getattr(message, name) for name in properties} == properties
    assert message.enqueued_time_utc <= datetime.now(UTC) + timedelta(seconds=1)
    assert message.expires_at_utc == message.enqueued_time_utc + timedelta(hours=3)
    assert message.locked_until_utc > datetime.now(UTC)
    assert isinstance(message.lock_token, uuid.UUID)
    assert message.dead_letter_reason is None


@pytest.mark.proves("M-13")
@pytest.mark.feature("send.properties")
async def test_application_properties_of_every_type(sender: Any, receiver: Any) -> None:
    properties: dict[Any, Any] = {
        "text": "ä€😀",
        "empty": "",
        "long": "x" * 1_000,
        "small": 5,
        "negative": -2_000_000_000,
        "float": -0.125,
        "yes": True,
        "no": False,
        "uuid": uuid.UUID(int=99),
        "none": None,
        "moment": MOMENT,
    }
    await sender.send_messages(ServiceBusMessage(b"", application_properties=properties))
    message = await receive_one(receiver)
    # The SDK reads names and text as bytes, and times as milliseconds.
    assert message.application_properties == {
        b"text": "ä€😀".encode(),
        b"empty": b"",
        b"long": b"x" * 1_000,
        b"small": 5,
        b"negative": -2_000_000_000,
        b"float": -0.125,
        b"yes": True,
        b"no": False,
        b"uuid": uuid.UUID(int=99),
        b"none": None,
        b"moment": int(MOMENT.timestamp() * 1000),
    }


@pytest.mark.proves("M-13")
@pytest.mark.feature("send.properties")
async def test_annotated_message(sender: Any, receiver: Any) -> None:
    await sender.send_messages(
        AmqpAnnotatedMessage(
            data_body=b"body",
            header=AmqpMessageHeader(priority=7, durable=True, time_to_live=60_000),
            annotations={"x-mine": "annotation", "x-number": 3},
            delivery_annotations={"x-hop": "only for the next hop"},
            application_properties={"key": "value"},
            footer={"x-checksum": "abc"},
            properties=AmqpMessageProperties(
                message_id=uuid.UUID(int=5),
                user_id=b"user",
                content_encoding="gzip",
                group_sequence=12,
            ),
        )
    )
    message = await receive_one(receiver)
    raw = message.raw_amqp_message
    assert body(message) == b"body"
    assert message.message_id == uuid.UUID(int=5)
    assert (raw.header.priority, raw.header.durable) == (7, True)
    assert (raw.header.time_to_live, raw.header.delivery_count) == (60_000, 0)
    assert raw.annotations[b"x-mine"] == b"annotation"
    assert raw.annotations[b"x-number"] == 3
    assert raw.application_properties == {b"key": b"value"}
    assert raw.footer == {b"x-checksum": b"abc"}
    assert (raw.properties.user_id, raw.properties.content_encoding) == (b"user", b"gzip")
    assert raw.properties.group_sequence == 12


@pytest.mark.proves("M-13")
@pytest.mark.feature("send.properties")
async def test_received_message_can_be_sent_on(sender: Any, receiver: Any) -> None:
    original = ServiceBusMessage(b"body", subject="subject", application_properties={"n": 1})
    await sender.send_messages(original)
    first = await receive_one(receiver)
    await sender.send_messages(first)
    await receiver.complete_message(first)
    second = await receive_one(receiver)
    assert (body(second), second.subject) == (b"body", "subject")
    assert second.application_properties == {b"n": 1}
    # What the server said about the first is not taken for something said about the second.
    assert second.sequence_number == first.sequence_number + 1
    assert second.lock_token != first.lock_token
    await receiver.complete_message(second)
