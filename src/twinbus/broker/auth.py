"""Who may do what: authorization rules, shared access signatures, and what they grant.

Pure: the time is handed in, no clock, no randomness.  A token reads

    SharedAccessSignature sr=<uri>&sig=<base64>&se=<unix seconds>&skn=<rule name>

with every value percent-encoded.  `sig` is HMAC-SHA256, keyed with the rule's key as plain UTF-8
text, over `sr` exactly as it stands in the token, a line feed, and `se`.

This module must never put a key, a token or a part of either into an error, and never say whether
a rule exists to somebody who has no key of it.  So the signature is judged first, with the same
work for known and unknown rule names and for both keys; only then do expiry and scope count.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote, unquote_plus

from twinbus.errors import Unauthorized
from twinbus.limits import SAS_TOKEN_CHARS_MAX

MANAGE: Final = "Manage"
SEND: Final = "Send"
LISTEN: Final = "Listen"
RIGHTS: Final = frozenset((MANAGE, SEND, LISTEN))

NEVER_S: Final = 1 << 62  # later than any clock, for grants that do not expire

_SCHEME: Final = "SharedAccessSignature "
_FIELDS: Final = frozenset(("sr", "sig", "se", "skn"))
_DIGEST_BYTES: Final = 32
_EXPIRY_DIGITS_MAX: Final = 18  # beyond that it is no time but an attempt at slow arithmetic

_MALFORMED: Final = "The token is malformed."
_WRONG: Final = "The credentials are not valid."  # one text for a wrong name and a wrong key
_EXPIRED: Final = "The token has expired."
_OUT_OF_SCOPE: Final = "The token is for another resource."


class Secret:
    """Text that must not be seen: printing or logging it shows only that it is there."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself, for signing or for the one file and the one line that show it."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    def __str__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash(self._text)


class AuthorizationRule:
    """A named pair of keys and the rights that a holder of either key has."""

    __slots__ = ("name", "primary_key", "rights", "secondary_key")

    def __init__(
        self,
        name: str,
        rights: Iterable[str],
        primary_key: Secret | str,
        secondary_key: Secret | str,
    ) -> None:
        given = frozenset(rights)
        if not name or not given or not given <= RIGHTS:
            message = "an authorization rule needs a name and rights out of Manage, Send, Listen"
            raise ValueError(message)
        self.name = name
        self.rights = RIGHTS if MANAGE in given else given  # Manage includes Send and Listen
        self.primary_key = _as_secret(primary_key)
        self.secondary_key = _as_secret(secondary_key)
        if not self.primary_key.reveal() or not self.secondary_key.reveal():
            message = f"authorization rule {name!r} has an empty key"
            raise ValueError(message)

    def __repr__(self) -> str:
        return f"AuthorizationRule({self.name!r}, rights={sorted(self.rights)})"


class Grant:
    """What a checked credential opens: rights, on a path and everything below it, for a time."""

    __slots__ = ("_segments", "expires_s", "rights", "scope")

    def __init__(self, rights: frozenset[str], scope: str, expires_s: int) -> None:
        self.rights = rights
        self.scope = scope  # entity path in lower case; "" is the whole namespace
        self.expires_s = expires_s  # UTC seconds
        self._segments = _segments_of(scope)

    def allows(self, right: str, entity_path: str, now_s: int) -> bool:
        """Is `right` given on this entity now?  `entity_path` is its name in the broker."""
        return (
            right in self.rights
            and now_s < self.expires_s
            and _covers(self._segments, _segments_of(entity_path))
        )

    def __repr__(self) -> str:
        rights = ",".join(sorted(self.rights))
        return f"Grant({rights} on /{self.scope} until {self.expires_s})"


