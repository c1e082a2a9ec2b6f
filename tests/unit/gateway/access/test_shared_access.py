"""Authorization rules and shared access signatures."""

import base64
import hashlib
import hmac
from urllib.parse import quote, quote_plus, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.client.sas import make_sas_token
from twinbus.errors import Unauthorized
from twinbus.gateway.access.shared_access import (
    LISTEN,
    MANAGE,
    NEVER_S,
    RIGHTS,
    SEND,
    AuthorizationRule,
    Authorizer,
    Grant,
    Secret,
)
from twinbus.limits import SAS_TOKEN_CHARS_MAX

pytestmark = pytest.mark.proves("M-12")

NOW_S = 1_800_000_000
LATER_S = NOW_S + 3600
KEY = "primary+key/with=marks"
SPARE_KEY = "the spare key"
URI = "sb://localhost:5672/orders"

RULES = [
    AuthorizationRule("Root", [MANAGE], KEY, SPARE_KEY),
    AuthorizationRule("sender", [SEND], "send one", "send two"),
    AuthorizationRule("receiver", [LISTEN], "listen one", "listen two"),
]
AUTHORIZER = Authorizer(RULES)


def token(uri: str = URI, rule: str = "Root", key: str = KEY, expires_s: int = LATER_S) -> str:
    return make_sas_token(uri, rule, key, expires_s)


def refusal(text: str, audience: str = URI, now_s: int = NOW_S) -> str:
    with pytest.raises(Unauthorized) as caught:
        AUTHORIZER.check_token(text, audience, now_s)
    return str(caught.value)


def signed(resource: str, expiry: str, key: str = KEY) -> str:
    """The signature over exactly these two texts, ready for a token."""
    digest = hmac.new(key.encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256).digest()
    return quote(base64.b64encode(digest), safe="")


class TestSignature:
    @pytest.mark.proves("M-12")
    def test_either_key_opens(self) -> None:
        for key in (KEY, SPARE_KEY):
            grant = AUTHORIZER.check_token(token(key=key), URI, NOW_S)
            assert grant.rights == RIGHTS
            assert grant.scope == "orders"
            assert grant.expires_s == LATER_S

    @pytest.mark.proves("M-13")
    def test_token_is_what_the_official_sdk_writes(self) -> None:
        from azure.servicebus._pyamqp.utils import generate_sas_token

        theirs = generate_sas_token(URI, "Root", KEY, LATER_S)  # type: ignore[no-untyped-call]
        assert theirs == token()

    def test_lower_case_percent_encoding_is_signed_as_it_stands(self) -> None:  # .NET writes %3a
        resource = quote_plus(URI).replace("%3A", "%3a").replace("%2F", "%2f")
        sig = signed(resource, str(LATER_S)).replace("%2B", "%2b").replace("%3D", "%3d")
        text = f"SharedAccessSignature sr={resource}&sig={sig}&se={LATER_S}&skn=Root"
        assert AUTHORIZER.check_token(text, URI, NOW_S).scope == "orders"

    def test_order_of_fields_is_free(self) -> None:
        scheme, fields = token().split(" ")
        text = f"{scheme} {'&'.join(reversed(fields.split('&')))}"
        assert AUTHORIZER.check_token(text, URI, NOW_S).rights == RIGHTS

    @pytest.mark.proves("M-12")
    def test_every_single_byte_tamper_is_refused(self) -> None:
        good = token(expires_s=LATER_S)
        meaning = unquote(good)
        for position, character in enumerate(good):
            for other in {chr(ord(character) ^ 1), character.swapcase(), "0", "A", "&", "=", "%"}:
                bad = good[:position] + other + good[position + 1 :]
                if bad == good:
                    continue
                # %2b and %2B are the same signature; in the signed part even that is refused.
                if unquote(bad) == meaning and "sr=" not in good[position:]:
                    continue
                refusal(bad)

    def test_every_dropped_and_doubled_byte_is_refused(self) -> None:
        good = token()
        for position in range(len(good)):
            refusal(good[:position] + good[position + 1 :])
            refusal(good[: position + 1] + good[position:])

    def test_unused_bits_of_the_signature_must_be_zero(self) -> None:
        good = token()
        start = good.index("&sig=") + 5
        signature = unquote(good[start : good.index("&se=")])
        alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
        twin = alphabet[alphabet.index(signature[-2]) + 1]
        same_bytes = signature[:-2] + twin + "="
        assert base64.b64decode(same_bytes) == base64.b64decode(signature)
        refusal(good.replace(quote_plus(signature), quote_plus(same_bytes)))

    @pytest.mark.proves("M-12")
    def test_unknown_rule_and_wrong_key_are_told_the_same(self) -> None:
        assert refusal(token(rule="nobody")) == refusal(token(key="wrong"))

    def test_stand_in_for_an_unknown_rule_opens_nothing(self) -> None:
        refusal(token(rule="decoy", key="decoy primary"))
        refusal(token(rule="nobody", key="decoy primary"))
        with pytest.raises(Unauthorized):
            AUTHORIZER.check_plain("decoy", "decoy primary")

    def test_rule_names_are_exact(self) -> None:
        refusal(token(rule="root"))

    def test_key_of_another_rule_is_refused(self) -> None:
        refusal(token(rule="sender", key=KEY))


