"""Commands that name messages by sequence number: the number tells the partition."""

from typing import Any

import pytest

from tests.unit.gateway.partitions.partitioned_harness import Bus, bodies_of, key_in, new
from twinbus.entities.commands import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DEFER,
    PEEK_LOCK,
    RECEIVE_AND_DELETE,
    CancelScheduled,
    Command,
    Lock,
    Peek,
    ReceiveDeferred,
    RenewLocks,
    Send,
    Settle,
)
from twinbus.entities.descriptions import RECEIVE_DISABLED, QueueDescription
from twinbus.entities.facts import DEAD_LETTER as DEAD_LETTER_QUEUE
from twinbus.entities.facts import MAIN
from twinbus.entities.message import ACTIVE, DEFERRED
from twinbus.entities.selections import Selected, Selection, Undefer
from twinbus.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    InvalidOperation,
    MessageLockLost,
    MessageNotFound,
    ServerBusy,
    ServiceError,
    Unavailable,
)
from twinbus.gateway.directory.directory import Entity
from twinbus.links.store_link import DOWN

NOWHERE = 16 << 48 | 1  # of no partition


def fill(bus: Bus, partitions: list[int]) -> tuple[Entity, list[int]]:
    """A queue with one message in each of these partitions, and their numbers."""
    queue = bus.create()
    return queue, [bus.send(queue, new(b"%d" % p, key_in(p)))[0] for p in partitions]


def locked(bus: Bus, partitions: list[int]) -> tuple[Entity, list[Lock]]:
    queue, _ = fill(bus, partitions)
    _, sink = bus.receiver(queue, 100)
    bus.settle()
    return queue, sorted(sink.locks)


def deferred(bus: Bus, partitions: list[int]) -> tuple[Entity, list[int]]:
    queue, locks = locked(bus, partitions)
    assert bus.ask(queue, Settle(0, MAIN, locks, DEFER)).result is None
    return queue, [number for number, _ in locks]


def states(bus: Bus, queue: Entity) -> list[int]:
    return [each.message.state for each in bus.ask(queue, Peek(0, MAIN, 0, 100)).result]


# --- locks ------------------------------------------------------------------------------------


def test_one_partition_gets_the_command_itself() -> None:
    bus = Bus()
    queue, locks = locked(bus, [5])
    settle = Settle(0, MAIN, locks, COMPLETE)
    asker = bus.ask(queue, settle)
    assert asker.result is None
    assert asker.replies[0].command is settle
    assert bus.sims[1].submitted[-1] is settle


@pytest.mark.parametrize("outcome", [COMPLETE, DEAD_LETTER, DEFER, ABANDON])
def test_settling_over_partitions(outcome: int) -> None:
    bus = Bus()
    queue, locks = locked(bus, list(range(16)))
    settle = Settle(0, MAIN, locks, outcome)
    settle.delay_ms = 5_000 if outcome == ABANDON else 0
    assert bus.ask(queue, settle).result is None
    left = {COMPLETE: 0, DEAD_LETTER: 16, DEFER: 16, ABANDON: 16}[outcome]
    assert sum(bus.counts(queue)) == left
    assert sum(part.delay_ms for part in submitted(bus, Settle)) == 16 * settle.delay_ms


def submitted(bus: Bus, kind: type[Command]) -> list[Any]:
    return [each for sim in bus.sims for each in sim.submitted if type(each) is kind]


def test_each_lock_has_its_own_answer_in_the_order_of_the_request() -> None:
    bus = Bus(store_count=4)
    queue, locks = locked(bus, [1, 2, 3])
    asked = [(NOWHERE, 1), locks[2], (locks[0][0], 999), (-5, 1), locks[1]]
    bus.sims[2].health = DOWN
    errors = bus.ask(queue, Settle(0, MAIN, asked, COMPLETE)).result
    kinds = [None if error is None else type(error) for error in errors]
    assert kinds == [MessageLockLost, None, MessageLockLost, MessageLockLost, Unavailable]
    assert sum(bus.counts(queue)) == 2


def test_locks_of_no_partition() -> None:
    bus = Bus()
    queue = bus.create()
    errors = bus.ask(queue, Settle(0, MAIN, [(NOWHERE, 1)], COMPLETE)).result
    assert [type(error) for error in errors] == [MessageLockLost]
    assert bus.ask(queue, Settle(0, MAIN, [], COMPLETE)).result is None


def test_outcome_that_is_not_allowed_is_refused_for_every_lock() -> None:
    bus = Bus()
    queue, locks = locked(bus, [1, 2])
    bus.ask(queue, Settle(0, MAIN, locks, DEAD_LETTER))
    _, sink = bus.receiver(queue, 10, subqueue=DEAD_LETTER_QUEUE)
    bus.settle()
    assert len(sink.locks) == 2
    errors = bus.ask(queue, Settle(0, DEAD_LETTER_QUEUE, sink.locks, DEAD_LETTER)).result
    assert [type(error) for error in errors] == [InvalidOperation] * 2


