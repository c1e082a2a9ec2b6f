"""The decoder: bytes of a frame back to facts.  The layout is drawn in `records.py`.

It trusts nothing but the frame's checksum: whatever does not fit exactly is `LogDamaged` with the
place, and never another exception.  Bodies stay on disk; a message only learns where.
"""

import struct

from twinbus.entities.facts import (
    Activated,
    DeadLettered,
    EntityCreated,
    EntityDeleted,
    Fact,
    Locked,
    Removed,
    Stored,
    Unlocked,
)
from twinbus.entities.message import NEVER_MS, SCHEDULED, Message, Overlay
from twinbus.errors import LogDamaged
from twinbus.storage.records import (
    ACTIVATED,
    ACTIVATION,
    COUNTERS,
    DEAD_LETTERED,
    DEATH,
    ENTITY,
    ENTITY_CREATED,
    ENTITY_DELETED,
    HAS_SESSION,
    LAST_NUMBER,
    LOCKED,
    MESSAGE,
    MESSAGE_SIZE,
    NUMBER,
    NUMBER_SIZE,
    OVERLAY,
    PLACED,
    RECORD,
    RECORD_SIZE,
    REMOVED,
    STORED,
    SUBQUEUE_MAX,
    UNLOCK,
    UNLOCKED,
    VERSION,
    Counters,
    LastNumber,
)


