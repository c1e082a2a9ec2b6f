"""The meter's records in tasks, and the page of a bill."""

from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from twinbus.cli.main import main
from twinbus.costs.prices import Prices, Tier
from twinbus.costs.rollup import MonthBill, Pairing, Sum
from twinbus.errors import ConfigError
from twinbus.metered import Metered, encode_line, parse_iso
from twinbus.pipeline.jobs.cost import Bill, Day, decode_record, meter_directory
from twinbus.pipeline.report.bill import bill_page, headline

pytestmark = pytest.mark.proves("D-5")

NOON_MS = parse_iso("2026-11-15T12:00:00Z")
PRICES = Prices(date(2026, 11, 1), "EUR", Decimal(10), 0, (Tier(None, Decimal(1)),), Decimal(1))
PAIRING = Pairing(5, 4, 96, 2, 1)
BILL = Bill(
    by=("entity", "kind"),
    rows=[(("<b>", "send"), Sum(900, 900)), (("", "management"), Sum(100, 100))],
    rows_left_out=3,
    total=Sum(1_000, 1_000, 96),
    pairing=PAIRING,
    months=[MonthBill("2026-11", 1_000, Decimal("2.5"), Decimal(10), Decimal("0.25"))],
    days=[Day("2026-11-15", {"send": 900, "management": 100}, PAIRING)],
    damaged=2,
)


def line(at_ms: int, entity: str = "orders", units: int = 1) -> bytes:
    return encode_line(Metered(at_ms, at_ms + 1_000, "ns", entity, "send", units, units))[:-1]


def test_a_line_becomes_a_record() -> None:
    for written in (line(NOON_MS, units=5), line(NOON_MS, units=5) + b"   "):
        assert decode_record(written) == (NOON_MS, "2026-11-15", "ns", "orders", "send", 5, 5, 0)


def test_damaged_lines_say_nothing() -> None:
    torn, flipped = line(NOON_MS)[:-9], line(NOON_MS).replace(b'"units":1', b'"units":9')
    assert [decode_record(each) for each in (torn, flipped, b"\xff\xfe", b"")] == [None] * 4


def test_where_the_meter_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing was metered"):
        meter_directory(str(tmp_path))
    (tmp_path / "meter").mkdir()
    (tmp_path / "meter" / "2026-11-15.jsonl").touch()
    for given in (tmp_path, tmp_path / "meter"):
        assert meter_directory(str(given)) == str(tmp_path / "meter")
    assert meter_directory("s3a://bucket/ns/") == "s3a://bucket/ns/meter"


def test_the_page_shows_pairing_apart() -> None:
    shown = bill_page(BILL, PRICES, ["/data"], "now")
    assert headline(BILL, PRICES) == (
        "EUR 12.50 for 1,000 units in 2026-11, of which pairing 0.25 (10.8% of the units)"
    )
    assert "Pairing: 108 units, 10.8% of all" in shown
    assert "polls of backlog queues that found nothing" in shown
    assert "2 damaged lines are not counted" in shown
    assert "… and 3 more" in shown
    assert "&lt;b&gt; · send" in shown and "<b>" not in shown
    assert shown.count("<svg") == 3


def test_a_bill_of_nothing() -> None:
    empty = Bill(("entity",), [], 0, Sum(), Pairing(0, 0, 0, 0, 0), [], [], 0)
    assert "Nothing was metered in this time" in bill_page(empty, PRICES, [], "now")


def test_the_same_directory_twice_would_count_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "meter").mkdir()
    (tmp_path / "meter" / "2026-11-15.jsonl").touch()
    twice = ["--data", str(tmp_path), "--data", str(tmp_path / "meter")]
    assert main(["pipeline", "cost", *twice]) == 1
    assert "given twice" in capsys.readouterr().err
