"""Duplicate detection, the history and what a send makes of it."""

from hashlib import blake2b

import pytest

from twinbus.clock import Now
from twinbus.entities.descriptions import SEND_DISABLED, QueueDescription
from twinbus.entities.duplicates import (
    DIGEST_SIZE,
    ENTRY_SIZE,
    PIECE_BYTES_MAX,
    SHARD_ENTRIES,
    DuplicateHistory,
    digest_of,
)
from twinbus.entities.facts import MAIN, Fact, IdsSeen, Stored, Together
from twinbus.entities.message import NewMessage
from twinbus.entities.queue import Queue
from twinbus.entities.state import Grants
from twinbus.errors import EntityDisabled, QuotaExceeded

pytestmark = pytest.mark.proves("M-5")

WINDOW_MS = 20_000
NOW_MS = 1_700_000_000_000


def digest(name: object) -> bytes:
    return blake2b(str(name).encode(), digest_size=DIGEST_SIZE).digest()


def remembered(history: DuplicateHistory) -> dict[bytes, int]:
    """All entries, as a snapshot gets them."""
    found: dict[bytes, int] = {}
    place = 0
    while place >= 0:
        entries, place = history.piece(place)
        for at in range(0, len(entries), ENTRY_SIZE):
            entry = entries[at : at + ENTRY_SIZE]
            found[entry[:DIGEST_SIZE]] = int.from_bytes(entry[DIGEST_SIZE:], "little")
    return found


# --- the history ------------------------------------------------------------------------------


def test_an_id_is_remembered_for_exactly_the_window() -> None:
    history = DuplicateHistory(WINDOW_MS)
    history.add(digest("a"), NOW_MS)
    assert history.seen(digest("a"), NOW_MS)
    assert history.seen(digest("a"), NOW_MS + WINDOW_MS - 1)
    assert not history.seen(digest("a"), NOW_MS + WINDOW_MS)
    assert not history.seen(digest("b"), NOW_MS)


def test_an_id_is_seen_anew_after_its_window() -> None:
    history = DuplicateHistory(WINDOW_MS)
    history.add(digest("a"), NOW_MS)
    later_ms = NOW_MS + WINDOW_MS
    history.add(digest("a"), later_ms)
    assert history.seen(digest("a"), later_ms + WINDOW_MS - 1)
    assert history.count == 1


def test_a_clock_that_stands_back_forgets_nothing() -> None:
    history = DuplicateHistory(WINDOW_MS)
    history.add(digest("a"), NOW_MS)
    history.add(digest("b"), NOW_MS - 3_600_000)
    assert history.seen(digest("a"), NOW_MS - 3_600_000)
    assert history.seen(digest("b"), NOW_MS - 3_600_000)
    assert not history.seen(digest("b"), NOW_MS)


def test_many_ids_are_told_apart_while_shards_are_made() -> None:
    history = DuplicateHistory(WINDOW_MS)
    count = 40 * SHARD_ENTRIES
    for name in range(count):
        assert not history.seen(digest(name), NOW_MS)
        history.add(digest(name), NOW_MS)
    assert history.count == count
    assert all(history.seen(digest(name), NOW_MS) for name in range(count))
    assert not any(history.seen(digest(name), NOW_MS) for name in range(count, 2 * count))


def test_what_is_over_does_not_stay_in_memory() -> None:
    history = DuplicateHistory(WINDOW_MS)
    for name in range(5_000):
        history.add(digest(name), NOW_MS + name * 100)
    in_window = WINDOW_MS // 100
    assert history.count < 2 * in_window + 5_000 // SHARD_ENTRIES * 2
    history.forget_old(NOW_MS + 5_000 * 100)
    assert history.count == in_window - 1


def test_a_new_window_holds_for_what_was_seen_before() -> None:
    history = DuplicateHistory(WINDOW_MS)
    history.add(digest("a"), NOW_MS)
    history.window_ms = 3 * WINDOW_MS
    assert history.seen(digest("a"), NOW_MS + 2 * WINDOW_MS)
    history.window_ms = WINDOW_MS
    assert not history.seen(digest("a"), NOW_MS + 2 * WINDOW_MS)


