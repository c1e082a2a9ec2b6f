"""What the page asks of a real server: state, live, messages, changes, reports of pairs."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiver

import twinbus.pairing
import twinbus.pairing.aio
from tests.interop.administration import connect
from tests.interop.asking_page import Page
from tests.interop.pairs import Servers, run_servers, until
from twinbus import page as files
from twinbus.client.faults import FaultClient
from twinbus.server.http.page.answers import POLICY
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.feature("page.requests")

DEAD = "/$DeadLetterQueue"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Two brokers and two namespaces."""
    data_dir = tmp_path_factory.mktemp("page") / "data"
    arguments = ["--brokers", "2", "--namespace", "twinbus", "--namespace", "second"]
    with ServerProcess(data_dir, arguments=arguments) as process:
        process.create_queue("asked")
        yield process
    assert "Traceback" not in process.log, process.log


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(server.connection_string) as opened:
        yield opened


@pytest.fixture
def page(server: ServerProcess) -> Page:
    return Page(server)


def dead_letter(receiver: ServiceBusReceiver, count: int) -> None:
    """So many of those that are there, with a reason."""
    with receiver:
        while count:
            for message in receiver.receive_messages(count, max_wait_time=5):
                receiver.dead_letter_message(message, "Broken", "<b>no</b>")
                count -= 1


# --- the page itself --------------------------------------------------------------------------


def test_a_browser_gets_the_page_and_others_what_they_got_before(page: Page) -> None:
    status, headers, body = page.ask("GET", "/", token="", Accept="text/html,*/*")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert body == files.read(files.INDEX)
    assert headers["Content-Security-Policy"] == POLICY
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert page.ask("GET", "/", token="")[2].startswith(b"twinbus: a self-hosted")
    status, headers, _ = page.ask("GET", "/?api-version=2021-05", token="", Accept="text/html")
    assert "xml" in headers["Content-Type"]


def test_every_file_of_the_page_and_no_other(page: Page) -> None:
    for name, kind in files.FILES.items():
        status, headers, body = page.ask("GET", f"/$page/{name}", token="")
        assert (status, headers["Content-Type"]) == (200, kind)
        assert body == files.read(name)
        assert headers["Content-Security-Policy"] == POLICY
    for name in (
        "__init__.py",
        "..%2f__init__.py",
        "../page_state.py",
        "x/index.html",
        "INDEX.HTML",
    ):
        assert page.ask("GET", f"/$page/{name}", token="")[0] == 404
    assert page.ask("POST", "/$page/index.html")[0] == 405
    assert page.ask("GET", "/$page/delete")[0] == 405


# --- state --------------------------------------------------------------------------------------


def test_state(server: ServerProcess, client: ServiceBusClient, page: Page) -> None:
    with connect(server) as admin:
        admin.create_queue("counted", enable_partitioning=True)
        admin.create_topic("events")
        admin.create_subscription("events", "audit")
        admin.create_rule("events", "audit", "second")
        admin.create_queue("there/x-servicebus-transfer/0")
    with client.get_queue_sender("counted") as sender:
        sender.send_messages([ServiceBusMessage(b"x" * 100) for _ in range(20)])
    with client.get_topic_sender("events") as topic:
        topic.send_messages(ServiceBusMessage(b"x"))
    state = page.get("state")
    assert state["server"]["product"] == "twinbus"
    assert state["server"]["status"] == "healthy"
    assert state["server"]["namespaces"] == ["twinbus"]  # a token sees its own
    assert [each["state"] for each in state["brokers"]] == ["up", "up"]
    assert {each["health"] for each in state["stores"]} == {"up"}
    found = {each["path"]: each for each in state["entities"]}
    assert found["counted"]["counts"]["active"] == 20
    assert len(found["counted"]["partitions"]) == 16
    assert found["counted"]["rates"]["incoming"] > 0
    assert found["events"]["subscriptions"] == 1
    assert found["events/Subscriptions/audit"]["rules"] == 2
    assert found["events/Subscriptions/audit"]["counts"]["active"] == 1
    assert state["totals"]["rates"]["incoming"] > 0
    assert [each["primary"] for each in state["backlog"]] == ["there"]
    kinds = {each["kind"] for each in state["cost"]["operations"]}
    assert kinds >= {"management"}
    assert state["cost"]["total"] == "10.00"
    filtered = page.get("state", entities="EVENTS", top=1)
    assert [each["path"] for each in filtered["entities"]] == ["events"]
    assert filtered["is_truncated"]


