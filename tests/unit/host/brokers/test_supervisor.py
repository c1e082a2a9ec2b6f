"""Supervision: the state machine, input by input."""

import pytest

from twinbus.host.brokers.supervisor import (
    CLOSED,
    DIAGNOSED,
    KILLED,
    OPEN,
    OPENING,
    STARTING,
    STOPPED,
    UP,
    Action,
    Close,
    Diagnose,
    Kill,
    Open,
    Start,
    Supervisor,
    Timings,
)
from twinbus.limits import (
    BROKER_BEAT_MS,
    BROKER_CLOSING_MS_MAX,
    BROKER_FORGIVEN_MS,
    BROKER_LAG_MS_MAX,
    BROKER_OPENING_MS_MAX,
    BROKER_PAUSE_MS_MAX,
    BROKER_PAUSE_MS_MIN,
    BROKER_SILENT_MS_MAX,
    BROKER_START_MS_MAX,
    BROKER_WELL_MS,
    STORE_PAUSE_MS_MAX,
    STORE_PAUSE_MS_MIN,
)


class Watch:
    """A supervisor, its clock, and what it has asked for."""

    def __init__(self, brokers: int, stores: int) -> None:
        self.now_ms = 1_000_000
        self.supervisor = Supervisor(brokers, stores, self.now_ms)
        self.silent: set[int] = set()

    def actions(self) -> list[Action]:
        return self.supervisor.take_actions()

    def tick(self) -> list[Action]:
        self.supervisor.tick(self.now_ms)
        return self.actions()

    def run(self, duration_ms: int) -> list[Action]:
        """Let time pass; every broker that is not silent beats."""
        seen: list[Action] = []
        end_ms = self.now_ms + duration_ms
        while self.now_ms < end_ms:
            self.now_ms += BROKER_BEAT_MS
            for broker in range(len(self.supervisor.brokers)):
                if broker not in self.silent:
                    self.supervisor.beat(broker, 0, self.now_ms)
            seen += self.tick()
        return seen

    def started(self, broker: int) -> list[Action]:
        self.supervisor.started(broker, self.now_ms)
        return self.actions()

    def ended(self, broker: int) -> list[Action]:
        self.supervisor.ended(broker, "exit code 1", self.now_ms)
        return self.actions()

    def opened(self, *stores: int) -> list[Action]:
        for store in stores:
            broker = self.supervisor.stores[store].broker
            self.supervisor.store_opened(broker, store, self.now_ms)
        return self.actions()

    def failed(self, store: int) -> list[Action]:
        broker = self.supervisor.stores[store].broker
        self.supervisor.store_failed(broker, store, "no such disk", self.now_ms)
        return self.actions()

    def owners(self) -> list[int]:
        return [store.broker for store in self.supervisor.stores]


def running(brokers: int, stores: int) -> Watch:
    """Everybody is up and at home."""
    watch = Watch(brokers, stores)
    watch.tick()
    for broker in range(brokers):
        watch.started(broker)
    watch.opened(*range(stores))
    return watch


# --- starting ---------------------------------------------------------------------------------


def test_every_broker_is_started_and_opens_its_own_stores() -> None:
    watch = Watch(2, 4)
    assert watch.tick() == [Start(0), Start(1)]
    # The first to come does not take everything: the other is on its way.
    assert watch.started(1) == [Open(1, 1), Open(3, 1)]
    assert watch.started(0) == [Open(0, 0), Open(2, 0)]
    assert watch.opened(0, 1, 2, 3) == []
    assert {store.state for store in watch.supervisor.stores} == {OPEN}
    assert watch.run(120_000) == []


def test_without_stores_is_who_has_only_failed_ones() -> None:
    watch = Watch(brokers=1, stores=2)

    def is_without() -> bool:
        return watch.supervisor.is_without_stores

    assert is_without()
    watch.tick()
    watch.started(0)
    assert [store.state for store in watch.supervisor.stores] == [OPENING, OPENING]
    assert not is_without()  # they may come yet
    watch.failed(0)
    assert not is_without()
    watch.failed(1)
    assert is_without()
    watch.run(10_000)
    assert OPENING in [store.state for store in watch.supervisor.stores]
    assert is_without()  # what has failed is only tried again
    watch.opened(0)
    assert not is_without()


