"""Messages built from Python values or read into them as a whole.

For requests and replies ($cbs, $management), for batches, and for our own client.  What the
broker does with a user's message is in `scan.py`, which does not decode.
"""

from typing import Final

from twinbus.amqp.decoding import decode_error, decode_within
from twinbus.amqp.encoding import encode_uint, encode_value
from twinbus.amqp.fields import (
    Fields,
    composite,
    put_binary,
    put_boolean,
    put_string,
    put_symbol,
    put_ubyte,
    put_uint,
)
from twinbus.amqp.shapes import U32
from twinbus.amqp.types import Symbol, Timestamp
from twinbus.limits import SECTIONS_MAX
from twinbus.message.property_fields import COUNT
from twinbus.message.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    Outline,
    binary_start,
    descriptor,
    usual_end,
)

BATCH_FORMAT: Final = 0x8001_3700  # message-format of a transfer that carries a batch
_ENVELOPE_BYTES: Final = 8  # of each message in a batch: the head of its data section


class Properties:
    """The properties section: AMQP's names; times in milliseconds since 1970."""

    __slots__ = (
        "absolute_expiry_ms",
        "content_encoding",
        "content_type",
        "correlation_id",
        "creation_ms",
        "group_id",
        "group_sequence",
        "message_id",
        "reply_to",
        "reply_to_group_id",
        "subject",
        "to",
        "user_id",
    )

    def __init__(
        self,
        message_id: object = None,
        user_id: bytes | None = None,
        to: str | None = None,
        subject: str | None = None,
        reply_to: str | None = None,
        correlation_id: object = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        absolute_expiry_ms: int | None = None,
        creation_ms: int | None = None,
        group_id: str | None = None,
        group_sequence: int | None = None,
        reply_to_group_id: str | None = None,
    ) -> None:
        self.message_id = message_id  # string, uuid, ulong or binary, kept as it came
        self.user_id = user_id
        self.to = to
        self.subject = subject
        self.reply_to = reply_to
        self.correlation_id = correlation_id
        self.content_type = content_type
        self.content_encoding = content_encoding
        self.absolute_expiry_ms = absolute_expiry_ms
        self.creation_ms = creation_ms
        self.group_id = group_id
        self.group_sequence = group_sequence
        self.reply_to_group_id = reply_to_group_id

    def encode(self) -> bytes:
        """The section, all fields written out."""
        return composite(
            PROPERTIES,
            [
                encode_value(self.message_id),
                put_binary(self.user_id),
                put_string(self.to),
                put_string(self.subject),
                put_string(self.reply_to),
                encode_value(self.correlation_id),
                put_symbol(self.content_type),
                put_symbol(self.content_encoding),
                _put_time(self.absolute_expiry_ms),
                _put_time(self.creation_ms),
                put_string(self.group_id),
                put_uint(self.group_sequence),
                put_string(self.reply_to_group_id),
            ],
        )


def _put_time(ms: int | None) -> bytes:
    return encode_value(None if ms is None else Timestamp(ms))


def _time(fields: Fields, index: int) -> int | None:
    value = fields.value(index)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise fields.wrong(index)
    return int(value)


def read_properties(value: object) -> Properties:
    """Properties from the section's decoded list."""
    fields = Fields("properties", value, COUNT)
    return Properties(
        fields.value(0),
        fields.optional_binary(1),
        fields.optional_text(2),
        fields.optional_text(3),
        fields.optional_text(4),
        fields.value(5),
        fields.optional_text(6),
        fields.optional_text(7),
        _time(fields, 8),
        _time(fields, 9),
        fields.optional_text(10),
        fields.optional_number(11),
        fields.optional_text(12),
    )


class DecodedMessage:
    """A message with every section decoded.  `body_section` says what `body` is.

    DATA: bytes, several sections joined.  SEQUENCE: list, joined.  VALUE: the value.  0: no body.
    """

    __slots__ = (
        "annotations",
        "application_properties",
        "body",
        "body_section",
        "delivery_annotations",
        "delivery_count",
        "durable",
        "priority",
        "properties",
        "ttl_ms",
    )

    def __init__(self) -> None:
        self.durable = False
        self.priority = 4
        self.ttl_ms: int | None = None
        self.delivery_count = 0
        self.delivery_annotations: dict[object, object] = {}
        self.annotations: dict[object, object] = {}
        self.properties = Properties()
        self.application_properties: dict[object, object] = {}
        self.body_section = 0
        self.body: object = None


def decode_message(data: bytes) -> DecodedMessage:
    """Decode every section of a message."""
    message = DecodedMessage()
    outline = Outline(data)
    header = outline.decoded(HEADER)
    if header is not None:
        fields = Fields("header", header, 5)
        message.durable = fields.boolean(0)
        message.priority = fields.number(1, 4, 255)
        message.ttl_ms = fields.optional_number(2)
        message.delivery_count = fields.number(4, 0)
    properties = outline.decoded(PROPERTIES)
    if properties is not None:
        message.properties = read_properties(properties)
    message.delivery_annotations = _decoded_map(outline, DELIVERY_ANNOTATIONS)
    message.annotations = _decoded_map(outline, MESSAGE_ANNOTATIONS)
    message.application_properties = _decoded_map(outline, APPLICATION_PROPERTIES)
    body = message.body_section = outline.body
    values = [decode_within(data, start, end)[0] for start, end in outline.body_borders()]
    if body == DATA:
        message.body = b"".join([value for value in values if isinstance(value, bytes)])
    elif body == SEQUENCE:
        lists = [value for value in values if isinstance(value, list)]
        message.body = [element for each in lists for element in each]
    elif values:
        message.body = values[0]
    return message


