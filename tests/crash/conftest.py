"""Fixtures of the crash tests: a server with the load's queues, a disk that fails on request."""

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.crash.crashing import LOCK_DURATION_MS, QUEUES, FaultyDisk
from twinbus.testing.server import ServerProcess


@pytest.fixture(scope="session")
def faulty_disk_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = Path(__file__).with_name("faulty_disk.c")
    library = tmp_path_factory.mktemp("faulty-disk") / "faulty_disk.so"
    compiler = os.environ.get("CC", "cc")
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run([*command, "-lpthread"], check=True)
    return library


@pytest.fixture
def faulty_disk(faulty_disk_library: Path, tmp_path: Path) -> FaultyDisk:
    requests = tmp_path / "requests"
    requests.mkdir()
    return FaultyDisk(faulty_disk_library, requests)


@pytest.fixture
def server_with_queues(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Starts a server that has the queues of the load; the test ends it, or the fixture does."""
    started: list[ServerProcess] = []

    def start(environment: Mapping[str, str] | None = None) -> ServerProcess:
        server = ServerProcess(tmp_path / "data", environment=environment)
        server.start()
        started.append(server)
        for queue in QUEUES:
            # Running out of deliveries is not what is tested here.
            lock_duration = f"PT{LOCK_DURATION_MS // 1_000}S"
            server.create_queue(queue, lock_duration=lock_duration, max_delivery_count=1_000_000)
        return server

    yield start
    for server in started:
        if server.running:
            server.kill()
