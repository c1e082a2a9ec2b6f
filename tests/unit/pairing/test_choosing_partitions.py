"""A send whose partition refuses it: another is chosen, unless a copy may have arrived."""

from typing import cast

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusConnectionError

from tests.unit.pairing.sending_world import DOWN, World, key_on_primary, message
from tests.unit.pairing.stamps import asks, stamp_of
from twinbus.entities.partitions import PARTITION_COUNT, chosen_partition
from twinbus.pairing.errors import PartitionRefusedError
from twinbus.pairing.events import State
from twinbus.pairing.sending import shortcut
from twinbus.pairing.steps import SendToPrimary, Step

pytestmark = pytest.mark.proves("P-20")

REFUSED = PartitionRefusedError("full", is_certain=True)


def home_on_primary(step: Step) -> int:
    return chosen_partition(key_on_primary(step).rpartition("/")[0])


@pytest.mark.proves("P-20")
def test_a_partition_that_refuses_is_left_for_another() -> None:
    world = World(interval_s=0.0)
    world.send(message(), REFUSED, REFUSED)
    assert world.kinds() == ["SendToPrimary"] * 3
    homes = [home_on_primary(step) for step in world.steps]
    assert len(set(homes)) == 3
    assert world.entity.state is State.HEALTHY, "nobody fails over for a partition"
    for _ in range(2 * PARTITION_COUNT):
        world.send(message())
        assert home_on_primary(world.steps[0]) not in homes[:2]


@pytest.mark.proves("P-20")
def test_when_all_partitions_refuse_the_last_one_is_told_to_take_it() -> None:
    world = World(interval_s=0.0)
    sent = message()
    world.send(sent, *[REFUSED] * PARTITION_COUNT)
    assert len(world.steps) == PARTITION_COUNT + 1
    outgoing = [cast(SendToPrimary, step).outgoing for step in world.steps]
    assert [asks(each) for each in outgoing] == [True] * PARTITION_COUNT + [False]


@pytest.mark.proves("P-20")
def test_what_may_have_arrived_keeps_its_partition() -> None:
    """The SDK has tried it before, within the same call."""
    world = World(interval_s=0.0)
    world.send(message(), PartitionRefusedError("full", is_certain=False))
    first, second = world.steps
    assert key_on_primary(first) == key_on_primary(second)
    assert [asks(cast(SendToPrimary, step).outgoing) for step in world.steps] == [True, False]


@pytest.mark.proves("P-20")
def test_a_message_that_is_sent_again_does_not_ask() -> None:
    world = World()
    sent = message()
    with pytest.raises(ServiceBusConnectionError):
        world.send(sent, DOWN)
    key = key_on_primary(world.steps[0])
    world.send(sent)
    assert key_on_primary(world.steps[0]) == key
    assert not asks(cast(SendToPrimary, world.steps[0]).outgoing)


@pytest.mark.proves("P-20")
def test_after_a_shortcut_that_was_refused_the_flow_chooses_again() -> None:
    world = World()
    sent = message()
    way = shortcut(world.pairing, world.entity, sent)
    assert way is not None and asks(cast(ServiceBusMessage, way.outgoing))
    assert not way.failed(REFUSED), "the flow need not hear of it"
    world.send(sent)
    (step,) = world.steps
    before = stamp_of(cast(ServiceBusMessage, way.outgoing))
    assert before is not None
    assert home_on_primary(step) != chosen_partition(before.rpartition("/")[0])


@pytest.mark.proves("P-20")
def test_after_a_shortcut_that_may_have_arrived_the_flow_insists() -> None:
    world = World()
    sent = message()
    way = shortcut(world.pairing, world.entity, sent)
    assert way is not None
    assert not way.failed(PartitionRefusedError("full", is_certain=False))
    world.send(sent)
    (step,) = world.steps
    assert key_on_primary(step) == stamp_of(cast(ServiceBusMessage, way.outgoing))
    assert not asks(cast(SendToPrimary, step).outgoing)


@pytest.mark.proves("P-20", "P-7")
def test_a_refusal_that_leaves_no_choice_counts() -> None:
    """With a key, or where a copy may be there: its partition's trouble is the message's own."""
    world = World(interval_s=0.0)
    world.send(ServiceBusMessage(b"", partition_key="k"), REFUSED)
    assert world.kinds() == ["SendToPrimary", "SendToBacklog"]


def test_a_call_whose_time_is_over_chooses_no_more() -> None:
    world = World()
    world.took_s = [5.0]
    with pytest.raises(PartitionRefusedError):
        world.send(message(), REFUSED, timeout_s=5.0)
