"""Every claim against every operation, on a real server: no claim, no entry.

Proton speaks plain AMQP here, so that tokens of any making can be put and links be tried that the
official SDK would not even open.
"""

import http.client
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

import pytest
from proton import ConnectionException, Message
from proton.utils import BlockingConnection, LinkDetached

from twinbus.client.sas import make_sas_token
from twinbus.clock import SystemClock
from twinbus.config import Identity, RuleConfig, store_identity
from twinbus.gateway.access.shared_access import LISTEN, MANAGE, SEND
from twinbus.server.http.access import TOKEN_LEEWAY_S
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.proves("M-12")

ROOT = RuleConfig("RootManageSharedAccessKey", "root-secret-1", "root-secret-2")
SENDING = RuleConfig("sending", "sending-secret-1", "sending-secret-2", ("Send",))
LISTENING = RuleConfig("listening", "listening-secret-1", "listening-secret-2", ("Listen",))
BOTH = RuleConfig("both", "both-secret-1", "both-secret-2", ("Send", "Listen"))
RULES = (ROOT, SENDING, LISTENING, BOTH)

UNAUTHORIZED = "amqp:unauthorized-access"
ENTITY = "sb://127.0.0.1/orders"
LIFETIME_S = 300

# What can be done to a queue over AMQP, and the right it needs.
LINKS = (
    ("sender", "orders", SEND),
    ("receiver", "orders", LISTEN),
    ("receiver", "orders/$DeadLetterQueue", LISTEN),
    ("sender", "amqps://elsewhere:1/Orders", SEND),
)
REQUESTS = (
    ("com.microsoft:peek-message", LISTEN),
    ("com.microsoft:receive-by-sequence-number", LISTEN),
    ("com.microsoft:update-disposition", LISTEN),
    ("com.microsoft:renew-lock", LISTEN),
    ("com.microsoft:schedule-message", SEND),
    ("com.microsoft:cancel-scheduled-message", SEND),
)


class Claim(NamedTuple):
    """A token as put on $cbs, and what it should open on `orders`."""

    name: str
    uri: str
    rule: str
    key: str
    expires_in_s: int
    audience: str
    rights: frozenset[str]
    change: Callable[[str], str] = str  # what is done to the token before it is put

    def token(self) -> str:
        now_s = SystemClock().now().utc_ms // 1000
        made = make_sas_token(self.uri, self.rule, self.key, now_s + self.expires_in_s)
        return self.change(made)


def claim(
    name: str,
    rights: set[str],
    rule: RuleConfig = ROOT,
    *,
    key: str = "",
    uri: str = ENTITY,
    audience: str = ENTITY,
    expires_in_s: int = LIFETIME_S,
    change: Callable[[str], str] = str,
) -> Claim:
    key = key or rule.primary_key
    return Claim(name, uri, rule.name, key, expires_in_s, audience, frozenset(rights), change)


