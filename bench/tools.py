"""The C tools: built once, run as programs that print one line of JSON.

`amqpbench` is the load generator (one client for every broker, so that only the brokers differ),
`phys` measures what the machine itself can do.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BUILD = HERE.parent / "build" / "bench"
PACKAGES = ("gcc", "libqpid-proton11-dev", "libsasl2-modules", "rabbitmq-server")
LIBRARIES = {"amqpbench": ("-lqpid-proton", "-lpthread"), "phys": ("-lpthread",)}
QUIET_CORES = 0.25  # others may use so much while we measure
PAUSE_S = (
    2.0  # what a broker still does after a load (ours makes a spare segment) is not the next's
)
QUIET_WAIT_S = 20.0


def prepare() -> None:
    """Have everything the measurements need, or say how to get it and end."""
    missing = [what for what, there in _needs().items() if not there]
    if missing:
        _install(missing)
    BUILD.mkdir(parents=True, exist_ok=True)
    for name, libraries in LIBRARIES.items():
        source, program = HERE / f"{name}.c", BUILD / name
        if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
            compiler = os.environ.get("CC", "cc")
            command = [compiler, "-O2", "-std=gnu11", "-o", str(program), str(source), *libraries]
            subprocess.run(command, check=True)


def _needs() -> dict[str, bool]:
    return {
        "a C compiler (gcc)": shutil.which(os.environ.get("CC", "cc")) is not None,
        "the AMQP client library (libqpid-proton11-dev)": Path(
            "/usr/include/proton/connection_driver.h"
        ).exists(),
        "RabbitMQ (rabbitmq-server)": shutil.which("rabbitmq-server", path="/usr/sbin:/usr/bin")
        is not None,
    }


def _install(missing: list[str]) -> None:
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *PACKAGES]
    print(f"missing: {', '.join(missing)}")
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        sys.exit(f"install what is missing, on Debian with: sudo {' '.join(command)}")
    print("running:", " ".join(command))
    # Debian starts what it installs; the measurements start their own on ports of their own.
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        subprocess.run(["apt-get", "update", "--quiet"], check=True)
        subprocess.run(command, check=True)
    finally:
        if ours:
            policy.unlink()


def run(tool: str, *arguments: object) -> dict[str, Any]:
    """Run a tool; its line of JSON, or the end of everything with the reason."""
    command = [str(BUILD / tool), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    try:
        result: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        sys.exit(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    if done.returncode != 0 or not result.get("ok", True):
        sys.exit(f"{' '.join(command)}: {result.get('error')} {done.stderr}")
    return result


def wait_for_quiet() -> bool:
    """Wait a while for the machine to have nothing else to do; says whether it came to that."""
    time.sleep(PAUSE_S)
    deadline = time.monotonic() + QUIET_WAIT_S
    while True:
        before, began = _busy_s(), time.monotonic()
        time.sleep(0.4)
        if (_busy_s() - before) / (time.monotonic() - began) < QUIET_CORES:
            return True
        if time.monotonic() > deadline:
            return False


def _busy_s() -> float:
    user, nice, system = map(int, Path("/proc/stat").read_text().split(maxsplit=4)[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")
