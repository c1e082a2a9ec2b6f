"""The decision of one entity, walked through state by state:"""

from collections.abc import Callable

import pytest
from azure.servicebus.exceptions import OperationTimeoutError

from twinbus.pairing.classification import Verdict
from twinbus.pairing.events import (
    EntityFailedOver,
    EntityFailing,
    EntityRecovered,
    Event,
    PingFailed,
    State,
)
from twinbus.pairing.failover import TRANSITIONS, Decision, EntityFailover, Trigger, Way

pytestmark = pytest.mark.proves("P-6", "P-7", "P-8", "P-9", "P-13")

HEALTHY, FAILING = State.HEALTHY, State.FAILING
FAILED_OVER, RECOVERING = State.FAILED_OVER, State.RECOVERING
ERROR = OperationTimeoutError()


class Machine(EntityFailover):
    """With its events at hand; the interval is 60 s, pings come every 10 s."""

    def __init__(self, interval_s: float = 60.0) -> None:
        self.events: list[Event] = []
        super().__init__("orders", interval_s, 10.0, self.events)

    def fail(self, now: float) -> Decision:
        return self.send_failed(Verdict.COUNT, ERROR, now)

    def ping(self, now: float) -> None:
        assert self.tick(now)
        assert self.ping_started()


def in_state(state: State, interval_s: float = 60.0) -> Machine:
    """At time 100, in this state since 100."""
    machine = Machine(interval_s)
    if state is FAILING:
        machine.fail(100.0)
    elif state in {FAILED_OVER, RECOVERING}:
        machine.fail(40.0)
        if machine.state is not FAILED_OVER:
            machine.tick(100.0)
    if state is RECOVERING:
        machine.ping(110.0)
        machine.ping_succeeded(110.0)
    assert machine.state is state
    machine.events.clear()
    return machine


def succeed(machine: Machine) -> None:
    machine.send_succeeded(120.0)


def fail(machine: Machine) -> None:
    machine.fail(120.0)


def be_busy(machine: Machine) -> None:
    machine.send_failed(Verdict.BUSY, ERROR, 120.0)


def be_refused(machine: Machine) -> None:
    machine.send_failed(Verdict.RAISE, ERROR, 120.0)


def pass_interval(machine: Machine) -> None:
    machine.tick(160.0)


def get_ping_through(machine: Machine) -> None:
    if machine.tick(120.0):
        assert machine.ping_started()
    machine.ping_succeeded(120.0)


def force_over(machine: Machine) -> None:
    machine.force_over(120.0)


def force_back(machine: Machine) -> None:
    machine.force_back(120.0)


# The table of the design, in the same order.
TABLE = [
    (HEALTHY, succeed, HEALTHY),
    (HEALTHY, fail, FAILING),
    (HEALTHY, pass_interval, HEALTHY),
    (HEALTHY, get_ping_through, HEALTHY),
    (HEALTHY, force_over, FAILED_OVER),
    (HEALTHY, force_back, HEALTHY),
    (FAILING, succeed, HEALTHY),
    (FAILING, fail, FAILING),
    (FAILING, pass_interval, FAILED_OVER),
    (FAILING, get_ping_through, FAILING),
    (FAILING, force_over, FAILED_OVER),
    (FAILING, force_back, HEALTHY),
    (FAILED_OVER, succeed, FAILED_OVER),
    (FAILED_OVER, fail, FAILED_OVER),
    (FAILED_OVER, pass_interval, FAILED_OVER),
    (FAILED_OVER, get_ping_through, RECOVERING),
    (FAILED_OVER, force_over, FAILED_OVER),
    (FAILED_OVER, force_back, RECOVERING),
    (RECOVERING, succeed, HEALTHY),
    (RECOVERING, fail, FAILING),
    (RECOVERING, pass_interval, RECOVERING),
    (RECOVERING, get_ping_through, RECOVERING),
    (RECOVERING, force_over, FAILED_OVER),
    (RECOVERING, force_back, RECOVERING),
]