class Authorizer:
    """The rules of a namespace, and the two ways to prove that one holds a key."""

    __slots__ = ("_rules",)

    def __init__(self, rules: Iterable[AuthorizationRule]) -> None:
        self._rules: dict[str, AuthorizationRule] = {}
        for rule in rules:
            if rule.name in self._rules:
                message = f"two authorization rules are named {rule.name!r}"
                raise ValueError(message)
            self._rules[rule.name] = rule

    def check_token(self, token_text: str, audience: str, now_s: int) -> Grant:
        """Judge a token presented for `audience` (a URI, or a bare entity path).

        The grant is for the audience, which may be narrower than what the token was made for.
        """
        fields = _parse_token(token_text)
        signed = f"{fields['sr']}\n{fields['se']}".encode()
        rule = self._rules.get(_decode(fields["skn"]))
        signature = _parse_signature(fields["sig"])
        keys = _DECOY if rule is None else rule
        primary = hmac.digest(_key_bytes(keys.primary_key), signed, "sha256")
        secondary = hmac.digest(_key_bytes(keys.secondary_key), signed, "sha256")
        # `|`, not `or`: both comparisons always happen.
        matches = hmac.compare_digest(primary, signature) | hmac.compare_digest(
            secondary, signature
        )
        if rule is None or not matches:
            raise Unauthorized(_WRONG)
        expires_s = int(fields["se"])
        if now_s >= expires_s:
            raise Unauthorized(_EXPIRED)
        scope = _path_of_uri(_decode(fields["sr"], plus_is_space=True))
        wanted = _path_of(audience)
        if not _covers(_segments_of(scope), _segments_of(wanted)):
            raise Unauthorized(_OUT_OF_SCOPE)
        return Grant(rule.rights, wanted, expires_s)

    def check_plain(self, username: str, password: str) -> Grant:
        """Judge SASL PLAIN, where the rule's name is the user and a key the password."""
        rule = self._rules.get(username)
        keys = _DECOY if rule is None else rule
        given = _fingerprint(password)
        matches = hmac.compare_digest(
            _fingerprint(keys.primary_key.reveal()), given
        ) | hmac.compare_digest(_fingerprint(keys.secondary_key.reveal()), given)
        if rule is None or not matches:
            raise Unauthorized(_WRONG)
        return Grant(rule.rights, "", NEVER_S)


def _parse_token(text: str) -> dict[str, str]:
    """The four fields, still percent-encoded; each exactly once and nothing else."""
    if len(text) > SAS_TOKEN_CHARS_MAX or not text.isascii() or not text.startswith(_SCHEME):
        raise Unauthorized(_MALFORMED)
    fields: dict[str, str] = {}
    for part in text[len(_SCHEME) :].split("&"):
        name, equals, value = part.partition("=")
        if not equals or not value or name not in _FIELDS or name in fields:
            raise Unauthorized(_MALFORMED)
        fields[name] = value
    expiry = fields.get("se", "")
    if len(fields) != len(_FIELDS) or not expiry.isdigit() or len(expiry) > _EXPIRY_DIGITS_MAX:
        raise Unauthorized(_MALFORMED)
    return fields


def _parse_signature(encoded: str) -> bytes:
    text = _decode(encoded)
    try:
        digest = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Unauthorized(_MALFORMED) from None
    # Base64 of 32 bytes leaves two bits unused; only the spelling with zeros there is a signature.
    if len(digest) != _DIGEST_BYTES or base64.b64encode(digest).decode() != text:
        raise Unauthorized(_MALFORMED)
    return digest


def _decode(text: str, *, plus_is_space: bool = False) -> str:
    try:
        if plus_is_space:
            return unquote_plus(text, errors="strict")
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise Unauthorized(_MALFORMED) from None


def _path_of(audience: str) -> str:
    """The entity path that an audience names; a bare path is taken as it is."""
    if "://" in audience:
        return _path_of_uri(audience)
    return _normal(_decode(audience))


def _path_of_uri(uri: str) -> str:
    """The path of a URI.  Scheme, host and port say how one got here, not what is asked for:
    the same server is localhost, an address and a name at once.
    """
    scheme, separator, rest = uri.partition("://")
    if not scheme or not separator or not rest or "?" in rest or "#" in rest:
        raise Unauthorized(_OUT_OF_SCOPE)
    return _normal(_decode(rest.partition("/")[2]))


def _normal(path: str) -> str:
    return path.strip("/").lower()


def _segments_of(path: str) -> list[str]:
    normal = _normal(path)
    return normal.split("/") if normal else []


def _covers(scope: list[str], path: list[str]) -> bool:
    """Whole segments only: `orders` covers `orders/$DeadLetterQueue`, never `orders2`."""
    return path[: len(scope)] == scope


def _as_secret(key: Secret | str) -> Secret:
    return key if isinstance(key, Secret) else Secret(key)


def _key_bytes(key: Secret) -> bytes:
    return key.reveal().encode()


def _fingerprint(text: str) -> bytes:
    """Equal length whatever the text, so that comparing tells nothing about lengths either."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


# Stands in for a rule that does not exist.  Its keys open nothing: `rule is None` still refuses.
_DECOY: Final = AuthorizationRule("decoy", (LISTEN,), "decoy primary", "decoy secondary")
