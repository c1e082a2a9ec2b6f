"""A sending link: what it takes, and how it refuses."""

import pytest
import pytest_asyncio

from tests.unit.server.wired import Client, Scene
from twinbus.amqp.composites import Rejected
from twinbus.amqp.events import DispositionReceived
from twinbus.entities.descriptions import QueueDescription
from twinbus.message.plain import (
    BATCH_FORMAT,
    Properties,
    build_batch,
    data_section,
    encode_message,
)


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
