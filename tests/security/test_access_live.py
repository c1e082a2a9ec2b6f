"""Claims on live connections: how they end, and that they never change sides."""

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.security.raw_amqp import RawConnection, Refused
from tests.security.test_access_matrix import ask, entity_document
from twinbus.amqp.composites import Accepted
from twinbus.amqp.types import Symbol, UInt
from twinbus.client.sas import make_sas_token
from twinbus.clock import SystemClock
from twinbus.config import Identity, RuleConfig, store_identity
from twinbus.message.plain import data_section
from twinbus.testing.server import ServerProcess

pytestmark = [pytest.mark.proves("M-12"), pytest.mark.asyncio, pytest.mark.feature("access.sas")]

UNAUTHORIZED: Final = "amqp:unauthorized-access"
NEXT_SESSION: Final = {Symbol("com.microsoft:session-filter"): None}
ONE_SESSION: Final = {Symbol("com.microsoft:session-filter"): "one"}
SUBSCRIPTION: Final = "news/Subscriptions/all"

ROOT = RuleConfig("Root", "root-secret-1", "root-secret-2")
OTHER = RuleConfig("Root", "other-secret-1", "other-secret-2")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data_dir = tmp_path_factory.mktemp("live") / "data"
    data_dir.mkdir()
    store_identity(data_dir, Identity("first", (ROOT,)), Identity("second", (OTHER,)))
    with ServerProcess(data_dir) as process:
        for name in ("orders", "payments"):
            put(process, name, entity_document("Queue", {}))
        put(process, "tickets", entity_document("Queue", {}, RequiresSession="true"))
        put(process, "news", entity_document("Topic", {}))
        put(process, SUBSCRIPTION, entity_document("Subscription", {}))
        yield process
    assert "Traceback" not in process.log, process.log
    assert "secret" not in process.log


def put(server: ServerProcess, path: str, document: bytes, *, update: bool = False) -> None:
    method = "PUT if-match" if update else "PUT"
    status, text = ask(server, method, f"/{path}", token("", host=""), document, host="")
    assert status in (200, 201), text


def token(path: str, rule: RuleConfig = ROOT, lifetime_s: int = 300, host: str = "any") -> str:
    expires_s = SystemClock().now().utc_ms // 1_000 + lifetime_s
    return make_sas_token(f"sb://{host}/{path}", rule.name, rule.primary_key, expires_s)


@pytest.mark.proves("M-12")
async def test_every_kind_of_link_ends_with_its_token(server: ServerProcess) -> None:
    async with await RawConnection.tcp(server.port) as connection:
        for target in ("orders", "tickets", "news"):
            assert (
                await connection.put_token(token(target, lifetime_s=3), f"sb://x/{target}") == 200
            )
        links = [
            await attached(connection, "sender", "orders"),
            await attached(connection, "receiver", "orders"),
            await attached(connection, "receiver", "orders/$DeadLetterQueue"),
            await attached(connection, "sender", "news"),
            await attached(connection, "receiver", SUBSCRIPTION),
            await attached(connection, "sender", "tickets"),
            await attached(connection, "receiver", "tickets", ONE_SESSION),
        ]
        timeout = {Symbol("com.microsoft:timeout"): UInt(60_000)}
        waiting = asyncio.ensure_future(
            connection.attach("receiver", "tickets", NEXT_SESSION, timeout)
        )
        peek: dict[str, object] = {"operation": "com.microsoft:peek-message"}
        answer = await connection.request("orders/$management", peek, {})
        assert answer["statusCode"] == 400  # an empty body, read
        ends = await asyncio.gather(*(connection.ended(link) for link in links))
        assert ends == [UNAUTHORIZED] * len(links)
        assert (await waiting)[1] == UNAUTHORIZED
        answer = await connection.request("orders/$management", peek, {})
        assert answer["statusCode"] == 401
        assert (await connection.attach("sender", "orders"))[1] == UNAUTHORIZED