class TestExpiry:
    def test_valid_until_the_second_before(self) -> None:
        assert AUTHORIZER.check_token(token(), URI, LATER_S - 1).expires_s == LATER_S

    @pytest.mark.proves("M-12")
    def test_expired_on_the_second(self) -> None:
        assert "expired" in refusal(token(), now_s=LATER_S)

    def test_forger_is_not_told_about_expiry_or_scope(self) -> None:
        forged = token(key="wrong", expires_s=1)
        assert refusal(forged) == refusal(token(key="wrong"))
        assert refusal(forged, audience="sb://x/other") == refusal(forged)

    @pytest.mark.proves("M-12")
    def test_grant_ends_with_its_token(self) -> None:  # live links lose it too
        grant = AUTHORIZER.check_token(token(), URI, NOW_S)
        assert grant.allows(SEND, "orders", LATER_S - 1)
        assert not grant.allows(SEND, "orders", LATER_S)


class TestScope:
    @pytest.mark.proves("M-12")
    @pytest.mark.parametrize(
        "resource, audience",
        [
            ("sb://localhost/orders", "sb://localhost/orders"),
            ("sb://localhost/orders", "amqps://127.0.0.1:5671/orders"),
            ("https://LOCALHOST/Orders/", "sb://localhost/oRDERS"),
            ("sb://localhost/orders", "sb://localhost/orders/"),
            ("sb://localhost/orders", "sb://localhost/orders/$DeadLetterQueue"),
            ("sb://localhost/orders", "sb://localhost/orders/$management"),
            ("sb://localhost/orders", "orders/$management"),
            ("sb://localhost/orders", "sb://localhost//orders"),
            ("https://localhost:5672", "sb://localhost:5672/orders"),
            ("https://localhost:5672/", "sb://localhost:5672/a/b/c"),
            ("https://localhost", "sb://localhost"),
            ("https://localhost", ""),
            ("sb://localhost/a/b", "https://localhost/a%2Fb"),
            ("sb://localhost/a%2Fb", "sb://localhost/a/b/$DeadLetterQueue"),
            ("sb://localhost/caf%C3%A9", "sb://localhost/café"),
            ("https://localhost:5672/orders?api-version=2021-05", "sb://localhost/orders"),
            ("localhost:5672", "sb://localhost/orders"),  # both as the Node SDK signs
        ],
    )
    def test_covered(self, resource: str, audience: str) -> None:
        assert AUTHORIZER.check_token(token(resource), audience, NOW_S).rights == RIGHTS

    @pytest.mark.proves("M-12")
    @pytest.mark.parametrize(
        "resource, audience",
        [
            ("sb://localhost/orders", "sb://localhost/orders2"),
            ("sb://localhost/orders", "sb://localhost/order"),
            ("sb://localhost/orders", "sb://localhost/"),
            ("sb://localhost/orders", ""),
            ("sb://localhost/orders", "sb://localhost/x/orders"),
            ("sb://localhost/orders", "sb://orders"),
            ("sb://localhost/orders/$DeadLetterQueue", "sb://localhost/orders"),
            ("sb://localhost/a/b", "sb://localhost/a"),
            ("sb://localhost/orders", "sb://localhost/orders?x"),
            ("sb://localhost/orders?x", "sb://localhost/orders2"),
            ("sb://localhost/orders#x", "sb://localhost/orders"),
            ("localhost:5672/orders", "sb://localhost/orders2"),
            ("sb://localhost/orders", "sb://localhost/orders%252F.."),
            ("sb://", "sb://localhost/orders"),
            ("orders", "sb://localhost/orders"),
            ("://orders", "sb://localhost/orders"),
            ("sb://localhost/%FF", "sb://localhost/%FF"),
        ],
    )
    def test_not_covered(self, resource: str, audience: str) -> None:
        refusal(token(resource), audience)

    def test_grant_is_for_the_audience_not_for_all_the_token_could(self) -> None:
        grant = AUTHORIZER.check_token(token("https://localhost"), URI, NOW_S)
        assert grant.allows(LISTEN, "Orders/$DeadLetterQueue", NOW_S)
        assert not grant.allows(LISTEN, "orders2", NOW_S)
        assert not grant.allows(LISTEN, "", NOW_S)


