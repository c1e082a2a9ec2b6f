"""Who may do what over HTTP."""

import pytest

from tests.unit.broker.harness import BrokerHarness
from twinbus.client.sas import make_sas_token
from twinbus.errors import Unauthorized
from twinbus.gateway.access.shared_access import LISTEN, MANAGE, SEND, AuthorizationRule, Authorizer
from twinbus.gateway.namespaces.namespace import Namespace
from twinbus.gateway.namespaces.registry import Namespaces
from twinbus.server.http.access import TOKEN_LEEWAY_S, HttpAccess
from twinbus.server.http.exchange import Request

pytestmark = pytest.mark.proves("M-12")

HARNESS = BrokerHarness()
NOW_S = HARNESS.clock.now().utc_ms // 1_000


def namespace(name: str, prefix: str) -> Namespace:
    rules = [
        AuthorizationRule("Root", [MANAGE], f"{name} key", "second"),
        AuthorizationRule("sender", [SEND], f"{name} send", "second"),
    ]
    return Namespace(
        name, HARNESS.gateway, HARNESS.changes, Authorizer(rules), HARNESS.clock, 0, prefix
    )


ACCESS = HttpAccess(
    Namespaces([namespace("first", ""), namespace("other", "other:")]), HARNESS.clock
)


def token(
    path: str = "orders", rule: str = "Root", key: str = "first key", lifetime_s: int = 60
) -> str:
    return make_sas_token(f"https://h/{path}", rule, key, NOW_S + lifetime_s)


def request(**headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request("GET", "/orders", {}, named, b"")


def test_the_namespace_of_the_key() -> None:
    assert ACCESS.authorize(request(authorization=token()), MANAGE, "orders").name == "first"
    other = request(authorization=token(key="other key"))
    assert ACCESS.authorize(other, MANAGE, "orders").name == "other"


def test_the_namespace_of_the_host() -> None:
    named = request(authorization=token(key="other key"), host="other.localhost:5300")
    assert ACCESS.authorize(named, MANAGE, "orders").name == "other"
    with pytest.raises(Unauthorized):
        ACCESS.authorize(request(authorization=token(), host="other.localhost"), MANAGE, "orders")


def test_a_signature_as_a_bearer_token() -> None:
    bearer = request(authorization=f"Bearer {token()}")
    assert ACCESS.authorize(bearer, MANAGE, "orders").name == "first"


@pytest.mark.parametrize(
    "path", ["orders", "Orders/$DeadLetterQueue", "orders/Subscriptions/s", "orders/a b/ü%"]
)
def test_what_is_below(path: str) -> None:
    assert ACCESS.authorize(request(authorization=token()), LISTEN, path).name == "first"


@pytest.mark.proves("M-12")
@pytest.mark.parametrize(
    "header, right, path",
    [
        ("", MANAGE, "orders"),
        ("Bearer ", MANAGE, "orders"),
        ("Basic Um9vdDprZXk=", MANAGE, "orders"),
        (token(rule="sender", key="first send"), LISTEN, "orders"),
        (token(rule="sender", key="first send"), MANAGE, "orders"),
        (token(key="guessed"), MANAGE, "orders"),
        (token(), MANAGE, "orders2"),
        (token(), MANAGE, "orders%2fx/../orders2"),
        (token(), MANAGE, ""),
        (token(lifetime_s=-TOKEN_LEEWAY_S), MANAGE, "orders"),
        ("eyJhbGciOiJub25lIn0.e30.", MANAGE, "orders"),
    ],
)
def test_a_token_without_the_right_for_the_path_is_refused(
    header: str, right: str, path: str
) -> None:
    with pytest.raises(Unauthorized):
        ACCESS.authorize(request(authorization=header), right, path)


def test_a_path_is_not_decoded_again() -> None:  # the router has done that
    encoded = request(authorization=token("orders%25"))
    assert ACCESS.authorize(encoded, MANAGE, "orders%").name == "first"
    with pytest.raises(Unauthorized):
        ACCESS.authorize(encoded, MANAGE, "orders")


def test_no_header_at_all() -> None:
    with pytest.raises(Unauthorized, match="Listen claim is required in Authorization"):
        ACCESS.authorize(request(), LISTEN, "orders")


def test_a_token_is_taken_a_while_longer() -> None:  # the SDK renews its token after its end
    late = request(authorization=token(lifetime_s=1 - TOKEN_LEEWAY_S))
    assert ACCESS.authorize(late, MANAGE, "orders").name == "first"


def test_the_token_of_another_header() -> None:
    both = request(authorization=token(), servicebussupplementaryauthorization=token("target"))
    name = "servicebussupplementaryauthorization"
    assert ACCESS.authorize(both, MANAGE, "target", name).name == "first"
    with pytest.raises(Unauthorized):
        ACCESS.authorize(both, MANAGE, "orders", name)
