"""Records: facts as bytes.  One record is one fact; all numbers are little-endian.

A record has no checksum of its own: it lives in a frame (see `log.py`), and the frame has one.
Every record begins with the same twelve bytes:

    RECORD     0        1         2          3          4           8        12
               | kind:B | version:B | subqueue:B | reserved:B | entity_id:I | count:I |

`kind` says what follows, `version` which layout of that kind (all are 1 today), `count` how often
the repeated part occurs.  A kind's number is never used again for something else.  Kinds 1 to 14
are facts; 32 and up occur only in snapshots, but for 33.

    STORED (1)           count × ( MESSAGE, session id, overlay, body )
    REMOVED (2)          count × sequence_number:Q
    LOCKED (3)           first_grant:Q, count × sequence_number:Q
    UNLOCKED (4)         UNLOCK, overlay                     count = 1
    DEAD_LETTERED (5)    DEATH, overlay                      count = 1
    ACTIVATED (6)        ACTIVATION                          count = 1
    ENTITY_CREATED (7)   ENTITY, kind, name, description     count = 1, UTF-8
    ENTITY_DELETED (8)   nothing                             count = 1
    SESSION_STATE (9)    STATE, session id, state            count = 1
    IDS_SEEN (10)        seen_ms:q, count × digest:16s
    FANNED_OUT (11)      FAN, body, count × ( subscription_id:I, MESSAGE, session id, overlay )
    RESCHEDULED (12)     DELAY, overlay                      count = 1
    CARRIED (13)         carrier_length:I, carrier, count × number:Q
    ARRIVED (14)         producer_length:I, producer, count × ( first:Q, end:Q )
    PLACED (32)          count × ( MESSAGE, position:Q, session id, overlay )
    LAST_NUMBER (33)     sequence_number:Q                   count = 1
    COUNTERS (34)        next_grant:Q, next_entity_id:Q      count = 1
    IDS_KEPT (35)        count × ( digest:16s, seen_ms:6s )

    MESSAGE    | sequence_number:Q | enqueued_ms:q | expires_ms:q | grant:Q |
               | length:I | delivery_count:I | session_length:H | state:B | flags:B |
               | overlay_length:I |
    UNLOCK     | sequence_number:Q | delivery_count:I | overlay_length:I | state:Q |
    DEATH      | sequence_number:Q | delivery_count:I | overlay_length:I |
    ACTIVATION | sequence_number:Q | new_sequence_number:Q | enqueued_ms:q | expires_ms:q |
    ENTITY     | kind_length:H | name_length:H | description_length:I |
    STATE      | updated_ms:q | state_length:I | session_length:H | present:H |
    FAN        | sequence_number:Q | length:I |
    DELAY      | sequence_number:Q | due_ms:q | delivery_count:I | overlay_length:I |
    OVERLAY    | present:I | then for each of reason, description, source, properties that is
               present (bits 0 to 3): length:I and that many bytes; then for each of hop count and
               enqueued sequence number that is not 0 (bits 4 and 5): number:Q

Bit 0 of a message's `flags`: it has a session id.  An overlay of length 0 is no overlay.  The
subqueue of a DEAD_LETTERED is where the message went; 0, as the first versions wrote it, is the
dead-letter queue.  Facts that are true only together have no record: they share a frame.

Here facts become bytes; `decoder.py` is the way back.
"""

import struct
from typing import Final

from twinbus.entities.duplicates import DIGEST_SIZE, ENTRY_SIZE
from twinbus.entities.facts import (
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
    Together,
    Unlocked,
)
from twinbus.entities.message import ACTIVE, GONE, Message, Overlay

VERSION: Final = 1

STORED: Final = 1
REMOVED: Final = 2
LOCKED: Final = 3
UNLOCKED: Final = 4
DEAD_LETTERED: Final = 5
ACTIVATED: Final = 6
ENTITY_CREATED: Final = 7
ENTITY_DELETED: Final = 8
SESSION_STATE: Final = 9
IDS_SEEN: Final = 10
FANNED_OUT: Final = 11
RESCHEDULED: Final = 12
CARRIED: Final = 13
ARRIVED: Final = 14
PLACED: Final = 32
LAST_NUMBER: Final = 33
COUNTERS: Final = 34
IDS_KEPT: Final = 35

