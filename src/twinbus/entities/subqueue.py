"""One part of a queue: the main part, or one of its dead-letter queues.

Delivery order is lowest sequence number first.  Two sources give it: a cursor that walks the table
once, and a heap of numbers that came back behind the cursor (abandoned, lock ended, released).
Everything in the heap is lower than the cursor, so the heap always goes first.

A subqueue moves messages and keeps counts.  It never decides what becomes of a message and never
states a fact: that is the queue's.
"""

from heapq import heappop, heappush

from twinbus.entities.locks import LockEnds
from twinbus.entities.message import ACTIVE, DEFERRED, GONE, NEVER_MS, SCHEDULED, Message
from twinbus.entities.table import MessageTable


class SubQueue:
    """Messages, who is next, and who is locked."""

    __slots__ = (
        "_cursor",
        "_returned",
        "deferred_count",
        "locks",
        "schedule",
        "scheduled_count",
        "size_bytes",
        "table",
    )

    def __init__(self) -> None:
        self.table = MessageTable()
        self.locks = LockEnds()
        self.size_bytes = 0
        self.deferred_count = 0
        self.scheduled_count = 0
        self._cursor = 1  # every number below it has been looked at
        self._returned: list[int] = []  # heap of numbers below the cursor, lazily deleted
        self.schedule: list[tuple[int, int]] = []  # heap of (due, number), lazily deleted

    # -- in and out -----------------------------------------------------------------------------

    def put(self, message: Message) -> None:
        """Take in a message with all of its state.  Its number must not be here."""
        if message.sequence_number > self.table.last_number:
            self.table.append(message)
        else:
            self.table.insert(message)
        self.size_bytes += message.length
        if message.state == SCHEDULED:
            self.scheduled_count += 1
            heappush(self.schedule, (message.enqueued_ms, message.sequence_number))
        elif message.state == DEFERRED:
            self.deferred_count += 1
        elif message.grant == 0 and message.sequence_number < self._cursor:
            heappush(self._returned, message.sequence_number)

    def remove(self, message: Message) -> None:
        """Let go of a message and of its lock.  What state it takes on is up to the caller."""
        self.table.remove(message.sequence_number)
        self.size_bytes -= message.length
        if message.grant != 0:
            self.locks.discard(message.locked_until_ms, 1)
            message.grant = 0
            message.locked_until_ms = 0
        if message.state == DEFERRED:
            self.deferred_count -= 1
        elif message.state == SCHEDULED:
            self.scheduled_count -= 1
            self._tidy_schedule()
        message.state = GONE

    def forget(self, taken: list[Message | None]) -> list[int]:
        """Account for locked messages that were taken out of the table; returns their numbers.

        Locks granted together are mostly settled together: one step for each such run.
        """
        numbers: list[int] = []
        size_bytes = 0
        until_ms = 0
        run = 0
        for message in taken:
            if message is None:
                continue
            numbers.append(message.sequence_number)
            size_bytes += message.length
            if message.locked_until_ms != until_ms:
                self.locks.discard(until_ms, run)
                until_ms = message.locked_until_ms
                run = 0
            run += 1
            if message.state == DEFERRED:
                self.deferred_count -= 1
            message.grant = 0
            message.state = GONE
        self.locks.discard(until_ms, run)
        self.size_bytes -= size_bytes
        return numbers

    def lock(self, message: Message, grant: int, until_ms: int) -> None:
        """Lock one message (again); for many at once see Queue.lock_next."""
        if message.grant != 0:
            self.locks.discard(message.locked_until_ms, 1)
        message.grant = grant
        message.locked_until_ms = until_ms
        self.locks.add(until_ms, [message.sequence_number])

    def unlock(self, message: Message, state: int) -> None:
        """End the lock; the message is free again, or deferred."""
        if message.grant != 0:
            self.locks.discard(message.locked_until_ms, 1)
            message.grant = 0
            message.locked_until_ms = 0
        if message.state == DEFERRED:
            self.deferred_count -= 1
        elif message.state == SCHEDULED:  # only when a fact is replayed once more
            self.scheduled_count -= 1
        message.state = state
        if state == DEFERRED:
            self.deferred_count += 1
        elif message.sequence_number < self._cursor:
            heappush(self._returned, message.sequence_number)

    # -- delivery -------------------------------------------------------------------------------

    def take_ready(
        self, count: int, published: int, utc_ms: int, expired: list[Message], expired_max: int
    ) -> list[Message]:
        """The next free messages.  The caller locks or removes every one of them at once.

        Those that turn out to have expired are put into `expired`, of which there will be
        `expired_max` at most; then the walk stops early.
        """
        ready: list[Message] = []
        table = self.table
        returned = self._returned
        while returned and len(ready) < count and len(expired) < expired_max:
            number = heappop(returned)
            found = table.get(number)
            if found is None or found.state != ACTIVE or found.grant != 0:
                continue
            if returned and returned[0] == number:
                continue  # came back twice; the other entry will do
            if found.expires_ms <= utc_ms:
                expired.append(found)
            else:
                ready.append(found)
        while len(ready) < count and len(expired) < expired_max and self._cursor <= published:
            run = table.run_from(self._cursor, count - len(ready))
            if not run:
                break
            for message in run:
                if message.sequence_number > published:
                    self._cursor = published + 1
                    break
                self._cursor = message.sequence_number + 1
                if message.state == ACTIVE and message.grant == 0:
                    if message.expires_ms <= utc_ms:
                        expired.append(message)
                    else:
                        ready.append(message)
        return ready

    def has_ready(self, published: int) -> bool:
        """Is a free message waiting?  Takes constant time on average: it moves the cursor."""
        returned = self._returned
        while returned:
            found = self.table.get(returned[0])
            if found is not None and found.state == ACTIVE and found.grant == 0:
                return True
            heappop(returned)
        while self._cursor <= published:
            run = self.table.run_from(self._cursor, 1)
            if not run:
                return False
            message = run[0]
            if message.sequence_number > published:
                return False
            if message.state == ACTIVE and message.grant == 0:
                return True
            self._cursor = message.sequence_number + 1
        return False

    # -- schedule -------------------------------------------------------------------------------

    def next_scheduled(self) -> tuple[int, int]:
        """When the next scheduled message is due, and its number; NEVER_MS when there is none."""
        schedule = self.schedule
        while schedule:
            message = self.table.get(schedule[0][1])
            if message is not None and message.state == SCHEDULED:
                return schedule[0]
            heappop(schedule)
        return (NEVER_MS, 0)

    def _tidy_schedule(self) -> None:
        """Entries of cancelled messages must not pile up until they would have been due."""
        if len(self.schedule) > 2 * self.scheduled_count + 64:
            live: set[tuple[int, int]] = set()
            for entry in self.schedule:
                message = self.table.get(entry[1])
                if message is not None and message.state == SCHEDULED:
                    live.add(entry)
            self.schedule = sorted(live)  # a sorted list is a heap
