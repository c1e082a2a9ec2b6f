"""Which backlog queues are in use (P-9, P-10).

A queue that does not take a message leaves the rotation of the whole pairing; after a rest it may
be picked again.  One that was found unfit when the pair was made stays out: a send to it may well
succeed, and the message would not come home.  Nothing here sends; chance and time enter by
argument.
"""

import random
from collections.abc import Collection
from typing import Final

from twinbus.pairing.events import BacklogQueueLost, Event

REST_S: Final = 60.0  # before a lost queue is picked again


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