def test_bytes_of_two_neighbours_are_no_id() -> None:
    """What lies across two entries may look like a digest; it is none."""
    history = DuplicateHistory(WINDOW_MS)
    history.add(digest("a") + digest("b"), NOW_MS)
    entries, _ = history.piece(0)
    for at in range(1, ENTRY_SIZE):
        across = entries[at : at + DIGEST_SIZE]
        assert not history.seen(across, NOW_MS)
        history.restore(across, NOW_MS)
    assert history.count == 2 + ENTRY_SIZE - 1


def test_a_full_history_refuses_and_changes_nothing() -> None:
    history = DuplicateHistory(WINDOW_MS, ids_max=10)
    history.add(b"".join(digest(name) for name in range(10)), NOW_MS)
    before = remembered(history)
    with pytest.raises(QuotaExceeded, match="history"):
        history.check_room(1, NOW_MS + WINDOW_MS - 1)
    assert remembered(history) == before
    history.check_room(10, NOW_MS + WINDOW_MS)


def test_restoring_twice_is_restoring_once() -> None:
    history = DuplicateHistory(WINDOW_MS)
    names = b"".join(digest(name) for name in range(500))
    for _ in range(2):
        history.restore(names, NOW_MS)
        history.restore(names[: 100 * DIGEST_SIZE], NOW_MS + WINDOW_MS)
    assert history.count == 600
    assert history.seen(digest(3), NOW_MS + WINDOW_MS + 1)
    assert not history.seen(digest(300), NOW_MS + WINDOW_MS + 1)


def test_pieces_are_small_and_give_the_history_again() -> None:
    history = DuplicateHistory(WINDOW_MS)
    for name in range(20_000):
        history.add(digest(name), NOW_MS + name % 7)
    again = DuplicateHistory(WINDOW_MS)
    place, pieces = 0, 0
    while place >= 0:
        entries, place = history.piece(place)
        assert len(entries) < 2 * PIECE_BYTES_MAX
        again.restore_entries(entries)
        pieces += 1
    assert pieces > 5
    assert remembered(again) == remembered(history)


def test_an_entry_that_moves_while_pieces_are_taken_is_met() -> None:
    history = DuplicateHistory(WINDOW_MS)
    names = [digest(name) for name in range(12_000)]
    for name in names:
        history.add(name, NOW_MS)
    found = bytearray()
    place = 0
    extra = 0
    while place >= 0:
        entries, place = history.piece(place)
        found += entries
        for _ in range(3_000):  # shards are split meanwhile, those ahead and those behind
            extra += 1
            history.add(digest(f"extra {extra}"), NOW_MS)
    met = {bytes(found[at : at + DIGEST_SIZE]) for at in range(0, len(found), ENTRY_SIZE)}
    assert met >= set(names)


def test_what_makes_an_id() -> None:
    plain = NewMessage(b"", message_id="a")
    keyed = NewMessage(b"", message_id="a", partition_key="k")
    assert digest_of(plain, False) == digest_of(keyed, False)
    assert digest_of(plain, True) != digest_of(keyed, True)
    of_session = NewMessage(b"", message_id="a", session_id="k")
    assert digest_of(of_session, True) == digest_of(keyed, True), "the session id is the key"
    shifted = NewMessage(b"", message_id="ka", partition_key="")
    assert digest_of(shifted, True) != digest_of(keyed, True)


# --- sending ----------------------------------------------------------------------------------


class Desk:
    """A queue with duplicate detection."""

    def __init__(self, **settings: int | str) -> None:
        self.facts: list[Fact] = []
        self.now = Now(NOW_MS, 0)
        self.description = QueueDescription(
            requires_duplicate_detection=True,
            duplicate_detection_window_ms=WINDOW_MS,
            **settings,  # type: ignore[arg-type]  # whatever a test says
        )
        self.queue = Queue(1, "desk", self.description, self.facts, Grants())

    def send(self, *ids: str | None, scheduled_ms: int = 0) -> list[int]:
        new = [NewMessage(b"body", message_id=each, scheduled_ms=scheduled_ms) for each in ids]
        return self.queue.send(new, self.now)

    def waiting(self) -> int:
        return self.queue.counts().message_count


