"""The claims of a connection: the right grant is found among thousands, and only that."""

import pytest

from twinbus.errors import Unauthorized
from twinbus.gateway.access.claims import Claims
from twinbus.gateway.access.shared_access import LISTEN, SEND, Grant
from twinbus.limits import TOKENS_MAX

NOW_S = 1_000


def grant(scope: str, right: str = SEND, expires_s: int = NOW_S + 100) -> Grant:
    return Grant(frozenset((right,)), scope, expires_s)


def stands(_: Grant) -> bool:
    return True


def crowd(*scopes: str) -> Claims:
    """These grants among many others."""
    claims = Claims()
    for number in range(100):
        claims.put(grant(f"other-{number}"))
    for scope in scopes:
        claims.put(grant(scope))
    return claims


@pytest.mark.parametrize(
    "scope, path",
    [
        ("", "orders"),
        ("orders", "orders"),
        ("orders", "Orders/"),
        ("orders", "orders/$DeadLetterQueue"),
        ("a/b", "a/b/Subscriptions/s"),
        ("a//b", "a//b"),
    ],
)
def test_a_grant_covers_its_scope_and_what_is_below(scope: str, path: str) -> None:
    for claims in (crowd(scope), Claims()):
        claims.put(grant(scope))
        assert claims.allow(SEND, path, NOW_S, stands)
        assert not claims.allow(LISTEN, path, NOW_S, stands)
        assert not claims.allow(SEND, path, NOW_S + 100, stands)
        assert not claims.allow(SEND, path, NOW_S, lambda _: False)


@pytest.mark.parametrize("path", ["orders2", "order", "o", "a/orders", "", "other-1000"])
def test_a_grant_covers_nothing_else(path: str) -> None:
    assert not crowd("orders").allow(SEND, path, NOW_S, stands)


def test_links_are_compared_again_only_when_they_may_have_lost_something() -> None:
    claims = crowd("orders")
    assert not claims.have_shrunk(NOW_S, stands)
    claims.put(grant("more"))
    assert not claims.have_shrunk(NOW_S, stands)
    claims.put(grant("orders", LISTEN))
    assert claims.have_shrunk(NOW_S, stands)
    assert not claims.have_shrunk(NOW_S, stands)
    assert not claims.allow(SEND, "orders", NOW_S, stands)
    assert claims.have_shrunk(NOW_S, lambda each: each.scope != "orders")
    assert claims.have_shrunk(NOW_S + 100, stands)


def test_what_has_expired_is_forgotten() -> None:
    claims = crowd("orders")
    claims.put(grant("later", SEND, NOW_S + 200))
    assert claims.drop_expired(NOW_S) == 0
    assert claims.drop_expired(NOW_S + 100) == 101
    assert len(claims) == 1
    assert "later" in claims
    assert not claims.have_shrunk(NOW_S + 100, stands)


def test_tokens_of_a_connection_are_bounded_and_can_be_renewed() -> None:
    claims = Claims()
    for number in range(TOKENS_MAX):
        claims.put(grant(f"q{number}"))
    with pytest.raises(Unauthorized, match=str(TOKENS_MAX)):
        claims.put(grant("one more"))
    claims.put(grant("q7", LISTEN))
    assert claims.allow(LISTEN, "q7", NOW_S, stands)
