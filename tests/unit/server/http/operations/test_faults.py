"""Faults over HTTP: who may, what is understood, and what they do."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.broker.harness import BrokerHarness
from twinbus.client.sas import make_sas_token
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.partitions import PARTITION_COUNT
from twinbus.gateway.access.shared_access import LISTEN, MANAGE, SEND, AuthorizationRule, Authorizer
from twinbus.gateway.directory.directory import Part
from twinbus.gateway.faults.faults import DiskPlan, Fault
from twinbus.gateway.faults.kinds import KINDS
from twinbus.gateway.namespaces.namespace import Namespace
from twinbus.gateway.namespaces.registry import Namespaces
from twinbus.host.fault_injection import ServerFaults
from twinbus.server.http.access import HttpAccess
from twinbus.server.http.exchange import Request, Response
from twinbus.server.http.operations.faults import is_about_faults

pytestmark = pytest.mark.proves("A-1", "A-6")


class Effects:
    """Two stores and two brokers that remember what was done to them."""

    def __init__(self) -> None:
        self.seen: list[tuple[object, ...]] = []
        self.quiet = asyncio.Event()  # the last store suffers nothing any more
        self.counts = [[0, 0, 0], [0, 0, 0]]

    def set_disk_plan(self, store: int, plan: DiskPlan) -> None:
        self.seen.append(("plan", store, *plan))
        if store == 1 and not any(plan):
            self.quiet.set()

    def disk_counts(self, store: int) -> tuple[int, int, int]:
        slowed, failed, refused = self.counts[store]
        return slowed, failed, refused

    def hang_broker(self, broker: int) -> None:
        self.seen.append(("hang", broker))

    def resume_broker(self, broker: int) -> None:
        self.seen.append(("resume", broker))

    def kill_broker(self, broker: int) -> None:
        self.seen.append(("kill", broker))

    def detach(self, fault: Fault) -> None:
        self.seen.append(("detach", fault.fault_id))

    def lose_parts(self, fault: Fault) -> None:
        self.seen.append(("lose parts", fault.fault_id))


class Client:
    """Asks the router what a client would ask over HTTP."""

    def __init__(self) -> None:
        harness = BrokerHarness()
        self.clock = harness.clock
        rules = [
            AuthorizationRule("Root", [MANAGE], "key", "spare"),
            AuthorizationRule("worker", [SEND, LISTEN], "worker key", "spare"),
        ]
        other = [AuthorizationRule("Root", [MANAGE], "other key", "spare")]
        first, second = (
            Namespace(
                name, harness.gateway, harness.changes, Authorizer(each), self.clock, 0, prefix
            )
            for name, each, prefix in (("Main", rules, ""), ("second", other, "second:"))
        )
        namespaces = Namespaces([first, second])
        directory = harness.gateway.directory
        directory.add("queue", "orders", QueueDescription(), [Part(0, 901, 0)])
        directory.add("queue", "second:bills", QueueDescription(), [Part(0, 902, 0)])
        parts = [Part(0, 910 + partition, partition) for partition in range(PARTITION_COUNT)]
        directory.add("queue", "wide", QueueDescription(), parts)
        self.effects = Effects()
        links = [harness.gateway.links[0]] * 2
        effects = self.effects
        server = ServerFaults(links, 2, effects, effects.detach, effects.lose_parts, self.clock)
        server.watch(namespaces, directory)
        self.acting = server.acting
        self.faults = server.faults
        self.router = server.router(HttpAccess(namespaces, self.clock))

    def ask(
        self, method: str, path: str, document: object = None, key: str = "key", rule: str = "Root"
    ) -> tuple[int, Any]:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        now_s = self.clock.now().utc_ms // 1_000
        headers = {"host": "h:5672"}
        if key:
            headers["authorization"] = make_sas_token("https://h/", rule, key, now_s + 60)
        response = asyncio.run(self._answer(Request(method, path, {}, headers, body)))
        if response.status == 401:
            assert ("WWW-Authenticate", "SharedAccessSignature") in response.headers
        if not response.body:
            return response.status, None
        assert response.content_type == "application/json"
        return response.status, json.loads(response.body)

    async def _answer(self, request: Request) -> Response:
        return await self.router.answer(request)

    def listed(self, key: str = "key") -> list[dict[str, Any]]:
        status, found = self.ask("GET", "/$faults", key=key)
        assert status == 200
        faults: list[dict[str, Any]] = found["faults"]
        return faults


@pytest.fixture
def client() -> Iterator[Client]:
    client = Client()
    yield client
    client.acting.close()


def test_what_is_about_faults() -> None:
    assert is_about_faults(["$faults"])
    assert is_about_faults(["$Faults", "1"])
    assert not is_about_faults(["orders"])
    assert not is_about_faults([""])


@pytest.mark.proves("A-6")
def test_add_list_clear(client: Client) -> None:
    status, fault = client.ask("POST", "/$faults", {"kind": "refuse-sends", "entity": "orders"})
    assert status == 201
    assert fault == {
        "id": "1",
        "kind": "refuse-sends",
        "namespace": "main",
        "entity": "orders",
        "probability": 1.0,
        "remaining_s": None,
        "acted": 0,
    }
    assert client.listed() == [fault]
    assert client.ask("DELETE", "/$faults/1") == (204, None)
    assert client.listed() == []
    assert client.ask("DELETE", "/$faults/1") == (404, {"error": "No fault 1 is in force."})


def test_everything_it_may_say(client: Client) -> None:
    wanted = {"kind": "slow-store", "store": 1, "duration_s": 1.5, "delay_ms": 20}
    status, fault = client.ask("POST", "/$faults", {**wanted, "probability": 0.25})
    assert status == 201
    assert fault == {
        "id": "1",
        "kind": "slow-store",
        "store": 1,
        "probability": 0.25,
        "delay_ms": 20,
        "remaining_s": 1.5,
        "acted": 0,
    }
    assert client.effects.seen == [("plan", 1, 20, 0.25, 0.0, 0.0)]
    client.clock.advance(500)
    client.effects.counts[1][0] += 7
    assert client.listed()[0]["remaining_s"] == 1.0
    assert client.listed()[0]["acted"] == 7


def test_one_that_cannot_be_ended_well_keeps_nobody_else(client: Client) -> None:
    def resume(broker: int) -> None:
        raise RuntimeError("no such process")

    client.effects.resume_broker = resume  # type: ignore[method-assign]
    failures: list[object] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
        for number, kind in enumerate(("hang-broker", "fail-store"), 1):
            wanted = {"kind": kind, "duration_s": number / 1_000}
            if kind == "hang-broker":
                wanted["broker"] = 1
            body = json.dumps(wanted).encode()
            request = Request("POST", "/$faults", {}, client_headers(client), body)
            assert (await client.router.answer(request)).status == 201
        client.clock.advance(2)
        await asyncio.wait_for(client.effects.quiet.wait(), 60)

    asyncio.run(scenario())
    assert [type(error) for error in failures] == [RuntimeError]
    assert client.faults.all() == []


def test_it_ends_by_itself(client: Client) -> None:
    async def scenario() -> None:
        wanted = {"kind": "fail-store", "duration_s": 0.001}
        request = Request(
            "POST", "/$faults", {}, client_headers(client), json.dumps(wanted).encode()
        )
        assert (await client.router.answer(request)).status == 201
        client.clock.advance(1)
        await asyncio.wait_for(client.effects.quiet.wait(), 60)

    asyncio.run(scenario())
    assert client.effects.seen == [
        ("plan", 0, 0, 0.0, 1.0, 0.0),
        ("plan", 1, 0, 0.0, 1.0, 0.0),
        ("plan", 0, 0, 0.0, 0.0, 0.0),
        ("plan", 1, 0, 0.0, 0.0, 0.0),
    ]


def client_headers(client: Client) -> dict[str, str]:
    now_s = client.clock.now().utc_ms // 1_000
    return {"host": "h", "authorization": make_sas_token("https://h/", "Root", "key", now_s + 60)}


def test_brokers(client: Client) -> None:
    assert client.ask("POST", "/$faults", {"kind": "kill-broker", "broker": 1})[0] == 201
    assert client.listed() == []
    assert client.ask("POST", "/$faults", {"kind": "hang-broker", "broker": 0})[0] == 201
    assert client.ask("DELETE", "/$faults")[0] == 204
    assert client.effects.seen == [("kill", 1), ("hang", 0), ("resume", 0)]


@pytest.mark.proves("A-1")
def test_receivers_are_lost_to_what_refuses_them(client: Client) -> None:
    for kind in ("refuse-receives", "throttle", "refuse-sends", "refuse-management"):
        assert client.ask("POST", "/$faults", {"kind": kind})[0] == 201
    assert client.effects.seen == [("detach", "1"), ("detach", "2")]


@pytest.mark.proves("A-6")
def test_receivers_lose_the_partitions_that_refuse_them(client: Client) -> None:
    one = {"entity": "wide", "partition": 3}
    for kind in ("refuse-receives", "partition-down", "throttle", "refuse-sends"):
        assert client.ask("POST", "/$faults", {"kind": kind, **one})[0] == 201
    likely = {"kind": "refuse-receives", "probability": 0.5}
    assert client.ask("POST", "/$faults", {**likely, **one})[0] == 201
    assert client.ask("POST", "/$faults", likely)[0] == 201
    assert client.effects.seen == [("lose parts", "1"), ("lose parts", "2")]


def test_no_other_methods(client: Client) -> None:
    assert client.ask("PUT", "/$faults")[0] == 405
    assert client.ask("POST", "/$faults/1")[0] == 405
    assert client.ask("GET", "/$faults/1/2")[0] == 404


# --- who may --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_only_who_may_manage(client: Client, method: str) -> None:
    assert client.ask(method, "/$faults", {"kind": "throttle"}, key="")[0] == 401
    assert client.ask(method, "/$faults", {"kind": "throttle"}, key="wrong")[0] == 401
    refused = client.ask(method, "/$faults", {"kind": "throttle"}, "worker key", "worker")
    assert refused[0] == 401
    assert client.faults.all() == []


def test_a_namespace_makes_and_sees_its_own_faults(client: Client) -> None:
    assert client.ask("POST", "/$faults", {"kind": "throttle"})[0] == 201
    status, own = client.ask("POST", "/$faults", {"kind": "throttle"}, key="other key")
    assert (status, own["namespace"]) == (201, "second")
    assert [fault["id"] for fault in client.listed("other key")] == ["2"]
    assert [fault["id"] for fault in client.listed()] == ["1", "2"]
    assert client.ask("DELETE", "/$faults/1", key="other key")[0] == 404
    assert client.ask("DELETE", "/$faults", key="other key")[0] == 204
    assert [fault["id"] for fault in client.listed()] == ["1"]


@pytest.mark.parametrize(
    "wanted",
    [
        {"kind": "fail-store"},
        {"kind": "kill-broker", "broker": 0},
        {"kind": "throttle", "namespace": "main"},
        {"kind": "cut-namespace", "namespace": "Main"},
        {"kind": "throttle", "namespace": "third"},
    ],
)
def test_what_all_share_is_for_the_first_namespace(client: Client, wanted: object) -> None:
    assert client.ask("POST", "/$faults", wanted, key="other key")[0] == 401
    assert not client.faults.all()
    assert not client.effects.seen


def test_the_first_namespace_may_name_another(client: Client) -> None:
    wanted = {"kind": "refuse-sends", "namespace": "second", "entity": "bills"}
    assert client.ask("POST", "/$faults", wanted)[0] == 201


# --- what is understood ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body, status, text",
    [
        (b"", 400, "not JSON"),
        (b"\xff\xfe\xfd", 400, "not JSON"),
        (b"[]", 400, "JSON object"),
        (b"[" * 4_000, 400, "not JSON"),
        (b'"throttle"', 400, "JSON object"),
        (b"{" + b" " * 5_000 + b"}", 400, "4096 bytes"),
        (b"{}", 400, "needs a kind"),
        (b'{"kind": "throttle", "kind": "throttle"}', 400, "twice"),
        (b'{"kind": "throttle", "probability": NaN}', 400, "NaN is not a number"),
        (b'{"kind": "throttle", "probability": 1e999}', 400, "at most 1"),
        ({"kind": "throttle", "chance": 1}, 400, "has no 'chance'; it has kind, namespace"),
        ({"kind": 7}, 400, "kind must be text"),
        ({"kind": "throttle", "entity": ["orders"]}, 400, "entity must be text"),
        ({"kind": "fail-store", "store": "0"}, 400, "store must be a whole number"),
        ({"kind": "fail-store", "store": True}, 400, "store must be a whole number"),
        ({"kind": "fail-store", "store": 0.5}, 400, "store must be a whole number"),
        ({"kind": "fail-store", "store": 10**300}, 400, "no store"),
        ({"kind": "throttle", "duration_s": "30s"}, 400, "duration_s must be a number"),
        ({"kind": "throttle", "duration_s": 10**400}, 400, "7 days"),
        ({"kind": "throttle", "duration_s": -5}, 400, "more than 0"),
        ({"kind": "throttle", "duration_s": 0.0001}, 400, "more than 0"),
        ({"kind": "throttle", "entity": "orders", "partition": []}, 400, "1 to 16"),
        ({"kind": "throttle", "entity": "orders", "partition": [0] * 17}, 400, "1 to 16"),
        ({"kind": "throttle", "entity": "orders", "partition": ["0"]}, 400, "whole number"),
        ({"kind": "throttle", "entity": "orders", "partition": 3}, 400, "not partitioned"),
        ({"kind": "throttle", "entity": "missing"}, 404, "There is no entity 'missing'."),
        ({"kind": "throttle", "entity": "x" * 500}, 404, f"'{'x' * 64}'"),
        ({"kind": "explode"}, 400, "There is no fault 'explode'"),
        ({"kind": "hang-broker", "broker": 2}, 400, "There is no broker 2"),
    ],
)
def test_a_sentence_and_nothing_changed(
    client: Client, body: object, status: int, text: str
) -> None:
    answered, document = client.ask("POST", "/$faults", body)
    assert answered == status
    assert text in document["error"]
    assert len(document["error"]) < 400
    assert not client.faults.all()
    assert not client.effects.seen


def test_no_value_is_the_same_as_none(client: Client) -> None:
    wanted = {"kind": "throttle", "entity": None, "partition": None, "duration_s": None}
    assert client.ask("POST", "/$faults", wanted)[0] == 201


def test_every_kind_is_documented() -> None:
    page = (Path(__file__).parents[5] / "docs" / "reference" / "faults.md").read_text()
    for kind in KINDS.values():
        [found] = [line for line in page.splitlines() if line.startswith(f"| `{kind.name}` |")]
        for key in kind.scope:
            assert key in found, f"{kind.name}: {key}"
