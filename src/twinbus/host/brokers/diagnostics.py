"""Diagnostics of a broker process, written before it is killed or after it has ended (A-4).

    DIR/diagnostics/20261116T093000.250Z-broker-1/
        reason.txt      what was seen, and since when
        stacks.txt      where each of its threads is: its own words, or the kernel's
        counters.json   its last beats
        log.txt         the newest log lines, the gateway's and its own

Only the newest bundles are kept.  Nobody may wait for this: a disk that does not answer may be the
very problem, so callers run it on a thread and go on without it.  Bundles have no secrets: neither
configuration nor messages are read, and secrets are removed from log lines.
"""

import json
import logging
import shutil
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from twinbus.limits import DIAGNOSTICS_LOG_LINES_MAX, DIAGNOSTICS_MAX
from twinbus.telemetry.logs import SecretsFilter, TextFormatter
from twinbus.telemetry.secrets import KnownSecrets

# What the kernel tells of a process, and of each of its threads, that cannot tell it itself.
_OF_PROCESS: Final = ("status", "limits")
_OF_THREAD: Final = ("comm", "wchan", "syscall", "stack")
_THREADS_MAX: Final = 100
_PROC: Final = Path("/proc")


@dataclass(frozen=True)
class Evidence:
    """All there is to say about one broker in trouble."""

    broker: int
    reason: str
    utc_ms: int  # when it was decided
    pid: int | None
    running_ms: int  # since its process was started
    silent_ms: int  # since its last sign of life
    stores: list[int] = field(default_factory=list)
    stacks: str = ""
    beats: list[dict[str, object]] = field(default_factory=list)
    gateway_log: list[str] = field(default_factory=list)
    broker_log: list[str] = field(default_factory=list)


class LogTail(logging.Handler):
    """Keeps the newest lines of this process's log, more than are shown: from INFO on."""

    def __init__(self, secrets: KnownSecrets, count: int = DIAGNOSTICS_LOG_LINES_MAX) -> None:
        super().__init__()
        self.setFormatter(TextFormatter())
        self.addFilter(SecretsFilter(secrets))
        self._lines: deque[str] = deque(maxlen=count)
        self._logger = logging.getLogger("twinbus")
        self._level = self._logger.level
        self.level_shown = self._logger.getEffectiveLevel()

    def begin(self) -> None:
        """The command line's own handler has a level, so nothing more is shown for it."""
        self._logger.addHandler(self)
        self._logger.setLevel(min(self.level_shown, logging.INFO))

    def end(self) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record))

    def lines(self) -> list[str]:
        return list(self._lines)


def write_bundle(directory: Path, evidence: Evidence, asks_kernel: bool = False) -> Path:
    """A new bundle in `directory`; the oldest go.  OSError when the disk will not have it.

    A process that does not answer itself cannot keep the kernel from telling where it is.
    """
    stacks = evidence.stacks
    if asks_kernel and evidence.pid is not None:
        stacks += "It does not answer; the kernel says:\n" + read_process(evidence.pid)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    moment = datetime.fromtimestamp(evidence.utc_ms / 1_000, UTC)
    stamp = moment.strftime("%Y%m%dT%H%M%S.") + f"{evidence.utc_ms % 1_000:03}Z"
    bundle = directory / f"{stamp}-broker-{evidence.broker}"
    bundle.mkdir(exist_ok=True, mode=0o700)
    log = ["# gateway", *evidence.gateway_log, "", f"# broker {evidence.broker}"]
    files = {
        "reason.txt": _reason(evidence, moment),
        "stacks.txt": stacks + "\n",
        "counters.json": json.dumps(evidence.beats, indent=1) + "\n",
        "log.txt": "\n".join([*log, *evidence.broker_log, ""]),
    }
    for name, text in files.items():
        (bundle / name).write_text(text, encoding="utf-8", errors="backslashreplace")
    _remove_oldest(directory)
    return bundle


def read_process(pid: int) -> str:
    """What the kernel says of a process: its state, and in which call each thread waits."""
    process = _PROC / str(pid)
    parts = [_read(process / name) for name in _OF_PROCESS]
    try:
        threads = sorted((process / "task").iterdir(), key=lambda path: int(path.name))
    except OSError:
        threads = []
    for thread in threads[:_THREADS_MAX]:
        parts += [_read(thread / name) for name in _OF_THREAD]
    return "\n".join(part for part in parts if part)


def _reason(evidence: Evidence, moment: datetime) -> str:
    process = "none" if evidence.pid is None else str(evidence.pid)
    stores = ", ".join(map(str, evidence.stores)) or "none"
    return (
        f"broker {evidence.broker}: {evidence.reason}\n"
        f"seen: {moment.isoformat(timespec='milliseconds')}\n"
        f"process: {process}, running for {evidence.running_ms} ms\n"
        f"last sign of life: {evidence.silent_ms} ms before\n"
        f"stores: {stores}\n"
    )


def _read(path: Path) -> str:
    """One of the kernel's files, as far as we may; the kernel has many reasons to say no."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace").rstrip()
    except OSError as error:
        text = f"({error.strerror})"
    return f"-- {path}\n{text}\n"


def _remove_oldest(directory: Path) -> None:
    # Their names begin with the time, so their order is that of time.
    bundles = sorted(path for path in directory.iterdir() if "-broker-" in path.name)
    for bundle in bundles[:-DIAGNOSTICS_MAX]:
        shutil.rmtree(bundle, ignore_errors=True)
