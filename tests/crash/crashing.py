"""What the crash tests share: a server under load, and a disk that fails on request.

`TWINBUS_TEST_SIZE=nightly` runs each test at the size that releases are judged by.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from twinbus.testing.checkers import History, check
from twinbus.testing.load import Load
from twinbus.testing.server import ServerProcess

log = logging.getLogger(__name__)

QUEUES = ("load-0", "load-1", "load-2")
LOCK_DURATION_MS = 5_000  # the shortest there is: forgotten messages come back soon


def sized(pull_request: int, nightly: int) -> int:
    """How often to repeat something."""
    return nightly if os.environ.get("TWINBUS_TEST_SIZE") == "nightly" else pull_request


class FaultyDisk:
    """The disk of `faulty_disk.c`: what goes wrong next is said by making a file."""

    def __init__(self, library: Path, requests: Path) -> None:
        self._requests = requests
        self.environment: Mapping[str, str] = {
            "LD_PRELOAD": str(library),
            "FAULTY_DISK": str(requests),
        }

    def fail_once(self, operation: str) -> None:
        """The next `sync` or `write` fails with EIO."""
        (self._requests / f"{operation}-error").touch()

    def has_failed(self, operation: str) -> bool:
        return not (self._requests / f"{operation}-error").exists()

    def fill(self) -> None:
        """From now on there is not one free block."""
        (self._requests / "full").touch()

    def free(self) -> None:
        (self._requests / "full").unlink()


def new_load(server: ServerProcess, history: History, seed: int = 0) -> Load:
    return Load(
        server.connection_string, QUEUES, history, lock_duration_ms=LOCK_DURATION_MS, seed=seed
    )


def message_count(server: ServerProcess) -> int:
    """Messages in all queues, dead-lettered ones too."""
    return sum(int(server.admin.get_queue(queue).properties["MessageCount"]) for queue in QUEUES)


async def assert_nothing_broken(server: ServerProcess, load: Load, run: str) -> None:
    """Take everything out and judge what the clients saw."""
    drained = await load.drain(lambda: message_count(server) == 0)
    report = check(load.history, drained=True)
    log.info("%s: %s", run, report)
    assert report.violations == {}, f"{run}: {report}"
    assert drained, f"{run}: {message_count(server)} messages stay; {report}"
