"""Ranges of sequence numbers: how far they go, which are there, reading and settling them."""

import pytest

from tests.unit.broker.actions import answer, arrived, found, restarted, send
from tests.unit.broker.harness import BrokerHarness
from tests.unit.broker.stored_messages import new, stored
from tests.unit.broker.test_bulk import asked, bodies, chosen, settle
from twinbus.broker.bulk import SLICE_COUNT_MAX
from twinbus.entities.commands import DEAD_LETTER, DEFER, ListPartitions, PartitionState, Peek
from twinbus.entities.descriptions import DISABLED, QueueDescription
from twinbus.entities.facts import DEAD_LETTER as DEAD_LETTERS
from twinbus.entities.facts import MAIN, TRANSFER_DEAD_LETTER
from twinbus.entities.message import ACTIVE, DEFERRED, SCHEDULED, NewMessage, Overlay
from twinbus.entities.partitions import partition_name
from twinbus.entities.queue import Queue
from twinbus.entities.selections import (
    NUMBERS_END,
    Browse,
    DeleteMessages,
    ListNumbers,
    Selected,
    SettleRanges,
    Undefer,
)
from twinbus.errors import EntityDisabled, InvalidOperation
from twinbus.limits import BROWSE_BYTES_MAX, RUNS_MAX

pytestmark = pytest.mark.proves("D-1")

SESSIONS = QueueDescription(requires_session=True)


@pytest.fixture
def bench() -> BrokerHarness:
    return BrokerHarness(segment_size=1 << 24)


def span(bench: BrokerHarness, queue: Queue, subqueue: int = MAIN) -> tuple[int, int, int]:
    result = answer(bench, ListPartitions(queue.entity_id, subqueue))
    assert isinstance(result, list)
    (state,) = result
    assert isinstance(state, PartitionState)
    assert state.is_up
    return state.first, state.next, state.count


def settled(
    bench: BrokerHarness,
    queue: Queue,
    *bounds: int,
    overlay: Overlay | None = None,
    subqueue: int = MAIN,
) -> Selected:
    command = SettleRanges(queue.entity_id, subqueue, chosen([ACTIVE, DEFERRED]), NUMBERS_END)
    command.bounds = list(bounds)
    command.overlay = overlay
    result = answer(bench, command)
    assert isinstance(result, Selected)
    return result


def numbers(bench: BrokerHarness, queue: Queue, subqueue: int = MAIN) -> list[int]:
    return asked(bench, ListNumbers, queue, subqueue=subqueue).bounds


def browsed(bench: BrokerHarness, queue: Queue, maximum_bytes: int) -> Selected:
    browse = Browse(queue.entity_id, MAIN, chosen(), 16_384)
    browse.maximum_bytes = maximum_bytes
    result = answer(bench, browse)
    assert isinstance(result, Selected)
    return result


def fill(bench: BrokerHarness, queue: Queue, count: int) -> None:
    for start in range(0, count, 1_000):
        send(bench, queue, *[new(b"%d" % n) for n in range(start, min(count, start + 1_000))])


# --- how far the numbers go -------------------------------------------------------------------


def test_the_span_of_a_queue(bench: BrokerHarness) -> None:
    queue = bench.create_queue()
    assert span(bench, queue) == (1, 1, 0)
    fill(bench, queue, 5)
    assert span(bench, queue) == (1, 6, 5)
    settle(bench, queue, 2, DEAD_LETTER)
    assert span(bench, queue) == (3, 6, 3)
    assert span(bench, queue, DEAD_LETTERS) == (1, 6, 2)
    assert span(bench, queue, TRANSFER_DEAD_LETTER) == (6, 6, 0)
    again = restarted(bench)
    assert span(again, found(again, queue.name)) == (3, 6, 3)


