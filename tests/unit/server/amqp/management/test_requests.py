"""Requests about messages, as the SDKs send them: what they may say, and what comes of it."""

import pytest
import pytest_asyncio

from tests.unit.server.asking import Asking
from tests.unit.server.wired import Client, Scene
from twinbus.amqp.composites import modified
from twinbus.amqp.ingress import DeliveryReceived
from twinbus.amqp.types import Array, Int, UInt
from twinbus.entities.descriptions import QueueDescription
from twinbus.message.plain import (
    Properties,
    data_section,
    decode_message,
    encode_message,
    sequence_section,
    value_section,
)

pytestmark = pytest.mark.asyncio

PEEK = "com.microsoft:peek-message"
ALL: dict[object, object] = {"from-sequence-number": 0, "message-count": Int(10)}


@pytest_asyncio.fixture
async def client() -> Client:
    scene = Scene()
    scene.harness.create_queue("orders")
    return scene.connect()


def send(client: Client, *messages: bytes) -> None:
    sender = client.attach_sender("orders")
    for message in messages:
        sender.send(b"tag", message, b"", True, None)
        client.pump()
    sender.detach()
    client.pump()


# --- peeking without bodies -----------------------------------------------------------------------


@pytest.mark.feature("receive.peek")
@pytest.mark.parametrize(
    "body",
    [
        data_section(b"x" * 300),
        data_section(b"a") + data_section(b"b"),
        value_section("text"),
        sequence_section([1, 2]),
        b"",
    ],
    ids=["data", "two", "value", "sequence", "none"],
)
async def test_peek_omits_the_body(client: Client, body: bytes) -> None:
    """All else is there, and how much was left out."""
    footer = b"\x00\x53\x78\xc1\x07\x02\xa3\x01f\xa1\x01g"
    message = encode_message(body, Properties(message_id="m", group_id="g"), {"colour": "red"})
    send(client, message + footer)
    asking = Asking(client, "orders")
    [whole] = asking.ask(PEEK, ALL).body["messages"]
    answer = asking.ask(PEEK, {**ALL, "omit-message-body": True})
    [entry] = answer.body["messages"]
    assert whole["message"].endswith(body + footer)
    assert entry["message"].endswith(footer)
    peeked, complete = decode_message(entry["message"]), decode_message(whole["message"])
    assert peeked.body_section == 0
    assert peeked.delivery_annotations == {"omitted-message-body-size": len(body)}
    assert (peeked.properties.message_id, peeked.properties.group_id) == ("m", "g")
    assert peeked.application_properties == {"colour": "red"}
    assert peeked.annotations == complete.annotations
    assert asking.ask(PEEK, {**ALL, "omit-message-body": False}).body["messages"] == [whole]


async def test_omitting_is_a_boolean(client: Client) -> None:
    answer = Asking(client, "orders").ask(PEEK, {**ALL, "omit-message-body": "yes"})
    assert answer.status == 400
    assert "omit-message-body" in answer.text


# --- session ids where there are no sessions ------------------------------------------------------


async def test_session_id_without_sessions_is_ignored(client: Client) -> None:
    """In requests that it would only narrow down; the messages' own session ids mean nothing."""
    send(client, encode_message(data_section(b"a")), encode_message(data_section(b"b")))
    asking = Asking(client, "orders")
    answer = asking.ask(PEEK, {**ALL, "session-id": "s"})
    assert len(answer.body["messages"]) == 2
    receiver = client.attach_receiver("orders", credit=0)
    receiver.grant(1)
    [event] = [each for each in client.pump() if isinstance(each, DeliveryReceived)]
    receiver.settle(event.delivery_id, event.delivery_id, modified(True, True), settled=False)
    client.pump()
    deferred: dict[object, object] = {
        "sequence-numbers": Array([1]),
        "receiver-settle-mode": UInt(1),
        "session-id": "s",
    }
    answer = asking.ask("com.microsoft:receive-by-sequence-number", deferred)
    [entry] = answer.body["messages"]
    done: dict[object, object] = {
        "disposition-status": "completed",
        "lock-tokens": Array([entry["lock-token"]]),
        "session-id": "s",
    }
    assert asking.ask("com.microsoft:update-disposition", done).status == 200


async def test_session_id_is_ignored_in_a_dead_letter_queue(client: Client) -> None:
    """It has no sessions, even if its queue has."""
    sessions = QueueDescription(requires_session=True)
    client.scene.harness.create_queue("sessions", sessions)
    answer = Asking(client, "sessions/$DeadLetterQueue").ask(PEEK, {**ALL, "session-id": "s"})
    assert answer.status == 204


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        (PEEK, {**ALL, "session-id": 5}),
        ("com.microsoft:renew-session-lock", {"session-id": "s"}),
        ("com.microsoft:get-session-state", {"session-id": "s"}),
        ("com.microsoft:batch-delete-messages", {"message-count": Int(1), "session-id": "s"}),
    ],
)
async def test_what_is_still_refused(
    client: Client, operation: str, body: dict[object, object]
) -> None:
    """A wrong type, what is about a session itself, and deleting more than was asked for."""
    assert Asking(client, "orders").ask(operation, body).status == 400
