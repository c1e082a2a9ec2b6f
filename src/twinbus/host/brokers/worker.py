"""A broker process: `python -m twinbus.host.brokers.worker SOCKET STACKS`, started by process.py.

    socket ─▶ operations ─▶ Stores ─▶ a BrokerShell for each store ─▶ operations ─▶ socket

Both arguments are descriptors: one end of a socketpair, and where stacks are written on SIGUSR1.
The process ends when the gateway says so or is gone for any reason.  Signals meant for the gateway
(Ctrl-C, a service being stopped) reach it too, and it ignores them.

An unexpected exception means that an invariant is broken.  The process reports it and keeps
running, so that it can be inspected, until it is killed.
"""

import asyncio
import ctypes
import faulthandler
import logging
import os
import random
import resource
import secrets
import signal
import socket
import sys
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from twinbus.broker.broker import Broker
from twinbus.broker.remote.stores import Opened, Stores
from twinbus.broker.shell import BrokerShell
from twinbus.clock import Clock, SystemClock
from twinbus.entities.commands import Reply
from twinbus.errors import StorageError
from twinbus.host.garbage_collection import GarbageCollection
from twinbus.limits import BROKER_BEAT_MS, SEGMENT_SIZE_BYTES
from twinbus.links.remote.beats import Beat, StoreBeat, encode_beat
from twinbus.links.remote.channel import Channel
from twinbus.links.remote.operations import (
    ANY,
    BROKEN,
    CONFIGURE,
    END,
    HIDE,
    LOG,
    PING,
    PONG,
    TELL_LOG,
    Operation,
)
from twinbus.message.filter_fields import StoredMessageCodec
from twinbus.storage.disk import OsDisk
from twinbus.storage.faulty import DiskFaults, FaultyDisk
from twinbus.storage.store import Store
from twinbus.telemetry.logs import TEXT, SecretsFilter, TextFormatter, show_log
from twinbus.telemetry.secrets import KnownSecrets

log = logging.getLogger("twinbus.remote")

SWITCH_INTERVAL_S: Final = 0.0005  # as in host/app.py
LOG_LINES_MAX: Final = 200
# Counting messages takes a while with many entities, and asking a disk may hang: seldom is enough.
BEATS_PER_COUNT: Final = 8
# Unsent bytes beyond which receivers get no more.
OUTPUT_BYTES_MAX: Final = 4_194_304
_PR_SET_PDEATHSIG: Final = 1