ALL = {SEND, LISTEN, MANAGE}
NONE: set[str] = set()
CLAIMS = (
    claim("manage", ALL),
    claim("manage by the second key", ALL, key=ROOT.secondary_key),
    claim("send", {SEND}, SENDING),
    claim("listen", {LISTEN}, LISTENING),
    claim("send and listen", {SEND, LISTEN}, BOTH, key=BOTH.secondary_key),
    claim("namespace token", ALL, uri="https://127.0.0.1"),
    claim("other host and scheme", ALL, uri="amqps://elsewhere:9/ORDERS/"),
    claim("namespace audience", ALL, uri="sb://x", audience="sb://x/"),
    claim("wrong key", NONE, key="wrong"),
    claim("key of another rule", NONE, SENDING, key=ROOT.primary_key),
    claim("unknown rule", NONE, RuleConfig("nobody", "x", "y")),
    claim("expired", NONE, expires_in_s=-TOKEN_LEEWAY_S - 1),
    claim("expired long ago", NONE, expires_in_s=-1_000_000_000),
    claim("other entity", NONE, uri="sb://h/payments", audience="sb://h/payments"),
    claim("sibling with the same prefix", NONE, uri="sb://h/orders2", audience="sb://h/orders2"),
    claim("shorter name", NONE, uri="sb://h/order", audience="sb://h/order"),
    claim("token for a sibling put for the queue", NONE, uri="sb://h/orders2"),
    claim("token for the part put for the whole", NONE, uri="sb://h/orders/$DeadLetterQueue"),
    claim("double-encoded path", NONE, uri="sb://h/orders%252f", audience="sb://h/orders%252f"),
    claim("cut off", NONE, change=lambda token: token[:-1]),
    claim("field doubled", NONE, change=lambda token: token + "&se=9999999999"),
    claim("later expiry written in", NONE, change=lambda token: token.replace("&se=1", "&se=2")),
    claim("other entity written in", NONE, change=lambda token: token.replace("orders", "Orders")),
    claim("empty", NONE, change=lambda _: ""),
    claim("a JSON web token", NONE, change=lambda _: "eyJhbGciOiJub25lIn0.e30."),
    claim("endless", NONE, change=lambda token: token + "x" * 20_000),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with four rules and three queues; its log must stay free of keys and tokens."""
    data_dir = tmp_path_factory.mktemp("access") / "data"
    data_dir.mkdir()
    store_identity(data_dir, Identity("access", RULES))
    with ServerProcess(data_dir) as process:
        for name in ("orders", "orders2", "payments"):
            process.create_queue(name)
        yield process
    assert "secret" not in process.log
    assert "sig=" not in process.log
    assert "Traceback" not in process.log


@pytest.fixture
def connection(server: ServerProcess) -> Iterator[Any]:
    with closing(connect(server)) as opened:
        yield opened


def connect(server: ServerProcess, **options: Any) -> Any:
    options = {"allowed_mechs": "ANONYMOUS", "timeout": 15, **options}
    return BlockingConnection(f"amqp://127.0.0.1:{server.port}", **options)


def put_token(connection: Any, token: str, audience: str) -> int:
    properties = {"operation": "put-token", "type": "servicebus.windows.net:sastoken"}
    return request(connection, "$cbs", {**properties, "name": audience}, token, "status-code")


def request(
    connection: Any,
    address: str,
    properties: dict[str, str],
    body: str | dict[str, Any],
    status: str,
) -> int:
    """One request and its answer's status; 401 as well when the links are refused."""
    try:
        receiver = connection.create_receiver(address, name=str(uuid.uuid4()), credit=1)
        sender = connection.create_sender(address, name=str(uuid.uuid4()))
    except LinkDetached as refusal:
        if refusal.condition != UNAUTHORIZED:
            raise
        return 401
    sender.send(Message(id=str(uuid.uuid4()), properties=properties, body=body))
    answer = receiver.receive(timeout=15)  # settled by the server: nothing to accept
    sender.close()
    receiver.close()
    return int(answer.properties[status])


def may_attach(connection: Any, role: str, address: str) -> bool:
    create = connection.create_sender if role == "sender" else connection.create_receiver
    try:
        create(address, name=str(uuid.uuid4())).close()
    except LinkDetached as refusal:
        if refusal.condition != UNAUTHORIZED:
            raise
        return False
    return True


def check_everything(connection: Any, rights: frozenset[str]) -> None:
    for role, address, right in LINKS:
        assert may_attach(connection, role, address) == (right in rights), (role, address)
    for operation, right in REQUESTS:
        properties = {"operation": operation}
        status = request(connection, "orders/$management", properties, {}, "statusCode")
        # An empty body is a bad request; whether it was looked at at all is what counts.
        assert status == (400 if right in rights else 401), operation


@pytest.mark.proves("M-12")
@pytest.mark.parametrize("case", CLAIMS, ids=lambda case: case.name)
def test_claim(server: ServerProcess, connection: Any, case: Claim) -> None:
    status = put_token(connection, case.token(), case.audience)
    names_orders = case.audience.lower() in (ENTITY, "sb://x/")
    if case.rights:
        assert status == 200
    elif names_orders:
        assert status == 401
    check_everything(connection, case.rights)
    assert http_status(server, case.token()) == (200 if MANAGE in case.rights else 401)


@pytest.mark.proves("M-12")
def test_amqp_gives_an_expired_token_no_second_more(connection: Any) -> None:
    assert put_token(connection, claim("", ALL, expires_in_s=-1).token(), ENTITY) == 401
    check_everything(connection, frozenset())


@pytest.mark.proves("M-12")
def test_token_for_a_queue_cannot_be_put_for_the_namespace(connection: Any) -> None:
    assert put_token(connection, claim("", ALL).token(), "sb://h/") == 401
    check_everything(connection, frozenset())


def http_status(server: ServerProcess, token: str) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=15)) as client:
        client.request("GET", "/orders", headers={"Authorization": token})
        return client.getresponse().status


