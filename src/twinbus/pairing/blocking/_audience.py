"""Who hears of events: callbacks, and readers of `events()`.

Nothing a listener does may hurt the pair: its errors are logged, and one that does not read in
time loses the oldest events, never the pair's memory.  Events are told in the order in which they
happened, by one thread at a time, with no lock of the pairing held.
"""

import threading
from collections import deque
from collections.abc import Iterable
from typing import Self
from weakref import WeakSet

from twinbus.pairing.events import UNREAD_COUNT_MAX, Callback, Event
from twinbus.pairing.log_lines import LOGGER, log


class Reader:
    """One `events()`: what has happened since it was made, until the pair closes."""

    def __init__(self) -> None:
        self._unread: deque[Event] = deque(maxlen=UNREAD_COUNT_MAX)
        self._changed = threading.Condition()
        self._ended = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        with self._changed:
            self._changed.wait_for(self._has_news)
            if not self._unread:
                raise StopIteration
            return self._unread.popleft()

    def hear(self, event: Event) -> None:
        with self._changed:
            self._unread.append(event)
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _has_news(self) -> bool:
        return bool(self._unread) or self._ended


class Audience:
    """All listeners of one pair."""

    def __init__(self) -> None:
        self._first: list[Event] = []  # from before there could be listeners
        self._callbacks: list[Callback] = []
        self._readers: WeakSet[Reader] = WeakSet()  # who reads no more is forgotten
        self._readers_lock = threading.Lock()
        self._untold: deque[Event] = deque()
        self._telling = threading.Lock()
        self._closed = False

    def remember(self, events: list[Event]) -> None:
        """Each listener is told these before all others, as soon as it is there."""
        self._first = events
        for event in events:
            log(event)

    def add(self, callback: Callback) -> None:
        for event in self._first:
            _call(callback, event)
        self._callbacks.append(callback)

    def read(self) -> Reader:
        reader = Reader()
        for event in self._first:
            reader.hear(event)
        with self._readers_lock:
            self._readers.add(reader)
        if self._closed:
            reader.end()
        return reader

    def gather(self, events: Iterable[Event]) -> None:
        """To be called while the pairing's lock is held, so that the order is that of events."""
        self._untold.extend(events)

    def tell(self) -> None:
        """Tell what was gathered, unless another thread is just doing it: it takes ours as well.

        So a callback may do with the pair what it likes, and a slow one stops at most one thread.
        """
        while self._untold and self._telling.acquire(blocking=False):
            try:
                while self._untold:
                    self._tell(self._untold.popleft())
            finally:
                self._telling.release()

    def close(self) -> None:
        """Readers end after what they have not read yet."""
        self._closed = True
        for reader in self._present():
            reader.end()

    def _tell(self, event: Event) -> None:
        log(event)
        for callback in list(self._callbacks):
            _call(callback, event)
        for reader in self._present():
            reader.hear(event)

    def _present(self) -> list[Reader]:
        with self._readers_lock:
            return list(self._readers)


def _call(callback: Callback, event: Event) -> None:
    try:
        callback(event)
    except Exception:  # noqa: BLE001 - the listener's own
        LOGGER.exception("a callback failed: event=%s", type(event).__name__)
