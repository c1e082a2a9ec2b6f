"""Snapshots: all live messages without their bodies, so that a restart need not replay for ever.

A snapshot is a file of frames like a segment of the log (`log.py`), named `NNNNNNNNNN.snapshot`:
entity by entity its description, its last sequence number, where its messages stand, the ids it
remembers against duplicates, the states of its sessions, the numbers that have been carried into it
from other stores and those that have come from producers; then the store's counters and a SEAL.
Entities come in the order of their numbers, rules among them, so that whoever belongs to another
comes after it.  Its header says where in the log replaying begins.

It is taken while the broker works, in slices: one is captured on the loop thread, then written by
the maintenance thread.  So it is fuzzy: a slice may be newer than the one before it.  That is
repaired by the replay, because

- replaying begins at the last durable frame as of the first slice, so every fact stated since comes
  again, and facts are absolute;
- inside an entity messages only ever move to a higher number, or from the main part to the
  dead-letter queue and on to the transfer dead-letter queue, and slices are taken in that order:
  whoever moves is seen at least once (ids, too, only move to a later shard);
- a message that moves to another entity is stored there anew, behind our place in the log;
- the file gets its name only when all facts are durable that the slices may have seen.

While the file is written it is called `snapshot.tmp`, and a file of that name is never read.  It
stays between snapshots, with room made in advance, because a full disk is when we need one most.
"""

import errno
from typing import Final

from twinbus.entities.facts import (
    MAIN,
    TRANSFER_DEAD_LETTER,
    Arrived,
    Carried,
    EntityCreated,
    LastNumber,
    SessionStateSet,
)
from twinbus.entities.message import Message
from twinbus.entities.queue import Queue
from twinbus.limits import SEGMENT_HEADER_BYTES
from twinbus.storage.disk import Disk, File
from twinbus.storage.entity_index import RULE, EntityIndex
from twinbus.storage.log import RECORDS, SEAL, SNAPSHOT_MAGIC, Header, LogPlace, encode_frame
from twinbus.storage.records import Counters, IdsKept, encode, encode_placed

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
TEMPORARY_NAME: Final = "snapshot.tmp"
SLICE_MESSAGES_MAX: Final = 1_000  # at 1 to 2 µs each a slice keeps the loop for less than 2 ms
SLICE_BYTES_MAX: Final = 1 << 20  # long overlays make a slice shorter
RUN_MESSAGES_MAX: Final = 500
ENTITY_COST: Final = 8  # an entity's own records count like so many messages

# What comes of one entity, in this order; 0 to 2 are its parts.
_ITSELF: Final = -1
_IDS: Final = 3
_STATES: Final = 4
_CARRIED: Final = 5
_ARRIVED: Final = 6


def snapshot_name(number: int) -> str:
    return f"{number:010d}.snapshot"


class Census:
    """Bytes of live bodies in each segment: who is missing here holds none.

    A body that messages share counts for each of them, which is what moving them would cost: each
    gets a body of its own by that.
    """

    __slots__ = ("kept_bytes", "live_bytes", "message_count")

    def __init__(self) -> None:
        self.live_bytes: dict[int, int] = {}
        self.message_count = 0
        self.kept_bytes = 0  # of session states and ids against duplicates

    def count(self, messages: list[Message]) -> None:
        """Neighbours mostly share a segment, so runs are added up before the dict is touched."""
        live_bytes = self.live_bytes
        segment = -1
        size = 0
        for message in messages:
            if message.position >> 32 != segment:
                if segment >= 0:
                    live_bytes[segment] = live_bytes.get(segment, 0) + size
                segment = message.position >> 32
                size = 0
            size += message.length + 1  # an empty body is live, too
        if segment >= 0:
            live_bytes[segment] = live_bytes.get(segment, 0) + size
        self.message_count += len(messages)

    def total_bytes(self) -> int:
        return sum(self.live_bytes.values())


