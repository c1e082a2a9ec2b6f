"""The inside of a stored message, for topics: what filters see, and what actions change.

Reads properties, application properties and a few annotations out of the stored form
(message/stored.py) and writes changes of them back. Never looks at the body, and never changes a
byte that it was not asked to change. A section that nobody can read counts as empty: filters see
nothing in it, and a change replaces it.
"""

from datetime import timedelta
from typing import Final
from uuid import UUID, uuid4

from twinbus.amqp.decoding import decode_error, decode_whole, decode_within, skip_within
from twinbus.amqp.encoding import encode_list, encode_string, encode_symbol, encode_value
from twinbus.amqp.types import Timestamp
from twinbus.entities.fields import Changes, Fields
from twinbus.errors import RemoteProtocolError
from twinbus.message import property_fields as fields_of
from twinbus.message import wire_names
from twinbus.message.field_values import duration_of, milliseconds_of, time_of, to_amqp, to_plain
from twinbus.message.sections import (
    APPLICATION_PROPERTIES,
    PROPERTIES,
    Entries,
    descriptor,
    encode_map_section,
    map_entries,
    split_entries,
)
from twinbus.message.stored import STORED_HEAD_BYTES, StoredOutline

_PROPERTIES: Final = descriptor(PROPERTIES)
_NULL: Final = b"\x40"
_TIMESTAMP: Final = 0x83

# Fields of the properties list that filters know, and where they stand in it.
_PLACES: Final = {
    "messageid": fields_of.MESSAGE_ID,
    "to": fields_of.TO,
    "label": fields_of.SUBJECT,
    "replyto": fields_of.REPLY_TO,
    "correlationid": fields_of.CORRELATION_ID,
    "contenttype": fields_of.CONTENT_TYPE,
    "sessionid": fields_of.GROUP_ID,
    "replytosessionid": fields_of.REPLY_TO_GROUP_ID,
}
_NAMED: Final = tuple(_PLACES.items())
_BY_PLACE: Final = [
    next((name for name, place in _NAMED if place == index), "") for index in range(fields_of.COUNT)
]

_PARTITION_KEY: Final = wire_names.PARTITION_KEY.encode()
_ANNOTATIONS: Final = {
    _PARTITION_KEY: "partitionkey",
    wire_names.VIA_PARTITION_KEY.encode(): "viapartitionkey",
    wire_names.SCHEDULED_TIME.encode(): "scheduledenqueuetimeutc",
}
_KEYS: Final = {
    "partitionkey": wire_names.PARTITION_KEY,
    "viapartitionkey": wire_names.VIA_PARTITION_KEY,
}


class StoredMessageCodec:
    """The gateway's part of entities.fields.MessageCodec."""

    __slots__ = ()

    def read_fields(self, stored: bytes) -> Fields:
        return read_fields(stored)

    def read_keys(self, stored: bytes) -> tuple[str | None, str | None, str | None]:
        return read_keys(stored)

    def read_properties(self, encoded: bytes) -> dict[str, object]:
        values = decode_whole(encoded)
        assert isinstance(values, dict), "overlays keep maps (outcomes.encode_changes)"
        return {str(name).lower(): to_plain(value) for name, value in values.items()}

    def rewrite(self, stored: bytes, changes: Changes) -> bytes:
        return rewrite(stored, changes)

    def new_id(self) -> UUID:
        return uuid4()


# --- reading --------------------------------------------------------------------------------------
def read_fields(stored: bytes) -> Fields:
    """What filters see of a message."""
    outline = StoredOutline(stored)
    system: dict[str, object] = {"size": len(stored) - STORED_HEAD_BYTES}
    user: dict[str, object] = {}
    if outline.annotation_count:
        _read_annotations(stored, outline, system)
    bare = outline.bare_start
    middle = outline.properties_end
    if middle > bare:
        _read_properties(stored, bare + 3, middle, system)
    if outline.application_end > middle:
        user = _read_application_properties(stored, middle + 3, outline.application_end)
    if outline.ttl_ms >= 0:
        system["timetolive"] = duration_of(outline.ttl_ms)
    return Fields(system, user)