@pytest.mark.parametrize(("before", "act", "after"), TABLE)
def test_every_state_and_what_moves_it(
    before: State, act: Callable[[Machine], None], after: State
) -> None:
    machine = in_state(before)
    act(machine)
    assert machine.state is after


@pytest.mark.proves("P-8")
@pytest.mark.parametrize("before", State)
@pytest.mark.parametrize("act", [be_busy, be_refused])
def test_busy_and_refused_move_nothing(before: State, act: Callable[[Machine], None]) -> None:
    """They neither start nor stop a timer."""
    machine = in_state(before)
    deadline = machine.next_deadline()
    act(machine)
    assert machine.state is before
    assert machine.next_deadline() == deadline
    assert machine.events == []


@pytest.mark.proves("P-7")
@pytest.mark.parametrize(
    ("before", "after"),
    [(HEALTHY, FAILED_OVER), (RECOVERING, FAILED_OVER), (FAILED_OVER, FAILED_OVER)],
)
def test_without_an_interval_the_first_error_fails_over(before: State, after: State) -> None:
    """And that same send goes on to the backlog."""
    machine = in_state(before, interval_s=0.0)
    assert machine.fail(120.0) is Decision.BACKLOG
    assert machine.state is after


def test_the_table_is_all_there_is() -> None:
    assert set(TRANSITIONS) == set(State)
    moves = {(state, after) for state, lines in TRANSITIONS.items() for after in lines.values()}
    assert all(before is not after for before, after in moves)
    assert {trigger for lines in TRANSITIONS.values() for trigger in lines} == set(Trigger)


@pytest.mark.proves("P-6", "P-9")
@pytest.mark.parametrize("state", State)
def test_way(state: State) -> None:
    expected = Way.BACKLOG if state is FAILED_OVER else Way.PRIMARY
    assert in_state(state).route(120.0) is expected


@pytest.mark.parametrize(
    ("state", "verdict", "decision"),
    [
        (HEALTHY, Verdict.COUNT, Decision.RAISE),
        (FAILING, Verdict.COUNT, Decision.RAISE),
        (FAILED_OVER, Verdict.COUNT, Decision.BACKLOG),
        (RECOVERING, Verdict.COUNT, Decision.RAISE),
        (HEALTHY, Verdict.BUSY, Decision.PAUSE),
        (FAILING, Verdict.BUSY, Decision.PAUSE),
        (FAILED_OVER, Verdict.BUSY, Decision.BACKLOG),
        (RECOVERING, Verdict.BUSY, Decision.PAUSE),
        (HEALTHY, Verdict.RAISE, Decision.RAISE),
        (FAILING, Verdict.RAISE, Decision.RAISE),
        (FAILED_OVER, Verdict.RAISE, Decision.RAISE),
        (RECOVERING, Verdict.RAISE, Decision.RAISE),
    ],
)
def test_what_becomes_of_a_failed_send(state: State, verdict: Verdict, decision: Decision) -> None:
    assert in_state(state).send_failed(verdict, ERROR, 120.0) is decision


# --- the interval -----------------------------------------------------------------------------


@pytest.mark.proves("P-7")
def test_the_interval_runs_from_the_first_failure() -> None:
    """Later failures do not put it off, a success stops it."""
    machine = Machine()
    assert machine.fail(100.0) is Decision.RAISE
    assert machine.fail(159.0) is Decision.RAISE
    assert machine.next_deadline() == 160.0
    assert machine.route(159.9) is Way.PRIMARY
    assert machine.route(160.0) is Way.BACKLOG
    assert machine.events == [
        EntityFailing("orders", ERROR),
        EntityFailedOver("orders", ERROR, forced=False),
    ]


def test_a_success_stops_the_interval_and_a_new_failure_starts_another() -> None:
    machine = Machine()
    machine.fail(100.0)
    machine.send_succeeded(150.0)
    assert machine.next_deadline() is None
    machine.fail(155.0)
    assert machine.next_deadline() == 215.0
    assert machine.events == [EntityFailing("orders", ERROR)] * 2


