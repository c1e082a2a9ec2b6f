"""All namespaces of one server, and which of them a client means.

    host name's first label      orders.localhost, orders.servicebus.windows.net → orders
    else the key that signed     whichever namespace has such a rule
    else the first               one namespace is the usual case

They share one store and one broker; each has its own names and its own keys.  A client that names a
namespace by its host must hold a key of that one.  Must never let a client find out, by a key it
does not have, which namespaces or rules there are.
"""

import ipaddress
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from twinbus.errors import EntityNotFound, Unauthorized
from twinbus.gateway.access.shared_access import EntityRule, Grant, SasToken, Signer, path_of
from twinbus.gateway.namespaces.namespace import Namespace

_WRONG: Final = "The credentials are not valid."
_WEB_TOKEN: Final = "eyJ"  # how `{"` begins in base64; a token's own text tells its kind


class WebTokens(Protocol):
    """Checks JSON web tokens (web_tokens.py, loaded only when needed)."""

    def check(self, token: str, now_s: int, leeway_s: int) -> tuple[frozenset[str], int]: ...


class Namespaces:
    """The namespaces of a server; the first is the default."""

    def __init__(
        self, namespaces: Sequence[Namespace], web_tokens: WebTokens | None = None
    ) -> None:
        self.default = namespaces[0]
        self._by_name: dict[str, Namespace] = {}
        self._web_tokens = web_tokens
        # Told of every token and password before it is judged: the log is to have none of them.
        self.on_shown: Callable[[str], None] = _ignore
        for namespace in namespaces:
            self.add(namespace)

    def add(self, namespace: Namespace) -> None:
        """From now on clients find it."""
        name = namespace.name.lower()
        assert name not in self._by_name, "the configuration has checked the names"
        namespace.authorizer.entity_rules = _entity_rules(namespace)
        self._by_name[name] = namespace

    def remove(self, namespace: Namespace) -> None:
        """From now on no client finds it; those that have are the caller's to turn away."""
        assert namespace is not self.default, "the first is where everything else is looked for"
        del self._by_name[namespace.name.lower()]

    def all(self) -> list[Namespace]:
        return list(self._by_name.values())

    def by_host(self, hostname: str | None) -> Namespace | None:
        """The namespace that a host name is the name of; None when it names none of them."""
        if not hostname or hostname.startswith("["):
            return None
        host = hostname.partition(":")[0]
        label, dot, _ = host.partition(".")
        if dot and _is_address(host):
            return None
        return self._by_name.get(label.lower())

    def check_token(
        self, token_text: str, audience: str, hostname: str | None, now_s: int, leeway_s: int = 0
    ) -> tuple[Namespace, Grant]:
        """Judge a token, whose own text tells its kind, and say for which namespace it is.

        `leeway_s` is how long after its expiry a token is still taken.
        """
        self.on_shown(token_text)
        named = self.by_host(hostname)
        if token_text.startswith(_WEB_TOKEN):
            if self._web_tokens is None:
                raise Unauthorized("This server takes shared access signatures only.")
            rights, expires_s = self._web_tokens.check(token_text, now_s, leeway_s)
            return named or self.default, Grant(rights, path_of(audience), expires_s)
        token = SasToken(token_text)
        found: tuple[Namespace, Signer] | None = None
        for namespace in self._candidates(named):  # all of them, whoever has signed
            signer = namespace.authorizer.find_signer(token, audience)
            if signer is not None and found is None:
                found = (namespace, signer)
        if found is None:
            raise Unauthorized(_WRONG)
        namespace, signer = found
        return namespace, token.grant(signer, audience, now_s - leeway_s)

    def check_plain(
        self, username: str, password: str, hostname: str | None
    ) -> tuple[Namespace, Grant]:
        """Judge SASL PLAIN the same way."""
        self.on_shown(password)
        found: tuple[Namespace, Grant] | None = None
        for namespace in self._candidates(self.by_host(hostname)):
            try:
                grant = namespace.authorizer.check_plain(username, password)
            except Unauthorized:
                continue
            found = found or (namespace, grant)
        if found is None:
            raise Unauthorized(_WRONG)
        return found

    def _candidates(self, named: Namespace | None) -> list[Namespace]:
        return self.all() if named is None else [named]


def _entity_rules(namespace: Namespace) -> Callable[[str], Sequence[EntityRule]]:
    def rules_of(entity: str) -> Sequence[EntityRule]:
        try:
            return namespace.find_entity(entity).description.authorization_rules
        except EntityNotFound:
            return ()

    return rules_of


def _ignore(credential: str) -> None:
    """Nobody wants to know."""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
