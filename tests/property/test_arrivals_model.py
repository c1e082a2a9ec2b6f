"""The numbers that have come, against a plain set of them, under any sequence of sends."""

from hypothesis import given
from hypothesis import strategies as st

from twinbus.entities.arrivals import Arrivals
from twinbus.entities.message import NewMessage, ProducerKey

producers = st.sampled_from(["a", "b", "c"])
keys = st.none() | st.tuples(producers, st.integers(1, 40))
sends = st.lists(st.lists(keys, max_size=6), max_size=25)


def message_of(key: tuple[str, int] | None) -> NewMessage:
    message = NewMessage(b"")
    if key is not None:
        message.producer_key = ProducerKey(*key)
    return message


def fresh_in(arrivals: Arrivals, keys: list[tuple[str, int] | None]) -> list[bool]:
    """Send these: which are new?  From now on they have come."""
    found = arrivals.screen([message_of(key) for key in keys])
    for producer, bounds in found.arrived.items():
        arrivals.add(producer, bounds)
    return [number > 0 for number in found.spread(list(range(1, len(found.fresh) + 1)))]


def numbers_in(arrivals: Arrivals) -> set[tuple[str, int]]:
    found = set()
    for producer in arrivals.producers():
        bounds = arrivals.bounds_of(producer)
        for first, end in zip(bounds[::2], bounds[1::2], strict=True):
            found |= {(producer, number) for number in range(first, end)}
    return found


@given(sends)
def test_it_is_a_set(sent: list[list[tuple[str, int] | None]]) -> None:
    arrivals = Arrivals()
    model: set[tuple[str, int]] = set()
    for keys in sent:
        expected = []
        for key in keys:
            expected.append(key is None or key not in model)
            if key is not None:
                model.add(key)
        assert fresh_in(arrivals, keys) == expected
        assert numbers_in(arrivals) == model
        for producer in arrivals.producers():
            bounds = arrivals.bounds_of(producer)
            assert sorted(set(bounds)) == bounds
        assert all(arrivals.has(*key) for key in model)
        assert not any(arrivals.has(producer, 41) for producer in "abc")


@given(sends, st.integers(1, 3), st.integers(1, 3))
def test_what_is_forgotten_lets_a_copy_pass_and_never_drops_a_first(
    sent: list[list[tuple[str, int] | None]], producers_max: int, ranges_max: int
) -> None:
    arrivals = Arrivals(producers_max, ranges_max)
    model: set[tuple[str, int]] = set()
    for keys in sent:
        fresh = fresh_in(arrivals, keys)
        for key, is_fresh in zip(keys, fresh, strict=True):
            assert is_fresh or key in model or keys.count(key) > 1
        model |= {key for key in keys if key is not None}
        assert numbers_in(arrivals) <= model
        assert len(arrivals.producers()) <= producers_max
        for producer in arrivals.producers():
            assert len(arrivals.bounds_of(producer)) <= 2 * ranges_max


@given(sends, st.data())
def test_adding_in_any_order_and_twice_gives_the_same(
    sent: list[list[tuple[str, int] | None]], data: st.DataObject
) -> None:
    """Slices of a snapshot and facts of the log overlap in any way."""
    arrivals = Arrivals()
    facts: list[tuple[str, list[int]]] = []
    for keys in sent:
        found = arrivals.screen([message_of(key) for key in keys])
        for producer, bounds in found.arrived.items():
            arrivals.add(producer, bounds)
            facts.append((producer, bounds))
    again = Arrivals()
    for producer in arrivals.producers():
        again.add(producer, arrivals.bounds_of(producer))
    for producer, bounds in data.draw(st.permutations(facts)):
        again.add(producer, bounds)
    assert numbers_in(again) == numbers_in(arrivals)
