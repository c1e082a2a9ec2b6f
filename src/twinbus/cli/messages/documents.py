"""Messages as JSON: what `peek` and `receive` print, and what `send --json-lines` takes back.

A message that is printed and sent again is the same message, but for what only the bus can say of
it (sequence number, state, times, delivery count), which is left out of what is sent.  JSON has
fewer kinds of values than AMQP; those it has not are objects with one key:

    {"$timestamp": "2026-11-16T07:00:00.000+00:00"}  {"$uuid": "…"}  {"$binary": "base64"}
    {"$double": "nan"}

All sizes of whole numbers are one kind, and so are symbols, characters and strings.
"""

import base64
import binascii
import json
import math
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from twinbus.amqp.types import Described, Timestamp, ULong
from twinbus.errors import ConfigError
from twinbus.message import wire_names
from twinbus.message.plain import (
    DecodedMessage,
    Properties,
    data_section,
    decode_message,
    encode_message,
    sequence_section,
    value_section,
)
from twinbus.message.sections import SEQUENCE, VALUE

Document = dict[str, Any]  # any JSON

_STATES: Final = {0: "active", 1: "deferred", 2: "scheduled"}
_BODY_CHARS_MAX: Final = 60  # of a body in a line for people
_TIME_TO_LIVE_MS_MAX: Final = 0xFFFF_FFFF  # of AMQP's header; more is as good as no end
_NUMBER_MAX: Final = 2**63
# Name here → field of AMQP's properties; all of them texts.
_TEXTS: Final = {
    "session_id": "group_id",
    "subject": "subject",
    "content_type": "content_type",
    "to": "to",
    "reply_to": "reply_to",
    "reply_to_session_id": "reply_to_group_id",
}
_IDS: Final = ("message_id", "correlation_id")
_KEYS: Final = {
    "partition_key": wire_names.PARTITION_KEY,
    "via_partition_key": wire_names.VIA_PARTITION_KEY,
}
# What only the bus can say: printed, and passed over when it is sent.
_OF_THE_BUS: Final = frozenset(
    (
        "sequence_number",
        "state",
        "enqueued_time",
        "locked_until",
        "delivery_count",
        "dead_letter_source",
    )
)
SENT: Final = (
    *_IDS,
    *_TEXTS,
    *_KEYS,
    "time_to_live_ms",
    "scheduled_enqueue_time",
    "application_properties",
    "body",
    "body_base64",
    "body_type",
)


# --- a message as JSON ----------------------------------------------------------------------------


def document_of(encoded: bytes) -> Document:
    message = decode_message(encoded)
    annotations = {str(key): value for key, value in message.annotations.items()}
    properties = message.properties
    state = annotations.get(wire_names.MESSAGE_STATE, 0)
    document: Document = {
        "sequence_number": to_json(annotations.get(wire_names.SEQUENCE_NUMBER)),
        "state": _STATES.get(state, "unknown") if isinstance(state, int) else "unknown",
        "enqueued_time": _time_text(annotations.get(wire_names.ENQUEUED_TIME)),
        "locked_until": _time_text(annotations.get(wire_names.LOCKED_UNTIL)),
        "delivery_count": message.delivery_count,
    }
    document |= {name: to_json(getattr(properties, name)) for name in _IDS}
    document |= {name: getattr(properties, field) for name, field in _TEXTS.items()}
    document |= {name: to_json(annotations.get(key)) for name, key in _KEYS.items()}
    document |= {
        "time_to_live_ms": message.ttl_ms,
        "scheduled_enqueue_time": _time_text(annotations.get(wire_names.SCHEDULED_TIME)),
        "application_properties": to_json(message.application_properties),
        "dead_letter_source": to_json(annotations.get(wire_names.DEADLETTER_SOURCE)),
    }
    document = {name: value for name, value in document.items() if value not in (None, {})}
    return {**document, **_body_of(message)}


