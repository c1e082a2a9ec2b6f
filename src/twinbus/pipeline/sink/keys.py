"""Chunks of messages and their producer keys: nothing twice, and nothing dropped for another.

A task that is tried again sends all of its rows again.  A twinbus destination drops a message whose
producer key has come before, so the second try must give every message the key of the first:

    task ─▶ chunks of at most 4,095 messages and 8 MiB ─▶ ~<run>.<task>.<chunk>.<checksum>/<number>

The run is the query and the batch, or a random name of one batch write.  The checksum covers every
byte of the chunk: other rows, or the same in another order, are another producer.  Then messages
may come twice, but none is ever taken for a copy of another.  Losing would be worse.

Numbers count from 1 in the chunk, message by message of one destination and one partition together,
however they were mixed: an entity remembers numbers as ranges, and so it has a few to remember.  A
chunk stays within one run of 4,096 numbers, which lead to one partition (entities/partitions.py).
"""

from hashlib import blake2b
from typing import Final

from twinbus.entities.arrivals import PASSING
from twinbus.entities.partitions import NO_PARTITION, NUMBERED_RUN, hash_key
from twinbus.message.producer_keys import key_fault, key_section

CHUNK_COUNT_MAX: Final = NUMBERED_RUN - 1
CHUNK_SIZE_BYTES_MAX: Final = 8 * 1024 * 1024


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
    """A short name of a query's batch, or of a batch write."""
    return blake2b("\0".join(map(str, parts)).encode(), digest_size=10).hexdigest()


def keys_of_chunk(run: str, task: int, index: int, chunk: list[Outgoing]) -> list[str]:
    """A key for each message of the `index`th chunk of a task."""
    producer = f"{PASSING}{run}.{task}.{index}.{_checksum(chunk)}/"
    if not _is_mixed(chunk):
        return [producer + str(number) for number in range(1, len(chunk) + 1)]
    places: list[tuple[str, int, int]] = []
    for place, message in enumerate(chunk):
        places.append((message.destination, _partition(message.order), place))
    places.sort()
    keys = [""] * len(chunk)
    for before, (_, _, place) in enumerate(places):
        keys[place] = producer + str(before + 1)
    return keys


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
    """Messages without a session id or partition key may be sent together within one of these."""
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
