"""Which broker runs which store, and what to do about a failing broker or store (A-4, E-15).

A state machine: observations and times in, actions out.  It starts no process, sends no signal and
reads no clock; `host/brokers/processes.py` does, and so can a simulation.

A broker process:

    state        seen                                         does                  becomes
    STOPPED      its pause is over                            Start                 STARTING
    STARTING     started                                      Open …                UP
    STARTING     nothing for `start_ms`                       Diagnose              DIAGNOSED
    UP           silent for `silent_ms`, loop lag, broken,    Diagnose              DIAGNOSED
                 or a store it does not let go of
    DIAGNOSED    the bundle is written, or takes too long     Kill                  KILLED
    STARTING, UP the process has ended                        Diagnose, Open …      STOPPED
    DIAGNOSED, KILLED   the process has ended                 Open …                STOPPED

A store:

    CLOSED       its pause is over, and a broker is up        Open                  OPENING
    OPENING      opened                                                             OPEN
    OPENING, OPEN   failed                                                          CLOSED
    OPEN         away from home, and home has been well       Close                 CLOSING
    CLOSING      closed                                       Open (at home)        OPENING
    OPENING, OPEN, CLOSING   its broker has ended             Open (elsewhere)      OPENING

What must never happen: a store that two brokers are asked to run (one is asked only after the other
said closed or failed, or its process has ended, and its file lock with it); a kill that destroys
the evidence, before diagnostics; a store that is moved to a broker which is not well.
"""

from dataclasses import dataclass
from typing import Final

from twinbus.gateway.directory.placement import home_of, least_loaded
from twinbus.limits import (
    BROKER_CLOSING_MS_MAX,
    BROKER_DIAGNOSIS_MS_MAX,
    BROKER_FORGIVEN_MS,
    BROKER_LAG_MS_MAX,
    BROKER_OPENING_MS_MAX,
    BROKER_PAUSE_MS_MAX,
    BROKER_PAUSE_MS_MIN,
    BROKER_SILENT_MS_MAX,
    BROKER_START_MS_MAX,
    BROKER_WELL_MS,
    STORE_LOSSES_FREE,
    STORE_PAUSE_MS_MAX,
    STORE_PAUSE_MS_MIN,
)

# A broker process.
STOPPED: Final = "stopped"
STARTING: Final = "starting"
UP: Final = "up"
DIAGNOSED: Final = "diagnosed"  # its end is decided; what is wrong with it is being written down
KILLED: Final = "killed"

# A store.
CLOSED: Final = "closed"
OPENING: Final = "opening"
OPEN: Final = "open"
CLOSING: Final = "closing"


@dataclass(frozen=True)
class Start:
    """Start a process for this broker."""

    broker: int


@dataclass(frozen=True)
class Diagnose:
    """Write down what can be found out about it; say `diagnosed` when that is done."""

    broker: int
    reason: str


@dataclass(frozen=True)
class Kill:
    """End the process, whatever it is doing."""

    broker: int


@dataclass(frozen=True)
class Open:
    """Have the broker open the store."""

    store: int
    broker: int


@dataclass(frozen=True)
class Close:
    """Have the broker close the store, which moves; requests to it wait meanwhile."""

    store: int
    broker: int


Action = Start | Diagnose | Kill | Open | Close


@dataclass(frozen=True)
class Timings:
    """How long is too long, in milliseconds.  limits.py has the reasons."""

    silent_ms: int = BROKER_SILENT_MS_MAX
    lag_ms: int = BROKER_LAG_MS_MAX
    start_ms: int = BROKER_START_MS_MAX
    opening_ms: int = BROKER_OPENING_MS_MAX
    closing_ms: int = BROKER_CLOSING_MS_MAX
    diagnosis_ms: int = BROKER_DIAGNOSIS_MS_MAX
    well_ms: int = BROKER_WELL_MS


class BrokerView:
    """One broker as the supervisor sees it.  Others read it and do not write."""

    def __init__(self, now_ms: int) -> None:
        self.state = STOPPED
        self.since_ms = now_ms  # in this state
        self.due_ms = now_ms  # when it may be started
        self.beat_ms = now_ms  # the last sign of life
        self.lag_ms = 0
        self.excused_ms = now_ms  # until then a late loop has a reason
        self.failures = 0  # in a row
        self.restarts = 0  # in all
        self.trouble = ""  # the latest