def _decoded_map(outline: Outline, code: int) -> dict[object, object]:
    value = outline.decoded(code)
    return value if isinstance(value, dict) else {}


# --- building ------------------------------------------------------------------------------------
_DATA_HEADS: Final = [b"\x00\x53\x75\xa0" + bytes((size,)) for size in range(256)]


def data_head(size: int) -> bytes:
    """What stands in front of a body of so many bytes."""
    return _DATA_HEADS[size] if size < 256 else b"\x00\x53\x75\xb0" + U32.pack(size)


def data_section(body: bytes) -> bytes:
    """A body of bytes."""
    return data_head(len(body)) + body


def value_section(value: object) -> bytes:
    """A body that is one AMQP value."""
    return descriptor(VALUE) + encode_value(value)


def sequence_section(values: list[object]) -> bytes:
    """A body that is a list of AMQP values."""
    return descriptor(SEQUENCE) + encode_value(values)


def listing_parts(values: dict[str, object], key: str, entries: list[bytes]) -> list[bytes]:
    """A body that is a map of some values and, last in it, a list of binaries, in pieces.

    Such a list may have megabytes: it is for the caller to put everything together in one go.
    """
    listed: list[bytes] = []
    size = 0
    for entry in entries:
        listed.append(b"\xb0" + U32.pack(len(entry)))
        listed.append(entry)
        size += len(entry)
    size += 5 * len(entries)
    start: list[bytes] = []
    for name, value in values.items():
        start.append(encode_value(name))
        start.append(encode_value(value))
    start.append(encode_value(key))
    start.append(b"\xd0" + U32.pack(size + 4) + U32.pack(len(entries)))
    first = b"".join(start)
    head = U32.pack(len(first) + size + 4) + U32.pack(2 * len(values) + 2)
    return [b"\x00\x53\x77\xd1" + head + first, *listed]


def encode_message(
    body: bytes = b"",
    properties: Properties | None = None,
    application_properties: dict[str, object] | None = None,
    annotations: dict[str, object] | None = None,
    ttl_ms: int | None = None,
    durable: bool | None = None,
    priority: int | None = None,
) -> bytes:
    """A message; `body` is made by data_section, value_section or sequence_section."""
    parts: list[bytes] = []
    if ttl_ms is not None or durable is not None or priority is not None:
        ttl = b"\x40" if ttl_ms is None else encode_uint(ttl_ms)
        parts.append(
            composite(HEADER, [put_boolean(durable), put_ubyte(priority), ttl, b"\x40", b"\x40"])
        )
    if annotations:
        named = {Symbol(name): value for name, value in annotations.items()}
        parts.append(descriptor(MESSAGE_ANNOTATIONS) + encode_value(named))
    if properties is not None:
        parts.append(properties.encode())
    if application_properties:
        parts.append(descriptor(APPLICATION_PROPERTIES) + encode_value(application_properties))
    parts.append(body)
    return b"".join(parts)


# --- batches -------------------------------------------------------------------------------------
def build_batch(messages: list[bytes]) -> bytes:
    """A batch (message-format BATCH_FORMAT): each message is one data section."""
    pieces: list[bytes] = []
    for message in messages:  # the head alone: each message is copied once
        pieces.append(data_head(len(message)))
        pieces.append(message)
    return b"".join(pieces)


def cut(messages: list[bytes], size_max: int) -> list[tuple[int, int]]:
    """First and count of each batch: as much as goes into `size_max`, but at least one message."""
    batches: list[tuple[int, int]] = []
    first = size = 0
    for index, message in enumerate(messages):
        added = len(message) + _ENVELOPE_BYTES
        if index > first and (size + added > size_max or index - first >= SECTIONS_MAX):
            batches.append((first, index - first))
            first, size = index, 0
        size += added
    if first < len(messages):
        batches.append((first, len(messages) - first))
    return batches


def split_batch(data: bytes) -> list[bytes]:
    """The messages in a batch.  What the envelope says about itself is skipped."""
    messages: list[bytes] = []
    at = 0
    end = len(data)
    while at < end:
        following = usual_end(data, at)
        if not following or data[at + 2] != DATA:
            break
        if following > end:
            raise decode_error("data section longer than the batch")
        if len(messages) >= SECTIONS_MAX:
            raise decode_error("too many messages in a batch")
        messages.append(data[binary_start(data, at + 3) : following])
        at = following
    if at == end:
        return messages
    outline = Outline(data)  # it says something about itself, or has another form
    if outline.body in (SEQUENCE, VALUE):
        raise decode_error("batch with a body that is not data")
    return [data[binary_start(data, start) : stop] for start, stop in outline.body_borders()]