def test_a_broker_that_does_not_come_up_is_killed_and_the_others_have_its_stores() -> None:
    watch = Watch(2, 2)
    watch.silent = {0}
    watch.tick()
    watch.started(1)
    watch.opened(1)
    seen = watch.run(BROKER_START_MS_MAX + 1_000)
    assert isinstance(seen[0], Diagnose) and seen[0].broker == 0
    assert seen[1:] == [Open(0, 1)]  # it never had it: no need to wait for its end


def test_who_took_long_to_start_has_all_its_time_until_the_next_beat() -> None:
    watch = Watch(2, 1)
    watch.tick()
    watch.started(0)
    watch.opened(0)
    watch.silent = {1}  # it has no store of its own, and so no other excuse
    assert watch.run(BROKER_START_MS_MAX) == []
    watch.started(1)
    assert watch.run(BROKER_SILENT_MS_MAX) == []


def test_a_process_that_cannot_be_started_is_tried_again_with_growing_pauses() -> None:
    watch = Watch(1, 1)
    assert watch.tick() == [Start(0)]
    pauses = []
    for _ in range(12):
        ended_ms = watch.now_ms
        seen = watch.ended(0)
        assert isinstance(seen[0], Diagnose)
        while Start(0) not in seen:
            watch.now_ms += BROKER_BEAT_MS
            seen = watch.tick()
        pauses.append(watch.now_ms - ended_ms)
    assert pauses[:4] == [0, BROKER_PAUSE_MS_MIN, 2 * BROKER_PAUSE_MS_MIN, 4 * BROKER_PAUSE_MS_MIN]
    assert pauses[-1] == BROKER_PAUSE_MS_MAX
    assert watch.supervisor.brokers[0].restarts == 12


def test_after_a_good_while_failures_are_forgotten() -> None:
    watch = running(1, 1)
    for _ in range(5):
        watch.ended(0)
        while watch.supervisor.brokers[0].state != STARTING:
            watch.run(BROKER_BEAT_MS)
        watch.started(0)
        watch.run(STORE_PAUSE_MS_MAX)
        watch.opened(0)
    watch.run(BROKER_FORGIVEN_MS)
    # At once, as the first time.
    assert watch.ended(0)[1:] == [Start(0)]
    assert watch.started(0) == [Open(0, 0)]


# --- the end of a process ---------------------------------------------------------------------


@pytest.mark.proves("A-4", "E-15")
def test_the_stores_of_a_process_that_ended_are_taken_over_at_once_and_evenly() -> None:
    """The entities it served move to other brokers meanwhile."""
    watch = running(3, 9)
    seen = watch.ended(0)
    assert seen[0] == Diagnose(0, "the process has ended: exit code 1")
    assert seen[1:] == [Start(0), Open(0, 1), Open(3, 2), Open(6, 1)]


def test_a_store_is_not_given_to_who_has_fallen_silent() -> None:
    """It may be hung, and whoever opens a store is given long to be heard of again."""
    watch = running(brokers=3, stores=3)
    watch.silent = {0}
    watch.run(BROKER_SILENT_MS_MAX - BROKER_BEAT_MS)
    assert Open(1, 2) in watch.ended(1)
    watch = running(brokers=2, stores=2)
    watch.silent = {0}
    watch.run(BROKER_SILENT_MS_MAX - BROKER_BEAT_MS)
    assert Open(1, 0) in watch.ended(1)  # there is nobody else


def test_who_is_back_and_well_gets_his_stores_one_after_the_other() -> None:
    watch = running(2, 4)
    watch.ended(0)
    watch.opened(0, 2)
    assert watch.owners() == [1, 1, 1, 1]
    watch.started(0)
    assert watch.run(BROKER_WELL_MS - BROKER_BEAT_MS) == []
    assert watch.run(BROKER_BEAT_MS) == [Close(0, 1)]
    assert watch.run(1_000) == []
    watch.supervisor.store_closed(1, 0, watch.now_ms)
    assert watch.actions() == [Open(0, 0)]
    assert watch.run(1_000) == []
    assert watch.opened(0) == [Close(2, 1)]
    watch.supervisor.store_closed(1, 2, watch.now_ms)
    assert watch.actions() == [Open(2, 0)]
    assert watch.opened(2) == []
    assert watch.owners() == [0, 1, 0, 1]


def test_a_store_does_not_move_to_a_broker_that_is_late_itself() -> None:
    watch = running(2, 2)
    watch.ended(0)
    watch.opened(0)
    watch.started(0)
    watch.run(BROKER_WELL_MS - 1_500)
    watch.silent = {0}
    seen = watch.run(BROKER_SILENT_MS_MAX + BROKER_BEAT_MS)
    assert not [action for action in seen if isinstance(action, Close)]
    assert watch.supervisor.brokers[0].state == DIAGNOSED