SUBQUEUE_MAX: Final = 2
HAS_SESSION: Final = 1
HAS_HOP_COUNT: Final = 16
HAS_ENQUEUED_NUMBER: Final = 32
OVERLAY_FIELDS: Final = 63

RECORD: Final = struct.Struct("<BBBBII")
MESSAGE: Final = struct.Struct("<QqqQIIHBBI")
UNLOCK: Final = struct.Struct("<QIIQ")
DEATH: Final = struct.Struct("<QII")
ACTIVATION: Final = struct.Struct("<QQqq")
ENTITY: Final = struct.Struct("<HHI")
STATE: Final = struct.Struct("<qIHH")
FAN: Final = struct.Struct("<QI")
DELAY: Final = struct.Struct("<QqII")
TIME: Final = struct.Struct("<q")
ID: Final = struct.Struct("<I")
OVERLAY: Final = struct.Struct("<I")
NUMBER: Final = struct.Struct("<Q")
PAIR: Final = struct.Struct("<QQ")

RECORD_SIZE: Final = RECORD.size
MESSAGE_SIZE: Final = MESSAGE.size
NUMBER_SIZE: Final = NUMBER.size

Parts = list[bytes]


class Counters(Fact):
    """Snapshots only: the store's own counters; the last record of a snapshot."""

    __slots__ = ("next_entity_id", "next_grant")

    def __init__(self, next_grant: int, next_entity_id: int) -> None:
        super().__init__(0)
        self.next_grant = next_grant
        self.next_entity_id = next_entity_id


class IdsKept(Fact):
    """Snapshots only: a piece of a duplicate history, as the history keeps it."""

    __slots__ = ("entries",)

    def __init__(self, entity_id: int, entries: bytes) -> None:
        super().__init__(entity_id)
        self.entries = entries


def kept_bytes(fact: Fact) -> int:
    """What a fact may add to the next snapshot beside messages: a session's state, ids, numbers."""
    if isinstance(fact, IdsSeen):
        return len(fact.digests) // DIGEST_SIZE * ENTRY_SIZE
    if isinstance(fact, IdsKept):
        return len(fact.entries)
    if isinstance(fact, SessionStateSet):
        return RECORD_SIZE + STATE.size + len(fact.session_id) + len(fact.state or b"")
    if isinstance(fact, Carried):
        return RECORD_SIZE + ID.size + 4 * len(fact.carrier) + NUMBER_SIZE * len(fact.numbers)
    if isinstance(fact, Arrived):  # a known producer's, as a rule, and next to what has come
        return NUMBER_SIZE * len(fact.bounds)
    return 0