def _body_of(message: DecodedMessage) -> Document:
    body = message.body
    if message.body_section in (SEQUENCE, VALUE):
        kind = "sequence" if message.body_section == SEQUENCE else "value"
        return {"body": to_json(body), "body_type": kind}
    if not isinstance(body, bytes):
        return {"body": ""}
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def to_json(value: object) -> Any:
    """A value of AMQP's as JSON can have it."""
    if isinstance(value, dict):
        return {str(key): to_json(each) for key, each in value.items()}
    if isinstance(value, list):
        return [to_json(each) for each in value]
    if isinstance(value, Described):
        return to_json(value.value)
    if isinstance(value, Timestamp):
        return {"$timestamp": _time_text(value)}
    if isinstance(value, UUID):
        return {"$uuid": str(value)}
    if isinstance(value, bytes):
        return {"$binary": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$double": str(float(value))}
    return value


def _time_text(value: object) -> str | None:
    if not isinstance(value, int):
        return None
    try:
        return datetime.fromtimestamp(value / 1_000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(int(value))  # beyond what has a name


def line_of(document: Document) -> str:
    """A message in one line that no message can break out of."""
    properties = document.get("application_properties", {})
    body = document.get("body", document.get("body_base64", ""))
    shown = body if isinstance(body, str) else json.dumps(body)
    cells = [
        str(document.get("sequence_number", "-")),
        str(document["state"]),
        str(document.get("enqueued_time", "")),
        f"deliveries={document['delivery_count']}",
    ]
    names = ("message_id", "session_id", "subject")
    cells += [f"{name}={json.dumps(document[name])}" for name in names if name in document]
    if wire_names.DEAD_LETTER_REASON in properties:
        cells.append(f"reason={json.dumps(properties[wire_names.DEAD_LETTER_REASON])}")
    more = "…" if len(shown) > _BODY_CHARS_MAX else ""
    cells.append(json.dumps(shown[:_BODY_CHARS_MAX] + more))
    return "  ".join(cells)


# --- JSON as a message ----------------------------------------------------------------------------


def encode_document(document: Document) -> bytes:
    """The message to send; ConfigError says what is wrong with it."""
    for name in document:
        if name not in SENT and name not in _OF_THE_BUS:
            raise ConfigError(f"a message has no {name[:64]!r}; it may have {', '.join(SENT)}")
    properties = Properties()
    for name in _IDS:
        setattr(properties, name, _id(document, name))
    for name, field in _TEXTS.items():
        setattr(properties, field, _text(document, name))
    annotations: dict[str, object] = {}
    for name, key in _KEYS.items():
        text = _text(document, name)
        if text is not None:
            annotations[key] = text
    scheduled = _text(document, "scheduled_enqueue_time")
    if scheduled is not None:
        annotations[wire_names.SCHEDULED_TIME] = Timestamp(_time_ms(scheduled))
    given = document.get("application_properties", {})
    if not isinstance(given, dict):
        raise ConfigError('application_properties is not a JSON object; write {"name": value}')
    return encode_message(
        _encode_body(document),
        properties,
        {name: from_json(value) for name, value in given.items()},
        annotations,
        ttl_ms=_time_to_live_ms(document),
        durable=True,
    )


def _encode_body(document: Document) -> bytes:
    if "body_base64" in document:
        if "body" in document:
            raise ConfigError("both body and body_base64; a message has one of them")
        return data_section(_from_base64(document["body_base64"], "body_base64"))
    body, kind = document.get("body", ""), document.get("body_type", "data")
    if kind == "value":
        return value_section(from_json(body))
    if kind == "sequence" and isinstance(body, list):
        return sequence_section([from_json(each) for each in body])
    if kind != "data":
        raise ConfigError("body_type is not valid; write data, value, or sequence for a list")
    # An object is most likely a document to be carried as it is.
    return data_section((body if isinstance(body, str) else json.dumps(body)).encode())


def from_json(value: Any) -> object:
    """The value of AMQP's that `to_json` has made this of."""
    if isinstance(value, list):
        return [from_json(each) for each in value]
    if isinstance(value, int) and not -_NUMBER_MAX <= value < _NUMBER_MAX:
        return ULong(value) if 0 <= value < 2 * _NUMBER_MAX else float(value)
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        [(kind, text)] = value.items()
        if kind == "$timestamp":
            return Timestamp(_time_ms(str(text)))
        if kind == "$binary":
            return _from_base64(text, kind)
        if kind in ("$uuid", "$double"):
            try:
                return UUID(str(text)) if kind == "$uuid" else float(text)
            except (ValueError, TypeError):
                raise ConfigError(f"{str(text)[:64]!r} is not a {kind}; check the value") from None
    return {name: from_json(each) for name, each in value.items()}


def _text(document: Document, name: str) -> str | None:
    value = document.get(name)
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{name} is not text; write it in quotes")
    return value


def _id(document: Document, name: str) -> object:
    """AMQP has four kinds of ids, and a whole number among them is a ulong."""
    value = from_json(document.get(name))
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return ULong(value)
    if value is None or isinstance(value, str | bytes | UUID):
        return value
    raise ConfigError(f"{name} is not an id; write text or a whole number")


def _time_to_live_ms(document: Document) -> int | None:
    value = document.get("time_to_live_ms")
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError("time_to_live_ms is not a duration; write whole milliseconds above 0")
    return min(value, _TIME_TO_LIVE_MS_MAX)


def _time_ms(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        if text.lstrip("-").isdecimal():  # beyond what has a name
            return int(text)
        raise ConfigError(
            f"{text[:64]!r} is not a time; write 2026-11-16T07:00:00Z (ISO 8601)"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1_000)


def _from_base64(text: object, name: str) -> bytes:
    try:
        return base64.b64decode(str(text), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(f"{name} is not base64; check that it is complete") from None
