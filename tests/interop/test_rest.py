"""The REST data plane against a real server, with the official SDK on the other end."""

import http.client
import json
import re
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from twinbus.certificates import ca_certificate
from twinbus.client.connection_string import ConnectionString
from twinbus.client.sas import make_sas_token
from twinbus.testing.server import ServerProcess

pytestmark = [pytest.mark.proves("M-11"), pytest.mark.feature("transport.rest")]

BATCH = "application/vnd.microsoft.servicebus.json"


@dataclass
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def broker_properties(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.headers["BrokerProperties"])
        return found

    @property
    def path(self) -> str:
        """The path of the locked message."""
        return "/" + self.headers["Location"].split("/", 3)[3]


class Rest:
    """One connection that speaks REST about one queue."""

    def __init__(self, server: ServerProcess, queue: str, *, tls: bool = False) -> None:
        target = ConnectionString.parse(server.connection_string)
        self.token = make_sas_token(
            "https://h", target.key_name, target.key, int(time.time()) + 300
        )
        self.queue = queue
        self.connection = http.client.HTTPConnection("localhost", server.port, timeout=30)
        if tls:
            context = ssl.create_default_context(cafile=str(ca_certificate(server.data_dir)))
            self.connection = http.client.HTTPSConnection(
                "localhost", server.port, timeout=30, context=context
            )

    def ask(self, method: str, path: str, body: bytes | str = b"", **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        named.setdefault("Authorization", self.token)
        self.connection.request(method, path, body, named)
        answer = self.connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read())

    def send(self, body: bytes | str, broker: object = None, **headers: str) -> int:
        if broker is not None:
            headers["BrokerProperties"] = json.dumps(broker)
        return self.ask("POST", f"/{self.queue}/messages", body, **headers).status

    def lock(self, timeout_s: int = 5) -> Answer:
        return self.ask("POST", f"/{self.queue}/messages/head?timeout={timeout_s}")

    def take(self, timeout_s: int = 5) -> Answer:
        return self.ask("DELETE", f"/{self.queue}/messages/head?timeout={timeout_s}")


