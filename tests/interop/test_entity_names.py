"""Names that begin and end with punctuation, all the way through, with the official SDK.

Frameworks make them of the names of types: MassTransit's topic for the faults of a message `NS.M`
is `MassTransit/Fault--NS/M--`.
"""

import http.client
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest
import pytest_asyncio
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient, SqlRuleFilter

from tests.interop.administration import connect
from tests.interop.sdk import Client, body, open_client, peek_all, receive_one
from twinbus.client.connection_string import ConnectionString
from twinbus.client.sas import make_sas_token
from twinbus.clock import SystemClock
from twinbus.testing.server import ServerProcess

pytestmark = [pytest.mark.proves("M-13"), pytest.mark.asyncio, pytest.mark.feature("entity.names")]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("names") / "data") as server:
        yield server
    assert "Traceback" not in server.log, server.log


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("brokers")
    with ServerProcess(directory / "data", arguments=("--brokers", "2")) as server:
        yield server
    assert "Traceback" not in server.log, server.log


@pytest.fixture
def bus(request: pytest.FixtureRequest) -> ServerProcess:
    found: ServerProcess = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def admin(bus: ServerProcess) -> Iterator[ServiceBusAdministrationClient]:
    with connect(bus) as opened:
        yield opened


@pytest_asyncio.fixture
async def client(bus: ServerProcess) -> AsyncIterator[Client]:
    opened = open_client("sync", bus.connection_string)
    yield opened
    await opened.close()


@pytest.mark.proves("M-9", "M-11", "M-13")
@pytest.mark.parametrize(
    ("bus", "topic", "subscription", "queue", "wide"),
    [
        ("alone", "NS/Fault--NS/Message--", "Consumer-", "Consumer_error_", False),
        ("alone", "-t./_u_", "_s.", ".q-", False),
        ("brokers", "NS/Fault--NS/Message--", "s_", "q.", True),
    ],
    indirect=["bus"],
)
async def test_names_begin_and_end_as_they_like(
    bus: ServerProcess,
    admin: ServiceBusAdministrationClient,
    client: Client,
    topic: str,
    subscription: str,
    queue: str,
    wide: bool,
) -> None:
    admin.create_queue(queue, enable_partitioning=wide)
    admin.create_topic(topic, enable_partitioning=wide)
    admin.create_subscription(topic, subscription)
    admin.create_rule(topic, subscription, "rule-", filter=SqlRuleFilter("a = 1"))
    assert admin.get_topic(topic.upper()).name == topic.upper()
    assert topic in [each.name for each in admin.list_topics()]
    assert queue in [each.name for each in admin.list_queues()]
    assert [each.name for each in admin.list_subscriptions(topic)] == [subscription]
    rules = [each.name for each in admin.list_rules(topic, subscription)]
    assert rules == ["$Default", "rule-"]
    await through_amqp(client, topic, subscription)
    # As a failing consumer does it: from the subscription into the queue of its errors.
    forwarding = admin.get_subscription(topic, subscription)
    admin.update_subscription(topic, forwarding, forward_to=queue)
    await client.topic_sender(topic).send_messages(ServiceBusMessage(b"forwarded"))
    receiver = client.receiver(queue)
    message = await receive_one(receiver)
    assert body(message) == b"forwarded"
    await receiver.complete_message(message)
    await receiver.close()  # else it gets what is sent next
    through_rest(bus, queue)
    admin.delete_subscription(topic, subscription)
    admin.delete_topic(topic)
    admin.delete_queue(queue)
    for missing in (lambda: admin.get_topic(topic), lambda: admin.get_queue(queue)):
        with pytest.raises(ResourceNotFoundError):
            missing()


async def through_amqp(client: Client, topic: str, subscription: str) -> None:
    """Sends, locks, dead letters, and what goes through `$management`."""
    sender = client.topic_sender(topic)
    numbers = await sender.schedule_messages(
        ServiceBusMessage(b"later"), datetime.now(UTC) + timedelta(hours=1)
    )
    await sender.cancel_scheduled_messages(numbers)
    await sender.send_messages(ServiceBusMessage(b"now"))
    receiver = client.subscription_receiver(topic, subscription)
    message = await receive_one(receiver)
    await receiver.renew_message_lock(message)
    assert [body(each) for each in await peek_all(receiver)] == [b"now"]
    await receiver.dead_letter_message(message, reason="test")
    dead_letters = client.subscription_receiver(topic, subscription, sub_queue="deadletter")
    message = await receive_one(dead_letters)
    assert (body(message), message.dead_letter_reason) == (b"now", "test")
    await dead_letters.complete_message(message)


def through_rest(bus: ServerProcess, queue: str) -> None:
    target = ConnectionString.parse(bus.connection_string)
    expires_s = SystemClock().now().utc_ms // 1_000 + 300
    token = make_sas_token(f"https://h/{queue}", target.key_name, target.key, expires_s)
    connection = http.client.HTTPConnection("localhost", bus.port, timeout=30)
    try:
        statuses = []
        for method, place in (("POST", "messages"), ("DELETE", "messages/head?timeout=10")):
            connection.request(method, f"/{quote(queue)}/{place}", b"x", {"Authorization": token})
            answer = connection.getresponse()
            statuses.append((answer.status, answer.read()))
        assert statuses == [(201, b""), (200, b"x")]
    finally:
        connection.close()
