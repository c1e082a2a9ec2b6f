"""Messages as HTTP shows them: a body, a `BrokerProperties` header, a header for each property.

    in   request or batch entry ─▶ an encoded AMQP message, as a sending link would have got it
    out  a delivered AMQP message ─▶ body, content type, headers

Whatever a peer writes ends in a message or in ArgumentInvalid.  Nothing in a message can end a
header, begin another, or pass for one of HTTP's own: text goes out as ASCII JSON, and a property
whose name cannot be a header of its own is left out (docs/reference/rest.md).
"""

import base64
import json
import math
import re
from collections.abc import Iterable
from typing import Any, Final
from uuid import UUID

from twinbus.amqp.types import Described, Timestamp
from twinbus.errors import ArgumentInvalid, ArgumentOutOfRange, InvalidOperation
from twinbus.limits import (
    MESSAGE_ID_CHARS_MAX,
    PARTITION_KEY_CHARS_MAX,
    SECTIONS_MAX,
    SESSION_ID_CHARS_MAX,
)
from twinbus.message import wire_names
from twinbus.message.plain import DecodedMessage, Properties, data_section, encode_message
from twinbus.message.sections import DATA
from twinbus.server.http.rest.times import (
    FOREVER_MS,
    http_date,
    read_date,
    read_http_date,
    read_seconds,
)

BATCH_TYPE: Final = "application/vnd.microsoft.servicebus.json"

_TTL_UINT_MAX: Final = 0xFFFF_FFFE
_LONG_MAX: Final = (1 << 63) - 1
_TEXT_CHARS_MAX: Final = 65_535

# Headers that are HTTP's, a proxy's or Service Bus's own: never a property, in or out.
_OWN_NAMES: Final = re.compile(
    r"accept.*|access-control-.*|alt-svc|authorization|brokerproperties|cache-control|"
    r"clear-site-data|connection|content-.*|cookie|date|dnt|expect|forwarded|host|http2-settings|"
    r"if-.*|keep-alive|location|max-forwards|origin|pragma|proxy-.*|range|referer|refresh|"
    r"retry-after|sec-.*|server|servicebus.*authorization|set-cookie|strict-transport-security|te|"
    r"trailer|transfer-encoding|upgrade|upgrade-insecure-requests|user-agent|via|www-authenticate|"
    r"x-content-type-options|x-forwarded-.*|x-frame-options|x-ms-.*|x-real-ip|x-requested-with",
    re.IGNORECASE,
)

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HEADER_TEXT: Final = re.compile(r"[!-~]([ -~]*[!-~])?")
_JSON_SCALAR: Final = re.compile(r'".*"|-?[0-9][0-9.eE+\-]*|true|false|null', re.DOTALL)

_STATES: Final = {0: "Active", 1: "Deferred", 2: "Scheduled"}


# --- in ------------------------------------------------------------------------------------------
def read_message(
    headers: dict[str, str], named_headers: Iterable[tuple[str, str]], body: bytes, now_ms: int
) -> bytes:
    """A request as an encoded message; `named_headers` have their names as the peer wrote them."""
    text = headers.get("brokerproperties")
    broker = {} if text is None else _read_json("BrokerProperties", _as_utf8(text))
    properties = {
        name: _read_scalar(_as_utf8(value)) for name, value in named_headers if not _is_own(name)
    }
    return _encode(broker, properties, body, headers.get("content-type"), now_ms)


def read_batch(body: bytes, now_ms: int) -> list[bytes]:
    """A batch: a JSON array of `{"Body": …, "BrokerProperties": {…}, "UserProperties": {…}}`."""
    entries = _read_json("The batch", body)
    if not isinstance(entries, list) or not entries:
        raise ArgumentInvalid("A batch is a JSON array of at least one message.")
    if len(entries) > SECTIONS_MAX:
        raise ArgumentOutOfRange(f"A batch holds at most {SECTIONS_MAX} messages.")
    return [_read_entry(entry, now_ms) for entry in entries]


def _read_entry(entry: object, now_ms: int) -> bytes:
    if not isinstance(entry, dict):
        raise ArgumentInvalid("Each message of a batch is a JSON object.")
    body = entry.get("Body", "")
    given = entry.get("UserProperties") or {}
    if not isinstance(body, str) or not isinstance(given, dict):
        raise ArgumentInvalid("In a batch, Body is a text and UserProperties an object.")
    properties = {name: _as_property(name, value) for name, value in given.items()}
    return _encode(entry.get("BrokerProperties") or {}, properties, _utf8(body), None, now_ms)


