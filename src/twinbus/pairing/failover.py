"""One entity of the primary, as its senders see it: which way do messages go (P-6, P-7, P-9, P-13).

    HEALTHY ──failed──▶ FAILING ──interval passed──▶ FAILED_OVER ──ping got through──▶ RECOVERING
       ▲                   │                                                               │
       └────succeeded──────┴───────────────────────────succeeded──────────────────────────┘

The machine is told the time (seconds of any steady clock) and what happened; it reads no clock,
sends nothing and knows no message.  What it tells goes to a list of events that the pairing owns.
"""

from enum import Enum
from typing import Final

from twinbus.pairing.classification import Verdict
from twinbus.pairing.events import (
    EntityFailedOver,
    EntityFailing,
    EntityRecovered,
    EntityStatus,
    Event,
    PingFailed,
    State,
)


class Way(Enum):
    """Where a message goes now."""

    PRIMARY = "primary"
    BACKLOG = "backlog"


class Decision(Enum):
    """What becomes of a send that the primary has not taken."""

    RAISE = "raise"  # the caller sees the error and keeps the message
    PAUSE = "pause"  # and send it again
    BACKLOG = "backlog"  # it goes on to the backlog


class Trigger(Enum):
    """What moves the machine."""

    SUCCEEDED = "send succeeded"
    FAILED = "send failed"
    FAILED_AT_ONCE = "send failed, and the failover interval is 0"
    INTERVAL_PASSED = "interval passed"
    PINGED = "ping got through"
    FORCED_OVER = "forced over"
    FORCED_BACK = "forced back"


_HEALTHY: Final = State.HEALTHY
_FAILING: Final = State.FAILING
_OVER: Final = State.FAILED_OVER
_RECOVERING: Final = State.RECOVERING

# Where a state has no line for a trigger, nothing happens.
TRANSITIONS: Final[dict[State, dict[Trigger, State]]] = {
    _HEALTHY: {Trigger.FAILED: _FAILING, Trigger.FAILED_AT_ONCE: _OVER, Trigger.FORCED_OVER: _OVER},
    _FAILING: {
        Trigger.SUCCEEDED: _HEALTHY,
        Trigger.INTERVAL_PASSED: _OVER,
        Trigger.FORCED_OVER: _OVER,
        Trigger.FORCED_BACK: _HEALTHY,
    },
    _OVER: {Trigger.PINGED: _RECOVERING, Trigger.FORCED_BACK: _RECOVERING},
    _RECOVERING: {
        Trigger.SUCCEEDED: _HEALTHY,
        Trigger.FAILED: _FAILING,
        Trigger.FAILED_AT_ONCE: _OVER,
        Trigger.FORCED_OVER: _OVER,
    },
}


