"""JSON web tokens of one issuer: their subject, how long they are valid, and their rights.

The issuer's public keys come from the configuration; nothing is fetched.  The key decides which
algorithms are allowed, never the token: RSA keys allow RS256 and PS256, P-256 keys ES256.  So
neither `none` nor a signature made with a public key as a secret is ever accepted.

Pure: time is an argument.  As with signatures, a client whose token the issuer has not signed
learns nothing about it.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import jwt
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from twinbus.errors import ConfigError, Unauthorized
from twinbus.gateway.access.shared_access import LISTEN, MANAGE, RIGHTS, SEND
from twinbus.limits import JWT_CHARS_MAX

PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey

RSA_BITS_MIN: Final = 2_048
KEYS_MAX: Final = 64  # of an issuer; each may be tried for one token
CLOCK_SKEW_S: Final = 60  # how far the issuer's clock may be ahead of ours

# What the claim `roles` may say, in lower case: the names of Azure's roles, and short ones.
ROLES: Final[Mapping[str, str]] = {
    "azure service bus data owner": MANAGE,
    "azure service bus data sender": SEND,
    "azure service bus data receiver": LISTEN,
    "owner": MANAGE,
    "sender": SEND,
    "receiver": LISTEN,
    "manage": MANAGE,
    "send": SEND,
    "listen": LISTEN,
}

_WRONG: Final = "The credentials are not valid."
# The issuer, the audience and the times are judged here, by the clock that was handed in.
_SIGNATURE_ONLY: Final[Any] = {
    "verify_aud": False,
    "verify_exp": False,
    "verify_iat": False,
    "verify_iss": False,
    "verify_jti": False,
    "verify_nbf": False,
    "verify_sub": False,
}


class IssuerKey(NamedTuple):
    """One public key of the issuer."""

    key_id: str | None
    key: PublicKey
    algorithms: tuple[str, ...]


class WebTokens:
    """One issuer, the audiences its tokens must have, and its keys."""

    def __init__(self, issuer: str, audiences: Iterable[str], keys: Sequence[IssuerKey]) -> None:
        self._issuer = issuer
        self._audiences = frozenset(audiences)
        self._keys = keys

    def check(self, token: str, now_s: int, leeway_s: int = 0) -> tuple[frozenset[str], int]:
        """The rights a token gives, and until when (UTC seconds)."""
        claims = self._verified(token)
        expires_s = _seconds(claims, "exp")
        if expires_s is None or claims.get("iss") != self._issuer:
            raise Unauthorized("The token is of another issuer, or does not say when it expires.")
        audience = claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        if not any(isinstance(one, str) and one in self._audiences for one in audiences):
            raise Unauthorized("The token is for another audience.")
        if now_s - leeway_s >= expires_s:
            raise Unauthorized("The token has expired.")
        if "nbf" in claims:
            valid_from_s = _seconds(claims, "nbf")
            if valid_from_s is None or now_s + CLOCK_SKEW_S < valid_from_s:
                raise Unauthorized("The token is not valid yet.")
        return _rights(claims.get("roles")), expires_s

    def _verified(self, token: str) -> dict[str, Any]:
        """The claims, once one of our keys is found to have signed them."""
        if len(token) > JWT_CHARS_MAX or not token.isascii():
            raise Unauthorized("The token is malformed.")
        try:
            header = jwt.get_unverified_header(token)
            for issuer_key in self._keys:
                if header.get("kid") in (None, issuer_key.key_id) or issuer_key.key_id is None:
                    claims = _claims_signed_by(issuer_key, token)
                    if claims is not None:
                        return claims
        except (jwt.PyJWTError, ValueError, RecursionError):
            pass
        raise Unauthorized(_WRONG)


def _claims_signed_by(issuer_key: IssuerKey, token: str) -> dict[str, Any] | None:
    try:
        claims: dict[str, Any] = jwt.decode(
            token, issuer_key.key, algorithms=list(issuer_key.algorithms), options=_SIGNATURE_ONLY
        )
    except (jwt.InvalidSignatureError, jwt.InvalidAlgorithmError):
        return None
    return claims


def _seconds(claims: dict[str, Any], name: str) -> int | None:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return int(value)


def _rights(roles: object) -> frozenset[str]:
    names = roles if isinstance(roles, list) else [roles]
    given = {ROLES[one.lower()] for one in names if isinstance(one, str) and one.lower() in ROLES}
    if not given:
        raise Unauthorized("The token has no role that gives a right here.")
    return RIGHTS if MANAGE in given else frozenset(given)


# --- the issuer's keys ----------------------------------------------------------------------------


def read_keys(text: str, file_name: str) -> list[IssuerKey]:
    """The public keys in a file: a JSON web key set, or PEM (public keys or certificates)."""
    try:
        keys = _keys_of_pem(text) if "-----BEGIN" in text else _keys_of_set(text)
    except (ValueError, TypeError, KeyError, AttributeError, jwt.PyJWTError) as error:
        raise ConfigError(
            f"{file_name}: cannot read public keys from it ({error}); use a JSON web key set or PEM"
        ) from error
    if not 1 <= len(keys) <= KEYS_MAX:
        raise ConfigError(f"{file_name}: {len(keys)} keys; an issuer has 1 to {KEYS_MAX}")
    return keys


def _keys_of_set(text: str) -> list[IssuerKey]:
    keys: list[IssuerKey] = []
    for entry in json.loads(text)["keys"]:
        if entry.get("use", "sig") != "sig":
            continue  # issuers may publish keys for encryption beside
        if entry.get("kty") not in ("RSA", "EC") or "d" in entry:
            message = "keys must be public ones of type RSA or EC"
            raise ValueError(message)
        keys.append(_issuer_key(jwt.PyJWK(entry).key, entry.get("kid"), entry.get("alg")))
    return keys


def _keys_of_pem(text: str) -> list[IssuerKey]:
    keys: list[IssuerKey] = []
    for part in text.split("-----BEGIN ")[1:]:
        block = ("-----BEGIN " + part).encode()
        if part.startswith("CERTIFICATE"):
            keys.append(_issuer_key(x509.load_pem_x509_certificate(block).public_key()))
        else:
            keys.append(_issuer_key(load_pem_public_key(block)))
    return keys


def _issuer_key(key: object, key_id: str | None = None, algorithm: str | None = None) -> IssuerKey:
    algorithms: tuple[str, ...] = ()
    if isinstance(key, rsa.RSAPublicKey) and key.key_size >= RSA_BITS_MIN:
        algorithms = ("RS256", "PS256")
    elif isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        algorithms = ("ES256",)
    if algorithm is not None:
        algorithms = tuple(one for one in algorithms if one == algorithm)
    if not algorithms:
        message = f"a key is none for RS256, PS256 ({RSA_BITS_MIN} bits and more) or ES256"
        raise ValueError(message)
    assert isinstance(key, rsa.RSAPublicKey | ec.EllipticCurvePublicKey)
    return IssuerKey(key_id, key, algorithms)
