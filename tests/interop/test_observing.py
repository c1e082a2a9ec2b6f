"""What the official SDK has done, seen in `/metrics` and `/health`."""

import urllib.request
from collections.abc import Iterator

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessageLockLostError

from tests.interop.administration import connect
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.feature("available.health", "available.metrics")


def read(server: ServerProcess, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}") as answer:
        return str(answer.read().decode())


def counters(server: ServerProcess, entity: str) -> dict[str, int]:
    """Everything of an entity that is not zero."""
    at = f'{{namespace="twinbus",entity="{entity}"}} '
    lines = [line.split(at) for line in read(server, "/metrics").splitlines() if at in line]
    return {name: int(value) for name, value in lines if value != "0"}


@pytest.fixture
def client(server: ServerProcess) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(server.connection_string) as opened:
        yield opened


def test_messages(server: ServerProcess, client: ServiceBusClient) -> None:
    server.create_queue("counted")
    with client.get_queue_sender("counted") as sender:
        sender.send_messages([ServiceBusMessage(b"x" * 100) for _ in range(6)])
    with client.get_queue_receiver("counted") as receiver:
        found = receiver.receive_messages(4, max_wait_time=5)
        while len(found) < 4:
            found += receiver.receive_messages(4 - len(found), max_wait_time=5)
        receiver.complete_message(found[0])
        receiver.abandon_message(found[1])
        receiver.defer_message(found[2])
        receiver.dead_letter_message(found[3], reason="test")
        with pytest.raises((MessageLockLostError, ValueError)):
            receiver.complete_message(found[0])
    seen = counters(server, "counted")
    assert seen["servicebus_incoming_messages_total"] == 6
    assert seen["servicebus_incoming_bytes_total"] >= 600
    assert seen["servicebus_outgoing_messages_total"] >= 4
    assert seen["servicebus_complete_message_total"] == 1
    assert seen["servicebus_abandon_message_total"] == 1
    assert seen["twinbus_defer_message_total"] == 1
    assert seen["twinbus_dead_letter_message_total"] == 1
    assert seen["servicebus_messages"] == 5
    assert seen["servicebus_active_messages"] == 3
    assert seen["servicebus_deadlettered_messages"] == 1
    assert seen["twinbus_deferred_messages"] == 1
    requests = seen["servicebus_incoming_requests_total"]
    assert requests == seen["servicebus_successful_requests_total"] >= 5


def test_management_and_its_errors(server: ServerProcess) -> None:
    before = counters(server, "-NamespaceOnlyMetric-")
    with connect(server) as admin:
        admin.create_queue("managed")
        with pytest.raises(HttpResponseError):
            admin.create_queue("managed")
    after = counters(server, "-NamespaceOnlyMetric-")
    user_errors = "servicebus_user_errors_total"
    assert after["servicebus_incoming_requests_total"] >= 2
    assert after[user_errors] == before.get(user_errors, 0) + 1


def test_a_deleted_queue_is_counted_no_more(
    server: ServerProcess, client: ServiceBusClient
) -> None:
    server.create_queue("short-lived")
    with client.get_queue_sender("short-lived") as sender:
        sender.send_messages(ServiceBusMessage(b"x"))
    assert counters(server, "short-lived")
    with connect(server) as admin:
        admin.delete_queue("short-lived")
        assert counters(server, "short-lived") == {}
        admin.create_queue("short-lived")
    assert "servicebus_incoming_messages_total" not in counters(server, "short-lived")


@pytest.mark.proves("A-1")
def test_a_queue_that_takes_no_messages(server: ServerProcess) -> None:
    with connect(server) as admin:
        queue = admin.create_queue("closed", status="SendDisabled")
        assert queue.availability_status == "Available"
    assert '"cannot": {"send": ["its status is SendDisabled"]}' in read(server, "/health?detail")


@pytest.mark.parametrize("name", ["health", "metrics"])
def test_queues_may_have_these_names(
    server: ServerProcess, client: ServiceBusClient, name: str
) -> None:
    with connect(server) as admin:
        admin.create_queue(name)
        assert admin.get_queue(name).name == name
    with client.get_queue_sender(name) as sender:
        sender.send_messages(ServiceBusMessage(b"x"))
    assert counters(server, name)["servicebus_active_messages"] == 1
