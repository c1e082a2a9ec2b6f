"""How messages without a key spread over partitions, one of which was down.  Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

PARTITION_COUNT: Final = 16  # Service Bus: of every partitioned entity
COUNTER_BITS: Final = 48  # of a sequence number; the partition is in those above


@dataclass(frozen=True)
class Spread:
    """Arrivals in each partition."""

    entity: str
    counts: tuple[int, ...]
    down: int  # the partition that was
    down_s: float

    @classmethod
    def of(cls, entity: str, sequence_numbers: Iterable[int], down: int, down_s: float) -> "Spread":
        found = Counter(number >> COUNTER_BITS for number in sequence_numbers)
        return cls(entity, tuple(found[each] for each in range(PARTITION_COUNT)), down, down_s)

    @property
    def words(self) -> str:
        used = sum(1 for count in self.counts if count)
        others = [count for each, count in enumerate(self.counts) if each != self.down]
        return (
            f"{used} of {len(self.counts)} used, {min(others):,} to {max(others):,} messages each; "
            f"{self.counts[self.down]:,} in partition {self.down}, down for {self.down_s:.0f} s"
        )
