"""Chunks and keys: the same rows get the same keys, others never do, and nothing is dropped."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.entities.arrivals import Arrivals
from twinbus.entities.message import NewMessage
from twinbus.entities.partitions import (
    NO_PARTITION,
    NUMBERED_RUN,
    PARTITION_COUNT,
    hash_key,
    home_of,
)
from twinbus.limits import PRODUCER_KEY_CHARS_MAX
from twinbus.message.plain import data_section, decode_message
from twinbus.message.producer_keys import read_producer_key
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
from twinbus.pipeline.sink.parts import by_destination

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


def keyed(found: list[Row], piece: int = 7) -> list[tuple[str, Row]]:
    """What a task sends: every row with its key."""
    sent = []
    for index, chunk in enumerate(chunks_of(outgoing(found), 10, piece)):
        for key, message in zip(keys_of_chunk("q", 1, 3, index, chunk), chunk, strict=True):
            sent.append((key, found[message.row - 1]))
    return sent


def partition_of(key: str, order: str | None) -> int:
    """Where a partitioned entity stores a message."""
    return home_of(read_producer_key(key)) if order is None else hash_key(order)


class Entity:
    """An entity that remembers what has come, as the broker does."""

    def __init__(self) -> None:
        self.arrivals = Arrivals()
        self.stored: list[Row] = []

    def send(self, key: str, row: Row) -> None:
        message = NewMessage(row[1])
        message.producer_key = read_producer_key(key)
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
        keys_of_chunk(run, batch, task, index, chunk)[0].partition("@")[0]
        for run in ("q", "r")
        for batch in (0, 1)
        for task in (0, 1)
        for index in (0, 1)
    }
    assert len(producers) == 16


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
    first = keys_of_chunk("q", 0, 0, 0, outgoing(chunk))[0]
    assert first != keys_of_chunk("q", 0, 0, 0, outgoing(other))[0]


def test_a_time_of_creation_does_not_change_the_key() -> None:
    first = [Outgoing(1, "orders", b"at 10:00", steady=b"at 00:00")]
    second = [Outgoing(1, "orders", b"at 10:01", steady=b"at 00:00")]
    assert keys_of_chunk("q", 0, 0, 0, first) == keys_of_chunk("q", 0, 0, 0, second)


def test_a_full_chunk_leaves_few_ranges_in_every_partition() -> None:
    """However keys alternate, a partition remembers its numbers as one range."""
    found: list[Row] = [
        ("orders", b"", None if row % 3 == 0 else f"s{row}") for row in range(CHUNK_COUNT_MAX)
    ]
    messages = outgoing(found)
    keys = keys_of_chunk("q", 0, 0, 0, messages)
    partitions = [Arrivals() for _ in range(PARTITION_COUNT)]
    whole = Arrivals()
    for message, key in zip(messages, keys, strict=True):
        producer, _, number = key.rpartition("/")
        for arrivals in (partitions[partition_of(key, message.order)], whole):
            arrivals.add(producer, [int(number), int(number) + 1])
    for arrivals in partitions:
        ranges = [arrivals.bounds_of(producer) for producer in arrivals.producers()]
        assert [len(bounds) for bounds in ranges] == [2, 2], "those with a key, and those without"
    assert len(whole.producers()) == PARTITION_COUNT + 1
    assert {block_of(key)[1] for key in keys} == {0}
    assert CHUNK_COUNT_MAX < NUMBERED_RUN


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
    run, chunk = run_name("3c2b1a09-0000-4000-8000-000000000000"), [Outgoing(1, "orders", b"a")]
    keys = keys_of_chunk(run, 2**63 - 1, 2**31 - 1, 2**31 - 1, chunk * CHUNK_COUNT_MAX)
    assert max(map(len, keys)) == 96 < PRODUCER_KEY_CHARS_MAX  # a home of two digits is among them


# --- homes ------------------------------------------------------------------------------------


def homes_of(rows: int, batches: range, tasks: range, chunks: range) -> list[int]:
    """How many rows without a key each partition has after all of these chunks of as many rows."""
    messages = outgoing([("orders", b"", None)] * rows)
    found: Counter[int] = Counter()
    for batch in batches:
        for task in tasks:
            for index in chunks:
                keys = keys_of_chunk("a query", batch, task, index, messages)
                found.update(partition_of(key, None) for key in keys)
    return [found[partition] for partition in range(PARTITION_COUNT)]


@pytest.mark.parametrize(
    ("rows", "batches", "tasks", "chunks", "apart"),
    [
        pytest.param(CHUNK_COUNT_MAX, 1, 1, 1, 1, id="a full chunk"),
        pytest.param(100, 1, 1, 1, 1, id="100 rows"),
        pytest.param(1, 1, 1, 160, 2, id="many chunks of a row"),
        pytest.param(8, 1, 1, 40, 2, id="many chunks of 8 large rows"),
        pytest.param(CHUNK_COUNT_MAX, 1, 1, 20, 2, id="many full chunks"),
        pytest.param(1, 1, 160, 1, 2, id="many tasks of a row"),
        pytest.param(10, 1, 200, 1, 4, id="many tasks of 10 rows"),
        pytest.param(1, 160, 1, 1, 4, id="many batches of a row"),
        pytest.param(1, 1_600, 1, 1, 3, id="very many batches of a row"),
        pytest.param(10, 160, 1, 1, 3, id="many batches of 10 rows"),
        pytest.param(1, 100, 8, 1, 6, id="many batches of 8 tasks of a row"),
        pytest.param(10, 50, 8, 1, 5, id="many batches of 8 tasks of 10 rows"),
    ],
)
def test_rows_without_a_key_are_spread_evenly(
    rows: int, batches: int, tasks: int, chunks: int, apart: int
) -> None:
    """As few messages are between the fullest and the emptiest partition, whatever the name."""
    found = homes_of(rows, range(batches), range(tasks), range(chunks))
    assert sum(found) == rows * batches * tasks * chunks
    assert max(found) - min(found) <= apart, found


@pytest.mark.parametrize("step", [2, 3, 4, 8])
def test_rows_that_come_in_some_batches_or_tasks_only_are_spread_as_well(step: int) -> None:
    """A query with a watermark, for one, has every second batch without rows."""
    for found in (
        homes_of(1, range(0, 320 * step, step), range(1), range(1)),
        homes_of(1, range(1), range(0, 320 * step, step), range(1)),
    ):
        assert min(found) >= 16 and max(found) <= 24, found


def test_pieces_are_in_the_order_of_the_rows_and_each_is_one_part() -> None:
    messages = outgoing([("orders", b"", None)] * 1_000)
    free, with_a_key = by_destination(messages, keys_of_chunk("q", 0, 0, 0, messages))
    parts = free["orders"]
    assert [each.row for part in parts for each in part.messages] == list(range(1, 1_001))
    assert len(parts) == PARTITION_COUNT and not with_a_key


@given(rows, st.integers(0, 99), st.integers(0, 9), st.integers(0, 9))
def test_what_is_sent_together_has_one_home(
    found: list[Row], batch: int, task: int, index: int
) -> None:
    """Only the first message of a delivery decides where all of it goes."""
    messages = outgoing(found)
    keys = dict(
        zip(map(id, messages), keys_of_chunk("q", batch, task, index, messages), strict=True)
    )
    free, _ = by_destination(messages, list(keys.values()))
    for parts in free.values():
        for part in parts:
            assert len({partition_of(keys[id(each)], None) for each in part.messages}) == 1
        counts = [len(part.messages) for part in parts]
        assert max(counts) - min(counts) <= 1 and len(parts) == min(PARTITION_COUNT, sum(counts))


@given(rows)
def test_rows_with_a_key_have_the_keys_of_before_there_were_homes(found: list[Row]) -> None:
    """What waits to be tried again over an update is known."""
    messages = outgoing(found)
    keys = keys_of_chunk("q", 1, 2, 3, messages)
    ordered = sorted(
        (row[0], NO_PARTITION if row[2] is None else hash_key(row[2]), place)
        for place, row in enumerate(found)
    )
    for number, (_, partition, place) in enumerate(ordered, 1):
        producer, _, given_number = keys[place].rpartition("/")
        assert producer.startswith("~q.1.2.3.") and int(given_number) == number
        assert ("@" in producer) == (partition == NO_PARTITION)


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
