"""Lazy messages: find the borders of sections, keep the bytes, decode only what is asked for.

scan() takes a message apart once, on its way in; `Scanned.stored()` is what storage keeps, and
encode_delivered() puts a new header and annotations in front of it on the way out.  Bodies are
never decoded.  Sections may come in any order (azure-servicebus sends delivery annotations last)
and with any form of descriptor; what leaves is in the standard order and form.

For messages as plain Python values see `plain.py`; all names are available here.
"""

from typing import Final

from twinbus.amqp.decoding import decode_error, decode_within, skip_within
from twinbus.amqp.fields import Fields
from twinbus.amqp.shapes import NARROW, U32
from twinbus.amqp.types import Timestamp
from twinbus.limits import SECTIONS_MAX
from twinbus.message.plain import Properties, read_properties
from twinbus.message.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    Entries,
    entry_name,
    map_entries,
    read_sections,
)
from twinbus.message.stored import BROKER_ANNOTATIONS, TTL_UINT_MAX, encode_stored

NO_TTL: Final = -1
TTL_MS_MAX: Final = 1 << 62  # two times may be further apart than 64 bits hold
PRIORITY_DEFAULT: Final = 4

# Fields of the properties list.
_MESSAGE_ID: Final = 0
_CONTENT_TYPE: Final = 6
_ABSOLUTE_EXPIRY_TIME: Final = 8
_CREATION_TIME: Final = 9
_GROUP_ID: Final = 10


