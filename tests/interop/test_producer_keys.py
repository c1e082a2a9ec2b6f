"""Producer keys with the official SDK: however often a message is sent, it arrives once.

Any client may give its messages such keys; senders of a pair do (P-13, and the edges of P-16).
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.interop.administration import connect
from tests.interop.outage import KEYS, Bus, peek_all, run_server, take, take_rest, text_of

pytestmark = [pytest.mark.proves("P-13", "P-16"), pytest.mark.feature("ours.producer-keys")]

KEY = "x-opt-twinbus-producer-key"


def numbered(key: object, text: str = "", **properties: Any) -> ServiceBusMessage:
    """A new message object with this key: a copy that nobody but the server can tell."""
    message = ServiceBusMessage(text or str(key), **properties)
    message.raw_amqp_message.delivery_annotations = {KEY: key}
    return message


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    """Two broker processes: keys have the longest way to go there."""
    with run_server(tmp_path_factory.mktemp("bus"), brokers=2, stores=2) as wide:
        yield wide


@pytest.fixture(scope="module")
def admin(bus: Bus) -> Iterator[ServiceBusAdministrationClient]:
    with connect(bus.server) as opened:
        yield opened


@pytest.fixture(scope="module")
def client(bus: Bus) -> Iterator[ServiceBusClient]:
    with bus.client() as opened:
        yield opened


def test_a_queue(client: ServiceBusClient, admin: ServiceBusAdministrationClient) -> None:
    admin.create_queue("orders")
    with client.get_queue_sender("orders") as sender, client.get_queue_receiver("orders") as found:
        for _ in range(3):
            sender.send_messages(numbered("a/1", "first", application_properties={"p": 1}))
            sender.send_messages([numbered("a/2"), numbered("b/1"), numbered("a/2")])
            batch = sender.create_message_batch()
            batch.add_message(numbered("a/3"))
            batch.add_message(numbered("a/1"))
            sender.send_messages(batch)
        sender.send_messages([ServiceBusMessage("plain"), ServiceBusMessage("plain")])
        messages = take(found, 6)
        assert text_of(messages) == ["first", "a/2", "b/1", "a/3", "plain", "plain"]
        assert not take_rest(found)
        # What is received is the message that was sent, and nothing beside it.
        raw = messages[0].raw_amqp_message
        assert messages[0].application_properties == {b"p": 1}
        seen = [*(raw.annotations or {}), *(raw.delivery_annotations or {}), *(raw.footer or {})]
        assert not [name for name in seen if "twinbus" in str(name)]
        sender.send_messages(numbered("a/1"))
        assert not take_rest(found), "it has come, although it is gone"


def test_scheduled(client: ServiceBusClient, admin: ServiceBusAdministrationClient) -> None:
    admin.create_queue("later")
    due = datetime.now(UTC) + timedelta(hours=1)
    with client.get_queue_sender("later") as sender, client.get_queue_receiver("later") as found:
        [first] = sender.schedule_messages(numbered("a/1"), due)
        assert first > 0
        assert sender.schedule_messages([numbered("a/1"), numbered("a/2")], due) == [0, first + 1]
        sender.send_messages(numbered("a/2"))
        assert text_of(peek_all(found)) == ["a/1", "a/2"]


def test_sessions(client: ServiceBusClient, admin: ServiceBusAdministrationClient) -> None:
    admin.create_queue("steps", requires_session=True)
    with client.get_queue_sender("steps") as sender:
        for _ in range(3):
            sender.send_messages(numbered("a/1", session_id="s"))
            sender.send_messages(numbered("a/2", session_id="s"))
    with client.get_queue_receiver("steps", session_id="s") as receiver:
        assert text_of(take(receiver, 2)) == ["a/1", "a/2"]
        assert not take_rest(receiver)


def test_a_topic(client: ServiceBusClient, admin: ServiceBusAdministrationClient) -> None:
    admin.create_topic("news")
    for name in ("one", "two"):
        admin.create_subscription("news", name)
    with client.get_topic_sender("news") as sender:
        for _ in range(3):
            sender.send_messages([numbered("a/1"), numbered("a/2")])
    for name in ("one", "two"):
        with client.get_subscription_receiver("news", name) as receiver:
            assert text_of(take(receiver, 2)) == ["a/1", "a/2"]
            assert not take_rest(receiver)


def test_partitions(client: ServiceBusClient, admin: ServiceBusAdministrationClient) -> None:
    admin.create_queue("wide", enable_partitioning=True)
    keys = [f"p/{number}" for number in (1, 2, 4_095, 4_096, 9_000, 70_000)]
    with client.get_queue_sender("wide") as sender, client.get_queue_receiver("wide") as receiver:
        for _ in range(3):
            for key in keys:
                sender.send_messages(numbered(key))
            sender.send_messages([numbered(keys[0]), numbered(keys[1])])
            for place, partition_key in enumerate(KEYS):
                sender.send_messages(numbered(f"p~{place}/1", partition_key=partition_key))
        messages = take(receiver, len(keys) + len(KEYS))
        expected = [*keys, *(f"p~{place}/1" for place in range(len(KEYS)))]
        assert sorted(text_of(messages)) == sorted(expected)
        assert not take_rest(receiver)


def test_a_malformed_key_is_refused(bus: Bus, admin: ServiceBusAdministrationClient) -> None:
    admin.create_queue("strict")
    with (
        bus.client(retry_total=0) as client,
        client.get_queue_sender("strict") as sender,
        client.get_queue_receiver("strict") as receiver,
    ):
        with pytest.raises(ServiceBusError, match="The producer key 'a/x'"):
            sender.send_messages(numbered("a/x"))
        sender.send_messages(ServiceBusMessage("the link goes on"))
        assert text_of(take_rest(receiver)) == ["the link goes on"]


@pytest.mark.parametrize("brokers", [1, 2])
def test_keys_survive_a_crash(tmp_path: Path, brokers: int) -> None:
    """With their messages: kill -9, and then everything is sent again."""
    messages = [numbered(f"a/{number}") for number in range(1, 41)]
    stores = 0 if brokers == 1 else brokers  # one broker is a part of the server's own process
    with run_server(tmp_path, brokers=brokers, stores=stores) as bus:
        bus.server.create_queue("kept", enable_partitioning=brokers > 1)
        with bus.client() as client, client.get_queue_sender("kept") as sender:
            sender.send_messages(messages[:30])
        bus.server.kill()
        bus.server.restart()
        bus.wait_until_well()
        with (
            bus.client() as client,
            client.get_queue_sender("kept") as sender,
            client.get_queue_receiver("kept") as receiver,
        ):
            sender.send_messages(messages)
            assert text_of(take(receiver, 40)) == [f"a/{number}" for number in range(1, 41)]
            assert not take_rest(receiver)