class Decoder:
    """Reads the records of one frame.  `base` is where the first of them lies in the file."""

    __slots__ = ("_at", "_base", "_data", "_path", "_position")

    def __init__(self, data: bytes, path: str, base: int, number: int) -> None:
        self._data = data
        self._path = path
        self._base = base
        self._position = (number << 32) + base  # as messages hold it: of byte 0 of `data`
        self._at = 0

    def facts(self) -> list[Fact]:
        """All facts of the frame, in order."""
        facts: list[Fact] = []
        size = len(self._data)
        while self._at < size:
            start = self._at
            try:
                facts.append(self._fact())
            except (struct.error, UnicodeDecodeError):
                raise self._damaged(start, "a record that cannot be read") from None
        return facts

    def _damaged(self, at: int, reason: str) -> LogDamaged:
        return LogDamaged(self._path, self._base + at, reason)

    def _fact(self) -> Fact:
        data = self._data
        start = self._at
        kind, version, subqueue, reserved, entity_id, count = RECORD.unpack_from(data, start)
        if version != VERSION or reserved != 0 or subqueue > SUBQUEUE_MAX or count == 0:
            raise self._damaged(start, f"record of kind {kind} with a head that cannot be")
        self._at = start + RECORD_SIZE
        if kind == STORED:
            return Stored(entity_id, subqueue, self._messages(count, False))
        if kind == REMOVED:
            return Removed(entity_id, subqueue, self._numbers(count))
        if kind == LOCKED:
            first_grant = self._number()
            return Locked(entity_id, subqueue, first_grant, self._numbers(count))
        if kind == PLACED:
            return Stored(entity_id, subqueue, self._messages(count, True))
        if count != 1:
            raise self._damaged(start, f"record of kind {kind} occurs {count} times at once")
        return self._rare(kind, subqueue, entity_id, start)

    def _rare(self, kind: int, subqueue: int, entity_id: int, start: int) -> Fact:
        data = self._data
        if kind == UNLOCKED:
            number, delivery_count, length, state = UNLOCK.unpack_from(data, self._at)
            if state > SCHEDULED:
                raise self._damaged(start, f"message state {state}")
            self._at += UNLOCK.size
            overlay = self._overlay(length)
            return Unlocked(entity_id, subqueue, number, delivery_count, state, overlay)
        if kind == DEAD_LETTERED:
            number, delivery_count, length = DEATH.unpack_from(data, self._at)
            self._at += DEATH.size
            reasons = self._overlay(length)
            if reasons is None:
                raise self._damaged(start, "dead-lettered without an overlay")
            return DeadLettered(entity_id, number, delivery_count, reasons)
        if kind == ACTIVATED:
            number, new_number, enqueued_ms, expires_ms = ACTIVATION.unpack_from(data, self._at)
            self._at += ACTIVATION.size
            return Activated(entity_id, number, new_number, enqueued_ms, expires_ms)
        if kind == ENTITY_CREATED:
            kind_length, name_length, description_length = ENTITY.unpack_from(data, self._at)
            self._at += ENTITY.size
            entity_kind = self._bytes(kind_length).decode()
            name = self._bytes(name_length).decode()
            return EntityCreated(
                entity_id, entity_kind, name, self._bytes(description_length).decode()
            )
        if kind == ENTITY_DELETED:
            return EntityDeleted(entity_id)
        if kind == LAST_NUMBER:
            return LastNumber(entity_id, self._number())
        if kind == COUNTERS:
            next_grant = self._number()
            return Counters(next_grant, self._number())
        raise self._damaged(start, f"record of unknown kind {kind}")

    def _number(self) -> int:
        number: int = NUMBER.unpack_from(self._data, self._at)[0]
        self._at += NUMBER_SIZE
        return number

    def _numbers(self, count: int) -> list[int]:
        # The bound before the allocation: a count is only believed if its bytes are there.
        if count * NUMBER_SIZE > len(self._data) - self._at:
            raise self._damaged(self._at, f"{count} numbers do not fit into the frame")
        numbers = struct.unpack_from(f"<{count}Q", self._data, self._at)
        self._at += count * NUMBER_SIZE
        return list(numbers)

    def _bytes(self, length: int) -> bytes:
        start = self._at
        end = start + length
        if end > len(self._data):
            raise self._damaged(start, f"{length} bytes do not fit into the frame")
        self._at = end
        return self._data[start:end]

    def _overlay(self, length: int) -> Overlay | None:
        if length == 0:
            return None
        start = self._at
        end = start + length
        present: int = OVERLAY.unpack_from(self._data, start)[0]
        self._at = start + OVERLAY.size
        if present > 15:
            raise self._damaged(start, "an overlay with unknown fields")
        fields: list[bytes | None] = [None, None, None, None]
        for bit in range(4):
            if present & (1 << bit):
                size: int = OVERLAY.unpack_from(self._data, self._at)[0]
                self._at += OVERLAY.size
                fields[bit] = self._bytes(size)
        if self._at != end:
            raise self._damaged(start, "an overlay of the wrong length")
        reason, description, source, properties = fields
        return Overlay(
            None if reason is None else reason.decode(),
            None if description is None else description.decode(),
            None if source is None else source.decode(),
            properties,
        )

    def _messages(self, count: int, placed: bool) -> list[Message]:
        data = self._data
        size = len(data)
        unpack = MESSAGE.unpack_from
        messages: list[Message] = []
        # Equal numbers of neighbours become one object: memory of a waiting message counts.
        last_enqueued_ms = 0
        last_length = 0
        for _ in range(count):
            at = self._at
            (
                sequence_number,
                enqueued_ms,
                expires_ms,
                grant,
                length,
                delivery_count,
                session_length,
                state,
                flags,
                overlay_length,
            ) = unpack(data, at)
            if state > SCHEDULED or flags > HAS_SESSION:
                raise self._damaged(at, f"message state {state}, flags {flags}")
            if enqueued_ms == last_enqueued_ms:
                enqueued_ms = last_enqueued_ms
            else:
                last_enqueued_ms = enqueued_ms
            if length == last_length:
                length = last_length
            else:
                last_length = length
            if expires_ms == NEVER_MS:
                expires_ms = NEVER_MS
            message = Message(sequence_number, None, length, enqueued_ms, expires_ms, None, state)
            at += MESSAGE_SIZE
            if placed:
                message.position = NUMBER.unpack_from(data, at)[0]
                at += NUMBER_SIZE
            self._at = at
            if session_length or flags:
                message.session_id = self._session_id(session_length, flags)
            if overlay_length:
                message.overlay = self._overlay(overlay_length)
            if not placed:
                at = self._at
                message.position = self._position + at
                at += length
                if at > size:
                    raise self._damaged(self._at, f"a body of {length} bytes does not fit")
                self._at = at
            message.grant = grant
            message.delivery_count = delivery_count
            messages.append(message)
        return messages

    def _session_id(self, length: int, flags: int) -> str:
        if not flags & HAS_SESSION:
            raise self._damaged(self._at, "a session id without its flag")
        return self._bytes(length).decode()
