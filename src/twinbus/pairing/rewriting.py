"""Rewriting for the backlog and back (P-11): the only place that knows the form of both.

In a backlog queue messages of many entities wait together, so what the broker itself would act
on leaves its place and becomes an application property; everything else stays as it is:

    x-ms-path                       where the message was going (string, always)
    x-ms-sessionid                  session id (string)
    x-ms-timetolive                 time to live (described long `com.microsoft:timespan`, ticks of
                                    100 ns: the TimeSpan of Microsoft's clients)
    x-ms-scheduledenqueuetimeutc    scheduled enqueue time (timestamp)
    x-twinbus-producer-key          the key of the message (string), see producer_keys.py
    x-twinbus-expiry                absolute expiry time where no time to live was given (timestamp)
    x-twinbus-types                 AMQP types that the SDK would lose (JSON), see value_types.py

The first four are what the old .NET client wrote, name and type.  Only the SDK's public message
classes are used.  A message that is given is never changed: both ways make a new one.
"""

import datetime as dt
import json
import sys
from dataclasses import dataclass
from typing import Any, Final

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.amqp import (
    AmqpAnnotatedMessage,
    AmqpMessageBodyType,
    AmqpMessageHeader,
    AmqpMessageProperties,
)

from twinbus.pairing.errors import UnrestorableMessageError
from twinbus.pairing.options import RestoredTimeToLive
from twinbus.pairing.producer_keys import STAMP
from twinbus.pairing.value_types import (
    EPOCH,
    TYPE,
    VALUE,
    TypesError,
    readable,
    recover,
    text_of,
    time_of,
    timestamp,
    types_of,
)

PATH: Final = "x-ms-path"
SESSION_ID: Final = "x-ms-sessionid"
TIME_TO_LIVE: Final = "x-ms-timetolive"
SCHEDULED_TIME: Final = "x-ms-scheduledenqueuetimeutc"
PRODUCER_KEY: Final = "x-twinbus-producer-key"
EXPIRY: Final = "x-twinbus-expiry"
TYPES: Final = "x-twinbus-types"
RESERVED: Final = frozenset(
    {PATH, SESSION_ID, TIME_TO_LIVE, SCHEDULED_TIME, PRODUCER_KEY, EXPIRY, TYPES}
)

# Of a dead letter.
DAMAGED: Final = "DamagedBacklogMessage"
NO_PATH: Final = "NoDestinationPath"
EXPIRED: Final = "TTLExpiredException"

_SCHEDULED_ANNOTATION: Final = "x-opt-scheduled-enqueue-time"
_PARTITION_KEY_ANNOTATION: Final = "x-opt-partition-key"
_ENQUEUED_ANNOTATION: Final = "x-opt-enqueued-time"
# A queue's own marks on a message; the next one makes its own.
_BROKER_ANNOTATIONS: Final = frozenset(
    {
        _ENQUEUED_ANNOTATION,
        "x-opt-sequence-number",
        "x-opt-enqueue-sequence-number",
        "x-opt-locked-until",
        "x-opt-lock-token",
        "x-opt-message-state",
        "x-opt-partition-id",
        "x-opt-deadletter-source",
    }
)
_TIMESPAN: Final = b"com.microsoft:timespan"
_TICKS_PER_MS: Final = 10_000
_UINT_MAX: Final = 2**32 - 1
_NO_TIME_TO_LIVE_MS: Final = 922337203685477  # the SDK's word for "for ever"


@dataclass(frozen=True, slots=True)
class Restored:
    """A message as it was before, ready for a sender of `path`."""

    path: str
    message: AmqpAnnotatedMessage
    session_id: str | None
    partition_key: str | None
    key: str | None  # its producer key, which the message's delivery annotation carries


