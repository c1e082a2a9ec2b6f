"""The messages of the drill: every kind that an application can send, and what became of one.

    Plan       what a message is like, apart from its name
    build      a message of the SDK by a plan
    portrait   what was received, so that two can be compared: types, values and bodies to the byte

A message is told from others of its plan by its name alone, which the portrait leaves out.
"""

import datetime as dt
import random
import uuid
from dataclasses import dataclass, replace
from typing import Any, Final

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties

from tests.message_sections import sections_of
from twinbus.amqp.decoding import decode_whole
from twinbus.message.sections import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
)

TTL: Final = dt.timedelta(hours=3)  # long: expiry is not what is tested
NAME: Final = "name"  # the application property that holds it
SCHEDULED: Final = "x-opt-scheduled-enqueue-time"
PARTITION_KEY: Final = "x-opt-partition-key"
# What a broker writes on every delivery, different each time.
_OF_THE_BROKER: Final = {
    "x-opt-sequence-number",
    "x-opt-enqueue-sequence-number",
    "x-opt-enqueued-time",
    "x-opt-locked-until",
    "x-opt-partition-id",
    "x-opt-message-state",
    SCHEDULED,  # compared with the very time that was asked for
}
_TIMES: Final = (8, 9)  # of the properties: the SDK writes its own when there is a time to live
_ID: Final = uuid.UUID("c0ffee00-0000-4000-8000-000000000005")
_WHEN: Final = dt.datetime(2026, 11, 16, 12, 30, 15, 250_000, dt.UTC)

BODIES: Final = ("bytes", "text", "sections", "value", "sequence", "empty", "none")


@dataclass(frozen=True)
class Plan:
    """What a message is like."""

    body: str
    is_annotated: bool  # made as AMQP has it, with sections that the SDK's own message lacks
    is_bare: bool = False  # nothing but a message id and what follows
    session: str = ""
    key: str = ""
    has_ttl: bool = False
    is_scheduled: bool = False

    @classmethod
    def draw(cls, chance: random.Random, session: str = "", key: str = "") -> "Plan":
        body = chance.choice(BODIES)
        return cls(
            body,
            is_annotated=body in {"sections", "value", "sequence"} or chance.random() < 0.3,
            is_bare=chance.random() < 0.15,
            session=session,
            key=key,
            has_ttl=chance.random() < 0.3,
            is_scheduled=chance.random() < 0.15,
        )

    def at_once(self) -> "Plan":
        return replace(self, is_scheduled=False)


def build(
    plan: Plan, name: str, time_utc: dt.datetime | None
) -> ServiceBusMessage | AmqpAnnotatedMessage:
    """A new message; `time_utc` for a plan that is scheduled by the message itself."""
    return _annotated(plan, name, time_utc) if plan.is_annotated else _plain(plan, name, time_utc)


def _plain(plan: Plan, name: str, time_utc: dt.datetime | None) -> ServiceBusMessage:
    bodies: dict[str, str | bytes] = {
        "bytes": b"\x00\xff" + name.encode(),
        "text": f"{name} – ü",
        "empty": b"",
    }
    given: dict[str, Any] = {"message_id": name}
    if not plan.is_bare:
        given |= {
            "application_properties": _application_properties(name),
            "content_type": "application/x-drill",
            "correlation_id": f"about {name}",
            "subject": "a subject",
            "to": "somebody",
            "reply_to": "an/address",
            "reply_to_session_id": "another session",
        }
    return ServiceBusMessage(
        bodies.get(plan.body),
        session_id=plan.session or None,
        partition_key=plan.key or None,
        time_to_live=TTL if plan.has_ttl else None,
        scheduled_enqueue_time_utc=time_utc,
        **given,
    )


