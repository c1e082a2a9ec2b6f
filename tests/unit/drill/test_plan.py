"""The scenes of a drill and how its time is shared out."""

import pytest

from twinbus.drill.plan import (
    DURATION_S_MIN,
    ENTITIES,
    FAILOVER_INTERVAL_S,
    FAULTS,
    SEND_TIMEOUT_S,
    Act,
    Fault,
    pause_s,
    scenes,
    shortest_s,
)


def test_one_outage() -> None:
    found = scenes(60.0, ["kill"])
    assert [scene.act for scene in found] == [Act.WELL, Act.FAILS, Act.RETURNS]
    assert sum(scene.duration_s for scene in found) == pytest.approx(60.0)


def test_one_after_the_other_each_with_the_time_it_needs() -> None:
    faults: list[Fault] = ["kill", "hang", "cut"]
    found = scenes(104.0, faults)
    assert [scene.fault for scene in found] == [fault for fault in faults for _ in range(3)]
    assert sum(scene.duration_s for scene in found) == pytest.approx(104.0)
    lengths = {fault: sum(s.duration_s for s in found if s.fault == fault) for fault in faults}
    assert lengths["hang"] > lengths["kill"] == lengths["cut"]


@pytest.mark.parametrize("fault", list(FAULTS))
def test_the_shortest_outage_is_long_enough_to_fail_over(fault: Fault) -> None:
    [_, outage, _] = scenes(shortest_s([fault]), [fault])
    noticed_s = SEND_TIMEOUT_S if fault == "hang" else 0.0
    assert outage.duration_s > noticed_s + FAILOVER_INTERVAL_S + 1
    assert shortest_s([fault, fault]) == 2 * DURATION_S_MIN[fault]


def test_all_senders_together_send_at_the_rate() -> None:
    rate = sum(entity.senders / pause_s(entity, 120.0) for entity in ENTITIES)
    assert rate == pytest.approx(120.0)


def test_acts_are_counted_from_one() -> None:
    assert [act.number for act in Act] == [1, 2, 3, 4, 5]
