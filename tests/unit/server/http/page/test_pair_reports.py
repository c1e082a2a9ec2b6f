"""What paired clients report: bounded in number, size and time, and never believed."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.clock import Now
from twinbus.errors import QuotaExceeded, ServiceError
from twinbus.limits import PAIR_REPORTS_BYTES_MAX, PAIR_REPORTS_MAX
from twinbus.server.http.page.pair_reports import KEPT_MS, PairReports, read_report

pytestmark = pytest.mark.feature("page.pairs")

REPORT: dict[str, Any] = {
    "primary": "a.example",
    "secondary": "b.example",
    "client": "me",
    "fault": "",
    "syphon_running": True,
    "entities": [{"name": "orders", "state": "failed over", "sent_to_backlog": 3}],
    "backlog_queues": [],
}


class Clock:
    def __init__(self) -> None:
        self.ms = 0

    def now(self) -> Now:
        return Now(1_800_000_000_000 + self.ms, self.ms)


def read(document: object) -> dict[str, Any]:
    return read_report(json.dumps(document).encode())


def test_a_report_is_shown_until_it_is_old() -> None:
    clock = Clock()
    reports = PairReports(clock)
    reports.put("Main", "one", read(REPORT))
    clock.ms = 1_500
    reports.put("main", "two", read(REPORT))
    reports.put("other", "one", read(REPORT))
    assert [each["id"] for each in reports.documents("MAIN")] == ["two", "one"]
    found = reports.documents("main")[1]
    assert found["age_s"] == 1.5
    assert found["entities"][0]["state"] == "failed over"
    assert found["entities"][0]["since"] is None
    changes = reports.changes
    reports.put("main", "two", read(REPORT))
    assert reports.changes == changes
    clock.ms = KEPT_MS
    assert [each["id"] for each in reports.documents("main")] == ["two"]
    assert reports.changes == changes + 1
    clock.ms = 2 * KEPT_MS
    assert reports.documents("main") == []


@pytest.mark.proves("P-19")
def test_messages_of_other_primaries() -> None:
    """How many and whose; a client of an older version says nothing of them."""
    whose = [{"primary": f"p{n}", "count": n, "more": "?"} for n in range(50)]
    new = {"queue": "a", "held": 0, "strangers": 60, "strangers_of": whose}
    report = read({**REPORT, "backlog_queues": [new, {"queue": "b", "held": 0}]})
    one, two = report["backlog_queues"]
    assert one["strangers"] == 60
    assert one["strangers_of"] == [{"primary": f"p{n}", "count": n} for n in range(10)]
    assert (two["strangers"], two["strangers_of"]) == (None, [])
    for wrong in (7, ["x"], [{"primary": 7}], [{"count": -1}]):
        with pytest.raises(ServiceError):
            read({**REPORT, "backlog_queues": [{**new, "strangers_of": wrong}]})


def test_there_is_an_end_to_them() -> None:
    reports = PairReports(Clock())
    for number in range(PAIR_REPORTS_MAX):
        reports.put("main", str(number), read(REPORT))
    with pytest.raises(QuotaExceeded):
        reports.put("main", "one more", read(REPORT))
    reports.put("main", "0", read(REPORT))
    assert len(reports.documents("main", 1_000)) < 10


def test_large_ones_have_less_room() -> None:
    reports = PairReports(Clock())
    large = read({**REPORT, "entities": [{"name": "x" * 200} for _ in range(200)]})
    count = PAIR_REPORTS_BYTES_MAX // len(json.dumps(large))
    assert count < PAIR_REPORTS_MAX
    for number in range(count):
        reports.put("main", str(number), large)
    with pytest.raises(QuotaExceeded):
        reports.put("main", "one more", large)


def test_texts_are_cut_and_what_is_not_known_is_left_out() -> None:
    found = read({**REPORT, "client": "x" * 10_000, "future": {"a": 1}, "fault": "\ud800"})
    assert len(found["client"]) == 256
    assert "future" not in found
    assert found["fault"] == "?"


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(
    st.fixed_dictionaries(
        {"primary": st.just("a") | anything, "secondary": st.just("b") | anything},
        optional={
            "entities": anything | st.lists(st.fixed_dictionaries({"name": anything}), max_size=3),
            "client": anything,
            "backlog_queues": anything,
        },
    )
)
def test_any_json(document: dict[str, Any]) -> None:
    try:
        found = read(document)
    except ServiceError as error:
        assert len(str(error)) < 200
    else:
        json.dumps(found).encode()
        assert all(isinstance(each, dict) for each in found["entities"])


@given(st.binary(max_size=100))
def test_any_bytes(body: bytes) -> None:
    with pytest.raises(ServiceError):
        read_report(body)
