"""Delivery order of one part: the cursor, what came back behind it, and stale entries."""

import random

from twinbus.entities.message import ACTIVE, DEFERRED, NEVER_MS, SCHEDULED, Message
from twinbus.entities.subqueue import SubQueue


def message(number: int, state: int = ACTIVE, due_ms: int = 0) -> Message:
    return Message(number, b"", 1, due_ms, state=state)


def filled(count: int) -> tuple[SubQueue, list[Message]]:
    part = SubQueue()
    messages = [message(number) for number in range(1, count + 1)]
    for each in messages:
        part.put(each)
    return part, messages


def take(part: SubQueue, count: int, published: int = NEVER_MS) -> list[int]:
    """Take the next ones and lock them, as a queue would."""
    taken = part.take_ready(count, published, 0, [], 1_000)
    for each in taken:
        part.lock(each, 1, 100)
    return [each.sequence_number for each in taken]


def test_what_came_back_goes_first_and_in_order() -> None:
    part, messages = filled(6)
    assert take(part, 4) == [1, 2, 3, 4]
    for number in (3, 1, 4):
        part.unlock(messages[number - 1], ACTIVE)
    assert take(part, 2) == [1, 3]
    assert take(part, 9) == [4, 5, 6]


def test_an_entry_that_came_back_twice_is_taken_once() -> None:
    part, messages = filled(2)
    take(part, 2)
    part.unlock(messages[0], ACTIVE)
    part.unlock(messages[0], ACTIVE)  # a tail of facts replayed again
    assert take(part, 5) == [1]
    assert not part.has_ready(NEVER_MS)


def test_stale_entries_are_passed_over() -> None:
    part, messages = filled(4)
    take(part, 4)
    for each in messages:
        part.unlock(each, ACTIVE)
    part.remove(messages[0])
    part.lock(messages[1], 2, 200)
    assert part.has_ready(NEVER_MS)
    part.unlock(messages[2], DEFERRED)
    assert take(part, 5) == [4]
    for each in messages[1:]:
        part.remove(each)
    assert (part.table.count, part.size_bytes, part.deferred_count) == (0, 0, 0)


def test_taking_passes_over_stale_entries_too() -> None:
    part, messages = filled(2)
    take(part, 2)
    for each in messages:
        part.unlock(each, ACTIVE)
    part.remove(messages[0])
    assert take(part, 1) == [2]


def test_nothing_is_ready_among_locked_deferred_and_scheduled() -> None:
    part, messages = filled(2)
    part.put(message(3, SCHEDULED, due_ms=50))
    part.put(message(4, DEFERRED))
    part.lock(messages[0], 1, 100)  # a lock found in replay, ahead of the cursor
    part.lock(messages[1], 2, 100)
    assert not part.has_ready(NEVER_MS)
    part.unlock(messages[1], ACTIVE)
    assert part.has_ready(NEVER_MS), "it came back behind the cursor"
    assert take(part, 5) == [2]


def test_the_cursor_stops_at_the_watermark() -> None:
    part, messages = filled(5)
    part.remove(messages[1])
    assert part.has_ready(2)
    assert take(part, 5, published=2) == [1]
    assert not part.has_ready(2)
    assert take(part, 5, published=4) == [3, 4]
    assert take(part, 5, published=5) == [5]
    assert not part.has_ready(5)
    part.put(message(9))
    assert not part.has_ready(8), "the next one is beyond it"
    part.put(message(2))
    assert take(part, 1, published=5) == [2], "put in behind the cursor"


def test_schedules_survive_tidying() -> None:
    part = SubQueue()
    for number in range(1, 301):
        part.put(message(number, SCHEDULED, due_ms=1_000 - number))
    chance = random.Random(5)
    numbers = list(range(1, 301))
    chance.shuffle(numbers)
    for number in numbers[:290]:
        found = part.table.get(number)
        assert found is not None
        part.remove(found)
        left = max(set(range(1, 301)) - set(numbers[: numbers.index(number) + 1]))
        assert part.next_scheduled() == (1_000 - left, left)
    assert part.scheduled_count == 10
    assert len(part.schedule) <= 84
