"""A lock for changes to entities: many at a time, or one exclusive holder.

Reconciling (reconcile.py) compares the stores with the catalog, and must not mistake an unfinished
change for a fault.  So it waits until no change is in progress, and keeps others out.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ChangeLock:
    """Holders are not interrupted; an exclusive request goes before later ones."""

    def __init__(self) -> None:
        self._inside = 0
        self._wants_alone = 0
        self._is_alone = False
        self._waiting: list[asyncio.Future[None]] = []

    @asynccontextmanager
    async def with_others(self) -> AsyncIterator[None]:
        """Change something."""
        while self._wants_alone or self._is_alone:
            await self._wait()
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            self._wake()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Look at everything while nobody changes anything."""
        self._wants_alone += 1
        try:
            while self._inside or self._is_alone:
                await self._wait()
            self._is_alone = True
        finally:
            self._wants_alone -= 1
            self._wake()
        try:
            yield
        finally:
            self._is_alone = False
            self._wake()

    async def _wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter

    def _wake(self) -> None:
        """Something has changed: everybody looks again."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