def test_a_send_that_fails_after_the_interval_goes_on_to_the_backlog() -> None:
    machine = Machine()
    machine.fail(100.0)
    assert machine.fail(160.0) is Decision.BACKLOG


def test_a_success_is_better_news_than_an_interval_that_nobody_saw_pass() -> None:
    machine = Machine()
    machine.fail(100.0)
    machine.send_succeeded(161.0)
    assert machine.state is HEALTHY


def test_without_an_interval_there_is_one_event() -> None:
    machine = Machine(0.0)
    machine.fail(100.0)
    assert machine.events == [EntityFailedOver("orders", ERROR, forced=False)]


@pytest.mark.parametrize(
    ("state", "interval_s", "by", "expected"),
    [
        (HEALTHY, 60.0, 1000.0, False),
        (HEALTHY, 0.0, 100.0, True),
        (FAILING, 60.0, 159.0, False),
        (FAILING, 60.0, 160.0, True),
        (RECOVERING, 60.0, 1000.0, False),
        (RECOVERING, 0.0, 100.0, True),
        (FAILED_OVER, 60.0, 100.0, True),
    ],
)
def test_may_fail_over(state: State, interval_s: float, by: float, expected: bool) -> None:
    assert in_state(state, interval_s).may_fail_over_by(by) is expected


# --- pings ------------------------------------------------------------------------------------


@pytest.mark.proves("P-13")
def test_the_first_ping_comes_one_interval_after_the_failover() -> None:
    machine = in_state(FAILED_OVER)
    assert machine.next_deadline() == 110.0
    assert not machine.tick(109.9)
    assert machine.tick(110.0)
    assert machine.ping_started()
    assert machine.pings == 1


def test_one_ping_at_a_time_and_one_an_interval() -> None:
    machine = in_state(FAILED_OVER)
    assert machine.tick(110.0)
    assert not machine.tick(130.0), "it is announced once"
    assert machine.next_deadline() is None
    assert machine.ping_started()
    assert not machine.ping_started(), "and begun once"
    assert not machine.tick(135.0), "and waited for"
    machine.ping_failed(ERROR, is_refused=False)
    assert machine.events == [PingFailed("orders", ERROR)]
    assert machine.next_deadline() == 120.0, "one interval after the last one began"
    assert machine.tick(140.0)
    assert machine.ping_started()
    machine.ping_failed(ERROR, is_refused=False)
    assert not machine.tick(149.9)
    assert machine.tick(150.0)


@pytest.mark.proves("P-13")
def test_the_first_ping_that_gets_through_ends_it() -> None:
    """Every sender is back at once, pinging stops."""
    machine = in_state(FAILED_OVER)
    machine.ping(110.0)
    machine.ping_succeeded(112.0)
    assert machine.route(112.0) is Way.PRIMARY
    assert machine.events == [EntityRecovered("orders", forced=False, after_s=12.0)]
    assert machine.next_deadline() is None
    assert not machine.tick(1000.0)


def test_an_abandoned_ping_is_made_up_for() -> None:
    machine = in_state(FAILED_OVER)
    machine.ping(110.0)
    machine.ping_abandoned()
    assert machine.state is FAILED_OVER
    assert not machine.tick(119.9)
    assert machine.tick(120.0)


@pytest.mark.parametrize("force", [EntityFailover.force_back, EntityFailover.force_over])
def test_an_announced_ping_that_is_not_needed_any_more(
    force: Callable[[EntityFailover, float], None],
) -> None:
    machine = in_state(FAILED_OVER)
    assert machine.tick(110.0)
    force(machine, 110.0)
    assert not machine.ping_started()
    assert machine.pings == 0


def test_an_announced_ping_does_not_outlive_its_failover() -> None:
    machine = in_state(FAILED_OVER)
    assert machine.tick(110.0)
    machine.force_back(110.0)
    machine.fail(112.0)
    assert not machine.tick(172.0)
    assert machine.state is FAILED_OVER
    assert not machine.ping_started(), "the new failover has its own first ping"
    assert machine.tick(182.0)
    assert machine.ping_started()


