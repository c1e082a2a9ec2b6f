"""Broker processes: starts them, has them run the stores, and does what the supervisor says.

    processes ── beats, broken, ended ──▶  Supervisor  ── Start, Diagnose, Kill ──▶ processes
    stores ── opened, closed, failed ───▶              ── Open, Close ────────────▶ stores

All decisions are the supervisor's; this is the loop, the processes and the clock.  Nothing that may
hang (a disk, a process) is waited for on the loop.
"""

import asyncio
import contextlib
import functools
import logging
import signal
from collections.abc import Callable, Coroutine
from contextlib import closing
from typing import Final

from twinbus.clock import Clock
from twinbus.config import ServerConfig, record_stores
from twinbus.entities.commands import Listed, dispatch_replies
from twinbus.errors import ConfigError, DirectoryInUse
from twinbus.host.brokers import supervisor as states
from twinbus.host.brokers.diagnostics import LogTail
from twinbus.host.brokers.fault_effects import BrokerEffects
from twinbus.host.brokers.health import BrokerHealth
from twinbus.host.brokers.process import BrokerProcess
from twinbus.host.brokers.process_run import BrokerRun, BrokerRuns
from twinbus.host.brokers.supervisor import (
    Action,
    Close,
    Diagnose,
    Kill,
    Open,
    Start,
    Supervisor,
    Timings,
)
from twinbus.limits import BROKER_BEAT_MS, BROKER_LAG_MS_MAX, BROKER_SILENT_MS_MAX
from twinbus.links.remote.beats import Beat, decode_beat
from twinbus.links.remote.operations import ANY, BEAT, BROKEN, HIDE, Operation
from twinbus.links.remote.remote_store import RemoteStore, dispatch
from twinbus.links.store_link import UP
from twinbus.storage.disk import OsDisk
from twinbus.telemetry.telemetry import Telemetry

log = logging.getLogger("twinbus.server")

START_S_MAX: Final = 60.0  # a store that takes longer joins later
STOP_S_MAX: Final = 10.0  # then a broker is killed; what is acknowledged is durable anyway
IN_USE_S_MAX: Final = 5.0  # the brokers of a server that was killed take a moment to end
IN_USE_PAUSE_S: Final = 0.05
TRIES_MAX: Final = 2  # of a store, while the server starts
STARTS_MAX: Final = 3  # of a broker, while the server starts


