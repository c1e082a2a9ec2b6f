"""Which requirements the tests have proven: a pytest plugin that notes it, and a summary of it.

    pytest -p tests.proven --proven build/proven/pure.json
    python -m tests.proven build/proven

A test proves the requirements whose numbers (`M-3`, `P-11`) stand in its source, or in its file's
docstring.  Requirements that no test has proven make the summary fail.
"""

import functools
import inspect
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

# How many there are of each kind: messaging, availability, pairs, entities in partitions, data
# pipeline, cost.
REQUIREMENTS: Final = {"M": 13, "A": 6, "P": 18, "E": 15, "D": 7, "C": 3}
_NUMBER: Final = re.compile(r"\b([MAPEDC])-(\d{1,2})\b")
_PROPERTY: Final = "requirements"

Proofs = dict[str, set[str]]  # requirement → tests


def known() -> list[str]:
    return [f"{kind}-{n}" for kind, count in REQUIREMENTS.items() for n in range(1, count + 1)]


def numbers_in(text: str) -> set[str]:
    return {f"{kind}-{int(number)}" for kind, number in _NUMBER.findall(text)} & set(known())


@functools.cache
def _numbers_of(function: Callable[..., object]) -> frozenset[str]:
    module = inspect.getmodule(function)
    whole = (module.__doc__ or "") if module is not None else ""
    return frozenset(numbers_in(inspect.getsource(function) + whole))


# --- the plugin: runs in every worker, writes in the process that has started them ----------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--proven", metavar="FILE", help="write which requirements were proven, here")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--proven")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Notebook(Path(path)))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    function = inspect.unwrap(getattr(item, "function", None) or item.runtest)
    item.user_properties.append((_PROPERTY, sorted(_numbers_of(function))))
    yield
    item.user_properties.pop()


class _Notebook:
    """Notes what passed, and writes it down at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._proofs: Proofs = defaultdict(set)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            for name, numbers in report.user_properties:
                if name == _PROPERTY and isinstance(numbers, list):
                    for number in numbers:
                        self._proofs[number].add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({number: sorted(tests) for number, tests in self._proofs.items()})
        self._path.write_text(text)


# --- the summary ----------------------------------------------------------------------------------


def read(folder: Path) -> Proofs:
    proofs: Proofs = defaultdict(set)
    for path in sorted(folder.glob("*.json")):
        for number, tests in json.loads(path.read_text()).items():
            proofs[number] |= set(tests)
    return proofs


def summary(proofs: Proofs) -> tuple[str, list[str]]:
    """What to print, and what is missing."""
    missing = [number for number in known() if not proofs.get(number)]
    tests = set().union(*proofs.values()) if proofs else set[str]()
    kinds = []
    for kind, count in REQUIREMENTS.items():
        lacking = sum(number.startswith(f"{kind}-") for number in missing)
        kinds.append(f"{kind} {count - lacking}/{count}")
    total = len(known())
    proven = f"{total - len(missing)} of {total} requirements ({', '.join(kinds)})"
    return f"proven: {proven}, by {len(tests):,} tests that name them", missing


def main(folder: str) -> int:
    text, missing = summary(read(Path(folder)))
    sys.stdout.write(f"{text}\n")
    if missing:
        sys.stderr.write(f"not proven: {', '.join(missing)}\n")
    return 1 if missing else 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
