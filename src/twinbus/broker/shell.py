"""The broker's shell: the loop, the commit thread and the maintenance thread.

The disk sets the rhythm: at most one commit is in flight, and what arrives meanwhile is the next
one.  Who writes it is decided by CommitMode: the loop itself, the kernel beside it, a thread.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from twinbus.broker.broker import Broker
from twinbus.broker.commit_ring import CommitRing
from twinbus.broker.stall import StalledReply
from twinbus.clock import Clock
from twinbus.entities.commands import Reply
from twinbus.entities.fields import MessageCodec
from twinbus.errors import StorageError
from twinbus.limits import REPLY_STALLED_MS
from twinbus.storage.log import Commit
from twinbus.storage.maintenance import Task
from twinbus.storage.store import Store

log = logging.getLogger("twinbus.broker")

MAINTENANCE_INTERVAL_S: Final = 0.05
SMALL_SIZE_BYTES_MAX: Final = 1 << 16
LARGE_SIZE_BYTES_MAX: Final = 1 << 20
SLOW_MS: Final = 5  # longer than that nobody else should be kept waiting
PAUSE_MIN: Final = 16  # commits
PAUSE_MAX: Final = 1_024


class BrokerShell:
    """Runs one broker on an asyncio loop."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        on_replies: Callable[[list[Reply]], None],
        on_failure: Callable[[BaseException], None],
        codec: MessageCodec | None = None,
        writes_inline: bool = True,
        is_one_of_many: bool = False,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        # Off where other stores share the loop: they must not wait for this one's disk.
        self.writes_inline = writes_inline
        self._on_failure = on_failure
        self.broker = Broker(store, clock, self._wake, on_replies, codec, is_one_of_many)
        self.broker.turn_now = self._turn
        self._store = store
        self._committing = False
        self._open_since_ms = -1  # monotonic; since when something has not been durable
        self._failed = False
        self._failure = ""
        self._turns_failed = 0  # in a row
        self._stalled = StalledReply()
        self._is_stalled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = -1
        self._idle: asyncio.Future[None] | None = None
        self._commits = _Worker("twinbus-commit", self._loop)
        self._ring = CommitRing(store.ring(), self._loop, self._written, self._write_by_thread)
        self._mode = CommitMode(self._ring.is_there)
        self._tasks = _Worker("twinbus-maintenance", self._loop)
        self._maintenance: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self.broker.entities.note_all()
        self._arm()
        self._maintain()

    # -- turns and commits -----------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._failed:
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        if self._failed:
            return
        broker = self.broker
        try:
            commit = broker.turn(may_commit=not self._committing)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not go on for ever
            self._turn_failed(error)
            return
        self._turns_failed = 0
        self._arm()
        if self._open_since_ms < 0 and not self._quiet(commit):
            self._open_since_ms = self._clock.now().mono_ms
        if commit is None:
            self._settle_idle()
            return
        self._committing = True
        if self.writes_inline and self._mode.may_wait(commit.size, broker.light):
            self._write(commit)
        elif not self._ring.begin(commit):
            self._write_by_thread(commit)

    def _turn_failed(self, error: Exception) -> None:
        # Once may be bad luck, and the next turn goes on behind it.  Twice means that queues hold
        # something that the log will never have: only reading back what it has helps.
        self._turns_failed += 1
        if self._turns_failed > 1:
            text = f"what was decided cannot be carried out: {error}"
            self._fail(StorageError(text).with_traceback(error.__traceback__))
        else:
            log.error("a turn failed and is tried again", exc_info=error)
            self._loop.call_soon(self._turn)

    def _write_by_thread(self, commit: Commit) -> None:
        self._commits.put(commit.write, lambda error: self._written(commit, error))

    def _write(self, commit: Commit) -> None:
        began_ms = self._clock.now().mono_ms
        error = _attempt(commit.write)
        self._mode.waited(self._clock.now().mono_ms - began_ms)
        self._written(commit, error)

    def _written(self, commit: Commit, error: BaseException | None) -> None:
        if error is not None:
            self._fail(error)
            return
        self._committing = False
        self._open_since_ms = -1 if not self._store.facts else self._clock.now().mono_ms
        self.broker.committed(commit)
        self._settle_idle()
        if self._store.has_urgent_task and self._maintenance is not None:
            self._maintenance.cancel()
            self._maintain()

    def commit_age_ms(self) -> int:
        """For how long the oldest change that is not durable has been waiting; 0: there is none."""
        if self._open_since_ms < 0:
            return 0
        return self._clock.now().mono_ms - self._open_since_ms

    def trouble(self) -> str:
        """What is wrong, for people; empty when nothing is.  To be asked every few seconds."""
        if self._failed:
            return self._failure
        was_stalled = self._is_stalled
        now_ms = self._clock.now().mono_ms
        self._is_stalled = self._stalled.look(self.broker.unwritten(), now_ms)
        if not self._is_stalled:
            return ""
        seconds = REPLY_STALLED_MS // 1_000
        text = (
            f"{self.broker.open_count} replies wait, for {seconds} s or more, for a change that is "
            "not being written"
        )
        if not was_stalled:
            log.error("%s: restart this server, and report it with the log", text)
        return text

    def _settle_idle(self) -> None:
        idle = self._idle
        if idle is not None and not idle.done() and self._quiet(None):
            idle.set_result(None)

    def _quiet(self, commit: Commit | None) -> bool:
        return commit is None and not self._committing and not self._store.facts

    def _fail(self, error: BaseException) -> None:
        """Nothing is acknowledged after this; the process ends and recovers from the log."""
        if not self._failed:
            self._failed = True
            self._failure = str(error) or type(error).__name__
            log.critical("store failed, stopping: %s", error)
            self._on_failure(error)

    # -- time ------------------------------------------------------------------------------------

    def _arm(self) -> None:
        due = self.broker.entities.timers.next_ms
        if due < 0 or (self._timer is not None and self._timer_ms <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0, due - self._clock.now().mono_ms) / 1_000
        self._timer_ms = due
        self._timer = self._loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if not self._failed:
            self.broker.entities.tick()
            self._arm()

    # -- maintenance -----------------------------------------------------------------------------

    def _maintain(self) -> None:
        """Preallocate, snapshot, reclaim: one task at a time, in the background."""
        self._maintenance = None
        if self._failed:
            return
        try:
            task = self._store.next_task(self._clock.now())
        except StorageError as error:
            self._fail(error)
            return
        if self._store.facts:
            self.broker.ask_for_turn()
        if task is None:
            self._maintenance = self._loop.call_later(MAINTENANCE_INTERVAL_S, self._maintain)
        else:
            self._tasks.put(task.run, lambda error: self._maintained(task, error))

    def _maintained(self, task: Task, error: BaseException | None) -> None:
        if self._failed:
            return
        if error is not None:
            self._fail(error)
            return
        try:
            self._store.finish_task(task)
        except StorageError as failure:  # a commit has failed while the task was under way
            self._fail(failure)
            return
        self._maintenance = self._loop.call_later(0, self._maintain)

    # -- end -------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Make durable what was decided, then stop the threads and close the store."""
        if self._maintenance is not None:
            self._maintenance.cancel()
            self._maintenance = None  # and no commit begins it anew
        if not self._failed:
            self._idle = self._loop.create_future()
            self._wake()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle, timeout=5)
        self._failed = True  # nothing more is accepted
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.stop()
        await self._ring.stop()
        await self._commits.stop()
        self._store.close()


