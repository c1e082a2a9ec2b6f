"""The limits of a message's parts, for messages that are large enough to break one.

Nearly every message is too small for that, which `incoming.new_message` sees from two lengths; only
the others come here.  What is refused here is refused as a whole: nothing of it is stored.
"""

from typing import Final

from twinbus.amqp.decoding import skip_within
from twinbus.errors import ArgumentOutOfRange, InvalidOperation, MessageSizeExceeded
from twinbus.limits import (
    MESSAGE_ID_CHARS_MAX,
    PARTITION_KEY_CHARS_MAX,
    PROPERTIES_SIZE_BYTES_MAX,
    PROPERTY_SIZE_BYTES_MAX,
    SESSION_ID_CHARS_MAX,
)
from twinbus.message.scan import Scanned
from twinbus.message.sections import map_entries

# No text in fewer bytes than this has too many characters for any of the ids.
IDS_CHARS_MAX: Final = min(MESSAGE_ID_CHARS_MAX, SESSION_ID_CHARS_MAX)
_DESCRIPTOR_BYTES: Final = 3


def check_ids(scanned: Scanned) -> None:
    """Refuse a message id or session id that is too long."""
    message_id = scanned.message_id()
    if isinstance(message_id, str | bytes):
        _check_length("message id", len(message_id), MESSAGE_ID_CHARS_MAX)
    _check_length("session id", len(scanned.group_id() or ""), SESSION_ID_CHARS_MAX)


def check_partition_key(scanned: Scanned, partition_key: str) -> None:
    """Refuse a partition key that is too long, or another one than the session id."""
    _check_length("partition key", len(partition_key), PARTITION_KEY_CHARS_MAX)
    session_id = scanned.group_id()
    if session_id is not None and session_id != partition_key:
        raise InvalidOperation(
            "The partition key differs from the session id; a message that has both needs the "
            "same text in both."
        )


def check_properties_size(scanned: Scanned) -> None:
    """Refuse properties that are too large, one alone or all together."""
    bare = scanned.bare
    size = len(scanned.annotations)
    if scanned.properties_at >= 0:
        size += skip_within(bare, scanned.properties_at, len(bare)) - scanned.properties_at
    at = scanned.application_properties_at
    if at >= 0:
        end = skip_within(bare, at, len(bare))
        size += end - at
        if end - at > PROPERTY_SIZE_BYTES_MAX:
            _check_each(bare, at, end)
    if size > PROPERTIES_SIZE_BYTES_MAX:
        raise MessageSizeExceeded(
            f"The properties of the message have {size} bytes; "
            f"allowed are {PROPERTIES_SIZE_BYTES_MAX}."
        )


def _check_each(bare: bytes, at: int, end: int) -> None:
    for name, entry in map_entries(bare, at + _DESCRIPTOR_BYTES, end):
        if len(entry) > PROPERTY_SIZE_BYTES_MAX:
            shown = name[:64].decode(errors="replace")
            raise MessageSizeExceeded(
                f"The property '{shown}' has {len(entry)} bytes; "
                f"allowed are {PROPERTY_SIZE_BYTES_MAX}."
            )


def _check_length(what: str, length: int, length_max: int) -> None:
    if length > length_max:
        raise ArgumentOutOfRange(f"The {what} has {length} characters; allowed are {length_max}.")
