"""Which requirements the tests have proven: a pytest plugin that notes it, and a report of it.

    pytest -p tests.proven --proven build/proven/pure.json
    python -m tests.proven build/proven

A test proves what it is marked with: `@pytest.mark.proves("P-8", "P-10")`, or `pytestmark` for all
tests of a file.  docs/reference/requirements.md has the requirements, each built or open.  The
report fails for a built one that no test has proven.
"""

import functools
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

REQUIREMENTS_FILE: Final = Path(__file__).parents[1] / "docs" / "reference" / "requirements.md"
REPORT: Final = "requirements.txt"
BUILT: Final = "built"
OPEN: Final = "open"
_ROW: Final = re.compile(r"^\| ([A-Z]-\d{1,2}) \| (built|open) \| (.+) \|$", re.MULTILINE)
_PROPERTY: Final = "requirements"

Proofs = dict[str, set[str]]  # requirement → tests


@functools.cache
def requirements() -> dict[str, str]:
    """All of them, in the order of the document: built or open."""
    return {number: state for number, state, _ in _ROW.findall(REQUIREMENTS_FILE.read_text())}


def proven_by(item: pytest.Item) -> list[str]:
    """What a test proves by its markers."""
    return sorted({number for marker in item.iter_markers("proves") for number in marker.args})


# --- the plugin: runs in every worker, writes in the process that has started them ----------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--proven", metavar="FILE", help="write which requirements were proven, here")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--proven")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Notebook(Path(path)))


def pytest_runtest_setup(item: pytest.Item) -> None:
    for number in proven_by(item):
        if number not in requirements():
            pytest.fail(f"There is no requirement {number!r} in {REQUIREMENTS_FILE.name}.")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    item.user_properties.append((_PROPERTY, proven_by(item)))
    yield
    item.user_properties.pop()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Name what failed once more, last of all: reports of failures may fill many screens."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(config, "workerinput"):
        for kind in ("failed", "error"):
            for report in reporter.stats.get(kind, []):
                sys.stderr.write(f"{kind}: {report.nodeid}\n")


class _Notebook:
    """Notes what passed, and writes it down at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._proofs: Proofs = defaultdict(set)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            test = report.nodeid.partition("[")[0]  # with whatever parameters
            for name, numbers in report.user_properties:
                if name == _PROPERTY and isinstance(numbers, list):
                    for number in numbers:
                        self._proofs[number].add(test)

    def pytest_sessionfinish(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({number: sorted(tests) for number, tests in self._proofs.items()})
        self._path.write_text(text)


# --- the report -----------------------------------------------------------------------------------


def read(folder: Path) -> Proofs:
    proofs: Proofs = defaultdict(set)
    for path in sorted(folder.glob("*.json")):
        for number, tests in json.loads(path.read_text()).items():
            proofs[number] |= set(tests)
    return proofs


def report(proofs: Proofs) -> str:
    """Every requirement with its tests."""
    lines = []
    for number, state in requirements().items():
        tests = sorted(proofs.get(number, ()))
        lines.append(f"{number}  {state}, {len(tests)} tests")
        lines += [f"    {test}" for test in tests]
    return "\n".join(lines) + "\n"


def main(folder: str) -> int:
    proofs, states = read(Path(folder)), requirements()
    (Path(folder) / REPORT).write_text(report(proofs))
    built = [number for number, state in states.items() if state == BUILT]
    still_open = [number for number, state in states.items() if state == OPEN]
    missing = [number for number in built if not proofs.get(number)]
    tests = set().union(*proofs.values()) if proofs else set[str]()
    sys.stdout.write(
        f"proven: {len(built) - len(missing)} of {len(built)} requirements that are built, by "
        f"{len(tests):,} tests; which ones: {folder}/{REPORT}\n"
        f"open: {', '.join(still_open)}\n"
    )
    if missing:
        sys.stderr.write(f"built, and not proven: {', '.join(missing)}\n")
    return 1 if missing else 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