@pytest.mark.proves("M-12")
def test_no_claim_at_all(connection: Any) -> None:
    check_everything(connection, frozenset())


def test_strangers_do_not_learn_names(connection: Any) -> None:
    for address in ("not-there", "not-there/$management", "not-there/$DeadLetterQueue", "orders"):
        for role in ("sender", "receiver"):
            assert not may_attach(connection, role, address)


@pytest.mark.proves("M-12")
def test_claim_for_one_queue_opens_no_other(connection: Any) -> None:
    token = claim("", ALL).token()
    assert put_token(connection, token, ENTITY) == 200
    for address in (
        "orders2",
        "payments",
        "payments/$DeadLetterQueue",
        "x/orders",
        "orders2/orders",
    ):
        for role in ("sender", "receiver"):
            assert not may_attach(connection, role, address), address
    for address in ("orders2/$management", "payments/$management"):
        properties = {"operation": "com.microsoft:peek-message"}
        assert request(connection, address, properties, {}, "statusCode") == 401


def test_claims_of_one_connection_are_not_anothers(server: ServerProcess) -> None:
    with closing(connect(server)) as mine, closing(connect(server)) as theirs:
        assert put_token(mine, claim("", ALL).token(), ENTITY) == 200
        assert may_attach(mine, "sender", "orders")
        assert not may_attach(theirs, "sender", "orders")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_sasl_plain_has_the_rights_of_its_rule(server: ServerProcess, rule: RuleConfig) -> None:
    for key in (rule.primary_key, rule.secondary_key):
        options = {"allowed_mechs": "PLAIN", "user": rule.name, "password": key}
        with closing(connect(server, **options)) as connection:
            rights = ALL if MANAGE in rule.rights else set(rule.rights)
            check_everything(connection, frozenset(rights))


@pytest.mark.proves("M-12")
@pytest.mark.parametrize(
    "user, password",
    [
        (ROOT.name, SENDING.primary_key),
        (ROOT.name, ROOT.primary_key + " "),
        (ROOT.name.lower(), ROOT.primary_key),
        ("nobody", ROOT.primary_key),
        (ROOT.name, "x" * 1_000),
    ],
)
def test_sasl_plain_refused(server: ServerProcess, user: str, password: str) -> None:
    with pytest.raises(ConnectionException):
        connect(server, allowed_mechs="PLAIN", user=user, password=password)


@pytest.mark.proves("M-12")
def test_live_link_ends_with_its_token_unless_renewed(server: ServerProcess) -> None:
    short = claim("", ALL, expires_in_s=3)
    with closing(connect(server)) as lapsing, closing(connect(server)) as renewed:
        for connection in (lapsing, renewed):
            assert put_token(connection, short.token(), ENTITY) == 200
        receivers = [c.create_receiver("orders", credit=1) for c in (lapsing, renewed)]
        assert put_token(renewed, claim("", ALL).token(), ENTITY) == 200
        with pytest.raises(LinkDetached) as ended:
            receivers[0].receive(timeout=15)
        assert ended.value.condition == UNAUTHORIZED
        renewed.create_sender("orders").send(Message(body="still here"))
        assert receivers[1].receive(timeout=15).body == "still here"
        receivers[1].accept()
