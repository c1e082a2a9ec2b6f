"""Ranges of sequence numbers over partitions: nobody is led past what is down."""

import pytest

from tests.unit.gateway.partitions.partitioned_harness import Bus, key_in, new
from tests.unit.gateway.partitions.test_walks import SESSIONS, fill, selection_from
from twinbus.entities.commands import ListPartitions, PartitionState
from twinbus.entities.facts import DEAD_LETTER as DEAD_LETTER_QUEUE
from twinbus.entities.facts import MAIN
from twinbus.entities.message import ACTIVE, DEFERRED, Overlay
from twinbus.entities.partitions import PARTITION_COUNT, partition_of
from twinbus.entities.selections import (
    NUMBERS_END,
    Browse,
    ListNumbers,
    Selected,
    Selection,
    SettleRanges,
)
from twinbus.errors import EntityNotFound, InvalidOperation, ServerBusy, Unavailable
from twinbus.gateway.directory.directory import Entity
from twinbus.gateway.partitions.ranges import bounds_within
from twinbus.links.store_link import DOWN, UP

pytestmark = pytest.mark.proves("D-1")

P = 1 << 48  # from one partition's numbers to the next one's


def partitions(bus: Bus, queue: Entity, subqueue: int = MAIN) -> list[PartitionState]:
    states: list[PartitionState] = bus.ask(queue, ListPartitions(0, subqueue)).result
    assert [state.partition for state in states] == list(range(PARTITION_COUNT))
    return states


def settling(*bounds: int, overlay: Overlay | None = None, subqueue: int = MAIN) -> SettleRanges:
    selection = Selection()
    selection.states = [ACTIVE, DEFERRED]
    settle = SettleRanges(0, subqueue, selection, NUMBERS_END)
    settle.bounds = list(bounds)
    settle.overlay = overlay
    return settle


def range_of(first: int, end: int, maximum_bytes: int = 1 << 22) -> Browse:
    selection = selection_from(first)
    selection.to_sequence_number = end
    browse = Browse(0, MAIN, selection, 16_384)
    browse.maximum_bytes = maximum_bytes
    browse.is_range = True
    return browse


# --- how far the partitions have come ---------------------------------------------------------


def test_every_partition_says_how_far_it_has_come() -> None:
    bus = Bus(lags=True)
    queue = fill(bus, 40)
    states = partitions(bus, queue)
    assert [state.count for state in states] == bus.counts(queue)
    assert all(state.is_up for state in states)
    for state in states:
        assert state.first == state.partition * P + 1
        assert state.next == state.first + state.count
    empty = partitions(bus, queue, DEAD_LETTER_QUEUE)
    assert all(state.first == state.next and state.count == 0 for state in empty)


def test_partitions_that_are_down_are_not_waited_for() -> None:
    bus = Bus(store_count=4)
    queue = fill(bus, 40)
    bus.sims[1].health = DOWN
    bus.sims[2].refuses = lambda command: Unavailable("just gone")
    up = {state.partition for state in partitions(bus, queue) if state.is_up}
    assert up == {p for p in range(PARTITION_COUNT) if p % 4 in (0, 3)}
    for sim in bus.sims:
        sim.health = DOWN
    states = partitions(bus, queue)
    assert [(state.is_up, state.first, state.next, state.count) for state in states] == [
        (False, 0, 0, 0)
    ] * PARTITION_COUNT


def test_any_other_refusal_is_the_answer() -> None:
    bus = Bus()
    queue = fill(bus, 1)
    bus.sims[0].refuses = lambda command: EntityNotFound("deleted")
    assert isinstance(bus.ask(queue, ListPartitions(0, MAIN)).error, EntityNotFound)


# --- looking ----------------------------------------------------------------------------------


def test_the_numbers_of_all_partitions() -> None:
    bus = Bus()
    queue = fill(bus, 40)
    listed = bus.ask(queue, ListNumbers(0, MAIN, Selection(), NUMBERS_END)).result
    expected = [(state.first, state.next) for state in partitions(bus, queue)]
    assert list(zip(listed.bounds[::2], listed.bounds[1::2], strict=True)) == expected
    assert (listed.count, listed.next_sequence_number) == (40, 0)


def test_numbers_are_not_told_past_a_partition_that_is_down() -> None:
    """What is missing in a list of what there is would seem to be gone."""
    bus = Bus(store_count=4)
    queue = fill(bus, 40)
    bus.sims[1].health = DOWN
    listed = bus.ask(queue, ListNumbers(0, MAIN, Selection(), NUMBERS_END)).result
    assert (len(listed.bounds), listed.next_sequence_number) == (2, P)
    again = ListNumbers(0, MAIN, selection_from(P), NUMBERS_END)
    assert str(bus.ask(queue, again).error).startswith("Partition 1 of 'orders' is down.")
    selection = selection_from(2 * P)
    selection.to_sequence_number = 4 * P
    listed = bus.ask(queue, ListNumbers(0, MAIN, selection, NUMBERS_END)).result
    assert (len(listed.bounds), listed.next_sequence_number) == (4, 0)


