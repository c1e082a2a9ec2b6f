"""The access matrix: every operation with every kind of credential; exactly the right ones pass.

One server, two namespaces.  Each credential opens one connection (and makes a token for each HTTP
request) and then tries everything.  What is allowed gets the answer that the operation itself would
give, what is not gets 401, and nothing in between.  M-12.
"""

import http.client
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from typing import Final, NamedTuple
from uuid import UUID

import pytest

from tests.security.raw_amqp import RawConnection
from twinbus.amqp.types import Symbol
from twinbus.client.connection_string import ConnectionString
from twinbus.client.sas import make_sas_token
from twinbus.clock import SystemClock
from twinbus.config import Identity, RuleConfig, store_identity
from twinbus.gateway.access.shared_access import LISTEN, MANAGE, RIGHTS, SEND
from twinbus.server.amqp.management import node
from twinbus.server.http.access import TOKEN_LEEWAY_S
from twinbus.testing.server import ServerProcess

pytestmark = [pytest.mark.proves("M-12"), pytest.mark.feature("access.matrix")]

UNAUTHORIZED: Final = "amqp:unauthorized-access"
HOST: Final = "access.localhost"  # which of the two namespaces is meant
LIFETIME_S: Final = 300
NOBODYS: Final = UUID(int=7)  # a lock token that locks nothing

ROOT = RuleConfig("RootManageSharedAccessKey", "root-secret-1", "root-secret-2")
SENDING = RuleConfig("sending", "sending-secret-1", "sending-secret-2", ("Send",))
LISTENING = RuleConfig("listening", "listening-secret-1", "listening-secret-2", ("Listen",))
OTHER_ROOT = RuleConfig(ROOT.name, "other-secret-1", "other-secret-2")

# The entities, and the siblings that begin like them.  `payments` is the other entity.
TARGETS: Final = ("orders", "tickets", "news")
SUBSCRIPTION: Final = "news/Subscriptions/all"


class Operation(NamedTuple):
    """Something to try on a target, the right it needs, and what it answers when allowed."""

    target: str  # the entity that a token must be for; "" for the namespace
    kind: str  # sender, receiver, request, or an HTTP method
    address: str
    right: str
    allowed: str = ""  # "" is an attached link; else a condition, or a status
    body: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.address}"


def links(target: str, *addresses: str) -> Iterator[Operation]:
    for address in addresses:
        for below in ("", "/$DeadLetterQueue", "/$Transfer/$DeadLetterQueue"):
            yield Operation(target, "receiver", address + below, LISTEN)


# What each request on a management node needs.
REQUESTS: Final = {
    "com.microsoft:peek-message": LISTEN,
    "com.microsoft:receive-by-sequence-number": LISTEN,
    "com.microsoft:update-disposition": LISTEN,
    "com.microsoft:renew-lock": LISTEN,
    "com.microsoft:schedule-message": SEND,
    "com.microsoft:cancel-scheduled-message": SEND,
    "com.microsoft:renew-session-lock": LISTEN,
    "com.microsoft:get-session-state": LISTEN,
    "com.microsoft:set-session-state": LISTEN,
    "com.microsoft:get-message-sessions": LISTEN,
    "com.microsoft:add-rule": LISTEN,  # as the service has it: rules are the receiver's business
    "com.microsoft:remove-rule": LISTEN,
    "com.microsoft:enumerate-rules": LISTEN,
    "com.microsoft:batch-delete-messages": LISTEN,
    "twinbus:browse": LISTEN,
    "twinbus:partitions": LISTEN,
    "twinbus:numbers": LISTEN,
    "twinbus:settle": LISTEN,
    "twinbus:purge": MANAGE,
    "twinbus:undefer": MANAGE,
    "twinbus:resubmit": MANAGE,
}
# A bad request for all of them, once it is read.
NONSENSE: Final = {"message-count": "x", "sequence-numbers": 7, "rule-name": 7}


def requests(target: str, address: str) -> Iterator[Operation]:
    for name, right in REQUESTS.items():
        operation = f"{address}/$management {name}"
        outcome = "200" if name == "twinbus:partitions" else "400"  # it takes nothing, good or bad
        yield Operation(target, "request", operation, right, outcome)