def encode(fact: Fact, parts: Parts, position: int) -> int:
    """Append the fact's bytes to `parts`; they will lie at `position`.  Returns their size.

    Tells the messages of a `Stored` or `FannedOut` where their bodies lie from now on.
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
    if isinstance(fact, Together):
        size = 0
        for each in fact.facts:
            size += encode(each, parts, position + size)
        return size
    if isinstance(fact, Arrived):
        return _encode_arrived(fact, parts)
    if isinstance(fact, FannedOut):
        return _encode_fanned_out(fact, parts, position)
    data = _encode_rare(fact)
    parts.append(data)
    return len(data)


_ONE_REMOVED: Final = struct.Struct("<BBBBIIQ")


_ONE_STORED: Final = struct.Struct("<BBBBIIQqqQIIHBBI")
ONE_STORED_SIZE: Final = _ONE_STORED.size


def _encode_stored(fact: Stored, parts: Parts, position: int) -> int:
    messages = fact.messages
    if len(messages) == 1:
        message = messages[0]
        body = message.body
        if (
            message.session_id is None
            and message.overlay is None
            and message.state != GONE
            and body is not None
            and len(body) == message.length
        ):
            # The most frequent record by far: a plain message sent alone takes one call.
            head = _ONE_STORED.pack(
                STORED,
                VERSION,
                fact.subqueue,
                0,
                fact.entity_id,
                1,
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
            )
            parts.append(head)
            parts.append(body)
            message.position = position + ONE_STORED_SIZE
            return ONE_STORED_SIZE + message.length
    return _encode_many(fact, parts, position)


def _encode_many(fact: Stored, parts: Parts, position: int) -> int:
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


_ARRIVED_HEAD: Final = struct.Struct("<BBBBIII")
_ONE_RUN: Final = struct.Struct("<QQ")


def _encode_arrived(fact: Arrived, parts: Parts) -> int:
    bounds = fact.bounds
    count = len(bounds)
    producer = fact.producer.encode()
    runs = _ONE_RUN.pack(bounds[0], bounds[1]) if count == 2 else struct.pack(f"<{count}Q", *bounds)
    head = _ARRIVED_HEAD.pack(ARRIVED, VERSION, 0, 0, fact.entity_id, count // 2, len(producer))
    data = head + producer + runs
    parts.append(data)
    return len(data)


def _encode_fanned_out(fact: FannedOut, parts: Parts, position: int) -> int:
    messages = fact.messages
    body = messages[0].body
    length = messages[0].length
    if body is None or len(body) != length:
        raise ValueError("a message to fan out needs its body, and the length of it")
    parts.append(
        RECORD.pack(FANNED_OUT, VERSION, 0, 0, fact.entity_id, len(messages))
        + FAN.pack(fact.sequence_number, length)
    )
    parts.append(body)
    body_at = position + RECORD_SIZE + FAN.size
    size = RECORD_SIZE + FAN.size + length
    for subscription_id, message in zip(fact.subscription_ids, messages, strict=True):
        if message.length != length:
            raise ValueError("messages that share a body have its length")
        message.position = body_at
        state = ACTIVE if message.state == GONE else message.state
        data = ID.pack(subscription_id) + _encode_message(message, state, -1)
        parts.append(data)
        size += len(data)
    return size


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
    if overlay.hop_count:
        present |= HAS_HOP_COUNT
        parts.append(NUMBER.pack(overlay.hop_count))
    if overlay.enqueued_sequence_number:
        present |= HAS_ENQUEUED_NUMBER
        parts.append(NUMBER.pack(overlay.enqueued_sequence_number))
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
        return _head(DEAD_LETTERED, fact.subqueue, fact.entity_id) + body + overlay
    if isinstance(fact, Activated):
        return _head(ACTIVATED, 0, fact.entity_id) + ACTIVATION.pack(
            fact.sequence_number, fact.new_sequence_number, fact.enqueued_ms, fact.expires_ms
        )
    if isinstance(fact, Rescheduled):
        overlay = b"" if fact.overlay is None else encode_overlay(fact.overlay)
        body = DELAY.pack(fact.sequence_number, fact.due_ms, fact.delivery_count, len(overlay))
        return _head(RESCHEDULED, 0, fact.entity_id) + body + overlay
    if isinstance(fact, SessionStateSet):
        session, state = fact.session_id.encode(), fact.state
        present = 0 if state is None else 1
        state = state or b""
        body = STATE.pack(fact.updated_ms, len(state), len(session), present)
        return _head(SESSION_STATE, 0, fact.entity_id) + body + session + state
    if isinstance(fact, IdsSeen):
        count = len(fact.digests) // DIGEST_SIZE
        head = RECORD.pack(IDS_SEEN, VERSION, 0, 0, fact.entity_id, count)
        return head + TIME.pack(fact.seen_ms) + fact.digests
    if isinstance(fact, Carried):
        count = len(fact.numbers)
        carrier = fact.carrier.encode()
        head = RECORD.pack(CARRIED, VERSION, 0, 0, fact.entity_id, count)
        return head + ID.pack(len(carrier)) + carrier + struct.pack(f"<{count}Q", *fact.numbers)
    return _encode_store_fact(fact)


def _encode_store_fact(fact: Fact) -> bytes:
    """What the store itself states: about entities, and in snapshots."""
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
    if isinstance(fact, IdsKept):
        count = len(fact.entries) // ENTRY_SIZE
        return RECORD.pack(IDS_KEPT, VERSION, 0, 0, fact.entity_id, count) + fact.entries
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
