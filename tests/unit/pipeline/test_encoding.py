"""Rows → AMQP messages, read back with the codec of the bus."""

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from twinbus.amqp.types import Symbol, Timestamp
from twinbus.message.plain import (
    DecodedMessage,
    Properties,
    data_section,
    decode_message,
    encode_message,
    value_section,
)
from twinbus.message.scan import scan
from twinbus.message.sections import DATA
from twinbus.message.stored import encode_delivered
from twinbus.pipeline.schema import BY_NAME, COLUMNS, arrow_type
from twinbus.pipeline.sink.encoding import MessageEncoder
from twinbus.pipeline.sink.keys import Outgoing
from twinbus.pipeline.sink.refused import RowRefused

NOW_MS = 1_790_000_000_000
DAY_MS = 86_400_000
MOMENT = dt.datetime(2026, 11, 16, 10, 30, 0, 123_999, dt.UTC)
ARROW = {
    "string": pa.string(),
    "int": pa.int32(),
    "map<string,bigint>": pa.map_(pa.string(), pa.int64()),
    "map<string,double>": pa.map_(pa.string(), pa.float64()),
    "map<string,boolean>": pa.map_(pa.string(), pa.bool_()),
}


def encode(
    sent_to: Any = "orders", key_column: Any = None, types: Any = None, **columns: Any
) -> list[Outgoing]:
    """Encode rows given column by column; `types` are those of columns that have another one."""
    kinds = {name: (types or {}).get(name) for name in columns}
    schema = StructType(
        [StructField(name, kind or BY_NAME[name].spark) for name, kind in kinds.items()]
    )
    arrays = [
        pa.array(values, ARROW[kind.simpleString()] if kind else arrow_type(BY_NAME[name].spark))
        for (name, values), kind in zip(columns.items(), kinds.values(), strict=True)
    ]
    batch = pa.record_batch(arrays, names=list(columns))
    return MessageEncoder(schema, sent_to, key_column).encode(batch, NOW_MS)


def decode(**columns: Any) -> DecodedMessage:
    """Encode and decode one row."""
    [message] = encode(**{name: [value] for name, value in columns.items()})
    assert scan(message.data).bare  # the bus can take it apart
    return decode_message(message.data)


def test_a_body_alone_is_a_durable_message() -> None:
    message = decode(body=b"hello")
    assert (message.body_section, message.body, message.durable) == (DATA, b"hello", True)
    assert message.ttl_ms is None and message.properties.message_id is None
    assert not message.annotations and not message.application_properties


@pytest.mark.proves("D-1")
def test_every_column_that_is_sent_arrives() -> None:
    texts = {
        "message_id": "m1",
        "session_id": "s1",
        "partition_key": "s1",
        "correlation_id": "c1",
        "subject": "söbject",
        "to": "t1",
        "reply_to": "r1",
        "reply_to_session_id": "rs1",
        "content_type": "application/json",
    }
    others = {
        "time_to_live_ms": 60_000,
        "scheduled_enqueue_time": MOMENT,
        "application_properties": [("colour", "red"), ("none", None)],
        "body": b"x" * 300,
    }
    row = {**texts, **others}
    assert set(row) == {column.name for column in COLUMNS if column.is_sent}
    message = decode(**row)
    found = message.properties
    assert found.message_id == "m1" and found.group_id == "s1" and found.correlation_id == "c1"
    assert found.subject == "söbject" and found.to == "t1" and found.reply_to == "r1"
    assert found.reply_to_group_id == "rs1" and found.content_type == "application/json"
    assert message.ttl_ms == 60_000 and message.body == b"x" * 300
    assert message.application_properties == {"colour": "red", "none": None}
    assert message.annotations == {
        Symbol("x-opt-partition-key"): "s1",
        Symbol("x-opt-scheduled-enqueue-time"): Timestamp(int(MOMENT.timestamp() * 1000)),
    }


@pytest.mark.proves("D-1")
def test_a_row_as_it_was_read_can_be_written() -> None:
    """Columns that say what a broker did are left alone."""
    values: dict[str, list[Any]] = {column.name: [None] for column in COLUMNS}
    values |= {"body": [b"b"], "sequence_number": [7], "position": ["p/7"], "delivery_count": [3]}
    [message] = encode(**values)
    found = decode_message(message.data)
    assert found.body == b"b" and not found.annotations and not found.application_properties
    assert found.ttl_ms is None and found.delivery_count == 0
    assert found.properties.encode() == Properties().encode()