def rest(target: str, path: str) -> Iterator[Operation]:
    """Messages over HTTP; the lock that is settled is nobody's."""
    locked = f"/{path}/messages/1/{NOBODYS}"
    if path == target:
        yield Operation(target, "POST", f"/{path}/messages", SEND, "201", "text")
    yield Operation(target, "POST", f"/{path}/messages/head?timeout=0", LISTEN, "201 204")
    yield Operation(target, "DELETE", f"/{path}/messages/head?timeout=0", LISTEN, "200 204")
    for method in ("DELETE", "PUT", "POST"):
        yield Operation(target, method, locked, LISTEN, "404")


def atom(target: str, path: str) -> Iterator[Operation]:
    """Entities over HTTP: read, list, and change by documents that are none."""
    yield Operation(target, "GET", f"/{path}", MANAGE, "200")
    yield Operation(target, "PUT", f"/{path}", MANAGE, "400", "no document")
    yield Operation(target, "PUT if-match", f"/{path}", MANAGE, "400", "no document")


def page(target: str, path: str) -> Iterator[Operation]:
    """What the page asks about messages: to look is to listen, to change is to manage."""
    some = f'{{"entity": "{path}", "sequence_numbers": [9]}}'
    yield Operation(target, "GET", f"/$page/messages?entity={path}", LISTEN, "200")
    yield Operation(target, "POST", "/$page/delete", MANAGE, "200", some)
    yield Operation(target, "POST", "/$page/resubmit", MANAGE, "200", some)


OPERATIONS: Final = (
    Operation("orders", "sender", "orders", SEND),
    Operation("orders", "sender", "amqps://elsewhere:1/Orders", SEND),
    Operation("orders", "sender", "orders/$DeadLetterQueue", SEND, "amqp:not-allowed"),
    Operation("news", "sender", "news", SEND),
    Operation("news", "sender", SUBSCRIPTION, SEND, "amqp:not-allowed"),
    Operation("news", "receiver", "news", LISTEN, "amqp:not-allowed"),
    Operation("tickets", "sender", "tickets", SEND),
    Operation("tickets", "session receiver", "tickets", LISTEN),
    *links("orders", "orders"),
    *links("news", SUBSCRIPTION),
    *requests("orders", "orders"),
    *requests("orders", "orders/$DeadLetterQueue"),
    *requests("tickets", "tickets"),
    *requests("news", SUBSCRIPTION),
    *rest("orders", "orders"),
    *rest("orders", "orders/$DeadLetterQueue"),
    *rest("news", SUBSCRIPTION),
    *atom("orders", "orders"),
    *atom("news", "news"),
    *atom("news", SUBSCRIPTION),
    *atom("news", f"{SUBSCRIPTION}/rules/$Default"),
    Operation("news", "GET", "/news/Subscriptions", MANAGE, "200"),
    Operation("news", "GET", f"/{SUBSCRIPTION}/rules", MANAGE, "200"),
    Operation("news", "DELETE", "/news/Subscriptions/gone", MANAGE, "404"),
    Operation("news", "DELETE", f"/{SUBSCRIPTION}/rules/gone", MANAGE, "404"),
    Operation("gone", "GET", "/gone", MANAGE, "404"),
    Operation("gone", "DELETE", "/gone", MANAGE, "404"),
    *page("orders", "orders/$DeadLetterQueue"),
    *page("tickets", "tickets/$DeadLetterQueue"),
    *page("news", f"{SUBSCRIPTION}/$DeadLetterQueue"),
    Operation("", "POST", "/$page/delete", MANAGE, "400", "no document"),
    Operation("", "POST", "/$page/resubmit", MANAGE, "400", "no document"),
    Operation("", "PUT", "/$pairs/one", SEND, "400", "no document"),
    Operation("", "GET", "/$namespaceinfo", MANAGE, "200"),
    Operation("", "GET", "/$Resources/queues", MANAGE, "200"),
    Operation("", "GET", "/$Resources/topics", MANAGE, "200"),
)


