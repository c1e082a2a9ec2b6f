"""Requests that go through an entity, partition after partition."""

import pytest

from tests.unit.gateway.partitions.partitioned_harness import Asker, Bus, bodies_of, key_in, new
from twinbus.entities.commands import (
    DEAD_LETTER,
    DEFER,
    GetSessionState,
    ListSessions,
    Peek,
    RenewSession,
    Send,
    SetSessionState,
    Settle,
)
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.facts import DEAD_LETTER as DEAD_LETTER_QUEUE
from twinbus.entities.facts import MAIN
from twinbus.entities.message import NEVER_MS
from twinbus.entities.partitions import PARTITION_COUNT, hash_key, partition_of
from twinbus.entities.selections import (
    Browse,
    DeleteMessages,
    Resubmit,
    Selection,
    SelectionCommand,
    Undefer,
)
from twinbus.entities.session_locks import SessionLock
from twinbus.errors import (
    ArgumentOutOfRange,
    InvalidOperation,
    NotSupported,
    ServerBusy,
    Unavailable,
)
from twinbus.gateway.directory.directory import Entity
from twinbus.links.store_link import DOWN, UP

SESSIONS = QueueDescription(requires_session=True)


def fill(bus: Bus, count: int = 40, size: int = 0) -> Entity:
    queue = bus.create()
    for i in range(count):
        bus.send(queue, new(b"%d" % i + b"." * size))
    return queue


def peek_all(bus: Bus, queue: Entity, count: int) -> list[int]:
    """The numbers that repeated peeks give."""
    seen: list[int] = []
    number = 0
    while True:
        found = bus.ask(queue, Peek(0, MAIN, number, count)).result
        if not found:
            return seen
        assert len(found) <= count
        seen += [each.message.sequence_number for each in found]
        number = seen[-1] + 1


# --- peeking ----------------------------------------------------------------------------------


@pytest.mark.proves("E-9")
@pytest.mark.parametrize("count", [1, 3, 16, 1_000])
def test_peeking_repeatedly_reaches_every_message(count: int) -> None:
    bus = Bus(lags=True)
    queue = fill(bus)
    seen = peek_all(bus, queue, count)
    assert seen == sorted(set(seen))
    assert len(seen) == 40


@pytest.mark.proves("E-9")
def test_peek_stops_at_256_kilobytes_and_misses_nothing() -> None:
    """Also where the limit falls into the middle of a partition."""
    bus = Bus()
    queue = fill(bus, 40, size=40_000)
    found = bus.ask(queue, Peek(0, MAIN, 0, 100)).result
    assert len(found) == 6
    assert sum(len(each.body) for each in found) <= 262_144
    assert len(peek_all(bus, queue, 100)) == 40


def test_large_message_is_peeked_alone() -> None:
    bus = Bus()
    queue = fill(bus, 3, size=300_000)
    assert len(bus.ask(queue, Peek(0, MAIN, 0, 100)).result) == 1
    assert len(peek_all(bus, queue, 100)) == 3


def test_peek_passes_over_partitions_that_are_down() -> None:
    bus = Bus(store_count=4)
    queue = fill(bus)
    bus.sims[0].health = DOWN
    seen = peek_all(bus, queue, 7)
    assert len(seen) == sum(bus.counts(queue)) - sum(bus.counts(queue)[0::4])
    bus.sims[1].refuses = lambda command: Unavailable("just gone")
    assert {partition_of(number) % 4 for number in peek_all(bus, queue, 7)} == {2, 3}
    for sim in bus.sims:
        sim.health = DOWN
    assert isinstance(bus.ask(queue, Peek(0, MAIN, 0, 1)).error, Unavailable)


# With four stores, partition p is in store p mod 4.


def start_peek(bus: Bus, queue: Entity, number: int = 0, count: int = 100) -> Asker:
    """A peek that is not answered in time."""
    asker = bus.start(queue, Peek(0, MAIN, number, count))
    bus.settle()
    assert asker.replies == []
    return asker


def partitions_in(asker: Asker) -> list[int]:
    """Of the messages in the only answer; their numbers only grow."""
    assert len(asker.replies) == 1
    numbers = [each.message.sequence_number for each in asker.result]
    assert numbers == sorted(set(numbers))
    return sorted({partition_of(number) for number in numbers})


