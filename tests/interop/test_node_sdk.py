"""The official Node SDK, `@azure/service-bus` from npm, against the same server.

The SDK is installed once, exactly as `node/package-lock.json` pins it, into `build/`.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.proves("M-13")

NODE = Path(__file__).parent / "node"
BUILD = Path(__file__).parents[2] / "build" / "interop-node"

SCENARIOS = [
    "properties",
    "batches",
    "abandon",
    "deadLetter",
    "defer",
    "peek",
    "schedule",
    "receiveAndDelete",
    "renew",
    "subscribe",
    "large",
    "missing",
]


def find_program(name: str) -> str:
    places = (str(Path(sys.executable).parent), os.environ.get("PATH", ""))
    program = shutil.which(name, path=os.pathsep.join(places))
    if program is None:
        pytest.fail(f"`{name}` is not there; `make setup` installs Node.js with npm into .venv")
    return program


@pytest.fixture(scope="module")
def node_modules() -> Path:
    """The pinned SDK, ready to be required."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes, and one installs
        _install()
    return BUILD / "node_modules"


def _install() -> None:
    stamp = BUILD / "installed"
    digest = hashlib.sha256((NODE / "package-lock.json").read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return
    for name in ("package.json", "package-lock.json"):
        shutil.copy(NODE / name, BUILD)
    command = [find_program("npm"), "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    done = subprocess.run(command, cwd=BUILD, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(f"`npm ci` could not install @azure/service-bus:\n{done.stderr}")
    stamp.write_text(digest)


def run(server: ServerProcess, node_modules: Path, script: str, scenario: str, queue: str) -> None:
    environment = {
        **os.environ,
        "NODE_PATH": str(node_modules),
        "TWINBUS_CONNECTION_STRING": server.connection_string,
    }
    command = [find_program("node"), str(NODE / script), scenario, queue]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.proves("M-13")
@pytest.mark.feature(
    "send.batch",
    "send.properties",
    "send.schedule",
    "receive.modes",
    "receive.wait",
    "receive.settle",
    "receive.dead-letter",
    "receive.locks",
    "receive.deferred",
    "receive.peek",
)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(server: ServerProcess, queue: str, node_modules: Path, scenario: str) -> None:
    run(server, node_modules, "scenarios.cjs", scenario, queue)


@pytest.mark.proves("M-4", "M-13")
@pytest.mark.queue(requires_session=True)
@pytest.mark.parametrize("scenario", ["accept", "acceptNext", "state", "subscribe"])
@pytest.mark.feature("session.accept", "session.state", "session.order")
def test_session_scenario(
    server: ServerProcess, queue: str, node_modules: Path, scenario: str
) -> None:
    run(server, node_modules, "sessions.cjs", scenario, queue)
