"""Clients that make and delete the same entities at the same moment, as applications do that start
side by side: "exists already" and "not found" are true when they are said.

With a slow store every change is under way for long enough for the other client to come in between.
"""

import http.client
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tests.unit.server.http.atom.xml_bodies import document
from twinbus.client.connection_string import ConnectionString
from twinbus.client.faults import FaultClient
from twinbus.client.sas import make_sas_token
from twinbus.clock import SystemClock
from twinbus.testing.server import ServerProcess

pytestmark = [pytest.mark.proves("M-9", "M-11"), pytest.mark.feature("entity.topics")]

ROUNDS = 150
SLOW_ROUNDS = 6
SLOW_MS = 25
SDK_SLOW_MS = 300  # longer than the SDK takes to connect
TOPIC = document("", "TopicDescription")
WIDE_TOPIC = document("<EnablePartitioning>true</EnablePartitioning>", "TopicDescription")
SUBSCRIPTION = document("", "SubscriptionDescription")
RULE = document(
    '<Filter i:type="TrueFilter"><SqlExpression>1=1</SqlExpression></Filter>',
    "RuleDescription",
    'xmlns:i="http://www.w3.org/2001/XMLSchema-instance"',
)


class Client:
    """One connection to the management endpoint, with no patience and no second tries."""

    def __init__(self, server: ServerProcess) -> None:
        target = ConnectionString.parse(server.connection_string)
        expires_s = SystemClock().now().utc_ms // 1_000 + 600
        self._token = make_sas_token("https://h", target.key_name, target.key, expires_s)
        self._connection = http.client.HTTPConnection("localhost", server.port, timeout=60)

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, str]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, path, body, {"Authorization": self._token, **named})
        answer = self._connection.getresponse()
        return answer.status, answer.read().decode()

    def close(self) -> None:
        self._connection.close()