class Brokers:
    """All broker processes of a server, and a link to each store."""

    def __init__(self, config: ServerConfig, clock: Clock, telemetry: Telemetry) -> None:
        self._config = config
        self._telemetry = telemetry
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        paths = config.store_paths
        self.links = [
            RemoteStore(number, str(path), clock, dispatch_replies)
            for number, path in enumerate(paths)
        ]
        # Who keeps a list of entities is told what a store has, whenever it has been opened.
        self.on_listing: Callable[[int, list[Listed]], None] = _ignore_listing
        self._timings = _timings(config)
        self._supervisor = Supervisor(config.brokers, len(paths), self._now_ms(), self._timings)
        self._runs = BrokerRuns(config.brokers, len(paths))
        self.effects = BrokerEffects(self._runs)
        self.health = BrokerHealth(self._supervisor, self._runs, self.links)
        self._log_tail = LogTail(telemetry.secrets)
        telemetry.secrets.on_added = self._hide
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._is_closing = False
        for number, link in enumerate(self.links):
            self._connect(number, link)

    def _connect(self, number: int, link: RemoteStore) -> None:
        link.on_opened = lambda listed: self._store_opened(number, listed)
        link.on_closed = lambda: self._store_closed(number)
        link.on_failed = lambda text, lines: self._store_failed(number, text, lines)

    def when_entity_is_gone(self, call: Callable[[int, int], None]) -> None:
        """Who keeps a list of the entities is told of those that were deleted for being idle."""
        for link in self.links:
            link.on_entity_gone = functools.partial(call, link.number)

    def message_count(self) -> int:
        """Of this process: none are here."""
        return 0

    # -- beginning and end -------------------------------------------------------------------------

    async def start(self) -> None:
        """Bring everything up.  A store that does not come in time is down, and may come later.

        DirectoryInUse when another server has any of it; ConfigError when no store can be opened.
        """
        self._log_tail.begin()
        await self._wait_for_directories()
        record_stores(self._config.data_dir, self._config.store_paths)
        self._tick()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._started), START_S_MAX)
        views = self._supervisor.stores
        for number, view in enumerate(views):
            if view.state != states.OPEN:
                log.error("store %d is down: %s", number, view.trouble or "it is not open yet")
        if self._supervisor.is_without_stores:
            troubles = [each.trouble for each in views]
            troubles += [each.trouble for each in self._supervisor.brokers]
            reason = next(filter(None, troubles), "they take too long")
            raise ConfigError(
                f"no store can be opened: {reason}; "
                f"see `twinbus verify --data {self._config.data_dir}`"
            )

    async def _wait_for_directories(self) -> None:
        """Nobody else may have any of them."""
        for _ in range(int(IN_USE_S_MAX / IN_USE_PAUSE_S)):
            try:
                self._look_at_locks()
                return
            except DirectoryInUse:
                await asyncio.sleep(IN_USE_PAUSE_S)
        self._look_at_locks()

    def _look_at_locks(self) -> None:
        for path in self._config.store_paths:
            with closing(OsDisk(path)) as disk:
                disk.lock()

    async def close(self) -> None:
        """Close all stores and end all processes, within a deadline."""
        self._is_closing = True
        if self._timer is not None:
            self._timer.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._timings.diagnosis_ms / 1_000)
        stops = []
        for run in self._runs.living():
            is_well = self._supervisor.brokers[run.broker].state in {states.STARTING, states.UP}
            stops.append(run.process.stop(STOP_S_MAX if is_well else 0))
        await asyncio.gather(*stops)
        self._log_tail.end()

    # -- doing what the supervisor says ------------------------------------------------------------

    def _now_ms(self) -> int:
        return self._clock.now().mono_ms

    def _tick(self) -> None:
        tick_s = min(BROKER_BEAT_MS, self._timings.silent_ms / 4) / 1_000
        self._timer = self._loop.call_later(tick_s, self._tick)
        self._supervisor.tick(self._now_ms())
        self._perform()
        for link in self.links:
            link.receivers.tick()

    def _perform(self) -> None:
        while not self._is_closing and (actions := self._supervisor.take_actions()):
            for action in actions:
                self._do(action)
        self._settle_start()

    def _do(self, action: Action) -> None:
        if isinstance(action, Start):
            self._run(self._start(action.broker))
        elif isinstance(action, Diagnose):
            self._diagnose(action.broker, action.reason)
        elif isinstance(action, Kill):
            self.effects.kill_broker(action.broker)
        elif isinstance(action, Open):
            run = self._runs.latest[action.broker]
            assert run is not None, "only who is up is asked to open a store"
            self._runs.holders[action.store] = run
            self.effects.tell_plan(action.store)
            self.links[action.store].attach(run.process)
        elif isinstance(action, Close):
            about = {"store": action.store, "broker": action.broker}
            log.info("store %d leaves broker %d for home", *about.values(), extra=about)
            self.links[action.store].hold()
            self.links[action.store].close()

    def _run(self, work: Coroutine[object, object, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _settle_start(self) -> None:
        """Has everything come up that will soon?"""
        if self._started.done():
            return
        is_hopeless = all(each.failures >= STARTS_MAX for each in self._supervisor.brokers)
        if is_hopeless or all(
            each.state == states.OPEN or each.failures >= TRIES_MAX
            for each in self._supervisor.stores
        ):
            self._started.set_result(None)

    # -- processes ---------------------------------------------------------------------------------

    async def _start(self, broker: int) -> None:
        process = BrokerProcess(broker, self._received, self._ended)
        run = self._runs.latest[broker] = BrokerRun(process, self._now_ms())
        try:
            await process.start(
                {
                    "log_level": self._log_tail.level_shown,
                    "log_format": self._telemetry.log_format,
                    "segment_size_bytes": self._config.segment_size_bytes,
                    "secrets": self._telemetry.secrets.all_keys(),
                }
            )
        except OSError as error:
            process.kill()
            run.has_ended = True
            self._supervisor.ended(broker, f"it cannot be started: {error}", self._now_ms())
            self._perform()

    def _hide(self, keys: list[str]) -> None:
        """Keys that are new; a process that starts later is told of all."""
        for run in self._runs.living():
            run.process.send((HIDE, ANY, keys))

    def _received(self, process: BrokerProcess, operations: list[Operation]) -> None:
        run = self._runs.of(process)
        if run is None:
            return
        now_ms = self._now_ms()
        if run.has_spoken:
            self._supervisor.heard(run.broker, now_ms)
        else:
            self._supervisor.started(run.broker, now_ms)
        run.heard(now_ms)
        for operation in dispatch(operations, process, self.links):
            if operation[0] == BEAT:
                self._beat(run, decode_beat(operation), now_ms)
            elif operation[0] == BROKEN:
                run.broken(operation[3])
                self._supervisor.broken(run.broker, operation[2], now_ms)
        self._perform()

    def _beat(self, run: BrokerRun, beat: Beat, now_ms: int) -> None:
        run.beat(beat, now_ms)
        for store in beat.stores:
            self.health.beats[store.store] = store
        slow = [store.store for store in beat.stores if self.links[store.store].health != UP]
        self._supervisor.beat(run.broker, beat.lag_ms, now_ms, frozenset(slow))

    def _ended(self, process: BrokerProcess, code: int) -> None:
        run = self._runs.of(process)
        if run is None:
            return
        self.effects.ended(run)
        run.has_ended = True
        self._let_go(run, f"broker {run.broker} has ended")
        if not self._is_closing:
            self._supervisor.ended(run.broker, _how_it_ended(code), self._now_ms())
            self._perform()

    def _let_go(self, run: BrokerRun, reason: str) -> None:
        """Nothing more is expected of this process: whoever waits for it is told."""
        for store, holder in enumerate(self._runs.holders):
            if holder is run:
                run.stores.append(store)
                self._runs.holders[store] = None
                self.health.beats.pop(store, None)
                self.links[store].lost(reason)

    # -- stores ------------------------------------------------------------------------------------

    def _store_opened(self, store: int, listed: list[Listed]) -> None:
        broker = self._runs.holder_of(store)
        about = {"store": store, "broker": broker}
        text = "store %d is open at broker %d: %d entities"
        log.info(text, store, broker, len(listed), extra=about)
        self.on_listing(store, listed)
        self._supervisor.store_opened(broker, store, self._now_ms())
        self._perform()

    def _store_closed(self, store: int) -> None:
        broker = self._runs.holder_of(store)
        self._runs.holders[store] = None
        self._supervisor.store_closed(broker, store, self._now_ms())
        self._perform()
        if self._runs.holders[store] is None:
            # Nobody can have it now, so nobody shall wait for it.
            self.links[store].lost("its broker has closed it")

    def _store_failed(self, store: int, text: str, lines: list[str]) -> None:
        run = self._runs.holders[store]
        broker = self._runs.holder_of(store)
        self._runs.holders[store] = None
        self.health.beats.pop(store, None)
        if run is not None:
            run.logged(lines)
        about = {"store": store, "broker": broker}
        log.error("store %d failed at broker %d: %s", store, broker, text, extra=about)
        self._supervisor.store_failed(broker, store, text, self._now_ms())
        self._perform()

    # -- diagnostics -------------------------------------------------------------------------------

    def _diagnose(self, broker: int, reason: str) -> None:
        """Have a bundle written; if the process still runs, it is killed after that."""
        log.error("broker %d: %s", broker, reason, extra={"broker": broker})
        run = self._runs.latest[broker]
        assert run is not None, "who was never started cannot be in trouble"
        self._let_go(run, f"broker {broker} is in trouble")
        self._run(self._write_bundle(run, reason))

    async def _write_bundle(self, run: BrokerRun, reason: str) -> None:
        directory = self._config.data_dir / "diagnostics"
        try:
            bundle = await run.diagnose(
                directory, reason, self._clock.now(), self._log_tail.lines()
            )
            log.error("broker %d: diagnostics are in %s", run.broker, bundle)
        except OSError as error:
            log.error("broker %d: diagnostics cannot be written: %s", run.broker, error)
        if self._runs.latest[run.broker] is run:
            self._supervisor.diagnosed(run.broker, self._now_ms())
            self._perform()


def _timings(config: ServerConfig) -> Timings:
    silent_ms = int(config.broker_timeout_s * 1_000)
    # Whoever is given more time, or less, is given it in everything.
    lag_ms = silent_ms * BROKER_LAG_MS_MAX // BROKER_SILENT_MS_MAX
    return Timings(silent_ms=silent_ms, lag_ms=lag_ms, well_ms=int(config.broker_well_s * 1_000))


def _how_it_ended(code: int) -> str:
    """As a person would say it; a negative code is a signal's number."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _ignore_listing(store: int, listed: list[Listed]) -> None:
    """Nobody wants to know."""
