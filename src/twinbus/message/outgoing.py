"""A message as receivers get it: with whatever has changed about it since it was stored."""

from twinbus.entities.message import Message, Overlay
from twinbus.errors import RemoteProtocolError
from twinbus.message.plain import DecodedMessage, decode_message
from twinbus.message.sections import DATA
from twinbus.message.stored import encode_delivered


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


def decode_outgoing(data: bytes) -> DecodedMessage:
    """The message.  One that nobody can read is handed out too, all of it as its body."""
    try:
        return decode_message(data)
    except RemoteProtocolError:
        raw = DecodedMessage()
        raw.body_section = DATA
        raw.body = data
        return raw