class Pair:
    """Two clients that begin each round at the same moment."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.clients = [Client(server), Client(server)]
        self._pool = ThreadPoolExecutor(2)

    def race(self, *acts: Callable[[Client], None]) -> None:
        """Each client does its own, or both the same."""
        start = threading.Barrier(2)

        def run(client: Client, act: Callable[[Client], None]) -> None:
            start.wait(60)
            act(client)

        both = acts if len(acts) == 2 else (acts[0], acts[0])
        tasks = [
            self._pool.submit(run, client, act)
            for client, act in zip(self.clients, both, strict=True)
        ]
        for task in tasks:
            task.result()

    def close(self) -> None:
        self._pool.shutdown()
        for client in self.clients:
            client.close()


@pytest.fixture(scope="module", params=[(), ("--brokers", "2")], ids=["alone", "brokers"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("races")
    with ServerProcess(directory / "data", arguments=request.param) as process:
        yield process
    assert "Traceback" not in process.log, process.log


@pytest.fixture
def pair(server: ServerProcess) -> Iterator[Pair]:
    made = Pair(server)
    yield made
    made.close()


@pytest.fixture
def slow_pair(pair: Pair, request: pytest.FixtureRequest) -> Iterator[Pair]:
    faults = FaultClient(pair.server.connection_string)
    faults.add({"kind": "slow-store", "delay_ms": getattr(request, "param", SLOW_MS)})
    yield pair
    faults.clear_all()


def start_up(topic: str, subscription: str, body: bytes = TOPIC) -> Callable[[Client], None]:
    """What a framework does at start: whatever it needs is made, unless it exists."""

    def act(client: Client) -> None:
        for path, description in (
            (f"/{topic}", body),
            (f"/{topic}/subscriptions/{subscription}", SUBSCRIPTION),
            (f"/{topic}/subscriptions/{subscription}/rules/mine", RULE),
        ):
            status, text = client.ask("PUT", path, description)
            assert status == 201 or (status == 409 and "SubCode=40900" in text), (path, text)
            status, text = client.ask("GET", path)
            assert (status, "<title" in text) == (200, True), (path, text)
        assert topic in client.ask("GET", "/$Resources/topics?$top=1000")[1]

    return act


def test_two_that_start_together(pair: Pair) -> None:
    for number in range(ROUNDS):
        topic = f"start-{number}"
        body = WIDE_TOPIC if number % 5 == 0 else TOPIC
        pair.race(start_up(topic, "shared", body))
        assert pair.clients[0].ask("DELETE", f"/{topic}")[0] == 200


def test_two_that_start_together_on_a_slow_store(slow_pair: Pair) -> None:
    for number in range(SLOW_ROUNDS):
        topic = f"slow-{number}"
        body = WIDE_TOPIC if number % 3 == 0 else TOPIC
        slow_pair.race(start_up(topic, "one", body), start_up(topic, "two", body))
        assert slow_pair.clients[0].ask("DELETE", f"/{topic}")[0] == 200


@pytest.mark.parametrize("slow_pair", [SDK_SLOW_MS], indirect=True)
def test_what_exists_can_be_attached_to(slow_pair: Pair) -> None:
    """With the SDK: who hears of an entity that it exists can send to it."""
    string = slow_pair.server.connection_string

    def act(client: Client) -> None:
        status, _ = client.ask("PUT", "/attached", WIDE_TOPIC)
        assert status in (201, 409)
        with (
            ServiceBusClient.from_connection_string(string, retry_total=0) as sdk,
            sdk.get_topic_sender("attached") as sender,
        ):
            sender.send_messages(ServiceBusMessage("x"))

    slow_pair.race(act)


def test_one_deletes_what_the_other_makes(slow_pair: Pair) -> None:
    """Whoever comes first: afterwards it is as both were told, and nothing is left over."""
    one = slow_pair.clients[0]
    for number in range(SLOW_ROUNDS):
        topic = f"/gone-{number}"
        assert one.ask("PUT", topic, WIDE_TOPIC if number % 3 == 0 else TOPIC)[0] == 201
        statuses: dict[str, int] = {}

        def make(client: Client, topic: str = topic, statuses: dict[str, int] = statuses) -> None:
            path = f"{topic}/subscriptions/late"
            statuses["made"] = client.ask("PUT", path, SUBSCRIPTION)[0]

        def delete(client: Client, topic: str = topic, statuses: dict[str, int] = statuses) -> None:
            statuses["deleted"] = client.ask("DELETE", topic)[0]

        slow_pair.race(make, delete)
        assert statuses["deleted"] == 200
        assert statuses["made"] in (201, 404)
        assert one.ask("GET", topic)[0] == 404
        assert one.ask("GET", f"{topic}/subscriptions/late")[0] == 404
        assert one.ask("PUT", topic, TOPIC)[0] == 201
        assert "late" not in one.ask("GET", f"{topic}/subscriptions")[1]
        assert one.ask("PUT", f"{topic}/subscriptions/late", SUBSCRIPTION)[0] == 201
        assert one.ask("DELETE", topic)[0] == 200


def test_two_that_delete_and_make_again(slow_pair: Pair) -> None:
    one = slow_pair.clients[0]
    body = document("<EnablePartitioning>true</EnablePartitioning>")
    for number in range(SLOW_ROUNDS):
        queue = f"/again-{number}"
        assert one.ask("PUT", queue, body)[0] == 201
        answers: list[tuple[int, int]] = []

        def act(
            client: Client, queue: str = queue, answers: list[tuple[int, int]] = answers
        ) -> None:
            answers.append((client.ask("DELETE", queue)[0], client.ask("PUT", queue, body)[0]))

        slow_pair.race(act)
        # Either may delete what the other has just made; nobody is told what is not so.
        assert {status for status, _ in answers} <= {200, 404}, answers
        assert {status for _, status in answers} <= {201, 409}, answers
        assert 201 in [status for _, status in answers]
        assert one.ask("PUT", queue, body, If_Match="*")[0] == 200