@pytest.mark.proves("E-9")
@pytest.mark.parametrize("lags", [False, True])
def test_peek_does_not_wait_for_a_store_that_hangs(lags: bool) -> None:
    """Two ticks later the others are the answer; the store is asked once, and nobody twice."""
    bus = Bus(lags=lags)
    queue = fill(bus)
    for sim in bus.sims:
        sim.submitted.clear()
    bus.sims[1].hangs = True
    asker = start_peek(bus, queue)
    bus.pass_time(1_000)
    assert asker.replies == []  # the first tick may come right after the question
    bus.pass_time(1_000)
    assert partitions_in(asker) == [p for p in range(PARTITION_COUNT) if p % 4 != 1]
    assert len(bus.sims[1].submitted) == 1
    assert len(bus.sims[0].submitted) == 2 * PARTITION_COUNT // 4  # each until it has no more
    assert bus.ticking == set()
    bus.sims[1].wake()
    bus.settle()
    assert len(asker.replies) == 1  # the late answer is no second one
    assert len(peek_all(bus, queue, 7)) == 40


@pytest.mark.proves("E-9")
def test_peek_takes_a_late_answer_that_comes_before_its_own() -> None:
    """The walk goes back, so that the order of numbers is kept and nothing is left out."""
    bus = Bus(lags=True)
    queue = fill(bus)
    bus.sims[1].hangs = bus.sims[2].hangs = True
    asker = start_peek(bus, queue)
    bus.pass_time(2_000)  # partition 1 is late, and partition 2 is asked
    assert asker.replies == []
    bus.sims[1].wake()
    bus.settle()
    assert asker.replies == []  # partition 2 is waited for, anew
    bus.sims[2].wake()
    bus.settle()
    assert partitions_in(asker) == list(range(PARTITION_COUNT))
    assert len(asker.result) == 40


@pytest.mark.proves("E-9")
@pytest.mark.parametrize("is_killed", [False, True])
def test_peek_says_nothing_is_there_only_when_all_say_so(is_killed: bool) -> None:
    bus = Bus()
    queue = bus.create()
    bus.send(queue, new(b"only", key_in(5)))
    bus.sims[1].hangs = True
    asker = start_peek(bus, queue)
    bus.pass_time(10_000)
    assert asker.replies == []
    if is_killed:
        bus.sims[1].health = DOWN
        bus.sims[1].wake(Unavailable("killed"))
    else:
        bus.sims[1].wake()
    bus.settle()
    assert partitions_in(asker) == ([] if is_killed else [5])
    assert bus.ticking == set()


def test_peek_when_all_stores_hang_and_are_killed() -> None:
    bus = Bus(store_count=2)
    queue = fill(bus)
    for sim in bus.sims:
        sim.hangs = True
    asker = start_peek(bus, queue)
    bus.pass_time(5_000)
    for sim in bus.sims:
        assert asker.replies == []
        sim.health = DOWN
        sim.wake(Unavailable("killed"))
    assert isinstance(asker.error, Unavailable)
    assert len(asker.replies) == 1


def test_a_late_refusal_is_the_answer_while_there_is_none() -> None:
    bus = Bus(store_count=2)
    queue = fill(bus)
    for sim in bus.sims:
        sim.hangs = True
    asker = start_peek(bus, queue)
    bus.pass_time(2_000)
    bus.sims[0].wake(ServerBusy("busy"))
    assert isinstance(asker.error, ServerBusy)
    bus.sims[1].wake()
    bus.settle()
    assert len(asker.replies) == 1


def test_a_peek_in_one_store_waits_as_long_as_it_takes() -> None:
    bus = Bus(store_count=1)
    queue = fill(bus)
    bus.sims[0].hangs = True
    asker = start_peek(bus, queue)
    assert bus.ticking == set()
    bus.sims[0].wake()
    bus.settle()
    assert partitions_in(asker) == list(range(PARTITION_COUNT))


def test_peek_beyond_the_ends() -> None:
    bus = Bus()
    queue = fill(bus, 16)
    assert bus.ask(queue, Peek(0, MAIN, 16 << 48, 5)).result == []
    assert len(bus.ask(queue, Peek(0, MAIN, -7, 50)).result) == 16
    assert bus.ask(queue, Peek(0, MAIN, 0, 0)).result == []
    assert isinstance(bus.ask(queue, Peek(0, MAIN, 0, -1)).error, ArgumentOutOfRange)


def test_refusal_of_a_peek_is_answered() -> None:
    bus = Bus()
    queue = fill(bus, 16)
    bus.sims[0].refuses = lambda command: ServerBusy("busy")
    assert isinstance(bus.ask(queue, Peek(0, MAIN, 0, 5)).error, ServerBusy)


