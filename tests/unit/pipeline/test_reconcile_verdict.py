"""What a reconciliation says: only what was looked at, and the worst first."""

from dataclasses import replace

import pytest

from twinbus.pipeline.jobs.reconcile import Counts, Latency, Outcome, Plots
from twinbus.pipeline.report.reconciliation import (
    HEAD,
    document,
    notes,
    reconciliation_page,
    summary,
    verdict,
)

pytestmark = pytest.mark.proves("D-4")

LATENCY = Latency(100, (1.0, 2.0, 3.0, 4.0), 5_000.0, 0)
FINE = Counts(100, 100, 0, 0, 0, 0, 0, LATENCY)
CLEAN = Outcome(FINE, [("orders", FINE)], 0, 0, 0, bodies_compared=100, order_checked=50)
PLOTS = Plots([(0.0, 60, 50, 0), (60.0, 40, 40, 10)], 60.0, [(1, 2, 90)], [(50, 1.0), (100, 5.0)])
BAD = replace(CLEAN, total=Counts(100, 92, 10, 2, 0, 1, 3, LATENCY), plots=PLOTS)


def test_a_clean_verdict_claims_only_what_was_looked_at() -> None:
    assert verdict(CLEAN) == "All 100 messages sent arrived exactly once, unaltered and in order"
    assert verdict(replace(CLEAN, order_checked=None)).endswith("exactly once and unaltered")
    bare = replace(CLEAN, order_checked=None, bodies_compared=None)
    assert verdict(bare).endswith("arrived exactly once")
    nothing = replace(CLEAN, total=Counts(0, 0, 0, 0, 0, 0, 0))
    assert verdict(nothing) == "Nothing was sent" and nothing.is_sent_empty


def test_differences_make_a_verdict_unless_they_are_allowed() -> None:
    assert verdict(BAD) == (
        "10 lost, 2 duplicated, 1 altered, 3 out of order, of 100 messages sent"
    )
    assert BAD.differences(["lost", "out_of_order"]) == {"duplicated": 2, "altered": 1}
    twice = replace(CLEAN, total=replace(FINE, duplicated=2, arrived=102))
    assert twice.differences(["duplicated"]) == {}
    assert "2 duplicated: allowed" in verdict(twice, ["duplicated"])
    assert replace(CLEAN, arrived_without_id=1).differences() == {"without_id": 1}


def test_what_is_not_known_is_not_a_zero() -> None:
    bare = replace(
        CLEAN, total=replace(FINE, latency=None), order_checked=None, bodies_compared=None
    )
    total = dict(zip(HEAD, summary(bare)[-1], strict=True))
    assert (total["ALTERED"], total["OUT OF ORDER"], total["P50"]) == ("–", "–", "–")
    counted = document(bare)["total"]
    assert isinstance(counted, dict)
    assert counted["altered"] is counted["out_of_order"] is counted["latency_ms"] is None
    assert len(notes(bare)) == 3
    assert notes(CLEAN) == []


def test_notes_tell_of_clocks_and_of_missing_ids() -> None:
    skewed = replace(FINE, latency=replace(LATENCY, negative=7))
    said = notes(replace(CLEAN, total=skewed, sent_without_id=3))
    assert "3 sent" in said[0]
    assert "7 arrived before they were sent" in said[1]


def test_the_page_has_verdict_plots_and_tables() -> None:
    shown = reconciliation_page(BAD, "<sent>", "entity orders", [], "2026-11-16T10:00:00.000Z")
    assert '<h1 class="bad">10 lost' in shown
    assert "Sent: &lt;sent&gt;. Arrived: entity orders." in shown
    assert "What is lost was sent between 00:01:00 and 00:02:00" in shown
    assert "99 % took 3 ms or less" in shown
    assert shown.count("<svg") == 2
    assert '<h1 class="good">All 100' in reconciliation_page(CLEAN, "a", "b", [], "now")


def test_entities_that_are_left_out_are_counted() -> None:
    assert summary(replace(CLEAN, entities_left_out=5))[-2][0] == "… and 5 more"