def test_a_store_does_not_move_to_a_broker_that_is_only_starting() -> None:
    watch = running(2, 2)
    watch.ended(0)
    watch.opened(0)
    watch.now_ms += 2 * BROKER_WELL_MS  # nobody was heard of, because nobody listened
    assert watch.tick() == []
    assert watch.supervisor.brokers[0].state == STARTING


def test_who_failed_often_has_to_be_well_for_longer() -> None:
    watch = running(2, 2)
    for _ in range(8):
        watch.ended(0)
        while watch.supervisor.brokers[0].state != STARTING:
            watch.run(BROKER_BEAT_MS)
            watch.opened(0)
    watch.started(0)
    watch.run(STORE_PAUSE_MS_MAX)
    watch.opened(0)
    assert watch.owners() == [1, 1]
    assert watch.run(2 * BROKER_WELL_MS) == []
    assert Close(0, 1) in watch.run(BROKER_PAUSE_MS_MAX)


def test_a_slow_store_does_not_move() -> None:
    watch = running(2, 2)
    watch.ended(0)
    watch.opened(0)
    watch.started(0)
    end_ms = watch.now_ms + 3 * BROKER_WELL_MS
    while watch.now_ms < end_ms:
        watch.now_ms += BROKER_BEAT_MS
        watch.supervisor.beat(0, 0, watch.now_ms)
        watch.supervisor.beat(1, 0, watch.now_ms, frozenset({0}))
        assert watch.tick() == []
    assert watch.run(BROKER_BEAT_MS) == [Close(0, 1)]


def test_home_fails_while_a_store_is_on_its_way() -> None:
    watch = running(3, 3)
    watch.ended(0)
    watch.opened(0)
    watch.started(0)
    assert watch.run(BROKER_WELL_MS) == [Close(0, 1)]
    assert watch.ended(0)[1:] == []  # its second restart waits a little; the store is at 1 still
    assert watch.run(BROKER_PAUSE_MS_MIN) == [Start(0)]
    watch.supervisor.store_closed(1, 0, watch.now_ms)
    assert watch.actions() == [Open(0, 1)]


def test_the_broker_that_closes_a_moving_store_ends() -> None:
    watch = running(2, 2)
    watch.ended(0)
    watch.opened(0)
    watch.started(0)
    assert watch.run(BROKER_WELL_MS) == [Close(0, 1)]
    assert watch.ended(1)[1:] == [Start(1), Open(0, 0), Open(1, 0)]


def test_a_lost_store_goes_straight_home_to_who_is_well() -> None:
    watch = running(3, 9)
    watch.ended(2)
    watch.opened(2, 5, 8)
    watch.started(2)
    assert watch.owners() == [0, 1, 0, 0, 1, 1, 0, 1, 0]
    assert watch.run(BROKER_WELL_MS) == [Close(2, 0)]
    assert watch.ended(0)[1:] == [
        Start(0),
        Open(0, 2),  # who has fewest
        Open(2, 2),
        Open(3, 2),
        Open(6, 2),
        Open(8, 2),  # at home, though 1 has no more than it
        Close(5, 1),  # the next in turn
    ]


def test_a_store_that_is_not_let_go_of_costs_its_holder() -> None:
    watch = running(2, 2)
    watch.ended(0)
    watch.opened(0)
    watch.started(0)
    watch.run(BROKER_WELL_MS)
    (diagnose,) = watch.run(31_000)
    assert diagnose == Diagnose(1, "it does not let go of store 0")


def test_with_one_broker_its_stores_wait_for_it() -> None:
    watch = running(1, 2)
    assert watch.ended(0)[1:] == [Start(0)]
    assert watch.started(0) == [Open(0, 0), Open(1, 0)]


def test_a_store_whose_opening_ends_a_broker_waits_before_the_next() -> None:
    watch = running(3, 3)
    assert watch.ended(0)[1:] == [Start(0), Open(0, 1)]
    assert watch.ended(1)[1:] == [Start(1), Open(1, 2)]  # what was open is not suspected
    assert watch.run(STORE_PAUSE_MS_MIN) == []
    assert watch.run(STORE_PAUSE_MS_MIN) == [Open(0, 2)]


