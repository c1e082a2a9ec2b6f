"""Writes docs/reference/coverage.md from `features.toml` and the marks that tests carry.

    python -m tests.feature_coverage

Tests are read, not run: `@pytest.mark.feature("<id>", …)` on a function, or a `pytestmark` for a
whole file, says what a test proves.  A mark that names no feature is an error.
"""

import ast
import tomllib
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "reference" / "coverage.md"

Proofs = dict[str, dict[str, int]]  # feature → file → how many tests


def marks_of(node: ast.expr) -> list[str]:
    """The feature ids of one decorator or `pytestmark` value."""
    if isinstance(node, ast.List | ast.Tuple):
        return [name for element in node.elts for name in marks_of(element)]
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "feature"
    ):
        return [str(argument.value) for argument in node.args if isinstance(argument, ast.Constant)]
    return []


def marks_in(path: Path) -> list[str]:
    """The feature ids that the tests of one file carry, once for each test."""
    found: list[str] = []
    tree = ast.parse(path.read_text())
    whole: list[str] = []
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "pytestmark"
            for target in statement.targets
        ):
            whole = marks_of(statement.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                found += marks_of(decorator)
            if not isinstance(node, ast.ClassDef) and node.name.startswith("test"):
                found += whole
    return found


def collect() -> Proofs:
    """Which files prove which feature."""
    proofs: Proofs = defaultdict(dict)
    for path in sorted(TESTS.rglob("test_*.py")):
        name = path.relative_to(TESTS).as_posix()
        for feature in marks_in(path):
            proofs[feature][name] = proofs[feature].get(name, 0) + 1
    return proofs


def page() -> str:
    """The whole document."""
    proofs = collect()
    features = tomllib.loads((TESTS / "features.toml").read_text())
    parts = [features["introduction"]]
    known: set[str] = set()
    for section in features["section"]:
        parts.append(f"\n## {section['title']}\n| feature | state | tested in |\n|---|---|---|\n")
        for feature in section["features"]:
            known.add(feature["id"])
            files = proofs.get(feature["id"], {})
            if files and "later" in feature:
                raise SystemExit(f"features.toml: {feature['id']} has tests; take `later` out")
            state = "yes" if files else f"no: {feature.get('later', 'not built')}"
            tested = ", ".join(f"{name} ({count})" for name, count in files.items()) or "–"
            parts.append(f"| {feature['text']} | {state} | {tested} |\n")
    unknown = sorted(proofs.keys() - known)
    if unknown:
        raise SystemExit(f"marks that name no feature of features.toml: {', '.join(unknown)}")
    return "".join([*parts, features["differences"]])


if __name__ == "__main__":
    PAGE.write_text(page())
