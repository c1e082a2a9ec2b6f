"""Whether the loop waits for the disk itself, or has a thread wait for it.

The best is to have the kernel write beside the loop (`storage/ring.py`); but a commit of few
messages is sooner written than handed over.  Where there is no ring it is the turn of a thread.
That shares Python's lock with the loop, and a loop that is busy gives it back late.  What this
costs depends on the commit (docs/performance.md has the figures):

    few messages     being handed over and back takes as long as the sync: the loop waits
    many, but small  settlements: nearly all of it is the disk's time, which the loop can use
    large            messages: much of it is joining, checksum and copying: the loop waits
    very large       takes its time on any disk: others should not be kept waiting for so long

And the loop waits only as long as the disk is quick.  One that was slow is left to others for
some commits, then tried again; each time it is still slow, for twice as many.
"""

from typing import Final

SMALL_SIZE_BYTES_MAX: Final = 1 << 16
LARGE_SIZE_BYTES_MAX: Final = 1 << 20
SLOW_MS: Final = 5  # longer than that nobody else should be kept waiting
PAUSE_MIN: Final = 16  # commits
PAUSE_MAX: Final = 1_024


class CommitMode:
    """What the last commits say about the next one."""

    __slots__ = ("_has_ring", "_left", "_pause")

    def __init__(self, has_ring: bool) -> None:
        self._has_ring = has_ring
        self._left = 0  # so many commits are not the loop's
        self._pause = PAUSE_MIN

    def may_wait(self, size: int, is_light: bool) -> bool:
        """Is the loop to write a commit of so many bytes, light if it is of few messages?"""
        is_large = SMALL_SIZE_BYTES_MAX < size <= LARGE_SIZE_BYTES_MAX
        if not is_light and (self._has_ring or not is_large):
            return False
        if self._left > 0:
            self._left -= 1
            return False
        return True

    def waited(self, duration_ms: int) -> None:
        """The loop has written one, and it took so long."""
        if duration_ms < SLOW_MS:
            self._pause = PAUSE_MIN
        else:
            self._left = self._pause
            self._pause = min(2 * self._pause, PAUSE_MAX)
