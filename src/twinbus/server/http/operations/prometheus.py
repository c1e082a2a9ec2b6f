"""Prometheus's text format, version 0.0.4: families of samples, one line each.

Pure text: knows nothing about what is measured.  Must never let a name break out of its label.
"""

from collections.abc import Iterable
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
SUMMARY: Final = "summary"

_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def labels(**values: str | int) -> str:
    """Labels as they stand behind a metric's name, in the order given."""
    pairs = [f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in values.items()]
    return "{" + ",".join(pairs) + "}" if pairs else ""


def header(name: str, kind: str, meaning: str) -> str:
    """The two lines that begin a family."""
    text = meaning.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def family(name: str, kind: str, meaning: str, samples: Iterable[tuple[str, float]]) -> str:
    """A whole family, from labels and values; nothing if there are no samples."""
    lines = [f"{name}{at} {number(value)}\n" for at, value in samples]
    return header(name, kind, meaning) + "".join(lines) if lines else ""


def number(value: float) -> str:
    """A value: whole numbers as such, however large."""
    return str(value) if isinstance(value, int) else repr(float(value))