class RecentLog(logging.Handler):
    """The newest log lines: all that are kept, and those not yet reported."""

    def __init__(self) -> None:
        super().__init__()
        self.secrets = KnownSecrets()  # none yet: CONFIGURE brings them
        self.setFormatter(TextFormatter())
        self.addFilter(SecretsFilter(self.secrets))
        self.lines: deque[str] = deque(maxlen=LOG_LINES_MAX)
        self._fresh: deque[str] = deque(maxlen=LOG_LINES_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        self.lines.append(line)
        self._fresh.append(line)

    def show(self, log_format: str, level: int) -> None:
        """To standard error; here more is kept, for diagnostics."""
        show_log(log_format, level, self.secrets)
        root = logging.getLogger()
        root.setLevel(min(level, logging.INFO))
        root.addHandler(self)

    def take_fresh(self) -> list[str]:
        fresh = list(self._fresh)
        self._fresh.clear()
        return fresh


class WorkerShell:
    """A broker's shell, in the host's words."""

    def __init__(self, worker: "Worker", shell: BrokerShell, store: Store) -> None:
        self._worker = worker
        self._shell = shell
        self.store = store
        self.message_count = 0

    @property
    def broker(self) -> Broker:
        return self._shell.broker

    def commit_age_ms(self) -> int:
        return self._shell.commit_age_ms()

    def trouble(self) -> str:
        return self._shell.trouble()

    def close(self, then: Callable[[], None]) -> None:
        self._worker.run(self._close(then))

    async def _close(self, then: Callable[[], None]) -> None:
        try:
            await self._shell.close()
        except StorageError as error:
            # What was answered for is durable; only the note of where the log ends is missing.
            log.error("a store was not closed well: %s", error)
        finally:
            then()


class Worker(asyncio.Protocol):
    """The process: the socket's protocol, and the host's Runner."""

    def __init__(self, recent: RecentLog, clock: Clock) -> None:
        self._loop = asyncio.get_running_loop()
        self._recent = recent
        self._clock = clock
        self._channel = Channel()
        self._unsent: list[Operation] = []
        self._transport: asyncio.Transport | None = None
        self._segment_size_bytes = SEGMENT_SIZE_BYTES  # until CONFIGURE says another
        self._is_full = False
        self._is_ending = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._faults: dict[int, DiskFaults] = {}
        self._disks: dict[int, FaultyDisk] = {}
        self._free_bytes: dict[int, int] = {}
        self._asked_free: set[int] = set()
        self._beats = 0
        self._beat_due_s = 0.0
        self.host = Stores(self, self.say, self._full, clock)
        self.ended = self._loop.create_future()

    # -- the socket --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=OUTPUT_BYTES_MAX)
        self._transport = transport
        self._beat_due_s = self._loop.time()
        self._beat()

    def data_received(self, data: bytes) -> None:
        try:
            self._received(self._channel.receive_data(data))
        except Exception as error:  # noqa: BLE001 - asyncio would close the socket for it
            self.broken("an operation failed", error)

    def connection_lost(self, exc: Exception | None) -> None:
        """The gateway is gone: what is not durable was not acknowledged, so there is no hurry."""
        self._end()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self.host.resume()

    def _full(self) -> bool:
        return self._is_full

    def say(self, operation: Operation) -> None:
        """To go out at the end of this turn."""
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(operation)

    def _flush(self) -> None:
        unsent = self._unsent
        self._unsent = []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._channel.encode(unsent))

    def _received(self, operations: list[Operation]) -> None:
        first = 0
        for index, operation in enumerate(operations):
            if operation[1] == ANY:
                self.host.received(operations[first:index])
                first = index + 1
                self._about_the_process(operation)
        self.host.received(operations[first:] if first else operations)

    def _about_the_process(self, operation: Operation) -> None:
        code = operation[0]
        if code == CONFIGURE:
            settings = operation[2]
            self._recent.secrets.add(settings.get("secrets", ()))
            self._recent.show(settings.get("log_format", TEXT), settings["log_level"])
            self._segment_size_bytes = settings.get("segment_size_bytes", self._segment_size_bytes)
        elif code == HIDE:
            self._recent.secrets.add(operation[2])
        elif code == PING:
            self.say((PONG, ANY, operation[2]))
        elif code == TELL_LOG:
            self.say((LOG, ANY, self.recent_log()))
        elif code == END:
            self._is_ending = True
            self._end_if_empty()
        else:
            raise AssertionError(f"operation {code} is none of a process's")

    # -- the end -----------------------------------------------------------------------------------

    def _end_if_empty(self) -> None:
        if not self._is_ending:
            return
        self.host.close_all()  # again and again: one may have been on its way up
        if self.host.is_empty:
            self._flush()
            if self._transport is not None:
                self._transport.close()  # writes what is left, then connection_lost

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def broken(self, text: str, error: BaseException | None) -> None:
        """Something is not as it must be."""
        stack = "".join(traceback.format_exception(error)) if error is not None else ""
        log.critical("invariant failed: %s: %s", text, error)
        self.say((BROKEN, ANY, f"{text}: {error!r}"[:1_000], stack[-16_000:]))

    # -- running stores (a Runner) -----------------------------------------------------------------

    def open_store(self, number: int, path: str, then: Opened) -> None:
        self.run(self._open(number, path, then))

    async def _open(self, number: int, path: str, then: Opened) -> None:
        result: Store | Exception
        try:
            result = await self._loop.run_in_executor(None, self._recover, number, path)
        except Exception as error:  # noqa: BLE001 - whatever it is, the store cannot be run
            result = error
        then(result)

    def _recover(self, number: int, path: str) -> Store:
        faults = self._faults.setdefault(number, DiskFaults(random.random))
        disk = FaultyDisk(OsDisk(path), faults)
        self._disks[number] = disk
        size_bytes = self._segment_size_bytes
        return Store.open(disk, self._clock.now(), secrets.randbits(63), size_bytes)

    def run_store(
        self,
        number: int,
        store: Store,
        on_replies: Callable[[list[Reply]], None],
        on_failure: Callable[[BaseException], None],
    ) -> WorkerShell:
        codec = StoredMessageCodec()
        shell = BrokerShell(
            store,
            self._clock,
            on_replies,
            on_failure,
            codec,
            writes_inline=False,
            is_one_of_many=True,
        )
        shell.start()
        log.info("store %d opened: %d entities", number, len(store.entities))
        return WorkerShell(self, shell, store)

    def set_fault(self, number: int, plan: Any) -> None:
        self._faults.setdefault(number, DiskFaults(random.random)).set(*plan)

    def recent_log(self) -> list[str]:
        return list(self._recent.lines)

    def run(self, work: Any) -> None:
        """Something that takes a while; an exception in it is an invariant's failure."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ran)

    def _ran(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.broken("a task failed", task.exception())
        self._end_if_empty()

    # -- beats -------------------------------------------------------------------------------------

    def _beat(self) -> None:
        now_s = self._loop.time()
        lag_ms = max(0, int((now_s - self._beat_due_s) * 1_000))
        self._beat_due_s = now_s + BROKER_BEAT_MS / 1_000
        self._loop.call_at(self._beat_due_s, self._beat)
        if self._beats % BEATS_PER_COUNT == 0:
            self._count()
        self._beats += 1
        usage = resource.getrusage(resource.RUSAGE_SELF)
        cpu_ms = int((usage.ru_utime + usage.ru_stime) * 1_000)
        stores = [self._store_beat(number) for number in self.host.shells]
        fresh = self._recent.take_fresh()
        self.say(encode_beat(Beat(lag_ms, cpu_ms, _memory_bytes(), stores, fresh)))
        self.host.tick()

    def _store_beat(self, number: int) -> StoreBeat:
        shell = self.host.shells[number]
        assert isinstance(shell, WorkerShell)
        store = shell.store
        return StoreBeat(
            number,
            shell.commit_age_ms(),
            len(store.facts),
            shell.message_count,
            len(store.entities),
            self._free_bytes.get(number, -1),
            *self._faults[number].counts,
            shell.trouble(),
        )

    def _count(self) -> None:
        for number, shell in self.host.shells.items():
            assert isinstance(shell, WorkerShell)
            shell.message_count = shell.broker.message_count()
            if number not in self._asked_free:
                self._asked_free.add(number)
                self.run(self._ask_free(number))

    async def _ask_free(self, number: int) -> None:
        try:
            free = await self._loop.run_in_executor(None, self._disks[number].free_bytes)
            self._free_bytes[number] = free
        except OSError:
            self._free_bytes.pop(number, None)  # it has just been closed
        finally:
            self._asked_free.discard(number)

    def message_count(self) -> int:
        """For the collector."""
        return sum(shell.broker.message_count() for shell in self.host.shells.values())


def _memory_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def _leave_no_orphan() -> None:
    """End with the gateway even when our loop is stuck and cannot see that the socket is closed."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we had asked
        sys.exit(1)


async def _serve(descriptor: int, recent: RecentLog) -> None:
    loop = asyncio.get_running_loop()
    worker = Worker(recent, SystemClock())

    def failed(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        worker.broken(str(context.get("message")), context.get("exception"))

    loop.set_exception_handler(failed)
    garbage_collection = GarbageCollection(worker.message_count)
    garbage_collection.start()
    await loop.create_connection(lambda: worker, sock=socket.socket(fileno=descriptor))
    await worker.ended
    # Threads may be stuck in a disk that does not answer, and nothing that they do counts any more.
    logging.shutdown()
    os._exit(0)


def main(arguments: list[str]) -> None:
    descriptor, stacks = (int(each) for each in arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    faulthandler.enable(file=stacks)  # its last words, if it crashes
    _leave_no_orphan()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    recent = RecentLog()
    recent.show(TEXT, logging.INFO)
    asyncio.run(_serve(descriptor, recent))


if __name__ == "__main__":
    main(sys.argv[1:])
