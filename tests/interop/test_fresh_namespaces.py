"""Namespaces that are made and deleted while the server runs (docs/reference/namespaces.md)."""

import http.client
import json
from contextlib import closing
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from twinbus.client.admin import AdminClient
from twinbus.client.connection_string import ConnectionString
from twinbus.client.namespaces import NamespaceClient
from twinbus.client.sas import make_sas_token
from twinbus.clock import SystemClock
from twinbus.config import NAMESPACES_MAX
from twinbus.errors import (
    ArgumentInvalid,
    EntityAlreadyExists,
    EntityNotFound,
    ServiceError,
    Unauthorized,
)
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.feature("dropin.namespaces")

CONFIG = (Path(__file__).parents[2] / "examples" / "emulator" / "Config.json").read_text()


@pytest.fixture
def namespaces(server: ServerProcess) -> NamespaceClient:
    return NamespaceClient(server.connection_string)


def names(client: NamespaceClient) -> list[str]:
    return [each["name"] for each in client.list()]


@pytest.mark.feature("entity.namespaces")
def test_made_and_deleted(server: ServerProcess, namespaces: NamespaceClient) -> None:
    """With its entities, durable at once, beside others; and gone for good."""
    first, second = namespaces.create("one", CONFIG), namespaces.create("two")
    AdminClient(second).create_queue("queue.1")
    server.kill()
    server.restart()
    assert names(namespaces) == ["twinbus", "one", "two"]
    assert [queue.name for queue in AdminClient(first).list_queues()] == ["queue.1"]
    assert list(server.admin.list_queues()) == []
    namespaces.delete("ONE")
    with pytest.raises(Unauthorized):
        AdminClient(first).get_queue("queue.1")
    assert AdminClient(second).get_queue("queue.1").name == "queue.1"
    namespaces.delete("two")
    server.kill()
    server.restart()
    assert namespaces.list() == [
        {"name": "twinbus", "created_utc_ms": namespaces.list()[0]["created_utc_ms"]}
        | {"queues": 0, "topics": 0}
    ]
    assert list(AdminClient(namespaces.create("one")).list_queues()) == []
    namespaces.delete("one")


def test_a_connection_does_not_outlive_its_namespace(namespaces: NamespaceClient) -> None:
    """Nor does it find its way into a later namespace of the same name."""
    old = namespaces.create("again")
    AdminClient(old).create_queue("orders")
    with (
        ServiceBusClient.from_connection_string(old, retry_total=0) as client,
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(ServiceBusMessage("to the old one"))
        namespaces.delete("again")
        new = namespaces.create("again")
        AdminClient(new).create_queue("orders")
        with pytest.raises(ServiceBusError):
            sender.send_messages(ServiceBusMessage("to whom?"))
    assert AdminClient(new).get_queue("orders").properties["ActiveMessageCount"] == "0"
    namespaces.delete("again")


def test_only_for_a_key_of_the_first(namespaces: NamespaceClient) -> None:
    other = namespaces.create("other")
    for action in (NamespaceClient.list, lambda each: each.create("x"), _delete_other):
        with pytest.raises(Unauthorized):
            action(NamespaceClient(other))
        with pytest.raises(Unauthorized):
            action(NamespaceClient(other.replace("SharedAccessKey=", "SharedAccessKey=x")))
    assert names(namespaces) == ["twinbus", "other"]
    namespaces.delete("other")


def _delete_other(client: NamespaceClient) -> None:
    client.delete("other")


def test_bad_names_and_bad_requests_change_nothing(
    server: ServerProcess, namespaces: NamespaceClient
) -> None:
    """Each with its reason, and nothing has changed."""
    with pytest.raises(EntityAlreadyExists, match="exists already"):
        namespaces.create("TwinBus")
    for name in ("a b", "-a", "a" * 51, "ä", "a:b"):
        with pytest.raises(ArgumentInvalid, match="letters, digits and hyphens"):
            namespaces.create(name)
    with pytest.raises(EntityNotFound, match="no namespace 'nowhere'"):
        namespaces.delete("nowhere")
    with pytest.raises(ServiceError, match="first namespace"):
        namespaces.delete("twinbus")
    with pytest.raises(ArgumentInvalid, match="line 1: unknown key Queue"):
        namespaces.create("x", '{"UserConfig": {"Queue": 1}}')
    two = {"UserConfig": {"Namespaces": [{"Name": "a"}, {"Name": "b"}]}}
    with pytest.raises(ArgumentInvalid, match="2 namespaces"):
        namespaces.create("x", json.dumps(two))
    # It is made before its entities are, and goes again when they cannot be.
    lost = {"Name": "a", "Queues": [{"Name": "q", "Properties": {"ForwardTo": "nowhere"}}]}
    with pytest.raises(EntityNotFound, match="nowhere"):
        namespaces.create("x", json.dumps({"UserConfig": {"Namespaces": [lost]}}))
    assert names(namespaces) == ["twinbus"]
    for method, path, body, status in (
        ("POST", "/$namespaces", "", 405),
        ("GET", "/$namespaces/x", "", 405),
        ("PUT", "/$namespaces/x/y", "", 404),
        ("PUT", "/$namespaces/x", "{", 400),
        ("PUT", "/$namespaces/x", "[" * 5_000, 400),
        ("PUT", "/$namespaces/x", '{"config": 1}', 400),
        ("PUT", "/$namespaces/x", '{"key": "mine"}', 400),
    ):
        assert answer(server, method, path, body) == status
    assert names(namespaces) == ["twinbus"]


def answer(server: ServerProcess, method: str, path: str, body: str) -> int:
    target = ConnectionString.parse(server.connection_string)
    expires_s = SystemClock().now().utc_ms // 1_000 + 300
    token = make_sas_token("https://any", target.key_name, target.key, expires_s)
    with closing(http.client.HTTPConnection(target.host, target.port, timeout=15)) as client:
        client.request(method, path, body.encode(), {"Authorization": token})
        return client.getresponse().status


def test_not_too_many(namespaces: NamespaceClient) -> None:
    made = [f"n{number}" for number in range(1, NAMESPACES_MAX)]
    for name in made:
        namespaces.create(name)
    with pytest.raises(ServiceError, match=str(NAMESPACES_MAX)):
        namespaces.create("one-more")
    for name in made:
        namespaces.delete(name)
    assert names(namespaces) == ["twinbus"]
