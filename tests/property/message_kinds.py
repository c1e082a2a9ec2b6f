"""Every kind of message that a paired client may send, by name, and some that others may put there.

`KINDS` are messages as they are sent.  `FOREIGN` and `REFUSED` are application properties as they
wait in a backlog queue: of other clients, made by hand, or damaged.
"""

import datetime as dt
import decimal
import uuid
from typing import Any

from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties

from twinbus.pairing.rules import DAMAGED, EXPIRED, NO_PATH

NOW = dt.datetime(2026, 11, 15, 12, tzinfo=dt.UTC)
NOW_MS = int(NOW.timestamp() * 1000)
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
FOR_EVER_MS = 922337203685477


def named(name: str, value: object) -> dict[str, Any]:
    return {"TYPE": name, "VALUE": value}


# Every type of AMQP that the SDK can write.
VALUES: dict[str, Any] = {
    "null": None,
    "true": True,
    "false": False,
    "ubyte": named("UBYTE", 255),
    "ushort": named("USHORT", 65535),
    "uint": named("UINT", 2**32 - 1),
    "ulong": named("ULONG", 2**64 - 1),
    "small ulong": named("ULONG", 5),
    "byte": named("BYTE", -128),
    "short": named("SHORT", -32768),
    "int": -7,
    "long": named("LONG", -(2**63)),
    "small long": named("LONG", 5),
    "float": named("FLOAT", 1.5),
    "double": 0.1,
    "decimal": decimal.Decimal("-12.50"),
    "named decimal": named("DECIMAL128", decimal.Decimal("1E+3")),
    "timestamp": NOW,
    "late timestamp": named("TIMESTAMP", 2**60),
    "uuid": uuid.UUID(int=7),
    "binary": named("BINARY", b"\xff\x00"),
    "binary that could be text": named("BINARY", b"text?"),
    "string": "Grüße",
    "empty string": "",
    "long string": "x" * 300,
    "symbol": named("SYMBOL", "symbol"),
}
NESTED: dict[str, Any] = {
    "bytes": b"bytes",
    "list": [1, "a", b"b", None, [NOW, decimal.Decimal("1.5")]],
    "map": {"a": {"b": [1.5, b"x"]}, 5: named("LONG", 5)},
    "array of ints": named("ARRAY", [1, 2, 3]),
    "array of texts": named("ARRAY", ["a", "b"]),
    "described": (named("SYMBOL", "com.microsoft:timespan"), named("LONG", 50_000_000)),
    "described list": (named("ULONG", 2**40), [1, "a"]),
}
IDS: dict[str, Any] = {
    "none": None,
    "text": "id",
    "empty text": "",
    "long text": "i" * 300,
    "uuid": uuid.UUID(int=9),
    "ulong": 2**64 - 1,
    "small ulong": 0,
    "binary": b"\xff\xfe",
    "binary that could be text": b"id",
}
BODIES: dict[str, dict[str, Any]] = {
    "data": {"data_body": b"body"},
    "empty data": {"data_body": b""},
    "no data": {"data_body": []},
    "several data": {"data_body": [b"one", b"", b"three"]},
    "large data": {"data_body": b"x" * 100_000},
    "sequence": {"sequence_body": [[1, "a", b"b", NOW]]},
    "several sequences": {"sequence_body": [[1], [], [decimal.Decimal("1.5"), None]]},
    "empty sequence": {"sequence_body": [[]]},
    "no sequence": {"sequence_body": []},
    "value that looks named": {"value_body": named("LONG", 5)},
    "empty list": {"value_body": []},
    "empty map": {"value_body": {}},
    "large list": {"value_body": ["x" * 20] * 1_000},
    **{
        f"value: {name}": {"value_body": value}
        for name, value in (VALUES | NESTED).items()
        if not isinstance(value, dict) or "TYPE" not in value
    },
}


def message(**parts: Any) -> AmqpAnnotatedMessage:
    return AmqpAnnotatedMessage(**({"data_body": b"body"} | parts))


def with_properties(**fields: Any) -> AmqpAnnotatedMessage:
    return message(properties=AmqpMessageProperties(**fields))


def living(time_to_live_ms: int | None, **fields: Any) -> AmqpAnnotatedMessage:
    return message(
        header=AmqpMessageHeader(time_to_live=time_to_live_ms),
        properties=AmqpMessageProperties(message_id="m", **fields),
    )


def scheduled(when: object) -> AmqpAnnotatedMessage:
    return message(annotations={"x-opt-scheduled-enqueue-time": when})


