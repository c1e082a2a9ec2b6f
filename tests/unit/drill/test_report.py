"""The report of a drill: complete, escaped, and without anything from elsewhere."""

import re

import pytest

from tests.unit.drill.stories import perfect, timeline, told, verdict_of
from twinbus.drill.ledger import Ledger
from twinbus.drill.plan import Act
from twinbus.drill.report import report_page, settings_text
from twinbus.drill.timeline import Timeline

pytestmark = pytest.mark.feature("drill.report")

SETTINGS = settings_text(60, 120, ["kill"])


def page_of(ledger: Ledger, lines: Timeline) -> str:
    return report_page(verdict_of(ledger), lines, told(), SETTINGS, "2026-11-16T13:00:00Z")


def test_what_is_in_it() -> None:
    text = page_of(perfect(), timeline())
    assert '<h1 class="good">All 48 messages arrived' in text
    assert text.count(">3 the data centre fails</text>") == 3, "in each of the charts over time"
    assert text.count("<figure>") == 5
    assert "partition 5, down for a while" in text
    assert "16 of 16 used, 100 to 101 messages each" in text
    assert 'class="bad"' in text, "the time in which an entity had failed over"
    assert "failover after 3 s" in text
    assert "p50 0.01 s, p99 20.00 s" in text


def test_marks_that_stand_close_are_numbers() -> None:
    lines = timeline()
    lines.mark(6.2, Act.BILL)
    text = page_of(perfect(), lines)
    assert text.count('text-anchor="start">4</text>') == 3
    assert text.count("<title>4 it returns</title>") == 3
    assert text.count(">5 the bill</text>") == 3


def test_no_is_said_first() -> None:
    ledger = perfect()
    ledger.arrived.pop()
    text = page_of(ledger, timeline())
    assert '<h1 class="bad">No: 1 lost</h1>' in text
    assert '<td class="found">1</td>' in text


def test_nothing_comes_from_elsewhere() -> None:
    text = page_of(perfect(), timeline())
    assert "kill -9 &lt;for&gt; all" in text
    assert "<script" not in text
    assert re.findall(r"(?:src|href)=", text) == []
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}


def test_a_drill_that_was_too_short_for_a_chart() -> None:
    text = page_of(perfect(), Timeline())
    assert text.count("<figure>") == 2, "the partitions and the bill"
