"""JSON web tokens of a configured issuer."""

import base64
import datetime as dt
import json
from typing import Any

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, hmac, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from twinbus.errors import ConfigError, Unauthorized
from twinbus.gateway.access.shared_access import LISTEN, MANAGE, RIGHTS, SEND
from twinbus.gateway.access.web_tokens import CLOCK_SKEW_S, KEYS_MAX, ROLES, WebTokens, read_keys
from twinbus.limits import JWT_CHARS_MAX

pytestmark = [pytest.mark.proves("M-12"), pytest.mark.feature("access.jwt")]

NOW_S = 1_800_000_000
LATER_S = NOW_S + 3600
ISSUER = "https://issuer.example/v2.0"
AUDIENCE = "https://servicebus.azure.net"

RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
STRANGER = rsa.generate_private_key(65537, 2048)


def pem(key: Any) -> str:
    encoded: bytes = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return encoded.decode()


def web_key(key: Any, **fields: str) -> dict[str, Any]:
    algorithm: Any = jwt.algorithms.RSAAlgorithm
    if isinstance(key, ec.EllipticCurvePrivateKey):
        algorithm = jwt.algorithms.ECAlgorithm
    return {**json.loads(algorithm.to_jwk(key.public_key())), **fields}


KEY_SET = json.dumps({"keys": [web_key(RSA_KEY, kid="rsa"), web_key(EC_KEY, kid="ec")]})
CLAIMS = {"iss": ISSUER, "aud": AUDIENCE, "exp": LATER_S, "roles": ["Azure Service Bus Data Owner"]}
TOKENS = WebTokens(ISSUER, [AUDIENCE, "api://bus"], read_keys(KEY_SET, "keys.json"))


def token(
    claims: dict[str, Any] | None = None,
    key: Any = RSA_KEY,
    algorithm: str = "RS256",
    headers: dict[str, Any] | None = None,
    **changes: Any,
) -> str:
    made = {**(claims if claims is not None else CLAIMS), **changes}
    made = {name: value for name, value in made.items() if value is not None}
    return jwt.encode(made, key, algorithm, headers=headers)


def refusal(text: str, tokens: WebTokens = TOKENS, now_s: int = NOW_S) -> str:
    with pytest.raises(Unauthorized) as caught:
        tokens.check(text, now_s)
    return str(caught.value)