class Capture:
    """Walks all entities on the loop thread, one slice at a time."""

    def __init__(self, entities: EntityIndex, place: LogPlace, victims: set[int]) -> None:
        self._entities = entities
        self._ids = sorted([*entities.by_id, *entities.rules])
        self._index = 0
        self._part = _ITSELF
        self._number = 0  # next sequence number (or shard, or session) to look at
        self._first = 0
        self._last = -1
        self._states: list[tuple[str, bytes, int]] = []  # of the entity whose turn it is
        self._carried: list[tuple[str, list[int]]] = []  # likewise
        self._producers: list[str] = []  # likewise
        self._before = place.position()
        self.place = place
        self.census = Census()
        self.victims = victims  # segments to be emptied
        self.movable: list[tuple[int, Message]] = []  # (entity id, message) found in those

    @property
    def done(self) -> bool:
        return self._index >= len(self._ids)

    def slice(self) -> list[bytes]:
        """The next records, or nothing if a commit has to come first (see `_walk`)."""
        parts: list[bytes] = []
        budget = SLICE_MESSAGES_MAX
        size = 0
        while budget > 0 and size < SLICE_BYTES_MAX and not self.done:
            entity_id = self._ids[self._index]
            queue = self._entities.by_id.get(entity_id)
            if queue is None:  # a rule, or deleted since; the replay will say so, too
                size += self._describe_rule(entity_id, parts)
                budget -= ENTITY_COST
                self._next_entity()
                continue
            if self._part == _ITSELF:
                size += self._describe(queue, parts)
                budget -= ENTITY_COST
                self._first = queue.last_sequence_number
                self._next_part()
            elif self._part <= TRANSFER_DEAD_LETTER:
                seen, written = self._walk(queue, min(budget, RUN_MESSAGES_MAX), parts)
                if seen < 0:
                    break
                budget -= seen
                size += written
            else:
                size += self._keep_ids(queue, parts)
                size += self._keep_states(queue, size, parts)
                size += self._keep_carried(queue, size, parts)
                size += self._keep_arrivals(queue, size, parts)
                budget -= ENTITY_COST
        return parts

    def _describe(self, queue: Queue, parts: list[bytes]) -> int:
        created = EntityCreated(
            queue.entity_id, queue.kind, queue.name, queue.description.to_json()
        )
        number = LastNumber(queue.entity_id, queue.last_sequence_number)
        return encode(created, parts, 0) + encode(number, parts, 0)

    def _describe_rule(self, rule_id: int, parts: list[bytes]) -> int:
        rule = self._entities.rules.get(rule_id)
        if rule is None:
            return 0
        name = self._entities.rule_names[rule_id]
        return encode(EntityCreated(rule_id, RULE, name, rule.description.to_json()), parts, 0)

    def _keep_ids(self, queue: Queue, parts: list[bytes]) -> int:
        """A piece of the duplicate history, if there is one."""
        if self._part != _IDS:
            return 0
        following = -1
        written = 0
        if queue.history is not None:
            entries, following = queue.history.piece(self._number)
            if entries:
                written = encode(IdsKept(queue.entity_id, entries), parts, 0)
                self.census.kept_bytes += written
        self._number = following
        if following < 0:
            self._next_part()
            self._states = queue.session_states()
        return written

    def _keep_states(self, queue: Queue, size: int, parts: list[bytes]) -> int:
        """States of sessions as they were when their turn came; each may be as large as a slice."""
        if self._part != _STATES:
            return 0
        written = 0
        count = len(self._states)
        stop = min(count, self._number + RUN_MESSAGES_MAX)
        while self._number < stop and size + written < SLICE_BYTES_MAX:
            session_id, state, updated_ms = self._states[self._number]
            fact = SessionStateSet(queue.entity_id, session_id, state, updated_ms)
            written += encode(fact, parts, 0)
            self._number += 1
        if self._number >= count:
            self._next_part()
            if queue.carried is not None:
                self._carried = queue.carried.all()
        self.census.kept_bytes += written
        return written

    def _keep_carried(self, queue: Queue, size: int, parts: list[bytes]) -> int:
        """Numbers that were carried into the entity, carrier by carrier, as of one moment."""
        if self._part != _CARRIED:
            return 0
        written = 0
        count = len(self._carried)
        while self._number < count and size + written < SLICE_BYTES_MAX:
            carrier, numbers = self._carried[self._number]
            written += encode(Carried(queue.entity_id, carrier, numbers), parts, 0)
            self._number += 1
        if self._number >= count:
            self._next_part()
            if queue.arrivals is not None:
                self._producers = queue.arrivals.producers()
        self.census.kept_bytes += written
        return written

    def _keep_arrivals(self, queue: Queue, size: int, parts: list[bytes]) -> int:
        """Numbers that have come, producer by producer; newer ones than at first do no harm."""
        if self._part != _ARRIVED:
            return 0
        written = 0
        count = len(self._producers)
        while self._number < count and size + written < SLICE_BYTES_MAX:
            producer = self._producers[self._number]
            bounds = [] if queue.arrivals is None else queue.arrivals.bounds_of(producer)
            if bounds:  # else it was forgotten meanwhile
                written += encode(Arrived(queue.entity_id, producer, bounds), parts, 0)
            self._number += 1
        if self._number >= count:
            self._next_entity()
        self.census.kept_bytes += written
        return written

    def _walk(self, queue: Queue, count: int, parts: list[bytes]) -> tuple[int, int]:
        """Up to `count` messages of one part; returns how many were seen and the bytes written.

        The queue shows only published messages.  A scheduled one that was activated a moment ago
        has a number above those, and none below any more.  So when we are past all numbers that
        existed at our start (`_first`), we look which number is the last by then (`_last`), and go
        on to that one; who is activated later has been seen.  (-1, 0): wait for a commit.
        """
        subqueue = self._part
        messages = queue.messages_from(subqueue, self._number, count)
        if messages:
            self._number = messages[-1].sequence_number + 1
        # What lies at or behind our place in the log, or is not written yet, will be replayed.
        kept = [m for m in messages if 0 < m.position < self._before]
        written = 0
        if kept:
            written = encode_placed(queue.entity_id, subqueue, kept, parts)
            self.census.count(kept)
            if self.victims:
                self._note_movable(queue.entity_id, kept)
        ended = len(messages) < count
        if self._last < 0 and (ended or self._number > self._first):
            self._last = queue.last_sequence_number
        if self._last >= 0:
            passed = self._number > self._last
            if subqueue != MAIN:
                if ended or passed:
                    self._next_part()
            elif passed or (ended and queue.published >= self._last):
                self._next_part()
            elif ended:
                return -1, 0
        return len(messages), written

    def _note_movable(self, entity_id: int, messages: list[Message]) -> None:
        victims = self.victims
        for message in messages:
            if message.position >> 32 in victims:
                self.movable.append((entity_id, message))

    def _next_part(self) -> None:
        self._part += 1
        self._number = 0

    def _next_entity(self) -> None:
        self._index += 1
        self._part = _ITSELF
        self._number = 0
        self._last = -1
        self._states = []
        self._carried = []
        self._producers = []