def test_renewing_over_partitions() -> None:
    bus = Bus()
    queue, locks = locked(bus, [1, 2, 3])
    bus.clock.advance(50_000)
    until = bus.clock.now().utc_ms + 60_000
    asked = [locks[2], locks[0], locks[1]]
    assert bus.ask(queue, RenewLocks(0, MAIN, asked)).result == [until] * 3
    bus.clock.advance(50_000)
    assert bus.ask(queue, Settle(0, MAIN, locks, COMPLETE)).result is None


def test_renewing_a_lost_lock_is_refused() -> None:
    bus = Bus()
    queue, locks = locked(bus, [1, 2])
    for wrong in ((NOWHERE, 1), (locks[0][0], 999)):
        asker = bus.ask(queue, RenewLocks(0, MAIN, [locks[1], wrong]))
        assert isinstance(asker.error, MessageLockLost)


# --- deferred messages ------------------------------------------------------------------------


def test_receiving_deferred_over_partitions_in_the_order_of_the_request() -> None:
    bus = Bus(lags=True)
    queue, numbers = deferred(bus, [0, 5, 9, 15])
    asked = [numbers[3], numbers[0], numbers[2]]
    got = bus.ask(queue, ReceiveDeferred(0, MAIN, asked, PEEK_LOCK)).result
    assert [each.message.sequence_number for each in got] == asked
    assert bodies_of(got) == [b"15", b"0", b"9"]
    assert all(each.locked_until_utc_ms for each in got)
    locks = [(each.message.sequence_number, each.message.grant) for each in got]
    assert bus.ask(queue, Settle(0, MAIN, locks, COMPLETE)).result is None
    assert sum(bus.counts(queue)) == 1


def test_deferred_all_or_none() -> None:
    """What other partitions had locked is free again at once, and no delivery is counted."""
    bus = Bus()
    queue, numbers = deferred(bus, [0, 5, 9])
    missing = numbers[2] + 7
    asker = bus.ask(queue, ReceiveDeferred(0, MAIN, [*numbers[:2], missing], RECEIVE_AND_DELETE))
    assert isinstance(asker.error, MessageNotFound)
    got = bus.ask(queue, ReceiveDeferred(0, MAIN, numbers, PEEK_LOCK)).result
    assert [each.message.delivery_count for each in got] == [0, 0, 0]


def test_deferred_receive_and_delete_over_partitions() -> None:
    bus = Bus()
    queue, numbers = deferred(bus, [3, 4])
    got = bus.ask(queue, ReceiveDeferred(0, MAIN, numbers, RECEIVE_AND_DELETE)).result
    assert bodies_of(got) == [b"3", b"4"]
    assert [(each.locked_until_utc_ms, each.message.grant) for each in got] == [(0, 0)] * 2
    assert [each.message.state for each in got] == [DEFERRED] * 2
    assert sum(bus.counts(queue)) == 0


def test_what_was_removed_is_handed_out_even_if_another_partition_goes_down() -> None:
    bus = Bus(store_count=4)
    queue, numbers = deferred(bus, [3, 4])

    def goes_down(command: Command) -> ServiceError | None:
        return Unavailable("down") if isinstance(command, Settle) else None

    bus.sims[0].refuses = goes_down  # partition 4
    got = bus.ask(queue, ReceiveDeferred(0, MAIN, numbers, RECEIVE_AND_DELETE)).result
    assert bodies_of(got) == [b"3"]
    assert bus.counts(queue)[3:5] == [0, 1]
    bus.sims[0].refuses = lambda command: None
    bus.pass_time(61_000)  # its lock runs out
    got = bus.ask(queue, ReceiveDeferred(0, MAIN, [numbers[1]], RECEIVE_AND_DELETE)).result
    assert bodies_of(got) == [b"4"]


def test_nothing_removed_anywhere_is_an_error() -> None:
    bus = Bus(store_count=4)
    queue, numbers = deferred(bus, [3, 4])
    for sim in bus.sims:
        sim.refuses = lambda command: ServerBusy("busy") if isinstance(command, Settle) else None
    asker = bus.ask(queue, ReceiveDeferred(0, MAIN, numbers, RECEIVE_AND_DELETE))
    assert isinstance(asker.error, ServerBusy)
    assert sum(bus.counts(queue)) == 2


def test_all_partitions_refuse() -> None:
    bus = Bus()
    queue, numbers = deferred(bus, [3, 4])
    asked = [number + 1 for number in numbers]
    asker = bus.ask(queue, ReceiveDeferred(0, MAIN, asked, PEEK_LOCK))
    assert isinstance(asker.error, MessageNotFound)