def _encode(
    broker: Any,
    application_properties: dict[str, object],
    body: bytes,
    content_type: str | None,
    now_ms: int,
) -> bytes:
    if not isinstance(broker, dict):
        raise ArgumentInvalid("BrokerProperties must be a JSON object.")
    session_id = _text(broker, "SessionId", SESSION_ID_CHARS_MAX)
    partition_key = _text(broker, "PartitionKey", PARTITION_KEY_CHARS_MAX)
    if session_id is not None and partition_key is not None and session_id != partition_key:
        raise InvalidOperation("SessionId and PartitionKey must be the same when both are given.")
    content_type = _text(broker, "ContentType") or content_type
    if content_type is not None and not _HEADER_TEXT.fullmatch(content_type):
        raise ArgumentInvalid("The content type must be printable ASCII.")
    properties = Properties(
        message_id=_text(broker, "MessageId", MESSAGE_ID_CHARS_MAX),
        to=_text(broker, "To"),
        subject=_text(broker, "Label"),
        reply_to=_text(broker, "ReplyTo"),
        correlation_id=_text(broker, "CorrelationId"),
        content_type=content_type,
        group_id=session_id,
        reply_to_group_id=_text(broker, "ReplyToSessionId", SESSION_ID_CHARS_MAX),
    )
    ttl_ms = _ttl_ms(broker)
    if ttl_ms is not None and ttl_ms > _TTL_UINT_MAX:  # more than the field for it can say
        properties.creation_ms = now_ms
        properties.absolute_expiry_ms = now_ms + ttl_ms
        ttl_ms = None
    annotations: dict[str, object] = {}
    if partition_key is not None:
        annotations[wire_names.PARTITION_KEY] = partition_key
    via = _text(broker, "ViaPartitionKey", PARTITION_KEY_CHARS_MAX)
    if via is not None:
        annotations[wire_names.VIA_PARTITION_KEY] = via
    scheduled = _text(broker, "ScheduledEnqueueTimeUtc")
    if scheduled is not None:
        annotations[wire_names.SCHEDULED_TIME] = Timestamp(
            read_date("ScheduledEnqueueTimeUtc", scheduled)
        )
    return encode_message(
        data_section(body), properties, application_properties, annotations, ttl_ms, durable=True
    )


def _ttl_ms(broker: dict[str, Any]) -> int | None:
    for name in ("TimeToLive", "TimeToLiveTimeSpan"):
        value = broker.get(name)
        if value is not None:
            ttl_ms = read_seconds(name, value)
            return None if ttl_ms >= FOREVER_MS else ttl_ms
    return None


def _text(broker: dict[str, Any], name: str, chars_max: int = _TEXT_CHARS_MAX) -> str | None:
    value = broker.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise ArgumentInvalid(f"{name} in BrokerProperties must be a text.")
    if len(value) > chars_max:
        raise ArgumentOutOfRange(f"{name} may have at most {chars_max} characters.")
    _utf8(value)
    return value


def _read_json(what: str, text: str | bytes) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise ArgumentInvalid(f"{what} is not valid JSON.") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _read_scalar(text: str) -> object:
    """A property's value: a JSON scalar or a date, typed; anything else is text as it stands."""
    if not _JSON_SCALAR.fullmatch(text):
        date_ms = read_http_date(text)
        return text if date_ms is None else Timestamp(date_ms)
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if isinstance(value, str):
        date_ms = read_http_date(value)
        return _as_property("", value) if date_ms is None else Timestamp(date_ms)
    return _as_property("", value)


def _as_property(name: str, value: object) -> object:
    if isinstance(value, str):
        _utf8(value)
    elif isinstance(value, dict | list):
        raise ArgumentInvalid("A property must be a text, a number, true, false or null.")
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) > _LONG_MAX:
        try:
            value = float(value)
        except OverflowError:
            raise ArgumentOutOfRange("A property's number is too large.") from None
    _utf8(name)
    return value