class TestRights:
    @pytest.mark.proves("M-12")
    @pytest.mark.parametrize(
        "rule, key, rights",
        [
            ("Root", KEY, {MANAGE, SEND, LISTEN}),
            ("sender", "send two", {SEND}),
            ("receiver", "listen one", {LISTEN}),
        ],
    )
    def test_rights_of_each_rule(self, rule: str, key: str, rights: set[str]) -> None:
        grants = [
            AUTHORIZER.check_token(token(rule=rule, key=key), URI, NOW_S),
            AUTHORIZER.check_plain(rule, key),
        ]
        for grant in grants:
            for right in RIGHTS:
                assert grant.allows(right, "orders", NOW_S) == (right in rights)

    def test_unknown_right_is_never_allowed(self) -> None:
        assert not Grant(RIGHTS, "", NEVER_S).allows("Fly", "orders", NOW_S)

    @pytest.mark.parametrize(
        "name, rights, key", [("", [SEND], "k"), ("n", [], "k"), ("n", ["x"], "k")]
    )
    def test_senseless_rule(self, name: str, rights: list[str], key: str) -> None:
        with pytest.raises(ValueError, match="authorization rule"):
            AuthorizationRule(name, rights, key, key)

    def test_empty_key(self) -> None:
        for keys in (("", "k"), ("k", "")):
            with pytest.raises(ValueError, match="empty key"):
                AuthorizationRule("n", [SEND], *keys)

    def test_two_rules_of_one_name(self) -> None:
        with pytest.raises(ValueError, match="two authorization rules"):
            Authorizer([RULES[0], RULES[0]])


class TestPlain:
    @pytest.mark.proves("M-12")
    def test_either_key_opens_the_namespace(self) -> None:
        for key in (KEY, SPARE_KEY):
            grant = AUTHORIZER.check_plain("Root", key)
            assert grant.allows(MANAGE, "anything", NEVER_S - 1)

    @pytest.mark.parametrize(
        "username, password",
        [("Root", ""), ("Root", KEY + "x"), ("", KEY), ("nobody", KEY), ("sender", KEY)],
    )
    def test_wrong_names_and_passwords_are_refused(self, username: str, password: str) -> None:
        with pytest.raises(Unauthorized):
            AUTHORIZER.check_plain(username, password)

    @given(st.text(), st.text())
    def test_any_text_is_refused_and_nothing_else(self, username: str, password: str) -> None:
        with pytest.raises(Unauthorized):
            AUTHORIZER.check_plain(username, password)


GOOD = dict(part.split("=", 1) for part in token().split(" ")[1].split("&"))


def written(**changes: str | None) -> str:
    fields = {**GOOD, **changes}
    parts = [f"{name}={value}" for name, value in fields.items() if value is not None]
    return "SharedAccessSignature " + "&".join(parts)


