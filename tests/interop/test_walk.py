"""The walk of one send: how many modules a reader passes from the socket to the disk and back."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypedDict

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from twinbus.client.admin import QUEUE, AdminClient

# Each of these does something of its own (docs/internals/architecture.md walks through them).
MODULES_MAX = 24
# While the disk is slow the kernel writes beside the loop, by two modules more.
BESIDE_THE_LOOP = {"twinbus.broker.commit_ring", "twinbus.storage.ring"}
FOLDER_BORDERS_MAX = 9
SENDS = 10
WAIT_S = 10.0


class Seen(TypedDict):
    """What a walk has passed: modules, and pairs of caller and callee."""

    modules: list[str]
    calls: list[tuple[str, str]]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A server that can be watched, in pure Python, and where it tells what it saw."""
    seen = tmp_path / "walk.json"
    arguments = ["serve", "--data", str(tmp_path / "data"), "--port", "0", "--segment-size", "16"]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.walk", str(seen), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TWINBUS_PURE": "1"},
    ) as process:
        yield process, seen
        process.terminate()


def walk_of(process: subprocess.Popen[str], seen: Path, send: Callable[[], None]) -> Seen:
    """What the server passes through while this is sent."""
    seen.unlink(missing_ok=True)
    process.send_signal(signal.SIGUSR1)
    time.sleep(0.01)
    send()
    process.send_signal(signal.SIGUSR2)
    end = time.monotonic() + WAIT_S
    while not seen.exists() and time.monotonic() < end:
        time.sleep(0.01)
    found: Seen = json.loads(seen.read_text())
    return found


def folder_of(module: str) -> str:
    """The top-level folder, or for a module of the root (the clock) the module."""
    return module.split(".")[1]


def test_one_send_passes_few_modules(watched: tuple[subprocess.Popen[str], Path]) -> None:
    """1 KiB to a plain queue with the official SDK; what else happens meanwhile is not counted:
    only what is on the way of each of several sends."""
    process, seen = watched
    assert process.stdout is not None
    connection_string = process.stdout.readline().strip()
    AdminClient(connection_string).create(QUEUE, ("orders",), {})
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_sender("orders") as sender,
    ):

        def send() -> None:
            sender.send_messages(ServiceBusMessage(bytes(1024)))

        send()
        walks = [walk_of(process, seen, send) for _ in range(SENDS)]
    modules = set.intersection(*(set(each["modules"]) for each in walks)) - BESIDE_THE_LOOP
    calls = set.intersection(*({(a, b) for a, b in each["calls"]} for each in walks))
    pairs = {(folder_of(a), folder_of(b)) for a, b in calls}
    borders = sorted((a, b) for a, b in pairs if a != b and "clock" not in (a, b))
    assert "twinbus.storage.store" in modules, "it did not get to the disk"
    assert len(modules) <= MODULES_MAX, "\n".join(sorted(modules))
    assert len(borders) <= FOLDER_BORDERS_MAX, borders
