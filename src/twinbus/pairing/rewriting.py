"""Rewriting for the backlog and back (P-11), of messages of the SDK.

The table of what leaves its place, and comes back, is in rules.py.  Only the SDK's public message
classes are used.  A message that is given is never changed: both ways make a new one.
"""

import datetime as dt
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.amqp import (
    AmqpAnnotatedMessage,
    AmqpMessageBodyType,
    AmqpMessageHeader,
    AmqpMessageProperties,
)

from twinbus.message import wire_names
from twinbus.pairing import rules
from twinbus.pairing.options import RestoredTimeToLive
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


@dataclass(frozen=True, slots=True)
class Restored:
    """A message as it was before, ready for a sender of `path`."""

    path: str
    message: AmqpAnnotatedMessage
    session_id: str | None
    partition_key: str | None
    key: str | None  # its producer key, which the message's delivery annotation carries
    primary: str | None  # the mark of the primary that it belongs to
    namespace: str | None  # that primary's id, if it has told one


def rewrite(
    message: AmqpAnnotatedMessage,
    path: str,
    key: str | None = None,
    primary: str | None = None,
    namespace: str | None = None,
) -> AmqpAnnotatedMessage:
    """The message as it goes into a backlog queue; `path` is the entity that it was meant for.

    `primary` is the mark of the primary that has this entity, `namespace` its id if it is known.

    Raises ValueError if the message has a property of a name that is reserved here.
    """
    given = message.application_properties or {}
    for name in given:
        if text_of(name) in rules.RESERVED:
            raise ValueError(
                f"The application property {text_of(name)} is reserved for paired namespaces: "
                "the message cannot go to a backlog queue with it."
            )
    header, properties = _header(message), _properties(message)
    annotations = _annotations(message)
    header.time_to_live = message.header.time_to_live if message.header else None
    if not rules.is_lasting(header.time_to_live):
        # The SDK derives both from the time to live and the moment of the send.
        properties.creation_time = properties.absolute_expiry_time = None
    elif properties.absolute_expiry_time:
        properties.absolute_expiry_time = int(properties.absolute_expiry_time)  # as the SDK does
    marks = {rules.PATH: path, rules.PRIMARY: primary, rules.NAMESPACE: namespace}
    moved = {name: mark for name, mark in marks.items() if mark is not None} | _moved(
        {
            rules.HEADER: header,
            rules.PROPERTIES: properties,
            rules.ANNOTATIONS: annotations,
            rules.DELIVERY_ANNOTATIONS: {wire_names.PRODUCER_KEY: key},
        }
    )
    maps: dict[str, dict[Any, Any]] = {
        rules.ANNOTATIONS: annotations,
        rules.APPLICATION_PROPERTIES: given,
        rules.FOOTER: message.footer or {},
    }
    types = _types(message, maps)
    if types:
        moved[rules.TYPES] = json.dumps(types, separators=(",", ":"))
    made = {place: _readable_map(maps[place], types, place) for place in rules.NOTED_MAPS}
    made[rules.APPLICATION_PROPERTIES] |= moved
    note = rules.note_of(types, rules.BODY)
    return AmqpAnnotatedMessage(
        header=header if message.header else None,
        properties=properties,
        **{place: values or None for place, values in made.items()},
        **{kind: readable(value, note) for kind, value in _body(message).items()},
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
    properties = _properties(message)
    back = rules.restoration(
        _read(message),
        time_to_live,
        (now_utc - EPOCH) // dt.timedelta(milliseconds=1),
        time_of(_named(message.annotations).get(wire_names.ENQUEUED_TIME)),
        lambda: int(properties.creation_time) if properties.creation_time else None,
    )
    try:
        for field in rules.NOTED_FIELDS:
            # Numbers and UUIDs the SDK writes here as it has read them.
            if isinstance(properties[field], bytes):
                properties[field] = recover(properties[field], rules.note_of(back.types, field))
        sections = _recovered_maps(message, back.types)
        note = rules.note_of(back.types, rules.BODY)
        body = {
            kind: value if kind == "data_body" else recover(value, note)
            for kind, value in _body(message).items()
        }
    except TypesError as error:
        raise rules.does_not_fit(error) from error
    sections |= {
        rules.HEADER: _header(message),
        rules.PROPERTIES: properties,
        rules.DELIVERY_ANNOTATIONS: {},
    }
    for place, field, form, value in back.changes:
        section = sections[place]
        # Fields of the header and the properties have one type each, entries of a map do not.
        is_entry = isinstance(section, dict)
        section[field] = timestamp(value) if is_entry and form == rules.TIME else value
    partition_key = text_of(_named(message.annotations).get(wire_names.PARTITION_KEY))
    restored = AmqpAnnotatedMessage(
        **{place: section or None for place, section in sections.items()}, **body
    )
    return Restored(
        back.path, restored, back.session_id, partition_key, back.key, back.primary, back.namespace
    )


def marks_of(message: AmqpAnnotatedMessage) -> tuple[str | None, str | None]:
    """The mark and the id of the primary that a message of the backlog belongs to.

    None for what it does not have, or what cannot be read.
    """
    given = _named(message.application_properties)
    return text_of(given.get(rules.PRIMARY)), text_of(given.get(rules.NAMESPACE))


def path_of(message: AmqpAnnotatedMessage) -> str | None:
    """The entity that a message of the backlog was meant for, if it can be read."""
    return text_of(_named(message.application_properties).get(rules.PATH))


def encoded_size(message: AmqpAnnotatedMessage) -> int:
    """Bytes of the message on the wire, by the SDK's own encoder."""
    batch = ServiceBusMessageBatch(max_size_in_bytes=sys.maxsize)
    empty_bytes = batch.size_in_bytes
    batch.add_message(message)
    added_bytes = batch.size_in_bytes - empty_bytes
    # What the SDK adds for the message's place in a batch: 5 bytes, 8 from 256 bytes on.
    return added_bytes - 5 if added_bytes - 5 < 256 else added_bytes - 8


def _header(message: AmqpAnnotatedMessage) -> AmqpMessageHeader:
    given = message.header or AmqpMessageHeader()
    return AmqpMessageHeader(**{field: given[field] for field in rules.HEADER_STAYS})


def _properties(message: AmqpAnnotatedMessage) -> AmqpMessageProperties:
    return AmqpMessageProperties(**dict(message.properties or {}))


def _annotations(message: AmqpAnnotatedMessage) -> dict[str, Any]:
    """Without the marks of the queue that the message was received from."""
    annotations = _named(message.annotations)
    for name in wire_names.BROKER_ANNOTATIONS:
        annotations.pop(name, None)
    return annotations


def _named(values: dict[Any, Any] | None) -> dict[str, Any]:
    return {_text(name): value for name, value in (values or {}).items()}


def _moved(sections: dict[str, Any]) -> dict[str, Any]:
    """What leaves its place, by its marker."""
    moved: dict[str, Any] = {}
    for rule in rules.RULES:
        section = sections.get(rule.section, {})
        value = section.get(rule.field)
        if rule.field in section:
            del section[rule.field]
        if value is not None and value not in rule.nothing:
            moved[rule.marker] = _WRITERS[rule.form](value)
    return moved


def _read(message: AmqpAnnotatedMessage) -> dict[str, Any]:
    """What the pair has put there, as the rules take it."""
    given = _named(message.application_properties)
    found = {name: given[name] for name in rules.RESERVED if name in given}
    for name, value in found.items():
        if isinstance(value, int) and getattr(value, "descriptor", None) == rules.TIMESPAN:
            found[name] = rules.time_span(value)
    return found


def _text(name: str | bytes) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else name


def _time(value: object) -> Any:
    milliseconds = time_of(value)
    if milliseconds is None:
        raise ValueError(f"The scheduled enqueue time {value!r} is not a time.")
    return timestamp(milliseconds)


def _timespan(milliseconds: int) -> tuple[dict[str, Any], dict[str, Any]]:
    ticks = int(milliseconds) * rules.TICKS_PER_MS
    return ({TYPE: "SYMBOL", VALUE: rules.TIMESPAN}, {TYPE: "LONG", VALUE: ticks})


# How the SDK writes what a marker holds.
_WRITERS: Final[dict[str, Callable[[Any], Any]]] = {
    rules.TEXT: _text,
    rules.TIME: _time,
    rules.SPAN: _timespan,
}


def _body(message: AmqpAnnotatedMessage) -> dict[str, Any]:
    """The keyword that makes a message with the same body."""
    if message.body_type == AmqpMessageBodyType.DATA:
        return {"data_body": list(message.body)}
    if message.body_type == AmqpMessageBodyType.SEQUENCE:
        return {"sequence_body": list(message.body)}
    return {"value_body": message.body}


def _types(message: AmqpAnnotatedMessage, maps: dict[str, Any]) -> dict[str, Any]:
    """What value_types.py notes of each place, without the places that need no note."""
    types: dict[str, Any] = {}
    for field in rules.NOTED_FIELDS:
        types[field] = types_of(getattr(message.properties, field, None))
    for place in rules.NOTED_MAPS:
        notes = {}
        for name, value in maps[place].items():
            # The SDK writes binary application properties as text, whatever they are.
            is_text = place == rules.APPLICATION_PROPERTIES and isinstance(value, bytes)
            notes[str(_text(name))] = "" if is_text else types_of(value)
        types[place] = {name: note for name, note in notes.items() if note}
    [(kind, body)] = _body(message).items()
    if kind != "data_body" and body:  # the SDK writes no section for None, 0, "" and the like
        types[rules.BODY] = types_of(body, top=True)
    return {place: note for place, note in types.items() if note}


def _readable_map(values: dict[Any, Any], types: dict[str, Any], place: str) -> dict[str, Any]:
    notes = rules.notes_of(types, place)
    return {
        _text(name): readable(value, rules.note_of(notes, str(_text(name))))
        for name, value in values.items()
    }


def _recovered_maps(message: AmqpAnnotatedMessage, types: dict[str, Any]) -> dict[str, Any]:
    """What the sender has put there, with its types."""
    given = _named(message.application_properties)
    maps = {
        rules.ANNOTATIONS: _annotations(message),
        rules.APPLICATION_PROPERTIES: {
            name: value for name, value in given.items() if name not in rules.RESERVED
        },
        rules.FOOTER: _named(message.footer),
    }
    for place in rules.NOTED_MAPS:
        notes = rules.notes_of(types, place)
        for name, value in maps[place].items():
            maps[place][name] = recover(value, rules.note_of(notes, str(name)))
    for name, value in maps[rules.APPLICATION_PROPERTIES].items():
        if isinstance(value, bytes):  # of itself the SDK would make a text of it
            maps[rules.APPLICATION_PROPERTIES][name] = {TYPE: "BINARY", VALUE: value}
    return maps
