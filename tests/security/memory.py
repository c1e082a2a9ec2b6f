"""How much memory a server process takes, seen from outside."""

from pathlib import Path

from twinbus.testing.server import ServerProcess

NOW = "VmRSS"
PEAK = "VmHWM"  # the most so far


def memory_bytes(server: ServerProcess, which: str = NOW) -> int:
    status = Path(f"/proc/{server.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if which in line) * 1_024
