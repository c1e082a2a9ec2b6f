"""Clerks drain the backlog, reconcile the ledgers and price the meters.

    SparkClerk   the tasks of `twinbus pipeline`, in a process with one Spark session (spark_main)
    PlainClerk   `twinbus pair drain` and a little Python, where Spark is not wanted

Both start early, work when asked, and leave no process behind.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from twinbus.drill.judging import Bill, Counts, reconcile
from twinbus.drill.ledger import Ledger
from twinbus.drill.pricing import bill_of_lines, read_meter, shipped_prices
from twinbus.drill.stage import DrillFailed, Stage
from twinbus.drill.waiting import Waiting

SENT: Final = "sent.jsonl"
ARRIVED: Final = "arrived.jsonl"
READY_S_MAX: Final = 120.0
TASK_S_MAX: Final = 300.0
_END_S_MAX: Final = 20.0
_LOG_LINES_SHOWN: Final = 3

Reconciled = tuple[dict[str, Counts], Mapping[str, float]]  # by place; latencies, if they are known


class Clerk(ABC):
    """One of the two."""

    by: str
    state = "waiting"  # for the screen
    moved = 0

    @abstractmethod
    def start(self) -> None:
        """In the background."""

    @abstractmethod
    def check(self) -> None:
        """Raise now what would be raised when it is asked for something."""

    @abstractmethod
    def drain(self, stage: Stage, waiting: Waiting) -> None:
        """Until the backlog is empty."""

    @abstractmethod
    def reconcile(self, ledger: Ledger, waiting: Waiting) -> Reconciled:
        """What was accepted against what arrived; the ledgers are in the folder as well."""

    @abstractmethod
    def price(self, stage: Stage, waiting: Waiting) -> Bill:
        """What the servers have metered; they have stopped."""

    @abstractmethod
    def close(self) -> None:
        """End what was started, whatever state it is in."""


class SparkClerk(Clerk):
    """Asks a separate process, which has opened a session meanwhile."""

    by = "Spark"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "spark.log"
        self._process: subprocess.Popen[str] | None = None
        self._answers: list[dict[str, Any]] = []
        self._is_ready = threading.Event()
        self._reader: threading.Thread | None = None

    def start(self) -> None:
        scratch = self._folder / "spark"
        scratch.mkdir()
        self.state = "Spark is starting"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-m", "twinbus.drill.spark_main", str(scratch)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                # What it forgets to delete is deleted with the drill's own folder.
                env={**os.environ, "TMPDIR": str(scratch)},
            )
        self._reader = threading.Thread(target=self._read, name="spark", daemon=True)
        self._reader.start()

    def check(self) -> None:
        if self._has_ended:
            raise self._failure()

    def drain(self, stage: Stage, waiting: Waiting) -> None:
        self._wait_until_ready(waiting)
        self.state = "Spark drains the backlog"
        self._ask(
            waiting,
            task="syphon",
            primary=stage.primary.connection_string,
            secondary=stage.secondary.connection_string,
            queues=stage.backlog_queues(),
        )
        self.state = "Spark has drained the backlog"

    def reconcile(self, ledger: Ledger, waiting: Waiting) -> Reconciled:
        self.state = "Spark reconciles"
        del ledger  # Spark reads what was written of it
        sent, arrived = (str(self._folder / name) for name in (SENT, ARRIVED))
        found = self._ask(waiting, task="reconcile", sent=sent, arrived=arrived)
        return read_reconciliation(found)

    def price(self, stage: Stage, waiting: Waiting) -> Bill:
        self.state = "Spark prices the meters"
        servers = (stage.primary, stage.secondary)
        found = self._ask(waiting, task="cost", data=[str(each.data_dir) for each in servers])
        self.state = "Spark is done"
        return Bill(**found)

    def close(self) -> None:
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        try:
            process.stdin.close()  # nothing more to do: it ends by itself
            process.wait(0 if self.state != "Spark is done" else _END_S_MAX)
        except (OSError, subprocess.TimeoutExpired):
            pass
        end_session(process)
        if self._reader is not None:
            self._reader.join(_END_S_MAX)

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                told = json.loads(line)
                if "ready" in told:
                    self.by = f"Spark {told['ready']}"
                    self.state = f"{self.by} is ready"
                    self._is_ready.set()
                elif "moved" in told:
                    self.moved = told["moved"]
                else:
                    self._answers.append(told)

    def _wait_until_ready(self, waiting: Waiting) -> None:
        if not waiting.until(lambda: self._is_ready.is_set() or self._has_ended, READY_S_MAX):
            raise DrillFailed("Spark did not start in time; --no-spark does without it")
        if not self._is_ready.is_set():
            raise self._failure()

    def _ask(self, waiting: Waiting, **task: object) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        self._answers.clear()
        try:
            self._process.stdin.write(json.dumps(task) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._failure() from error
        if not waiting.until(lambda: self._has_answer or self._has_ended, TASK_S_MAX):
            raise DrillFailed(f"Spark did not finish in time ({task['task']})")
        for told in self._answers:
            if "done" in told:
                done: dict[str, Any] = told["done"]
                return done
        raise self._failure()

    @property
    def _has_answer(self) -> bool:
        return any("done" in told or "failed" in told for told in self._answers)

    @property
    def _has_ended(self) -> bool:
        return self._reader is None or not self._reader.is_alive()

    def _failure(self) -> DrillFailed:
        said = [told["failed"] for told in self._answers if "failed" in told]
        if not said:
            text = self._log.read_text(errors="replace")
            said = text.strip().splitlines()[-_LOG_LINES_SHOWN:] or ["its process has ended"]
        return DrillFailed(f"Spark could not do it: {' '.join(said)}; --no-spark does without it")


class PlainClerk(Clerk):
    """The syphon of the pair itself, and a reconciliation in memory."""

    by = "twinbus pair drain, without Spark"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.state = "without Spark: twinbus pair drain will do it"

    def check(self) -> None:
        """Nothing is begun that could have failed."""

    def drain(self, stage: Stage, waiting: Waiting) -> None:
        self.state = "twinbus pair drain"
        log_path = self._folder / "drain.log"
        command = [sys.executable, "-m", "twinbus", "pair", "drain", "--json"]
        command += ["--primary", stage.primary.connection_string]
        command += ["--secondary", stage.secondary.connection_string]
        with log_path.open("w") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        process = self._process
        waiting.until(lambda: process.poll() is not None or _is_empty(stage), TASK_S_MAX)
        # It would look for more for a while; nobody sends there any more.
        process.terminate()
        process.wait()
        if not _is_empty(stage):
            said = log_path.read_text(errors="replace").strip().splitlines()[-_LOG_LINES_SHOWN:]
            raise DrillFailed(f"the backlog could not be drained: {' '.join(said)}")
        self.state = "the backlog is drained"

    def reconcile(self, ledger: Ledger, waiting: Waiting) -> Reconciled:
        del waiting
        self.state = "reconciles"
        return reconcile(ledger), {}

    def price(self, stage: Stage, waiting: Waiting) -> Bill:
        del waiting
        lines = [*read_meter(stage.primary.data_dir), *read_meter(stage.secondary.data_dir)]
        self.state = "done"
        return bill_of_lines(lines, shipped_prices())

    def close(self) -> None:
        if self._process is not None:
            end_session(self._process)


def _is_empty(stage: Stage) -> bool:
    """Whether the backlog is; messages that a syphon has locked are still counted."""
    counts = stage.backlog()
    return counts is not None and counts[0] == 0


def read_reconciliation(document: Mapping[str, Any]) -> Reconciled:
    """What the pipeline's reconciliation says, as the judge wants it."""
    places = {each["entity"]: Counts.read(each) for each in document["entities"]}
    latency = document["total"]["latency_ms"] or {}
    shown = {name: latency[name] for name in ("p50", "p99", "max") if name in latency}
    return places, shown


def end_session(process: subprocess.Popen[Any]) -> None:
    """Kill what is left of a process and of those it has started, Spark's own groups included."""
    for pid in _of_session(process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue  # gone meanwhile
    process.wait()


def _of_session(session: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if os.getsid(int(entry.name)) == session:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