def test_a_duplicate_is_accepted_and_dropped() -> None:
    desk = Desk()
    assert desk.send("a") == [1]
    assert desk.send("a") == [0]
    assert desk.send("b", "a", "c") == [2, 0, 3]
    assert desk.waiting() == 3


def test_a_duplicate_does_not_prolong_the_window() -> None:
    desk = Desk()
    desk.send("a")
    desk.now.utc_ms += WINDOW_MS - 1
    assert desk.send("a") == [0]
    desk.now.utc_ms += 1
    assert desk.send("a") == [2]


def test_a_duplicate_inside_one_batch() -> None:
    desk = Desk()
    assert desk.send("a", "b", "a") == [1, 2, 0]


def test_messages_without_an_id_are_no_duplicates() -> None:
    desk = Desk()
    assert desk.send(None, None) == [1, 2]
    assert [type(fact) for fact in desk.facts] == [Stored]


def test_a_scheduled_message_is_seen_when_it_is_sent() -> None:
    desk = Desk()
    later_ms = NOW_MS + 3_600_000
    assert desk.send("a", scheduled_ms=later_ms) == [1]
    assert desk.send("a") == [0]
    assert desk.send("a", scheduled_ms=later_ms) == [0]
    assert desk.queue.counts().scheduled == 1


def test_a_completed_message_is_remembered() -> None:
    desk = Desk()
    desk.send("a")
    desk.queue.publish(1)
    desk.queue.take_next(MAIN, 1, desk.now)
    assert desk.send("a") == [0]


def test_message_and_id_are_stated_together() -> None:
    """One without the other would lose a message, or let its duplicate in."""
    desk = Desk()
    desk.send("a", "b")
    (fact,) = desk.facts
    assert isinstance(fact, Together)
    stored, seen = fact.facts
    assert isinstance(stored, Stored) and len(stored.messages) == 2
    assert isinstance(seen, IdsSeen)
    assert seen.digests == digest("a") + digest("b")
    assert seen.seen_ms == NOW_MS


def test_a_dropped_duplicate_waits_for_what_was_stated_before_it() -> None:
    """The first one may not be durable yet: nobody may hear before that it was accepted."""
    desk = Desk()
    desk.send("a")
    desk.send("a")
    last = desk.facts[-1]
    assert len(desk.facts) == 2
    assert isinstance(last, Together)
    assert not last.facts


def test_a_refused_send_is_not_remembered() -> None:
    desk = Desk(max_size_megabytes=1)
    desk.queue.send([NewMessage(bytes(1_000_000), message_id="large")], desk.now)
    with pytest.raises(QuotaExceeded):
        desk.queue.send([NewMessage(bytes(100_000), message_id="late")], desk.now)
    assert desk.queue.send([NewMessage(bytes(100_000), message_id="large")], desk.now) == [0]
    assert desk.send("late") == [2]


def test_a_full_history_refuses_the_send() -> None:
    desk = Desk()
    desk.queue.history = DuplicateHistory(WINDOW_MS, ids_max=2)
    desk.send("a", "b")
    stated = len(desk.facts)
    with pytest.raises(QuotaExceeded, match="history"):
        desk.send("c")
    with pytest.raises(QuotaExceeded, match="history"):
        desk.queue.check_send([NewMessage(b"", message_id="c")], desk.now)
    assert len(desk.facts) == stated
    assert desk.waiting() == 2
    assert desk.send("a") == [0], "a duplicate needs no room"


def test_a_disabled_queue_refuses_duplicates_too() -> None:
    desk = Desk()
    desk.send("a")
    disabled = QueueDescription(requires_duplicate_detection=True, status=SEND_DISABLED)
    desk.queue.update(disabled)
    with pytest.raises(EntityDisabled):
        desk.send("a")


def test_facts_give_the_same_history() -> None:
    desk = Desk()
    desk.send("a", "b")
    desk.now.utc_ms += 5_000
    desk.send("c", "a")
    again = Queue(1, "desk", desk.description, [], Grants())
    for _ in range(2):
        for fact in desk.facts:
            assert isinstance(fact, Together)
            for each in fact.facts:
                again.replay(each, desk.now)
    assert desk.queue.history is not None and again.history is not None
    assert remembered(again.history) == remembered(desk.queue.history)
    assert again.history.count == 3
