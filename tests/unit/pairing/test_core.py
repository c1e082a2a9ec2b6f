"""What the senders of a pairing share: deadlines, events, force, faults and the status."""

import random

import pytest
from azure.servicebus.exceptions import OperationTimeoutError

from twinbus.pairing.classification import Verdict
from twinbus.pairing.core import Pairing, PairSettings
from twinbus.pairing.errors import PairFaultedError
from twinbus.pairing.events import (
    BacklogQueueLost,
    EntityFailedOver,
    EntityFailing,
    PairFaulted,
    State,
    SyphonCounts,
)
from twinbus.pairing.options import SendAvailabilityPairedNamespaceOptions

ERROR = OperationTimeoutError()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def pairing_at(clock: Clock) -> Pairing:
    settings = PairSettings(
        primary="p.example", secondary="s.example", failover_interval_s=30.0, ping_interval_s=10.0
    )
    return Pairing(settings, ["p/0", "p/1"], random.Random(1), clock)


def fail(pairing: Pairing, entity: str) -> None:
    pairing.entity(entity).send_failed(Verdict.COUNT, ERROR, pairing.now())


def test_settings_are_what_the_options_say() -> None:
    options = SendAvailabilityPairedNamespaceOptions(
        object(),
        object(),
        failover_interval=5,
        ping_primary_interval=7,
        policy="legacy",
        restored_time_to_live="remaining",
        send_timeout=9,
        producer_keys=False,
    )
    assert PairSettings.of(options, "p", "s") == PairSettings(
        primary="p",
        secondary="s",
        failover_interval_s=5.0,
        ping_interval_s=7.0,
        policy="legacy",
        restored_time_to_live="remaining",
        send_timeout_s=9.0,
        producer_keys=False,
    )


def test_names_compare_without_case() -> None:
    pairing = pairing_at(Clock())
    assert pairing.entity("Orders") is pairing.entity("ORDERS")
    assert pairing.entity("orders").entity == "Orders"
    assert pairing.entity("bills") is not pairing.entity("orders")


@pytest.mark.proves("P-7")
def test_failover_is_per_entity() -> None:
    clock = Clock()
    pairing = pairing_at(clock)
    pairing.entity("bills")
    assert pairing.next_deadline() is None
    fail(pairing, "orders")
    clock.now = 5.0
    fail(pairing, "topic")
    assert pairing.next_deadline() == 30.0
    clock.now = 30.0
    assert pairing.tick() == []
    states = {name: each.state for name, each in pairing.status().entities.items()}
    assert states == {"bills": State.HEALTHY, "orders": State.FAILED_OVER, "topic": State.FAILING}
    assert pairing.next_deadline() == 35.0
    clock.now = 40.0
    assert pairing.tick() == ["orders"]
    assert pairing.tick() == []
    assert pairing.next_deadline() == 50.0


def test_events_are_told_once_and_in_order() -> None:
    clock = Clock()
    pairing = pairing_at(clock)
    fail(pairing, "orders")
    clock.now = 30.0
    pairing.tick()
    pairing.rotation.lost("p/0", ERROR, 30.0)
    assert pairing.take_events() == [
        EntityFailing("orders", ERROR),
        EntityFailedOver("orders", ERROR, forced=False),
        BacklogQueueLost("p/0", ERROR, left=1),
    ]
    assert pairing.take_events() == []
    pairing.force_failback("orders")
    assert len(pairing.take_events()) == 1


def test_force() -> None:
    pairing = pairing_at(Clock())
    pairing.entity("bills")
    pairing.force_failover("orders")
    assert pairing.entity("orders").forced
    assert not pairing.entity("bills").forced
    pairing.force_failover()
    assert pairing.entity("bills").state is State.FAILED_OVER
    pairing.force_failback("bills")
    assert pairing.entity("bills").state is State.RECOVERING
    assert pairing.entity("orders").forced
    pairing.force_failback()
    assert pairing.entity("orders").state is State.RECOVERING


@pytest.mark.proves("P-17")
def test_fault() -> None:
    pairing = pairing_at(Clock())
    pairing.check()
    pairing.fault("the secondary client has been closed")
    pairing.fault("and the primary too")
    assert pairing.take_events() == [PairFaulted("the secondary client has been closed")]
    with pytest.raises(PairFaultedError, match="the secondary client has been closed"):
        pairing.check()
    assert pairing.status().fault == "the secondary client has been closed"


def test_status() -> None:
    clock = Clock()
    pairing = pairing_at(clock)
    pairing.rotation.lost("p/1", ERROR, 0.0)
    syphon = {"p/1": SyphonCounts(7, 2, 3, 4, {"other": 4}), "old/0": SyphonCounts(1, 0, 0, 5)}
    status = pairing.status(syphon, running=True)
    assert (status.primary, status.secondary, status.syphon_running) == (
        "p.example",
        "s.example",
        True,
    )
    one = status.backlog_queues["p/1"]
    assert (one.in_rotation, one.last_error) == (False, ERROR)
    assert (one.moved, one.dead_lettered, one.held, one.strangers) == (7, 2, 3, 4)
    assert one.strangers_of == {"other": 4}
    old = status.backlog_queues["old/0"]
    assert (old.in_rotation, old.moved, old.strangers) == (False, 1, 5), "senders do not use it"
    zero = status.backlog_queues["p/0"]
    assert (zero.in_rotation, zero.last_error, zero.moved) == (True, None, 0)
    assert not pairing.status().syphon_running


@pytest.mark.proves("P-2", "P-9")
def test_a_new_ping_interval_holds_from_the_last_ping_on() -> None:
    """For entities that are failed over, and for those that come later."""
    clock = Clock()
    pairing = pairing_at(clock)
    pairing.entity("orders")
    pairing.force_failback("orders")
    fail(pairing, "orders")
    clock.now = 30.0
    assert pairing.tick() == []
    assert pairing.next_deadline() == 40.0
    pairing.set_ping_interval(600.0)
    assert pairing.next_deadline() == 630.0
    clock.now = 100.0
    pairing.set_ping_interval(20.0)  # was due at 50
    assert pairing.tick() == ["orders"]
    assert pairing.settings.ping_interval_s == 20.0
