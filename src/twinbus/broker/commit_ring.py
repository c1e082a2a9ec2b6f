"""Commits that the kernel writes beside the loop, where it can (`storage/ring.py`)."""

import asyncio
import os
from collections.abc import Callable

from twinbus.storage.disk import UNSUPPORTED
from twinbus.storage.log import Commit
from twinbus.storage.ring import WriteRing


class CommitRing:
    """One commit at a time."""

    def __init__(
        self,
        ring: WriteRing | None,
        loop: asyncio.AbstractEventLoop,
        written: Callable[[Commit, BaseException | None], None],
        undone: Callable[[Commit], None],
    ) -> None:
        """`undone` is told of a commit that has to be written in another way."""
        self._loop = loop
        self._written = written
        self._undone = undone
        self._commit: Commit | None = None
        self._is_free = asyncio.Event()
        self._is_free.set()
        self._ring = ring
        if ring is not None:
            loop.add_reader(ring.fileno(), self._ready)

    @property
    def is_there(self) -> bool:
        return self._ring is not None

    def begin(self, commit: Commit) -> bool:
        """False: it has to be written in another way."""
        ring = self._ring
        if ring is None or not commit.begin(ring):
            return False
        self._commit = commit
        self._is_free.clear()
        return True

    def _ready(self) -> None:
        assert self._ring is not None
        result = self._ring.result()
        if result is None or self._commit is None:
            return
        commit, self._commit = self._commit, None
        self._is_free.set()
        if result == commit.frame_size:
            self._written(commit, None)
        elif result < 0 and -result not in UNSUPPORTED:
            error = OSError(-result, os.strerror(-result))
            self._written(commit, commit.failed(error))
        else:
            if result < 0:
                self._leave()
            self._undone(commit)

    def _leave(self) -> None:
        if self._ring is not None:
            self._loop.remove_reader(self._ring.fileno())
            self._ring.close()
            self._ring = None

    async def stop(self) -> None:
        """Until the last one is written: its bytes must stay where they are for so long."""
        await self._is_free.wait()
        self._leave()
