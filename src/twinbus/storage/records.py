"""Records: facts as bytes.  One record is one fact; all numbers are little-endian.

A record has no checksum of its own: it lives in a frame (see `log.py`), and the frame has one.
Every record begins with the same twelve bytes:

    RECORD     0        1         2          3          4           8        12
               | kind:B | version:B | subqueue:B | reserved:B | entity_id:I | count:I |

`kind` says what follows, `version` which layout of that kind (all are 1 today), `count` how often
the repeated part occurs.  A kind's number is never used again for something else.  Kinds 1 to 9
are facts; 32 and up occur only in snapshots; the rest is free for topics, message sessions,
duplicate detection and transactions.

    STORED (1)           count × ( MESSAGE, session id, overlay, body )
    REMOVED (2)          count × sequence_number:Q
    LOCKED (3)           first_grant:Q, count × sequence_number:Q
    UNLOCKED (4)         UNLOCK, overlay                     count = 1
    DEAD_LETTERED (5)    DEATH, overlay                      count = 1
    ACTIVATED (6)        ACTIVATION                          count = 1
    ENTITY_CREATED (7)   ENTITY, kind, name, description     count = 1, UTF-8
    ENTITY_DELETED (8)   nothing                             count = 1
    PLACED (32)          count × ( MESSAGE, position:Q, session id, overlay )
    LAST_NUMBER (33)     sequence_number:Q                   count = 1
    COUNTERS (34)        next_grant:Q, next_entity_id:Q      count = 1

    MESSAGE    | sequence_number:Q | enqueued_ms:q | expires_ms:q | grant:Q |
               | length:I | delivery_count:I | session_length:H | state:B | flags:B | overlay_length:I |
    UNLOCK     | sequence_number:Q | delivery_count:I | overlay_length:I | state:Q |
    DEATH      | sequence_number:Q | delivery_count:I | overlay_length:I |
    ACTIVATION | sequence_number:Q | new_sequence_number:Q | enqueued_ms:q | expires_ms:q |
    ENTITY     | kind_length:H | name_length:H | description_length:I |
    OVERLAY    | present:I | then for each of reason, description, source, properties that is
               present (bits 0 to 3): length:I and that many bytes

Bit 0 of a message's `flags`: it has a session id.  An overlay of length 0 is no overlay.

Decoding trusts nothing but the frame's checksum: whatever does not fit exactly is `LogDamaged`
with the place, and never another exception.
"""

import struct
from typing import Final

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
from twinbus.entities.message import ACTIVE, GONE, NEVER_MS, SCHEDULED, Message, Overlay
from twinbus.errors import LogDamaged

VERSION: Final = 1

STORED: Final = 1
REMOVED: Final = 2
LOCKED: Final = 3
UNLOCKED: Final = 4
DEAD_LETTERED: Final = 5
ACTIVATED: Final = 6
ENTITY_CREATED: Final = 7
ENTITY_DELETED: Final = 8
PLACED: Final = 32
LAST_NUMBER: Final = 33
COUNTERS: Final = 34

SUBQUEUE_MAX: Final = 2
HAS_SESSION: Final = 1

RECORD: Final = struct.Struct("<BBBBII")
MESSAGE: Final = struct.Struct("<QqqQIIHBBI")
UNLOCK: Final = struct.Struct("<QIIQ")
DEATH: Final = struct.Struct("<QII")
ACTIVATION: Final = struct.Struct("<QQqq")
ENTITY: Final = struct.Struct("<HHI")
OVERLAY: Final = struct.Struct("<I")
NUMBER: Final = struct.Struct("<Q")
PAIR: Final = struct.Struct("<QQ")

RECORD_SIZE: Final = RECORD.size
MESSAGE_SIZE: Final = MESSAGE.size
NUMBER_SIZE: Final = NUMBER.size

Parts = list[bytes]


class LastNumber(Fact):
    """Snapshots only: the highest sequence number an entity has given out."""

    __slots__ = ("sequence_number",)

    def __init__(self, entity_id: int, sequence_number: int) -> None:
        super().__init__(entity_id)
        self.sequence_number = sequence_number


class Counters(Fact):
    """Snapshots only: the store's own counters; the last record of a snapshot."""

    __slots__ = ("next_entity_id", "next_grant")

    def __init__(self, next_grant: int, next_entity_id: int) -> None:
        super().__init__(0)
        self.next_grant = next_grant
        self.next_entity_id = next_entity_id


# --- encoding ---------------------------------------------------------------------------------


def encode(fact: Fact, parts: Parts, position: int) -> int:
    """Append the fact's bytes to `parts`; they will lie at `position`.  Returns their size.

    Tells the messages of a `Stored` where their bodies lie from now on.
    """
    if isinstance(fact, Stored):
        return _encode_stored(fact, parts, position)
    if isinstance(fact, Removed):
        numbers = fact.sequence_numbers
        count = len(numbers)
        parts.append(
            struct.pack(
                f"<BBBBII{count}Q",
                REMOVED,
                VERSION,
                fact.subqueue,
                0,
                fact.entity_id,
                count,
                *numbers,
            )
            if count > 1
            else _ONE_REMOVED.pack(
                REMOVED, VERSION, fact.subqueue, 0, fact.entity_id, count, numbers[0]
            )
        )
        return RECORD_SIZE + NUMBER_SIZE * count
    if isinstance(fact, Locked):
        numbers = fact.sequence_numbers
        count = len(numbers)
        parts.append(
            struct.pack(
                f"<BBBBIIQ{count}Q",
                LOCKED,
                VERSION,
                fact.subqueue,
                0,
                fact.entity_id,
                count,
                fact.first_grant,
                *numbers,
            )
        )
        return RECORD_SIZE + NUMBER_SIZE * (count + 1)
    data = _encode_rare(fact)
    parts.append(data)
    return len(data)