class TestSignature:
    @pytest.mark.proves("M-12")
    @pytest.mark.parametrize(
        "key, algorithm", [(RSA_KEY, "RS256"), (RSA_KEY, "PS256"), (EC_KEY, "ES256")]
    )
    @pytest.mark.parametrize("key_id", [None, "right"])
    def test_each_algorithm(self, key: Any, algorithm: str, key_id: str | None) -> None:
        names = {"RS256": "rsa", "PS256": "rsa", "ES256": "ec"}
        headers = None if key_id is None else {"kid": names[algorithm]}
        text = token(key=key, algorithm=algorithm, headers=headers)
        assert TOKENS.check(text, NOW_S) == (RIGHTS, LATER_S)

    def test_keys_by_pem(self) -> None:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "issuer")])
        now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
        certificate = (
            x509.CertificateBuilder(name, name, EC_KEY.public_key(), 1, now, now)
            .sign(EC_KEY, hashes.SHA256())
            .public_bytes(serialization.Encoding.PEM)
        )
        tokens = WebTokens(
            ISSUER, [AUDIENCE], read_keys(pem(RSA_KEY) + certificate.decode(), "keys.pem")
        )
        for key, algorithm in ((RSA_KEY, "RS256"), (EC_KEY, "ES256")):
            text = token(key=key, algorithm=algorithm, headers={"kid": "any"})
            assert tokens.check(text, NOW_S) == (RIGHTS, LATER_S)

    @pytest.mark.proves("M-12")
    def test_another_key(self) -> None:
        assert refusal(token(key=STRANGER)) == "The credentials are not valid."

    def test_another_key_id(self) -> None:
        refusal(token(headers={"kid": "ec"}))
        refusal(token(headers={"kid": "elsewhere"}))

    @pytest.mark.proves("M-12")
    def test_no_signature(self) -> None:
        refusal(token(key=None, algorithm="none"))
        head, body, _ = token().split(".")
        refusal(f"{head}.{body}.")

    @pytest.mark.proves("M-12")
    def test_public_key_as_a_secret(self) -> None:
        """The classic: the key everybody has, taken for one that nobody else has."""
        for secret in (pem(RSA_KEY).encode(), pem(RSA_KEY).strip().encode(), KEY_SET.encode()):
            head = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').rstrip(b"=")
            body = token().split(".")[1].encode()
            code = hmac.HMAC(secret, hashes.SHA256())
            code.update(head + b"." + body)
            signature = base64.urlsafe_b64encode(code.finalize()).rstrip(b"=")
            refusal((head + b"." + body + b"." + signature).decode())

    @pytest.mark.parametrize("algorithm", ["RS384", "RS512", "PS384", "PS512"])
    def test_algorithms_beyond_the_three(self, algorithm: str) -> None:
        refusal(token(algorithm=algorithm))

    def test_algorithm_that_the_key_is_not_for(self) -> None:
        text = json.dumps({"keys": [web_key(RSA_KEY, alg="PS256", use="sig")]})
        tokens = WebTokens(ISSUER, [AUDIENCE], read_keys(text, "f"))
        assert tokens.check(token(algorithm="PS256"), NOW_S) == (RIGHTS, LATER_S)
        refusal(token(algorithm="RS256"), tokens)

    @pytest.mark.proves("M-12")
    def test_every_changed_byte(self) -> None:
        good = token()
        for at in range(0, len(good), 7):
            for other in ("A", "z", "."):
                if good[at] != other:
                    refusal(good[:at] + other + good[at + 1 :])

    def test_key_in_the_token_itself(self) -> None:  # a token names no key but by its id
        headers = {"jwk": web_key(STRANGER), "jku": "https://evil.example", "x5u": "https://e"}
        refusal(token(key=STRANGER, headers=headers))


class TestClaims:
    @pytest.mark.proves("M-12")
    @pytest.mark.parametrize(
        "changes",
        [
            {"iss": "https://other.example"},
            {"iss": None},
            {"iss": 7},
            {"aud": "https://other.example"},
            {"aud": None},
            {"aud": []},
            {"aud": [7, None]},
            {"aud": {"https://servicebus.azure.net": 1}},
            {"exp": NOW_S},
            {"exp": None},
            {"exp": True},
            {"exp": str(LATER_S)},
            {"exp": float("inf")},
            {"exp": float("nan")},
            {"nbf": NOW_S + CLOCK_SKEW_S + 1},
            {"nbf": "now"},
        ],
        ids=str,
    )
    def test_claims_that_do_not_fit_are_refused(self, changes: dict[str, Any]) -> None:
        made = {**CLAIMS, **changes}
        refusal(jws({name: value for name, value in made.items() if value is not None}))

    @pytest.mark.parametrize(
        "changes",
        [
            {"aud": [AUDIENCE]},
            {"aud": ["other", "api://bus"]},
            {"exp": float(LATER_S)},
            {"nbf": NOW_S + CLOCK_SKEW_S},
            {"iat": LATER_S},
            {"sub": 7, "jti": 7},
        ],
        ids=str,
    )
    def test_accepted(self, changes: dict[str, Any]) -> None:
        assert TOKENS.check(jws({**CLAIMS, **changes}), NOW_S) == (RIGHTS, LATER_S)

    def test_valid_until_the_second_before(self) -> None:
        assert TOKENS.check(token(), LATER_S - 1)
        assert "expired" in refusal(token(), now_s=LATER_S)

    def test_leeway_is_for_the_expiry_alone(self) -> None:
        assert TOKENS.check(token(), LATER_S + 119, leeway_s=120)
        with pytest.raises(Unauthorized, match="expired"):
            TOKENS.check(token(), LATER_S + 120, leeway_s=120)
        assert TOKENS.check(token(nbf=NOW_S), NOW_S, leeway_s=120)

    def test_stranger_is_not_told_what_else_is_wrong(self) -> None:
        forged = token(key=STRANGER, exp=1, iss="x", aud="y", roles=[])
        assert refusal(forged) == refusal(token(key=STRANGER))