EVERY_FIELD: dict[str, Any] = {
    "message_id": "m",
    "user_id": b"user",
    "to": "to",
    "subject": "subject",
    "reply_to": "reply",
    "correlation_id": "c",
    "content_type": "text/plain",
    "content_encoding": "gzip",
    "group_id": "session",
    "group_sequence": 7,
    "reply_to_group_id": "reply session",
}
BROKERS: dict[str, Any] = {
    "x-opt-sequence-number": named("LONG", 99),
    "x-opt-enqueued-time": NOW,
    "x-opt-locked-until": NOW,
    "x-opt-enqueue-sequence-number": named("LONG", 99),
    "x-opt-message-state": 0,
    "x-opt-deadletter-source": "other",
    "x-opt-partition-id": named("SHORT", 3),
}
_LATER = NOW + dt.timedelta(days=1)

KINDS: dict[str, AmqpAnnotatedMessage] = {
    **{f"body: {name}": AmqpAnnotatedMessage(**body) for name, body in BODIES.items()},
    **{f"message id: {name}": with_properties(message_id=each) for name, each in IDS.items()},
    **{f"correlation id: {name}": with_properties(correlation_id=i) for name, i in IDS.items()},
    **{
        f"application property: {name}": message(application_properties={"mine": value})
        for name, value in VALUES.items()
    },
    **{
        f"annotation: {name}": message(annotations={"x-mine": value})
        for name, value in (VALUES | NESTED).items()
    },
    **{
        f"footer: {name}": message(footer={"x-mine": value})
        for name, value in (VALUES | NESTED).items()
    },
    **{
        f"property: {name}": with_properties(**{name: value}) for name, value in EVERY_FIELD.items()
    },
    "every property": with_properties(**EVERY_FIELD),
    "long properties": with_properties(subject="x" * 300, reply_to="y" * 300, group_id="z" * 300),
    "binary application property": message(application_properties={"mine": b"text"}),
    "many application properties": message(
        application_properties={f"name {each}": "x" * 20 for each in range(300)}
    ),
    "every application property": message(application_properties=dict(VALUES)),
    "session of no letters": with_properties(group_id=""),
    "session and reply session": with_properties(group_id="Größe", reply_to_group_id="r"),
    "partition key": message(annotations={"x-opt-partition-key": "k"}),
    "partition key that is a symbol": message(
        annotations={"x-opt-partition-key": named("SYMBOL", "k")}
    ),
    "partition key of a session": message(
        properties=AmqpMessageProperties(group_id="s"),
        annotations={"x-opt-partition-key": "s", "x-opt-via-partition-key": "v"},
    ),
    "scheduled": scheduled(_LATER),
    "scheduled in the past": scheduled(NOW - dt.timedelta(minutes=30)),
    "scheduled without a zone": scheduled(_LATER.replace(tzinfo=None)),
    "scheduled for 1970": scheduled(named("TIMESTAMP", 0)),
    "scheduled beyond the year 9999": scheduled(named("TIMESTAMP", 2**60)),
    "scheduled for nothing": scheduled(None),
    "time to live: none": living(None),
    "time to live: 0": living(0),
    "time to live: 1 ms": living(1),
    "time to live: an hour": living(HOUR_MS),
    "time to live: 49 days": living(2**32 - 1),
    "time to live: 60 days": living(60 * DAY_MS),
    "time to live: for ever": living(FOR_EVER_MS),
    "time to live: no properties": message(header=AmqpMessageHeader(time_to_live=5_000)),
    "time to live and times of another send": living(
        HOUR_MS, creation_time=NOW_MS - DAY_MS, absolute_expiry_time=NOW_MS
    ),
    "expiry": with_properties(absolute_expiry_time=NOW_MS + HOUR_MS),
    "expiry at once": with_properties(absolute_expiry_time=60_000),  # 0 after a minute
    "expiry of 0": with_properties(absolute_expiry_time=0, message_id="m"),
    "expiry and creation time": with_properties(
        creation_time=NOW_MS, absolute_expiry_time=NOW_MS + HOUR_MS
    ),
    "expiry after 100 days": with_properties(
        creation_time=NOW_MS, absolute_expiry_time=NOW_MS + 100 * DAY_MS, reply_to_group_id="r"
    ),
    "expiry of the past": with_properties(creation_time=NOW_MS, absolute_expiry_time=1),
    "creation time": with_properties(creation_time=NOW_MS),
    "scheduled, with a time to live": message(
        header=AmqpMessageHeader(time_to_live=HOUR_MS),
        annotations={"x-opt-scheduled-enqueue-time": NOW - dt.timedelta(minutes=30)},
    ),
    "header: durable": message(header=AmqpMessageHeader(durable=True)),
    "header: priority": message(header=AmqpMessageHeader(priority=64)),
    "header: everything": message(
        header=AmqpMessageHeader(
            durable=False, priority=0, time_to_live=5_000, first_acquirer=True, delivery_count=3
        )
    ),
    "header: nothing": message(header=AmqpMessageHeader()),
    "received and sent on": message(
        header=AmqpMessageHeader(delivery_count=2),
        annotations=BROKERS | {"x-mine": "mine"},
        delivery_annotations={"x-opt-lock-token": uuid.UUID(int=1)},
    ),
    "everything": AmqpAnnotatedMessage(
        value_body={"a": [1.5, b"x", NOW, decimal.Decimal("1.5")]},
        header=AmqpMessageHeader(durable=True, priority=9, time_to_live=2 * HOUR_MS),
        properties=AmqpMessageProperties(**EVERY_FIELD | {"message_id": b"m"}),
        application_properties=dict(VALUES),
        annotations=BROKERS | NESTED | {"x-opt-scheduled-enqueue-time": _LATER},
        footer=VALUES | NESTED,
    ),
}

