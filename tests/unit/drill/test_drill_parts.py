"""Small parts: metrics of the backlog, waiting, prices of the meters, arguments of the command."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from twinbus.cli.main import main
from twinbus.drill.pricing import bill_of_lines, read_meter, shipped_prices
from twinbus.drill.stage import backlog_counts
from twinbus.drill.waiting import Standstill, Waiting
from twinbus.metered import Metered, encode_line

METRICS = b"""# HELP servicebus_active_messages Active messages.
servicebus_active_messages{namespace="twinbus",entity="a/x-servicebus-transfer/0"} 7
servicebus_active_messages{namespace="twinbus",entity="a/x-servicebus-transfer/1"} 5
servicebus_active_messages{namespace="twinbus",entity="orders"} 100
servicebus_deadlettered_messages{namespace="twinbus",entity="a/x-servicebus-transfer/1"} 2
servicebus_deadlettered_messages{namespace="twinbus",entity="orders"} 9
"""
BACKLOG = "a/x-servicebus-transfer/0"


def test_of_the_metrics_only_backlog_queues_count() -> None:
    assert backlog_counts(METRICS) == (12, 2)
    assert backlog_counts(b"") == (0, 0)


def test_waiting() -> None:
    waiting = Waiting()
    waiting.pause(0)
    looks = iter([False, False, True])
    assert waiting.until(lambda: next(looks), 60.0, look_s=0)
    assert not waiting.until(lambda: False, -1.0)
    waiting.interrupt()
    with pytest.raises(KeyboardInterrupt):
        waiting.pause(60.0)
    assert waiting.until(lambda: True, 60.0), "what is there already is not waited for"


def test_a_count_stands_still_when_it_has_become_smaller() -> None:
    looks = [(9, 0.0), (9, 5.0), (7, 6.0), (4, 7.0), (4, 8.0), (4, 9.0)]
    still = Standstill(2.0, 20.0)
    assert [still.look(*each) for each in looks] == [False] * 5 + [True]


def test_a_count_that_never_becomes_smaller_stands_still_in_the_end() -> None:
    still = Standstill(2.0, 20.0)
    assert [still.look(9, now_s) for now_s in (0.0, 5.0, 20.0)] == [False, False, True]


def test_the_bill_of_what_was_metered(tmp_path: Path) -> None:
    lines = [
        Metered(0, 1, "twinbus", "orders", "send", 1_000_000, 1_500_000, 0),
        Metered(0, 1, "twinbus", BACKLOG, "send", 500_000, 500_000, 0),
        Metered(0, 1, "twinbus", "orders", "ping", 3, 3, 0),
    ]
    (tmp_path / "meter").mkdir()
    whole = b"".join(encode_line(line) for line in lines)
    (tmp_path / "meter" / "1970-01-01.jsonl").write_bytes(whole + b'{"v":1,"torn')
    found = read_meter(tmp_path)
    assert [(line.entity, line.units) for line in found] == [
        (line.entity, line.units) for line in lines
    ]
    bill = bill_of_lines(found, shipped_prices())
    assert (bill.units, bill.pairing_units) == (2_000_003, 500_003)
    assert bill.kinds == {"ping": 3, "send": 2_000_000}
    per_unit = float(shipped_prices().tiers[0].per_million) / 1e6
    assert bill.list_price == pytest.approx(2_000_003 * per_unit, abs=1e-5)
    assert bill.cost == 0.0, "so many are included"


@pytest.mark.parametrize(
    ("words", "reason", "fix"),
    [
        (["--duration", "9"], "9 s is too short", "set --duration from 15 to 3600"),
        (
            ["--duration", "30", "--fault", "kill", "--fault", "hang"],
            "30 s is",
            "--duration from 37",
        ),
        (["--duration", "2h"], "7200 s is too long", "set --duration from 15 to 3600"),
        (["--keep", "full"], "full already exists", "set --keep to a new or empty directory"),
        (
            ["--report", "no/such/x.html"],
            "no/such is not a writable",
            "set --report to another FILE",
        ),
    ],
)
def test_a_drill_that_cannot_be(
    words: list[str],
    reason: str,
    fix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    monkeypatch.chdir(tmp_path)
    assert main(["drill", *words]) == 1
    said, what_to_do = capsys.readouterr().err.splitlines()
    assert reason in said
    assert fix in what_to_do


@pytest.mark.parametrize("words", [["--rate", "0"], ["--rate", "many"], ["--fault", "flood"]])
def test_arguments_that_make_no_sense(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["drill", *words])
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("missing", "fix"),
    [
        ("azure.servicebus", r"pip install 'twinbus\[drill\]'"),
        ("pyspark", r"pip install 'twinbus\[drill\]', or .*--no-spark"),
    ],
)
def test_a_missing_extra(missing: str, fix: str, tmp_path: Path) -> None:
    program = (
        f"import sys; sys.modules['{missing}'] = None\n"
        "from twinbus.cli.main import main; sys.exit(main(['drill']))"
    )
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert re.search(rf"^twinbus: .*not installed\n  fix: .*{fix}", ended.stderr), ended.stderr
    assert list(tmp_path.iterdir()) == []
