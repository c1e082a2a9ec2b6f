"""Pings with the official SDK and over REST: they go all the way to the store, and leave nothing.

P-13: a twinbus namespace accepts pings and never delivers them to anyone.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessagingEntityDisabledError, ServiceBusQuotaExceededError
from azure.servicebus.management import EntityStatus, ServiceBusAdministrationClient

from tests.interop.administration import connect
from tests.interop.outage import peek_all, take, take_rest, text_of
from tests.interop.test_rest import Rest
from twinbus.testing.server import ServerProcess

pytestmark = [pytest.mark.proves("P-13"), pytest.mark.feature("ours.pings")]

PING_TYPE = "application/vnd.ms-servicebus-ping"


def ping(**properties: Any) -> ServiceBusMessage:
    """As a pair sends it."""
    given = {"session_id": uuid4().hex, "time_to_live": timedelta(seconds=1), **properties}
    return ServiceBusMessage(b"", content_type=PING_TYPE, **given)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One that lets queues be as small as they like."""
    directory = tmp_path_factory.mktemp("pings")
    with ServerProcess(directory / "data", arguments=["--limits", "unlimited"]) as process:
        yield process
    assert "Traceback" not in process.log, process.log


@pytest.fixture(scope="module")
def admin(server: ServerProcess) -> Iterator[ServiceBusAdministrationClient]:
    with connect(server) as opened:
        yield opened


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[ServiceBusClient]:
    string = server.connection_string
    with ServiceBusClient.from_connection_string(string, retry_total=0) as opened:
        yield opened


def count_of(admin: ServiceBusAdministrationClient, queue: str) -> int | None:
    return admin.get_queue_runtime_properties(queue).total_message_count


@pytest.mark.proves("P-13")
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"requires_session": True},
        {"enable_partitioning": True, "requires_duplicate_detection": True},
    ],
    ids=["plain", "sessions", "partitions"],
)
def test_nobody_sees_a_ping(
    client: ServiceBusClient,
    admin: ServiceBusAdministrationClient,
    settings: dict[str, Any],
    request: pytest.FixtureRequest,
) -> None:
    name = f"queue-{request.node.callspec.id}"
    admin.create_queue(name, **settings)
    with client.get_queue_sender(name) as sender:
        sender.send_messages(ping())
        sender.send_messages(ping(session_id=None))
        sender.send_messages([ping(message_id="same")])
        sender.send_messages([ping(message_id="same")])
        batch = sender.create_message_batch()
        batch.add_message(ping())
        sender.send_messages(batch)
        assert sender.schedule_messages(ping(), datetime.now(UTC) + timedelta(hours=1)) == [0]
        assert count_of(admin, name) == 0
        sender.send_messages(ServiceBusMessage("real", session_id="s", message_id="same"))
    assert count_of(admin, name) == 1
    session: dict[str, Any] = {"session_id": "s"} if "requires_session" in settings else {}
    with client.get_queue_receiver(name, **session) as receiver:
        assert text_of(peek_all(receiver)) == ["real"]
        assert text_of(take(receiver, 1)) == ["real"]
        assert not take_rest(receiver)


@pytest.mark.proves("P-13")
def test_a_topic_makes_no_copies(
    client: ServiceBusClient, admin: ServiceBusAdministrationClient
) -> None:
    admin.create_topic("news")
    admin.create_subscription("news", "all")
    admin.create_subscription("news", "steps", requires_session=True)
    with client.get_topic_sender("news") as sender:
        sender.send_messages(ping())
        sender.send_messages(ping(session_id=None))
    for name in ("all", "steps"):
        found = admin.get_subscription_runtime_properties("news", name)
        assert found.total_message_count == 0


@pytest.mark.proves("P-13")
def test_over_rest(server: ServerProcess, admin: ServiceBusAdministrationClient) -> None:
    admin.create_queue("rest")
    rest = Rest(server, "rest")
    assert rest.send(b"", {"TimeToLive": 1}, Content_Type=PING_TYPE) == 201
    assert count_of(admin, "rest") == 0
    assert rest.send(b"", {"TimeToLive": 60}, Content_Type="text/plain") == 201
    assert count_of(admin, "rest") == 1
    rest.connection.close()


@pytest.mark.proves("P-13")
def test_a_disabled_queue_refuses_it(
    client: ServiceBusClient, admin: ServiceBusAdministrationClient
) -> None:
    queue = admin.create_queue("disabled")
    with client.get_queue_sender("disabled") as sender:
        sender.send_messages(ping())
        queue.status = EntityStatus.SEND_DISABLED
        admin.update_queue(queue)
        with pytest.raises(MessagingEntityDisabledError):
            sender.send_messages(ping())
        queue.status = EntityStatus.ACTIVE
        admin.update_queue(queue)
        sender.send_messages(ping())


@pytest.mark.proves("P-13")
def test_a_full_queue_refuses_it(
    client: ServiceBusClient, admin: ServiceBusAdministrationClient
) -> None:
    admin.create_queue("full", max_size_in_megabytes=1)
    with client.get_queue_sender("full") as sender, client.get_queue_receiver("full") as receiver:
        sender.send_messages(ServiceBusMessage(bytes(1_000_000)))
        sender.send_messages(ServiceBusMessage(bytes(48_400)))
        with pytest.raises(ServiceBusQuotaExceededError):
            sender.send_messages(ping(message_id="x" * 100))
        take(receiver, 1)
        sender.send_messages(ping(message_id="x" * 100))


def test_what_only_looks_like_one_is_delivered(
    client: ServiceBusClient, admin: ServiceBusAdministrationClient
) -> None:
    admin.create_queue("lookalikes")
    with (
        client.get_queue_sender("lookalikes") as sender,
        client.get_queue_receiver("lookalikes") as receiver,
    ):
        sender.send_messages(ServiceBusMessage(PING_TYPE))
        sender.send_messages(ServiceBusMessage("a" * 600, content_type=PING_TYPE))
        assert text_of(take(receiver, 2)) == [PING_TYPE, "a" * 600]