def test_the_span_reaches_to_what_is_durable_and_no_further(bench: BrokerHarness) -> None:
    """A number that a crash could still take back, and give to another message, is not told."""
    queue = bench.create_queue()
    fill(bench, queue, 2)
    bench.send(queue, b"on its way")
    listing = ListPartitions(queue.entity_id, MAIN)
    bench.submit(listing)
    reply = bench.reply_to(listing)
    assert reply is not None, "it is answered at once"
    assert isinstance(reply.result, list)
    assert (reply.result[0].first, reply.result[0].next) == (1, 3)
    bench.run()
    assert span(bench, queue) == (1, 4, 3)


def test_the_span_survives_the_messages(bench: BrokerHarness) -> None:
    """Who has read up to a number never meets it again, also not in an emptied queue."""
    queue = bench.create_queue()
    fill(bench, queue, 7)
    assert settled(bench, queue, 0, 100).count == 7
    assert span(bench, queue) == (8, 8, 0)
    while bench.maintain():
        bench.run()
    again = restarted(bench)
    assert span(again, found(again, queue.name)) == (8, 8, 0)


def test_a_scheduled_message_comes_with_a_number_of_its_own(bench: BrokerHarness) -> None:
    queue = bench.create_queue()
    due_ms = bench.clock.now().utc_ms + 1_000
    send(bench, queue, new(b"later", scheduled_ms=due_ms))
    fill(bench, queue, 2)
    assert span(bench, queue) == (1, 4, 3)
    bench.pass_time(1_500)
    assert span(bench, queue) == (2, 5, 3)
    assert numbers(bench, queue) == [2, 5]


def test_the_span_of_a_partition(bench: BrokerHarness) -> None:
    queue = bench.create_queue(partition_name("orders", 3))
    start = 3 << 48
    assert span(bench, queue) == (start + 1, start + 1, 0)
    fill(bench, queue, 2)
    assert span(bench, queue) == (start + 1, start + 3, 2)
    states = answer(bench, ListPartitions(queue.entity_id, MAIN))
    assert isinstance(states, list)
    assert [state.partition for state in states] == [3]


def test_a_disabled_queue_tells_nothing(bench: BrokerHarness) -> None:
    queue = bench.create_queue()
    bench.update(queue, QueueDescription(status=DISABLED))
    with pytest.raises(EntityDisabled):
        span(bench, queue)
    with pytest.raises(EntityDisabled):
        settled(bench, queue, 1, 5)


# --- which numbers are there ------------------------------------------------------------------


def test_numbers_are_told_in_runs(bench: BrokerHarness) -> None:
    queue = bench.create_queue()
    fill(bench, queue, 10)
    assert numbers(bench, queue) == [1, 11]
    settled(bench, queue, 3, 5, 7, 8)
    assert numbers(bench, queue) == [1, 3, 5, 7, 8, 11]
    selection = chosen(from_number=2)
    selection.to_sequence_number = 9
    within = asked(bench, ListNumbers, queue, selection)
    assert (within.bounds, within.count, within.next_sequence_number) == ([2, 3, 5, 7, 8, 9], 4, 0)
    some = asked(bench, ListNumbers, queue, count=3)
    assert (some.bounds, some.next_sequence_number) == ([1, 3, 5, 6], 6)


def test_numbers_by_state(bench: BrokerHarness) -> None:
    queue = bench.create_queue()
    fill(bench, queue, 3)
    settle(bench, queue, 1, DEFER)
    send(bench, queue, new(b"later", scheduled_ms=bench.clock.now().utc_ms + 9_000))
    assert numbers(bench, queue) == [1, 5]
    assert asked(bench, ListNumbers, queue, chosen([DEFERRED])).bounds == [1, 2]
    assert asked(bench, ListNumbers, queue, chosen([SCHEDULED])).bounds == [4, 5]
    assert asked(bench, ListNumbers, queue, chosen([ACTIVE])).bounds == [2, 4]


