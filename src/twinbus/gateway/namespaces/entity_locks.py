"""Locks of entities: one request at a time creates, changes or deletes an entity.

Creating an entity takes several steps, and stores and disks have to answer in between.  Another
request for the same name waits for the outcome, so that "exists already" and "not found" are true
when the client hears them, and for whatever it does next.

    namespace              many requests change its entities at a time
    └── queue or topic     one request changes it, and none its children; or none changes it, and
        └── subscription   many change its children
            └── rule

No request overtakes another, and none waits forever: the store may be slow, and a client that is
told to try again is better off than one that hangs.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from twinbus.entities.descriptions import PREFIX_END, SUBSCRIPTIONS
from twinbus.errors import OperationTimeout
from twinbus.limits import ENTITY_WAIT_S_MAX

# What is changed, behind all that it is in: namespace, topic, subscription.
EntityPlace = tuple[str, ...]


def place_of(prefix: str, path: str, *rule: str) -> EntityPlace:
    """The place of a queue, topic or subscription of a namespace, or of one of its rules."""
    pieces = path.lower().split(SUBSCRIPTIONS.lower(), 1)
    return (prefix, *pieces, *(each.lower() for each in rule))


def place_of_entity(name: str) -> EntityPlace:
    """The same by the name in the directory, which begins with that of the namespace."""
    prefix, end, path = name.rpartition(PREFIX_END)
    return place_of(prefix + end, path)


class EntityLocks:
    """Requests that hold locks, and requests that wait for them."""

    def __init__(self, patience_s: float = ENTITY_WAIT_S_MAX) -> None:
        self._patience_s = patience_s
        self._locks: dict[EntityPlace, _Lock] = {}  # of what is being changed, or something in it

    @asynccontextmanager
    async def change(self, place: EntityPlace) -> AsyncIterator[None]:
        """Inside, nobody else changes this, what it is in, or anything in it."""
        taken = await self._take(place, alone=place)
        try:
            yield
        finally:
            self._give_back(taken)

    async def settled(self, place: EntityPlace) -> None:
        """Come back when nobody changes this or what it is in."""
        self._give_back(await self._take(place, alone=None))

    def are_taken(self, place: EntityPlace) -> bool:
        """Does somebody change this, or something in it?"""
        return place in self._locks

    async def _take(self, place: EntityPlace, alone: EntityPlace | None) -> list[EntityPlace]:
        """From the outside in, so that no two wait for each other."""
        taken: list[EntityPlace] = []
        try:
            async with asyncio.timeout(self._patience_s):
                for length in range(1, len(place) + 1):
                    part = place[:length]
                    await self._locks.setdefault(part, _Lock()).take(part == alone)
                    taken.append(part)
        except TimeoutError:
            raise OperationTimeout(
                f"Another request about '{place[-1][:64]}', or about what it is in, has not ended "
                f"within {self._patience_s:g} s. Nothing was changed: try again."
            ) from None
        finally:
            if len(taken) < len(place):  # in vain, or somebody has ended the waiting
                self._forget(place[: len(taken) + 1])
                self._give_back(taken)
        return taken

    def _give_back(self, taken: list[EntityPlace]) -> None:
        for part in reversed(taken):
            self._locks[part].give_back()
            self._forget(part)

    def _forget(self, part: EntityPlace) -> None:
        lock = self._locks.get(part)
        if lock is not None and lock.is_free:
            del self._locks[part]


class _Lock:
    """One name: some share it, or one has it alone; the others wait, in the order they came."""

    __slots__ = ("_count", "_is_alone", "_waiting")

    def __init__(self) -> None:
        self._count = 0
        self._is_alone = False
        self._waiting: deque[tuple[asyncio.Future[None], bool]] = deque()

    @property
    def is_free(self) -> bool:
        return not self._count and not self._waiting

    async def take(self, alone: bool) -> None:
        if not self._waiting and self._lets_in(alone):
            return
        came = asyncio.get_running_loop().create_future()
        self._waiting.append((came, alone))
        try:
            await came
        except asyncio.CancelledError:
            if came.cancelled():
                self._let_in()  # those behind may have waited only for this one
            else:
                self.give_back()  # it had just come
            raise

    def give_back(self) -> None:
        self._count -= 1
        self._is_alone = False
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting:
            came, alone = self._waiting[0]
            if not came.done():  # else its waiting was ended
                if not self._lets_in(alone):
                    return
                came.set_result(None)
            self._waiting.popleft()

    def _lets_in(self, alone: bool) -> bool:
        if self._is_alone or (alone and self._count):
            return False
        self._count += 1
        self._is_alone = alone
        return True
