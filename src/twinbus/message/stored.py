"""The stored form of a message, and what is put in front of it on delivery.

    ┌─────────┬───────┬──────────┬────────────────┬────────────────┬──────┬─────────────┬──────┐
    │ version │ flags │ priority │ elements       │ bytes          │ ttl  │ annotations │ bare │
    │ 1       │ 1     │ 1        │ of annotations │ of annotations │ ms   │             │      │
    │         │       │          │ 4              │ 4              │ 8    │             │      │
    └─────────┴───────┴──────────┴────────────────┴────────────────┴──────┴─────────────┴──────┘
    flags: bit 0 = durable.  ttl: -1 = none.  annotations: the sender's message annotations without
    the ones only a broker may set, as raw keys and values.  bare: properties, application
    properties, body, footer, exactly as they were sent.

Storage keeps these bytes without looking into them.  A delivery is a new header and annotations,
packed, then `bare` untouched; the body is never decoded.
"""

from struct import Struct
from typing import Final

from twinbus.amqp.decoding import decode_error, skip_within
from twinbus.amqp.encoding import encode_string, encode_symbol, encode_uint, encode_value
from twinbus.amqp.types import Int
from twinbus.errors import RemoteProtocolError
from twinbus.message import wire_names
from twinbus.message.sections import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    descriptor,
    encode_map_section,
    map_entries,
)

_VERSION: Final = 1
_DURABLE: Final = 1
_HEAD: Final = Struct(">BBBIIq")
STORED_HEAD_BYTES: Final = _HEAD.size

_PROPERTIES: Final = descriptor(PROPERTIES)
_APPLICATION_PROPERTIES: Final = descriptor(APPLICATION_PROPERTIES)

TTL_UINT_MAX: Final = 0xFFFF_FFFF

# What only a broker may say about a message; a sender's claims are dropped.
BROKER_ANNOTATIONS: Final = frozenset(name.encode() for name in wire_names.BROKER_ANNOTATIONS)
_SEQUENCE_NUMBER_KEY: Final = encode_symbol(wire_names.SEQUENCE_NUMBER) + b"\x81"
_ENQUEUED_TIME_KEY: Final = encode_symbol(wire_names.ENQUEUED_TIME) + b"\x83"
_LOCKED_UNTIL_KEY: Final = encode_symbol(wire_names.LOCKED_UNTIL) + b"\x83"
_ENQUEUE_SEQUENCE_NUMBER_KEY: Final = encode_symbol(wire_names.ENQUEUE_SEQUENCE_NUMBER) + b"\x81"

# The end of the header (first-acquirer, delivery-count), then the annotations: a map32, whose size
# and count leave room for the sender's own, which follow in the stored form.
_BROKER: Final = Struct(
    f">BBI4sII{len(_SEQUENCE_NUMBER_KEY)}sq{len(_ENQUEUED_TIME_KEY)}sq"
    f"{len(_ENQUEUE_SEQUENCE_NUMBER_KEY)}sq"
)
_BROKER_LOCKED: Final = Struct(_BROKER.format + f"{len(_LOCKED_UNTIL_KEY)}sq")
_HEADER_END_BYTES: Final = 6
_MAP_START: Final = bytes((0x00, 0x53, MESSAGE_ANNOTATIONS, 0xD1))
# What the size of the map counts: all of the above but header end, descriptor, code and itself.
_MAP_BYTES: Final = _BROKER.size - 14
_MAP_BYTES_LOCKED: Final = _BROKER_LOCKED.size - 14


def encode_stored(
    durable: bool,
    priority: int,
    ttl_ms: int,
    element_count: int,
    annotations: bytes,
    properties: bytes,
    bare: bytes,
) -> bytes:
    """The stored form.  The small parts first: the body is then copied once."""
    head = _HEAD.pack(
        _VERSION, _DURABLE if durable else 0, priority, element_count, len(annotations), ttl_ms
    )
    return head + annotations + properties + bare


