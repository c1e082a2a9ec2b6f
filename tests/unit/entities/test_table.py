"""The message table against a plain dict, and what it must not keep in memory."""

import random

import pytest

from twinbus.entities.message import DEFERRED, NEVER_MS, Message
from twinbus.entities.table import BLOCK_SIZE, MessageTable

MANY = 3 * BLOCK_SIZE + 17


def message(number: int, expires_ms: int = NEVER_MS) -> Message:
    return Message(number, b"", 0, 0, expires_ms)


def filled(count: int, step: int = 1) -> MessageTable:
    table = MessageTable()
    for number in range(step, step * count + 1, step):
        table.append(message(number))
    return table


def numbers(table: MessageTable, start: int = 0) -> list[int]:
    found: list[int] = []
    while run := table.run_from(start, 100):
        found += [message.sequence_number for message in run]
        start = found[-1] + 1
    return found


@pytest.mark.parametrize("step", [1, 3], ids=["gap-free", "gaps"])
def test_every_message_is_found_and_no_other(step: int) -> None:
    table = filled(MANY, step)
    for number in range(step * MANY + 5):
        found = table.get(number)
        if number and number % step == 0 and number <= step * MANY:
            assert found is not None
            assert found.sequence_number == number
        else:
            assert found is None
    assert table.count == MANY


def test_an_empty_table_has_nothing() -> None:
    table = MessageTable()
    assert table.get(1) is None
    assert table.run_from(0, 10) == []
    assert table.take_locked([(1, 1)], 0) == [None]
    assert table.next_expiry_ms() == NEVER_MS


@pytest.mark.parametrize("seed", range(4))
def test_random_inserts_and_removals_keep_order(seed: int) -> None:
    chance = random.Random(seed)
    table = MessageTable()
    expected: set[int] = set()
    for _ in range(6 * BLOCK_SIZE):
        number = chance.randrange(1, 5 * BLOCK_SIZE)
        if number in expected and chance.random() < 0.7:
            table.remove(number)
            expected.remove(number)
        elif number not in expected:
            table.insert(message(number))
            expected.add(number)
    assert numbers(table) == sorted(expected)
    assert table.count == len(expected)
    for number in range(5 * BLOCK_SIZE):
        assert (table.get(number) is not None) == (number in expected)
    for start in range(0, 5 * BLOCK_SIZE, 97):
        assert numbers(table, start) == sorted(n for n in expected if n >= start)
    for number in chance.sample(sorted(expected), len(expected)):
        table.remove(number)
    assert (table.count, numbers(table)) == (0, [])


def test_a_run_ends_with_its_block_and_the_next_goes_on() -> None:
    table = filled(2 * BLOCK_SIZE)
    assert len(table.run_from(1, MANY)) == BLOCK_SIZE
    assert table.run_from(BLOCK_SIZE + 1, 1)[0].sequence_number == BLOCK_SIZE + 1
    table.remove(BLOCK_SIZE)
    assert table.run_from(BLOCK_SIZE, 1)[0].sequence_number == BLOCK_SIZE + 1


def test_emptied_blocks_are_dropped() -> None:
    table = filled(10 * BLOCK_SIZE)
    for number in range(1, 10 * BLOCK_SIZE + 1):
        if number % (4 * BLOCK_SIZE) != 0:
            table.remove(number)
    assert numbers(table) == [4 * BLOCK_SIZE, 8 * BLOCK_SIZE]
    assert len(table._blocks) == 2


def test_taking_locked_messages_leaves_others() -> None:
    table = filled(MANY)
    held = table.get(5)
    assert held is not None
    held.grant, held.locked_until_ms = 9, 100
    assert table.take_locked([(5, 8), (6, 0), (6, 9), (0, 9), (MANY + 1, 9)], 50) == [None] * 5
    assert table.take_locked([(5, 9)], 100) == [None], "the last millisecond is too late"
    assert table.take_locked([(5, 9), (5, 9)], 99) == [held, None]
    assert table.get(5) is None
    assert table.take_locked([(5, 9)], 99) == [None], "not found, though its block is there"


@pytest.mark.parametrize("seed", range(4))
def test_runs_of_locks_take_what_single_locks_would(seed: int) -> None:
    chance = random.Random(seed)
    table = filled(MANY)
    here: dict[int, Message] = {}
    for number in range(1, MANY + 1):
        held = table.get(number)
        assert held is not None
        held.grant, held.locked_until_ms = chance.choice((7, 7, 7, 8)), chance.choice((9, 9, 5))
        here[number] = held
    while here:
        start = chance.randrange(0, MANY)
        run = list(range(start, start + chance.randrange(1, 2 * BLOCK_SIZE)))
        if chance.random() < 0.2:
            chance.shuffle(run)
        locks = [(number, chance.choice((7, 7, 7, 8))) for number in run]
        expected: list[Message | None] = []
        for number, grant in locks:
            held = here.get(number)
            if held is None or held.grant != grant or held.locked_until_ms <= 5:
                expected.append(None)
            else:
                expected.append(here.pop(number))
        assert table.take_locked(locks, 5) == expected
        assert (table.count, numbers(table)) == (len(here), sorted(here))
        for held in here.values():  # nobody waits for ever
            held.locked_until_ms = 9


def test_expired_messages_are_found_once_published_and_free() -> None:
    table = MessageTable()
    for number in range(1, 6):
        table.append(message(number, 1_000 * number))
    locked, deferred = table.get(1), table.get(2)
    assert locked is not None
    assert deferred is not None
    locked.grant = 1
    deferred.state = DEFERRED
    for number in range(1, 6):
        found = table.get(number)
        assert found is not None
        table.watch_expiry(found)
    assert table.next_expiry_ms() == 1_000
    assert [m.sequence_number for m in table.find_expired(4_000, 3, 10)] == [3]
    table.remove(3)
    assert table.find_expired(4_000, 3, 10) == []
    assert table.next_expiry_ms() == 4_000, "number 4 is not published and stays watched"
    assert [m.sequence_number for m in table.find_expired(4_000, 5, 10)] == [4]
    table.remove(4)
    assert table.find_expired(4_000, 5, 10) == []
    assert table.next_expiry_ms() == 5_000
    locked.grant = 0
    table.watch_expiry(locked)
    assert table.next_expiry_ms() == 1_000, "watched again after its lock"


def test_expiry_is_found_in_blocks_that_were_split() -> None:
    table = MessageTable()
    for number in range(2, 2 * BLOCK_SIZE + 2, 2):
        table.append(message(number, 5_000))
    last = table.get(2 * BLOCK_SIZE)
    assert last is not None
    table.watch_expiry(last)
    table.insert(message(1))
    assert table.find_expired(4_999, NEVER_MS, 1) == []
    found = table.find_expired(5_000, NEVER_MS, MANY)
    assert last in found


def test_far_expiries_of_gone_messages_do_not_pile_up() -> None:
    table = MessageTable()
    for number in range(1, 200 * BLOCK_SIZE):
        table.append(message(number, 10**12 + number))
        if number % BLOCK_SIZE == 1 and number % 3:
            found = table.get(number)
            assert found is not None
            table.watch_expiry(found)
        if number > BLOCK_SIZE:
            table.remove(number - BLOCK_SIZE)
    assert len(table._expiries) < 80
    assert table.next_expiry_ms() >= 10**12 + 198 * BLOCK_SIZE
