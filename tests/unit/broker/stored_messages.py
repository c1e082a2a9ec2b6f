"""Messages in their stored form, made for filters to look at."""

from twinbus.amqp.encoding import encode_list, encode_string, encode_value
from twinbus.entities.message import NEVER_MS, NewMessage
from twinbus.message.sections import APPLICATION_PROPERTIES, encode_map_section
from twinbus.message.stored import encode_stored

SUBJECT = 3
SESSION_ID = 10


def stored(
    body: bytes = b"",
    subject: str | None = None,
    session_id: str | None = None,
    properties: dict[str, object] | None = None,
) -> bytes:
    """A message as the gateway stores it."""
    values: list[object] = ["id", *[None] * 12]
    values[SUBJECT] = subject
    values[SESSION_ID] = session_id
    sections = b"\x00\x53\x73" + encode_list([encode_value(value) for value in values])
    if properties:
        entries = b"".join(
            encode_string(name) + encode_value(value) for name, value in properties.items()
        )
        sections += encode_map_section(APPLICATION_PROPERTIES, 2 * len(properties), entries)
    data = b"\x00\x53\x75\xb0" + len(body).to_bytes(4) + body
    return encode_stored(True, 4, -1, 0, b"", sections, data)


def new(
    body: bytes = b"",
    subject: str | None = None,
    session_id: str | None = None,
    time_to_live_ms: int = NEVER_MS,
    scheduled_ms: int = 0,
    **properties: object,
) -> NewMessage:
    """A message on its way in, with application properties."""
    return NewMessage(stored(body, subject, session_id, properties), time_to_live_ms, scheduled_ms)


def content(stored_message: bytes) -> bytes:
    """The body of a stored message."""
    at = stored_message.index(b"\x00\x53\x75\xb0")
    return stored_message[at + 8 :]