class Credential(NamedTuple):
    """Whose key, for what, and what that opens on a target."""

    name: str
    rights: frozenset[str] = frozenset()
    rule: str = ROOT.name
    key: str = ROOT.primary_key
    path: str = "{target}"  # what a token is made for, and put for
    expires_in_s: int = LIFETIME_S
    is_tampered: bool = False
    targets: tuple[str, ...] = (*TARGETS, "gone", "")  # where the rights are

    def token(self, target: str) -> str:
        now_s = SystemClock().now().utc_ms // 1_000
        uri = f"sb://any/{self.path.format(target=target)}"
        token = make_sas_token(uri, self.rule, self.key, now_s + self.expires_in_s)
        return token.replace("&se=1", "&se=2") if self.is_tampered else token

    def may(self, operation: Operation) -> bool:
        return operation.right in self.rights and operation.target in self.targets


def entity_credential(right: str, key: str) -> Credential:
    """By a rule of the entity itself: nothing on the namespace, or on what does not exist."""
    rights = RIGHTS if right == MANAGE else frozenset((right,))
    return Credential(
        f"{right} of the entity, {key} key",
        rights,
        f"own-{right}",
        f"{right}-secret-{key}",
        targets=TARGETS,
    )


CREDENTIALS: Final = (
    Credential("Manage", RIGHTS),
    Credential("Manage, second key", RIGHTS, key=ROOT.secondary_key),
    Credential("Send", frozenset((SEND,)), SENDING.name, SENDING.primary_key),
    Credential("Listen", frozenset((LISTEN,)), LISTENING.name, LISTENING.primary_key),
    *(entity_credential(right, key) for right in (SEND, LISTEN, MANAGE) for key in ("1", "2")),
    Credential("other entity", path="payments"),
    Credential("sibling with the same prefix", path="{target}2"),
    Credential("shorter name", path="{target}x"),
    Credential("expired", expires_in_s=-TOKEN_LEEWAY_S - 1),
    Credential("tampered", is_tampered=True),
    Credential("wrong key", key="guessed"),
    Credential("key of another rule", rule=SENDING.name),
    Credential("key of another namespace", key=OTHER_ROOT.primary_key),
    Credential("rule of another entity", rule="own-of-payments", key="payments-secret-1"),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Entities with rules of their own, beside siblings, in two namespaces."""
    data_dir = tmp_path_factory.mktemp("matrix") / "data"
    data_dir.mkdir()
    store_identity(
        data_dir, Identity("access", (ROOT, SENDING, LISTENING)), Identity("other", (OTHER_ROOT,))
    )
    with ServerProcess(data_dir) as process:
        own = {right: f"own-{right}" for right in (SEND, LISTEN, MANAGE)}
        for name in ("orders", "orders2"):
            put(process, name, entity_document("Queue", own))
        put(process, "tickets", entity_document("Queue", own, RequiresSession="true"))
        put(process, "payments", entity_document("Queue", {"payments": "own-of-payments"}))
        put(process, "news", entity_document("Topic", own))
        put(process, "news/Subscriptions/all", entity_document("Subscription", {}))
        yield process
    assert "secret" not in process.log
    assert "Traceback" not in process.log, process.log


def entity_document(kind: str, rules: dict[str, str], **settings: str) -> bytes:
    namespace = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
    written = "".join(
        '<AuthorizationRule i:type="SharedAccessAuthorizationRule" '
        'xmlns:i="http://www.w3.org/2001/XMLSchema-instance">'
        "<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue>"
        f"<Rights>{rights_of(what)}</Rights><KeyName>{name}</KeyName>"
        f"<PrimaryKey>{what}-secret-1</PrimaryKey><SecondaryKey>{what}-secret-2</SecondaryKey>"
        "</AuthorizationRule>"
        for what, name in rules.items()
    )
    elements = "".join(f"<{name}>{value}</{name}>" for name, value in settings.items())
    if rules:
        elements += f"<AuthorizationRules>{written}</AuthorizationRules>"
    return (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        f'<{kind}Description xmlns="{namespace}">{elements}</{kind}Description>'
        "</content></entry>"
    ).encode()


def rights_of(what: str) -> str:
    rights = (what,) if what in (SEND, LISTEN) else (MANAGE, SEND, LISTEN)
    return "".join(f"<AccessRights>{right}</AccessRights>" for right in rights)


def put(server: ServerProcess, path: str, document: bytes) -> None:
    status, text = ask(server, "PUT", f"/{path}", CREDENTIALS[0].token(""), document)
    assert status == 201, text


def ask(
    server: ServerProcess, method: str, path: str, token: str | None, body: bytes, host: str = HOST
) -> tuple[int, str]:
    method, _, condition = method.partition(" ")
    headers = {"Host": host} if host else {}
    if token is not None:
        headers["Authorization"] = token
    if condition:
        headers["If-Match"] = "*"
    target = ConnectionString.parse(server.connection_string)
    with closing(http.client.HTTPConnection(target.host, target.port, timeout=20)) as client:
        client.request(method, path, body or None, headers)
        response = client.getresponse()
        return response.status, response.read().decode()


@asynccontextmanager
async def connected(
    server: ServerProcess, credential: Credential | None, transport: str
) -> AsyncIterator[RawConnection]:
    """A connection on which everything was put that the credential could make a token for."""
    opened = await getattr(RawConnection, transport)(server.port, hostname=HOST)
    async with opened as connection:
        if credential is not None:
            for target in TARGETS:
                audience = f"sb://any/{credential.path.format(target=target)}"
                status = await connection.put_token(credential.token(target), audience)
                assert status == (200 if is_put(credential) else 401)
                # Whatever it was made for, it must not be good for the target itself.
                await connection.put_token(credential.token(target), f"sb://any/{target}")
        yield connection


def is_put(credential: Credential) -> bool:
    """Tokens for elsewhere are good tokens; they just open other doors."""
    return bool(credential.rights) or credential.path != "{target}"


async def outcome(connection: RawConnection, operation: Operation) -> str:
    """ "" for a link, else the condition or the status."""
    if operation.kind == "request":
        address, _, name = operation.address.partition(" ")
        answer = await connection.request(address, {"operation": name}, NONSENSE)
        return answer if isinstance(answer, str) else str(answer["statusCode"])
    wanted = None
    if operation.kind == "session receiver":
        wanted = {Symbol("com.microsoft:session-filter"): "mine"}
    role = operation.kind.rpartition(" ")[2]
    link, condition = await connection.attach(role, operation.address, wanted)
    if not condition:
        await connection.close_link(link)
    return condition


def check(operation: Operation, allowed: bool, result: str) -> str:
    """What is wrong with the outcome of an operation; "" if nothing."""
    expected = [operation.allowed, *operation.allowed.split()] if allowed else ["401", UNAUTHORIZED]
    return "" if result in expected else f"{operation}: {result!r}, expected {expected}"


def test_every_request_is_in_the_matrix() -> None:
    assert set(REQUESTS) == set(node.OPERATIONS)


AMQP: Final = [each for each in OPERATIONS if not each.address.startswith("/")]
HTTP: Final = [each for each in OPERATIONS if each.address.startswith("/")]


@pytest.mark.proves("M-12")
@pytest.mark.parametrize("transport", ["tcp", "websocket"])
@pytest.mark.parametrize("credential", [None, *CREDENTIALS], ids=lambda each: each and each.name)
@pytest.mark.asyncio
async def test_amqp(server: ServerProcess, credential: Credential | None, transport: str) -> None:
    async with connected(server, credential, transport) as connection:
        wrong = [
            check(
                operation,
                credential is not None and credential.may(operation),
                await outcome(connection, operation),
            )
            for operation in AMQP
        ]
    assert not [text for text in wrong if text]


@pytest.mark.proves("M-11", "M-12")
@pytest.mark.parametrize("credential", [None, *CREDENTIALS], ids=lambda each: each and each.name)
def test_http(server: ServerProcess, credential: Credential | None) -> None:
    wrong: list[str] = []
    for operation in HTTP:
        token = None if credential is None else credential.token(operation.target)
        body = operation.body.encode()
        status, _ = ask(server, operation.kind, operation.address, token, body)
        allowed = credential is not None and credential.may(operation)
        wrong.append(check(operation, allowed, str(status)))
    assert not [text for text in wrong if text]