class StoredOutline:
    """Where the parts of a stored message are; RemoteProtocolError if it is none."""

    __slots__ = (
        "_flags",
        "_priority",
        "annotation_count",
        "application_end",
        "bare_start",
        "properties_end",
        "ttl_ms",
    )

    def __init__(self, stored: bytes) -> None:
        if len(stored) < STORED_HEAD_BYTES:
            raise decode_error("stored message cut short")
        head: tuple[int, int, int, int, int, int] = _HEAD.unpack_from(stored)
        version, self._flags, self._priority, self.annotation_count, size, self.ttl_ms = head
        end = len(stored)
        at = self.bare_start = STORED_HEAD_BYTES + size
        if version != _VERSION or at > end:
            raise decode_error("no stored message, or one cut short")
        if stored.startswith(_PROPERTIES, at):
            at = skip_within(stored, at, end)
        self.properties_end = at
        if stored.startswith(_APPLICATION_PROPERTIES, at):
            at = skip_within(stored, at, end)
        self.application_end = at

    def head(self, annotation_count: int, annotation_bytes: int, ttl_ms: int) -> bytes:
        """The head of the message with other annotations and another time to live."""
        return _HEAD.pack(
            _VERSION, self._flags, self._priority, annotation_count, annotation_bytes, ttl_ms
        )


# The start of the header section and the annotations' count and size, by the stored head.  Messages
# of one sender share it; bounded, as every sender can make up new ones.
_Head = tuple[bytes, int, int]
_heads: dict[bytes, _Head] = {}
_HEADS_MAX: Final = 1_024


def _learn_head(raw: bytes) -> _Head:
    if len(raw) < STORED_HEAD_BYTES:
        raise decode_error("stored message cut short")
    version, flags, priority, count, size, ttl_ms = _HEAD.unpack(raw)
    if version != _VERSION:
        raise decode_error(f"stored message of unknown version {version}")
    ttl = b"\x40"
    if ttl_ms >= 0:
        ttl = encode_uint(min(ttl_ms, TTL_UINT_MAX))
    body = bytes((5, 0x41 if flags & _DURABLE else 0x42, 0x50, priority)) + ttl
    # first-acquirer and delivery-count follow: six bytes more
    known = (b"\x00\x53\x70\xc0" + bytes((len(body) + 6,)) + body, count, size)
    if len(_heads) >= _HEADS_MAX:
        _heads.clear()
    _heads[raw] = known
    return known


def _head_of(stored: bytes) -> _Head:
    raw = stored[:STORED_HEAD_BYTES]
    return _heads.get(raw) or _learn_head(raw)


def delivered_head(
    stored: bytes, sequence_number: int, enqueued_ms: int, delivery_count: int, locked_until_ms: int
) -> bytes:
    """What a receiver gets in front of `stored[STORED_HEAD_BYTES:]`.

    For active messages about which nothing has changed since they were sent: nearly all.  Apart
    from the rest, so that nobody copies a body to put the two together.
    """
    head = _head_of(stored)
    return head[0] + _pack_broker(
        sequence_number,
        sequence_number,
        enqueued_ms,
        delivery_count,
        locked_until_ms,
        head[1],
        head[2],
    )


