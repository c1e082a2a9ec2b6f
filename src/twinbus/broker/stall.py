"""What must not happen to a broker, noticed when it does: a turn that fails, a reply that hangs.

Pure: told of turns, of replies and of the time.  `shell.py` acts on what it is told here.
"""

from typing import Final

from twinbus.limits import REPLY_STALLED_MS


class TurnFailures:
    """Whether a store can go on after a turn that failed.

    Once may be bad luck: one delivery could not be made, and the next turn goes on behind it.
    Twice in a row means that what was decided cannot be carried out, now or ever: queues hold
    something that the log will never have, and only reading back what it has helps.
    """

    __slots__ = ("count",)

    FAILURES_MAX: Final = 2

    def __init__(self) -> None:
        self.count = 0

    def went_well(self) -> None:
        self.count = 0

    def failed(self) -> bool:
        """One more; returns whether the store is to be given up."""
        self.count += 1
        return self.count >= self.FAILURES_MAX


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
