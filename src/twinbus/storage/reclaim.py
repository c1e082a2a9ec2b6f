"""Decides which background task is due; see `maintenance.py` for what they are."""

from typing import Final

from twinbus.clock import Now
from twinbus.entities.facts import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER, Stored
from twinbus.entities.message import Message
from twinbus.storage.disk import Disk
from twinbus.storage.entity_index import EntityIndex
from twinbus.storage.log import Log, LogPlace
from twinbus.storage.maintenance import (
    IDLE_MS,
    MOVE_OVERHEAD_BYTES,
    NOTE_INTERVAL_MS,
    SPARE_NUMBERS_FROM,
    SPARES_AHEAD,
    SPARES_MAX,
    Backoff,
    CheckSegment,
    FinishSnapshot,
    MakeSpare,
    Moving,
    NoteEnd,
    PrepareSegment,
    ReadBodies,
    RemoveSpare,
    ReserveSegment,
    ReserveSnapshot,
    Retire,
    Task,
    WriteSlice,
)
from twinbus.storage.records import Counters
from twinbus.storage.recovery import Recovered
from twinbus.storage.snapshot import SLICE_BYTES_MAX, Capture, Census, SnapshotFile

# A snapshot is taken when the log has grown by this many segments, or times its own size.
GROWTH: Final = 4
SNAPSHOT_BYTES_PER_MESSAGE: Final = 64
SPARE_RETRY_MS: Final = 60_000
SPARE_FROM: Final = 16  # such a part of the first segment must have been written
# While the disk is full a snapshot is what frees segments: one is taken this often if anything has
# changed, or as seldom as makes so many bytes a millisecond of it.
LOW_INTERVAL_MS: Final = 5_000
LOW_BYTES_PER_MS: Final = 10_000
MOVE_FACTS_MAX: Final = 64  # while so many facts wait for a commit, moving adds none


