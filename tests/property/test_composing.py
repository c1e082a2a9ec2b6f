"""Rows become the bytes that the codec gives for the same message, whatever is beside them."""

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructField, StructType

from twinbus.amqp.encoding import encode_list, encode_map, encode_uint, encode_value
from twinbus.amqp.types import Symbol, Timestamp
from twinbus.message.plain import data_section
from twinbus.message.sections import APPLICATION_PROPERTIES, HEADER, MESSAGE_ANNOTATIONS, PROPERTIES
from twinbus.message.stored import TTL_UINT_MAX
from twinbus.pipeline.schema import BY_NAME, arrow_type
from twinbus.pipeline.sink.encoding import MessageEncoder
from twinbus.pipeline.sink.keys import Outgoing

NOW_MS = 1_790_000_000_000
FOR_EVER_MS = 922_337_203_685_477
LONG_MS = TTL_UINT_MAX + 5
FIELDS = {
    "message_id": 0,
    "to": 2,
    "subject": 3,
    "reply_to": 4,
    "correlation_id": 5,
    "content_type": 6,
    "session_id": 10,
    "reply_to_session_id": 12,
}
texts = st.text(max_size=20) | st.sampled_from(["", "x" * 255, "x" * 256, "ä" * 128])
CELLS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(FIELDS, texts),
    "content_type": st.sampled_from(["", "application/json", "y" * 300]),
    "partition_key": texts,
    "time_to_live_ms": st.sampled_from([1, 5_000, TTL_UINT_MAX, LONG_MS, FOR_EVER_MS]),
    "scheduled_enqueue_time": st.integers(0, 4_000_000_000_000),
    "application_properties": st.dictionaries(texts, st.none() | texts, max_size=4)
    | st.just({f"name-{number}": "v" for number in range(130)}),
}


@st.composite
def tables(draw: st.DrawFn) -> dict[str, list[Any]]:
    """Values by column; nulls everywhere but in the body, and columns of nothing else."""
    names = draw(st.sets(st.sampled_from(sorted(CELLS))))
    if "session_id" in names:
        names -= {"partition_key"}  # they would have to be equal
    count = draw(st.integers(1, 6))
    table: dict[str, list[Any]] = {}
    for name in sorted(names):
        cells = st.none() if draw(st.integers(0, 4)) == 0 else st.none() | CELLS[name]
        table[name] = draw(st.lists(cells, min_size=count, max_size=count))
    bodies = st.binary(max_size=8) | st.just(b"b" * 255) | st.just(b"b" * 256)
    return table | {"body": draw(st.lists(bodies, min_size=count, max_size=count))}


@settings(max_examples=200, deadline=None)
@given(table=tables(), cut=st.integers(0, 6))
def test_rows_are_encoded_as_the_codec_does(table: dict[str, list[Any]], cut: int) -> None:
    batch = batch_of(table)
    messages = encode(table, [batch])
    for place, message in enumerate(messages):
        row = {name: values[place] for name, values in table.items()}
        assert message.data == expected(row, NOW_MS)
        assert message.steady == expected(row, 0)
        order = row.get("session_id")
        assert message.order == (row.get("partition_key") if order is None else order)
    # In other company they are the same.
    others = encode(table, [batch.slice(0, cut), batch.slice(cut)])
    assert [(each.row, each.steady) for each in others] == [
        (each.row, each.steady) for each in messages
    ]


def batch_of(table: dict[str, list[Any]]) -> pa.RecordBatch:
    arrays = []
    for name, values in table.items():
        if name == "application_properties":
            values = [None if each is None else list(each.items()) for each in values]
        if name == "scheduled_enqueue_time":
            values = [None if each is None else each * 1_000 for each in values]
        arrays.append(pa.array(values, arrow_type(BY_NAME[name].spark)))
    return pa.record_batch(arrays, names=list(table))


def encode(table: dict[str, list[Any]], batches: list[pa.RecordBatch]) -> list[Outgoing]:
    schema = StructType([StructField(name, BY_NAME[name].spark) for name in table])
    encoder = MessageEncoder(schema, "orders")
    return [message for batch in batches for message in encoder.encode(batch, NOW_MS)]


def expected(row: dict[str, Any], now_ms: int) -> bytes:
    ttl = row.get("time_to_live_ms")
    if ttl is None or ttl >= FOR_EVER_MS:
        data = section(HEADER, encode_list([b"\x41"]))
    else:
        known = encode_uint(min(ttl, TTL_UINT_MAX))
        data = section(HEADER, encode_list([b"\x41", b"\x40", known]))
    annotations: dict[object, object] = {}
    if row.get("partition_key") is not None:
        annotations[Symbol("x-opt-partition-key")] = row["partition_key"]
    if row.get("scheduled_enqueue_time") is not None:
        moment = Timestamp(row["scheduled_enqueue_time"])
        annotations[Symbol("x-opt-scheduled-enqueue-time")] = moment
    if annotations:
        data += section(MESSAGE_ANNOTATIONS, encode_map(annotations))
    fields: dict[int, object] = {FIELDS[name]: row[name] for name in FIELDS if name in row}
    if fields.get(6) is not None:
        fields[6] = Symbol(str(fields[6]))
    if ttl is not None and TTL_UINT_MAX <= ttl < FOR_EVER_MS:
        fields |= {8: Timestamp(now_ms + ttl), 9: Timestamp(now_ms)}
    if fields:
        values = [encode_value(fields.get(place)) for place in range(max(fields) + 1)]
        data += section(PROPERTIES, encode_list(values))
    if row.get("application_properties"):
        data += section(APPLICATION_PROPERTIES, encode_map(row["application_properties"]))
    return data + data_section(row["body"])


def section(code: int, value: bytes) -> bytes:
    return bytes((0x00, 0x53, code)) + value
