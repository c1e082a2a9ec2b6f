"""The authorization rules inside a description: from XML, and back.

Keys that a client omits are generated here, or kept if the rule exists.  Anyone who may see the
description sees them, which takes the Manage right on the entity.  A key never gets into an
error.
"""

import base64
import secrets
from collections.abc import Sequence
from typing import Final
from xml.etree.ElementTree import Element

from twinbus.entities.descriptions import RIGHTS, SharedAccessRule
from twinbus.errors import ArgumentInvalid, NotSupported
from twinbus.server.http.atom.feeds import TYPE, element, local_name, utc_text
from twinbus.server.http.xml_reader import XML_SPACE

_KIND: Final = "SharedAccessAuthorizationRule"
_CLAIM_TYPE: Final = "SharedAccessKey"
_KEY_BYTES: Final = 32


def read_authorization_rules(
    element_: Element, existing: Sequence[SharedAccessRule], now_utc_ms: int
) -> tuple[SharedAccessRule, ...]:
    """The rules that an entity is to have; `existing` are the ones it has."""
    before = {rule.name: rule for rule in existing}
    return tuple(
        _read_rule(child, before, now_utc_ms)
        for child in element_
        if local_name(child) == "AuthorizationRule"
    )


def _read_rule(
    given: Element, before: dict[str, SharedAccessRule], now_utc_ms: int
) -> SharedAccessRule:
    kind = given.get(TYPE, _KIND).rpartition(":")[2]
    texts = {local_name(child): (child.text or "").strip(XML_SPACE) for child in given}
    if kind != _KIND or texts.get("ClaimType", _CLAIM_TYPE) not in ("", _CLAIM_TYPE):
        raise NotSupported(f"Authorization rules are of type {_KIND} with a {_CLAIM_TYPE}.")
    name = texts.get("KeyName", "")
    rights = _read_rights(given)
    old = before.get(name)
    primary = texts.get("PrimaryKey") or (old.primary_key if old else _new_key())
    secondary = texts.get("SecondaryKey") or (old.secondary_key if old else _new_key())
    if old and (old.rights, old.primary_key, old.secondary_key) == (rights, primary, secondary):
        return old
    created_utc_ms = old.created_utc_ms if old else now_utc_ms
    return SharedAccessRule(name, rights, primary, secondary, created_utc_ms, now_utc_ms)


def _read_rights(given: Element) -> tuple[str, ...]:
    wanted = {
        (right.text or "").strip(XML_SPACE)
        for child in given
        if local_name(child) == "Rights"
        for right in child
        if local_name(right) == "AccessRights"
    }
    if not wanted <= set(RIGHTS):
        raise ArgumentInvalid(
            f"The rights of an authorization rule are some of {', '.join(RIGHTS)}."
        )
    return tuple(right for right in RIGHTS if right in wanted)


def _new_key() -> str:
    return base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()


def write_authorization_rules(rules: Sequence[SharedAccessRule]) -> str:
    written = "".join(_write_rule(rule) for rule in rules)
    return f"<AuthorizationRules>{written}</AuthorizationRules>"


def _write_rule(rule: SharedAccessRule) -> str:
    rights = "".join(element("AccessRights", right) for right in rule.rights)
    return (
        f'<AuthorizationRule i:type="{_KIND}">'
        f"{element('ClaimType', _CLAIM_TYPE)}{element('ClaimValue', 'None')}"
        f"<Rights>{rights}</Rights>"
        f"{element('CreatedTime', utc_text(rule.created_utc_ms))}"
        f"{element('ModifiedTime', utc_text(rule.modified_utc_ms))}"
        f"{element('KeyName', rule.name)}{element('PrimaryKey', rule.primary_key)}"
        f"{element('SecondaryKey', rule.secondary_key)}</AuthorizationRule>"
    )
