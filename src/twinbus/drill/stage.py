"""The two namespaces: a `twinbus serve` each, in processes of their own, and how the primary fails.

The primary has two brokers.  Both servers have process groups of their own, so that a Ctrl-C at
the terminal is ours to handle, and a `kill -9` takes the brokers along.
"""

import re
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from twinbus.client.admin import QUEUE, SUBSCRIPTION, TOPIC
from twinbus.client.faults import FaultClient
from twinbus.client.http import REFUSED, HttpClient, Unreachable
from twinbus.clock import monotonic_s
from twinbus.drill.plan import CARTS, NEWS, ORDERS, PAYMENTS, SUBSCRIPTIONS, Fault
from twinbus.drill.waiting import Waiting
from twinbus.errors import TwinbusError
from twinbus.launch import ServerFailed, ServerProcess

# Short, so that what a receiver held when its server died is handed out again soon.
LOCK_DURATION: Final = "PT5S"
SESSION_LOCK_DURATION: Final = "PT10S"
# A drill writes little, and the files of the log are made in advance.
_SMALL_LOG: Final = ("--segment-size", "16")
STATES: Final[dict[Fault, str]] = {"kill": "down", "hang": "hangs", "cut": "cut off"}
CUT: Final = "cut-namespace"
_RESTART_S_MAX: Final = 20.0
_BACKLOG: Final = re.compile(
    rb'^servicebus_(active|deadlettered)_messages\{[^}]*entity="([^"]*)"\} (\d+)', re.MULTILINE
)


class DrillFailed(TwinbusError):
    """The drill could not be carried out; that says nothing of the bus."""


class Stage:
    """Primary and secondary; `close` ends whatever still runs."""

    def __init__(self, directory: Path) -> None:
        self.primary = ServerProcess(
            directory / "primary", arguments=[*_SMALL_LOG, "--brokers", "2"], own_group=True
        )
        self.secondary = ServerProcess(
            directory / "secondary", arguments=_SMALL_LOG, own_group=True
        )
        self.primary_state = self.secondary_state = "starting"  # for people

    def start(self) -> None:
        with ThreadPoolExecutor(2) as threads:
            starting = [threads.submit(each.start) for each in (self.primary, self.secondary)]
        for each in starting:
            try:
                each.result()
            except ServerFailed as error:
                raise DrillFailed(
                    f"a namespace of the drill did not start: {_reason(error)}"
                ) from error
        self.primary_state = self.secondary_state = "up"
        self._create_entities()

    def _create_entities(self) -> None:
        admin = self.primary.admin
        lock = {"LockDuration": LOCK_DURATION, "MaxDeliveryCount": "1000"}
        session_lock = {**lock, "LockDuration": SESSION_LOCK_DURATION}
        admin.create_queue(ORDERS.name, {"EnablePartitioning": "true", **lock})
        admin.create_queue(PAYMENTS.name, lock)
        admin.create_queue(CARTS.name, {"RequiresSession": "true", **session_lock})
        admin.create(TOPIC, (NEWS.name,), {})
        for name in SUBSCRIPTIONS:
            admin.create(SUBSCRIPTION, (NEWS.name, name), lock)

    def shorten_backlog_locks(self) -> None:
        """A syphon leaves what it has to keep locked, which is for a minute by default."""
        for name in self.backlog_queues():
            self.secondary.admin.update(QUEUE, (name,), {"LockDuration": LOCK_DURATION})

    # --- the outage -------------------------------------------------------------------------------

    def fail(self, fault: Fault) -> None:
        self.primary_state = STATES[fault]
        if fault == "kill":
            self.primary.kill()
        elif fault == "hang":
            self.primary.signal(signal.SIGSTOP)
        else:
            FaultClient(self.primary.connection_string).add({"kind": CUT})

    def mend(self, fault: Fault, waiting: Waiting) -> None:
        if fault == "kill":
            self._restart(waiting)
        elif fault == "hang":
            self.primary.signal(signal.SIGCONT)
        else:
            faults = FaultClient(self.primary.connection_string)
            for each in faults.list():
                if each["kind"] == CUT:
                    faults.clear(str(each["id"]))
        self.primary_state = "up"

    def _restart(self, waiting: Waiting) -> None:
        """On the same port, which a connection that is on its way may hold for a moment."""
        end_s = monotonic_s() + _RESTART_S_MAX
        while True:
            try:
                self.primary.restart()
            except ServerFailed as error:
                if monotonic_s() > end_s:
                    raise DrillFailed(
                        f"the primary did not start again: {_reason(error)}; see whether somebody "
                        f"has taken its port {self.primary.port}, and run the drill once more"
                    ) from error
                waiting.pause(0.5)
            else:
                return

    # --- what is where ----------------------------------------------------------------------------

    def backlog(self) -> tuple[int, int] | None:
        """Active and dead-lettered messages of the backlog queues; None: there was no answer.

        Read from the metrics, which cost no operation that would be billed.
        """
        try:
            client = HttpClient(self.secondary.connection_string)
            status, text = client.exchange("GET", "/metrics", None, {})
        except Unreachable:
            return None
        return None if status >= REFUSED else backlog_counts(text)

    def backlog_queues(self) -> list[str]:
        names = (queue.name for queue in self.secondary.admin.list_queues())
        return sorted(name for name in names if "/x-servicebus-transfer/" in name)

    def stop(self) -> None:
        """In an orderly way, so that the meters are complete."""
        for server in (self.primary, self.secondary):
            try:
                server.stop()
            except (ServerFailed, subprocess.TimeoutExpired) as error:
                raise DrillFailed(f"a namespace of the drill did not stop: {error}") from error
        self.primary_state = self.secondary_state = "stopped"

    def close(self) -> None:
        for server in (self.primary, self.secondary):
            if server.running:
                server.kill()


def _reason(error: ServerFailed) -> str:
    """The last thing that a server said, in one line and without a second reason."""
    lines = [line.strip() for line in error.text.splitlines() if line.strip()]
    return lines[-1].replace("; ", ", ")[:300] if lines else f"exit code {error.exit_code}"


def backlog_counts(metrics: bytes) -> tuple[int, int]:
    """Of all backlog queues together, from the text of `/metrics`."""
    sums = {b"active": 0, b"deadlettered": 0}
    for what, entity, count in _BACKLOG.findall(metrics):
        if b"/x-servicebus-transfer/" in entity:
            sums[what] += int(count)
    return sums[b"active"], sums[b"deadlettered"]