async def attached(
    connection: RawConnection, role: str, address: str, wanted: dict[Any, Any] | None = None
) -> Any:
    link, condition = await connection.attach(role, address, wanted)
    assert condition == "", (role, address, condition)
    return link


@pytest.mark.proves("M-12")
@pytest.mark.feature("access.entity-rules")
@pytest.mark.parametrize("change", ["removed", "key replaced", "entity deleted"])
async def test_a_rule_that_is_gone_takes_its_links_along(
    server: ServerProcess, change: str
) -> None:
    """New operations are refused at once, open links are detached within a second."""
    name = "ruled-" + change.replace(" ", "-")
    put(server, name, entity_document("Queue", {"Send": "own"}))
    by_rule = token(name, RuleConfig("own", "Send-secret-1", "x"))
    async with await RawConnection.tcp(server.port) as connection:
        assert await connection.put_token(by_rule, f"sb://x/{name}") == 200
        link = await attached(connection, "sender", name)
        assert isinstance(await connection.send(link, data_section(b"")), Accepted)
        if change == "entity deleted":
            status, _ = ask(server, "DELETE", f"/{name}", token("", host=""), b"", host="")
            assert status == 200
            assert await connection.ended(link) in (UNAUTHORIZED, "amqp:not-found")
        else:
            document = entity_document("Queue", {"Listen": "own"})
            if change == "removed":
                document = entity_document("Queue", {}).replace(
                    b"></QueueDescription>", b"><AuthorizationRules/></QueueDescription>"
                )
            put(server, name, document, update=True)
            assert (await connection.attach("sender", name))[1] == UNAUTHORIZED
            assert await connection.put_token(by_rule, f"sb://x/{name}") == 401
            assert await connection.ended(link) == UNAUTHORIZED


@pytest.mark.proves("M-12")
async def test_a_rule_that_stays_keeps_its_links(server: ServerProcess) -> None:
    """Another setting changes, another rule comes: nothing happens to those who are there."""
    put(server, "kept", entity_document("Queue", {"Send": "own"}))
    by_rule = token("kept", RuleConfig("own", "Send-secret-2", "x"))
    async with await RawConnection.tcp(server.port) as connection:
        assert await connection.put_token(by_rule, "sb://x/kept") == 200
        link = await attached(connection, "sender", "kept")
        document = entity_document("Queue", {"Send": "own", "Listen": "more"}, UserMetadata="x")
        put(server, "kept", document, update=True)
        await asyncio.sleep(1.5)  # the connection looks after its claims every second
        assert isinstance(await connection.send(link, data_section(b"")), Accepted)


@pytest.mark.proves("M-12")
@pytest.mark.feature("entity.namespaces")
async def test_a_connection_stays_with_its_namespace(server: ServerProcess) -> None:
    async with await RawConnection.tcp(server.port) as connection:
        assert await connection.put_token(token("orders"), "sb://x/orders") == 200
        assert await connection.put_token(token("orders", OTHER), "sb://x/orders") == 401
        await attached(connection, "sender", "orders")
    async with await RawConnection.tcp(server.port) as connection:
        assert await connection.put_token(token("orders", OTHER), "sb://x/orders") == 200
        assert await connection.put_token(token("payments"), "sb://x/payments") == 401
        _, condition = await connection.attach("sender", "orders")
        assert condition == "amqp:not-found"  # the second namespace has none


@pytest.mark.proves("M-12")
@pytest.mark.feature("entity.namespaces")
@pytest.mark.parametrize("host", ["second", "second.localhost", "SECOND.servicebus.windows.net:1"])
async def test_the_host_of_the_connection_decides(server: ServerProcess, host: str) -> None:
    async with await RawConnection.tcp(server.port, hostname=host) as connection:
        assert await connection.put_token(token("orders"), "sb://x/orders") == 401
        assert await connection.put_token(token("orders", OTHER), "sb://x/orders") == 200


