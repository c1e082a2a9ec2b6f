"""Several namespaces in one store: which one a client means."""

import pytest

from tests.unit.broker.harness import BrokerHarness
from twinbus.client.sas import make_sas_token
from twinbus.entities.descriptions import QueueDescription, SharedAccessRule
from twinbus.errors import Unauthorized
from twinbus.gateway.access.shared_access import (
    LISTEN,
    MANAGE,
    RIGHTS,
    AuthorizationRule,
    Authorizer,
)
from twinbus.gateway.namespaces.namespace import Namespace
from twinbus.gateway.namespaces.registry import Namespaces

pytestmark = pytest.mark.proves("M-12")

NOW_S = 1_800_000_000
LATER_S = NOW_S + 3600
NAMES = ("shop", "orders", "Billing")
LISTENER = SharedAccessRule("listener", ("Listen",), "listen one", "listen two")


def namespace(harness: BrokerHarness, name: str, prefix: str) -> Namespace:
    rules = [
        AuthorizationRule("Root", [MANAGE], f"{name} one", f"{name} two"),
        AuthorizationRule("shared", [LISTEN], "same key", "same key"),
    ]
    return Namespace(
        name, harness.gateway, harness.changes, Authorizer(rules), harness.clock, 0, prefix
    )


@pytest.fixture(scope="module")
def namespaces() -> Namespaces:
    harness = BrokerHarness()
    described = QueueDescription(authorization_rules=(LISTENER,))
    harness.create_queue("inbox")
    harness.create_queue("orders:inbox", described)
    prefixes = ("", "orders:", "billing:")
    made = [namespace(harness, *each) for each in zip(NAMES, prefixes, strict=True)]
    return Namespaces(made)


def token(rule: str, key: str, path: str = "inbox") -> str:
    return make_sas_token(f"sb://any/{path}", rule, key, LATER_S)


@pytest.mark.feature("entity.namespaces")
@pytest.mark.parametrize(
    "hostname, name",
    [
        ("orders", "orders"),
        ("ORDERS.localhost", "orders"),
        ("orders.localhost:5672", "orders"),
        ("orders.servicebus.windows.net", "orders"),
        ("billing.example", "Billing"),
        ("shop.localhost", "shop"),
        ("orders2.localhost", None),
        ("localhost", None),
        ("localhost:5672", None),
        ("bus.orders", None),
        (".orders", None),
        ("", None),
        (None, None),
        ("[::1]:5672", None),
        ("127.0.0.1", None),
    ],
)
def test_host_names(namespaces: Namespaces, hostname: str | None, name: str | None) -> None:
    found = namespaces.by_host(hostname)
    assert (found.name if found else None) == name


def test_addresses_are_no_names() -> None:
    harness = BrokerHarness()
    found = Namespaces([namespace(harness, "127", "")])
    assert found.by_host("127.0.0.1") is None
    assert found.by_host("127.0.0.1:5672") is None
    assert found.by_host("127.example") is found.default


def test_all_in_their_order(namespaces: Namespaces) -> None:
    assert [each.name for each in namespaces.all()] == list(NAMES)
    assert namespaces.default.name == "shop"


@pytest.mark.proves("M-12")
@pytest.mark.feature("entity.namespaces")
@pytest.mark.parametrize("hostname", [None, "localhost", "127.0.0.1:5672"])
@pytest.mark.parametrize("name", NAMES)
def test_the_key_tells_where_no_host_does(
    namespaces: Namespaces, name: str, hostname: str | None
) -> None:
    for key in (f"{name} one", f"{name} two"):
        chosen, grant = namespaces.check_token(token("Root", key), "inbox", hostname, NOW_S)
        assert chosen.name == name
        assert grant.rights == RIGHTS
        assert namespaces.check_plain("Root", key, hostname)[0].name == name


@pytest.mark.proves("M-12")
@pytest.mark.feature("entity.namespaces")
@pytest.mark.parametrize("name", NAMES)
def test_a_host_takes_its_own_keys_only(namespaces: Namespaces, name: str) -> None:
    host = f"{name}.x"
    for other in NAMES:
        key = f"{other} one"
        if other == name:
            found, _ = namespaces.check_token(token("Root", key), "inbox", host, NOW_S)
            assert found.name == namespaces.check_plain("Root", key, host)[0].name == name
            continue
        with pytest.raises(Unauthorized, match="not valid"):
            namespaces.check_token(token("Root", key), "inbox", host, NOW_S)
        with pytest.raises(Unauthorized, match="not valid"):
            namespaces.check_plain("Root", key, host)


def test_a_key_that_all_have_opens_the_first_or_the_one_named(namespaces: Namespaces) -> None:
    shared = token("shared", "same key")
    assert namespaces.check_token(shared, "inbox", None, NOW_S)[0].name == "shop"
    assert namespaces.check_token(shared, "inbox", "billing.x", NOW_S)[0].name == "Billing"
    assert namespaces.check_plain("shared", "same key", None)[0].name == "shop"
    assert namespaces.check_plain("shared", "same key", "orders.x")[0].name == "orders"


@pytest.mark.proves("M-12")
@pytest.mark.feature("entity.namespaces")
def test_an_entity_of_the_same_name_has_its_own_rules(namespaces: Namespaces) -> None:
    chosen, grant = namespaces.check_token(token("listener", "listen two"), "inbox", None, NOW_S)
    assert chosen.name == "orders"
    assert grant.rights == {LISTEN}
    for hostname, path in (("shop.x", "inbox"), (None, "orders:inbox"), (None, "other")):
        with pytest.raises(Unauthorized):
            namespaces.check_token(token("listener", "listen one", path), path, hostname, NOW_S)


def test_strangers_are_told_the_same_everywhere(namespaces: Namespaces) -> None:
    texts = set()
    for hostname in (None, "orders.x", "nowhere.x"):
        for rule in ("Root", "listener", "nobody"):
            with pytest.raises(Unauthorized) as caught:
                namespaces.check_token(token(rule, "guessed"), "inbox", hostname, NOW_S)
            texts.add(str(caught.value))
            with pytest.raises(Unauthorized) as caught:
                namespaces.check_plain(rule, "guessed", hostname)
            texts.add(str(caught.value))
    assert texts == {"The credentials are not valid."}


def test_leeway_is_for_the_expiry(namespaces: Namespaces) -> None:
    text = token("Root", "shop one")
    assert namespaces.check_token(text, "inbox", None, LATER_S + 119, 120)[0].name == "shop"
    with pytest.raises(Unauthorized, match="expired"):
        namespaces.check_token(text, "inbox", None, LATER_S + 120, 120)


def test_web_tokens_are_refused_without_an_issuer(namespaces: Namespaces) -> None:
    with pytest.raises(Unauthorized, match="shared access signatures only"):
        namespaces.check_token("eyJhbGciOiJub25lIn0.e30.", "inbox", None, NOW_S)
