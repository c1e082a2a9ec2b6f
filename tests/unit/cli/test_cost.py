"""`twinbus cost`: tables for people, JSON for programs, reasons for everything else."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.complaint import complaint
from twinbus.cli.main import main
from twinbus.metered import DAY_MS, Metered, parse_iso
from twinbus.storage.disk import OsDisk
from twinbus.storage.meter_log import MeterLog

pytestmark = pytest.mark.proves("P-18", "C-3")

NOON_MS = parse_iso("2026-11-15T12:00:00Z")


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["cost", "plan", "--json", *arguments]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data directory in which two days were metered."""
    log = MeterLog(lambda: OsDisk(tmp_path / "meter"))
    for day in range(2):
        at_ms = NOON_MS + day * DAY_MS
        for entity, kind, units, empty in (
            ("orders", "send", 1_500, 0),
            ("orders", "ping", 2, 0),
            ("main/x-servicebus-transfer/0", "receive", 97, 96),
        ):
            line = Metered(at_ms, at_ms + 1_000, "ns", entity, kind, units, units, empty)
            log.append([line])
    log.close()
    return tmp_path


@pytest.mark.proves("C-3")
def test_plan_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "plan", "--rate", "100/s", "--outage-hours", "4"]) == 0
    shown = capsys.readouterr().out
    assert "polls of 10 backlog queues by 1 syphon               28,800" in shown
    assert "1,434,000 messages through the backlog, 4 each    5,736,000" in shown
    assert "check the current price list" in shown


@pytest.mark.proves("C-3")
def test_plan_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, "--rate", "10000000/month", "--message-size", "65k")
    assert found["operations"]["without"] == 40_000_000
    assert found["operations"]["more"] == 28_800
    assert found["cost"]["total"] == pytest.approx(10 + 27.0288 * 0.8)
    same = [plan(capsys, "--rate", rate) for rate in ("1", "1/s", "3600/h", "86400/day")]
    assert all(each == same[0] for each in same)
    premium = plan(capsys, "--rate", "1", "--tier", "premium", "--secondary-units", "2")
    assert premium["cost"]["more"] == pytest.approx(2 * 720 * 0.928)
    often = ["--rate", "1", "--outage-hours", "1", "--failover-interval", "0"]
    assert plan(capsys, *often, "--ping-interval", "1m")["operations"]["pings"] == 61
    assert plan(capsys, *often, "--ping-interval", "0.5h")["operations"]["pings"] == 3


@pytest.mark.proves("C-3")
def test_prices_of_ones_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = tmp_path / "prices.toml"
    table.write_text(
        'date = 2026-01-01\ncurrency = "EUR"\n[standard]\nbase_month = 0\nincluded = 0\n'
        "[[standard.tiers]]\nper_million = 1_000_000\n[premium]\nunit_hour = 1\n"
    )
    found = plan(capsys, "--rate", "0", "--prices", str(table))
    assert (found["currency"], found["cost"]["total"]) == ("EUR", 28_800)


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["plan", "--rate", "1", "--outage-hours", "721"], "--outage-hours lies between"),
        (["plan", "--rate", "1", "--backlog-queues", "0"], "--backlog-queues is 1 or more"),
        (["plan", "--rate", "1", "--prices", "/nowhere.toml"], "check --prices"),
        (["show", "--data", "/nowhere"], "nothing was metered in /nowhere"),
        (["show"], "no connection string"),
    ],
)
def test_reasons(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    reason: str,
) -> None:
    monkeypatch.delenv("TWINBUS_CONNECTION_STRING", raising=False)
    assert main(["cost", *arguments]) == 1
    assert reason in complaint(capsys.readouterr().err)


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan"],
        ["plan", "--rate", "fast"],
        ["plan", "--rate", "1/week"],
        ["plan", "--rate", "1", "--message-size", "big"],
        ["plan", "--rate", "1", "--outage-hours", "-1"],
        ["plan", "--rate", "1", "--ping-interval", "1d"],
        ["show", "--from", "noon"],
        ["show", "--by", "colour"],
        ["show", "--by", "day,day"],
        [],
    ],
)
def test_nonsense_gives_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["cost", *arguments])
    assert caught.value.code == 2
    assert complaint(capsys.readouterr().err)


def test_how_long_it_is_kept_must_make_sense(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["serve", "--data", str(tmp_path / "data"), "--meter-days", "-1"]) == 1
    assert "--meter-days must be a number of days" in capsys.readouterr().err


@pytest.mark.proves("P-18")
def test_show_as_a_table(capsys: pytest.CaptureFixture[str], data_dir: Path) -> None:
    """Polls, pings and moved messages are shown apart."""
    assert main(["cost", "show", "--data", str(data_dir)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for expected in (
        "ENTITY KIND OPERATIONS EMPTY UNITS",
        "main/x-servicebus-transfer/0 receive 194 192 194",
        "orders send 3,000 0 3,000",
        "total 3,198 192 3,198",
        "messages out of backlog queues 2",
        "polls of backlog queues that found nothing 192",
        "pings 4",
        "pairing in all 198",
        "2026-11 3,198 10.00 0.00 10.00 0.00",
    ):
        assert expected in lines, lines


@pytest.mark.proves("P-18")
def test_show_for_programs(capsys: pytest.CaptureFixture[str], data_dir: Path) -> None:

    def show(*arguments: str) -> dict[str, Any]:
        assert main(["cost", "show", "--json", "--data", str(data_dir), *arguments]) == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document

    found = show("--by", "day")
    assert [(row["day"], row["units"]) for row in found["rows"]] == [
        ("2026-11-15", 1_599),
        ("2026-11-16", 1_599),
    ]
    assert found["pairing"]["polls"] == 192
    assert show("--from", "2026-11-16")["total"]["units"] == 1_599
    assert show("--to", "2026-11-15T13:00:00+01:00")["rows"] == []
    assert [row["kind"] for row in show("--by", "kind")["rows"]] == ["ping", "receive", "send"]
    assert [row["namespace"] for row in show("--by", "namespace")["rows"]] == ["ns"]


def test_what_cannot_be_trusted_is_said(capsys: pytest.CaptureFixture[str], data_dir: Path) -> None:
    path = data_dir / "meter" / "2026-11-15.jsonl"
    text = path.read_bytes()
    path.write_bytes(text.replace(b"1500", b"9500"))
    assert main(["cost", "show", "--data", str(data_dir)]) == 0
    assert "1 damaged lines" in capsys.readouterr().err
    assert main(["cost", "show", "--data", str(data_dir), "--to", "2026-01-01"]) == 0
    assert capsys.readouterr().out == "nothing was metered in this period\n"
