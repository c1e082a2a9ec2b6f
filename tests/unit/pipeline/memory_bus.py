"""A namespace in memory with a bus to it: queues, faults on them, and producer keys as twinbus has.

Only what a mover of backlogs asks of a bus.  Entities are lists of encoded messages; what happens
to an entity is in `faults`: an error for every send until it is taken away.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from twinbus.client.links import ConnectionLost
from twinbus.errors import (
    EntityNotFound,
    InvalidOperation,
    MessageSizeExceeded,
    ServiceError,
    TwinbusError,
)
from twinbus.message.scan import scan
from twinbus.pipeline.bus.protocol import EntityState, PartitionState, SendRefused

KEY = "x-opt-twinbus-producer-key"


@dataclass
class Entity:
    """What was sent to it, and in which batches; of a queue that is browsed, by number."""

    is_partitioned: bool = False
    received: list[bytes] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    waiting: dict[int, bytes] = field(default_factory=dict)
    locked: set[int] = field(default_factory=set)
    dead: dict[int, tuple[str, str]] = field(default_factory=dict)


class MemoryBus:
    """One namespace."""

    def __init__(self, size_bytes_max: int = 1_000_000) -> None:
        self.entities: dict[str, Entity] = {}
        self.faults: dict[str, TwinbusError] = {}
        self.fails_after: int | None = None  # sends, then the connection is lost
        self.settle_fault: TwinbusError | None = None
        self.size_bytes_max = size_bytes_max
        self.chunk_count = 4  # messages in a chunk of browsing
        self.tries: list[str] = []
        self.namespace_id: str | None = None  # that it tells

    def create(self, path: str, is_partitioned: bool = False) -> Entity:
        self.entities[path] = Entity(is_partitioned)
        return self.entities[path]

    # --- what a bus is asked ----------------------------------------------------------------------

    def entity(self, path: str) -> EntityState:
        entity = self._find(path)
        partitions = [PartitionState(0, True, 1, 1, 0)] * (16 if entity.is_partitioned else 1)
        return EntityState(path, 1, partitions)

    def numbers(self, path: str, first: int, end: int, limit: int) -> list[tuple[int, int]]:
        found = [number for number in sorted(self._find(path).waiting) if first <= number < end]
        return [(number, number + 1) for number in found[:limit]]

    def browse(self, path: str, first: int, end: int) -> Iterator[list[bytes]]:
        numbers = [number for number, _ in self.numbers(path, first, end, 1 << 30)]
        for at in range(0, len(numbers), self.chunk_count):
            waiting = self._find(path).waiting
            yield [waiting[each] for each in numbers[at : at + self.chunk_count]]

    def settle(
        self,
        path: str,
        ranges: Sequence[tuple[int, int]],
        reason: str | None = None,
        description: str | None = None,
    ) -> int:
        if self.settle_fault is not None:
            raise self.settle_fault
        entity = self._find(path)
        numbers = [each for first, end in ranges for each in range(first, end)]
        there = [each for each in numbers if each in entity.waiting and each not in entity.locked]
        for number in there:
            del entity.waiting[number]
            if reason is not None:
                entity.dead[number] = (reason, description or "")
        return len(there)

    def send(self, path: str, messages: Sequence[bytes], *, retry: bool = False) -> None:
        del retry
        self.open_sender(path, halves=False).submit(messages).wait()

    def open_sender(
        self,
        path: str,
        *,
        retry: bool = False,
        batch_bytes: int = 1 << 20,
        halves: bool = True,
        pinned: bool = False,
    ) -> "MemorySender":
        assert not halves, "a mover finds out by itself which message is at fault"
        del retry, batch_bytes, pinned
        self.tries.append(path)
        if path in self.faults:
            raise self.faults[path]
        return MemorySender(self, path, self._find(path))

    def close(self) -> None:
        self.entities.clear()

    def _find(self, path: str) -> Entity:
        if path not in self.entities:
            raise EntityNotFound(f"'{path}' does not exist")
        return self.entities[path]


class MemorySender:
    """Stores a batch as a whole, in order, unless it refuses one of them."""

    def __init__(self, bus: MemoryBus, path: str, entity: Entity) -> None:
        self._bus = bus
        self._path = path
        self._entity = entity
        self.namespace_id = bus.namespace_id

    def submit(self, messages: Sequence[bytes]) -> "MemoryPending":
        try:
            self._submit(messages)
        except TwinbusError as error:
            return MemoryPending(error)
        return MemoryPending(None)

    def _submit(self, messages: Sequence[bytes]) -> None:
        bus, entity = self._bus, self._entity
        bus.tries.append(self._path)
        if self._path in bus.faults:
            fault = bus.faults[self._path]
            raise SendRefused(self._path, 0, fault) if isinstance(fault, ServiceError) else fault
        entity.batches.append(len(messages))
        keys = {_order(message) for message in messages}
        if entity.is_partitioned and len(keys) > 1:
            raise SendRefused(self._path, 0, InvalidOperation("different keys"))
        if max(map(len, messages)) > bus.size_bytes_max:
            raise SendRefused(self._path, 0, MessageSizeExceeded("too large"))
        for message in messages:
            if bus.fails_after is not None:  # no batch is stored by halves; a server may be
                bus.fails_after -= 1
                if bus.fails_after < 0:
                    raise ConnectionLost("the connection is lost")
            key = scan(message).delivery_annotation(KEY)
            if isinstance(key, str) and key in entity.keys:
                continue
            if isinstance(key, str):
                entity.keys.add(key)
            entity.received.append(message)

    def close(self) -> None:
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(frozen=True)
class MemoryPending:
    error: TwinbusError | None

    def wait(self) -> None:
        if self.error is not None:
            raise self.error


def _order(message: bytes) -> object:
    scanned = scan(message)
    return scanned.group_id() or scanned.annotation("x-opt-partition-key")