def encode_delivered(
    stored: bytes,
    sequence_number: int,
    enqueued_ms: int,
    delivery_count: int,
    locked_until_ms: int,
    state: int,
    overlay_properties: bytes | None = None,
    dead_letter_reason: str | None = None,
    dead_letter_description: str | None = None,
    dead_letter_source: str | None = None,
    lock_token: bytes | None = None,
    enqueued_sequence_number: int = 0,
) -> bytes:
    """The message as a receiver gets it.

    `enqueued_sequence_number` is the number that it got where it was first sent to; 0 = the one it
    has.  `locked_until_ms` 0 and `state` 0 leave their annotations out.  `overlay_properties` is an
    encoded map of application properties to set.  `lock_token` (16 bytes, RFC 4122 order) adds the
    delivery annotation that messages received by sequence number need.
    """
    head = _head_of(stored)
    extra = _extra_annotations(state, dead_letter_source)
    count = head[1] + 2 * ((state != 0) + (dead_letter_source is not None))
    size = head[2] + len(extra)
    broker = _pack_broker(
        sequence_number,
        enqueued_sequence_number or sequence_number,
        enqueued_ms,
        delivery_count,
        locked_until_ms,
        count,
        size,
    )
    parts = [head[0], broker[:_HEADER_END_BYTES]]
    if lock_token is not None:
        entry = encode_symbol(wire_names.LOCK_TOKEN) + b"\x98" + lock_token
        parts.append(encode_map_section(DELIVERY_ANNOTATIONS, 2, entry))
    bare_start = STORED_HEAD_BYTES + head[2]
    parts += [broker[_HEADER_END_BYTES:], extra, stored[STORED_HEAD_BYTES:bare_start]]
    changes = _changes(overlay_properties, dead_letter_reason, dead_letter_description)
    parts.append(_with_properties(stored, changes) if changes else stored[bare_start:])
    return b"".join(parts)


def _pack_broker(
    sequence_number: int,
    enqueued_sequence_number: int,
    enqueued_ms: int,
    delivery_count: int,
    locked_until_ms: int,
    count: int,
    size: int,
) -> bytes:
    """Header end and the broker's annotations, to be followed by `size` bytes of `count` others."""
    if locked_until_ms == 0:
        return _BROKER.pack(
            0x42 if delivery_count else 0x41,
            0x70,
            delivery_count,
            _MAP_START,
            _MAP_BYTES + size,
            6 + count,
            _SEQUENCE_NUMBER_KEY,
            sequence_number,
            _ENQUEUED_TIME_KEY,
            enqueued_ms,
            _ENQUEUE_SEQUENCE_NUMBER_KEY,
            enqueued_sequence_number,
        )
    return _BROKER_LOCKED.pack(
        0x42 if delivery_count else 0x41,
        0x70,
        delivery_count,
        _MAP_START,
        _MAP_BYTES_LOCKED + size,
        8 + count,
        _SEQUENCE_NUMBER_KEY,
        sequence_number,
        _ENQUEUED_TIME_KEY,
        enqueued_ms,
        _ENQUEUE_SEQUENCE_NUMBER_KEY,
        enqueued_sequence_number,
        _LOCKED_UNTIL_KEY,
        locked_until_ms,
    )


def _extra_annotations(state: int, dead_letter_source: str | None) -> bytes:
    extra = b""
    if state:
        extra = encode_symbol(wire_names.MESSAGE_STATE) + encode_value(Int(state))
    if dead_letter_source is not None:
        extra += encode_symbol(wire_names.DEADLETTER_SOURCE) + encode_string(dead_letter_source)
    return extra


def _changes(
    overlay_properties: bytes | None, reason: str | None, description: str | None
) -> dict[bytes, bytes]:
    """Application properties to set: name → raw key and value."""
    changes: dict[bytes, bytes] = {}
    if overlay_properties is not None:
        changes.update(map_entries(overlay_properties, 0, len(overlay_properties)))
    texts = {wire_names.DEAD_LETTER_REASON: reason, wire_names.DEAD_LETTER_DESCRIPTION: description}
    for name, text in texts.items():
        if text is not None:
            changes[name.encode()] = encode_string(name) + encode_string(text)
    return changes


def _with_properties(stored: bytes, changes: dict[bytes, bytes]) -> bytes:
    """The bare message with application properties set; the other sections stay as they are.

    Properties nobody can read (the sender's map is malformed) give way to the changes.
    """
    outline = StoredOutline(stored)
    start, end = outline.properties_end, outline.application_end
    entries: list[bytes] = []
    if start < end:
        try:
            for name, entry in map_entries(stored, start + len(_APPLICATION_PROPERTIES), end):
                if name not in changes:
                    entries.append(entry)
        except RemoteProtocolError:
            entries = []
    entries += changes.values()
    section = encode_map_section(APPLICATION_PROPERTIES, 2 * len(entries), b"".join(entries))
    return stored[outline.bare_start : start] + section + stored[end:]
