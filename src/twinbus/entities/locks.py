"""When the locks of one subqueue run out, on the monotonic clock.

Locks granted in one loop turn share their end, so they are kept together under that millisecond
with a count of those still held.  A group whose locks were all settled is dropped at once: a busy
queue holds as much here as is locked now, not as much as was locked in the last minute.  Keeping
the groups in a heap, not in the order they came, stays right when the lock duration is changed.

This module never looks at a message; whoever asks what is due checks that the lock still stands.
"""

from heapq import heappop, heappush

from twinbus.entities.message import NEVER_MS


class LockGroup:
    """Locks that end in the same millisecond."""

    __slots__ = ("batches", "held_count")

    def __init__(self) -> None:
        self.batches: list[list[int]] = []  # sequence numbers; shared with facts, never changed
        self.held_count = 0


class LockEnds:
    """Which locks end when."""

    __slots__ = ("_groups", "ends")

    def __init__(self) -> None:
        self._groups: dict[int, LockGroup] = {}
        self.ends: list[int] = []  # heap of the keys of _groups, lazily deleted

    def add(self, until_ms: int, sequence_numbers: list[int]) -> None:
        """These messages are locked until then."""
        group = self._groups.get(until_ms)
        if group is None:
            group = LockGroup()
            self._groups[until_ms] = group
            heappush(self.ends, until_ms)
            if len(self.ends) > 2 * len(self._groups) + 64:
                self.ends = sorted(self._groups)  # a sorted list is a heap
        group.batches.append(sequence_numbers)
        group.held_count += len(sequence_numbers)

    def discard(self, until_ms: int, count: int) -> None:
        """So many of the locks that would have ended then have ended already."""
        group = self._groups.get(until_ms)
        if group is not None:
            group.held_count -= count
            if group.held_count <= 0:
                del self._groups[until_ms]

    def next_ms(self) -> int:
        """When the next lock ends; NEVER_MS when none is held."""
        ends = self.ends
        while ends:
            if ends[0] in self._groups:
                return ends[0]
            heappop(ends)
        return NEVER_MS

    def take_due(self, mono_ms: int, count: int) -> list[int]:
        """Sequence numbers, `count` at most, of which some were locked until now or earlier."""
        due: list[int] = []
        while len(due) < count and self.next_ms() <= mono_ms:
            until_ms = self.ends[0]
            group = self._groups[until_ms]
            batch = group.batches.pop()
            left = count - len(due)
            if len(batch) > left:
                group.batches.append(batch[left:])
                batch = batch[:left]
            due.extend(batch)
            if not group.batches:
                del self._groups[until_ms]
        return due
