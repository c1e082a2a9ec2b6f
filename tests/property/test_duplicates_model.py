"""The duplicate history against a dictionary, under any sequence of sends and times."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.entities.test_duplicates import digest, remembered
from twinbus.entities.duplicates import DuplicateHistory
from twinbus.entities.message import NewMessage

pytestmark = pytest.mark.proves("M-5")

WINDOW_MS = 100
WINDOWS = st.sampled_from([WINDOW_MS // 2, WINDOW_MS, 3 * WINDOW_MS])

names = st.none() | st.integers(0, 30).map(str)
sends = st.tuples(
    st.integers(0, 60),  # how far the clock goes before it
    st.lists(names, max_size=4),
)


class Model:
    """What was seen when; nothing else is needed to say what a duplicate is."""

    def __init__(self, window_ms: int) -> None:
        self.window_ms = window_ms
        self.seen: dict[str, int] = {}

    def send(self, ids: list[str | None], now_ms: int) -> list[bool]:
        """Which of them are new; those are remembered."""
        fresh = []
        for each in ids:
            last = None if each is None else self.seen.get(each)
            is_new = last is None or now_ms - last >= self.window_ms
            fresh.append(is_new)
            if is_new and each is not None:
                self.seen[each] = now_ms
        return fresh


@pytest.mark.feature("send.duplicates")
@given(WINDOWS, st.lists(sends, max_size=20))
def test_a_history_is_a_dictionary_that_forgets(
    window_ms: int, sent: list[tuple[int, list[str | None]]]
) -> None:
    history = DuplicateHistory(window_ms)
    model = Model(window_ms)
    now_ms = 1_700_000_000_000
    for step_ms, ids in sent:
        now_ms += step_ms
        messages = [NewMessage(b"", message_id=each) for each in ids]
        sifted = history.sift(messages, False, now_ms)
        fresh = model.send(ids, now_ms)
        numbers = list(range(1, len(sifted.fresh) + 1))
        assert [number > 0 for number in sifted.spread(numbers)] == fresh
        assert sifted.fresh == [m for m, new in zip(messages, fresh, strict=True) if new]
        history.add(sifted.digests, now_ms)
        live = {name for name, at in model.seen.items() if now_ms - at < window_ms}
        assert all(history.seen(digest(name), now_ms) for name in live)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 90)), max_size=150), st.data())
def test_restoring_in_any_order_gives_the_same(
    seen: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Slices of a snapshot and facts of the log overlap in any way."""
    history = DuplicateHistory(WINDOW_MS)
    expected: dict[bytes, int] = {}
    for name, at_ms in seen:
        if digest(name) not in expected:
            history.restore(digest(name), at_ms)
            expected[digest(name)] = at_ms
    assert remembered(history) == expected
    again = DuplicateHistory(WINDOW_MS)
    for known in data.draw(st.permutations(list(expected)[:50])):
        again.restore(known, expected[known])
    place = 0
    while place >= 0:
        entries, place = history.piece(place)
        again.restore_entries(entries)
    assert remembered(again) == expected
    assert again.count == len(expected)