def rewrite(
    message: AmqpAnnotatedMessage, path: str, key: str | None = None
) -> AmqpAnnotatedMessage:
    """The message as it goes into a backlog queue; `path` is the entity that it was meant for.

    Raises ValueError if the message has a property of a name that is reserved here.
    """
    given = message.application_properties or {}
    for name in given:
        if text_of(name) in RESERVED:
            raise ValueError(
                f"The application property {text_of(name)} is reserved for paired namespaces: "
                "the message cannot go to a backlog queue with it."
            )
    moved: dict[str, Any] = {PATH: path}
    properties = AmqpMessageProperties(**dict(message.properties or {}))
    if properties.group_id is not None:
        moved[SESSION_ID] = _text(properties.group_id)
        properties.group_id = None
    header = None
    if message.header:
        header = AmqpMessageHeader(durable=message.header.durable, priority=message.header.priority)
    time_to_live_ms = message.header.time_to_live if message.header else None
    if time_to_live_ms and time_to_live_ms != _NO_TIME_TO_LIVE_MS:
        moved[TIME_TO_LIVE] = _timespan(int(time_to_live_ms))
        # The SDK derives both from the time to live and the moment of the send.
        properties.creation_time = properties.absolute_expiry_time = None
    elif properties.absolute_expiry_time:
        # Together with a creation time this is a time to live as well.
        moved[EXPIRY] = timestamp(int(properties.absolute_expiry_time))
        properties.absolute_expiry_time = None
    # A message that was received and is sent on still has the marks of its old queue.
    annotations = {_text(name): value for name, value in (message.annotations or {}).items()}
    for name in _BROKER_ANNOTATIONS:
        annotations.pop(name, None)
    scheduled = annotations.pop(_SCHEDULED_ANNOTATION, None)
    if scheduled is not None:
        scheduled_ms = time_of(scheduled)
        if scheduled_ms is None:
            raise ValueError(f"The scheduled enqueue time {scheduled!r} is no time.")
        moved[SCHEDULED_TIME] = timestamp(scheduled_ms)
    if key is not None:
        moved[PRODUCER_KEY] = key
    types = _types(message, annotations)
    if types:
        moved[TYPES] = json.dumps(types, separators=(",", ":"))
    return AmqpAnnotatedMessage(
        header=header,
        properties=properties,
        application_properties=_readable_map(given, types, "application_properties") | moved,
        annotations=_readable_map(annotations, types, "annotations") or None,
        footer=_readable_map(message.footer or {}, types, "footer") or None,
        **{kind: readable(value, types.get("body", "")) for kind, value in _body(message).items()},
    )


def restore(
    message: AmqpAnnotatedMessage,
    now_utc: dt.datetime,
    time_to_live: RestoredTimeToLive = "original",
) -> Restored:
    """The message as it was before `rewrite`, from what a receiver of the backlog queue got.

    `time_to_live`: its whole time to live begins anew at the destination (`original`), or it has
    what is left since it was put into the backlog (`remaining`).  A scheduled time that has
    passed stays, the broker then enqueues at once.

    Raises UnrestorableMessageError for what is no message of a pair, damaged or expired.
    """
    moved = _Moved(message)
    path = moved.text(PATH)
    if not path:
        raise UnrestorableMessageError(
            NO_PATH, f"The message has no {PATH}: no sender of a pair has put it here."
        )
    session_id, key = moved.text(SESSION_ID), moved.text(PRODUCER_KEY)
    scheduled_ms = moved.time(SCHEDULED_TIME)
    types = moved.types()
    spent_ms = 0
    if time_to_live == "remaining":
        spent_ms = _spent_ms(message, scheduled_ms, now_utc)
    try:
        properties = _properties(message, types)
        properties.group_id = session_id
        time_to_live_ms = _restore_expiry(moved, properties, spent_ms)
        annotations = _recover_map(message.annotations, types, "annotations")
        for name in _BROKER_ANNOTATIONS:
            annotations.pop(name, None)
        if scheduled_ms is not None:
            annotations[_SCHEDULED_ANNOTATION] = timestamp(scheduled_ms)
        restored = AmqpAnnotatedMessage(
            header=_header(message, time_to_live_ms),
            properties=properties,
            application_properties=moved.others(types) or None,
            annotations=annotations or None,
            delivery_annotations={STAMP: key} if key else None,
            footer=_recover_map(message.footer, types, "footer") or None,
            **_recovered_body(message, str(types.get("body", ""))),
        )
    except TypesError as error:
        raise UnrestorableMessageError(DAMAGED, f"{TYPES} does not fit: {error}.") from error
    partition_key = text_of(annotations.get(_PARTITION_KEY_ANNOTATION))
    return Restored(path, restored, session_id, partition_key, key)