@pytest.fixture
def queue(server: ServerProcess, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")
    marker = request.node.get_closest_marker("queue")
    server.create_queue(name, **(marker.kwargs if marker else {}))
    return name


@pytest.fixture
def rest(server: ServerProcess, queue: str) -> Iterator[Rest]:
    rest = Rest(server, queue)
    yield rest
    rest.connection.close()


@pytest.fixture
def sdk(server: ServerProcess) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(server.connection_string) as client:
        yield client


@pytest.mark.proves("M-11")
def test_sent_over_rest_received_by_the_sdk(rest: Rest, sdk: ServiceBusClient) -> None:
    status = rest.send(
        b"\x00\xff",
        {"MessageId": "m", "Label": "l", "SessionId": "s", "CorrelationId": "c", "TimeToLive": 60},
        Content_Type="a/b",
        Priority='"High"',
        Number="7",
        Yes="true",
    )
    assert status == 201
    with sdk.get_queue_receiver(rest.queue, max_wait_time=5) as receiver:
        [message] = receiver.receive_messages()
        assert b"".join(message.body) == b"\x00\xff"
        assert message.message_id == "m"
        assert message.subject == "l"
        assert message.session_id == "s"
        assert message.correlation_id == "c"
        assert message.content_type == "a/b"
        assert message.time_to_live == timedelta(seconds=60)
        assert message.application_properties == {b"Priority": b"High", b"Number": 7, b"Yes": True}


@pytest.mark.proves("M-11")
def test_sent_by_the_sdk_received_over_rest(rest: Rest, sdk: ServiceBusClient) -> None:
    sent = ServiceBusMessage(
        b"body",
        message_id="m",
        subject="ä",
        content_type="text/plain",
        application_properties={"text": "ä\r\nX-Evil: yes", "number": 1.5, "bad name": 1},
    )
    raw = AmqpAnnotatedMessage(value_body={"list": [1, "two", None]})
    with sdk.get_queue_sender(rest.queue) as sender:
        sender.send_messages(sent)
        sender.send_messages(raw)
    answer = rest.lock()
    assert answer.status == 201
    assert answer.body == b"body"
    assert answer.headers["Content-Type"] == "text/plain"
    assert answer.headers["text"] == '"\\u00e4\\r\\nX-Evil: yes"'
    assert answer.headers["number"] == "1.5"
    assert "X-Evil" not in answer.headers
    properties = answer.broker_properties
    assert properties["MessageId"] == "m"
    assert properties["Label"] == "ä"
    assert properties["SequenceNumber"] == 1
    assert properties["DeliveryCount"] == 1
    assert properties["State"] == "Active"
    assert {"LockToken", "LockedUntilUtc", "EnqueuedTimeUtc"} <= properties.keys()
    assert answer.headers["Location"].endswith(
        f"/{rest.queue}/messages/1/{properties['LockToken']}"
    )
    second = rest.take()
    assert second.status == 200
    assert json.loads(second.body) == {"list": [1, "two", None]}
    assert "LockToken" not in second.broker_properties


@pytest.mark.proves("M-11")
def test_unlock_renew_complete(rest: Rest) -> None:
    assert rest.send("once") == 201
    first = rest.lock()
    renewed = rest.ask("POST", first.path)
    assert renewed.status == 200
    assert renewed.broker_properties["LockToken"] == first.broker_properties["LockToken"]
    assert rest.ask("PUT", first.path).status == 200
    second = rest.lock()
    assert second.broker_properties["DeliveryCount"] == 2
    for method in ("DELETE", "PUT", "POST"):
        assert rest.ask(method, first.path).status == 404
    by_id = second.path.split("/")
    by_id[-2] = second.broker_properties["MessageId"]
    assert rest.ask("DELETE", "/".join(by_id)).status == 200
    assert rest.ask("DELETE", second.path).status == 404
    assert rest.lock(0).status == 204


@pytest.mark.proves("M-11")
def test_a_lock_of_rest_ends_on_amqp_and_the_other_way(rest: Rest, sdk: ServiceBusClient) -> None:
    rest.send("one")
    with sdk.get_queue_receiver(rest.queue, max_wait_time=5) as receiver:
        [message] = receiver.receive_messages()
        path = f"/{rest.queue}/messages/{message.sequence_number}/{message.lock_token}"
        assert rest.ask("DELETE", path).status == 200
        assert receiver.peek_messages() == []


@pytest.mark.proves("M-11")
def test_batch(rest: Rest) -> None:
    batch = [
        {"Body": "1", "UserProperties": {"a": 1}},
        {"Body": "2", "BrokerProperties": {"Label": "l"}},
    ]
    assert rest.send(json.dumps(batch), Content_Type=f"{BATCH}; charset=utf-8") == 201
    first, second = rest.take(), rest.take()
    assert (first.body, first.headers["a"]) == (b"1", "1")
    assert (second.body, second.broker_properties["Label"]) == (b"2", "l")
    broken = [{"Body": "3"}, {"Body": "4", "BrokerProperties": {"TimeToLive": -1}}]
    assert rest.send(json.dumps(broken), Content_Type=BATCH) == 400
    assert rest.take(0).status == 204  # all or nothing


@pytest.mark.proves("M-11")
def test_schedule(rest: Rest, sdk: ServiceBusClient) -> None:
    rest.send("later", {"ScheduledEnqueueTimeUtc": "Fri, 31 Dec 9999 23:59:59 GMT"})
    assert rest.lock(0).status == 204
    with sdk.get_queue_receiver(rest.queue) as receiver:
        [message] = receiver.peek_messages()
        assert str(message.scheduled_enqueue_time_utc).startswith("9999-12-31 23:59:59")


def test_dead_letter_queue(rest: Rest, sdk: ServiceBusClient, server: ServerProcess) -> None:
    rest.send("bad")
    with sdk.get_queue_receiver(rest.queue, max_wait_time=5) as receiver:
        [message] = receiver.receive_messages()
        receiver.dead_letter_message(message, reason="because", error_description="of\r\nthis")
    dead = Rest(server, f"{rest.queue}/$DeadLetterQueue")
    answer = dead.lock()
    assert answer.status == 201
    assert answer.headers["DeadLetterReason"] == '"because"'
    assert answer.headers["DeadLetterErrorDescription"] == '"of\\r\\nthis"'
    assert dead.send("no") == 400
    assert dead.ask("DELETE", answer.path).status == 200
    with sdk.get_queue_receiver(rest.queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        assert receiver.peek_messages() == []
    dead.connection.close()


@pytest.mark.proves("M-11")
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_names_with_slashes(server: ServerProcess, tls: bool) -> None:
    name = f"orders/eu/{tls}"
    server.create_queue(name)
    for spelled in (name, name.replace("/", "%2F"), name.upper()):
        rest = Rest(server, spelled, tls=tls)
        assert rest.send("x") == 201
        answer = rest.lock()
        assert answer.headers["Location"].startswith("https" if tls else "http:")
        assert rest.ask("DELETE", answer.path).status == 200
        rest.connection.close()


@pytest.mark.proves("M-11")
def test_subscriptions(server: ServerProcess, sdk: ServiceBusClient) -> None:
    with ServiceBusAdministrationClient.from_connection_string(
        server.connection_string, connection_verify=str(ca_certificate(server.data_dir))
    ) as admin:
        admin.create_topic("news")
        admin.create_subscription("news", "all")
    topic = Rest(server, "news")
    subscription = Rest(server, "news/subscriptions/all")
    assert topic.send("hello", Kind='"x"') == 201
    assert topic.lock(0).status == 400
    assert subscription.send("no") == 400
    answer = subscription.lock()
    assert answer.status == 201
    assert (answer.body, answer.headers["Kind"]) == (b"hello", '"x"')
    assert subscription.ask("DELETE", answer.path).status == 200
    assert Rest(server, "news/subscriptions/none").lock(0).status == 410
    for rest in (topic, subscription):
        rest.connection.close()


@pytest.mark.proves("M-11")
@pytest.mark.queue(requires_session=True)
def test_sessions(rest: Rest, sdk: ServiceBusClient) -> None:
    assert rest.send("without a session") == 400
    assert rest.send("with one", {"SessionId": "s"}) == 201
    refused = rest.lock(0)
    assert refused.status == 400
    assert b"requires sessions" in refused.body
    with sdk.get_queue_receiver(rest.queue, session_id="s", max_wait_time=5) as receiver:
        [message] = receiver.receive_messages()
        assert b"".join(message.body) == b"with one"


@pytest.mark.proves("M-11")
def test_refusals(rest: Rest, server: ServerProcess) -> None:
    missing = Rest(server, "not-there")
    assert missing.send("x") == 410
    assert missing.lock(0).status == 410
    assert missing.take(0).status == 410
    token = "00000001-0000-0000-0100-000000000000"
    assert missing.ask("DELETE", f"/not-there/messages/1/{token}").status == 410
    missing.connection.close()
    path = f"/{rest.queue}/messages"
    assert rest.ask("DELETE", f"{path}/1/{token}").status == 404
    assert rest.ask("DELETE", f"{path}/1/{'0' * 8}-{token[9:]}").status == 404
    assert rest.ask("DELETE", f"{path}/1/no-guid").status == 400
    assert rest.send("x", "no object") == 400
    for timeout in ("-1", "x", "1.5", "9" * 20):
        assert rest.ask("POST", f"{path}/head?timeout={timeout}").status == 400
    assert rest.send(bytes(1_048_576)) == 403
    assert rest.send(bytes(1_048_577)) == 403
    rest.connection.close()
    assert rest.ask("POST", path, b"", Authorization="").status == 401
    assert rest.ask("POST", f"/{rest.queue}/$management/messages").status == 410
    assert rest.ask("GET", f"{path}/head").status == 404


@pytest.mark.proves("M-11")
def test_waits_for_a_message(rest: Rest, server: ServerProcess) -> None:
    with ThreadPoolExecutor(1) as pool:
        other = Rest(server, rest.queue)
        waiting = pool.submit(other.lock, 30)
        time.sleep(0.2)
        assert not waiting.done()
        rest.send("here it is")
        assert waiting.result(10).body == b"here it is"
        other.connection.close()


@pytest.mark.proves("M-11")
@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_who_hangs_up_while_waiting_takes_nothing(
    rest: Rest, server: ServerProcess, method: str
) -> None:
    for _ in range(3):
        gone = Rest(server, rest.queue)
        path = f"/{rest.queue}/messages/head?timeout=30"
        gone.connection.request(method, path, headers={"Authorization": gone.token})
        time.sleep(0.1)
        sock = gone.connection.sock
        linger = b"\x01\0\0\0\0\0\0\0"  # reset, as a crashed client's machine does
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        gone.connection.close()
    time.sleep(0.1)
    rest.send("for who is still there")
    answer = rest.lock(0)
    assert answer.status == 201
    assert answer.broker_properties["DeliveryCount"] == 1


def test_a_waiting_receiver_does_not_keep_the_server_from_stopping(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        server.create_queue("q")
        with ThreadPoolExecutor(1) as pool:
            rest = Rest(server, "q")
            waiting = pool.submit(rest.lock, 50)
            time.sleep(0.2)
            server.stop()
            assert waiting.result(10).status == 204
            rest.connection.close()
        assert "Traceback" not in server.log