class SnapshotFile:
    """Writes `snapshot.tmp` and gives it its name.  Maintenance thread only."""

    def __init__(self, disk: Disk, salt: int, number: int, reserved: int, place: LogPlace) -> None:
        self._disk = disk
        self._salt = salt
        self._number = number
        self._frame = 1
        self._offset = SEGMENT_HEADER_BYTES
        self._reserved = reserved  # bytes that the file has room for already
        self._place = place
        self._file: File | None = None

    def write(self, parts: list[bytes]) -> None:
        """One slice; OSError ENOSPC when there is no room, and the snapshot is off."""
        if self._file is None:
            self._begin()
        self._append(b"".join(parts), RECORDS)

    def _begin(self) -> None:
        disk = self._disk
        if TEMPORARY_NAME in disk.names():
            self._file = disk.open(TEMPORARY_NAME)
        else:
            self._file = disk.create(TEMPORARY_NAME)
            self._reserved = 0
        header = Header(SNAPSHOT_MAGIC, self._number, self._salt, 0)
        header.log_segment = self._place.segment
        header.log_offset = self._place.offset
        header.log_frame = self._place.frame
        self._make_room(SEGMENT_HEADER_BYTES)
        self._file.write([header.encode()], 0)

    def _make_room(self, end: int) -> None:
        assert self._file is not None
        if end > self._reserved:
            wanted = max(end, self._reserved + SLICE_BYTES_MAX)
            try:
                self._file.reserve(wanted)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                wanted = end  # a disk that is nearly full may have room for what is needed
                self._file.reserve(wanted)
            self._reserved = wanted

    def _append(self, records: bytes, kind: int) -> None:
        assert self._file is not None
        frame = encode_frame(records, kind, self._salt, self._number, self._offset, self._frame)
        end = self._offset + sum(map(len, frame))
        self._make_room(end)
        self._file.write(frame, self._offset)
        self._offset = end
        self._frame += 1

    def finish(self, counters: Counters, old_numbers: list[int]) -> int:
        """Name it, durably, then let the older ones go.  Returns its size."""
        parts: list[bytes] = []
        encode(counters, parts, 0)
        self.write(parts)
        self._append(b"", SEAL)
        assert self._file is not None
        self._file.truncate(self._offset)
        self._file.sync()
        self._file.close()
        disk = self._disk
        disk.rename(TEMPORARY_NAME, snapshot_name(self._number))
        disk.sync_directory()
        for number in old_numbers:  # should one come back after a power cut, the newest counts
            disk.remove(snapshot_name(number))
        return self._offset

    def abandon(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