@pytest.mark.proves("E-15")
def test_a_store_does_not_take_down_one_broker_after_the_other() -> None:
    """What kills whoever opens it is tried ever less often."""
    watch = running(4, 4)
    ends = 0
    end_ms = watch.now_ms + 60_000
    while watch.now_ms < end_ms:
        watch.now_ms += BROKER_BEAT_MS
        for broker in range(4):
            watch.supervisor.started(broker, watch.now_ms)
            watch.supervisor.beat(broker, 0, watch.now_ms)
        for action in watch.tick():
            if isinstance(action, Open) and action.store == 0:
                ends += 1
                watch.supervisor.ended(action.broker, "signal 11", watch.now_ms)
            elif isinstance(action, Open):
                watch.supervisor.store_opened(action.broker, action.store, watch.now_ms)
            elif isinstance(action, Close):
                watch.supervisor.store_closed(action.broker, action.store, watch.now_ms)
        if watch.now_ms == end_ms - 60_000 + BROKER_BEAT_MS:
            watch.supervisor.ended(0, "signal 11", watch.now_ms)
    assert 3 <= ends <= 12


# --- hung and broken --------------------------------------------------------------------------


@pytest.mark.proves("A-4")
def test_a_silent_broker_is_diagnosed_then_killed_then_replaced() -> None:
    """Diagnostics are collected first."""
    watch = running(2, 2)
    watch.silent = {1}
    assert watch.run(BROKER_SILENT_MS_MAX) == []
    (diagnose,) = watch.run(BROKER_BEAT_MS)
    assert diagnose == Diagnose(1, "no sign of life for 2250 ms")
    watch.supervisor.beat(1, 0, watch.now_ms)  # too late: its end is decided
    assert watch.actions() == []
    watch.supervisor.diagnosed(1, watch.now_ms)
    assert watch.actions() == [Kill(1)]
    assert watch.run(60_000) == []  # until it is gone nobody else may touch its store
    assert watch.supervisor.stores[1].broker == 1
    assert watch.ended(1) == [Start(1), Open(1, 0)]


