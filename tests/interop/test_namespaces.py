"""Several namespaces in one server, chosen by host name or key; Config.json with several."""

import http.client
import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.exceptions import MessagingEntityNotFoundError, ServiceBusConnectionError

from tests.interop.sdk import body
from twinbus.certificates import ca_bundle
from twinbus.cli.running import find_running
from twinbus.client.admin import AdminClient
from twinbus.client.connection_string import ConnectionString
from twinbus.client.sas import make_sas_token
from twinbus.clock import SystemClock
from twinbus.errors import EntityNotFound, Unauthorized
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.proves("M-12")

NAMES = ("shop", "orders")


def connection_strings(server: ServerProcess) -> dict[str, str]:
    return find_running(server.data_dir).connection_strings


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with two namespaces, each with a queue named `inbox`."""
    arguments = [text for name in NAMES for text in ("--namespace", name)]
    data_dir = tmp_path_factory.mktemp("namespaces") / "data"
    with ServerProcess(data_dir, arguments=arguments) as process:
        for text in connection_strings(process).values():
            AdminClient(text).create_queue("inbox")
        yield process
    assert "Traceback" not in process.log, process.log


def send(connection_string: str, queue: str, text: str, **options: Any) -> None:
    with (
        ServiceBusClient.from_connection_string(connection_string, **options) as client,
        client.get_queue_sender(queue) as sender,
    ):
        sender.send_messages(ServiceBusMessage(text))


def take(connection_string: str, queue: str, **options: Any) -> list[str]:
    """Everything that is in a queue, taken out of it."""
    texts: list[str] = []
    with (
        ServiceBusClient.from_connection_string(connection_string, **options) as client,
        client.get_queue_receiver(queue, receive_mode="receiveanddelete") as receiver,
    ):
        while receiver.peek_messages():
            messages = receiver.receive_messages(10, max_wait_time=5)
            texts += [body(message).decode() for message in messages]
    return texts


@pytest.mark.proves("M-12", "M-13")
@pytest.mark.feature("entity.namespaces")
def test_the_key_leads_to_its_namespace(server: ServerProcess) -> None:
    strings = connection_strings(server)
    assert list(strings) == list(NAMES)
    assert server.connection_string == strings["shop"]
    for name, text in strings.items():
        send(text, "inbox", f"for {name}")
    for name, text in strings.items():
        assert take(text, "inbox") == [f"for {name}"]


@pytest.mark.proves("M-12")
@pytest.mark.feature("entity.namespaces")
def test_entities_of_the_other_are_not_there(server: ServerProcess) -> None:
    shop, orders = connection_strings(server).values()
    AdminClient(orders).create_queue("only-orders")
    assert [queue.name for queue in AdminClient(orders).list_queues()] == ["inbox", "only-orders"]
    assert "only-orders" not in [queue.name for queue in AdminClient(shop).list_queues()]
    for name in ("only-orders", "orders:only-orders"):
        with pytest.raises(EntityNotFound):
            AdminClient(shop).get_queue(name)
        with pytest.raises(MessagingEntityNotFoundError):
            send(shop, name, "")
    AdminClient(orders).delete_queue("only-orders")


@pytest.mark.proves("M-12")
@pytest.mark.feature("entity.namespaces")
@pytest.mark.parametrize("name", NAMES)
def test_the_host_name_leads_to_its_namespace(server: ServerProcess, name: str) -> None:
    """Over TLS, since a name that nobody resolves here can then still be the one asked for."""
    options = {
        "custom_endpoint_address": f"sb://localhost:{server.port}",
        "transport_type": TransportType.Amqp,
        "connection_verify": str(ca_bundle(server.data_dir)),
        "retry_total": 0,
    }
    for key_of, text in connection_strings(server).items():
        target = ConnectionString.parse(text)
        addressed = (
            f"Endpoint=sb://{name}.localhost;"
            f"SharedAccessKeyName={target.key_name};SharedAccessKey={target.key}"
        )
        if key_of == name:
            send(addressed, "inbox", f"by name to {name}", **options)
            assert take(text, "inbox") == [f"by name to {name}"]
        else:
            # What the SDK makes of a refused token when it was sent to another endpoint.
            with pytest.raises(ServiceBusConnectionError):
                send(addressed, "inbox", "", **options)


@pytest.mark.proves("M-12")
@pytest.mark.feature("entity.namespaces")
@pytest.mark.parametrize("name", NAMES)
def test_the_host_name_counts_over_http(server: ServerProcess, name: str) -> None:
    expires_s = SystemClock().now().utc_ms // 1_000 + 300
    for key_of, text in connection_strings(server).items():
        target = ConnectionString.parse(text)
        token = make_sas_token("https://any", target.key_name, target.key, expires_s)
        headers = {"Authorization": token, "Host": f"{name}.localhost"}
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=15)) as client:
            client.request("GET", "/inbox", headers=headers)
            assert client.getresponse().status == (200 if key_of == name else 401)


@pytest.mark.proves("M-11")
def test_namespace_information(server: ServerProcess) -> None:
    """Its own name, and a time of birth that a restart does not change."""
    before = [namespace_information(text) for text in connection_strings(server).values()]
    assert [name for name, _ in before] == list(NAMES)
    server.stop()
    server.restart()
    after = [namespace_information(text) for text in connection_strings(server).values()]
    assert after == before


def namespace_information(connection_string: str) -> tuple[str, str]:
    target = ConnectionString.parse(connection_string)
    expires_s = SystemClock().now().utc_ms // 1_000 + 300
    token = make_sas_token("https://any", target.key_name, target.key, expires_s)
    with closing(http.client.HTTPConnection(target.host, target.port, timeout=15)) as client:
        client.request("GET", "/$namespaceinfo", headers={"Authorization": token})
        text = client.getresponse().read().decode()
    name, created = (re.search(f"<{tag}>([^<]*)<", text) for tag in ("Name", "CreatedTime"))
    assert name is not None
    assert created is not None
    return name[1], created[1]


# --- Config.json ----------------------------------------------------------------------------------


def declared(rules: list[dict[str, Any]], **properties: Any) -> dict[str, Any]:
    """Two namespaces: one with a topic, whose subscription forwards to a later queue."""
    subscription = {
        "Name": "paid",
        "Properties": {"ForwardTo": "paid-orders", **properties},
        "Rules": rules,
    }
    shop = {
        "Name": "shop",
        "Topics": [{"Name": "orders", "Subscriptions": [subscription, {"Name": "all"}]}],
        "Queues": [
            {"Name": "first", "Properties": {"ForwardTo": "second"}},
            {"Name": "second"},
            {"Name": "paid-orders", "Properties": {"MaxDeliveryCount": 3}},
        ],
    }
    other = {"Name": "other", "Queues": [{"Name": "second"}]}
    return {"UserConfig": {"Namespaces": [shop, other], "Logging": {"Type": "File"}}}


PAID = {
    "Name": "paid",
    "Properties": {
        "FilterType": "Correlation",
        "CorrelationFilter": {"Properties": {"state": "paid"}},
    },
}
LARGE = {
    "Name": "large",
    "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "amount > 100"}},
}


def publish(connection_string: str, **orders: dict[Any, Any]) -> None:
    messages = [
        ServiceBusMessage(text, application_properties=properties)
        for text, properties in orders.items()
    ]
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_topic_sender("orders") as sender,
    ):
        sender.send_messages(messages)


@pytest.mark.proves("M-6", "M-8", "M-13")
@pytest.mark.feature("entity.config-json")
def test_declared_entities(tmp_path: Path) -> None:
    """Made at the first start, brought up to date at the next, with their messages kept."""
    path = tmp_path / "Config.json"
    path.write_text(json.dumps(declared([PAID])))
    with ServerProcess(tmp_path / "data", arguments=["--config", str(path)]) as server:
        strings = connection_strings(server)
        assert list(strings) == ["shop", "other"]
        assert [each.name for each in AdminClient(strings["other"]).list_queues()] == ["second"]
        shop = AdminClient(strings["shop"])
        assert shop.get_queue("paid-orders").properties["MaxDeliveryCount"] == "3"
        small, large = {"state": "paid", "amount": 1}, {"state": "open", "amount": 1_000}
        publish(strings["shop"], small=small, large=large)
        assert take(strings["shop"], "paid-orders") == ["small"]
        send(strings["shop"], "first", "on its way")
        server.stop()
        path.write_text(json.dumps(declared([LARGE], MaxDeliveryCount=7)))
        server.restart()
        publish(strings["shop"], small=small, large=large)
        assert take(strings["shop"], "paid-orders") == ["large"]
        assert take(strings["shop"], "second") == ["on its way"]
        with pytest.raises(Unauthorized):
            AdminClient(strings["shop"].replace("Key=", "Key=x")).get_queue("second")


def test_a_declared_target_that_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "Config.json"
    queue = {"Name": "first", "Properties": {"ForwardTo": "nowhere"}}
    text = json.dumps({"UserConfig": {"Namespaces": [{"Name": "n", "Queues": [queue]}]}})
    path.write_text(text)
    server = ServerProcess(tmp_path / "data", arguments=["--config", str(path)])
    with pytest.raises(Exception, match="nowhere"):
        server.start()
    assert "Traceback" not in server.log