def test_long_texts_and_many_properties_take_the_wide_forms() -> None:
    properties = [(f"name-{number}", "v" * 100) for number in range(50)]
    message = decode(
        body=b"y" * 70_000, subject="s" * 300, to="t" * 100, application_properties=properties
    )
    assert message.properties.subject == "s" * 300 and message.properties.to == "t" * 100
    assert message.application_properties == dict(properties) and message.body == b"y" * 70_000


def test_a_text_body_is_utf_8() -> None:
    [message] = encode(body=["grün"], types={"body": StringType()})
    assert decode_message(message.data).body == "grün".encode()


@pytest.mark.parametrize(
    ("kind", "value"),
    [(LongType(), -(2**40)), (DoubleType(), 1.5), (BooleanType(), True), (BooleanType(), False)],
)
def test_properties_of_other_types_keep_them(kind: DataType, value: object) -> None:
    [message] = encode(
        body=[b""],
        application_properties=[[("p", value)]],
        types={"application_properties": MapType(StringType(), kind)},
    )
    found = decode_message(message.data).application_properties["p"]
    assert found == value and type(found) is type(value)


def test_a_short_time_to_live_may_be_an_int() -> None:
    [message] = encode(body=[b""], time_to_live_ms=[5], types={"time_to_live_ms": IntegerType()})
    assert decode_message(message.data).ttl_ms == 5


def test_a_time_to_live_beyond_the_header_stands_in_two_times() -> None:
    ttl_ms = 60 * DAY_MS
    [message, short] = encode(body=[b"", b""], time_to_live_ms=[ttl_ms, 1_000])
    found = decode_message(message.data).properties
    assert (found.creation_ms, found.absolute_expiry_ms) == (NOW_MS, NOW_MS + ttl_ms)
    assert scan(message.data).ttl_ms == ttl_ms and scan(short.data).ttl_ms == 1_000
    # What is compared between tries knows no time.
    assert scan(message.steady).ttl_ms == ttl_ms
    assert decode_message(message.steady).properties.creation_ms == 0


def test_for_ever_is_no_time_to_live() -> None:
    assert decode(body=b"", time_to_live_ms=922_337_203_685_477).ttl_ms is None


def test_destinations_orders_keys_and_rows_are_told() -> None:
    columns = {
        "destination": ["a", "b", "c"],
        "session_id": ["s", None, None],
        "partition_key": [None, "k", None],
        "position": ["p/1", "p/2", "p/3"],
        "body": [b"", b"", b""],
    }
    found = encode(sent_to=None, key_column="position", **columns)
    assert [each.destination for each in found] == ["a", "b", "c"]
    assert [each.order for each in found] == ["s", "k", None]
    assert [each.key for each in found] == ["p/1", "p/2", "p/3"]
    assert [each.row for each in found] == [1, 2, 3]
    assert [each.destination for each in encode(**columns)] == ["orders"] * 3


def test_rows_are_counted_over_record_batches() -> None:
    encoder = MessageEncoder(StructType([StructField("body", BinaryType())]), "orders")
    batch = pa.record_batch([pa.array([b"1", b"2"])], names=["body"])
    rows = [each.row for _ in range(2) for each in encoder.encode(batch, NOW_MS)]
    assert rows == [1, 2, 3, 4]
    bad = pa.record_batch([pa.array([b"1", None], pa.binary())], names=["body"])
    with pytest.raises(RowRefused, match="row 6 of the task to 'orders': the body is null"):
        encoder.encode(bad, NOW_MS)


# --- exact copies --------------------------------------------------------------------------------


def delivered(**parts: Any) -> bytes:
    """A message as a receiver gets it: with everything that a broker writes into it."""
    sent = encode_message(
        properties=Properties(message_id="m1", group_id=parts.pop("group_id", None)), **parts
    )
    return encode_delivered(
        scan(sent).stored(), 7, NOW_MS, 3, NOW_MS + 60_000, 1, lock_token=b"\1" * 16
    )