class TestRoles:
    @pytest.mark.proves("M-12")
    @pytest.mark.parametrize("role, right", ROLES.items())
    def test_each(self, role: str, right: str) -> None:
        expected = RIGHTS if right == MANAGE else {right}
        for spelled in (role, role.title(), role.upper()):
            assert TOKENS.check(token(roles=[spelled]), NOW_S)[0] == expected
            assert TOKENS.check(token(roles=spelled), NOW_S)[0] == expected

    def test_several(self) -> None:
        assert TOKENS.check(token(roles=["Sender", "x", "Receiver", 7]), NOW_S)[0] == {SEND, LISTEN}

    @pytest.mark.parametrize("roles", [[], ["Reader"], "", None, 7, {"Sender": 1}, [["Sender"]]])
    def test_none_that_counts(self, roles: object) -> None:
        assert "no role" in refusal(token(roles=roles))


def jws(claims: dict[str, Any]) -> str:
    """Claims of any kind, which PyJWT would refuse to write as a web token."""
    return jwt.api_jws.encode(json.dumps(claims).encode(), RSA_KEY, "RS256")


class TestMalformed:
    @pytest.mark.parametrize(
        "text", ["eyJ", "eyJ..", "eyJ.eyJ.eyJ", "eyJhbGciOiJSUzI1NiJ9", "eyJhbGciOiJSUzI1NiJ9.é.x"]
    )
    def test_what_is_no_web_token_is_refused(self, text: str) -> None:
        refusal(text)

    @pytest.mark.parametrize("body", [b"[]", b"7", b"null", b"{", b"\xff", b"[" * 9_000])
    def test_body_that_is_no_object(self, body: bytes) -> None:
        refusal(jwt.api_jws.encode(body, RSA_KEY, "RS256"))

    def test_header_of_brackets(self) -> None:
        head = base64.urlsafe_b64encode(b'{"a":' + b"[" * 9_000).decode().rstrip("=")
        refusal(f"{head}.e30.AAAA")

    def test_too_long(self) -> None:
        assert refusal(token(filler="x" * JWT_CHARS_MAX)) == "The token is malformed."

    @given(st.text(max_size=100))
    def test_any_text(self, text: str) -> None:
        refusal(text)
        refusal("eyJ" + text)

    @given(
        st.dictionaries(
            st.sampled_from(["iss", "aud", "exp", "nbf", "roles", "sub"]),
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
        )
    )
    def test_any_claims(self, claims: dict[str, Any]) -> None:
        refusal(jws({**CLAIMS, **claims, "iss": claims.get("iss")}))


def key_set(*keys: Any) -> str:
    return json.dumps({"keys": keys})


NO_KEYS = {
    "empty": "",
    "no set": "[]",
    "number": "7",
    "no keys": "{}",
    "no key": key_set(),
    "key without a type": key_set({}),
    "key that is none": key_set(7),
    "secret": key_set({"kty": "oct", "k": "c2VjcmV0"}),
    "for encryption": key_set(web_key(RSA_KEY, use="enc")),
    "other algorithm": key_set(web_key(RSA_KEY, alg="RS512")),
    "short": key_set(web_key(rsa.generate_private_key(65537, 1024))),
    "other curve": key_set(web_key(ec.generate_private_key(ec.SECP384R1()))),
    "too many": key_set(*[web_key(EC_KEY)] * (KEYS_MAX + 1)),
    "private": key_set(json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(RSA_KEY))),
    "other kind, PEM": pem(ed25519.Ed25519PrivateKey.generate()),
    "damaged PEM": "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
    "private PEM": RSA_KEY.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode(),
}


class TestKeys:
    @pytest.mark.parametrize("case", NO_KEYS)
    def test_files_without_usable_public_keys(self, case: str) -> None:
        with pytest.raises(ConfigError, match=r"keys\.json"):
            read_keys(NO_KEYS[case], "keys.json")

    def test_other_keys_beside(self) -> None:
        both = [web_key(STRANGER, use="enc"), web_key(EC_KEY, use="sig")]
        [found] = read_keys(json.dumps({"keys": both}), "f")
        assert found.algorithms == ("ES256",)
