"""Starting, speaking to, and ending a broker process (worker.py).

Everything sent in one loop turn goes in one frame.  When the process has ended, its last messages
are handled first.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Final

from twinbus.links.remote.channel import Channel, ChannelError
from twinbus.links.remote.operations import ANY, CONFIGURE, END, Operation

log = logging.getLogger("twinbus.remote")

STOP_S_MAX: Final = 15.0  # stores finish their commits; then it is killed
STACKS_S_MAX: Final = 0.5
_STACKS_STEP_S: Final = 0.02
_STACKS_BYTES_MAX: Final = 1_048_576

OnOperations = Callable[["BrokerProcess", list[Operation]], None]
OnEnded = Callable[["BrokerProcess", int], None]


class BrokerProcess(asyncio.Protocol):
    """One process; a Sender for the stores that it runs."""

    def __init__(self, index: int, on_operations: OnOperations, on_ended: OnEnded) -> None:
        self.index = index
        self._on_operations = on_operations
        self._on_ended = on_ended
        self._loop = asyncio.get_running_loop()
        self._channel = Channel()
        self._unsent: list[Operation] = []
        self._transport: asyncio.Transport | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stacks = -1
        self._watched = -1
        self._is_heard_out = False
        self._is_stopping = False
        self._returncode: int | None = None
        self._gone = self._loop.create_future()
        self.last_words = ""  # where it was when it crashed

    @property
    def pid(self) -> int:
        return -1 if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._returncode is None

    # -- beginning ---------------------------------------------------------------------------------

    async def start(self, settings: dict[str, object]) -> None:
        """OSError when there can be no such process."""
        ours, theirs = socket.socketpair()
        self._stacks = os.memfd_create(f"stacks-{self.index}", os.MFD_CLOEXEC)
        passed = (theirs.fileno(), self._stacks)
        command = [sys.executable, "-m", "twinbus.host.brokers.worker", *map(str, passed)]
        try:
            # Here and not in a thread: the kernel ends the process with the thread that made it.
            self._process = subprocess.Popen(  # noqa: S603, ASYNC220 - our own program
                command, stdin=subprocess.DEVNULL, pass_fds=passed
            )
        except OSError:
            ours.close()
            os.close(self._stacks)
            raise
        finally:
            theirs.close()
        self._watched = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._watched, self._ended)
        await self._loop.create_connection(lambda: self, sock=ours)
        self.send((CONFIGURE, ANY, settings))

    # -- speaking ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def send(self, operation: Operation) -> None:
        if not self._unsent:
            self._loop.call_soon(self.flush)
        self._unsent.append(operation)

    def flush(self) -> None:
        unsent = self._unsent
        if unsent:
            self._unsent = []
            if self._transport is not None and not self._transport.is_closing():
                self._transport.write(self._channel.encode(unsent))

    def data_received(self, data: bytes) -> None:
        try:
            operations = self._channel.receive_data(data)
        except ChannelError as error:
            log.critical("broker %d: %s", self.index, error)
            self.kill()
            return
        if operations:
            self._on_operations(self, operations)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_heard_out = True
        if not self._is_stopping:
            self.kill()  # a process that we cannot speak to is of no use
        self._finish()

    # -- ending ------------------------------------------------------------------------------------

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """SIGSTOP and SIGCONT too: standing still is a fault that can be had on purpose."""
        if self.is_running and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def stop(self, timeout_s: float = STOP_S_MAX) -> None:
        """Let it close its stores and end; kill it if that takes too long."""
        if self.is_running:
            self._is_stopping = True
            self.send((END, ANY))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._gone), timeout_s)
            self.kill()
        await self._gone

    def _ended(self) -> None:
        assert self._process is not None
        self._loop.remove_reader(self._watched)
        self._returncode = self._process.wait()
        self._finish()

    def _finish(self) -> None:
        if self._is_heard_out and self._returncode is not None and not self._gone.done():
            os.close(self._watched)
            self._gone.set_result(None)
            self.last_words = self._read_stacks()
            self._on_ended(self, self._returncode)
            os.close(self._stacks)
            self._stacks = -1

    # -- looking inside ----------------------------------------------------------------------------

    async def stacks(self) -> str:
        """Where each of its threads is now; empty if it cannot even say that."""
        if not self.is_running:
            return ""
        os.ftruncate(self._stacks, 0)
        os.lseek(self._stacks, 0, os.SEEK_SET)  # where the process goes on writing, too
        self.signal(signal.SIGUSR1)
        size = 0
        for _ in range(int(STACKS_S_MAX / _STACKS_STEP_S)):
            await asyncio.sleep(_STACKS_STEP_S)
            if self._stacks < 0:
                return ""
            before, size = size, os.fstat(self._stacks).st_size
            if size and size == before:
                break
        return self._read_stacks()

    def _read_stacks(self) -> str:
        return os.pread(self._stacks, _STACKS_BYTES_MAX, 0).decode("utf-8", "replace")
