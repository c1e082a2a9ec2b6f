"""Which backlog queues are in use (P-9, P-10).

A queue that does not take a message leaves the rotation of the whole pairing; after a rest it may
be picked again.  One that was found unfit when the pair was made stays out: a send to it may well
succeed, and the message would not come home.  Nothing here sends; chance and time enter by
argument.

And of the partitions of an entity: which takes the next message without a key (P-20).  One that has
refused a message is passed over for a while.  When all of them have, the next one is told to take
it all the same: it is for the server to say what is wrong.
"""

import random
from collections.abc import Collection
from typing import Final

from twinbus.entities.partitions import PARTITION_COUNT
from twinbus.pairing.events import BacklogQueueLost, Event

REST_S: Final = 60.0  # before a lost queue is picked again
PARTITION_REST_S: Final = 5.0  # before a partition that has refused a message is asked again


class BacklogRotation:
    """The backlog queues of a pairing, shared by all its senders."""

    def __init__(self, queues: list[str], chance: random.Random, events: list[Event]) -> None:
        # At least one of them is fit: none_left() of fitness.py has seen to it.
        assert queues, "a pair without a backlog queue cannot be made"
        self.queues = list(queues)
        self._chance = chance
        self._events = events
        self._lost: dict[str, float] = {}  # queue → when; the longest lost first
        self._unfit: set[str] = set()
        self._errors: dict[str, BaseException] = {}  # the last one of each queue

    def in_use(self, now: float) -> list[str]:
        """The queues of the rotation."""
        return [queue for queue in self.queues if self.is_in_use(queue, now)]

    def is_in_use(self, queue: str, now: float) -> bool:
        if queue in self._unfit:
            return False
        lost = self._lost.get(queue)
        return lost is None or now >= lost + REST_S

    def pick(self, now: float, tried: Collection[str] = ()) -> str | None:
        """One at random that this send has not tried yet; None: none is left.

        A send that finds the whole rotation empty tries the queue that has rested longest: that
        costs it nothing, and the backlog is open again as soon as that queue is.
        """
        choice = [queue for queue in self.in_use(now) if queue not in tried]
        if choice:
            return self._chance.choice(choice)
        if tried:
            return None
        return next(iter(self._lost))

    def leave_out(self, queue: str, error: BaseException, now: float) -> None:
        """The queue cannot serve, whatever it answers to a send."""
        self._unfit.add(queue)
        self._errors[queue] = error
        self._events.append(BacklogQueueLost(queue, error, len(self.in_use(now))))

    def lost(self, queue: str, error: BaseException, now: float) -> None:
        """The queue has not taken a message; every sender of the pairing knows from now on."""
        was_in_use = self.is_in_use(queue, now)
        self._lost.pop(queue, None)
        self._lost[queue] = now
        self._errors[queue] = error
        if was_in_use:
            self._events.append(BacklogQueueLost(queue, error, len(self.in_use(now))))

    def found(self, queue: str) -> None:
        """The queue has taken a message: it is in the rotation, whatever was before."""
        self._lost.pop(queue, None)

    def last_error(self, queue: str) -> BaseException | None:
        return self._errors.get(queue)


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
        self._rests[partition] = now + PARTITION_REST_S

    def _is_resting(self, partition: int, now: float) -> bool:
        until = self._rests.get(partition)
        if until is not None and until <= now:
            del self._rests[partition]
            return False
        return until is not None
