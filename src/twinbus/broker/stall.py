"""A reply that hangs, noticed when it does.

Pure: told of replies and of the time.  `shell.py` acts on what it is told here.
"""

from twinbus.limits import REPLY_STALLED_MS


class StalledReply:
    """For how long the oldest reply has been waiting for something that nobody writes."""

    __slots__ = ("_first", "_since_ms")

    def __init__(self) -> None:
        self._first: object = None
        self._since_ms = 0

    def look(self, first: object, now_ms: int) -> bool:
        """Told who waits (`Broker.unwritten`); returns whether it has been too long.

        Whoever looks must look more than once: two looks that see the same reply prove it.
        """
        if first is None or first is not self._first:
            self._first = first
            self._since_ms = now_ms
        return first is not None and now_ms - self._since_ms >= REPLY_STALLED_MS