def encoded_size(message: AmqpAnnotatedMessage) -> int:
    """Bytes of the message on the wire, by the SDK's own encoder."""
    batch = ServiceBusMessageBatch(max_size_in_bytes=sys.maxsize)
    empty_bytes = batch.size_in_bytes
    batch.add_message(message)
    added_bytes = batch.size_in_bytes - empty_bytes
    # What the SDK adds for the message's place in a batch: 5 bytes, 8 from 256 bytes on.
    return added_bytes - 5 if added_bytes - 5 < 256 else added_bytes - 8


class _Moved:
    """The application properties of a message in the backlog: ours, checked, and the others."""

    def __init__(self, message: AmqpAnnotatedMessage) -> None:
        self._properties: dict[str, Any] = {}
        for name, value in (message.application_properties or {}).items():
            self._properties[_text(name)] = value

    def text(self, name: str) -> str | None:
        value = self._properties.get(name)
        text = text_of(value)
        if value is not None and text is None:
            raise _damaged(name, "a text", value)
        return text

    def time(self, name: str) -> int | None:
        value = self._properties.get(name)
        milliseconds = time_of(value)
        if value is not None and milliseconds is None:
            raise _damaged(name, "a time", value)
        return milliseconds

    def time_to_live_ms(self) -> int | None:
        """Ticks if it says that it is a TimeSpan, else milliseconds."""
        value = self._properties.get(TIME_TO_LIVE)
        if value is None:
            return None
        if isinstance(value, dt.timedelta):
            return value // dt.timedelta(milliseconds=1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise _damaged(TIME_TO_LIVE, "a time span", value)
        descriptor = getattr(value, "descriptor", None)
        return int(value) // _TICKS_PER_MS if descriptor == _TIMESPAN else int(value)

    def types(self) -> dict[str, Any]:
        text = self.text(TYPES)
        if text is None:
            return {}
        try:
            types = json.loads(text)
        except ValueError:
            types = None
        if not isinstance(types, dict):
            raise _damaged(TYPES, "a JSON object", text)
        return types

    def others(self, types: dict[str, Any]) -> dict[str, Any]:
        mine = {name: value for name, value in self._properties.items() if name not in RESERVED}
        others = _recover_map(mine, types, "application_properties")
        for name, value in others.items():
            if isinstance(value, bytes):  # of itself the SDK would make a text of it
                others[name] = {TYPE: "BINARY", VALUE: value}
        return others


def _damaged(name: str, expected: str, value: object) -> UnrestorableMessageError:
    return UnrestorableMessageError(
        DAMAGED, f"{name} must be {expected}, not {type(value).__name__} {value!r:.64}."
    )


def _text(name: str | bytes) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else name


def _timespan(milliseconds: int) -> tuple[dict[str, Any], dict[str, Any]]:
    return (
        {TYPE: "SYMBOL", VALUE: _TIMESPAN},
        {TYPE: "LONG", VALUE: milliseconds * _TICKS_PER_MS},
    )


def _body(message: AmqpAnnotatedMessage) -> dict[str, Any]:
    """The keyword that makes a message with the same body."""
    if message.body_type == AmqpMessageBodyType.DATA:
        return {"data_body": list(message.body)}
    if message.body_type == AmqpMessageBodyType.SEQUENCE:
        return {"sequence_body": list(message.body)}
    return {"value_body": message.body}


def _recovered_body(message: AmqpAnnotatedMessage, types: str) -> dict[str, Any]:
    body = _body(message)
    if "data_body" not in body:
        for kind, value in body.items():
            body[kind] = recover(value, types)
    return body


