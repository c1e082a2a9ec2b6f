"""`twinbus emulator` in the place of Microsoft's: its connection string, ports, Config.json."""

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.interop.sdk import body
from twinbus.certificates import ca_certificate
from twinbus.client.admin import TOPIC, AdminClient
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.feature("dropin.emulator")

EXAMPLE = Path(__file__).parents[2] / "examples" / "emulator" / "Config.json"


def documented(port: int) -> str:
    """As Microsoft documents it; there the port is left out, and so 5672."""
    return (
        f"Endpoint=sb://localhost:{port};SharedAccessKeyName=RootManageSharedAccessKey;"
        "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
    )


def free_port() -> int:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    return port


class Emulator(ServerProcess):
    """`twinbus emulator` on free ports, with the variables that Microsoft's compose file sets."""

    def __init__(self, folder: Path) -> None:
        self.config = folder / "Config.json"
        self.config.write_text(EXAMPLE.read_text())
        self.http_port = free_port()
        environment = {
            "CONFIG_PATH": str(self.config),
            "EMULATOR_HTTP_PORT": str(self.http_port),
            "ACCEPT_EULA": "Y",
            "SQL_SERVER": "sqledge",
            "MSSQL_SA_PASSWORD": "very secret",
        }
        super().__init__(folder / "data", environment=environment, command="emulator")


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with Emulator(tmp_path_factory.mktemp("emulator")) as process:
        yield process
    assert "Traceback" not in process.log, process.log
    assert "very secret" not in process.log


def receive(receiver: Any, count: int) -> list[str]:
    with receiver:
        messages = receiver.receive_messages(count, max_wait_time=10)
    return [body(message).decode() for message in messages]


@pytest.mark.feature("entity.config-json")
def test_messages_as_documented(emulator: Emulator) -> None:
    with ServiceBusClient.from_connection_string(documented(emulator.port)) as client:
        with client.get_queue_sender("queue.1") as sender:
            sender.send_messages(ServiceBusMessage("to the queue"))
        with client.get_topic_sender("topic.1") as sender:
            sender.send_messages(ServiceBusMessage("a note"))
            sender.send_messages(ServiceBusMessage("an order", subject="order"))
        receiver: Any = client.get_subscription_receiver("topic.1", "subscription.1")
        assert receive(receiver, 1) == ["an order"]
    # Its second port speaks AMQP as well: there is nothing to get wrong.
    with ServiceBusClient.from_connection_string(documented(emulator.http_port)) as client:
        assert receive(client.get_queue_receiver("queue.1"), 1) == ["to the queue"]


def test_administration_on_its_port(emulator: Emulator) -> None:
    """Python's client insists on TLS there, .NET's speaks plain HTTP, and both get an answer."""
    text = documented(emulator.http_port)
    trusted = str(ca_certificate(emulator.data_dir))
    with ServiceBusAdministrationClient.from_connection_string(
        text, connection_verify=trusted
    ) as admin:
        admin.create_queue("made-by-the-sdk", max_delivery_count=100)  # there, at most 10
    made = AdminClient(text).get_queue("made-by-the-sdk")
    assert made.properties["MaxDeliveryCount"] == "100"
    AdminClient(text).delete_queue("made-by-the-sdk")


def test_health(emulator: Emulator) -> None:
    with closing(http.client.HTTPConnection("localhost", emulator.http_port)) as connection:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        document = json.loads(answer.read())
    assert answer.status == 200
    assert document["status"] == "healthy"
    assert document["message"]


def test_what_a_restart_keeps(tmp_path: Path) -> None:
    """Another Config.json: declared entities follow it, and nothing is deleted."""
    with Emulator(tmp_path) as emulator:
        admin = AdminClient(documented(emulator.port))
        admin.create_queue("by-hand")
        with ServiceBusClient.from_connection_string(documented(emulator.port)) as client:
            for name in ("queue.1", "by-hand"):
                with client.get_queue_sender(name) as sender:
                    sender.send_messages(ServiceBusMessage(f"kept in {name}"))
        emulator.kill()
        queues = [{"Name": "queue.1", "Properties": {"MaxDeliveryCount": 7}}, {"Name": "queue.2"}]
        namespaces = [{"Name": "sbemulatorns", "Queues": queues}]
        emulator.config.write_text(json.dumps({"UserConfig": {"Namespaces": namespaces}}))
        emulator.restart()
        names = [queue.name for queue in admin.list_queues()]
        assert names == ["by-hand", "queue.1", "queue.2"]
        assert admin.get_queue("queue.1").properties["MaxDeliveryCount"] == "7"
        assert [topic.name for topic in admin.list(TOPIC)] == ["topic.1"]
        for name in ("queue.1", "by-hand"):
            assert admin.get_queue(name).properties["ActiveMessageCount"] == "1"
        with ServiceBusClient.from_connection_string(documented(emulator.port)) as client:
            assert receive(client.get_queue_receiver("by-hand"), 1) == ["kept in by-hand"]
