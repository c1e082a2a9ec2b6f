"""When each entity is to be looked at again: of several deadlines the nearest counts."""

import heapq


class Timers:
    """One deadline for each entity that has any, in monotonic milliseconds."""

    __slots__ = ("_armed", "_heap", "next_ms")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []  # deadline and entity, with some that are obsolete
        self._armed: dict[int, int] = {}
        self.next_ms = -1  # the earliest deadline; −1 when there is none

    def arm(self, entity_id: int, deadline_ms: int) -> None:
        """Look at this entity then, if nobody does before."""
        armed = self._armed.get(entity_id)
        if armed is None or deadline_ms < armed:
            self._armed[entity_id] = deadline_ms
            heapq.heappush(self._heap, (deadline_ms, entity_id))
            self.next_ms = self._heap[0][0]

    def take_due(self, mono_ms: int) -> int:
        """An entity whose time has come; 0 when there is none (any more)."""
        heap = self._heap
        while heap and heap[0][0] <= mono_ms:
            deadline_ms, entity_id = heapq.heappop(heap)
            self.next_ms = heap[0][0] if heap else -1
            if self._armed.get(entity_id) == deadline_ms:  # else a nearer one has run since
                del self._armed[entity_id]
                return entity_id
        return 0
