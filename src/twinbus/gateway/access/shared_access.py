"""Access control: authorization rules, shared access signatures, and what they grant.

Pure: time is an argument; no clock, no randomness.  A token has the form

    SharedAccessSignature sr=<uri>&sig=<base64>&se=<unix seconds>&skn=<rule name>

with every value percent-encoded.  `sig` is HMAC-SHA256, keyed with the rule's key as plain UTF-8
text, over `sr` exactly as in the token, a line feed, and `se`.

A namespace has rules, and a queue or topic may have its own.  The rule of an entity opens only that
entity and its parts (its dead-letter queue, a topic's subscriptions), whatever the token's scope.

This module must never put a key, a token or a part of either into an error, and never reveal
whether a rule exists to a client without its key.  So the signature is checked first, with the same
work for known and unknown rule names, for both keys, and whether or not the entity has rules; only
then expiry and scope.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Iterable
from typing import Final, Protocol
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
    """Secret text: printing or logging it shows only that it is there."""

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


class EntityRule(Protocol):
    """An authorization rule as an entity's description has it."""

    @property
    def name(self) -> str: ...
    @property
    def rights(self) -> tuple[str, ...]: ...
    @property
    def primary_key(self) -> str: ...
    @property
    def secondary_key(self) -> str: ...


# From the name of an entity, in lower case, to its rules; none for what does not exist.
EntityRules = Callable[[str], Iterable[EntityRule]]


class Signer:
    """The signing key: its rule, where the rule is, and the key, which may be replaced one day."""

    __slots__ = ("entity", "key", "name", "rights")

    def __init__(self, entity: str, name: str, rights: frozenset[str], key: Secret) -> None:
        self.entity = entity  # "" for a rule of the namespace
        self.name = name
        self.rights = rights
        self.key = key


class Grant:
    """What a checked credential opens: rights, on a path and everything below it, for a time."""

    __slots__ = ("_segments", "expires_s", "rights", "scope", "signer")

    def __init__(
        self, rights: frozenset[str], scope: str, expires_s: int, signer: Signer | None = None
    ) -> None:
        self.rights = rights
        self.scope = scope  # entity path in lower case; "" is the whole namespace
        self.expires_s = expires_s  # UTC seconds
        self.signer = signer  # None: no key of a rule, so nothing that could be taken back
        self._segments = _segments_of(scope)

    def allows(self, right: str, entity_path: str, now_s: int) -> bool:
        """Is `right` given on this entity now?  `entity_path` is its name in the broker."""
        return (
            right in self.rights
            and now_s < self.expires_s
            and _covers(self._segments, _segments_of(entity_path))
            and self._belongs(entity_path)
        )

    def _belongs(self, entity_path: str) -> bool:
        """A rule of the queue `a` is none of the queue `a/b`, though its path is below."""
        signer = self.signer
        return signer is None or not signer.entity or signer.entity == entity_of(entity_path)

    def __repr__(self) -> str:
        rights = ",".join(sorted(self.rights))
        return f"Grant({rights} on /{self.scope} until {self.expires_s})"


class SasToken:
    """A shared access signature that has been parsed but not yet checked."""

    __slots__ = ("expires_s", "resource", "rule_name", "signature", "signed")

    def __init__(self, text: str) -> None:
        fields = _parse_token(text)
        self.signed = f"{fields['sr']}\n{fields['se']}".encode()
        self.rule_name = _decode(fields["skn"])
        self.signature = _parse_signature(fields["sig"])
        self.resource = fields["sr"]
        self.expires_s = int(fields["se"])

    def grant(self, signer: Signer, audience: str, now_s: int) -> Grant:
        """What the token gives, now that its signature is known to be good.

        The grant is for the audience, which may be narrower than what the token was made for.
        """
        if now_s >= self.expires_s:
            raise Unauthorized(_EXPIRED)
        scope = _path_of_resource(_decode(self.resource, plus_is_space=True))
        wanted = path_of(audience)
        if not _covers(_segments_of(scope), _segments_of(wanted)):
            raise Unauthorized(_OUT_OF_SCOPE)
        return Grant(signer.rights, wanted, self.expires_s, signer)