@pytest.mark.parametrize("maximum_bytes", [1, 40, 1 << 22])
def test_reading_a_range(maximum_bytes: int) -> None:
    bus = Bus()
    queue = fill(bus, 40)
    first, end = 3 * P + 2, 6 * P + 2
    seen: list[int] = []
    number = first
    while number:
        selected = bus.ask(queue, range_of(number, end, maximum_bytes)).result
        seen += [each.message.sequence_number for each in selected.delivered]
        number = selected.next_sequence_number
    listed = bus.ask(queue, ListNumbers(0, MAIN, Selection(), NUMBERS_END)).result.bounds
    runs = zip(listed[::2], listed[1::2], strict=True)
    assert seen == [n for a, b in runs for n in range(a, b) if first <= n < end]
    assert len({partition_of(n) for n in seen}) == 4


def test_a_range_is_not_read_past_a_partition_that_is_down() -> None:
    bus = Bus(store_count=4)
    queue = fill(bus, 40)
    bus.sims[1].refuses = lambda command: Unavailable("just gone")
    selected = bus.ask(queue, range_of(0, NUMBERS_END)).result
    assert {partition_of(each.message.sequence_number) for each in selected.delivered} == {0}
    assert selected.next_sequence_number == P
    assert isinstance(bus.ask(queue, range_of(P, NUMBERS_END)).error, Unavailable)
    assert bus.ask(queue, range_of(2 * P, 4 * P)).result.count > 0


@pytest.mark.parametrize("first, end", [(0, 0), (5 * P, 5 * P), (16 * P, NUMBERS_END), (7, -7)])
def test_ranges_without_anything(first: int, end: int) -> None:
    bus = Bus()
    queue = fill(bus, 16)
    assert bus.ask(queue, range_of(first, end)).result.count == 0


# --- settling ---------------------------------------------------------------------------------


def test_bounds_are_cut_to_partitions() -> None:
    bounds = [0, 5, 9, 2 * P + 3, 15 * P + 1, NUMBERS_END]
    assert bounds_within(bounds, 0) == [0, 5, 9, P]
    assert bounds_within(bounds, 1) == [P, 2 * P]
    assert bounds_within(bounds, 2) == [2 * P, 2 * P + 3]
    assert bounds_within(bounds, 3) == []
    assert bounds_within(bounds, 15) == [15 * P + 1, 16 * P]


def test_every_range_finds_its_partition() -> None:
    bus = Bus(lags=True)
    queue = fill(bus, 48)
    done = bus.ask(queue, settling(2, 3, P + 1, 2 * P + 2, 15 * P, NUMBERS_END)).result
    assert isinstance(done, Selected)
    assert (done.count, done.units, done.next_sequence_number) == (8, 8, 0)
    assert bus.counts(queue) == [2, 0, 2, *[3] * 12, 0]
    assert bus.ask(queue, settling(0, NUMBERS_END)).result.count == 40
    assert bus.ask(queue, settling(16 * P, 17 * P)).result.count == 0


def test_settling_with_a_partition_down_does_the_others_and_then_says_so() -> None:
    bus = Bus(store_count=4)
    queue = fill(bus, 48)
    bus.sims[1].health = DOWN
    bus.sims[2].refuses = lambda command: ServerBusy("busy")
    done = bus.ask(queue, settling(0, 4 * P)).result
    assert (done.count, done.next_sequence_number) == (6, P)
    assert isinstance(bus.ask(queue, settling(P, 4 * P)).error, ServerBusy)
    assert isinstance(bus.ask(queue, settling(P, 2 * P)).error, Unavailable)
    bus.sims[1].health = UP
    bus.sims[2].refuses = lambda command: None
    assert bus.ask(queue, settling(P, 4 * P)).result.count == 6


def test_dead_lettering_over_partitions() -> None:
    bus = Bus()
    queue = fill(bus, 32)
    done = bus.ask(queue, settling(0, 2 * P, overlay=Overlay("no", "never"))).result
    assert done.count == 4
    assert [state.count for state in partitions(bus, queue, DEAD_LETTER_QUEUE)][:3] == [2, 2, 0]
    again = settling(0, 2 * P, overlay=Overlay("no"), subqueue=DEAD_LETTER_QUEUE)
    assert isinstance(bus.ask(queue, again).error, InvalidOperation)
    assert bus.ask(queue, settling(0, P, subqueue=DEAD_LETTER_QUEUE)).result.count == 2


def test_what_others_have_locked_stays() -> None:
    bus = Bus()
    queue = fill(bus, 16)
    receiver, sink = bus.receiver(queue, 100)
    bus.settle()
    receiver.close()
    assert len(sink.locks) == 16
    for i in range(8):
        bus.send(queue, new(b"free %d" % i))
    assert bus.ask(queue, settling(0, NUMBERS_END)).result.count == 8


def test_ranges_of_an_entity_with_sessions() -> None:
    bus = Bus()
    queue = bus.create(description=SESSIONS)
    for i in range(12):
        bus.send(queue, new(b"%d" % i, session_id=key_in(i % 3)))
    assert [state.count for state in partitions(bus, queue)][:4] == [4, 4, 4, 0]
    browse = range_of(2 * P + 2, 2 * P + 4)
    browse.selection.session_id = key_in(2)
    assert bus.ask(queue, browse).result.count == 2
    assert bus.ask(queue, settling(0, P + 3)).result.count == 6
