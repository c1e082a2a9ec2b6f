"""What a pair does by itself: looks at the time, sends pings, couples its two clients.

One thread waits for the next deadline; every ping has a thread of its own, so that one that hangs
delays neither the pings of other entities nor a failover.
"""

import threading
from collections.abc import Callable
from typing import Any, Final

from twinbus.clock import monotonic_s
from twinbus.pairing.blocking._running import run
from twinbus.pairing.blocking._steady import SteadySender
from twinbus.pairing.client import CLOSE_S_MAX
from twinbus.pairing.core import Pairing
from twinbus.pairing.coupling import Coupling, Side
from twinbus.pairing.events import State
from twinbus.pairing.log_lines import LOGGER
from twinbus.pairing.pinging import ping
from twinbus.pairing.steps import Pause, SendPing, Step

# A thread may wait for as long as the platform's clock can count; nothing is due that late.
WAIT_S_MAX: Final = 3_600.0


class WokenThread:
    """A thread whose turn it is when it is woken, or has slept as long as its last turn wanted."""

    def __init__(self, name: str) -> None:
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Something has happened."""
        self._wake.set()

    def close(self) -> None:
        """What is under way fails; nobody waits for it longer than a close may take."""
        self._stopping.set()
        self._wake.set()
        self._interrupt()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_S_MAX)

    def _interrupt(self) -> None:
        raise NotImplementedError

    def _turn(self) -> float:
        raise NotImplementedError

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            wait_s = self._turn()
            if not self._stopping.is_set():
                self._wake.wait(wait_s)


class Background(WokenThread):
    """The threads behind one pair.  `fault` is called when one of its clients has to follow."""

    def __init__(
        self,
        pairing: Pairing,
        coupling: Coupling,
        lock: threading.Lock,
        dispatch: Callable[[], None],
        make_sender: Callable[[str], SteadySender],
        fault: Callable[[Side], None],
    ) -> None:
        super().__init__("twinbus-pairing-background")
        self._pairing = pairing
        self._coupling = coupling
        self._lock = lock
        self._dispatch = dispatch
        self._make_sender = make_sender
        self._fault = fault
        self._senders: dict[str, SteadySender] = {}

    def _interrupt(self) -> None:
        for sender in list(self._senders.values()):
            sender.begin_close()

    def _turn(self) -> float:
        try:
            return self._look()
        except Exception:  # noqa: BLE001 - a timer that has died would never fail over
            LOGGER.exception("the background of a pair has met an error")
            return 1.0

    def _look(self) -> float:
        """Do what is due; gives how long nothing else will be."""
        with self._lock:
            due = self._pairing.tick()
            side = self._coupling.due(monotonic_s())
            deadlines = [self._pairing.next_deadline(), self._coupling.next_deadline()]
            well = [each for each in self._senders if not self._is_down(each)]
            unused = [self._senders.pop(entity) for entity in well]
        self._dispatch()
        for sender in unused:
            sender.begin_close()
        for entity in due:
            threading.Thread(
                target=self._ping, args=(entity,), name="twinbus-pairing-ping", daemon=True
            ).start()
        if side is not None:
            self._fault(side)
        soonest_s = min((each for each in deadlines if each is not None), default=None)
        if soonest_s is None:
            return WAIT_S_MAX
        return min(max(0.0, soonest_s - monotonic_s()), WAIT_S_MAX)

    def _is_down(self, entity: str) -> bool:
        return self._pairing.entity(entity).state is State.FAILED_OVER

    def _sender(self, entity: str) -> SteadySender:
        """Kept until the entity is well again: a link that is slow to open is worth waiting for."""
        with self._lock:
            found = self._senders.get(entity)
            if found is None:
                found = self._senders[entity] = self._make_sender(entity)
        return found

    def _ping(self, entity: str) -> None:
        try:
            run(ping(self._pairing, entity), self._perform, self._lock, self._dispatch)
        except Exception:  # noqa: BLE001 - the next one may be another matter
            LOGGER.exception("a ping has met an error: entity=%s", entity)
        self._wake.set()

    def _perform(self, step: Step) -> Any:
        match step:
            case SendPing(entity, message, timeout_s):
                return self._sender(entity).send(message, timeout_s)
            case Pause(seconds):
                return self._stopping.wait(seconds)
            case _:
                raise AssertionError(f"no step of a ping: {step}")