def test_session_peek_stays_in_its_partition() -> None:
    bus = Bus()
    queue = bus.create(description=SESSIONS)
    for i in range(12):
        bus.send(queue, new(b"%d" % i, session_id=key_in(i % 3)))
    peek = Peek(0, MAIN, 0, 100)
    peek.session_id = key_in(2)
    assert bodies_of(bus.ask(queue, peek).result) == [b"2", b"5", b"8", b"11"]
    plain = bus.create(name="plain")
    peek = Peek(0, MAIN, 0, 100)
    peek.session_id = "x"
    assert isinstance(bus.ask(plain, peek).error, InvalidOperation)


# --- by a selection ---------------------------------------------------------------------------


def selection_from(number: int) -> Selection:
    selection = Selection()
    selection.from_sequence_number = number
    return selection


@pytest.mark.parametrize("count", [1, 7, 1_000])
def test_browsing_in_steps(count: int) -> None:
    bus = Bus()
    queue = fill(bus)
    seen: list[int] = []
    number = 0
    while True:
        selected = bus.ask(queue, Browse(0, MAIN, selection_from(number), count)).result
        assert selected.count == len(selected.delivered) <= count
        seen += [each.message.sequence_number for each in selected.delivered]
        number = selected.next_sequence_number
        if number == 0:
            break
    assert len(seen) == 40
    assert seen == sorted(set(seen))


def test_browsing_stops_at_256_kilobytes() -> None:
    bus = Bus()
    queue = fill(bus, 20, size=50_000)
    seen = 0
    number = 0
    rounds = 0
    while rounds == 0 or number:
        selected = bus.ask(queue, Browse(0, MAIN, selection_from(number), 100)).result
        assert sum(len(each.body) for each in selected.delivered) <= 262_144
        seen += selected.count
        number = selected.next_sequence_number
        rounds += 1
    assert (seen, rounds) == (20, 4)


def test_conditions_of_a_selection_reach_every_partition() -> None:
    bus = Bus()
    queue = fill(bus, 20)
    cut_ms = bus.clock.now().utc_ms + 1
    bus.pass_time(1_000)
    for i in range(10):
        bus.send(queue, new(b"late %d" % i))
    selection = Selection()
    selection.before_ms = cut_ms
    assert bus.ask(queue, Browse(0, MAIN, selection, 100)).result.count == 20
    wrong = Selection()
    wrong.session_id = "x"
    assert isinstance(bus.ask(queue, Browse(0, MAIN, wrong, 1)).error, InvalidOperation)


def test_deleting_in_steps() -> None:
    bus = Bus(lags=True)
    queue = fill(bus)
    deleted = []
    while True:
        selected = bus.ask(queue, DeleteMessages(0, MAIN, Selection(), 7)).result
        if selected.count == 0:
            break
        deleted.append(selected.count)
    assert deleted == [7, 7, 7, 7, 7, 5]
    assert selected.next_sequence_number == 0


def test_deleting_with_a_partition_down_does_the_others_and_then_says_so() -> None:
    """Everything else is done; the down partition is heard of at the end, and not forgotten."""
    bus = Bus(store_count=4)
    queue = fill(bus)
    bus.sims[1].health = DOWN
    there = sum(bus.counts(queue)[1::4])
    number = 0
    deleted = 0
    while True:
        asker = bus.ask(queue, DeleteMessages(0, MAIN, selection_from(number), 9))
        if asker.replies[0].error is not None:
            break
        deleted += asker.result.count
        number = asker.result.next_sequence_number
        assert partition_of(number) == 1
    assert isinstance(asker.error, Unavailable)
    assert deleted == 40 - there
    bus.sims[1].health = UP
    assert bus.ask(queue, DeleteMessages(0, MAIN, Selection(), 100)).result.count == there


def test_what_was_done_before_a_refusal_is_reported() -> None:
    bus = Bus(store_count=4)
    queue = fill(bus, 16)
    bus.sims[1].refuses = lambda command: ServerBusy("busy")
    selected = bus.ask(queue, DeleteMessages(0, MAIN, Selection(), 100)).result
    assert (selected.count, partition_of(selected.next_sequence_number)) == (1, 1)
    again = DeleteMessages(0, MAIN, selection_from(selected.next_sequence_number), 100)
    assert isinstance(bus.ask(queue, again).error, ServerBusy)


