"""The summary of what was proven: counts what passed, and says what nobody has proven."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.proven import REQUIREMENTS, known, main, numbers_in, read, summary

ROOT = Path(__file__).parents[2]


def test_numbers_are_found_in_text() -> None:
    assert numbers_in("M-1, P-18 and A-06; not X-1, M-99, AM-1 or E-0") == {"M-1", "P-18", "A-6"}
    assert len(known()) == sum(REQUIREMENTS.values()) == 62


def test_what_is_missing_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    everything = {number: ["test_a"] for number in known()}
    (tmp_path / "one.json").write_text(json.dumps({"M-1": ["test_b"]}))
    assert main(str(tmp_path)) == 1
    out, err = capsys.readouterr()
    assert "proven: 1 of 62 requirements (M 1/13, A 0/6" in out
    assert "M-1," not in err
    assert "M-2, M-3" in err
    (tmp_path / "two.json").write_text(json.dumps(everything))
    assert main(str(tmp_path)) == 0
    assert summary(read(tmp_path))[0].endswith("by 2 tests that name them")


def test_only_what_passed_is_noted_by_every_worker(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        '"""All of it is about C-3."""\n\n'
        'def test_good():\n    """D-1"""\n\n'
        "def test_bad():  # D-2\n    assert False\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.proven", "--proven"]
    command += [str(tmp_path / "proven.json"), "-n", "1", "--rootdir", str(tmp_path)]
    ended = subprocess.run(
        [*command, str(tmp_path / "test_some.py")], cwd=ROOT, capture_output=True, check=False
    )
    assert ended.returncode == 1
    proofs = json.loads((tmp_path / "proven.json").read_text())
    assert {number: len(tests) for number, tests in proofs.items()} == {"D-1": 1, "C-3": 1}