class StoreView:
    """One store as the supervisor sees it.  Others read it and do not write."""

    def __init__(self, home: int, now_ms: int) -> None:
        self.state = CLOSED
        self.home = home
        self.broker = home  # who runs it, or is to; -1: whoever has room
        self.since_ms = now_ms  # in this state
        self.due_ms = now_ms  # when it may be opened
        self.failures = 0  # in a row
        self.is_slow = False
        self.trouble = ""  # the latest


class Supervisor:
    """Brokers and stores of one gateway."""

    def __init__(
        self, broker_count: int, store_count: int, now_ms: int, timings: Timings | None = None
    ) -> None:
        self.brokers = [BrokerView(now_ms) for _ in range(broker_count)]
        self.stores = [
            StoreView(home_of(store, broker_count), now_ms) for store in range(store_count)
        ]
        self._timings = timings or Timings()
        self._actions: list[Action] = []
        self._moving = -1  # the store on its way home
        self._tick_ms = now_ms

    @property
    def is_without_stores(self) -> bool:
        """Each is closed, or has failed and is only being tried again."""
        return all(s.state == CLOSED or (s.state == OPENING and s.trouble) for s in self.stores)

    def take_actions(self) -> list[Action]:
        """What is to be done now, in this order."""
        actions, self._actions = self._actions, []
        return actions

    # -- what a broker process does --------------------------------------------------------------

    def started(self, broker: int, now_ms: int) -> None:
        """It has said its first word."""
        view = self.brokers[broker]
        if view.state != STARTING:
            return
        view.state = UP
        view.since_ms = view.beat_ms = now_ms
        self._place(now_ms)

    def heard(self, broker: int, now_ms: int) -> None:
        """It has said something, and so it lives; its next beat may be behind much else."""
        if self.brokers[broker].state == UP:
            self.brokers[broker].beat_ms = now_ms

    def beat(
        self, broker: int, lag_ms: int, now_ms: int, slow_stores: frozenset[int] = frozenset()
    ) -> None:
        """Its loop was late by `lag_ms`, and these of its stores take long to commit."""
        view = self.brokers[broker]
        if view.state != UP:
            return
        view.beat_ms = now_ms
        view.lag_ms = lag_ms
        for store, each in enumerate(self.stores):
            if each.broker == broker:
                each.is_slow = store in slow_stores
        is_excused = now_ms < view.excused_ms or self._is_opening(broker)
        if lag_ms > self._timings.lag_ms and not is_excused:
            self._condemn(broker, f"its loop is {lag_ms} ms late", now_ms)

    def broken(self, broker: int, text: str, now_ms: int) -> None:
        """It says that something cannot be which is: none of its state is to be trusted."""
        if self.brokers[broker].state in {STARTING, UP}:
            self._condemn(broker, f"an invariant failed: {text}", now_ms)

    def diagnosed(self, broker: int, now_ms: int) -> None:
        """All that can be found out is written down."""
        view = self.brokers[broker]
        if view.state == DIAGNOSED:
            view.state = KILLED
            view.since_ms = now_ms
            self._actions.append(Kill(broker))

    def ended(self, broker: int, text: str, now_ms: int) -> None:
        """Its process is gone, or could not be started."""
        view = self.brokers[broker]
        if view.state == STOPPED:
            return
        if view.state in {STARTING, UP}:
            view.trouble = f"the process has ended: {text}"
            self._actions.append(Diagnose(broker, view.trouble))
        view.state = STOPPED
        view.since_ms = now_ms
        view.lag_ms = 0
        view.failures += 1
        view.due_ms = now_ms + _broker_pause_ms(view.failures)
        for store in self.stores:
            if store.broker == broker:
                self._lose(store, view.trouble, now_ms)
        self._restart(broker, now_ms)
        self._place(now_ms)

    # -- what becomes of a store -----------------------------------------------------------------

    def store_opened(self, broker: int, store: int, now_ms: int) -> None:
        view = self.stores[store]
        if view.broker != broker or view.state != OPENING:
            return
        view.state = OPEN
        view.since_ms = now_ms
        view.is_slow = False
        self._moved(store)
        self._excuse(self.brokers[broker], now_ms)
        self._place(now_ms)

    def store_closed(self, broker: int, store: int, now_ms: int) -> None:
        """As it was asked to: the store is on its way home."""
        view = self.stores[store]
        if view.broker != broker or view.state != CLOSING:
            return
        view.state = CLOSED
        view.since_ms = view.due_ms = now_ms
        view.broker = view.home
        self._place(now_ms)

    def store_failed(self, broker: int, store: int, text: str, now_ms: int) -> None:
        """It could not be opened, or could not go on; its broker has let go of it."""
        view = self.stores[store]
        if view.broker != broker or view.state == CLOSED:
            return
        view.failures += 1
        view.trouble = text
        view.state = CLOSED
        view.since_ms = now_ms
        view.due_ms = now_ms + _store_pause_ms(view.failures)
        self._moved(store)
        self._excuse(self.brokers[broker], now_ms)
        self._place(now_ms)

    # -- time ------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Called often and regularly; what is due by now is decided."""
        slept_ms = now_ms - self._tick_ms
        if slept_ms > self._timings.silent_ms // 2:
            self._woken(slept_ms, now_ms)
        self._tick_ms = now_ms
        for broker in range(len(self.brokers)):
            self._watch(broker, now_ms)
        for store in self.stores:
            if store.state == OPEN and now_ms - store.since_ms >= BROKER_FORGIVEN_MS:
                store.failures = 0
        self._place(now_ms)

    def _woken(self, slept_ms: int, now_ms: int) -> None:
        """Who slept himself has heard nobody (a stopped process, a suspended machine).

        That time counts for nothing: neither as silence, nor as having been well.
        """
        for view in self.brokers:
            self._excuse(view, now_ms)
            view.since_ms = min(now_ms, view.since_ms + slept_ms)
        for store in self.stores:
            store.since_ms = min(now_ms, store.since_ms + slept_ms)

    def _watch(self, broker: int, now_ms: int) -> None:
        view = self.brokers[broker]
        timings = self._timings
        age_ms = now_ms - view.since_ms
        if view.state == STOPPED:
            self._restart(broker, now_ms)
        elif view.state == STARTING:
            if age_ms > timings.start_ms:
                self._condemn(broker, f"no word since it was started, {age_ms} ms", now_ms)
        elif view.state == DIAGNOSED:
            if age_ms > timings.diagnosis_ms:
                self.diagnosed(broker, now_ms)
        elif view.state == UP:
            if age_ms >= BROKER_FORGIVEN_MS:
                view.failures = 0
            self._listen(broker, view, now_ms)

    def _listen(self, broker: int, view: BrokerView, now_ms: int) -> None:
        """Is it silent for too long, or does it cling to a store?"""
        timings = self._timings
        allowed_ms = timings.opening_ms if self._is_opening(broker) else timings.silent_ms
        silent_ms = now_ms - view.beat_ms
        if silent_ms > allowed_ms:
            self._condemn(broker, f"no sign of life for {silent_ms} ms", now_ms)
            return
        for number, store in enumerate(self.stores):
            is_closing = store.broker == broker and store.state == CLOSING
            if is_closing and now_ms - store.since_ms > timings.closing_ms:
                self._condemn(broker, f"it does not let go of store {number}", now_ms)
                return

    def _is_opening(self, broker: int) -> bool:
        """Recovery may keep its loop from running for a while, but not from the very beginning.

        Who has not been heard of since it was asked may have hung before that.
        """
        return any(
            each.broker == broker
            and each.state == OPENING
            and self.brokers[broker].beat_ms > each.since_ms
            for each in self.stores
        )

    def _excuse(self, view: BrokerView, now_ms: int) -> None:
        """Whatever it has missed until now had a good reason."""
        view.beat_ms = max(view.beat_ms, now_ms)
        view.excused_ms = now_ms + self._timings.silent_ms

    # -- decisions -------------------------------------------------------------------------------

    def _restart(self, broker: int, now_ms: int) -> None:
        view = self.brokers[broker]
        if now_ms >= view.due_ms:
            view.restarts += view.failures > 0
            view.state = STARTING
            view.since_ms = view.beat_ms = now_ms
            self._actions.append(Start(broker))

    def _condemn(self, broker: int, reason: str, now_ms: int) -> None:
        view = self.brokers[broker]
        view.state = DIAGNOSED
        view.since_ms = now_ms
        view.trouble = reason
        self._actions.append(Diagnose(broker, reason))

    def _lose(self, store: StoreView, trouble: str, now_ms: int) -> None:
        """Its broker is gone; nobody runs it."""
        was = store.state
        store.broker = -1
        if was == CLOSED:
            return  # it was not open there; its own pause goes on
        store.failures += 1
        store.trouble = trouble
        store.state = CLOSED
        store.since_ms = now_ms
        free = 0 if was == OPENING else STORE_LOSSES_FREE
        store.due_ms = now_ms + _store_pause_ms(store.failures - free)
        self._moved(self.stores.index(store))

    def _moved(self, store: int) -> None:
        if self._moving == store:
            self._moving = -1

    def _place(self, now_ms: int) -> None:
        """Have every store run by somebody, and by its home when that is well."""
        for number, store in enumerate(self.stores):
            if store.state == CLOSED and now_ms >= store.due_ms:
                broker = self._chosen(store, now_ms)
                if broker >= 0:
                    store.state = OPENING
                    store.since_ms = now_ms
                    store.broker = broker
                    self._actions.append(Open(number, broker))
        if self._moving < 0:
            self._move(now_ms)

    def _chosen(self, store: StoreView, now_ms: int) -> int:
        """Who is to open it now; -1: nobody yet."""
        if store.broker >= 0:
            assigned = self.brokers[store.broker]
            if assigned.state == UP:
                return store.broker
            # Everybody is on his way at first.  Later, who is back gets his stores when he is well.
            if assigned.state == STARTING and assigned.failures == 0:
                return -1
        if self._is_well(store.home, now_ms):
            return store.home
        live = [broker for broker, view in enumerate(self.brokers) if view.state == UP]
        # Who has fallen silent may be hung: the store would be out of reach until that is clear.
        heard = [broker for broker in live if self._is_heard(broker, now_ms)]
        return least_loaded(heard or live, [each.broker for each in self.stores])

    def _move(self, now_ms: int) -> None:
        """Send the next store home.  One at a time: each is out of reach for a moment."""
        for number, store in enumerate(self.stores):
            if (
                store.state == OPEN
                and store.broker != store.home
                and not store.is_slow  # it would keep everybody waiting until it is closed
                and self.brokers[store.broker].state == UP
                and self._is_well(store.home, now_ms)
            ):
                store.state = CLOSING
                store.since_ms = now_ms
                self._moving = number
                self._actions.append(Close(number, store.broker))
                return

    def _is_well(self, broker: int, now_ms: int) -> bool:
        """Has it been up for long enough, and has it been heard of just now?"""
        view = self.brokers[broker]
        # Who keeps failing has to be well for as long as it was made to wait.
        well_ms = max(self._timings.well_ms, _broker_pause_ms(view.failures))
        is_steady = view.state == UP and now_ms - view.since_ms >= well_ms
        return is_steady and self._is_heard(broker, now_ms)

    def _is_heard(self, broker: int, now_ms: int) -> bool:
        """Just now?  Well is who is heard of, not only who was."""
        return now_ms - self.brokers[broker].beat_ms <= self._timings.silent_ms // 2


def _broker_pause_ms(failures: int) -> int:
    """None before the first restart in a row, then doubling."""
    return _doubled(BROKER_PAUSE_MS_MIN, failures - 1, BROKER_PAUSE_MS_MAX)


def _store_pause_ms(failures: int) -> int:
    return _doubled(STORE_PAUSE_MS_MIN, failures, STORE_PAUSE_MS_MAX)


def _doubled(first_ms: int, times: int, most_ms: int) -> int:
    """0, first, twice that, … up to `most_ms`."""
    if times <= 0:
        return 0
    return min(most_ms, first_ms << min(times - 1, 30))
