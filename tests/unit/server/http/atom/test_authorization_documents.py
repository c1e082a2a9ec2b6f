"""Authorization rules inside a description."""

import base64
from xml.etree.ElementTree import Element, fromstring

import pytest

from twinbus.entities.descriptions import QueueDescription, SharedAccessRule
from twinbus.errors import ArgumentInvalid, NotSupported, QuotaExceeded
from twinbus.server.http.atom.authorization_documents import (
    read_authorization_rules,
    write_authorization_rules,
)
from twinbus.server.http.atom.feeds import INSTANCE, SERVICE_BUS

pytestmark = pytest.mark.proves("M-12")

SENDER = SharedAccessRule("sender", ("Send",), "key one", "key two", 1, 2)


def element(inner: str) -> Element:
    return fromstring(
        f'<AuthorizationRules xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">{inner}'
        "</AuthorizationRules>"
    )


def rule(name: str, rights: tuple[str, ...], keys: str = "", kind: str = "") -> str:
    given = "".join(f"<AccessRights>{right}</AccessRights>" for right in rights)
    return (
        f'<AuthorizationRule i:type="{kind or "SharedAccessAuthorizationRule"}">'
        f"<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue>"
        f"<Rights>{given}</Rights><KeyName>{name}</KeyName>{keys}</AuthorizationRule>"
    )


def keys(primary: str, secondary: str) -> str:
    return f"<PrimaryKey>{primary}</PrimaryKey><SecondaryKey>{secondary}</SecondaryKey>"


def read(inner: str, *existing: SharedAccessRule) -> tuple[SharedAccessRule, ...]:
    return read_authorization_rules(element(inner), existing, 7)


def test_keys_are_taken_as_they_are() -> None:
    [made] = read(rule("a &amp; b", ("Send", "Listen"), keys("one", "two")))
    assert made == SharedAccessRule("a & b", ("Listen", "Send"), "one", "two", 7, 7)


def test_missing_keys_are_made() -> None:
    made = read(rule("a", ("Manage",)) + rule("b", ("Manage",), keys("", "")))
    found = {key for each in made for key in (each.primary_key, each.secondary_key)}
    assert len(found) == 4
    assert all(len(base64.b64decode(key)) == 32 for key in found)


def test_missing_keys_of_a_known_rule_stay() -> None:
    assert read(rule("sender", ("Send",)), SENDER) == (SENDER,)
    [changed] = read(rule("sender", ("Listen",), "<SecondaryKey>new</SecondaryKey>"), SENDER)
    assert changed == SharedAccessRule("sender", ("Listen",), "key one", "new", 1, 7)


def test_what_is_written_is_read_again() -> None:
    rules = (SENDER, SharedAccessRule("<&>\"'", ("Listen", "Manage", "Send"), "]]>", "=+/", 3, 4))
    written = write_authorization_rules(rules).replace(
        "<AuthorizationRules>", f'<AuthorizationRules xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">'
    )
    assert read_authorization_rules(fromstring(written), rules, 9) == rules


@pytest.mark.parametrize(
    ("inner", "error"),
    [
        (rule("", ("Send",)), ArgumentInvalid),
        (rule("x" * 257, ("Send",)), ArgumentInvalid),
        (rule("a", ()), ArgumentInvalid),
        (rule("a", ("Everything",)), ArgumentInvalid),
        (rule("a", ("Send",), keys("x" * 257, "y")), ArgumentInvalid),
        (rule("a", ("Send",), kind="AllowRule"), NotSupported),
        (rule("a", ("Send",)).replace(">SharedAccessKey<", ">nameidentifier<"), NotSupported),
    ],
)
def test_bad_names_rights_and_keys_are_refused(inner: str, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        read(inner)
    assert "xxx" not in str(caught.value)


def test_twelve_and_no_two_alike() -> None:
    twelve = read("".join(rule(f"r{number}", ("Send",)) for number in range(12)))
    assert len(QueueDescription(authorization_rules=twelve).authorization_rules) == 12
    with pytest.raises(QuotaExceeded):
        QueueDescription(authorization_rules=(*twelve, SENDER))
    with pytest.raises(ArgumentInvalid):
        QueueDescription(authorization_rules=(SENDER, SENDER))