@pytest.mark.feature("access.plain")
async def test_a_password_must_be_of_the_host_that_is_asked_for(server: ServerProcess) -> None:
    for rule, host, is_let_in in (
        (ROOT, None, True),
        (OTHER, None, True),
        (OTHER, "second.localhost", True),
        (ROOT, "elsewhere.example", True),
        (ROOT, "second.localhost", False),
        (OTHER, "first.localhost", False),
    ):
        response = f"\0{rule.name}\0{rule.primary_key}".encode()
        opening = RawConnection.tcp(
            server.port, mechanism="PLAIN", response=response, hostname=host
        )
        if is_let_in:
            await (await opening).close()
        else:
            with pytest.raises(Refused):
                await opening


@pytest.mark.proves("M-12")
@pytest.mark.feature("entity.namespaces")
async def test_a_password_of_one_and_the_host_of_another(server: ServerProcess) -> None:
    """The host comes after the password, and what else the client has said comes with it."""
    response = f"\0{ROOT.name}\0{ROOT.primary_key}".encode()
    connection = RawConnection("PLAIN", response, "second.localhost", early="orders")
    assert connection._amqp._sasl is not None
    connection._amqp._sasl.hostname = None  # SASL may leave it out
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    connection._write = writer.write
    connection._closers.append(writer.transport.abort)
    async with await connection._run(lambda: reader.read(65_536)):
        assert await asyncio.wait_for(connection.closed, 20) == UNAUTHORIZED


@pytest.mark.proves("M-7", "M-12")
async def test_transactions_open_nothing(server: ServerProcess) -> None:
    """The control link needs no claim, and gives none."""
    async with await RawConnection.tcp(server.port) as connection:
        control = await attached(connection, "sender", "coordinator")
        assert await connection.declare(control)
        for role, address in (("sender", "orders"), ("receiver", "orders"), ("sender", "news")):
            assert (await connection.attach(role, address))[1] == UNAUTHORIZED
        peek: dict[str, object] = {"operation": "com.microsoft:peek-message"}
        assert await connection.request("orders/$management", peek, {}) == UNAUTHORIZED


@pytest.mark.proves("M-7", "M-12")
async def test_send_via_needs_the_right_on_both(server: ServerProcess) -> None:
    via = {Symbol("com.microsoft:transfer-destination-address"): "payments"}
    for put_for in (("orders",), ("payments",), ("orders", "payments")):
        async with await RawConnection.tcp(server.port) as connection:
            for target in put_for:
                assert await connection.put_token(token(target), f"sb://x/{target}") == 200
            _, condition = await connection.attach("sender", "orders", properties=via)
            assert condition == ("" if len(put_for) == 2 else UNAUTHORIZED)


@pytest.mark.proves("M-7", "M-12")
@pytest.mark.parametrize("lapsing", ["orders", "payments"])
async def test_send_via_ends_with_either_token(server: ServerProcess, lapsing: str) -> None:
    via = {Symbol("com.microsoft:transfer-destination-address"): "payments"}
    async with await RawConnection.tcp(server.port) as connection:
        for target in ("orders", "payments"):
            made = token(target, lifetime_s=2 if target == lapsing else 300)
            assert await connection.put_token(made, f"sb://x/{target}") == 200
        link, condition = await connection.attach("sender", "orders", properties=via)
        assert condition == ""
        assert await connection.ended(link) == UNAUTHORIZED


@pytest.mark.parametrize(
    "properties, body",
    [
        ({"operation": "put-token", "name": "sb://x/orders"}, 7),
        ({"operation": "put-token", "name": "sb://x/orders"}, None),
        ({"operation": "put-token", "name": "sb://x/orders"}, b"bytes"),
        ({"operation": "put-token"}, "token"),
        ({"operation": "put-token", "name": 7}, "token"),
        ({"operation": "drop-token", "name": "sb://x/orders"}, "token"),
        ({}, "token"),
    ],
)
async def test_requests_on_cbs_that_make_no_sense(
    server: ServerProcess, properties: dict[str, object], body: object
) -> None:
    async with await RawConnection.tcp(server.port) as connection:
        answer = await connection.request("$cbs", properties, body)
        assert answer["status-code"] in (401, 501)
        assert (await connection.attach("sender", "orders"))[1] == UNAUTHORIZED