class Authorizer:
    """The rules of a namespace, and the two ways to prove that one holds a key."""

    __slots__ = ("_rules", "entity_rules")

    def __init__(
        self, rules: Iterable[AuthorizationRule], entity_rules: EntityRules | None = None
    ) -> None:
        self.entity_rules = entity_rules  # given later where the entities come later
        self._rules: dict[str, AuthorizationRule] = {}
        for rule in rules:
            if rule.name in self._rules:
                message = f"two authorization rules are named {rule.name!r}"
                raise ValueError(message)
            self._rules[rule.name] = rule

    def check_token(self, token_text: str, audience: str, now_s: int) -> Grant:
        """Judge a token presented for `audience` (a URI, or a bare entity path)."""
        token = SasToken(token_text)
        signer = self.find_signer(token, audience)
        if signer is None:
            raise Unauthorized(_WRONG)
        return token.grant(signer, audience, now_s)

    def find_signer(self, token: SasToken, audience: str) -> Signer | None:
        """The rule that signed: one of the namespace, or of the entity that the audience names."""
        entity = entity_of(_path_or_nothing(audience))
        own = _signing_key(self._rules.get(token.rule_name), token)
        theirs = _signing_key(self._entity_rule(entity, token.rule_name), token)
        rule, key = own if own[0] is not None else theirs
        if rule is None:
            return None
        return Signer(entity if rule is theirs[0] else "", rule.name, rule.rights, key)

    def check_plain(self, username: str, password: str) -> Grant:
        """Judge SASL PLAIN, where the rule's name is the user and a key the password.

        It names no entity, so only rules of the namespace count.
        """
        rule = self._rules.get(username)
        keys = _DECOY if rule is None else rule
        given = _fingerprint(password)
        matches = hmac.compare_digest(
            _fingerprint(keys.primary_key.reveal()), given
        ) | hmac.compare_digest(_fingerprint(keys.secondary_key.reveal()), given)
        if rule is None or not matches:
            raise Unauthorized(_WRONG)
        return Grant(rule.rights, "", NEVER_S, Signer("", rule.name, rule.rights, Secret(password)))

    def stands(self, grant: Grant) -> bool:
        """Is the rule behind a grant still there, with that key and those rights?

        Rules of the namespace last as long as the server runs, those of entities come and go.
        """
        signer = grant.signer
        if signer is None or not signer.entity:
            return True
        rule = self._entity_rule(signer.entity, signer.name)
        return (
            rule is not None
            and signer.rights == rule.rights
            and ((signer.key == rule.primary_key) | (signer.key == rule.secondary_key))
        )

    def _entity_rule(self, entity: str, name: str) -> AuthorizationRule | None:
        if not entity or self.entity_rules is None:
            return None
        for rule in self.entity_rules(entity):
            if rule.name == name:
                return AuthorizationRule(name, rule.rights, rule.primary_key, rule.secondary_key)
        return None


def _signing_key(
    rule: AuthorizationRule | None, token: SasToken
) -> tuple[AuthorizationRule | None, Secret]:
    """The rule, if one of its keys made the signature, and that key."""
    keys = _DECOY if rule is None else rule
    primary = hmac.digest(_key_bytes(keys.primary_key), token.signed, "sha256")
    secondary = hmac.digest(_key_bytes(keys.secondary_key), token.signed, "sha256")
    # Both comparisons always happen.
    is_primary = hmac.compare_digest(primary, token.signature)
    is_secondary = hmac.compare_digest(secondary, token.signature)
    matching = rule if is_primary | is_secondary else None
    return matching, keys.primary_key if is_primary else keys.secondary_key


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


def entity_of(path: str) -> str:
    """The queue or topic that a path is about, in lower case; "" for the namespace.

    What follows it is its own: a subqueue, `$management`, or a topic's subscription.
    """
    segments = _segments_of(path)
    for place, segment in enumerate(segments):
        if segment.startswith("$") or (place and segment == "subscriptions"):
            return "/".join(segments[:place])
    return "/".join(segments)


def path_of(audience: str) -> str:
    """The entity path that an audience names; a bare path is taken as it is."""
    if "://" in audience:
        return _path_of_uri(audience)
    return _normal(_decode(audience))


def _path_or_nothing(audience: str) -> str:
    """The same before anything is known about the caller, who must not hear of it yet."""
    try:
        return path_of(audience)
    except Unauthorized:
        return ""


def _path_of_resource(text: str) -> str:
    """The path that a token was made for, with what only the Node SDK signs: the query behind the
    address of a request, and `host:port` alone for a forward target (no name has a colon).
    """
    address = text.partition("?")[0]
    if "://" not in address and ":" in address.partition("/")[0]:
        address = f"sb://{address}"
    return _path_of_uri(address)


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
