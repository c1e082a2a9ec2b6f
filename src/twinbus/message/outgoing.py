"""A message as receivers get it: with whatever has changed about it since it was stored."""

from twinbus.amqp.encoding import encode_symbol, encode_value
from twinbus.entities.message import Message, Overlay
from twinbus.errors import RemoteProtocolError
from twinbus.message import wire_names
from twinbus.message.plain import DecodedMessage, decode_message
from twinbus.message.sections import (
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    Outline,
    descriptor,
    encode_map_section,
    usual_end,
)
from twinbus.message.stored import StoredOutline, encode_delivered


def encode_overlaid(
    message: Message, body: bytes, locked_until_utc_ms: int, lock_token: bytes | None = None
) -> bytes:
    """A message with whatever has changed about it since it was stored."""
    overlay = message.overlay or Overlay()
    return encode_delivered(
        body,
        message.sequence_number,
        message.enqueued_ms,
        message.delivery_count,
        locked_until_utc_ms,
        message.state,
        overlay.properties,
        overlay.reason,
        overlay.description,
        overlay.source,
        lock_token,
        overlay.enqueued_sequence_number,
    )


def encode_without_body(message: Message, body: bytes) -> bytes:
    """The same, not locked, with the size of its body's sections in their place.

    The size is a delivery annotation, as the Node SDK's tests have it from the service.
    """
    at = StoredOutline(body).application_end
    footer = Outline(body[at:]).value(FOOTER)
    kept = body[:at] + (descriptor(FOOTER) + footer if footer else b"")
    encoded = encode_overlaid(message, kept, 0)
    size = encode_symbol(wire_names.OMITTED_BODY_SIZE) + encode_value(len(body) - len(kept))
    header_end = usual_end(encoded, 0)
    annotations = encode_map_section(DELIVERY_ANNOTATIONS, 2, size)
    return encoded[:header_end] + annotations + encoded[header_end:]


def decode_outgoing(data: bytes) -> DecodedMessage:
    """The message.  One that nobody can read is handed out too, all of it as its body."""
    try:
        return decode_message(data)
    except RemoteProtocolError:
        raw = DecodedMessage()
        raw.body_section = DATA
        raw.body = data
        return raw
