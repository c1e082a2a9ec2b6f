"""Messages of every kind through a real backlog queue are as if sent directly.

Each is sent twice with the official SDK: straight to a session queue, and rewritten through a
backlog queue, restored and sent on to another one.  What the receivers get must be equal.
"""

import datetime as dt
import decimal
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
)
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.interop.administration import connect
from twinbus.pairing.backlog_queues import find_or_create, names_of
from twinbus.pairing.rewriting import restore, rewrite
from twinbus.pairing.steps import CreateQueue, ListQueues
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.proves("P-4", "P-5", "P-11")

NOW = dt.datetime(2026, 11, 15, 12, 30, 15, 250_000, tzinfo=dt.UTC)
PROPERTIES: dict[str | bytes, Any] = {
    "text": "Grüße",
    "int": -7,
    "long": {"TYPE": "LONG", "VALUE": 2**40},
    "small long": {"TYPE": "LONG", "VALUE": 5},
    "double": 0.1,
    "bool": True,
    "uuid": uuid.UUID(int=7),
    "time": NOW,
    "null": None,
}


def everything() -> ServiceBusMessage:
    message = ServiceBusMessage(
        b"body",
        session_id="s",
        partition_key="s",
        message_id="m",
        content_type="text/plain",
        correlation_id="c",
        subject="subject",
        to="to",
        reply_to="reply",
        reply_to_session_id="rs",
        time_to_live=dt.timedelta(hours=1),
        application_properties=dict(PROPERTIES),
    )
    message.scheduled_enqueue_time_utc = NOW  # passed: enqueued at once
    return message


def raw(number: int, **body: Any) -> AmqpAnnotatedMessage:
    return AmqpAnnotatedMessage(
        **body,
        properties=AmqpMessageProperties(message_id=f"raw {number}", group_id="s"),
        annotations={"x-mine": "mine", "x-bytes": b"bytes"},
        footer={"x-end": "end"},
        header=AmqpMessageHeader(priority=7, durable=True),
    )


def originals() -> list[Any]:
    bodies: list[dict[str, Any]] = [
        {"data_body": [b"one", b"", b"three"]},
        {"data_body": b""},
        {"value_body": "text"},
        {"value_body": b"binary \xff"},
        {"value_body": {"key": ["text", b"binary", NOW, 1, 2.5, None, {"deep": b"text?"}]}},
        {"value_body": None},
        {"sequence_body": [[1, "a", b"b"], [NOW, None]]},
    ]
    return [
        everything(),
        ServiceBusMessage("plain", session_id="s"),
        *(raw(number, **body) for number, body in enumerate(bodies)),
    ]


def body_of(message: ServiceBusReceivedMessage) -> Any:
    kind = message.body_type.value
    return kind, message.body if kind == "value" else list(message.body)


def seen(message: ServiceBusReceivedMessage) -> dict[str, Any]:
    """All that a receiver sees, without what is about this queue and this moment."""
    amqp = message.raw_amqp_message
    annotations = {
        name: value
        for name, value in (amqp.annotations or {}).items()
        if name not in {b"x-opt-enqueued-time", b"x-opt-sequence-number", b"x-opt-locked-until"}
    }
    properties = dict(amqp.properties or {})
    moments = [properties.pop("creation_time"), properties.pop("absolute_expiry_time")]
    return {
        "body": body_of(message),
        "properties": properties,
        "expires after": None if moments[1] is None else moments[1] - moments[0],
        "application properties": amqp.application_properties,
        "annotations": annotations,
        "header": dict(amqp.header or {}),
        "footer": amqp.footer,
        "time to live": message.time_to_live,
        "scheduled": message.scheduled_enqueue_time_utc,
        "delivery annotations": amqp.delivery_annotations,
    }


@pytest.fixture
def admin(server: ServerProcess) -> Iterator[ServiceBusAdministrationClient]:
    with connect(server) as client:
        yield client


