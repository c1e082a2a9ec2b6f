"""`twinbus drill --no-spark`: the rehearsal on machines without Spark, with everything kept."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.feature("drill.run")


def test_without_spark(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    words = ["--no-spark", "--json", "--duration", "25", "--rate", "60", "--fault", "cut"]
    ended = subprocess.run(
        [sys.executable, "-m", "twinbus", "drill", *words, "--keep", str(kept)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert (told["verdict"], told["lost"], told["duplicated"]) == ("yes", 0, 0)
    assert told["arrived"] == told["expected"] > told["through_backlog"] > 0
    assert told["by"] == "twinbus pair drain, without Spark"
    check_partitions(told["partitions"], told["entities"]["orders"]["arrived"])
    lines = ("5 of orders is down;", "but for partition 5", "5 of orders is back; the backlog")
    places = [ended.stderr.index(each) for each in (*lines, "the backlog is empty")]
    assert places == sorted(places), "down before the outage and while the backlog comes home"
    assert "without Spark" in ended.stderr
    assert told["bill"]["pairing_units"] > 0
    names = {path.name for path in kept.iterdir()}
    assert names >= {"primary", "secondary", "primary.log", "secondary.log", "twinbus-drill.html"}
    ledgers = [(kept / name).read_text().count("\n") for name in ("sent.jsonl", "arrived.jsonl")]
    assert ledgers == [told["expected"], told["arrived"]]
    assert "Traceback" not in (kept / "primary.log").read_text()
    assert Path(told["report"]) == kept / "twinbus-drill.html"


def check_partitions(told: dict[str, Any], arrived: int) -> None:
    """All were used alike, but for the one that was down for a while."""
    counts = list(told["counts"])
    assert (len(counts), sum(counts)) == (16, arrived)
    assert told["down_s"] > 5
    missed = counts.pop(told["down"])
    assert 0 < missed < min(counts)
    assert max(counts) - min(counts) <= max(counts) // 4, counts
