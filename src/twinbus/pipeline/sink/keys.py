"""Chunks of messages and their producer keys: nothing twice, and nothing dropped for another.

A task that is tried again sends all of its rows again.  A twinbus destination drops a message whose
producer key has come before, so the second try must give every message the key of the first:

    task ─▶ chunks of at most 4,095 messages and 8 MiB

    with a session id or partition key   ~<run>.<batch>.<task>.<chunk>.<checksum>/<number>
    with neither                         ~<run>.<batch>.<task>.<chunk>.<checksum>@<home>/<number>

The run is the query, or a random name of one batch write.  The checksum covers every byte of the
chunk: other rows, or the same in another order, are another producer.  Then messages may come
twice, but none is ever taken for a copy of another.  Losing would be worse.

A message that nothing leads to a partition needs a home, where a copy of it meets it: those of a
destination are cut into 16 pieces in a row, a partition for each.  Where the first piece goes turns
from batch to batch, task to task and chunk to chunk, so that small chunks spread as well.  What has
no partitions takes the pieces one after the other, in the order of the rows.

Numbers count from 1 in the chunk, message by message of one destination and one partition together,
however they were mixed: an entity remembers numbers as ranges, and so it has a few to remember.
"""

import zlib
from hashlib import blake2b
from typing import Final

from twinbus.entities.arrivals import PASSING
from twinbus.entities.partitions import (
    NO_PARTITION,
    NUMBERED_RUN,
    PARTITION_COUNT,
    hash_key,
    producer_at,
)
from twinbus.message.producer_keys import key_fault, key_section

# A server of before homes goes by runs of 4,096 numbers: what is sent together must not leave one.
CHUNK_COUNT_MAX: Final = NUMBERED_RUN - 1
CHUNK_SIZE_BYTES_MAX: Final = 8 * 1024 * 1024

# How far round the circle of homes a batch, a task and a chunk turn it, in 2**32nds: the fractions
# of the golden ratio and of the roots of 2 and 3.  Whole steps would be even as well, but not where
# rows come in every second batch only, or in every fourth task.
_CIRCLE: Final = 1 << 32
_BATCH_TURN: Final = 2_654_435_769
_TASK_TURN: Final = 1_779_033_703
_CHUNK_TURN: Final = 3_144_134_277


class Outgoing:
    """A message on its way to the bus.

    `data` is the encoded message without a producer key; `steady` is the same as it would be in
    every try (a time of creation differs).  `order` is its session id or partition key, `key` the
    producer key that its row has, `row` the row's number in the task.
    """

    __slots__ = ("data", "destination", "key", "order", "row", "steady")

    def __init__(
        self,
        row: int,
        destination: str,
        data: bytes,
        order: str | None = None,
        key: str | None = None,
        steady: bytes | None = None,
    ) -> None:
        self.row = row
        self.destination = destination
        self.data = data
        self.order = order
        self.key = key
        self.steady = data if steady is None else steady


class Chunks:
    """The messages of one task, taken in chunks by number and size only, never by how they came."""

    def __init__(
        self, count_max: int = CHUNK_COUNT_MAX, size_bytes_max: int = CHUNK_SIZE_BYTES_MAX
    ) -> None:
        assert count_max <= CHUNK_COUNT_MAX
        self._count_max = count_max
        self._size_bytes_max = size_bytes_max
        self._gathered: list[Outgoing] = []
        self._size_bytes = 0

    def add(self, messages: list[Outgoing]) -> list[list[Outgoing]]:
        """Gives each chunk that is full."""
        full: list[list[Outgoing]] = []
        for message in messages:
            size = len(message.steady)
            if self._gathered and (
                len(self._gathered) == self._count_max
                or self._size_bytes + size > self._size_bytes_max
            ):
                full.append(self._take())
            self._gathered.append(message)
            self._size_bytes += size
        return full

    def rest(self) -> list[list[Outgoing]]:
        """What is left when there are no more rows."""
        return [self._take()] if self._gathered else []

    def _take(self) -> list[Outgoing]:
        taken, self._gathered, self._size_bytes = self._gathered, [], 0
        return taken


def run_name(*parts: object) -> str:
    """A short name of a query, or of a batch write."""
    return blake2b("\0".join(map(str, parts)).encode(), digest_size=10).hexdigest()


