"""The report of what was proven: counts what passed, and names what nobody has proven."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.proven import BUILT, REPORT, main, requirements

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "pyproject.toml"
COMMAND = [sys.executable, "-m", "pytest", "-q", "-p", "tests.proven", "--proven"]


def test_every_requirement_is_built_or_open() -> None:
    kinds = [number[0] for number in requirements()]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "M": 17, "A": 6, "P": 20, "E": 15, "D": 8, "C": 3, "N": 7, "S": 4
    }  # fmt: skip


def test_what_is_built_and_not_proven_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    built = [number for number, state in requirements().items() if state == BUILT]
    (tmp_path / "one.json").write_text(json.dumps({"M-1": ["test_b"]}))
    assert main(str(tmp_path)) == 1
    out, err = capsys.readouterr()
    assert f"proven: 1 of {len(built)} requirements that are built, by 1 tests" in out
    assert "open: M-14, " in out
    assert "M-1," not in err
    assert "M-2, M-3" in err
    (tmp_path / "two.json").write_text(json.dumps({number: ["test_a"] for number in built}))
    assert main(str(tmp_path)) == 0
    assert "M-1  built, 2 tests\n    test_a\n    test_b\n" in (tmp_path / REPORT).read_text()


def run(tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "test_some.py"
    path.write_text("import pytest\n\n" + text)
    command = [
        *COMMAND,
        str(tmp_path / "proven.json"),
        "-n",
        "1",
        "-c",
        str(ROOT / "pyproject.toml"),
    ]
    return subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_only_what_passed_is_noted_by_every_worker(tmp_path: Path) -> None:
    text = (
        'pytestmark = pytest.mark.proves("C-3")\n\n'
        '@pytest.mark.proves("D-1")\n@pytest.mark.parametrize("n", [1, 2])\n'
        "def test_good(n):\n    pass\n\n"
        '@pytest.mark.proves("D-2")\ndef test_bad():\n    """About"""\n    assert False\n'
    )
    assert run(tmp_path, text).returncode == 1
    proofs = json.loads((tmp_path / "proven.json").read_text())
    assert {number: len(tests) for number, tests in proofs.items()} == {"D-1": 1, "C-3": 1}


def test_a_requirement_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    ended = run(tmp_path, '@pytest.mark.proves("D-99")\ndef test_good():\n    pass\n')
    assert ended.returncode == 1
    assert "There is no requirement 'D-99'" in ended.stdout