def test_this_machine_may_look_without_a_token_and_choose(page: Page) -> None:
    state = json.loads(page.ask("GET", "/$page/state?namespace=SECOND", token="")[2])
    assert state["namespace"] == "second"
    assert state["server"]["namespaces"] == ["twinbus", "second"]
    assert state["entities"] == []
    assert page.ask("GET", "/$page/state?namespace=third", token="")[0] == 404
    status, _, body = page.ask("GET", "/$page/state?namespace=second")
    assert (status, json.loads(body)["error"]) == (401, "Unauthorized")
    named = json.loads(page.ask("GET", "/$page/state", token="", Host="second.localhost")[2])
    assert named["namespace"] == "second"


def test_faults_are_shown_and_do_not_cut_the_page_off(server: ServerProcess, page: Page) -> None:
    server.create_queue("hurt")
    faults = FaultClient(server.connection_string)
    faults.add({"kind": "refuse-sends", "entity": "hurt"})
    faults.add({"kind": "cut-namespace"})
    try:
        state = page.get("state")
        assert sorted(each["kind"] for each in state["faults"]) == ["cut-namespace", "refuse-sends"]
        hurt = next(each for each in state["entities"] if each["path"] == "hurt")
        assert sorted(hurt["cannot"]) == ["contact", "send"]
        status, _, body = page.ask("GET", "/$page/messages?entity=hurt")
        assert (status, json.loads(body)["error"]) == (503, "Unavailable")
    finally:
        faults.clear_all()
    assert page.get("messages", entity="hurt")["messages"] == []


def test_live(server: ServerProcess, client: ServiceBusClient, page: Page) -> None:
    server.create_queue("lively")
    with page.live("?entities=lively") as documents, page.live() as others:
        first = next(documents)
        assert [each["path"] for each in first["entities"]] == ["lively"]
        assert next(others)["namespace"] == "twinbus"
        with client.get_queue_sender("lively") as sender:
            sender.send_messages(ServiceBusMessage(b"x"))
        for document in documents:
            if document["entities"][0]["counts"]["active"] == 1:
                break


# --- messages -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_dead_letters_come_back(
    server: ServerProcess, client: ServiceBusClient, page: Page, is_partitioned: bool
) -> None:
    queue = f"returned-{is_partitioned}"
    server.create_queue(queue, enable_partitioning=is_partitioned)
    with client.get_queue_sender(queue) as sender:
        sent = [
            ServiceBusMessage(f"<i>{n}", message_id=str(n), application_properties={"n": n})
            for n in range(3)
        ]
        sender.send_messages(sent)
    dead_letter(client.get_queue_receiver(queue), 3)
    found = page.get("messages", entity=queue + DEAD)["messages"]
    assert sorted(each["body"]["text"] for each in found) == ["<i>0", "<i>1", "<i>2"]
    assert {each["dead_letter"]["reason"] for each in found} == {"Broken"}
    assert {each["dead_letter"]["description"] for each in found} == {"<b>no</b>"}
    first, second, third = (each["sequence_number"] for each in found)
    answer = page.change("resubmit", queue + DEAD, first, int(second), "123456789")
    assert answer["done"] == 2
    assert [each["result"] for each in answer["results"]] == [
        "resubmitted",
        "resubmitted",
        "not found",
    ]
    assert page.change("delete", queue + DEAD, third)["done"] == 1
    assert page.entity(queue)["counts"] == {
        "active": 2,
        "dead_letter": 0,
        "scheduled": 0,
        "deferred": 0,
        "transfer_dead_letter": 0,
    }
    with client.get_queue_receiver(queue) as receiver:
        received = receiver.receive_messages(2, max_wait_time=5)
        locked = str(received[0].sequence_number)
        refused = page.change("delete", queue, locked)["results"][0]
        assert refused == {"sequence_number": locked, "result": "locked", "reason": None}


