"""Lazy messages: find the borders of sections, keep the bytes, decode only what is asked for.

`scan` takes a message apart once, on its way in; `Scanned.stored` is what storage keeps.  Bodies
are never decoded.  Sections may come in any order (azure-servicebus sends delivery annotations
last) and with any form of descriptor; they are stored in the standard order and form.

`plain.py` has messages as plain Python values, `stored.py` what a receiver gets.
"""

from typing import Final

from twinbus.amqp.decoding import decode_error, decode_within, skip_within
from twinbus.amqp.fields import Fields
from twinbus.amqp.types import Timestamp
from twinbus.message.plain import Properties, read_properties
from twinbus.message.property_fields import (
    ABSOLUTE_EXPIRY_TIME,
    CONTENT_TYPE,
    CREATION_TIME,
    GROUP_ID,
    MESSAGE_ID,
)
from twinbus.message.sections import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Entries,
    Outline,
    entry_name,
    map_entries,
    place_of,
)
from twinbus.message.stored import BROKER_ANNOTATIONS, TTL_UINT_MAX, encode_stored

NO_TTL: Final = -1
TTL_MS_MAX: Final = 1 << 62  # two times may be further apart than 64 bits hold
PRIORITY_DEFAULT: Final = 4


class Scanned:
    """A message taken apart.

    `annotations` are the raw keys and values of the sender's message annotations without the
    broker's own; `annotation_count` counts keys and values.  `bare` begins with the properties,
    if any, then the application properties, if any: `properties_at` and
    `application_properties_at` say where these sections begin in it, -1 when there are none.
    `delivery_annotations` is the raw map of that section; it is for us and stored nowhere.
    """

    __slots__ = (
        "annotation_count",
        "annotations",
        "application_properties_at",
        "bare",
        "delivery_annotations",
        "durable",
        "priority",
        "properties_at",
        "ttl_ms",
    )

    def __init__(
        self,
        ttl_ms: int,
        durable: bool,
        priority: int,
        annotation_count: int,
        annotations: bytes,
        bare: bytes,
        properties_at: int,
        application_properties_at: int,
        delivery_annotations: bytes,
    ) -> None:
        self.ttl_ms = ttl_ms  # -1 = none
        self.durable = durable
        self.priority = priority
        self.annotation_count = annotation_count
        self.annotations = annotations
        self.bare = bare
        self.properties_at = properties_at
        self.application_properties_at = application_properties_at
        self.delivery_annotations = delivery_annotations

    def stored(self, properties: bytes = b"") -> bytes:
        """What storage keeps; encode_delivered() reads it.

        `properties` go in front of a bare message that has none.
        """
        return encode_stored(
            self.durable,
            self.priority,
            self.ttl_ms,
            self.annotation_count,
            self.annotations,
            properties,
            self.bare,
        )

    def message_id(self) -> object:
        """The message id: string, uuid, ulong or binary; None when there is none."""
        return self._property(MESSAGE_ID)

    def group_id(self) -> str | None:
        """The group id, which Service Bus calls session id."""
        return self._text(GROUP_ID)

    def content_type(self) -> str | None:
        return self._text(CONTENT_TYPE)

    def properties(self) -> Properties:
        """All properties; empty ones when the message has no such section."""
        if self.properties_at < 0:
            return Properties()
        value, _ = decode_within(self.bare, self.properties_at + 3, len(self.bare))
        return read_properties(value)

    def application_properties(self) -> dict[object, object]:
        """All application properties; empty when the message has no such section."""
        if self.application_properties_at < 0:
            return {}
        value, _ = decode_within(self.bare, self.application_properties_at + 3, len(self.bare))
        if not isinstance(value, dict):
            raise decode_error("application properties are not a map")
        return value

    def annotation(self, name: str) -> object:
        """One message annotation of the sender, None when absent."""
        wanted = name.encode()
        raw = self.annotations
        if wanted not in raw:
            return None
        at = 0
        end = len(raw)
        while at < end:
            middle = skip_within(raw, at, end)
            if entry_name(raw, at, middle) == wanted:
                return decode_within(raw, middle, end)[0]
            at = skip_within(raw, middle, end)
        return None

    def delivery_annotation(self, name: str) -> object:
        """One annotation for this hop only, None when absent."""
        wanted = name.encode()
        raw = self.delivery_annotations
        for found, entry in map_entries(raw, 0, len(raw)) if raw else []:
            if found == wanted:
                return decode_within(entry, skip_within(entry, 0, len(entry)), len(entry))[0]
        return None

    def _property(self, index: int) -> object:
        if self.properties_at < 0:
            return None
        start = self.properties_at
        return list_field(
            self.bare, start + 3, skip_within(self.bare, start, len(self.bare)), index
        )

    def _text(self, index: int) -> str | None:
        value = self._property(index)
        if value is None or isinstance(value, str):
            return value
        raise decode_error(f"properties: field {index} is not text")