def _attempt(work: Callable[[], None]) -> BaseException | None:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - whatever it is, the store is not to be trusted
        return error
    return None


class CommitMode:
    """Whether the loop waits for the disk itself, or has a thread wait for it.

    The best is to have the kernel write beside the loop (`storage/ring.py`); but a commit of few
    messages is sooner written than handed over.  Where there is no ring it is the turn of a thread.
    That shares Python's lock with the loop, and a loop that is busy gives it back late.  What this
    costs depends on the commit (docs/designs has the figures):

        few messages     being handed over and back takes as long as the sync: the loop waits
        many, but small  settlements: nearly all of it is the disk's time, which the loop can use
        large            messages: much of it is joining, checksum and copying: the loop waits
        very large       takes its time on any disk: others should not be kept waiting for so long

    And the loop waits only as long as the disk is quick.  One that was slow is left to others for
    some commits, then tried again; each time it is still slow, for twice as many.
    """

    __slots__ = ("_has_ring", "_left", "_pause")

    def __init__(self, has_ring: bool) -> None:
        self._has_ring = has_ring
        self._left = 0  # so many commits are not the loop's
        self._pause = PAUSE_MIN

    def may_wait(self, size: int, is_light: bool) -> bool:
        """Is the loop to write a commit of so many bytes, light if it is of few messages?"""
        is_large = SMALL_SIZE_BYTES_MAX < size <= LARGE_SIZE_BYTES_MAX
        if not is_light and (self._has_ring or not is_large):
            return False
        if self._left > 0:
            self._left -= 1
            return False
        return True

    def waited(self, duration_ms: int) -> None:
        """The loop has written one, and it took so long."""
        if duration_ms < SLOW_MS:
            self._pause = PAUSE_MIN
        else:
            self._left = self._pause
            self._pause = min(2 * self._pause, PAUSE_MAX)


Done = Callable[[BaseException | None], None]


class _Worker:
    """A thread that runs work in order and reports on the loop."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: SimpleQueue[tuple[Callable[[], None], Done] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], None], done: Done) -> None:
        self._queue.put((work, done))

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            work, done = entry
            error = _attempt(work)
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody is waiting
                self._loop.call_soon_threadsafe(done, error)

    async def stop(self) -> None:
        self._queue.put(None)
        await self._loop.run_in_executor(None, self._thread.join)