def test_pages_states_and_subscriptions(
    server: ServerProcess, client: ServiceBusClient, page: Page
) -> None:
    with connect(server) as admin:
        admin.create_topic("paged")
        admin.create_subscription("paged", "all")
    with client.get_topic_sender("paged") as sender:
        sender.send_messages([ServiceBusMessage(bytes([255, n])) for n in range(5)])
    path = "paged/Subscriptions/all"
    with client.get_subscription_receiver("paged", "all") as receiver:
        receiver.defer_message(receiver.receive_messages(1, max_wait_time=5)[0])
    first = page.get("messages", entity=path, count=3)
    rest = page.get("messages", entity=path, **{"from": first["next"]})
    found = first["messages"] + rest["messages"]
    assert [each["body"]["text"] for each in found] == ["ff00", "ff01", "ff02", "ff03", "ff04"]
    assert rest["next"] is None
    deferred = page.get("messages", entity=path, state="deferred")["messages"]
    assert [each["state"] for each in deferred] == ["deferred"]
    dead_letter(client.get_subscription_receiver("paged", "all"), 4)
    dead = page.get("messages", entity=path + DEAD)["messages"]
    assert page.change("resubmit", path + DEAD, dead[0]["sequence_number"])["done"] == 1
    assert page.entity(path)["counts"]["active"] == 1


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("entity=nobody", 404),
        ("", 400),
        ("entity=asked&count=0", 400),
        ("entity=asked&count=101", 400),
        ("entity=asked&from=-1", 400),
        ("entity=asked&from=99999999999999999999999", 400),
        ("entity=asked&state=dead", 400),
        ("entity=asked/$management", 400),
    ],
)
def test_wrong_questions_get_a_sentence(page: Page, query: str, status: int) -> None:
    found, headers, body = page.ask("GET", f"/$page/messages?{query}")
    assert found == status
    assert set(json.loads(body)) == {"error", "reason"}
    assert headers["Content-Security-Policy"] == POLICY


# --- pairs --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with run_servers(tmp_path_factory.mktemp("pairs")) as both:
        yield both


@pytest.mark.asyncio
@pytest.mark.parametrize("flavour", ["sync", "async"])
async def test_a_pair_tells_both_namespaces_how_it_is(servers: Servers, flavour: str) -> None:
    texts = (servers.primary.connection_string, servers.secondary.connection_string)
    options: dict[str, Any] = {"backlog_queue_count": 1, "failover_interval": 0}
    pair: Any
    if flavour == "sync":
        make = twinbus.pairing.PairedServiceBusClient.from_connection_strings
        pair = await asyncio.to_thread(make, *texts, **options)
    else:
        pair = await twinbus.pairing.aio.PairedServiceBusClient.from_connection_strings(
            *texts, **options
        )
    try:
        pages = (Page(servers.primary), Page(servers.secondary))
        # The reports of the other flavour's pair may still be there; ours comes first.
        pair.force_failover(flavour)
        await until(
            lambda: all(state_of(each, flavour) == "failed over" for each in pages),
            "the failover was not told",
        )
        told = pages[1].get("state")["pairs"][0]
        assert told["entities"][0]["forced"]
        assert told["entities"][0]["since"] is not None
        assert len(told["backlog_queues"]) == 1
        assert told["id"] == reports(pages[0])[0]["id"]
    finally:
        await asyncio.to_thread(pair.close) if flavour == "sync" else await pair.close()


def reports(page: Page) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(page.ask("GET", "/$pairs")[2])["pairs"]
    return found


def state_of(page: Page, entity: str) -> str:
    entities = [each for report in reports(page) for each in report["entities"]]
    return next((each["state"] for each in entities if each["name"] == entity), "")


# --- the end ------------------------------------------------------------------------------------


def test_viewers_do_not_keep_a_server_from_stopping(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, Page(server).live() as documents:
        next(documents)
        server.stop()
        assert list(documents) == []