def list_field(data: bytes, at: int, end: int, index: int) -> object:
    """One element of the list that fills at:end; None when it is not there."""
    entries = Entries(data, at, end)
    if index >= entries.count:
        return None
    at = entries.start
    for _ in range(index):
        at = skip_within(data, at, end)
    return decode_within(data, at, end)[0]


# --- scanning ------------------------------------------------------------------------------------
_PROPERTIES_AT: Final = place_of(PROPERTIES)
_APPLICATION_AT: Final = place_of(APPLICATION_PROPERTIES)
_DESCRIPTOR_BYTES: Final = 3


def scan(data: bytes) -> Scanned:
    """Take a message apart.  An empty one is valid: no sections, no body."""
    outline = Outline(data)
    places = outline.places
    durable, priority, ttl_ms = _read_header(outline.value(HEADER))
    annotations, annotation_count = _read_annotations(outline.value(MESSAGE_ANNOTATIONS))
    bare = outline.bare()
    properties_end = 0
    if places[_PROPERTIES_AT]:
        size = places[_PROPERTIES_AT + 1] - places[_PROPERTIES_AT]
        properties_end = _DESCRIPTOR_BYTES + size
        if ttl_ms < 0:
            ttl_ms = ttl_from_times(bare, _DESCRIPTOR_BYTES, properties_end)
    return Scanned(
        ttl_ms,
        durable,
        priority,
        annotation_count,
        annotations,
        bare,
        0 if properties_end else -1,
        properties_end if places[_APPLICATION_AT] else -1,
        outline.value(DELIVERY_ANNOTATIONS),
    )


# --- sections that repeat from message to message ------------------------------------------------
# Parsed once and then found by their raw bytes.  Bounded: a sender that never repeats itself only
# makes us parse, as we would without the table.
_REMEMBERED_MAX: Final = 1_024
_REMEMBERED_BYTES_MAX: Final = 256

_Header = tuple[bool, int, int]  # durable, priority, ttl in ms
_NO_HEADER: Final[_Header] = (False, PRIORITY_DEFAULT, NO_TTL)
_headers: dict[bytes, _Header] = {}

_Annotations = tuple[bytes, int]  # raw keys and values, how many of both
_NO_ANNOTATIONS: Final[_Annotations] = (b"", 0)
_annotations: dict[bytes, _Annotations] = {}


def _read_header(raw: bytes) -> _Header:
    if not raw:
        return _NO_HEADER
    known = _headers.get(raw)
    if known is None:
        value, _ = decode_within(raw, 0, len(raw))
        fields = Fields("header", value, 5)
        ttl = fields.optional_number(2)
        known = (
            fields.boolean(0),
            fields.number(1, PRIORITY_DEFAULT, 255),
            # The largest number means "longer than this field can say": the times below tell.
            NO_TTL if ttl is None or ttl == TTL_UINT_MAX else ttl,
        )
        if len(raw) <= _REMEMBERED_BYTES_MAX:
            if len(_headers) >= _REMEMBERED_MAX:
                _headers.clear()
            _headers[raw] = known
    return known


def _read_annotations(raw: bytes) -> _Annotations:
    if not raw:
        return _NO_ANNOTATIONS
    known = _annotations.get(raw)
    if known is None:
        kept: list[bytes] = []
        for name, entry in map_entries(raw, 0, len(raw)):
            if name not in BROKER_ANNOTATIONS:
                kept.append(entry)
        known = (b"".join(kept), 2 * len(kept))
        if len(raw) <= _REMEMBERED_BYTES_MAX:
            if len(_annotations) >= _REMEMBERED_MAX:
                _annotations.clear()
            _annotations[raw] = known
    return known


def ttl_from_times(data: bytes, at: int, end: int) -> int:
    """absolute-expiry-time less creation-time: how clients state a ttl beyond 49 days."""
    if data.find(0x83, at, end) < 0:
        return NO_TTL  # no timestamp in there at all, which is the rule
    expiry = list_field(data, at, end, ABSOLUTE_EXPIRY_TIME)
    creation = list_field(data, at, end, CREATION_TIME)
    if isinstance(expiry, Timestamp) and isinstance(creation, Timestamp):
        return min(max(0, expiry - creation), TTL_MS_MAX)
    return NO_TTL