_TICKS = named("SYMBOL", "com.microsoft:timespan")
FOREIGN: dict[str, dict[str, Any]] = {
    "nothing but a path": {},
    "time to live in milliseconds": {"x-ms-timetolive": named("LONG", 3 * HOUR_MS)},
    "time to live of 0": {"x-ms-timetolive": 0},
    "time to live in ticks": {"x-ms-timetolive": (_TICKS, named("LONG", HOUR_MS * 20_000))},
    "longest time to live": {"x-ms-timetolive": (_TICKS, named("LONG", 2**63 - 1))},
    "time to live and expiry": {"x-ms-timetolive": 3 * HOUR_MS, "x-twinbus-expiry": NOW},
    "key of no letters": {"x-twinbus-producer-key": ""},
    "path of bytes": {"x-ms-path": named("BINARY", b"q")},
    "session that is a symbol": {"x-ms-sessionid": named("SYMBOL", "s")},
    "scheduled by a number": {"x-ms-scheduledenqueuetimeutc": named("LONG", NOW_MS)},
    "mark of bytes": {"x-twinbus-primary": named("BINARY", b"one")},
    "mark that is a symbol": {"x-twinbus-primary": named("SYMBOL", "one")},
    "notes of nothing": {"x-twinbus-types": "{}"},
    "notes of what is not there": {"x-twinbus-types": '{"footer":{"x":"INT"},"nothing":1}'},
    **{f"null: {each}": {each: None} for each in ("x-ms-sessionid", "x-twinbus-types")},
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no path": ({"x-ms-path": None}, NO_PATH),
    "path of no letters": ({"x-ms-path": ""}, NO_PATH),
    "no path, and damaged": ({"x-ms-path": None, "x-ms-sessionid": 7}, NO_PATH),
    "path": ({"x-ms-path": 7}, DAMAGED),
    "path that is no text": ({"x-ms-path": named("BINARY", b"\xff")}, DAMAGED),
    "session": ({"x-ms-sessionid": 1.5}, DAMAGED),
    "mark": ({"x-twinbus-primary": 7}, DAMAGED),
    "mark that is no text": ({"x-twinbus-primary": named("BINARY", b"\xff")}, DAMAGED),
    "time to live": ({"x-ms-timetolive": "1:00"}, DAMAGED),
    "time to live that is true": ({"x-ms-timetolive": True}, DAMAGED),
    "negative time to live": ({"x-ms-timetolive": -1}, DAMAGED),
    "negative ticks": ({"x-ms-timetolive": (_TICKS, named("LONG", -1))}, DAMAGED),
    "scheduled time": ({"x-ms-scheduledenqueuetimeutc": "noon"}, DAMAGED),
    "scheduled time in ticks": (
        {"x-ms-scheduledenqueuetimeutc": (_TICKS, named("LONG", 5))},
        DAMAGED,
    ),
    "key": ({"x-twinbus-producer-key": True}, DAMAGED),
    "expiry": ({"x-twinbus-expiry": "noon"}, DAMAGED),
    "notes: a number": ({"x-twinbus-types": 7}, DAMAGED),
    "notes: half an object": ({"x-twinbus-types": "{"}, DAMAGED),
    "notes: a list": ({"x-twinbus-types": "[]"}, DAMAGED),
    **{
        f"notes: {notes}": ({"x-twinbus-types": notes}, DAMAGED)
        for notes in (
            '{"annotations":1}',
            '{"application_properties":[]}',
            '{"footer":1}',
            '{"body":"2*INT"}',
            '{"body":"LIST"}',
            '{"body":"x*INT"}',
            '{"body":"NONSENSE"}',
            '{"body":"DESCRIBED"}',
            '{"body":"DECIMAL128"}',
            '{"message_id":"NONSENSE"}',
            '{"correlation_id":"2*STRING"}',
            '{"application_properties":{"mine":"3*INT"}}',
            '{"application_properties":{"mine":"STRING"}}',
            '{"application_properties":{"mine":"NONSENSE"}}',
        )
    },
    "expired": ({"x-ms-timetolive": HOUR_MS // 2}, EXPIRED),
    "expired, and notes that do not fit": (
        {"x-ms-timetolive": 1, "x-twinbus-types": '{"message_id":"NONSENSE"}'},
        EXPIRED,
    ),
}
