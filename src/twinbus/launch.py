"""A real `twinbus serve` in a process of its own: start, stop, kill, restart.

The environment is inherited, so PYTHONPATH and TWINBUS_PURE choose which build runs.
"""

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, ClassVar, Final, Self

from twinbus.client.admin import AdminClient
from twinbus.client.connection_string import ConnectionString
from twinbus.errors import TwinbusError

START_DURATION_S_MAX: Final = 60.0
STOP_DURATION_S_MAX: Final = 30.0


class ServerFailed(TwinbusError):
    """The server ended before it was ready; the text is what it wrote to standard error."""

    def __init__(self, exit_code: int, text: str) -> None:
        super().__init__(f"twinbus serve ended with exit code {exit_code}: {text.strip()}")
        self.exit_code = exit_code
        self.text = text


class ServerProcess:
    """One server on one data directory.  The port stays the same over restarts."""

    own_arguments: ClassVar[tuple[str, ...]] = ()  # come before those that are given

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int = 0,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        own_group: bool = False,
        command: str = "serve",
    ) -> None:
        """`command` is `serve`, or one that takes the same options and runs a server too."""
        self.command = command
        self.data_dir = data_dir
        self.port = port
        self.arguments = (*self.own_arguments, *arguments)
        self.environment = dict(environment or {})
        # Then a Ctrl-C at the terminal is not meant for it, and its brokers can be killed with it.
        self.own_group = own_group
        self.connection_string = ""
        self.log_path = data_dir.parent / f"{data_dir.name}.log"
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.running:
            # What has failed already must not have its reason covered by ours.
            self.stop() if kind is None else self.kill()

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """Everything the server has written to standard error, over all restarts."""
        return self.log_path.read_text() if self.log_path.exists() else ""

    @property
    def admin(self) -> AdminClient:
        return AdminClient(self.connection_string)

    def start(self) -> str:
        """Start, wait until it is ready, give back the connection string it printed."""
        assert not self.running
        command = [sys.executable, "-m", "twinbus", self.command, "--data", str(self.data_dir)]
        command += ["--port", str(self.port), *self.arguments]
        # A file, not a pipe: nobody reads while it runs, and a full pipe would stop the server.
        with self.log_path.open("a") as log:
            process = subprocess.Popen(  # noqa: S603 - our own program
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **self.environment},
                start_new_session=self.own_group,
            )
        self._process = process
        assert process.stdout is not None
        line = _first_line(process.stdout)
        if not line:
            raise ServerFailed(self._wait_or_kill(process), self.log)
        self.connection_string = line.strip()
        port = ConnectionString.parse(self.connection_string).port
        assert port is not None
        self.port = port
        return self.connection_string

    def stop(self) -> None:
        """SIGTERM, as an operator would; anything but a clean end is an error."""
        exit_code = self.end(signal.SIGTERM)
        if exit_code != 0:
            raise ServerFailed(exit_code, self.log)

    def kill(self) -> None:
        """SIGKILL: no last words, no flushing."""
        self.signal(signal.SIGKILL)
        self.wait()

    def signal(self, number: int) -> None:
        """To the server, and to its brokers as well if it has a group of its own."""
        process = self._running()
        if self.own_group:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)

    def end(self, signal_number: int) -> int:
        """Send a signal and wait for the end; gives the exit code."""
        process = self._running()
        process.send_signal(signal_number)
        return self.wait()

    def wait(self, duration_s: float = STOP_DURATION_S_MAX) -> int:
        """Wait until the process has ended by itself or by a signal; gives the exit code."""
        process = self._running()
        try:
            return process.wait(duration_s)
        except subprocess.TimeoutExpired:
            self._wait_or_kill(process)
            raise
        finally:
            assert process.stdout is not None
            process.stdout.close()

    def restart(self) -> str:
        """Start again after `stop`, `kill` or a crash: same directory, same port."""
        return self.start()

    def _wait_or_kill(self, process: subprocess.Popen[str]) -> int:
        """Its exit code; a process that closed its output but lives on gets no more patience."""
        assert process.stdout is not None
        process.stdout.close()
        try:
            return process.wait(1.0)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None, "the server was never started"
        return self._process


def _first_line(stream: IO[str]) -> str:
    """The first line, or nothing when the stream ends or stays silent for too long."""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        return stream.readline() if selector.select(START_DURATION_S_MAX) else ""
