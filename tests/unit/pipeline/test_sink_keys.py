"""Chunks and keys: the same rows get the same keys, others never do, and nothing is dropped."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.entities.arrivals import Arrivals
from twinbus.entities.message import NewMessage, ProducerKey
from twinbus.entities.partitions import NUMBERED_RUN, PARTITION_COUNT, hash_key
from twinbus.limits import ARRIVAL_RANGES_MAX, PRODUCER_KEY_CHARS_MAX
from twinbus.message.plain import data_section, decode_message
from twinbus.message.scan import scan
from twinbus.pipeline.sink.keys import (
    CHUNK_COUNT_MAX,
    Chunks,
    Outgoing,
    block_of,
    fault_of,
    keys_of_chunk,
    own_keys,
    run_name,
    stamped,
)

PRODUCER_KEY = "x-opt-twinbus-producer-key"

rows = st.lists(
    st.tuples(
        st.sampled_from(["orders", "Orders", "audit"]),
        st.sampled_from([b"", b"a", b"b", b"ab"]),
        st.sampled_from([None, "s1", "s2", "s3"]),
    ),
    max_size=40,
)
Row = tuple[str, bytes, str | None]


def outgoing(found: list[Row]) -> list[Outgoing]:
    """The session id is a part of the encoded message, as it is of every real one."""
    return [
        Outgoing(row, destination, data + f" {order}".encode(), order)
        for row, (destination, data, order) in enumerate(found, 1)
    ]


def chunks_of(messages: list[Outgoing], count_max: int, piece: int) -> list[list[Outgoing]]:
    """As a task makes them of record batches of `piece` rows."""
    chunks = Chunks(count_max)
    found = []
    for first in range(0, len(messages), piece):
        found += list(chunks.add(messages[first : first + piece]))
    return [*found, *chunks.rest()]


def keyed(found: list[Row], piece: int = 7, run: str = "q.1") -> list[tuple[str, Row]]:
    """What a task sends: every row with its key."""
    sent = []
    for index, chunk in enumerate(chunks_of(outgoing(found), 10, piece)):
        for key, message in zip(keys_of_chunk(run, 3, index, chunk), chunk, strict=True):
            sent.append((key, found[message.row - 1]))
    return sent


class Entity:
    """An entity that remembers what has come, as the broker does."""

    def __init__(self) -> None:
        self.arrivals = Arrivals()
        self.stored: list[Row] = []

    def send(self, key: str, row: Row) -> None:
        producer, _, number = key.rpartition("/")
        message = NewMessage(row[1])
        message.producer_key = ProducerKey(producer, int(number))
        found = self.arrivals.screen([message])
        for name, bounds in found.arrived.items():
            self.arrivals.add(name, bounds)
        if found.fresh:
            self.stored.append(row)


@pytest.mark.proves("D-1")
@given(rows, st.integers(1, 9), st.integers(1, 9))
def test_the_same_rows_get_the_same_keys_however_spark_cuts_them(
    found: list[Row], piece: int, other_piece: int
) -> None:
    assert keyed(found, piece) == keyed(found, other_piece)


@pytest.mark.proves("D-1")
@given(rows, st.data())
def test_a_task_that_is_tried_again_stores_each_row_once(
    found: list[Row], data: st.DataObject
) -> None:
    """Whatever the first tries have sent before they died, and in whatever order it came."""
    entity = Entity()
    sent = keyed(found)
    for _ in range(data.draw(st.integers(0, 3))):
        some = data.draw(st.lists(st.sampled_from(sent), max_size=50)) if sent else []
        for key, row in some:
            entity.send(key, row)
    for key, row in sent:
        entity.send(key, row)
    assert Counter(entity.stored) == Counter(found)


@pytest.mark.proves("D-1")
@given(rows, rows, st.data())
def test_a_try_with_other_rows_loses_none_of_them(
    first: list[Row], second: list[Row], data: st.DataObject
) -> None:
    """A shuffle may give the second try other rows, or the same in another order."""
    entity = Entity()
    second = data.draw(st.sampled_from([second, data.draw(st.permutations(first)), first[1:]]))
    for key, row in keyed(first):
        entity.send(key, row)
    for key, row in keyed(second):
        entity.send(key, row)
    assert not Counter(second) - Counter(entity.stored)


@given(rows)
def test_keys_are_unique_and_follow_the_rules_of_the_bus(found: list[Row]) -> None:
    keys = [key for key, _ in keyed(found)]
    assert len(set(keys)) == len(keys)
    assert all(fault_of(key) is None for key in keys)
    assert len({block_of(key) for key in keys}) == len({key.rpartition("/")[0] for key in keys})


def test_other_runs_tasks_and_chunks_are_other_producers() -> None:
    chunk = outgoing([("orders", b"a", None)])
    producers = {
        keys_of_chunk(run, task, index, chunk)[0]
        for run in ("q.1", "q.2")
        for task in (0, 1)
        for index in (0, 1)
    }
    assert len(producers) == 8


@pytest.mark.parametrize(
    "other",
    [
        [("orders", b"ab", None)],
        [("orders", b"a", None), ("orders", b"b", None), ("orders", b"", None)],
        [("orders", b"b", None), ("orders", b"a", None)],
        [("orders", b"", None), ("orders", b"ab", None)],
        [("orders", b"a", None), ("order", b"sb", None)],
    ],
)
def test_bytes_that_moved_over_a_border_are_another_chunk(other: list[Row]) -> None:
    chunk: list[Row] = [("orders", b"a", None), ("orders", b"b", None)]
    first = keys_of_chunk("q", 0, 0, outgoing(chunk))[0]
    assert first != keys_of_chunk("q", 0, 0, outgoing(other))[0]


def test_a_time_of_creation_does_not_change_the_key() -> None:
    first = [Outgoing(1, "orders", b"at 10:00", steady=b"at 00:00")]
    second = [Outgoing(1, "orders", b"at 10:01", steady=b"at 00:00")]
    assert keys_of_chunk("q", 0, 0, first) == keys_of_chunk("q", 0, 0, second)


def test_a_full_chunk_leaves_few_ranges_in_every_partition() -> None:
    """However keys alternate, a partition remembers its numbers as one range."""
    found: list[Row] = [
        ("orders", b"", None if row % 3 == 0 else f"s{row}") for row in range(CHUNK_COUNT_MAX)
    ]
    messages = outgoing(found)
    keys = keys_of_chunk("q", 0, 0, messages)
    partitions = [Arrivals() for _ in range(PARTITION_COUNT + 1)]
    for message, key in zip(messages, keys, strict=True):
        producer, _, number = key.rpartition("/")
        place = PARTITION_COUNT if message.order is None else hash_key(message.order)
        partitions[place].add(producer, [int(number), int(number) + 1])
        [seen] = partitions[place].producers()
        assert len(partitions[place].bounds_of(seen)) == 2
    assert {block_of(key)[1] for key in keys} == {0}
    assert CHUNK_COUNT_MAX < NUMBERED_RUN and ARRIVAL_RANGES_MAX >= PARTITION_COUNT + 1


def test_chunks_end_by_number_and_by_size() -> None:
    messages = outgoing([("orders", b"12345", None)] * 10)
    by_count = chunks_of(messages, 4, 100)
    assert [len(chunk) for chunk in by_count] == [4, 4, 2]
    chunks = Chunks(size_bytes_max=2 * len(messages[0].data) + 1)
    assert [len(chunk) for chunk in [*chunks.add(messages), *chunks.rest()]] == [2] * 5
    large = Chunks(size_bytes_max=2)  # one that is larger than a chunk is a chunk by itself
    assert [len(chunk) for chunk in [*large.add(messages[:2]), *large.rest()]] == [1, 1]
    assert list(Chunks().rest()) == []


def test_keys_stay_within_the_limit_of_the_bus() -> None:
    run = f"{run_name('3c2b1a09-0000-4000-8000-000000000000')}.{2**63 - 1}"
    [key] = keys_of_chunk(run, 2**31 - 1, 2**31 - 1, outgoing([("orders", b"a", None)]))
    assert len(key) + 3 <= PRODUCER_KEY_CHARS_MAX  # the number may have three digits more


@pytest.mark.parametrize("key", ["till-3.5f2e91/7", "a/b/c#2/281474976710656", "ü" * 120 + "/1"])
def test_a_stamped_message_carries_its_key_for_the_next_hop_only(key: str) -> None:
    data = stamped(data_section(b"body"), key)
    found = scan(data)
    assert found.delivery_annotation(PRODUCER_KEY) == key
    assert decode_message(data).body == b"body"
    assert found.bare == data_section(b"body")


@pytest.mark.parametrize(
    ("key", "fault"),
    [
        (None, "null"),
        ("", "not of the form"),
        ("orders", "not of the form"),
        ("/7", "not of the form"),
        ("orders/", "not of the form"),
        ("orders/0", "not of the form"),
        ("orders/²", "not of the form"),
        ("orders/-1", "not of the form"),
        ("orders/" + "9" * 19, "not of the form"),
        ("o" * 127 + "/1", "129 characters"),
    ],
)
def test_a_rows_own_key_must_be_one(key: str | None, fault: str) -> None:
    assert fault in str(fault_of(key))


def test_a_key_may_come_twice_only_for_two_destinations() -> None:
    one, two = Outgoing(1, "orders", b"", key="p/1"), Outgoing(2, "audit", b"", key="p/1")
    assert own_keys([one, two]) == (["p/1", "p/1"], None)
    three = Outgoing(3, "Orders", b"", key="p/1")  # the bus does not mind the case
    assert own_keys([one, two, three])[1] is three