@pytest.mark.proves("D-1")
def test_an_exact_copy_has_nothing_of_its_last_broker() -> None:
    original = {"x-opt-partition-key": "s1", "x-mine": 5}
    encoded = delivered(
        body=value_section([1, "two"]),
        annotations=original,
        ttl_ms=5_000,
        durable=True,
        priority=9,
        group_id="s1",
        application_properties={"n": Timestamp(5)},
    )
    [message] = encode(amqp=[encoded])
    found = decode_message(message.data)
    assert found.annotations == original and not found.delivery_annotations
    assert (found.ttl_ms, found.priority, found.durable) == (5_000, 9, True)
    assert found.delivery_count == 0
    assert scan(message.data).bare == scan(encoded).bare
    assert message.order == "s1"


def test_copies_and_rows_may_be_mixed() -> None:
    encoded = delivered(body=data_section(b"copy"), annotations={"x-opt-partition-key": "k"})
    found = encode(amqp=[None, encoded], body=[b"row", None], session_id=["s", "ignored"])
    assert [decode_message(each.data).body for each in found] == [b"row", b"copy"]
    assert [each.order for each in found] == ["s", "k"]


# --- what cannot be sent -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"body": [None]}, "the body is null"),
        ({"amqp": [None]}, "the body is null"),
        ({"amqp": [b"\x00\x53\x75\xa0\xff"]}, "the column amqp holds no message"),
        ({"body": [b""], "time_to_live_ms": [0]}, "the time to live is 0 ms"),
        ({"body": [b""], "time_to_live_ms": [-5]}, "the time to live is -5 ms"),
        ({"body": [b""], "content_type": ["grün"]}, "the content_type has characters beyond"),
        (
            {"body": [b""], "session_id": ["a"], "partition_key": ["b"]},
            "session id and partition key differ",
        ),
    ],
)
def test_a_row_that_cannot_be_sent_is_named(columns: dict[str, list[Any]], reason: str) -> None:
    with pytest.raises(RowRefused, match=f"row 1 of the task to 'orders': {reason}"):
        encode(**columns)


@pytest.mark.parametrize("destination", [None, ""])
def test_a_row_without_a_destination_is_named(destination: str | None) -> None:
    with pytest.raises(RowRefused, match="row 2 of the task: the destination is missing"):
        encode(sent_to=None, destination=["orders", destination], body=[b"", b""])


def test_a_row_without_its_key_is_named() -> None:
    with pytest.raises(RowRefused, match="row 1 of the task to 'orders': the producer key is null"):
        encode(key_column="position", body=[b""], position=[None])


def test_times_come_in_any_unit_and_zone() -> None:
    schema = StructType(
        [StructField("body", BinaryType()), StructField("scheduled_enqueue_time", TimestampType())]
    )
    times = pa.array([MOMENT], pa.timestamp("ns", tz="Europe/Berlin"))
    batch = pa.record_batch([pa.array([b""]), times], names=schema.fieldNames())
    [message] = MessageEncoder(schema, "orders").encode(batch, NOW_MS)
    found = decode_message(message.data).annotations
    assert list(found.values()) == [Timestamp(int(MOMENT.timestamp() * 1000))]


def test_what_stands_behind_a_null_map_is_not_sent() -> None:
    kind = BY_NAME["application_properties"].spark
    schema = StructType(
        [StructField("body", BinaryType()), StructField("application_properties", kind)]
    )
    entries = pa.array(
        [("a", "1"), ("b", "2")], pa.struct([("key", pa.string()), ("value", pa.string())])
    )
    offsets = pa.py_buffer(b"".join(each.to_bytes(4, "little") for each in (0, 1, 2)))
    maps = pa.MapArray.from_buffers(
        arrow_type(kind), 2, [pa.py_buffer(b"\x02"), offsets], children=[entries]
    )
    batch = pa.record_batch([pa.array([b"", b""]), maps], names=schema.fieldNames())
    messages = MessageEncoder(schema, "orders").encode(batch, NOW_MS)
    found = [decode_message(message.data).application_properties for message in messages]
    assert [dict(each or {}) for each in found] == [{}, {"b": "2"}]


def test_of_a_row_that_is_sent_as_it_was_no_other_column_is_looked_at() -> None:
    copy = encode_message(data_section(b"exact"), Properties(message_id="m"))
    wrong: Any = {"time_to_live_ms": [-5], "content_type": ["grün"], "session_id": ["a"]}
    [message] = encode(amqp=[copy], body=[None], partition_key=["b"], **wrong)
    assert decode_message(message.data).body == b"exact" and message.order is None