class Maintenance:
    """The state of all background work.  Loop thread only."""

    def __init__(self, disk: Disk, log: Log, entities: EntityIndex, reserve: int) -> None:
        self._disk = disk
        self._log = log
        self._entities = entities
        self._reserve = reserve
        self.durable = log.place()  # everything before it is durable
        self.fact_taken_count = 0
        self.fact_durable_count = 0
        self.promised = 0  # bytes of messages on their way into the log
        self.stored_count = 0  # messages written since the last census
        self.kept_bytes = 0  # what else has come for the next snapshot since then
        self.snapshot_room_missing = False
        self._task: Task | None = None
        self._backoff = Backoff()
        self._snapshot_backoff = Backoff()  # its room is made in advance: it need not wait for more
        self._now = Now(0, 0)
        self._is_next_reserved = False  # the room of the segment after the head, not yet prepared
        self._spares: list[int] = []
        self._dead: list[int] = []
        self._snapshot = 0
        self._snapshot_size = 0
        self._snapshot_ms = 0  # monotonic; when the last one was begun
        # Room for snapshots comes in steps, which a small disk can give, too.
        self._step = min(SLICE_BYTES_MAX, log.segment_size // 4)
        self._place = LogPlace(1, 0, 1)  # of the last snapshot
        self._census = Census()
        self._old_snapshots: list[int] = []
        self._reserved = 0  # bytes that snapshot.tmp has room for
        self._capture: Capture | None = None
        self._file: SnapshotFile | None = None
        self._complete_from = -1  # facts that must be durable before the snapshot is; −1 = unknown
        self._moving = Moving()
        self._noted_frame = self.durable.frame
        self._noted_ms = 0
        self._seen_fact_count = -1
        self._spare_due_ms = 0  # monotonic; not before a while without writes

    def resume(self, found: Recovered, spares: list[int]) -> None:
        """Go on from what recovery found."""
        self._spares = spares
        self._dead = list(found.dead_segments)
        self._snapshot = found.snapshot
        self._snapshot_size = found.snapshot_size
        self._place = found.place
        self._census = found.census
        if found.snapshot:
            self._old_snapshots = [found.snapshot]

    # -- what is due -----------------------------------------------------------------------------

    def next_task(self, now: Now) -> Task | None:
        if self._task is not None:
            return None
        self._now = now
        if self.fact_taken_count != self._seen_fact_count:
            self._seen_fact_count = self.fact_taken_count
            self._spare_due_ms = now.mono_ms + IDLE_MS
        for backoff in (self._backoff, self._snapshot_backoff):
            if backoff.over(now):
                backoff.clear()
        self._task = self._choose()
        return self._task

    def _choose(self) -> Task | None:
        log = self._log
        waiting = self._backoff.waiting
        # Not before the seal of the segment before is durable: recovery takes two segments
        # behind an unsealed one for damage.
        sealed = self.durable.segment == log.head_segment
        if log.ready_segment == 0:
            number = log.head_segment + 1
            if self._is_next_reserved or self._spares:
                if sealed:
                    spare = 0 if self._is_next_reserved else self._spares[0]
                    return PrepareSegment(self._disk, number, log.salt, log.segment_size, spare)
            elif not waiting:
                return ReserveSegment(self._disk, number, log.segment_size)
        if self._dead:
            return self._retire()
        if self._capture is not None:
            return self._continue_snapshot(self._capture)
        if self._moving.active:
            task = self._move()
            if task is not None:
                return task
        if not self._snapshot_backoff.waiting and self._snapshot_due():
            return self._begin_snapshot()
        wanted = self._reserve_wanted()
        if self._reserved < wanted:
            if self.snapshot_room_missing and self._spares:
                return RemoveSpare(self._disk, self._spares.pop())
            if not waiting:
                return ReserveSnapshot(self._disk, wanted)
        else:
            self.snapshot_room_missing = False  # less may be wanted than before
        if (
            self.durable.frame != self._noted_frame
            and self._now.mono_ms - self._noted_ms >= NOTE_INTERVAL_MS
        ):
            self._noted_frame = self.durable.frame
            self._noted_ms = self._now.mono_ms
            return NoteEnd(self._disk, log.salt, self.durable)
        # A store that has hardly been written to is not going to need one soon.
        is_used = log.head_segment > 1 or log.head_offset > log.segment_size // SPARE_FROM
        is_idle = self._now.mono_ms >= self._spare_due_ms
        if len(self._spares) < SPARES_AHEAD and is_used and is_idle:
            number = max([SPARE_NUMBERS_FROM, *self._spares]) + 1
            return MakeSpare(self._disk, number, log.segment_size)
        return None

    def finish_task(self, task: Task) -> None:
        if task is not self._task:
            raise ValueError("a task was finished that is not running")
        self._task = None
        if isinstance(task, MakeSpare):
            self._finish_spare(task)
            return
        if task.full:
            self._backoff.full(self._now)
        if isinstance(task, ReserveSegment):
            self._is_next_reserved = not task.full
        elif isinstance(task, PrepareSegment):
            self._is_next_reserved = False
            if not task.full:
                self._log.ready_segment = task.number
                if task.spare:
                    self._spares.remove(task.spare)
        elif isinstance(task, ReserveSnapshot):
            self.snapshot_room_missing = task.full
            if not task.full:
                self._reserved = task.size
        elif isinstance(task, Retire):
            self._spares.extend(task.spares)
        elif isinstance(task, ReadBodies):
            self._restate(task)
        elif isinstance(task, FinishSnapshot):
            self._finish_snapshot(task)
        elif isinstance(task, WriteSlice) and task.full:
            self._abandon_snapshot()

    # -- segments --------------------------------------------------------------------------------

    def _retire(self) -> Retire:
        dead = self._dead
        self._dead = []
        for number in dead:
            self._log.segments.pop(number, None)
            self._log.forget(number)
        keep = 0 if self.snapshot_room_missing else max(0, SPARES_MAX - len(self._spares))
        return Retire(self._disk, dead[:keep], dead[keep:])

    def room(self) -> int:
        """Bytes that the log can still take without a new segment being made."""
        log = self._log
        return log.room() + (log.capacity() if self.has_next else 0) - self.promised

    @property
    def has_next(self) -> bool:
        """Whether the log can go on in another segment, now or as soon as its zeros are written."""
        return self._log.ready_segment != 0 or self._is_next_reserved

    @property
    def is_urgent(self) -> bool:
        """Whether the next segment should be seen to at once."""
        return self._log.ready_segment == 0 and not self._backoff.waiting

    def _finish_spare(self, task: MakeSpare) -> None:
        if task.made:
            self._spares.append(task.number)
        else:  # too little room to be generous: ask again later
            self._spare_due_ms = self._now.mono_ms + SPARE_RETRY_MS

    def _low(self) -> bool:
        """Is the disk full, as far as we know?"""
        missing = not self.has_next or self.snapshot_room_missing
        return missing and self._backoff.waiting

    # -- snapshots -------------------------------------------------------------------------------

    def _snapshot_due(self) -> bool:
        size = self._log.segment_size
        place = self.durable
        grown = (place.segment - self._place.segment) * size + place.offset - self._place.offset
        enough = max(GROWTH * size, GROWTH * self._snapshot_size)
        if grown >= enough or len(self._moving.emptied) * size >= enough:
            return True
        if not self._low():
            return False
        if grown >= self._reserve // 8 or self._moving.emptied:
            return True
        # Few bytes may free much: those that tell of a deleted queue, or of large messages removed.
        interval_ms = max(LOW_INTERVAL_MS, self._snapshot_size // LOW_BYTES_PER_MS)
        if self._now.mono_ms - self._snapshot_ms < interval_ms:
            return False
        return grown > 0 or (not self._moving.active and bool(self._choose_victims()))

    def _reserve_wanted(self) -> int:
        """In steps that double, so that it is rarely asked for."""
        messages = self._census.message_count + self.stored_count
        size = messages * SNAPSHOT_BYTES_PER_MESSAGE + self._census.kept_bytes + self.kept_bytes
        size = size * 5 // 4
        return self._step << (size // self._step).bit_length()

    def _begin_snapshot(self) -> Task | None:
        self._capture = Capture(self._entities, self.durable, self._choose_victims())
        self._complete_from = -1
        self._snapshot_ms = self._now.mono_ms
        self._file = SnapshotFile(
            self._disk, self._log.salt, self._snapshot + 1, self._reserved, self.durable
        )
        return self._continue_snapshot(self._capture)

    def _continue_snapshot(self, capture: Capture) -> Task | None:
        assert self._file is not None
        if not capture.done:
            parts = capture.slice()
            return WriteSlice(self._disk, self._file, parts) if parts else None
        if self._complete_from < 0:
            self._complete_from = self.fact_taken_count + len(self._entities.facts)
        if self.fact_durable_count < self._complete_from:
            return None
        counters = Counters(self._entities.grants.next, self._entities.next_id)
        return FinishSnapshot(self._disk, self._file, counters, self._old_snapshots)

    def _finish_snapshot(self, task: FinishSnapshot) -> None:
        capture = self._capture
        assert capture is not None
        if task.full:
            self._abandon_snapshot()
            return
        self._snapshot += 1
        self._old_snapshots = [self._snapshot]
        self._snapshot_size = task.size
        self._reserved = 0
        self._place = capture.place
        self._census = capture.census
        self.stored_count = 0
        self.kept_bytes = 0
        live = capture.census.live_bytes
        for number in self._log.segments:
            if number < capture.place.segment and number not in live:
                self._dead.append(number)
        self._moving.start(capture.movable, capture.victims & live.keys())
        self._capture = None
        self._file = None

    def _abandon_snapshot(self) -> None:
        assert self._file is not None
        self._snapshot_backoff.full(self._now)
        self._file.abandon()
        self._capture = None
        self._file = None

    # -- moving ----------------------------------------------------------------------------------

    def _choose_victims(self) -> set[int]:
        """The emptiest segments, if the log is mostly dead; moving pays at least twice."""
        log = self._log
        live = self._census.live_bytes
        size = log.segment_size
        total = len(log.segments) * size
        goal = 2 * self._census.total_bytes() + GROWTH * size
        budget = GROWTH * size // 2
        if self._low():
            goal = 0
            budget = max(0, log.room() - self._reserve // 2)
        victims: set[int] = set()
        for number in sorted(live, key=live.__getitem__):
            cost = live[number]
            if total <= goal or cost > budget or cost > size // 2:
                break
            if number < self.durable.segment:
                victims.add(number)
                budget -= cost
                total -= size
        return victims

    def _move(self) -> Task | None:
        if self._moving.unchecked:
            number = self._moving.unchecked.pop()
            return CheckSegment(self._disk, number, self._log.salt, self._log.segment_size)
        if len(self._entities.facts) >= MOVE_FACTS_MAX:
            return None
        # Half of the reserve may be used: moving is what frees segments when the disk is full.
        movable = self._moving.next_slice(self.room() - self._reserve // 2)
        return ReadBodies(self._disk, movable) if movable else None

    def _restate(self, task: ReadBodies) -> None:
        """State messages again as they are now; the next frame gives them their new place."""
        stated: dict[tuple[int, int], list[Message]] = {}
        for (entity_id, message), body in zip(task.movable, task.bodies, strict=True):
            subqueue = self._subqueue_of(entity_id, message)
            if subqueue < 0:
                continue
            message.body = body
            message.position = 0
            self.promised += message.length + MOVE_OVERHEAD_BYTES
            stated.setdefault((entity_id, subqueue), []).append(message)
        for (entity_id, subqueue), messages in stated.items():
            self._entities.facts.append(Stored(entity_id, subqueue, messages))

    def _subqueue_of(self, entity_id: int, message: Message) -> int:
        """Where the message is by now; −1 if nowhere that the queue shows."""
        queue = self._entities.by_id.get(entity_id)
        if queue is not None:
            for subqueue in (MAIN, DEAD_LETTER, TRANSFER_DEAD_LETTER):
                found = queue.messages_from(subqueue, message.sequence_number, 1)
                if found and found[0] is message:
                    return subqueue
        return -1