def _read_properties(stored: bytes, at: int, end: int, system: dict[str, object]) -> None:
    try:
        entries = Entries(stored, at, end)
        at = entries.start
        for place in range(min(entries.count, fields_of.COUNT)):
            if at < end and stored[at] == 0x40:
                at += 1
                continue
            name = _BY_PLACE[place]
            if name:
                value, at = _read_value(stored, at, end)
                system[name] = value if type(value) is str else id_text(value)
            else:
                at = skip_within(stored, at, end)
    except RemoteProtocolError:
        return


def _read_application_properties(stored: bytes, at: int, end: int) -> dict[str, object]:
    user: dict[str, object] = {}
    try:
        entries = Entries(stored, at, end)
        at = entries.start
        for _ in range(entries.count >> 1):
            name, at = _read_value(stored, at, end)
            value, at = _read_value(stored, at, end)
            if isinstance(name, str):
                user[name] = value if type(value) is str else to_plain(value)
    except RemoteProtocolError:
        return {}
    return user


def _read_value(stored: bytes, at: int, end: int) -> tuple[object, int]:
    """As decode_within, quicker for short strings, which most values are."""
    if end - at > 1 and stored[at] == 0xA1:
        stop = at + 2 + stored[at + 1]
        if stop <= end:
            try:
                return stored[at + 2 : stop].decode(), stop
            except UnicodeDecodeError:
                raise decode_error("string that is not UTF-8") from None
    return decode_within(stored, at, end)


def _read_annotations(stored: bytes, outline: StoredOutline, system: dict[str, object]) -> None:
    try:
        entries = split_entries(
            stored, STORED_HEAD_BYTES, outline.bare_start, outline.annotation_count
        )
        for key, entry in entries:
            name = _ANNOTATIONS.get(key)
            if name is not None:
                value, _ = decode_within(entry, skip_within(entry, 0, len(entry)), len(entry))
                if isinstance(value, Timestamp):
                    system[name] = time_of(value)
                elif isinstance(value, str):
                    system[name] = str(value)
    except RemoteProtocolError:
        return