def test_an_answer_has_so_many_runs(bench: BrokerHarness) -> None:
    """What does not fit into one answer comes with the next."""
    queue = bench.create_queue()
    count = 2 * RUNS_MAX + 6
    fill(bench, queue, count)
    every_second = [bound for n in range(2, count + 1, 2) for bound in (n, n + 1)]
    assert settled(bench, queue, *every_second).count == count // 2
    first = asked(bench, ListNumbers, queue)
    assert len(first.bounds) == 2 * RUNS_MAX
    assert first.next_sequence_number == 2 * RUNS_MAX + 1
    rest = asked(bench, ListNumbers, queue, chosen(from_number=first.next_sequence_number))
    assert len(rest.bounds) == 6
    assert rest.next_sequence_number == 0


# --- selections with an end -------------------------------------------------------------------


def test_every_selection_may_have_an_end(bench: BrokerHarness) -> None:
    queue = bench.create_queue()
    fill(bench, queue, 6)
    settle(bench, queue, 4, DEFER)
    selection = chosen(from_number=2)
    selection.to_sequence_number = 4
    seen = asked(bench, Browse, queue, selection)
    assert (bodies(seen), seen.next_sequence_number) == ([b"1", b"2"], 0)
    assert asked(bench, Undefer, queue, selection).count == 2
    assert numbers(bench, queue) == [1, 7]
    assert asked(bench, DeleteMessages, queue, selection).count == 2
    assert numbers(bench, queue) == [1, 2, 4, 7]


@pytest.mark.parametrize("end", [-5, 0, 1])
def test_an_end_before_the_beginning_leaves_nothing(bench: BrokerHarness, end: int) -> None:
    queue = bench.create_queue()
    fill(bench, queue, 3)
    selection = chosen()
    selection.to_sequence_number = end
    assert asked(bench, DeleteMessages, queue, selection).count == 0
    assert span(bench, queue) == (1, 4, 3)


def test_browsing_as_much_as_one_asks_for(bench: BrokerHarness) -> None:
    queue = bench.create_queue()
    for _ in range(6):
        send(bench, queue, *[new(bytes(1_000)) for _ in range(1_000)])
    selected = browsed(bench, queue, BROWSE_BYTES_MAX)
    size = sum(len(each.body) for each in selected.delivered)
    assert BROWSE_BYTES_MAX - 1_100 < size <= BROWSE_BYTES_MAX
    assert selected.next_sequence_number == selected.count + 1
    assert browsed(bench, queue, 1).count == 1, "one there always is"


# --- settling ---------------------------------------------------------------------------------


def test_settling_ranges(bench: BrokerHarness) -> None:
    queue = bench.create_queue()
    fill(bench, queue, 10)
    done = settled(bench, queue, 0, 3, 5, 6, 6, 8, 100, 200)
    assert (done.count, done.units, done.next_sequence_number) == (5, 5, 0)
    assert numbers(bench, queue) == [3, 5, 8, 11]
    assert settled(bench, queue, 0, 3, 5, 6, 6, 8, 100, 200).count == 0, "once is enough"
    again = restarted(bench)
    queue = found(again, queue.name)
    assert numbers(again, queue) == [3, 5, 8, 11]
    assert arrived(again, queue) == [b"2", b"3", b"7", b"8", b"9"]


def test_settling_leaves_what_is_locked_or_scheduled(bench: BrokerHarness) -> None:
    queue = bench.create_queue()
    fill(bench, queue, 4)
    settle(bench, queue, 1, DEFER)
    bench.receiver(queue, 1)
    bench.run()
    send(bench, queue, new(b"later", scheduled_ms=bench.clock.now().utc_ms + 90_000))
    assert settled(bench, queue, 0, NUMBERS_END).count == 3
    assert numbers(bench, queue) == [2, 3, 5, 6]


@pytest.mark.proves("C-1")
def test_settling_counts_units_of_64_kib(bench: BrokerHarness) -> None:
    queue = bench.create_queue()
    send(bench, queue, new(b""), new(bytes(70_000)), new(bytes(200_000)))
    done = settled(bench, queue, 0, 9)
    assert (done.count, done.units) == (3, 1 + 2 + 4)


