"""No log line has a secret in it: whole, cut short, in a URL, in a traceback, by its form."""

import logging
from urllib.parse import quote

import pytest

from twinbus.telemetry.logs import SecretsFilter
from twinbus.telemetry.secrets import HIDDEN, SHOWN_MAX, KnownSecrets

KEY = "wQ3/9+Zr0pXo7Kd2mVbT5yHn1LcGfEaS8uIjRkM4x6A="
OTHER = "pass-phrase-of-another-rule"
SIGNATURE = "Zk9hQyt2b3ZxU2p3c0ZpS2x6d1F4T2JtR2hVdEprQ2E="
TOKEN = f"SharedAccessSignature sr=sb%3A%2F%2Fx&sig={quote(SIGNATURE, safe='')}&se=99&skn=Root"


@pytest.fixture
def secrets() -> KnownSecrets:
    known = KnownSecrets()
    known.add([KEY, OTHER])
    return known


@pytest.mark.parametrize(
    "line",
    [
        KEY,
        f"before {KEY} after",
        f"{KEY}{KEY}",
        quote(KEY, safe=""),
        f"cut short: {KEY[:20]}",
        f"cut short: {KEY[:12]}'",
        f"b'\\x00Root\\x00{KEY}'",
        f"Endpoint=sb://x;SharedAccessKeyName=Root;SharedAccessKey={KEY};EntityPath=q",
        f"{OTHER} and {KEY}",
    ],
)
def test_known_keys(secrets: KnownSecrets, line: str) -> None:
    hidden = secrets.hide(line)
    assert HIDDEN in hidden
    for place in range(len(KEY) - 12):
        assert KEY[: 12 + place] not in hidden
    assert OTHER not in hidden


def test_the_rest_of_a_line_stays(secrets: KnownSecrets) -> None:
    assert secrets.hide(f"a {KEY} b {OTHER}.") == f"a {HIDDEN} b {HIDDEN}."
    plain = "store 0 is open at broker 1: 12 entities; passes, pass-phrases"
    assert secrets.hide(plain) == plain


@pytest.mark.parametrize(
    "line",
    [
        TOKEN,
        f"cut short {TOKEN[:60]}",
        "SharedAccessKey=unknown-key;",
        "Authorization: Bearer abcdefgh.ijkl",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl",
        "password=guess",
    ],
)
def test_what_has_the_form_of_a_secret(line: str) -> None:
    hidden = KnownSecrets().hide(line)
    assert HIDDEN in hidden
    for part in (SIGNATURE[:8], "unknown-key", "abcdefgh", "c2lnbmF0", "guess"):
        assert part not in hidden


def test_what_a_client_has_shown() -> None:
    secrets = KnownSecrets()
    secrets.show(TOKEN)
    secrets.show("a-wrong-password")
    assert secrets.hide(f"{SIGNATURE} a-wrong-password") == f"{HIDDEN} {HIDDEN}"
    assert secrets.all_keys() == []


def test_a_client_cannot_blot_out_words() -> None:
    secrets = KnownSecrets()
    for word in ("refused", "connection closed", "WARNING"):
        secrets.show(word)
    assert secrets.hide("WARNING connection closed: refused") == (
        "WARNING connection closed: refused"
    )


def test_only_the_newest_that_were_shown_are_known(secrets: KnownSecrets) -> None:
    for number in range(SHOWN_MAX + 1):
        secrets.show(f"{number:08}-password")
    assert secrets.hide("00000000-password") == "00000000-password"
    assert secrets.hide("00000001-password") == HIDDEN
    assert secrets.hide(KEY) == HIDDEN


def test_of_new_keys_others_are_told() -> None:
    told: list[list[str]] = []
    secrets = KnownSecrets()
    secrets.on_added = told.append
    secrets.add([KEY])
    secrets.add([KEY, OTHER])
    secrets.show("shown-by-a-client")
    assert told == [[KEY], [OTHER]]


def test_a_key_too_short_to_be_one_hides_nothing() -> None:
    secrets = KnownSecrets()
    secrets.add(["ab"])
    assert secrets.hide("about abuse") == "about abuse"


def test_records_of_whoever_logs(secrets: KnownSecrets) -> None:
    hides = SecretsFilter(secrets)
    try:
        raise ValueError(f"cannot use {KEY}")
    except ValueError as error:
        caught = (type(error), error, error.__traceback__)
    record = logging.LogRecord("x", logging.ERROR, "x", 1, "key %s", (KEY,), caught)
    record.stack_info = f"Stack: {KEY}"
    record.__dict__["entity"] = KEY
    assert hides.filter(record)
    assert hides.filter(record)  # of a second handler
    shown = logging.Formatter().format(record)
    assert f"key {HIDDEN}" in shown
    assert f"ValueError: cannot use {HIDDEN}" in shown
    assert KEY[:12] not in shown
    assert record.__dict__["entity"] == HIDDEN


def test_arguments_that_do_not_fit_are_shown_as_they_are(secrets: KnownSecrets) -> None:
    record = logging.LogRecord("x", logging.ERROR, "x", 1, "%d %d", (KEY,), None)
    assert SecretsFilter(secrets).filter(record)
    assert record.getMessage() == f"%d %d ('{HIDDEN}',)"