def test_bad_numbers_are_refused_as_a_plain_queue_does() -> None:
    bus = Bus()
    queue = bus.create()
    cases: list[tuple[list[int], type[ServiceError]]] = [
        ([NOWHERE], MessageNotFound),
        ([1, NOWHERE], MessageNotFound),
        ([-1], MessageNotFound),
        ([1, 1], ArgumentInvalid),
        (list(range(1_001)), ArgumentOutOfRange),
    ]
    for numbers, expected in cases:
        for command in (ReceiveDeferred(0, MAIN, numbers, PEEK_LOCK), CancelScheduled(0, numbers)):
            assert type(bus.ask(queue, command).error) is expected
    assert bus.ask(queue, ReceiveDeferred(0, MAIN, [], PEEK_LOCK)).result == []


def test_deferred_of_a_session_is_in_the_partition_of_the_session() -> None:
    bus = Bus()
    queue = bus.create(description=QueueDescription(requires_session=True))
    other = bus.send(queue, new(b"y", session_id=key_in(3)))[0]
    number = bus.send(queue, new(b"x", session_id=key_in(2)))[0]
    _, answers = bus.accept(queue, key_in(2))
    lock = answers[0]
    assert not isinstance(lock, ServiceError)
    for asked in ([number], [number, other]):
        command = ReceiveDeferred(0, MAIN, asked, PEEK_LOCK)
        command.session_id, command.session_grant = lock.session_id, lock.grant
        assert isinstance(bus.ask(queue, command).error, MessageNotFound)  # not deferred yet


# --- scheduled and undeferred -----------------------------------------------------------------


def schedule(bus: Bus, queue: Entity, partitions: list[int]) -> list[int]:
    numbers: list[int] = []
    for partition in partitions:
        message = new(b"%d" % partition, key_in(partition))
        message.scheduled_ms = bus.clock.now().utc_ms + 60_000
        numbers += bus.ask(queue, Send(0, [message])).result
    return numbers


def test_cancelling_over_partitions() -> None:
    bus = Bus()
    queue = bus.create()
    numbers = schedule(bus, queue, [1, 1, 7, 12])
    assert bus.ask(queue, CancelScheduled(0, [numbers[1]])).result is None
    assert bus.ask(queue, CancelScheduled(0, [numbers[3], numbers[0]])).result is None
    assert sum(bus.counts(queue)) == 1


def test_cancelling_all_or_none() -> None:
    bus = Bus(store_count=4)
    queue = bus.create()
    numbers = schedule(bus, queue, [1, 2])
    active = bus.send(queue, new(b"x", key_in(3)))[0]
    for missing in (numbers[1] + 1, active):
        asker = bus.ask(queue, CancelScheduled(0, [numbers[0], missing]))
        assert isinstance(asker.error, MessageNotFound)
        assert str(missing) in str(asker.error)
    bus.sims[2].health = DOWN
    assert isinstance(bus.ask(queue, CancelScheduled(0, numbers)).error, Unavailable)
    assert sum(bus.counts(queue)) == 3


def test_partition_that_fails_in_the_middle_is_reported_with_what_was_done() -> None:
    bus = Bus(store_count=4)
    queue = bus.create()
    numbers = schedule(bus, queue, [1, 2])

    def goes_down(command: Command) -> ServiceError | None:
        return Unavailable("It is down.") if isinstance(command, CancelScheduled) else None

    bus.sims[2].refuses = goes_down
    asker = bus.ask(queue, CancelScheduled(0, numbers))
    assert isinstance(asker.error, Unavailable)
    assert f"sequence numbers: {numbers[0]}." in str(asker.error)


def test_cancelling_where_nobody_may_receive() -> None:
    bus = Bus()
    queue = bus.create()
    numbers = schedule(bus, queue, [1, 2])
    for part in queue.parts:
        store = bus.sims[part.store].store
        store.update_entity(part.entity_id, QueueDescription(status=RECEIVE_DISABLED))
    assert bus.ask(queue, CancelScheduled(0, numbers)).result is None
    assert sum(bus.counts(queue)) == 0


def test_undeferring_by_number() -> None:
    bus = Bus()
    queue, numbers = deferred(bus, [1, 2, 3])
    undefer = Undefer(0, MAIN, Selection(), 1)
    undefer.sequence_numbers = [numbers[0], numbers[1] + 1]
    assert isinstance(bus.ask(queue, undefer).error, MessageNotFound)
    assert states(bus, queue) == [DEFERRED] * 3
    undefer.sequence_numbers = numbers[:2]
    selected = bus.ask(queue, undefer).result
    assert isinstance(selected, Selected)
    assert selected.count == 2
    assert states(bus, queue) == [ACTIVE, ACTIVE, DEFERRED]
    undefer.sequence_numbers = numbers[2:]
    assert bus.ask(queue, undefer).result.count == 1
