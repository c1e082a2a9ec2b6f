"""The decoder: bytes of a frame back to facts.  The layout is drawn in `records.py`.

It trusts nothing but the frame's checksum: whatever does not fit exactly is `LogDamaged` with the
place, and never another exception.  Bodies stay on disk; a message only learns where.
"""

import struct

from twinbus.entities.duplicates import DIGEST_SIZE, ENTRY_SIZE
from twinbus.entities.facts import (
    DEAD_LETTER,
    Activated,
    Arrived,
    Carried,
    DeadLettered,
    EntityCreated,
    EntityDeleted,
    Fact,
    FannedOut,
    IdsSeen,
    LastNumber,
    Locked,
    Removed,
    Rescheduled,
    SessionStateSet,
    Stored,
    Unlocked,
)
from twinbus.entities.message import NEVER_MS, SCHEDULED, Message, Overlay
from twinbus.errors import LogDamaged
from twinbus.storage.records import (
    ACTIVATED,
    ACTIVATION,
    ARRIVED,
    CARRIED,
    COUNTERS,
    DEAD_LETTERED,
    DEATH,
    DELAY,
    ENTITY,
    ENTITY_CREATED,
    ENTITY_DELETED,
    FAN,
    FANNED_OUT,
    HAS_ENQUEUED_NUMBER,
    HAS_HOP_COUNT,
    HAS_SESSION,
    ID,
    IDS_KEPT,
    IDS_SEEN,
    LAST_NUMBER,
    LOCKED,
    MESSAGE,
    MESSAGE_SIZE,
    NUMBER,
    NUMBER_SIZE,
    OVERLAY,
    OVERLAY_FIELDS,
    PLACED,
    RECORD,
    RECORD_SIZE,
    REMOVED,
    RESCHEDULED,
    SESSION_STATE,
    STATE,
    STORED,
    SUBQUEUE_MAX,
    TIME,
    UNLOCK,
    UNLOCKED,
    VERSION,
    Counters,
    IdsKept,
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
        if kind == IDS_SEEN:
            seen_ms: int = TIME.unpack_from(data, self._at)[0]
            self._at += TIME.size
            return IdsSeen(entity_id, seen_ms, self._bytes(count * DIGEST_SIZE))
        if kind == IDS_KEPT:
            return IdsKept(entity_id, self._bytes(count * ENTRY_SIZE))
        if kind == FANNED_OUT:
            return self._fanned_out(entity_id, count)
        if kind == CARRIED:
            carrier = self._name()
            return Carried(entity_id, carrier, self._numbers(count))
        if kind == ARRIVED:
            producer = self._name()
            return Arrived(entity_id, producer, self._bounds(count))
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
            return DeadLettered(entity_id, number, delivery_count, reasons, subqueue or DEAD_LETTER)
        if kind == ACTIVATED:
            number, new_number, enqueued_ms, expires_ms = ACTIVATION.unpack_from(data, self._at)
            self._at += ACTIVATION.size
            return Activated(entity_id, number, new_number, enqueued_ms, expires_ms)
        if kind == RESCHEDULED:
            number, due_ms, delivery_count, length = DELAY.unpack_from(data, self._at)
            self._at += DELAY.size
            return Rescheduled(entity_id, number, delivery_count, due_ms, self._overlay(length))
        if kind == SESSION_STATE:
            return self._session_state(entity_id, start)
        return self._store_fact(kind, entity_id, start)

    def _store_fact(self, kind: int, entity_id: int, start: int) -> Fact:
        """What the store itself states: about entities, and in snapshots."""
        if kind == ENTITY_CREATED:
            kind_length, name_length, description_length = ENTITY.unpack_from(self._data, self._at)
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

    def _session_state(self, entity_id: int, start: int) -> SessionStateSet:
        updated_ms, length, session_length, present = STATE.unpack_from(self._data, self._at)
        if present > 1 or (length and not present):
            raise self._damaged(start, "a session state that is neither there nor not")
        self._at += STATE.size
        session_id = self._bytes(session_length).decode()
        state = self._bytes(length) if present else None
        return SessionStateSet(entity_id, session_id, state, updated_ms)

    def _fanned_out(self, entity_id: int, count: int) -> FannedOut:
        start = self._at
        sequence_number, length = FAN.unpack_from(self._data, start)
        body_at = start + FAN.size
        self._at = body_at + length
        subscription_ids: list[int] = []
        messages: list[Message] = []
        for _ in range(count):
            subscription_ids.append(ID.unpack_from(self._data, self._at)[0])
            self._at += ID.size
            message = self._message()
            if message.length != length:
                raise self._damaged(start, "a message that does not fit its shared body")
            message.length = length  # the same object for all: they are many
            message.position = self._position + body_at
            messages.append(message)
        return FannedOut(entity_id, sequence_number, subscription_ids, messages)

    def _message(self) -> Message:
        """MESSAGE, session id and overlay, where a body is not next to them."""
        at = self._at
        (
            number,
            enqueued_ms,
            expires_ms,
            grant,
            length,
            count,
            session_length,
            state,
            flags,
            more,
        ) = MESSAGE.unpack_from(self._data, at)
        if state > SCHEDULED or flags > HAS_SESSION:
            raise self._damaged(at, f"message state {state}, flags {flags}")
        self._at = at + MESSAGE_SIZE
        message = Message(number, None, length, enqueued_ms, expires_ms, None, state)
        if session_length or flags:
            message.session_id = self._session_id(session_length, flags)
        message.overlay = self._overlay(more)
        message.grant = grant
        message.delivery_count = count
        return message

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

    def _bounds(self, count: int) -> list[int]:
        """Where runs of numbers begin and have ended; every one is above the one before."""
        start = self._at
        bounds = self._numbers(2 * count)
        for at in range(1, len(bounds)):
            if bounds[at - 1] >= bounds[at]:
                raise self._damaged(start, "runs of numbers that are not in order")
        return bounds

    def _name(self) -> str:
        length: int = ID.unpack_from(self._data, self._at)[0]
        self._at += ID.size
        return self._bytes(length).decode()

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
        if present > OVERLAY_FIELDS:
            raise self._damaged(start, "an overlay with unknown fields")
        fields: list[bytes | None] = [None, None, None, None]
        for bit in range(4):
            if present & (1 << bit):
                size: int = OVERLAY.unpack_from(self._data, self._at)[0]
                self._at += OVERLAY.size
                fields[bit] = self._bytes(size)
        hop_count = self._number() if present & HAS_HOP_COUNT else 0
        enqueued_number = self._number() if present & HAS_ENQUEUED_NUMBER else 0
        if self._at != end:
            raise self._damaged(start, "an overlay of the wrong length")
        reason, description, source, properties = fields
        return Overlay(
            None if reason is None else reason.decode(),
            None if description is None else description.decode(),
            None if source is None else source.decode(),
            properties,
            hop_count,
            enqueued_number,
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