@pytest.mark.proves("D-2")
def test_settling_into_the_dead_letter_queue(bench: BrokerHarness) -> None:
    """A message that cannot be moved is put away with the reason."""
    queue = bench.create_queue()
    fill(bench, queue, 4)
    settle(bench, queue, 1, DEFER)
    done = settled(bench, queue, 1, 3, overlay=Overlay("Damaged", "no way to read it"))
    assert done.count == 2
    again = restarted(bench)
    queue = found(again, queue.name)
    assert numbers(again, queue) == [3, 5]
    assert numbers(again, queue, DEAD_LETTERS) == [1, 3]
    dead = answer(again, Peek(queue.entity_id, DEAD_LETTERS, 0, 10))
    assert isinstance(dead, list)
    overlays = [each.message.overlay for each in dead]
    assert [(each.reason, each.description) for each in overlays] == [
        ("Damaged", "no way to read it")
    ] * 2
    assert arrived(again, queue, DEAD_LETTERS) == [b"0", b"1"]


def test_dead_letters_are_settled_and_not_dead_lettered_again(bench: BrokerHarness) -> None:
    queue = bench.create_queue()
    fill(bench, queue, 3)
    settle(bench, queue, 3, DEAD_LETTER)
    for subqueue in (DEAD_LETTERS, TRANSFER_DEAD_LETTER):
        with pytest.raises(InvalidOperation, match="cannot be dead-lettered"):
            settled(bench, queue, 0, 9, overlay=Overlay("again"), subqueue=subqueue)
    assert settled(bench, queue, 2, 9, subqueue=DEAD_LETTERS).count == 2
    assert numbers(bench, queue, DEAD_LETTERS) == [1, 2]


def test_settling_in_a_queue_with_sessions(bench: BrokerHarness) -> None:
    queue = bench.create_queue(description=SESSIONS)
    messages = [
        NewMessage(stored(b"", None, "ab"[n % 2], {}), session_id="ab"[n % 2]) for n in range(6)
    ]
    send(bench, queue, *messages)
    assert span(bench, queue) == (1, 7, 6)
    assert settled(bench, queue, 1, 4).count == 3
    assert settled(bench, queue, 4, 5, overlay=Overlay("no")).count == 1
    assert numbers(bench, queue) == [5, 7]
    assert numbers(bench, queue, DEAD_LETTERS) == [4, 5]


def test_settling_takes_turns_with_everybody_else(bench: BrokerHarness) -> None:
    """A slice at a time: whoever sends meanwhile is answered before a long settlement is over."""
    queue = bench.create_queue()
    fill(bench, queue, 3 * SLICE_COUNT_MAX)
    command = SettleRanges(queue.entity_id, MAIN, chosen([ACTIVE, DEFERRED]), NUMBERS_END)
    command.bounds = [1, 2 * SLICE_COUNT_MAX, 2 * SLICE_COUNT_MAX + 1, NUMBERS_END]
    bench.submit(command)
    commit = bench.turn()
    assert commit is not None
    bench.write(commit)
    sent = bench.send(queue, b"in between")
    commit = bench.turn()
    assert commit is not None
    bench.write(commit)
    assert bench.reply_to(sent) is not None
    assert bench.reply_to(command) is None
    bench.run()
    reply = bench.reply_to(command)
    assert reply is not None
    assert isinstance(reply.result, Selected)
    assert reply.result.count == 3 * SLICE_COUNT_MAX - 1
    left = 2 * SLICE_COUNT_MAX
    assert numbers(bench, queue) == [
        left,
        left + 1,
        3 * SLICE_COUNT_MAX + 1,
        3 * SLICE_COUNT_MAX + 2,
    ]


def test_what_came_after_the_request_is_not_settled(bench: BrokerHarness) -> None:
    queue = bench.create_queue()
    fill(bench, queue, 2)
    command = SettleRanges(queue.entity_id, MAIN, chosen([ACTIVE, DEFERRED]), NUMBERS_END)
    command.bounds = [0, NUMBERS_END]
    bench.submit(command)
    bench.send(queue, b"later")
    bench.run()
    assert numbers(bench, queue) == [3, 4]
