"""One message as the page shows it: always JSON, whatever the message contains.

Sequence numbers are text: they have 64 bits, and a browser's numbers only 53.  Property values are
text with the name of their type.  A body is shown as text if it is text, otherwise as hex digits,
and a long body is cut.
"""

import codecs
import json
import re
from typing import Any, Final
from uuid import UUID

from twinbus.amqp.types import Described, Timestamp
from twinbus.entities.commands import Delivered
from twinbus.entities.message import ACTIVE, DEFERRED, NEVER_MS, SCHEDULED, Message
from twinbus.limits import PAGE_BODY_BYTES_MAX
from twinbus.message import wire_names
from twinbus.message.field_values import time_of, to_plain
from twinbus.message.filter_fields import id_text
from twinbus.message.outgoing import decode_outgoing, encode_overlaid
from twinbus.message.plain import DecodedMessage
from twinbus.server.http.rest.messages import as_json

STATES: Final = {"active": ACTIVE, "deferred": DEFERRED, "scheduled": SCHEDULED}

_STATE_NAMES: Final = {state: name for name, state in STATES.items()}
# Control characters but tab and the ends of lines: what has them is not for reading.
_UNREADABLE: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
# Python's own types; AMQP's others have classes that are named like them.
_TYPES: Final[dict[type, str]] = {
    bool: "boolean",
    int: "long",
    float: "double",
    str: "string",
    bytes: "binary",
    list: "list",
    dict: "map",
    type(None): "null",
}


def message_document(delivered: Delivered) -> dict[str, Any]:
    message = delivered.message
    decoded = decode_outgoing(encode_overlaid(message, delivered.body, 0))
    sent = decoded.properties
    annotations = {str(name): value for name, value in decoded.annotations.items()}
    properties = {str(name): value for name, value in decoded.application_properties.items()}
    reason = properties.pop(wire_names.DEAD_LETTER_REASON, None)
    description = properties.pop(wire_names.DEAD_LETTER_DESCRIPTION, None)
    source = annotations.get(wire_names.DEADLETTER_SOURCE)
    is_dead = any(each is not None for each in (reason, description, source))
    return {
        "sequence_number": str(message.sequence_number),
        "enqueued_sequence_number": _text(annotations.get(wire_names.ENQUEUE_SEQUENCE_NUMBER)),
        "message_id": id_text(sent.message_id),
        "session_id": _text(sent.group_id),
        "correlation_id": id_text(sent.correlation_id),
        "subject": _text(sent.subject),
        "to": _text(sent.to),
        "reply_to": _text(sent.reply_to),
        "reply_to_session_id": _text(sent.reply_to_group_id),
        "content_type": _text(sent.content_type),
        "partition_key": _text(annotations.get(wire_names.PARTITION_KEY)),
        **_times(message),
        "state": _STATE_NAMES.get(message.state, "active"),
        "delivery_count": message.delivery_count,
        "dead_letter": {
            "reason": _text(reason),
            "description": _text(description),
            "source": _text(source),
        }
        if is_dead
        else None,
        "properties": [
            {"name": name, "type": _type_name(value), "value": _text(value)}
            for name, value in properties.items()
        ],
        "size_bytes": len(delivered.body),
        "body": body_document(decoded),
    }


def _times(message: Message) -> dict[str, str | None]:
    """When a scheduled message is due stands where others have when they came."""
    is_scheduled = message.state == SCHEDULED
    moment = _moment(message.enqueued_ms)
    return {
        "enqueued": None if is_scheduled else moment,
        "expires": None if message.expires_ms >= NEVER_MS else _moment(message.expires_ms),
        "scheduled": moment if is_scheduled else None,
    }


# --- values ---------------------------------------------------------------------------------------


def _type_name(value: object) -> str:
    if isinstance(value, Described):
        return str(to_plain(value.descriptor))[:64]
    return _TYPES.get(type(value), type(value).__name__.lower())


def _text(value: object) -> str | None:
    """Any value in words."""
    if value is None or isinstance(value, str):
        return None if value is None else str(value)
    if isinstance(value, Timestamp):
        return _moment(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, bool | list | dict | Described):
        return json.dumps(as_json(value), ensure_ascii=False)
    return str(value) if isinstance(value, int | float | UUID) else json.dumps(as_json(value))


def _moment(utc_ms: int) -> str:
    return time_of(utc_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# --- bodies ---------------------------------------------------------------------------------------


def body_document(message: DecodedMessage) -> dict[str, Any]:
    body = message.body
    if body is None:
        return {"kind": "none", "text": "", "size_bytes": 0, "is_truncated": False}
    if isinstance(body, bytes | str):
        raw = body if isinstance(body, bytes) else body.encode("utf-8", "replace")
        shown = bytes(raw[:PAGE_BODY_BYTES_MAX])
        text = readable(shown, is_whole=len(shown) == len(raw))
        kind = "hex" if text is None else "text"
        text = shown.hex() if text is None else text
        is_truncated = len(shown) < len(raw)
    else:
        text = json.dumps(as_json(body), ensure_ascii=False)
        raw = text.encode()
        is_truncated = len(text) > PAGE_BODY_BYTES_MAX
        kind, text = "value", text[:PAGE_BODY_BYTES_MAX]
    return {"kind": kind, "text": text, "size_bytes": len(raw), "is_truncated": is_truncated}


def readable(data: bytes, *, is_whole: bool) -> str | None:
    """The text that these bytes are; None if they are none.  The last character may be cut."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(data, final=is_whole)
    except UnicodeDecodeError:
        return None
    return None if _UNREADABLE.search(text) else text