def test_browsing_with_partitions_down() -> None:
    bus = Bus(store_count=4)
    queue = fill(bus, 16)
    bus.sims[0].health = DOWN
    assert bus.ask(queue, Browse(0, MAIN, Selection(), 100)).result.count == 12
    for sim in bus.sims:
        sim.health = DOWN
    assert isinstance(bus.ask(queue, Browse(0, MAIN, Selection(), 100)).error, Unavailable)


def test_resubmitting_and_undeferring_everywhere() -> None:
    bus = Bus()
    queue = fill(bus, 32)
    receiver, sink = bus.receiver(queue, 100)
    bus.settle()
    receiver.close()
    bus.ask(queue, Settle(0, MAIN, sink.locks[:16], DEAD_LETTER))
    bus.ask(queue, Settle(0, MAIN, sink.locks[16:], DEFER))
    requests: list[SelectionCommand] = [
        Resubmit(0, DEAD_LETTER_QUEUE, Selection(), 100),
        Undefer(0, MAIN, Selection(), 100),
    ]
    for request in requests:
        selected = bus.ask(queue, request).result
        assert (selected.count, selected.next_sequence_number) == (16, 0)
    _, again = bus.receiver(queue, 100)
    bus.settle()
    assert sorted(again.bodies) == sorted(sink.bodies)


def test_nothing_to_browse() -> None:
    bus = Bus()
    queue = bus.create()
    selected = bus.ask(queue, Browse(0, MAIN, Selection(), 100)).result
    assert (selected.count, selected.delivered, selected.next_sequence_number) == (0, [], 0)


# --- sessions ---------------------------------------------------------------------------------


def test_sessions_of_all_partitions_are_listed_in_pages() -> None:
    bus = Bus(lags=True)
    queue = bus.create(description=SESSIONS)
    ids = sorted(f"session {i}" for i in range(100))
    for session_id in ids:
        bus.send(queue, new(b"x", session_id=session_id))
    assert len([count for count in bus.counts(queue) if count]) == PARTITION_COUNT
    found: list[str] = []
    while len(found) < 100:
        found += bus.ask(queue, ListSessions(0, NEVER_MS, len(found), 30)).result
    assert found == ids
    assert bus.ask(queue, ListSessions(0, NEVER_MS, 100, 30)).result == []
    assert isinstance(bus.ask(queue, ListSessions(0, NEVER_MS, -1, 1)).error, ArgumentOutOfRange)
    plain = bus.create(name="plain")
    assert isinstance(bus.ask(plain, ListSessions(0, NEVER_MS, 0, 1)).error, NotSupported)


def test_more_sessions_than_one_partition_gives_at_a_time() -> None:
    """A partition gives 1,000 at most; a page far behind needs more of it."""
    bus = Bus(store_count=1)
    queue = bus.create(description=SESSIONS)
    ids = [key for key in (f"{i:05}" for i in range(40_000)) if hash_key(key) == 0][:1_500]
    send = Send(0, [new(b"x", session_id=session_id) for session_id in ids])
    send.partition = 0
    bus.ask(queue, send)
    found = bus.ask(queue, ListSessions(0, NEVER_MS, 1_200, 200)).result
    assert found == ids[1_200:1_400]


def test_listing_sessions_with_a_partition_down() -> None:
    bus = Bus(store_count=2)
    queue = bus.create(description=SESSIONS)
    for partition in range(4):
        bus.send(queue, new(b"x", session_id=key_in(partition)))
    bus.sims[0].health = DOWN
    found = bus.ask(queue, ListSessions(0, NEVER_MS, 0, 100)).result
    assert found == sorted([key_in(1), key_in(3)])
    bus.sims[1].refuses = lambda command: Unavailable("just gone")
    assert bus.ask(queue, ListSessions(0, NEVER_MS, 0, 100)).result == []


def test_session_commands_go_to_the_partition_of_the_session() -> None:
    bus = Bus()
    queue = bus.create(description=SESSIONS)
    bus.send(queue, new(b"x", session_id="abc"))
    _, answers = bus.accept(queue, "abc")
    lock = answers[0]
    assert isinstance(lock, SessionLock)
    bus.ask(queue, SetSessionState(0, "abc", lock.grant, b"state"))
    assert bus.ask(queue, GetSessionState(0, "abc", lock.grant)).result == b"state"
    assert bus.ask(queue, RenewSession(0, "abc", lock.grant)).result > 0