def test_a_late_answer_says_nothing_about_a_new_failover() -> None:
    machine = in_state(FAILED_OVER)
    machine.ping(110.0)
    machine.force_back(111.0)
    machine.fail(112.0)
    machine.tick(172.0)
    assert machine.state is FAILED_OVER
    assert not machine.tick(185.0), "the old ping is still under way"
    machine.events.clear()
    machine.ping_succeeded(186.0)
    assert machine.state is FAILED_OVER
    machine.ping(186.0)
    machine.ping_succeeded(187.0)
    assert machine.events == [EntityRecovered("orders", forced=False, after_s=15.0)]


def test_a_late_failure_neither() -> None:
    machine = in_state(FAILED_OVER)
    machine.ping(110.0)
    machine.force_back(111.0)
    machine.events.clear()
    machine.ping_failed(ERROR, is_refused=True)
    assert machine.events == []
    assert machine.refusal is None


def test_a_refused_ping_is_remembered_until_one_gets_through() -> None:
    machine = in_state(FAILED_OVER)
    machine.ping(110.0)
    machine.ping_failed(ERROR, is_refused=True)
    assert machine.refusal is ERROR
    machine.ping(120.0)
    machine.ping_failed(OperationTimeoutError(), is_refused=False)
    assert machine.refusal is ERROR
    machine.ping(130.0)
    machine.ping_succeeded(130.0)
    assert machine.refusal is None


# --- force ------------------------------------------------------------------------------------


def test_forced_over_pings_nobody_and_stays() -> None:
    machine = Machine()
    machine.force_over(100.0)
    assert machine.events == [EntityFailedOver("orders", None, forced=True)]
    assert machine.next_deadline() is None
    assert not machine.tick(10_000.0)
    assert machine.route(10_000.0) is Way.BACKLOG
    machine.force_back(10_100.0)
    assert not machine.forced
    assert machine.events[1:] == [EntityRecovered("orders", forced=True, after_s=10_000.0)]


def test_force_takes_over_from_an_outage() -> None:
    machine = in_state(FAILED_OVER)
    machine.ping(110.0)
    machine.ping_failed(ERROR, is_refused=True)
    machine.ping(120.0)
    machine.events.clear()
    machine.force_over(121.0)
    machine.force_over(122.0)
    assert machine.events == [EntityFailedOver("orders", None, forced=True)]
    assert machine.refusal is None
    machine.ping_succeeded(123.0)
    assert machine.state is FAILED_OVER
    assert machine.forced
    assert machine.status(130.0).failed_over_for_s == 30.0


def test_forced_back_from_failing_stops_the_interval() -> None:
    machine = in_state(FAILING)
    machine.force_back(120.0)
    assert machine.next_deadline() is None
    assert machine.route(1_000.0) is Way.PRIMARY


def test_a_failure_after_force_is_not_forced() -> None:
    machine = Machine(0.0)
    machine.force_over(100.0)
    machine.force_back(110.0)
    machine.events.clear()
    machine.fail(120.0)
    assert machine.events == [EntityFailedOver("orders", ERROR, forced=False)]
    assert machine.tick(130.0)


# --- status -----------------------------------------------------------------------------------


def test_status() -> None:
    machine = Machine()
    machine.send_succeeded(90.0, count=3)
    machine.fail(100.0)
    failing = machine.status(130.0)
    assert (failing.state, failing.failing_for_s, failing.next_ping_in_s) == (FAILING, 30.0, None)
    assert failing.sent_to_primary == 3
    assert failing.last_error is ERROR
    machine.tick(160.0)
    over = machine.status(166.0)
    assert (over.failing_for_s, over.failed_over_for_s, over.next_ping_in_s) == (None, 6.0, 4.0)
    assert machine.status(200.0).next_ping_in_s == 0.0
    machine.ping(170.0)
    machine.ping_failed(ERROR, is_refused=False)
    assert machine.status(171.0).last_ping_error is ERROR
    assert machine.status(171.0).pings == 1
    assert not over.forced
