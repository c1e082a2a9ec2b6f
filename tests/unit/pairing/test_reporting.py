"""What a pair reports, and to whom it may."""

import datetime as dt
import json

import pytest

from twinbus.gateway.access.shared_access import SEND, AuthorizationRule, Authorizer, SasToken
from twinbus.limits import PAIR_REPORT_BYTES_MAX
from twinbus.pairing import SendAvailabilityPairedNamespaceOptions
from twinbus.pairing.blocking._posting import posts_of
from twinbus.pairing.events import BacklogQueueStatus, EntityStatus, PairingStatus, State
from twinbus.pairing.reporting import Destination, destination_of, is_twinbus, report_of
from twinbus.server.http.page.pair_reports import read_report

pytestmark = pytest.mark.feature("page.pairs")

NOW = dt.datetime(2026, 11, 16, 12, 0, 0, tzinfo=dt.UTC)
NOW_S = int(NOW.timestamp())
KEYED = "Endpoint=sb://h.example/;SharedAccessKeyName=worker;SharedAccessKey=a=b="


def entity(name: str, state: State = State.HEALTHY, for_s: float | None = None) -> EntityStatus:
    error = OSError("x" * 1_000) if for_s is not None else None
    return EntityStatus(name, state, False, None, for_s, None, error, None, 2, 3, 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (KEYED, Destination("h.example", 443, True, "worker", "a=b=")),
        (
            f" {KEYED.replace('h.example', 'localhost:5672')} ; UseDevelopmentEmulator=TRUE;",
            Destination("localhost", 5672, False, "worker", "a=b="),
        ),
        ("Endpoint=sb://h/;SharedAccessSignature=SharedAccessSignature sr=x", None),
        ("SharedAccessKeyName=worker;SharedAccessKey=a", None),
        ("nothing", None),
    ],
)
def test_who_may_be_told(text: str, expected: Destination | None) -> None:
    assert destination_of(text) == expected


def test_pairs_without_keys_or_with_the_option_off_tell_nobody() -> None:
    make = SendAvailabilityPairedNamespaceOptions.from_connection_string
    assert len(posts_of(make(KEYED), KEYED)) == 2
    assert len(posts_of(make(KEYED), object())) == 1
    assert posts_of(make(KEYED, report=False), KEYED) == []
    assert posts_of(SendAvailabilityPairedNamespaceOptions(object(), object()), object()) == []


def test_the_token_is_one_that_a_namespace_takes() -> None:
    token = SasToken(Destination("h", 1, False, "worker", "a=b=").token(NOW_S))
    authorizer = Authorizer([AuthorizationRule("worker", [SEND], "a=b=", "spare")])
    signer = authorizer.find_signer(token, "https://h/")
    assert signer is not None
    grant = token.grant(signer, "https://h/", NOW_S)
    assert grant.allows(SEND, "", NOW_S)
    assert not grant.allows(SEND, "", NOW_S + 301)


@pytest.mark.parametrize(
    ("health", "expected"),
    [
        (b'{"status": "healthy", "message": "twinbus is ready.", "version": "0.1.0"}', True),
        (b'{"status": "healthy", "message": "Service is healthy."}', False),
        (b'{"message": "twinbus is ready."}', False),
        (b"<html>", False),
        (b"[1]", False),
        (b"", False),
    ],
)
def test_who_is_a_twinbus(health: bytes, expected: bool) -> None:
    assert is_twinbus(health) == expected


def test_a_report_is_what_a_server_takes() -> None:
    entities = {"a": entity("a"), "b": entity("b", State.FAILED_OVER, 60.0)}
    strangers = {"other": 5, "": 4}
    queue = BacklogQueueStatus("p/x-servicebus-transfer/0", True, None, 1, 2, 3, 9, strangers)
    status = PairingStatus("p.example", "s.example", entities, {"q": queue}, True, "")
    found = read_report(report_of(status, "me", NOW))
    assert (found["primary"], found["secondary"], found["client"]) == (
        "p.example",
        "s.example",
        "me",
    )
    assert found["syphon_running"]
    over, healthy = found["entities"]
    assert (healthy["state"], healthy["since"], healthy["last_error"]) == ("healthy", None, None)
    assert (over["state"], over["since"]) == ("failed over", "2026-11-16T11:59:00.000Z")
    assert over["last_error"].startswith("OSError: xxx")
    assert found["backlog_queues"] == [
        {
            "queue": queue.queue,
            "in_rotation": True,
            "moved": 1,
            "dead_lettered": 2,
            "held": 3,
            "strangers": 9,
            "strangers_of": [{"primary": "other", "count": 5}, {"primary": "", "count": 4}],
        }
    ]


def test_the_largest_report_fits_and_what_is_down_stays_in_it() -> None:
    names = [f"{number}{'€' * 250}" for number in range(1_000)]
    queues = {name: BacklogQueueStatus(name, True, None, 1, 2, 3) for name in names}
    entities = {name: entity(name) for name in names}
    entities["down"] = entity("down", State.FAILED_OVER, 1.0)
    report = report_of(PairingStatus("p", "s", entities, queues), "me", NOW)
    assert len(report) <= PAIR_REPORT_BYTES_MAX
    assert json.loads(report)["entities"][0]["name"] == "down"
