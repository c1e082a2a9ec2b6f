"""`GET /health`, the front page, and who may see details."""

import json
from typing import Any

import pytest
import pytest_asyncio

from tests.unit.server.observed import Observed, get
from twinbus import __version__
from twinbus.clock import Now
from twinbus.entities.descriptions import QueueDescription
from twinbus.errors import Unauthorized
from twinbus.gateway.faults.faults import Wanted
from twinbus.gateway.throttling.throttle import Usage
from twinbus.links.store_link import DOWN, SLOW
from twinbus.server.http.exchange import Request
from twinbus.server.http.operations.front import is_about_server

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def scene() -> Observed:
    return await Observed.make()


async def health(scene: Observed, *, detail: bool = False, **headers: str) -> dict[str, Any]:
    request = get("/health", peer="127.0.0.1", **headers)
    if detail:
        request.query["detail"] = ""
    answer = await scene.ask(request)
    assert answer.content_type == "application/json"
    document: dict[str, Any] = json.loads(answer.body)
    assert answer.status == (503 if document["status"] == "unhealthy" else 200)
    return document


async def test_what_the_emulator_says(scene: Observed) -> None:
    expected = {"status": "healthy", "message": "twinbus is ready.", "version": __version__}
    assert await health(scene) == expected
    away = await scene.ask(get("/health", peer="192.0.2.1"))
    assert json.loads(away.body) == expected
    head = await scene.ask(Request("HEAD", "/health", {}, {}, b""))
    assert head.status == 200


@pytest.mark.parametrize("state, status", [(SLOW, "degraded"), (DOWN, "unhealthy")])
async def test_status(scene: Observed, state: int, status: str) -> None:
    scene.source.health = state
    assert (await health(scene))["status"] == status


async def test_details_of_a_server_that_is_well(scene: Observed) -> None:
    document = await health(scene, detail=True)
    assert document["entities"] == document["throttled"] == []
    assert [each["state"] for each in document["brokers"]] == ["up"]
    assert [each["health"] for each in document["stores"]] == ["up"]


@pytest.mark.proves("A-1")
async def test_what_an_entity_cannot(scene: Observed) -> None:
    await scene.run(scene.first.update_queue("orders", QueueDescription(status="SendDisabled")))
    wanted = Wanted("refuse-management", namespace="other")
    scene.faults.add(wanted, Now(0, 0))
    document = await health(scene, detail=True)
    assert document["entities"] == [
        {
            "namespace": "first",
            "entity": "orders",
            "availability": "Available",
            "cannot": {"send": ["its status is SendDisabled"]},
            "partitions": [],
        },
        {
            "namespace": "other",
            "entity": "news",
            "availability": "Available",
            "cannot": {"manage": ["fault 1 (refuse-management)"]},
            "partitions": [],
        },
    ]


@pytest.mark.proves("A-2")
async def test_pressure(scene: Observed) -> None:
    scene.throttle.observe_store(0, Usage(disk_free_bytes=0))
    document = await health(scene, detail=True)
    assert document["throttled"] == ["store 0: storage is full"]
    assert document["entities"][0]["cannot"] == {"send": ["throttled (storage)"]}


async def test_many_entities_are_counted_and_not_shown(
    scene: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twinbus.server.http.operations.health.ENTITIES_SHOWN_MAX", 1)
    scene.faults.add(Wanted("throttle"), Now(0, 0))
    document = await health(scene, detail=True)
    assert len(document["entities"]) == 1
    assert document["entities_not_shown"] == 1


# --- who may see details ----------------------------------------------------------------------


@pytest.mark.proves("M-12")
async def test_a_token_shows_its_namespace(scene: Observed) -> None:
    scene.faults.add(Wanted("throttle"), Now(0, 0))
    for rule, key, seen in (("Root", "first key", "first"), ("worker", "other key", "other")):
        document = await health(scene, authorization=scene.sign(rule, key))
        assert {each["namespace"] for each in document["entities"]} == {seen}


@pytest.mark.proves("M-12")
@pytest.mark.parametrize(
    "peer, headers",
    [
        ("192.0.2.1", {}),
        ("", {}),
        ("127.0.0.1", {"x-forwarded-for": "192.0.2.1"}),
        ("127.0.0.1", {"forwarded": "for=192.0.2.1"}),
        ("127.0.0.1", {"host": "evil.example:5672"}),
        ("127.0.0.1", {"host": ""}),
        ("127.0.0.1", {"authorization": "SharedAccessSignature sr=x"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/health", "/metrics"])
async def test_nobody_else_sees_any(
    scene: Observed, path: str, peer: str, headers: dict[str, str]
) -> None:
    request = get(path, peer=peer, **headers)
    request.query["detail"] = ""
    with pytest.raises(Unauthorized):
        await scene.ask(request)


@pytest.mark.proves("M-12")
async def test_a_right_to_send_is_no_right_to_look(scene: Observed) -> None:
    token = scene.sign("sender", "first key")
    with pytest.raises(Unauthorized, match="Listen"):
        await scene.ask(get("/metrics", peer="127.0.0.1", authorization=token))


@pytest.mark.parametrize(
    "peer, host",
    [
        ("127.0.0.1", "localhost"),
        ("127.0.0.2", "127.0.0.1:5672"),
        ("::1", "[::1]:5672"),
        ("::ffff:127.0.0.1", "orders.localhost:5672"),
    ],
)
async def test_this_machine_sees_everything(scene: Observed, peer: str, host: str) -> None:
    answer = await scene.ask(get("/metrics", peer=peer, host=host))
    assert b'entity="news"' in answer.body
    assert b'entity="orders"' in answer.body


async def test_an_open_server() -> None:
    scene = await Observed.make(is_open=True)
    answer = await scene.ask(get("/metrics", peer="192.0.2.1", host="evil.example"))
    assert b'entity="orders"' in answer.body


# --- what is about the server -----------------------------------------------------------------


async def test_the_front_page_says_what_this_is(scene: Observed) -> None:
    answer = await scene.ask(get("/"))
    assert answer.status == 200
    assert answer.body.startswith(b"twinbus")


@pytest.mark.parametrize(
    "method, path, query, headers, expected",
    [
        ("GET", "/", {}, {}, True),
        ("GET", "/", {}, {"authorization": "x"}, False),
        ("GET", "/health", {}, {"authorization": "x"}, True),
        ("HEAD", "/metrics", {}, {}, True),
        ("GET", "/health", {"api-version": "2021-05"}, {"authorization": "x"}, False),
        ("GET", "/metrics", {"api-version": "2021-05"}, {"authorization": "x"}, False),
        ("PUT", "/health", {}, {}, False),
        ("DELETE", "/", {}, {}, False),
        ("GET", "/orders", {}, {}, False),
        ("GET", "/health/messages", {}, {}, False),
    ],
)
async def test_queues_may_have_these_names(
    method: str, path: str, query: dict[str, str], headers: dict[str, str], expected: bool
) -> None:
    assert is_about_server(Request(method, path, query, headers, b"")) == expected