def keys_of_chunk(run: str, batch: int, task: int, index: int, chunk: list[Outgoing]) -> list[str]:
    """A key for each message of the `index`th chunk of a task; `batch` is 0 of a batch write."""
    producer = f"{PASSING}{run}.{batch}.{task}.{index}.{_checksum(chunk)}"
    start = first_home(run, batch, task, index)
    keys = [""] * len(chunk)
    number = 1
    groups = _groups(chunk)
    for group in sorted(groups):
        destination, partition = group
        places = groups[group]
        if partition == NO_PARTITION:
            _give_homes(keys, places, producer, start + hash_key(destination), number)
        else:
            _give(keys, places, producer, number)
        number += len(places)
    return keys


def first_home(run: str, batch: int, task: int, index: int) -> int:
    """Where the first of the messages without a key goes: the same in every try."""
    turned = zlib.crc32(run.encode())
    turned += batch * _BATCH_TURN + task * _TASK_TURN + index * _CHUNK_TURN
    return turned % _CIRCLE * PARTITION_COUNT // _CIRCLE


def _give_homes(keys: list[str], places: list[int], producer: str, start: int, number: int) -> None:
    """Pieces as even as can be, in the order of the rows, to one home after the other."""
    total = len(places)
    count = min(PARTITION_COUNT, total)
    for piece in range(count):
        first, end = total * piece // count, total * (piece + 1) // count
        home = producer_at(producer, (start + piece) % PARTITION_COUNT)
        _give(keys, places[first:end], home, number + first)


def _give(keys: list[str], places: list[int], producer: str, number: int) -> None:
    start = producer + "/"
    for place in places:
        keys[place] = start + str(number)
        number += 1


def _groups(chunk: list[Outgoing]) -> dict[tuple[str, int], list[int]]:
    """The places of the messages by destination and partition."""
    if chunk and not _is_mixed(chunk):
        first = chunk[0]
        return {(first.destination, _partition(first.order)): list(range(len(chunk)))}
    groups: dict[tuple[str, int], list[int]] = {}
    for place, message in enumerate(chunk):
        group = (message.destination, _partition(message.order))
        places = groups.get(group)
        if places is None:
            places = groups[group] = []
        places.append(place)
    return groups


def _is_mixed(chunk: list[Outgoing]) -> bool:
    """Whether the messages go to several places; mostly they do not."""
    for message in chunk:
        first = chunk[0]
        if message.destination != first.destination:
            return True
        if message.order != first.order and _partition(message.order) != _partition(first.order):
            return True
    return False


def _partition(order: str | None) -> int:
    return NO_PARTITION if order is None else hash_key(order)


def own_keys(chunk: list[Outgoing]) -> tuple[list[str], Outgoing | None]:
    """The keys that the rows have, and the first message that repeats the key of another."""
    seen: set[tuple[str, str]] = set()
    keys: list[str] = []
    for message in chunk:
        key = message.key or ""
        known = (message.destination.lower(), key)
        if known in seen:
            return keys, message
        seen.add(known)
        keys.append(key)
    return keys, None


def fault_of(key: str | None) -> str | None:
    """What is wrong with a row's own key; None if nothing is."""
    if key is None:
        return "the producer key is null"
    fault = key_fault(key)
    return f"the producer key {fault}" if fault else None


def block_of(key: str) -> tuple[str, int]:
    """Messages without a session id or partition key may be sent together within one of these.

    The producer knows their home, if it has chosen one; of any other the block leads there.
    """
    producer, _, number = key.rpartition("/")
    return producer, int(number) // NUMBERED_RUN


def stamped(data: bytes, key: str) -> bytes:
    """An encoded message with its key, which is for the next hop only.

    Last, where the official SDK has its delivery annotations, too: nothing has to be taken apart.
    """
    return data + key_section(key)


def _checksum(chunk: list[Outgoing]) -> str:
    """Of destinations and bytes; lengths are in it, so that nothing can move over a border."""
    found = blake2b(digest_size=12)
    lengths = [f"{len(each.steady)} {len(each.destination)} {each.destination}" for each in chunk]
    found.update("\n".join([str(len(chunk)), *lengths]).encode())
    for each in chunk:  # one by one: put together they would be megabytes of new memory
        found.update(each.steady)
    return found.hexdigest()