def make_backlog_queues(admin: ServiceBusAdministrationClient, name: str, count: int) -> list[str]:
    flow = find_or_create(name, count)
    try:
        step = next(flow)
        while True:
            if isinstance(step, ListQueues):
                step = flow.send(list(admin.list_queues()))
            else:
                assert isinstance(step, CreateQueue)
                admin.create_queue(step.queue, **step.settings)
                step = flow.send(None)
    except StopIteration as end:
        made: list[str] = end.value.names
        return made


@pytest.mark.proves("P-4", "P-5")
def test_backlog_queues_are_made_as_they_must_be(admin: ServiceBusAdministrationClient) -> None:
    """Those that are there stay as they are."""
    first, second = names_of("made", 2)
    admin.create_queue(first, lock_duration=dt.timedelta(seconds=30))
    admin.create_queue(names_of("made", 8)[7])
    assert make_backlog_queues(admin, "made", 2) == [first, second]
    assert admin.get_queue(first).lock_duration == dt.timedelta(seconds=30)
    made = admin.get_queue(second)
    assert made.max_size_in_megabytes == 5120
    assert made.max_delivery_count == 2**31 - 1
    assert made.lock_duration == dt.timedelta(minutes=1)
    assert made.dead_lettering_on_message_expiration
    assert made.enable_batched_operations
    assert not made.requires_session
    assert isinstance(made.default_message_time_to_live, dt.timedelta)
    assert isinstance(made.auto_delete_on_idle, dt.timedelta)
    never = dt.timedelta(days=10_675_199)
    assert made.default_message_time_to_live > never
    assert made.auto_delete_on_idle > never
    assert admin.get_queue_runtime_properties(names_of("made", 8)[7]).total_message_count == 0


def receive_all(receiver: ServiceBusReceiver, count: int) -> list[ServiceBusReceivedMessage]:
    messages: list[ServiceBusReceivedMessage] = []
    while len(messages) < count:
        more = receiver.receive_messages(count - len(messages), max_wait_time=5)
        assert more, f"only {len(messages)} of {count} came"
        messages += more
    return messages


@pytest.mark.proves("P-11")
def test_every_kind_of_message(
    server: ServerProcess, admin: ServiceBusAdministrationClient
) -> None:
    [backlog] = make_backlog_queues(admin, "kinds", 1)
    server.create_queue("direct", requires_session=True)
    server.create_queue("via", requires_session=True)
    count = len(originals())
    with ServiceBusClient.from_connection_string(server.connection_string) as client:
        with (
            client.get_queue_sender("direct") as direct,
            client.get_queue_sender("via") as via,
            client.get_queue_sender(backlog) as to_backlog,
            client.get_queue_receiver(backlog) as from_backlog,
        ):
            for number, message in enumerate(originals()):
                amqp = getattr(message, "raw_amqp_message", message)
                to_backlog.send_messages(rewrite(amqp, "via", f"producer/{number + 1}"))
                direct.send_messages(message)
            for received in receive_all(from_backlog, count):
                restored = restore(received.raw_amqp_message, NOW)
                assert restored.path == "via"
                via.send_messages(restored.message)
                from_backlog.complete_message(received)
        with (
            client.get_queue_receiver("direct", session_id="s") as one,
            client.get_queue_receiver("via", session_id="s") as other,
        ):
            expected = [seen(message) for message in receive_all(one, count)]
            assert [seen(message) for message in receive_all(other, count)] == expected


def test_a_decimal_does_not_poison_the_backlog(
    server: ServerProcess, admin: ServiceBusAdministrationClient
) -> None:
    """The SDK writes decimals that it cannot read: in the backlog there must be none."""
    [backlog] = make_backlog_queues(admin, "decimals", 1)
    properties: dict[str | bytes, Any] = {"price": decimal.Decimal("12.50")}
    message = ServiceBusMessage("x", application_properties=properties)
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_sender(backlog) as sender,
        client.get_queue_receiver(backlog) as receiver,
    ):
        sender.send_messages(rewrite(message.raw_amqp_message, "q"))
        [received] = receive_all(receiver, 1)
        restored = restore(received.raw_amqp_message, NOW).message
        assert restored.application_properties == properties