class Scanned:
    """A message taken apart.

    `annotations` are the raw keys and values of the sender's message annotations without the
    broker's own; `annotation_count` counts keys and values.  `bare` begins with the properties,
    if any, then the application properties, if any: `properties_at` and
    `application_properties_at` say where these sections begin in it, -1 when there are none.
    `delivery_annotations` is that whole section, raw; it is for us and stored nowhere.
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
        return self._property(_MESSAGE_ID)

    def group_id(self) -> str | None:
        """The group id, which Service Bus calls session id."""
        return self._text(_GROUP_ID)

    def content_type(self) -> str | None:
        return self._text(_CONTENT_TYPE)

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
        start = raw.find(wanted)
        if start < 0:
            return None
        # The only one, and a short text: this is how producers write their key.
        end = start + len(wanted)
        size = len(raw) - end - 2
        if (
            start == 8
            and size >= 0
            and raw[3] == 0xC1
            and raw[5] == 2
            and raw[6] == 0xA3
            and raw[7] == len(wanted)
            and raw[end] == 0xA1
            and raw[end + 1] == size
        ):
            text = raw[end + 2 :]
            if text.isascii():
                return text.decode()
        for found, entry in map_entries(raw, 3, len(raw)):
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
def _kind_table() -> bytes:
    kinds = bytearray([0xFF] * 256)
    for section in (HEADER, PROPERTIES):
        kinds[section] = 0xC0
    for section in (DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, APPLICATION_PROPERTIES, FOOTER):
        kinds[section] = 0xC1
    kinds[DATA] = 0xA0
    return bytes(kinds)


# The constructor each section of the short way must have; bit 4 is set in the wide form of it.
KINDS: Final[bytes] = _kind_table()
WIDE: Final = 0x10


def scan(data: bytes) -> Scanned:
    """Take a message apart.  An empty one is valid: no sections, no body.

    This is the short way for what clients really send: sections in the standard order with short
    descriptors, delivery annotations perhaps last.  Anything else goes the long way round.
    """
    end = len(data)
    header = _NO_HEADER
    annotations = _NO_ANNOTATIONS
    bare_start = -1
    bare_end = end
    properties_end = application_at = -1
    early = False  # delivery annotations in their standard place
    delivery_annotations = b""
    section = count = at = 0
    while end - at > 7:
        previous = section
        section = data[at + 2]
        code = data[at + 3]
        if data[at] or data[at + 1] != 0x53 or KINDS[section] != code & NARROW:
            return _scan_any(data)
        if code & WIDE:
            size: int = U32.unpack_from(data, at + 4)[0]
            following = at + 8 + size
        else:
            following = at + 5 + data[at + 4]
        if following > end:
            raise decode_error("message section longer than the message")
        if section <= previous:
            if section == previous == DATA:
                count += 1
                if count >= SECTIONS_MAX:
                    raise decode_error("too many sections")
            elif section != DELIVERY_ANNOTATIONS or following < end or bare_start < 0 or early:
                return _scan_any(data)
            else:
                bare_end = at
                delivery_annotations = data[at:following]
        elif section >= PROPERTIES:
            if bare_start < 0:
                bare_start = at
            if section == PROPERTIES:
                properties_end = following - at
            elif section == APPLICATION_PROPERTIES:
                application_at = at - bare_start
        elif section == MESSAGE_ANNOTATIONS:
            annotations = _read_annotations(data, at, following)
        elif section == HEADER:
            header = _read_header(data, at, following)
        else:
            early = True
            delivery_annotations = data[at:following]
        at = following
    if at < end:
        return _scan_any(data)
    bare = b"" if bare_start < 0 else data[bare_start:bare_end]
    ttl_ms = header[2]
    if ttl_ms < 0 and properties_end >= 0:
        ttl_ms = _ttl_from_times(bare, properties_end)
    return Scanned(
        ttl_ms,
        header[0],
        header[1],
        annotations[1],
        annotations[0],
        bare,
        0 if properties_end >= 0 else -1,
        application_at,
        delivery_annotations,
    )


def _scan_any(data: bytes) -> Scanned:
    """The long way: any order, any form of descriptor; sorts sections, renews descriptors."""
    header = _NO_HEADER
    annotations = _NO_ANNOTATIONS
    kept: list[list[bytes]] = [[], [], [], []]  # properties, application properties, body, footer
    delivery_annotations = b""
    body = 0
    seen: set[int] = set()
    for section in read_sections(data):
        code = section.code
        if code in seen and code not in (DATA, SEQUENCE):
            raise decode_error("message section given twice")
        seen.add(code)
        raw = b"\x00\x53" + bytes((code,)) + data[section.start : section.end]
        if code == HEADER:
            header = _read_header(raw, 0, len(raw))
        elif code == MESSAGE_ANNOTATIONS:
            annotations = _read_annotations(raw, 0, len(raw))
        elif DATA <= code <= VALUE:
            if body not in (0, code):
                raise decode_error("message with bodies of two kinds")
            body = code
            kept[2].append(raw)
        elif code == DELIVERY_ANNOTATIONS:
            delivery_annotations = raw
        else:
            kept[_PLACES[code]].append(raw)
    properties = b"".join(kept[0])
    bare = b"".join([properties, *kept[1], *kept[2], *kept[3]])
    ttl_ms = header[2]
    if ttl_ms < 0 and properties:
        ttl_ms = _ttl_from_times(bare, len(properties))
    return Scanned(
        ttl_ms,
        header[0],
        header[1],
        annotations[1],
        annotations[0],
        bare,
        0 if properties else -1,
        len(properties) if kept[1] else -1,
        delivery_annotations,
    )


_PLACES: Final = {PROPERTIES: 0, APPLICATION_PROPERTIES: 1, FOOTER: 3}

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


def _read_header(data: bytes, at: int, end: int) -> _Header:
    raw = data[at:end]
    known = _headers.get(raw)
    if known is None:
        value, _ = decode_within(raw, 3, len(raw))
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


def _read_annotations(data: bytes, at: int, end: int) -> _Annotations:
    raw = data[at:end]
    known = _annotations.get(raw)
    if known is None:
        kept: list[bytes] = []
        for name, entry in map_entries(raw, 3, len(raw)):
            if name not in BROKER_ANNOTATIONS:
                kept.append(entry)
        known = (b"".join(kept), 2 * len(kept))
        if len(raw) <= _REMEMBERED_BYTES_MAX:
            if len(_annotations) >= _REMEMBERED_MAX:
                _annotations.clear()
            _annotations[raw] = known
    return known


def _ttl_from_times(bare: bytes, properties_end: int) -> int:
    """absolute-expiry-time less creation-time: how clients state a ttl beyond 49 days."""
    if bare.find(0x83, 0, properties_end) < 0:
        return NO_TTL  # no timestamp in there at all, which is the rule
    expiry = list_field(bare, 3, properties_end, _ABSOLUTE_EXPIRY_TIME)
    creation = list_field(bare, 3, properties_end, _CREATION_TIME)
    if isinstance(expiry, Timestamp) and isinstance(creation, Timestamp):
        return min(max(0, expiry - creation), TTL_MS_MAX)
    return NO_TTL