_ONE_REMOVED: Final = struct.Struct("<BBBBIIQ")


def _encode_stored(fact: Stored, parts: Parts, position: int) -> int:
    messages = fact.messages
    append = parts.append
    pack = MESSAGE.pack
    append(RECORD.pack(STORED, VERSION, fact.subqueue, 0, fact.entity_id, len(messages)))
    at = position + RECORD_SIZE
    for message in messages:
        body = message.body
        length = message.length
        # A body that is on its way to the disk is never out of memory; a wrong length would make
        # every following record unreadable.
        if body is None or len(body) != length:
            raise ValueError("a message to store needs its body, and the length of it")
        state = message.state
        if state == GONE:  # ended in the very turn that stored it; the fact that says so follows
            state = ACTIVE
        if message.session_id is None and message.overlay is None:
            append(
                pack(
                    message.sequence_number,
                    message.enqueued_ms,
                    message.expires_ms,
                    message.grant,
                    length,
                    message.delivery_count,
                    0,
                    state,
                    0,
                    0,
                )
            )
            at += MESSAGE_SIZE
        else:
            extra = _encode_message(message, state, -1)
            append(extra)
            at += len(extra)
        append(body)
        message.position = at
        at += length
    return at - position


def _encode_message(message: Message, state: int, position: int) -> bytes:
    """MESSAGE with session id and overlay; with the position unless that is negative."""
    session_id = message.session_id
    session = b"" if session_id is None else session_id.encode()
    overlay = b"" if message.overlay is None else encode_overlay(message.overlay)
    head = MESSAGE.pack(
        message.sequence_number,
        message.enqueued_ms,
        message.expires_ms,
        message.grant,
        message.length,
        message.delivery_count,
        len(session),
        state,
        0 if session_id is None else HAS_SESSION,
        len(overlay),
    )
    if position < 0:
        return head + session + overlay
    return head + NUMBER.pack(position) + session + overlay


def encode_overlay(overlay: Overlay) -> bytes:
    """An overlay's fields, the present ones only."""
    fields = (
        None if overlay.reason is None else overlay.reason.encode(),
        None if overlay.description is None else overlay.description.encode(),
        None if overlay.source is None else overlay.source.encode(),
        overlay.properties,
    )
    present = 0
    parts = []
    for bit, field in enumerate(fields):
        if field is not None:
            present |= 1 << bit
            parts.append(OVERLAY.pack(len(field)))
            parts.append(field)
    return OVERLAY.pack(present) + b"".join(parts)


def _head(kind: int, subqueue: int, entity_id: int) -> bytes:
    return RECORD.pack(kind, VERSION, subqueue, 0, entity_id, 1)


def _encode_rare(fact: Fact) -> bytes:
    if isinstance(fact, Unlocked):
        overlay = b"" if fact.overlay is None else encode_overlay(fact.overlay)
        body = UNLOCK.pack(fact.sequence_number, fact.delivery_count, len(overlay), fact.state)
        return _head(UNLOCKED, fact.subqueue, fact.entity_id) + body + overlay
    if isinstance(fact, DeadLettered):
        overlay = encode_overlay(fact.overlay)
        body = DEATH.pack(fact.sequence_number, fact.delivery_count, len(overlay))
        return _head(DEAD_LETTERED, 0, fact.entity_id) + body + overlay
    if isinstance(fact, Activated):
        return _head(ACTIVATED, 0, fact.entity_id) + ACTIVATION.pack(
            fact.sequence_number, fact.new_sequence_number, fact.enqueued_ms, fact.expires_ms
        )
    if isinstance(fact, EntityCreated):
        kind, name = fact.kind.encode(), fact.name.encode()
        description = fact.description.encode()
        lengths = ENTITY.pack(len(kind), len(name), len(description))
        return _head(ENTITY_CREATED, 0, fact.entity_id) + lengths + kind + name + description
    if isinstance(fact, EntityDeleted):
        return _head(ENTITY_DELETED, 0, fact.entity_id)
    if isinstance(fact, LastNumber):
        return _head(LAST_NUMBER, 0, fact.entity_id) + NUMBER.pack(fact.sequence_number)
    if isinstance(fact, Counters):
        return _head(COUNTERS, 0, 0) + PAIR.pack(fact.next_grant, fact.next_entity_id)
    raise TypeError(f"no record for {type(fact).__name__}")


def encode_placed(entity_id: int, subqueue: int, messages: list[Message], parts: Parts) -> int:
    """Snapshots: where messages stand and where their bodies lie.  Returns the size."""
    head = RECORD.pack(PLACED, VERSION, subqueue, 0, entity_id, len(messages))
    parts.append(head)
    size = len(head)
    append = parts.append
    pack = _PLACED.pack
    for message in messages:
        if message.session_id is None and message.overlay is None:
            append(
                pack(
                    message.sequence_number,
                    message.enqueued_ms,
                    message.expires_ms,
                    message.grant,
                    message.length,
                    message.delivery_count,
                    0,
                    message.state,
                    0,
                    0,
                    message.position,
                )
            )
            size += MESSAGE_SIZE + NUMBER_SIZE
        else:
            data = _encode_message(message, message.state, message.position)
            append(data)
            size += len(data)
    return size


_PLACED: Final = struct.Struct("<QqqQIIHBBIQ")


# --- decoding ---------------------------------------------------------------------------------


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
        # Equal numbers of neighbours become one object: it is a third of a waiting message's memory.
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