class TestMalformed:
    @pytest.mark.proves("M-12")
    @pytest.mark.parametrize(
        "text",
        [
            "",
            "SharedAccessSignature",
            "SharedAccessSignature ",
            "sharedaccesssignature " + token().split(" ")[1],
            "Bearer " + token().split(" ")[1],
            " " + token(),
            token() + "&",
            token() + "&sr=x",
            token() + f"&se={LATER_S}",
            token() + "&x=y",
            token().replace("&", "&&", 1),
            token().replace("&", ";"),
            token() + "é",
            token() + "\n",
            written(sr=None),
            written(sig=None),
            written(se=None),
            written(skn=None),
            written(sr=""),
            written(sig="%00"),
            written(sig="%FF"),
            written(sig="%C3%A9"),
            written(sig="AAAA"),
            written(skn="%FF"),
            *(written(se=se) for se in ("", "-1", "+1", "1.5", "1e9", " 1", "0x7f", "9" * 19)),
            "SharedAccessSignature " + "a" * SAS_TOKEN_CHARS_MAX,
        ],
    )
    def test_malformed_tokens_are_refused(self, text: str) -> None:
        assert refusal(text) in ("The token is malformed.", "The credentials are not valid.")

    def test_a_valid_token_beyond_the_length_limit_is_refused(self) -> None:
        path = "x" * SAS_TOKEN_CHARS_MAX
        assert "malformed" in refusal(token(f"sb://h/{path}"), f"sb://h/{path}")

    def test_unicode_digits_are_no_expiry(self) -> None:
        resource, expiry = GOOD["sr"], "١٨٠٠٠٠٣٦٠٠"
        refusal(written(se=expiry, sig=signed(resource, expiry)))

    @given(st.text(max_size=200), st.text(max_size=40))
    def test_any_text(self, text: str, audience: str) -> None:
        refusal(text, audience)
        refusal("SharedAccessSignature " + text, audience)

    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["sr", "sig", "se", "skn", "", "SR", "x"]),
                st.one_of(
                    st.sampled_from([*GOOD.values(), "%", "%zz", "%ff", "=", "0", "-1"]),
                    st.text(max_size=20),
                ),
            ),
            max_size=6,
        )
    )
    def test_any_fields(self, fields: list[tuple[str, str]]) -> None:
        text = "SharedAccessSignature " + "&".join(f"{name}={value}" for name, value in fields)
        given_fields = dict(fields)
        if len(fields) == len(GOOD) and given_fields == GOOD:
            assert AUTHORIZER.check_token(text, URI, NOW_S).rights == RIGHTS
        else:
            refusal(text)

    @given(st.text(max_size=60))
    def test_any_audience_gives_a_grant_or_a_refusal(self, audience: str) -> None:
        refused = False
        try:
            grant = AUTHORIZER.check_token(token("sb://h/orders"), audience, NOW_S)
        except Unauthorized:
            refused = True
        assert refused or grant.scope.split("/")[0] == "orders"


class TestSecrets:
    def test_a_secret_shows_only_that_it_is_there(self) -> None:
        secret = Secret(KEY)
        shown = [repr(secret), str(secret), f"{secret}", f"{secret!r:>40}", repr([secret])]
        shown += [repr(RULES[0]), repr({"key": RULES[0].primary_key})]
        assert not [text for text in shown if KEY in text]
        assert secret.reveal() == KEY

    def test_equality_is_by_text(self) -> None:
        assert Secret("a") == Secret("a")
        assert hash(Secret("a")) == hash(Secret("a"))
        assert Secret("a") != Secret("b")
        assert Secret("a") != "a"

    def test_no_refusal_and_no_grant_shows_a_key_or_a_signature(self) -> None:
        texts = [
            refusal(token(key="wrong")),
            refusal(token(), now_s=LATER_S),
            refusal(token(), "sb://h/elsewhere"),
            refusal(written(sig="AAAA")),
            repr(AUTHORIZER.check_token(token(), URI, NOW_S)),
        ]
        signature = unquote(GOOD["sig"])
        for text in texts:
            assert KEY not in text
            assert signature not in text
            assert GOOD["sig"] not in text
