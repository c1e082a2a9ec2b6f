"""`twinbus drill` with Spark: a whole rehearsal, and one that is interrupted and leaves nothing."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from twinbus.drill.plan import ENTITIES

pytestmark = pytest.mark.feature("drill.spark")

COMMAND = [sys.executable, "-m", "twinbus", "drill", "--json", "--duration", "25", "--rate", "60"]
MARK = "TWINBUS_DRILL_MARK"
END_S_MAX = 240
GONE_S_MAX = 10.0


def environment(folder: Path, mark: str) -> dict[str, str]:
    """Whatever it starts carries the mark; whatever it forgets lies in the folder."""
    path = os.pathsep.join(sys.path)
    return {**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder), MARK: mark}


def marked(mark: str) -> list[str]:
    """Processes that are there because of a drill."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except (OSError, ValueError):
            continue  # no process, another user's, or gone meanwhile
    return found


def left(mark: str) -> list[str]:
    """Those that do not go away: a process that was killed may be seen for a moment."""
    end_s = time.monotonic() + GONE_S_MAX
    while (found := marked(mark)) and time.monotonic() < end_s:
        time.sleep(0.1)
    return found


@pytest.mark.proves("D-2", "D-4", "D-5")
def test_a_whole_drill(tmp_path: Path) -> None:
    """D-2, D-4, D-5 in one command: nothing lost, nothing twice, sessions in order, priced."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    mark, report = uuid.uuid4().hex, tmp_path / "report.html"
    ended = subprocess.run(
        [*COMMAND, "--report", str(report)],
        env=environment(scratch, mark),
        capture_output=True,
        text=True,
        timeout=END_S_MAX,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert (told["verdict"], told["reasons"]) == ("yes", [])
    assert told["arrived"] == told["expected"] > told["sent"] > told["through_backlog"] > 0
    assert (told["lost"], told["duplicated"], told["out_of_order"]) == (0, 0, 0)
    assert (told["left_in_backlog"], told["dead_lettered"]) == (0, 0)
    assert told["by"].startswith("Spark 4.")
    assert all(told["partitions"]["counts"]), "also of the one that was down for a while"
    assert "partition 5 of orders is back" in ended.stderr
    assert set(told["entities"]) == {place for entity in ENTITIES for place in entity.places}
    assert told["bill"]["units"] >= 2 * told["arrived"] > 2 * told["bill"]["pairing_units"] > 0
    assert "Act 5. The bill" in ended.stderr
    assert told["sentence"] in report.read_text()
    assert left(mark) == []
    assert list(scratch.iterdir()) == []


def test_interrupted_in_the_outage(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    with subprocess.Popen(
        COMMAND,
        env=environment(tmp_path, mark),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        seen = ""
        for line in process.stderr:
            seen += line
            if "failed over" in line:
                break
        assert len(marked(mark)) > 3, "it, the secondary, Spark and its Java"
        process.send_signal(signal.SIGINT)
        seen += process.stderr.read()
        assert process.stdout.read() == ""
        assert process.wait(END_S_MAX) == 130, seen
    assert "Traceback" not in seen, seen
    assert left(mark) == []
    assert list(tmp_path.iterdir()) == []