def _types(message: AmqpAnnotatedMessage, annotations: dict[str, Any]) -> dict[str, Any]:
    """What value_types.py notes of each place, without the places that need no note."""
    types: dict[str, Any] = {}
    for field in ("message_id", "correlation_id"):
        types[field] = types_of(getattr(message.properties, field, None))
    # The SDK writes binary application properties as text, whatever they are.
    given = {
        name: text_of(value) if isinstance(value, bytes) else value
        for name, value in (message.application_properties or {}).items()
    }
    for place, values in (
        ("annotations", annotations),
        ("application_properties", given),
        ("footer", message.footer or {}),
    ):
        notes = {str(_text(name)): types_of(value) for name, value in values.items()}
        types[place] = {name: note for name, note in notes.items() if note}
    [(kind, body)] = _body(message).items()
    if kind != "data_body" and body:  # the SDK writes no section for None, 0, "" and the like
        types["body"] = types_of(body, top=True)
    return {place: note for place, note in types.items() if note}


def _readable_map(values: dict[Any, Any], types: dict[str, Any], place: str) -> dict[str, Any]:
    notes = types.get(place, {})
    return {
        _text(name): readable(value, notes.get(str(_text(name)), ""))
        for name, value in values.items()
    }


def _recover_map(
    values: dict[Any, Any] | None, types: dict[str, Any], place: str
) -> dict[str, Any]:
    notes = types.get(place, {})
    if not isinstance(notes, dict):
        raise TypesError(f"{place} must be an object")
    return {
        _text(name): recover(value, str(notes.get(str(_text(name)), "")))
        for name, value in (values or {}).items()
    }


def _properties(message: AmqpAnnotatedMessage, types: dict[str, Any]) -> AmqpMessageProperties:
    properties = AmqpMessageProperties(**dict(message.properties or {}))
    for field in ("message_id", "correlation_id"):
        # Numbers and UUIDs the SDK writes here as it has read them.
        if isinstance(properties[field], bytes):
            properties[field] = recover(properties[field], str(types.get(field, "")))
    return properties


def _header(message: AmqpAnnotatedMessage, time_to_live_ms: int | None) -> AmqpMessageHeader:
    """Without the delivery count: deliveries from the backlog are nobody else's business."""
    given = message.header or AmqpMessageHeader()
    return AmqpMessageHeader(
        durable=given.durable, priority=given.priority, time_to_live=time_to_live_ms
    )


def _spent_ms(message: AmqpAnnotatedMessage, scheduled_ms: int | None, now_utc: dt.datetime) -> int:
    """How much of its time to live the message has used up in the backlog."""
    marks = {_text(name): value for name, value in (message.annotations or {}).items()}
    begun_ms = time_of(marks.get(_ENQUEUED_ANNOTATION))
    if begun_ms is None:
        return 0
    # Time to live counts from the moment at which a scheduled message is enqueued.
    begun_ms = max(begun_ms, scheduled_ms or 0)
    return max(0, (now_utc - EPOCH) // dt.timedelta(milliseconds=1) - begun_ms)


def _restore_expiry(moved: _Moved, properties: AmqpMessageProperties, spent_ms: int) -> int | None:
    """Set the absolute expiry time if there was one alone; give back the time to live."""
    time_to_live_ms = moved.time_to_live_ms()
    expiry_ms = moved.time(EXPIRY)
    if time_to_live_ms is not None:
        left_ms = time_to_live_ms - spent_ms
    elif expiry_ms is not None and properties.creation_time:
        left_ms = expiry_ms - spent_ms - int(properties.creation_time)
    else:
        left_ms = 1
    if left_ms <= 0 < spent_ms:
        raise UnrestorableMessageError(
            EXPIRED, f"Its time to live ended {-left_ms / 1000:g} s ago, while it was waiting here."
        )
    if expiry_ms is not None:
        properties.absolute_expiry_time = expiry_ms - spent_ms
    if time_to_live_ms is None:
        return None
    return min(left_ms, _UINT_MAX)  # the field's largest value: 49 days
