"""Tokens and entity paths of any making: refused, or opening just what they should."""

import http.client
import re
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.broker.harness import BrokerHarness
from twinbus.client.connection_string import ConnectionString
from twinbus.client.sas import make_sas_token
from twinbus.clock import SystemClock
from twinbus.entities.descriptions import QueueDescription, SharedAccessRule
from twinbus.errors import EntityNotFound, Unauthorized
from twinbus.gateway.access.shared_access import (
    LISTEN,
    MANAGE,
    RIGHTS,
    SEND,
    AuthorizationRule,
    Authorizer,
)
from twinbus.gateway.directory.addresses import parse_address
from twinbus.gateway.namespaces.namespace import Namespace
from twinbus.gateway.namespaces.registry import Namespaces
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.proves("M-12")

NOW_S = 1_800_000_000
LATER_S = NOW_S + 3600
OWN = SharedAccessRule("own", ("Manage", "Send", "Listen"), "own key", "own second")


def make_namespaces() -> Namespaces:
    """Entities whose names contain, begin and repeat each other, in two namespaces."""
    harness = BrokerHarness()
    ruled = QueueDescription(authorization_rules=(OWN,))
    for name in ("orders", "orders/archive", "orders2", "order"):
        harness.create_queue(name, ruled if name == "orders" else None)
        harness.create_queue(f"second:{name}")
    harness.create_subscription(harness.create_topic("news"), "orders")
    made = []
    for name, prefix in (("first", ""), ("second", "second:")):
        rule = AuthorizationRule("Root", [MANAGE], f"{name} key", f"{name} second")
        made.append(
            Namespace(
                name, harness.gateway, harness.changes, Authorizer([rule]), harness.clock, 0, prefix
            )
        )
    return Namespaces(made)


NAMESPACES = make_namespaces()
FIRST = NAMESPACES.default
GOOD = make_sas_token("sb://host/orders", "Root", "first key", LATER_S)

# Pieces that mean something to somebody on the way.
PIECES = st.sampled_from(
    [
        "orders",
        "ORDERS",
        "orders2",
        "order",
        "archive",
        "news",
        "Subscriptions",
        "subscriptions",
        "rules",
        "$Default",
        "$management",
        "$DeadLetterQueue",
        "$deadletterqueue",
        "$Transfer",
        "$cbs",
        "$Resources",
        "queues",
        "messages",
        "head",
        "second:",
        ":",
        "/",
        "//",
        "\\",
        "%2f",
        "%252f",
        "%00",
        "%",
        "..",
        "/../",
        ".",
        ";",
        "?",
        "#",
        "@",
        "*",
        " ",
        "\t",
        "\u212a",  # the Kelvin sign, which is a k in lower case
        "İ",
        "sb://host/",
        "amqps://orders/",
        "é",
        "\x00",
    ]
)
PATHS = st.lists(PIECES, max_size=7).map("".join) | st.text(max_size=30)


@pytest.mark.proves("M-12")
@settings(max_examples=400)
@given(st.data())
def test_a_changed_token_opens_nothing_more(data: st.DataObject) -> None:
    """Cut, doubled, swapped, spelled in another way: refused, or still the same token."""
    text = GOOD
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(at, min(len(text), at + 12)))
        part = data.draw(
            st.sampled_from(["", text[at:end] * 2, text[at:end].swapcase(), "&se=9999999999"])
            | st.text(alphabet="&=%0123456789ABab+/ se srsignskn", max_size=6)
        )
        text = text[:at] + part + text[end:]
    try:
        namespace, grant = NAMESPACES.check_token(text, "sb://host/orders", None, NOW_S)
    except Unauthorized:
        return
    assert namespace is FIRST
    assert (grant.scope, grant.rights, grant.expires_s) == ("orders", RIGHTS, LATER_S)


@pytest.mark.proves("M-12")
@settings(max_examples=400)
@given(PATHS, PATHS)
def test_a_token_for_any_path(made_for: str, audience: str) -> None:
    """The grant never reaches beyond what the token was made for."""
    token = make_sas_token(f"sb://host/{made_for}", "own", "own key", LATER_S)
    try:
        _, grant = NAMESPACES.check_token(token, audience, None, NOW_S)
    except Unauthorized:
        return
    assert grant.scope.split("/")[0] == "orders"  # whose rule it is
    for name in ("orders2", "order", "orders/archive", "news", ""):
        assert not grant.allows(LISTEN, name, NOW_S)


@pytest.mark.proves("M-12")
@settings(max_examples=600)
@given(PATHS)
def test_an_address_that_is_allowed_is_the_entity_meant(path: str) -> None:
    """Who may use one queue finds no other by any spelling of its name."""
    token = make_sas_token("sb://host/orders", "own", "own key", LATER_S)
    _, grant = NAMESPACES.check_token(token, "sb://host/orders", None, NOW_S)
    address = parse_address(path)
    if not grant.allows(SEND, address.path, NOW_S):
        return
    try:
        found = FIRST.find_entity(address.name)
    except EntityNotFound:
        return
    assert found.name == "orders"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("fuzz") / "data") as process:
        for name in ("orders", "orders2", "order"):
            process.create_queue(name)
        yield process
    assert "Traceback" not in process.log, process.log


@settings(max_examples=150, deadline=None)
@given(path=PATHS, method=st.sampled_from(["GET", "HEAD", "POST"]), raw=st.booleans())
def test_any_path_over_http(server: ServerProcess, path: str, method: str, raw: bool) -> None:
    """A clean answer to everything, and nothing of another queue to the holder of this token."""
    root = ConnectionString.parse(server.connection_string)
    expires_s = SystemClock().now().utc_ms // 1_000 + 300
    token = make_sas_token("sb://host/orders", root.key_name, root.key, expires_s)
    shown = quote(path, safe="/%$:?#@;*." if raw else "")
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)) as client:
        client.request(method, f"/orders/{shown}"[:4_000], headers={"Authorization": token})
        response = client.getresponse()
        text = response.read().decode()
    assert response.status in (200, 201, 204, 400, 401, 403, 404, 405, 410, 411, 415)
    assert not re.search("<title[^>]*>order(2|s2)?</title>", text)


@settings(max_examples=100, deadline=None)
@given(path=PATHS, method=st.sampled_from(["DELETE", "PUT"]), raw=st.booleans())
def test_nothing_is_changed_by_any_path(
    server: ServerProcess, path: str, method: str, raw: bool
) -> None:
    """The token is for a part of a queue, so whatever the path says, it is for something else."""
    root = ConnectionString.parse(server.connection_string)
    expires_s = SystemClock().now().utc_ms // 1_000 + 300
    token = make_sas_token("sb://host/orders/$none", root.key_name, root.key, expires_s)
    shown = quote(path, safe="/%$:?#@;*." if raw else "")
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)) as client:
        client.request(method, f"/{shown}"[:4_000], headers={"Authorization": token})
        response = client.getresponse()
        response.read()
    assert response.status in (400, 401, 404, 405)
    names = [queue.name for queue in server.admin.list_queues()]
    assert sorted(names) == ["order", "orders", "orders2"]
