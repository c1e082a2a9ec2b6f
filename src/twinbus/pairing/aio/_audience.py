"""Who hears of events: callbacks, plain or async, and readers of `events()`.

Nothing a listener does may hurt the pair: its errors are logged, and one that does not read in
time loses the oldest events, never the pair's memory.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Self
from weakref import WeakSet

from twinbus.pairing.events import UNREAD_COUNT_MAX, Callback, Event
from twinbus.pairing.log_lines import LOGGER, log

CALLBACK_S_MAX: Final = 5.0  # for those that still run when the pair closes


class Reader:
    """One `events()`: what has happened since it was made, until the pair closes."""

    def __init__(self) -> None:
        self._unread: deque[Event] = deque(maxlen=UNREAD_COUNT_MAX)
        self._wake = asyncio.Event()
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._unread:
            if self._ended:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        return self._unread.popleft()

    def hear(self, events: Iterable[Event]) -> None:
        self._unread.extend(events)
        self._wake.set()

    def end(self) -> None:
        self._ended = True
        self._wake.set()


class Audience:
    """All listeners of one pair."""

    def __init__(self) -> None:
        self._first: list[Event] = []  # from before there could be listeners
        self._callbacks: list[Callback] = []
        self._readers: WeakSet[Reader] = WeakSet()  # who reads no more is forgotten
        self._tasks: set[asyncio.Future[Any]] = set()
        self._closed = False

    def remember(self, events: list[Event]) -> None:
        """Each listener is told these before all others, as soon as it is there."""
        self._first = events
        for event in events:
            log(event)

    def add(self, callback: Callback) -> None:
        for event in self._first:
            self._call(callback, event)
        self._callbacks.append(callback)

    def read(self) -> Reader:
        reader = Reader()
        reader.hear(self._first)
        if self._closed:
            reader.end()
        self._readers.add(reader)
        return reader

    def tell(self, events: list[Event]) -> None:
        for event in events:
            log(event)
            for callback in list(self._callbacks):
                self._call(callback, event)
        for reader in list(self._readers):
            reader.hear(events)

    async def close(self) -> None:
        """Readers end after what they have not read yet; async callbacks come to their end."""
        self._closed = True
        for reader in list(self._readers):
            reader.end()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CALLBACK_S_MAX)

    def excuse(self, task: asyncio.Task[Any] | None) -> None:
        """This one closes the pair, so nobody can wait for it."""
        if task is not None:
            self._tasks.discard(task)

    def _call(self, callback: Callback, event: Event) -> None:
        try:
            answer = callback(event)
        except Exception:  # noqa: BLE001 - it is logged
            LOGGER.exception("a callback failed: event=%s", type(event).__name__)
            return
        if inspect.isawaitable(answer):
            task = asyncio.ensure_future(answer)
            self._tasks.add(task)
            task.add_done_callback(self._called)

    def _called(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            LOGGER.error("a callback failed: error=%r", error)
