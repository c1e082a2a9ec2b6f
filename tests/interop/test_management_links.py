"""$management with the official SDK: links outlive their entity, and what requests may ask for.

All of it with one broker process and with two, with and without partitions.
"""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessagingEntityNotFoundError
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.interop.administration import connect
from tests.interop.outage import RECEIVE_S, Bus, run_server
from twinbus.amqp.types import Int
from twinbus.client.connection import BusConnection
from twinbus.client.requests import ManagementNode
from twinbus.errors import EntityNotFound

PEEK = "com.microsoft:peek-message"
ALL: dict[object, object] = {"from-sequence-number": 0, "message-count": Int(10)}
PARTITIONED = pytest.mark.parametrize("partitioned", [False, True], ids=["whole", "partitioned"])


@pytest.fixture(scope="module", params=[1, 2], ids=["one", "two"])
def bus(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    directory = tmp_path_factory.mktemp("bus")
    with run_server(directory, brokers=request.param, stores=request.param) as running:
        yield running


@pytest.fixture(scope="module")
def admin(bus: Bus) -> Iterator[ServiceBusAdministrationClient]:
    with connect(bus.server) as opened:
        yield opened


@pytest.fixture
def client(bus: Bus) -> Iterator[ServiceBusClient]:
    with bus.client(retry_total=0) as opened:
        yield opened


def tomorrow() -> datetime:
    return datetime.now(UTC) + timedelta(days=1)


def scheduled(sender: Any, *bodies: bytes) -> list[int]:
    messages = [ServiceBusMessage(body) for body in bodies]
    return list(sender.schedule_messages(messages, tomorrow()))


@pytest.mark.proves("M-3")
@pytest.mark.feature("send.schedule")
@PARTITIONED
def test_sdk_goes_on_with_the_new_entity(
    admin: ServiceBusAdministrationClient, client: ServiceBusClient, partitioned: bool
) -> None:
    """The queue is deleted and made again under an open sender; the other kind of queue at last."""
    name = f"again-{partitioned}"
    admin.create_queue(name, enable_partitioning=partitioned)
    with client.get_queue_sender(name) as sender:
        scheduled(sender, b"old")
        links = sender._handler._mgmt_links.copy()  # after an error the SDK would open others
        for new in (partitioned, not partitioned):
            admin.delete_queue(name)
            admin.create_queue(name, enable_partitioning=new)
            numbers = scheduled(sender, b"a", b"b")
            with client.get_queue_receiver(name) as receiver:
                peeked = receiver.peek_messages(10, sequence_number=1)
            assert {each.sequence_number for each in peeked} == set(numbers)
        assert sender._handler._mgmt_links == links
        admin.delete_queue(name)
        with pytest.raises(MessagingEntityNotFoundError):
            scheduled(sender, b"nowhere")


@pytest.mark.feature("receive.peek")
@PARTITIONED
def test_links_stay_while_the_entity_is_gone(
    bus: Bus, admin: ServiceBusAdministrationClient, partitioned: bool
) -> None:
    name = f"gone-{partitioned}"
    admin.create_queue(name, enable_partitioning=partitioned)

    async def asked() -> None:
        async with await BusConnection.open(bus.server.connection_string) as connection:
            node = await ManagementNode.open(connection, name)
            assert await node.request(PEEK, ALL) == {}
            for _ in range(2):
                await asyncio.to_thread(admin.delete_queue, name)
                for _ in range(2):
                    with pytest.raises(EntityNotFound):
                        await node.request(PEEK, ALL)
                await asyncio.to_thread(admin.create_queue, name, enable_partitioning=partitioned)
                assert await node.request(PEEK, ALL) == {}
            assert not node.is_closed

    asyncio.run(asked())


def ask_with(receiver: Any, **fields: object) -> None:
    """From now on the SDK's requests carry these fields, too."""
    named = {name.replace("_", "-"): value for name, value in fields.items()}
    receiver._populate_message_properties = lambda message: message.update(named)


@pytest.mark.feature("receive.peek")
@PARTITIONED
def test_peek_without_bodies(
    admin: ServiceBusAdministrationClient, client: ServiceBusClient, partitioned: bool
) -> None:
    """As the Node and Java SDKs can ask for; this one can read the answer."""
    name = f"bodiless-{partitioned}"
    admin.create_queue(name, enable_partitioning=partitioned)
    with client.get_queue_sender(name) as sender, client.get_queue_receiver(name) as receiver:
        for number in range(5):
            properties: dict[Any, Any] = {"n": number}
            sender.send_messages(
                ServiceBusMessage(b"x" * 100, subject="s", application_properties=properties)
            )
        whole = receiver.peek_messages(10, sequence_number=1)
        ask_with(receiver, omit_message_body=True)
        peeked = receiver.peek_messages(10, sequence_number=1)
    assert [each.sequence_number for each in peeked] == [each.sequence_number for each in whole]
    numbers: list[Any] = [(each.application_properties or {}).get(b"n") for each in peeked]
    assert sorted(numbers) == list(range(5))
    for message in peeked:
        raw = message.raw_amqp_message
        assert message.subject == "s"
        assert raw._data_body is None
        assert (raw.delivery_annotations or {})[b"omitted-message-body-size"] > 100


@pytest.mark.feature("receive.peek", "receive.deferred")
@PARTITIONED
def test_session_id_without_sessions_is_ignored(
    admin: ServiceBusAdministrationClient, client: ServiceBusClient, partitioned: bool
) -> None:
    name = f"no-sessions-{partitioned}"
    admin.create_queue(name, enable_partitioning=partitioned)
    with client.get_queue_sender(name) as sender, client.get_queue_receiver(name) as receiver:
        for _ in range(5):
            sender.send_messages(ServiceBusMessage(b"x"))
        [message] = receiver.receive_messages(1, max_wait_time=RECEIVE_S)
        receiver.defer_message(message)
        ask_with(receiver, session_id="s")
        assert len(receiver.peek_messages(10, sequence_number=1)) == 5
        [deferred] = receiver.receive_deferred_messages([message.sequence_number or 0])
        receiver.complete_message(deferred)  # over $management, as the SDK does with such
        assert len(receiver.peek_messages(10, sequence_number=1)) == 4
