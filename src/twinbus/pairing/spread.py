"""Which partition of an entity takes the next message without a key: each in its turn (P-20).

A partition that has refused a message is passed over for a while.  When all of them have, the next
one is told to take it all the same: it is for the server to say what is wrong.
"""

import random
from typing import Final

from twinbus.entities.partitions import PARTITION_COUNT

REST_S: Final = 5.0  # of a partition that has refused a message


class Spread:
    """The partitions of one entity, as one pairing sees them."""

    __slots__ = ("_next", "_rests")

    def __init__(self, chance: random.Random) -> None:
        self._next = chance.randrange(PARTITION_COUNT)
        self._rests: dict[int, float] = {}  # partition → until when it is passed over

    def choose(self, now: float) -> tuple[int, bool]:
        """A partition, and whether it is to be asked: others may take the message."""
        partition = self._next
        if self._rests:
            for step in range(PARTITION_COUNT):
                candidate = (partition + step) % PARTITION_COUNT
                if not self._is_resting(candidate, now):
                    self._next = (candidate + 1) % PARTITION_COUNT
                    return candidate, True
        self._next = (partition + 1) % PARTITION_COUNT
        return partition, not self._rests

    def refused(self, partition: int, now: float) -> None:
        """Leave it alone for a while."""
        self._rests[partition] = now + REST_S

    def _is_resting(self, partition: int, now: float) -> bool:
        until = self._rests.get(partition)
        if until is not None and until <= now:
            del self._rests[partition]
            return False
        return until is not None