def id_text(value: object) -> str | None:
    """The text of an id, whichever of AMQP's four types it has: text, uuid, ulong or binary."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, UUID) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value)
    return None


def read_keys(stored: bytes) -> tuple[str | None, str | None, str | None]:
    """Message id, session id and partition key as text; None for what is not there or unreadable.

    Quicker than read_fields: looks at nothing else.
    """
    outline = StoredOutline(stored)
    message_id: str | None = None
    session_id: str | None = None
    partition_key: str | None = None
    end = outline.properties_end
    start = STORED_HEAD_BYTES
    bare = outline.bare_start
    try:
        if end > bare:
            entries = Entries(stored, bare + 3, end)
            at = entries.start
            for place in range(min(entries.count, fields_of.GROUP_ID + 1)):
                if place == fields_of.MESSAGE_ID:
                    message_id = id_text(decode_within(stored, at, end)[0])
                elif place == fields_of.GROUP_ID:
                    value = decode_within(stored, at, end)[0]
                    session_id = str(value) if isinstance(value, str) else None
                at = skip_within(stored, at, end)
        if outline.annotation_count and stored.find(_PARTITION_KEY, start, bare) >= 0:
            for key, entry in split_entries(stored, start, bare, outline.annotation_count):
                if key == _PARTITION_KEY:
                    at = skip_within(entry, 0, len(entry))
                    value = decode_within(entry, at, len(entry))[0]
                    partition_key = str(value) if isinstance(value, str) else None
    except RemoteProtocolError:
        pass
    return message_id, session_id, partition_key


# --- writing --------------------------------------------------------------------------------------
def rewrite(stored: bytes, changes: Changes) -> bytes:
    """The message with these changes; everything else in it stays as it is."""
    outline = StoredOutline(stored)
    start = outline.bare_start
    ttl_ms = outline.ttl_ms
    if "timetolive" in changes.system:
        wanted = changes.system["timetolive"]
        ttl_ms = milliseconds_of(wanted) if isinstance(wanted, timedelta) else -1
    annotations = stored[STORED_HEAD_BYTES:start]
    count = outline.annotation_count
    if not changes.system.keys().isdisjoint(_KEYS):
        entries = _changed_annotations(annotations, count, changes)
        annotations = b"".join(entries)
        count = 2 * len(entries)
    properties = stored[start : outline.properties_end]
    if not changes.system.keys().isdisjoint(_PLACES) or ttl_ms != outline.ttl_ms:
        properties = _changed_properties(properties, changes, ttl_ms)
    application = stored[outline.properties_end : outline.application_end]
    if changes.user or changes.removed:
        application = _changed_application_properties(application, changes)
    head = outline.head(count, len(annotations), ttl_ms)
    return b"".join([head, annotations, properties, application, stored[outline.application_end :]])


def _changed_annotations(raw: bytes, count: int, changes: Changes) -> list[bytes]:
    names = {key.encode() for name, key in _KEYS.items() if name in changes.system}
    entries = [entry for key, entry in split_entries(raw, 0, len(raw), count) if key not in names]
    for name, key in _KEYS.items():
        value = changes.system.get(name)
        if isinstance(value, str):
            entries.append(encode_symbol(key) + encode_string(value))
    return entries


def _changed_properties(section: bytes, changes: Changes, ttl_ms: int) -> bytes:
    elements = _elements(section)
    elements += [_NULL] * (fields_of.COUNT - len(elements))
    for name, place in _NAMED:
        if name in changes.system:
            value = changes.system[name]
            if not isinstance(value, str):
                elements[place] = _NULL
            elif place == fields_of.CONTENT_TYPE:
                elements[place] = encode_symbol(value)
            else:
                elements[place] = encode_string(value)
    if "timetolive" in changes.system:
        elements[fields_of.ABSOLUTE_EXPIRY_TIME] = _expiry(
            elements[fields_of.CREATION_TIME], ttl_ms
        )
    while elements and elements[-1] == _NULL:
        elements.pop()
    return _PROPERTIES + encode_list(elements)


def _expiry(creation: bytes, ttl_ms: int) -> bytes:
    """When a message expires that says when it was created: clients prefer this to the ttl."""
    if ttl_ms < 0 or creation[0] != _TIMESTAMP:
        return _NULL
    created = int.from_bytes(creation[1:], "big", signed=True)
    return encode_value(Timestamp(min(created + ttl_ms, (1 << 63) - 1)))


def _elements(section: bytes) -> list[bytes]:
    """The raw fields of the properties; none if there are none, or nobody can read them."""
    if not section:
        return []
    end = len(section)
    found: list[bytes] = []
    try:
        entries = Entries(section, len(_PROPERTIES), end)
        at = entries.start
        for _ in range(min(entries.count, fields_of.COUNT)):
            following = skip_within(section, at, end)
            found.append(section[at:following])
            at = following
    except RemoteProtocolError:
        return []
    return found


def _changed_application_properties(section: bytes, changes: Changes) -> bytes:
    lowers = {name.lower(): name for name in changes.user}
    entries: list[bytes] = []
    written: set[str] = set()
    try:
        found = map_entries(section, 3, len(section)) if section else []
    except RemoteProtocolError:
        found = []
    for raw, entry in found:
        lower = raw.decode("utf-8", "replace").lower()
        if lower in changes.removed or lower in written:
            continue
        name = lowers.get(lower)
        if name is None:
            entries.append(entry)
        else:
            # The name stays as the sender wrote it.
            key = entry[: skip_within(entry, 0, len(entry))]
            entries.append(key + to_amqp(changes.user[name]))
            written.add(lower)
    for lower, name in lowers.items():
        if lower not in written:
            entries.append(encode_string(name) + to_amqp(changes.user[name]))
    if not entries:
        return b""
    return encode_map_section(APPLICATION_PROPERTIES, 2 * len(entries), b"".join(entries))