def _annotated(plan: Plan, name: str, time_utc: dt.datetime | None) -> AmqpAnnotatedMessage:
    bodies: dict[str, dict[str, Any]] = {
        "bytes": {"data_body": b"\x00\xff" + name.encode()},
        "text": {"data_body": f"{name} – ü"},
        "sections": {"data_body": [name.encode(), b"", b"\x00" * 300, b"end"]},
        "value": {"value_body": {"name": name, "list": [1, 2.5, True, None], b"raw": b"\xff\x00"}},
        "sequence": {"sequence_body": [[name, 1], [], [{"a": uuid.UUID(int=7)}, _WHEN]]},
        "empty": {"data_body": b""},
        "none": {"value_body": None},
    }
    # Bytes, as the SDK itself writes these: it would add its own beside a text.
    annotations: dict[Any, Any] = {}
    if plan.key:
        annotations[PARTITION_KEY.encode()] = plan.key
    if time_utc is not None:
        annotations[SCHEDULED.encode()] = time_utc
    properties = AmqpMessageProperties(group_id=plan.session or None)
    header = AmqpMessageHeader(time_to_live=_ms(TTL) if plan.has_ttl else None)
    given: dict[str, Any] = {}
    if plan.is_bare:
        properties.message_id = name
    else:
        annotations |= {"x-drill": 7, "x-drill-text": "of the sender"}
        properties.message_id = _ID
        properties.user_id = b"\x00user"
        properties.to = b"somebody"
        properties.subject = b"a subject"
        properties.reply_to = b"an/address"
        properties.correlation_id = b"about " + name.encode()
        properties.content_type = b"application/x-drill"
        properties.content_encoding = b"identity"
        properties.group_sequence = 4
        properties.reply_to_group_id = b"another session"
        header.durable = True
        header.priority = 6
        given["application_properties"] = _application_properties(name)
        given["footer"] = {"x-checked": "yes"}
    return AmqpAnnotatedMessage(
        properties=properties, header=header, annotations=annotations, **given, **bodies[plan.body]
    )


def _application_properties(name: str) -> dict[str, Any]:
    return {
        NAME: name,
        "number": 5,
        "negative": -70_000,
        "real": 2.75,
        "yes": True,
        "no": False,
        "id": _ID,
        "when": _WHEN,
        "nothing": None,
        "text": "ü" * 40,
    }


def _ms(span: dt.timedelta) -> int:
    return span // dt.timedelta(milliseconds=1)


# --- what came of it ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Portrait:
    """What a receiver can see of a message that it could have seen after a direct send as well."""

    sections: tuple[str, ...]

    def differences(self, other: "Portrait") -> str:
        mine, others = set(self.sections), set(other.sections)
        return f"{sorted(mine - others)} instead of {sorted(others - mine)}"


def portrait(data: bytes, name: str) -> Portrait:
    """Of a message as it stood on the wire."""
    sections: list[str] = []
    blank = "?" * len(name)
    for code, encoded in sections_of(data):
        value = decode_whole(encoded)
        if code == HEADER and isinstance(value, list):
            durable, priority, ttl_ms = (*value, None, None, None)[:3]
            text = f"header {bool(durable)}, {4 if priority is None else int(priority)}, {ttl_ms}"
        elif code == MESSAGE_ANNOTATIONS and isinstance(value, dict):
            kept = {key: each for key, each in value.items() if key not in _OF_THE_BROKER}
            text = f"annotations {_typed(kept)}"
        elif code == PROPERTIES and isinstance(value, list):
            fields = (*value, *[None] * (13 - len(value)))
            masked = [
                (each is not None) if number in _TIMES else each
                for number, each in enumerate(fields)
            ]
            text = f"properties {_typed(masked)}"
        elif code == APPLICATION_PROPERTIES:
            text = f"application properties {_typed(value)}"
        elif code == DELIVERY_ANNOTATIONS:
            continue  # of the hop
        else:
            raw = encoded.replace(name.encode(), blank.encode())
            text = f"body {code:x} {raw.hex()}"
        sections.append(text.replace(name, blank))
    return Portrait(tuple(sections))


def _typed(value: object) -> str:
    """Values that are equal may be of different types: those count, too.  Maps have no order."""
    kind = type(value).__name__
    if isinstance(value, dict):
        entries = sorted(f"{_typed(key)}: {_typed(each)}" for key, each in value.items())
        return f"{{{', '.join(entries)}}}"
    if isinstance(value, list):
        return f"{kind}[{', '.join(map(_typed, value))}]"
    return f"{kind} {value!r}"
