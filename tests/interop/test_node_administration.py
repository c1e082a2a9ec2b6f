"""The administration client of the official Node SDK, over TLS, on a real server."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.interop.test_node_sdk import NODE, find_program, node_modules
from twinbus.certificates import ca_certificate
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.proves("M-11", "M-13")

__all__ = ["node_modules"]  # a fixture


def run(server: ServerProcess, node_modules: Path, scenario: str) -> None:
    environment = {
        **os.environ,
        "NODE_PATH": str(node_modules),
        "NODE_EXTRA_CA_CERTS": str(ca_certificate(server.data_dir)),
        "TWINBUS_CONNECTION_STRING": server.connection_string,
    }
    command = [find_program("node"), str(NODE / "administration.cjs"), scenario, f"node-{scenario}"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.feature("entity.queues")
@pytest.mark.parametrize("scenario", ["queues", "pages", "forwarding"])
def test_queues(server: ServerProcess, node_modules: Path, scenario: str) -> None:
    run(server, node_modules, scenario)


@pytest.mark.feature("entity.topics")
def test_topics(server: ServerProcess, node_modules: Path) -> None:
    run(server, node_modules, "topics")


@pytest.mark.feature("entity.rules")
def test_rules(server: ServerProcess, node_modules: Path) -> None:
    run(server, node_modules, "rules")


@pytest.mark.feature("access.sas")
def test_access(server: ServerProcess, node_modules: Path) -> None:
    run(server, node_modules, "access")
