"""Rewriting for the backlog and back (P-11), of messages of the SDK; the rules are in rules.py.

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
from typing import Any

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.amqp import (
    AmqpAnnotatedMessage,
    AmqpMessageBodyType,
    AmqpMessageHeader,
    AmqpMessageProperties,
)

from twinbus.message import wire_names
from twinbus.pairing.options import RestoredTimeToLive
from twinbus.pairing.producer_keys import STAMP
from twinbus.pairing.rules import (
    DAMAGED,
    EXPIRED,
    EXPIRY,
    NO_PATH,
    PATH,
    PRODUCER_KEY,
    RESERVED,
    SCHEDULED_TIME,
    SESSION_ID,
    TICKS_PER_MS,
    TIME_TO_LIVE,
    TIMESPAN,
    TYPES,
    Lifetime,
    Waiting,
    does_not_fit,
    is_lasting,
    notes_of,
    read_waiting,
    restored_lifetime,
    time_span,
)
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

__all__ = [
    "DAMAGED",
    "EXPIRED",
    "EXPIRY",
    "NO_PATH",
    "PATH",
    "PRODUCER_KEY",
    "RESERVED",
    "SCHEDULED_TIME",
    "SESSION_ID",
    "TIME_TO_LIVE",
    "TYPES",
    "Restored",
    "encoded_size",
    "restore",
    "rewrite",
]


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
    if time_to_live_ms and not is_lasting(time_to_live_ms):
        moved[TIME_TO_LIVE] = _timespan(int(time_to_live_ms))
        # The SDK derives both from the time to live and the moment of the send.
        properties.creation_time = properties.absolute_expiry_time = None
    elif properties.absolute_expiry_time:
        # Together with a creation time this is a time to live as well.
        moved[EXPIRY] = timestamp(int(properties.absolute_expiry_time))
        properties.absolute_expiry_time = None
    # A message that was received and is sent on still has the marks of its old queue.
    annotations = _named(message.annotations)
    for name in wire_names.BROKER_ANNOTATIONS:
        annotations.pop(name, None)
    scheduled = annotations.pop(wire_names.SCHEDULED_TIME, None)
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
    given = _named(message.application_properties)
    waiting = read_waiting(_read(given))
    types = waiting.types
    try:
        properties = _properties(message, types)
        lifetime = _lifetime(message, waiting, properties, now_utc, time_to_live)
        properties.group_id = waiting.session_id
        if lifetime.expiry_ms is not None:
            properties.absolute_expiry_time = lifetime.expiry_ms
        annotations = _recover_map(message.annotations, types, "annotations")
        for name in wire_names.BROKER_ANNOTATIONS:
            annotations.pop(name, None)
        if waiting.scheduled_ms is not None:
            annotations[wire_names.SCHEDULED_TIME] = timestamp(waiting.scheduled_ms)
        restored = AmqpAnnotatedMessage(
            header=_header(message, lifetime.time_to_live_ms),
            properties=properties,
            application_properties=_others(given, types) or None,
            annotations=annotations or None,
            delivery_annotations={STAMP: waiting.key} if waiting.key else None,
            footer=_recover_map(message.footer, types, "footer") or None,
            **_recovered_body(message, str(types.get("body", ""))),
        )
    except TypesError as error:
        raise does_not_fit(error) from error
    partition_key = text_of(annotations.get(wire_names.PARTITION_KEY))
    return Restored(waiting.path, restored, waiting.session_id, partition_key, waiting.key)


def encoded_size(message: AmqpAnnotatedMessage) -> int:
    """Bytes of the message on the wire, by the SDK's own encoder."""
    batch = ServiceBusMessageBatch(max_size_in_bytes=sys.maxsize)
    empty_bytes = batch.size_in_bytes
    batch.add_message(message)
    added_bytes = batch.size_in_bytes - empty_bytes
    # What the SDK adds for the message's place in a batch: 5 bytes, 8 from 256 bytes on.
    return added_bytes - 5 if added_bytes - 5 < 256 else added_bytes - 8


def _named(values: dict[Any, Any] | None) -> dict[str, Any]:
    return {_text(name): value for name, value in (values or {}).items()}


def _read(given: dict[str, Any]) -> dict[str, Any]:
    """What the pair has put there, as the rules take it."""
    found = {name: given[name] for name in RESERVED if name in given}
    span = found.get(TIME_TO_LIVE)
    if isinstance(span, int) and getattr(span, "descriptor", None) == TIMESPAN:
        found[TIME_TO_LIVE] = time_span(span)
    return found


def _others(given: dict[str, Any], types: dict[str, Any]) -> dict[str, Any]:
    """What the sender has put there."""
    mine = {name: value for name, value in given.items() if name not in RESERVED}
    others = _recover_map(mine, types, "application_properties")
    for name, value in others.items():
        if isinstance(value, bytes):  # of itself the SDK would make a text of it
            others[name] = {TYPE: "BINARY", VALUE: value}
    return others


def _text(name: str | bytes) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else name


def _timespan(milliseconds: int) -> tuple[dict[str, Any], dict[str, Any]]:
    return ({TYPE: "SYMBOL", VALUE: TIMESPAN}, {TYPE: "LONG", VALUE: milliseconds * TICKS_PER_MS})


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
    notes = notes_of(types, place)
    if notes is None:
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


def _lifetime(
    message: AmqpAnnotatedMessage,
    waiting: Waiting,
    properties: AmqpMessageProperties,
    now_utc: dt.datetime,
    mode: RestoredTimeToLive,
) -> Lifetime:
    enqueued_ms = time_of(_named(message.annotations).get(wire_names.ENQUEUED_TIME))
    creation_ms = int(properties.creation_time) if properties.creation_time else None
    now_ms = (now_utc - EPOCH) // dt.timedelta(milliseconds=1)
    return restored_lifetime(waiting, mode, enqueued_ms, creation_ms, now_ms)