class EntityFailover:
    """The state of one entity, shared by all its senders of a pairing."""

    def __init__(
        self, entity: str, failover_interval_s: float, ping_interval_s: float, events: list[Event]
    ) -> None:
        self.entity = entity
        self.state = State.HEALTHY
        self.forced = False
        # By policy `legacy`: why the primary refuses pings, raised by sends until one gets through.
        self.refusal: BaseException | None = None
        self.sent_to_primary = 0
        self.sent_to_backlog = 0
        self.pings = 0
        self._interval_s = failover_interval_s
        self._ping_interval_s = ping_interval_s
        self._events = events
        self._failing_since = 0.0
        self._failed_over_since = 0.0
        self._ping_due = 0.0
        self._is_ping_announced = False  # tick() has told of it, its flow has not begun
        self._ping_under_way: int | None = None  # the failover that the ping is about
        self._failovers = 0
        self._last_error: BaseException | None = None
        self._last_ping_error: BaseException | None = None

    # --- sends --------------------------------------------------------------------------------

    def route(self, now: float) -> Way:
        """Which way a send goes that begins now."""
        self._look_at_the_time(now)
        return Way.BACKLOG if self.state is State.FAILED_OVER else Way.PRIMARY

    def may_fail_over_by(self, time: float) -> bool:
        """Whether a send that fails by then could go on to the backlog, so that it needs time."""
        if self.state is State.FAILING:
            return self._failing_since + self._interval_s <= time
        return self.state is State.FAILED_OVER or self._interval_s == 0

    def send_succeeded(self, now: float, count: int = 1) -> None:
        """The primary has taken `count` messages.

        It does not look at the time first: that the primary works is better news than that an
        interval has just passed without anybody noticing.
        """
        self.sent_to_primary += count
        if self.state is not State.HEALTHY:
            self._move(Trigger.SUCCEEDED, now)

    def send_failed(self, verdict: Verdict, error: BaseException, now: float) -> Decision:
        """The primary has not taken messages, or has not said so."""
        self._look_at_the_time(now)
        if verdict is Verdict.RAISE:
            return Decision.RAISE
        if verdict is Verdict.COUNT:
            self._last_error = error
            at_once = self._interval_s == 0
            self._move(Trigger.FAILED_AT_ONCE if at_once else Trigger.FAILED, now)
        if self.state is State.FAILED_OVER:
            return Decision.BACKLOG
        return Decision.PAUSE if verdict is Verdict.BUSY else Decision.RAISE

    # --- time ---------------------------------------------------------------------------------

    def tick(self, now: float) -> bool:
        """Time has passed.  True: a ping is to go out, and its flow must be run."""
        self._look_at_the_time(now)
        due = self._is_ping_expected() and now >= self._ping_due
        if due:
            self._is_ping_announced = True
            # From the beginning of this one, however long it takes.
            self._ping_due = now + self._ping_interval_s
        return due

    def next_deadline(self) -> float | None:
        """When tick() has something to do; none if only an event can move the machine."""
        if self.state is State.FAILING:
            return self._failing_since + self._interval_s
        return self._ping_due if self._is_ping_expected() else None

    def set_ping_interval(self, interval_s: float) -> None:
        """From the last ping on, or from the failover if there was none."""
        self._ping_due += interval_s - self._ping_interval_s
        self._ping_interval_s = interval_s

    # --- pings --------------------------------------------------------------------------------

    def ping_started(self) -> bool:
        """The announced ping begins.  False: it is not needed any more."""
        announced, self._is_ping_announced = self._is_ping_announced, False
        if not announced or self.state is not State.FAILED_OVER or self.forced:
            return False
        self._ping_under_way = self._failovers
        self.pings += 1
        return True

    def ping_succeeded(self, now: float) -> None:
        """It got through: every sender is back on the primary at once, and pinging stops."""
        if self._ping_ended():
            self._move(Trigger.PINGED, now)

    def ping_failed(self, error: BaseException, is_refused: bool) -> None:
        """`is_refused`: waiting will not mend it, and the policy wants senders to know."""
        if self._ping_ended():
            self._last_ping_error = error
            self._events.append(PingFailed(self.entity, error))
            if is_refused:
                self.refusal = error

    def ping_abandoned(self) -> None:
        """Nobody waits for its answer any more; the next one goes out when it is due."""
        self._ping_under_way = None

    # --- force --------------------------------------------------------------------------------

    def force_over(self, now: float) -> None:
        """Send to the backlog, and ping nobody, until it is forced back."""
        if self.state is State.FAILED_OVER:
            if not self.forced:
                self.forced = True
                self.refusal = None
                self._events.append(EntityFailedOver(self.entity, None, forced=True))
            return
        self.forced = True
        self._move(Trigger.FORCED_OVER, now)

    def force_back(self, now: float) -> None:
        """Back to the primary, whatever its state is."""
        self._move(Trigger.FORCED_BACK, now)

    # --- status -------------------------------------------------------------------------------

    def status(self, now: float) -> EntityStatus:
        failing = self.state is State.FAILING
        over = self.state is State.FAILED_OVER
        due = max(0.0, self._ping_due - now) if self._is_ping_expected() else None
        return EntityStatus(
            entity=self.entity,
            state=self.state,
            forced=self.forced,
            failing_for_s=now - self._failing_since if failing else None,
            failed_over_for_s=now - self._failed_over_since if over else None,
            next_ping_in_s=due,
            last_error=self._last_error,
            last_ping_error=self._last_ping_error,
            sent_to_primary=self.sent_to_primary,
            sent_to_backlog=self.sent_to_backlog,
            pings=self.pings,
        )

    # --- inside -------------------------------------------------------------------------------

    def _look_at_the_time(self, now: float) -> None:
        if self.state is State.FAILING and now >= self._failing_since + self._interval_s:
            self._move(Trigger.INTERVAL_PASSED, now)

    def _is_ping_expected(self) -> bool:
        return (
            self.state is State.FAILED_OVER
            and not self.forced
            and not self._is_ping_announced
            and self._ping_under_way is None  # never two at a time
        )

    def _ping_ended(self) -> bool:
        """Whether the ping was about this failover: a late answer says nothing about a new one."""
        about, self._ping_under_way = self._ping_under_way, None
        return about == self._failovers and self.state is State.FAILED_OVER and not self.forced

    def _move(self, trigger: Trigger, now: float) -> None:
        old = self.state
        new = TRANSITIONS[old].get(trigger, old)
        if new is old:
            return
        self.state = new
        if new is State.FAILING:
            assert self._last_error is not None
            self._failing_since = now
            self._events.append(EntityFailing(self.entity, self._last_error))
        elif new is State.FAILED_OVER:
            self._failed_over_since = now
            self._ping_due = now + self._ping_interval_s
            self._failovers += 1
            error = None if self.forced else self._last_error
            self._events.append(EntityFailedOver(self.entity, error, forced=self.forced))
        elif old is State.FAILED_OVER:
            self.forced = False
            self.refusal = None
            self._is_ping_announced = False
            after_s = now - self._failed_over_since
            by_force = trigger is Trigger.FORCED_BACK
            self._events.append(EntityRecovered(self.entity, by_force, after_s))