def _utf8(text: str) -> bytes:
    """JSON can spell half a surrogate pair, which no encoding can carry."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ArgumentInvalid("A text holds half of a surrogate pair.") from None


def _as_utf8(header: str) -> str:
    """Header values arrive as Latin-1; most clients mean UTF-8."""
    try:
        return header.encode("latin-1").decode()
    except UnicodeDecodeError:
        return header


def _is_own(name: str) -> bool:
    return _OWN_NAMES.fullmatch(name) is not None


# --- out -----------------------------------------------------------------------------------------
def broker_properties(message: DecodedMessage, received: dict[str, object]) -> str:
    """The `BrokerProperties` header: what the sender said, then what the broker says."""
    sent = message.properties
    annotations = {str(name): value for name, value in message.annotations.items()}
    shown: dict[str, object] = {
        "MessageId": sent.message_id,
        "CorrelationId": sent.correlation_id,
        "SessionId": sent.group_id,
        "Label": sent.subject,
        "To": sent.to,
        "ReplyTo": sent.reply_to,
        "ReplyToSessionId": sent.reply_to_group_id,
        "PartitionKey": annotations.get(wire_names.PARTITION_KEY),
        "ViaPartitionKey": annotations.get(wire_names.VIA_PARTITION_KEY),
        "DeadLetterSource": annotations.get(wire_names.DEADLETTER_SOURCE),
        "EnqueuedSequenceNumber": annotations.get(wire_names.ENQUEUE_SEQUENCE_NUMBER),
    }
    scheduled = annotations.get(wire_names.SCHEDULED_TIME)
    if isinstance(scheduled, int):
        shown["ScheduledEnqueueTimeUtc"] = http_date(scheduled)
    if message.ttl_ms is not None:
        seconds = message.ttl_ms / 1_000
        shown["TimeToLive"] = int(seconds) if seconds.is_integer() else seconds
    shown.update(received)
    present = {name: as_json(value) for name, value in shown.items() if value is not None}
    return _ascii_json(present)


def broker_facts(
    sequence_number: int, enqueued_ms: int, delivery_count: int, state: int
) -> dict[str, object]:
    """What the broker says of every message that it hands out.

    A delivery counts from its beginning here; AMQP counts those that have failed.
    """
    return {
        "SequenceNumber": sequence_number,
        "EnqueuedTimeUtc": http_date(enqueued_ms),
        "DeliveryCount": delivery_count + 1,
        "State": _STATES.get(state, "Active"),
    }


def property_headers(message: DecodedMessage) -> list[tuple[str, str]]:
    """A header for each application property that can be one."""
    headers: list[tuple[str, str]] = []
    for name, value in message.application_properties.items():
        if isinstance(name, str) and _HEADER_NAME.fullmatch(name) and not _is_own(name):
            headers.append((str(name), _ascii_json(as_json(value))))
    return headers


def body_of(message: DecodedMessage) -> tuple[bytes, str]:
    """The body as bytes, and its content type: the sender's, or what it looks like."""
    body = message.body
    given = message.properties.content_type
    if given is not None and not _HEADER_TEXT.fullmatch(given):
        given = None
    if message.body_section == DATA or isinstance(body, bytes):
        return _as_bytes(body), given or "application/octet-stream"
    if body is None:
        return b"", given or "application/octet-stream"
    if isinstance(body, str):
        return body.encode("utf-8", "replace"), given or "text/plain; charset=utf-8"
    return _ascii_json(as_json(body)).encode(), given or "application/json"


def _as_bytes(body: object) -> bytes:
    return bytes(body) if isinstance(body, bytes) else b""


def as_json(value: object) -> object:
    """An AMQP value as JSON has it; what JSON lacks becomes text."""
    if isinstance(value, Timestamp):
        return http_date(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list | tuple):
        return [as_json(element) for element in value]
    if isinstance(value, dict):
        return {_key(name): as_json(element) for name, element in value.items()}
    if isinstance(value, Described):
        return as_json(value.value)
    return str(value) if isinstance(value, UUID) else None


def _key(name: object) -> str:
    plain = as_json(name)
    return plain if isinstance(plain, str) else json.dumps(plain)


def _ascii_json(value: object) -> str:
    """JSON in printable ASCII, whatever it says."""
    return json.dumps(value, separators=(",", ":")).replace("\x7f", "\\u007f")