def test_whatever_it_says_is_a_sign_of_life() -> None:
    """A beat may be behind megabytes of messages."""
    watch = running(1, 1)
    watch.silent = {0}
    for _ in range(20):
        assert watch.run(BROKER_SILENT_MS_MAX // 2) == []
        watch.supervisor.heard(0, watch.now_ms)
    assert [type(action) for action in watch.run(3_000)] == [Diagnose]
    watch.supervisor.heard(0, watch.now_ms)
    assert watch.supervisor.brokers[0].state == DIAGNOSED


def test_diagnostics_that_take_too_long_are_not_waited_for() -> None:
    watch = running(1, 1)
    watch.silent = {0}
    seen = watch.run(8_000)
    assert [type(action) for action in seen] == [Diagnose, Kill]
    watch.supervisor.diagnosed(0, watch.now_ms)
    assert watch.actions() == []


def test_a_late_loop_is_as_good_as_none() -> None:
    watch = running(1, 1)
    watch.run(5_000)
    watch.supervisor.beat(0, BROKER_LAG_MS_MAX, watch.now_ms)
    assert watch.actions() == []
    watch.supervisor.beat(0, BROKER_LAG_MS_MAX + 1, watch.now_ms)
    assert watch.actions() == [Diagnose(0, "its loop is 5001 ms late")]


def test_a_broken_invariant_ends_a_broker() -> None:
    watch = running(2, 2)
    watch.supervisor.broken(0, "AssertionError: counts differ", watch.now_ms)
    assert watch.actions() == [Diagnose(0, "an invariant failed: AssertionError: counts differ")]
    assert watch.ended(0) == [Start(0), Open(0, 1)]


def test_recovery_of_a_large_store_is_not_taken_for_a_hang() -> None:
    watch = running(2, 2)
    watch.ended(0)
    assert watch.supervisor.stores[0].state == OPENING
    watch.started(0)
    watch.run(BROKER_BEAT_MS)
    watch.silent = {1}
    assert watch.run(BROKER_OPENING_MS_MAX) == []
    watch.supervisor.beat(1, BROKER_OPENING_MS_MAX, watch.now_ms)
    watch.opened(0)
    watch.supervisor.beat(1, BROKER_OPENING_MS_MAX, watch.now_ms)
    assert not [action for action in watch.actions() if isinstance(action, Diagnose)]
    (diagnose,) = [each for each in watch.run(3_000) if isinstance(each, Diagnose)]
    assert diagnose.broker == 1


def test_who_hung_before_it_was_asked_is_not_waited_for() -> None:
    """It would keep the store that it has never begun to open."""
    watch = running(2, 2)
    watch.silent = {1}
    assert watch.run(BROKER_BEAT_MS) == []
    assert Open(0, 1) in watch.ended(0)
    watch.started(0)
    (diagnose,) = watch.run(BROKER_SILENT_MS_MAX)
    assert isinstance(diagnose, Diagnose) and diagnose.broker == 1
    watch.ended(1)
    assert watch.run(1_000) == [Open(0, 0)]


def test_who_slept_himself_blames_nobody() -> None:
    """A gateway that was stopped, or a machine that was suspended."""
    watch = running(2, 2)
    watch.run(5_000)
    watch.now_ms += 3_600_000
    assert watch.tick() == []
    watch.supervisor.beat(0, 3_600_000, watch.now_ms)
    watch.supervisor.beat(1, 3_600_000, watch.now_ms)
    assert watch.run(5_000) == []
    # And then everything is as it was.
    watch.silent = {1}
    assert [type(action) for action in watch.run(3_000)] == [Diagnose]


def test_who_slept_while_a_broker_started_gives_it_more_time() -> None:
    watch = Watch(1, 1)
    watch.tick()
    watch.now_ms += 3_600_000
    assert watch.tick() == []
    assert watch.started(0) == [Open(0, 0)]


def test_who_slept_while_a_store_moved_gives_it_more_time() -> None:
    watch = running(2, 2)
    watch.ended(0)
    watch.opened(0)
    watch.started(0)
    assert watch.run(BROKER_WELL_MS) == [Close(0, 1)]
    watch.now_ms += 3_600_000
    assert watch.tick() == []
    assert watch.run(BROKER_CLOSING_MS_MAX - 1_000) == []


def test_who_slept_does_not_know_who_was_well() -> None:
    watch = running(2, 2)
    watch.ended(0)
    watch.opened(0)
    watch.started(0)
    watch.run(1_000)
    watch.now_ms += 3_600_000
    assert watch.tick() == []
    assert watch.run(BROKER_WELL_MS - 1_500) == []
    assert watch.run(1_000) == [Close(0, 1)]


# --- stores that fail -------------------------------------------------------------------------


def test_a_store_that_fails_is_opened_again_by_the_same_broker_with_growing_pauses() -> None:
    watch = running(2, 4)
    pauses = []
    for _ in range(9):
        failed_ms = watch.now_ms
        assert watch.failed(2) == []
        seen: list[Action] = []
        while not seen:
            seen = watch.run(BROKER_BEAT_MS)
        assert seen == [Open(2, 0)]
        pauses.append(watch.now_ms - failed_ms)
    assert pauses[:3] == [STORE_PAUSE_MS_MIN, 2 * STORE_PAUSE_MS_MIN, 4 * STORE_PAUSE_MS_MIN]
    assert pauses[-1] == STORE_PAUSE_MS_MAX
    assert {watch.supervisor.stores[store].state for store in (0, 1, 3)} == {OPEN}
    watch.opened(2)
    watch.run(BROKER_FORGIVEN_MS)
    assert watch.supervisor.stores[2].failures == 0


def test_the_broker_of_a_failed_store_ends_during_the_pause() -> None:
    watch = running(2, 2)
    watch.failed(0)
    assert watch.ended(0)[1:] == [Start(0)]
    assert watch.run(STORE_PAUSE_MS_MIN) == [Open(0, 1)]


def test_a_failed_store_does_not_keep_the_next_from_moving() -> None:
    watch = running(2, 4)
    watch.ended(0)
    watch.opened(0, 2)
    watch.started(0)
    assert watch.run(BROKER_WELL_MS) == [Close(0, 1)]
    watch.supervisor.store_closed(1, 0, watch.now_ms)
    assert watch.actions() == [Open(0, 0)]
    assert watch.failed(0) == [Close(2, 1)]


# --- every state, every input -----------------------------------------------------------------


def broker_in(state: str) -> Watch:
    """Broker 0 of two, in this state."""
    watch = running(2, 2)
    if state == UP:
        return watch
    if state in {STARTING, STOPPED}:
        watch.ended(0)
        if state == STOPPED:
            watch.ended(0)
    else:
        watch.supervisor.broken(0, "x", watch.now_ms)
        if state == KILLED:
            watch.supervisor.diagnosed(0, watch.now_ms)
    watch.actions()
    assert watch.supervisor.brokers[0].state == state
    return watch


INPUTS = ("started", "heard", "beat", "broken", "diagnosed", "ended")
NEXT = {
    (STOPPED, "started"): STOPPED,
    (STOPPED, "heard"): STOPPED,
    (STOPPED, "beat"): STOPPED,
    (STOPPED, "broken"): STOPPED,
    (STOPPED, "diagnosed"): STOPPED,
    (STOPPED, "ended"): STOPPED,
    (STARTING, "started"): UP,
    (STARTING, "heard"): STARTING,
    (STARTING, "beat"): STARTING,
    (STARTING, "broken"): DIAGNOSED,
    (STARTING, "diagnosed"): STARTING,
    (STARTING, "ended"): STOPPED,
    (UP, "started"): UP,
    (UP, "heard"): UP,
    (UP, "beat"): UP,
    (UP, "broken"): DIAGNOSED,
    (UP, "diagnosed"): UP,
    (UP, "ended"): STARTING,  # the first restart comes at once
    (DIAGNOSED, "started"): DIAGNOSED,
    (DIAGNOSED, "heard"): DIAGNOSED,
    (DIAGNOSED, "beat"): DIAGNOSED,
    (DIAGNOSED, "broken"): DIAGNOSED,
    (DIAGNOSED, "diagnosed"): KILLED,
    (DIAGNOSED, "ended"): STARTING,
    (KILLED, "started"): KILLED,
    (KILLED, "heard"): KILLED,
    (KILLED, "beat"): KILLED,
    (KILLED, "broken"): KILLED,
    (KILLED, "diagnosed"): KILLED,
    (KILLED, "ended"): STARTING,
}


@pytest.mark.parametrize("seen", INPUTS)
@pytest.mark.parametrize("state", [STOPPED, STARTING, UP, DIAGNOSED, KILLED])
def test_every_state_of_a_broker_knows_every_input(state: str, seen: str) -> None:
    watch = broker_in(state)
    supervisor, now_ms = watch.supervisor, watch.now_ms
    if seen == "started":
        supervisor.started(0, now_ms)
    elif seen == "heard":
        supervisor.heard(0, now_ms)
    elif seen == "beat":
        supervisor.beat(0, 0, now_ms)
    elif seen == "broken":
        supervisor.broken(0, "x", now_ms)
    elif seen == "diagnosed":
        supervisor.diagnosed(0, now_ms)
    else:
        supervisor.ended(0, "x", now_ms)
    assert supervisor.brokers[0].state == NEXT[state, seen]
    kills = [action for action in watch.actions() if isinstance(action, Kill)]
    assert bool(kills) == ((state, seen) == (DIAGNOSED, "diagnosed"))


@pytest.mark.parametrize("input_name", ["store_opened", "store_closed"])
def test_what_a_store_says_out_of_turn_changes_nothing(input_name: str) -> None:
    """A broker that lost a store may still have had something to say about it."""
    watch = running(2, 2)
    watch.ended(0)
    for broker, store in ((0, 0), (0, 1), (1, 1)):
        getattr(watch.supervisor, input_name)(broker, store, watch.now_ms)
    assert watch.actions() == []
    assert [store.state for store in watch.supervisor.stores] == [OPENING, OPEN]
    watch.supervisor.store_failed(0, 0, "x", watch.now_ms)
    assert watch.supervisor.stores[0].state == OPENING
    watch.failed(0)
    watch.failed(0)
    assert watch.supervisor.stores[0].state == CLOSED
    assert watch.supervisor.stores[0].failures == 2  # lost once, failed once


def test_timings_can_be_shorter_for_a_rehearsal() -> None:
    supervisor = Supervisor(1, 1, 0, Timings(silent_ms=300))
    supervisor.tick(0)
    supervisor.started(0, 0)
    supervisor.store_opened(0, 0, 0)
    supervisor.take_actions()
    for now_ms in (100, 200, 300):
        supervisor.tick(now_ms)
    assert supervisor.take_actions() == []
    supervisor.tick(400)
    assert supervisor.take_actions() == [Diagnose(0, "no sign of life for 400 ms")]


def test_who_only_starts_is_not_well_however_short_that_is() -> None:
    supervisor = Supervisor(2, 2, 0, Timings(well_ms=100))
    supervisor.tick(0)
    for number in (0, 1):
        supervisor.started(number, 0)
        supervisor.store_opened(number, number, 0)
    supervisor.ended(0, "exit code 1", 0)
    supervisor.store_opened(1, 0, 0)
    supervisor.take_actions()
    for now_ms in (250, 500):
        supervisor.beat(1, 0, now_ms)
        supervisor.tick(now_ms)
    assert supervisor.take_actions() == []
