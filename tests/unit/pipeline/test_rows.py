"""Encoded messages → columns: every column, every kind of body, and what nobody can read."""

import json
from datetime import UTC, datetime
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.amqp.encoding import encode_value
from twinbus.amqp.types import Decimal32, Described, Float, Int, Symbol, Timestamp, UInt, ULong
from twinbus.message.plain import (
    Properties,
    data_section,
    encode_message,
    sequence_section,
    value_section,
)
from twinbus.message.scan import scan
from twinbus.message.stored import encode_delivered
from twinbus.pipeline.schema import AMQP, COLUMNS, arrow_schema
from twinbus.pipeline.source.rows import POSITION_CHARS_MAX, RowBuilder, position_prefix
from twinbus.pipeline.source.runs import Runs

pytestmark = pytest.mark.proves("D-1")

ALL = [column.name for column in COLUMNS]
ENQUEUED_MS = 1_794_824_781_747
ENQUEUED = datetime(2026, 11, 16, 10, 26, 21, 747_000, tzinfo=UTC)
PARTITION_3 = 3 << 48


def delivered(encoded: bytes, number: int = 1, **broker: object) -> bytes:
    """As a receiver would get it."""
    given = {"delivery_count": 0, "locked_until_ms": 0, "state": 0, **broker}
    return encode_delivered(scan(encoded).stored(), number, ENQUEUED_MS, **given)  # type: ignore[arg-type]


def rows(*encoded: bytes, names: list[str] = ALL, wanted: Runs | None = None) -> list[dict]:  # type: ignore[type-arg]
    builder = RowBuilder(names, "Host:5672", "Orders", 7, wanted=wanted)
    for each in encoded:
        builder.add(each)
    batch = builder.take()
    assert batch.schema == arrow_schema(names)
    batch.validate(full=True)
    return [
        {**row, "application_properties": dict(row["application_properties"])}
        if row.get("application_properties") is not None
        else row
        for row in batch.to_pylist()
    ]


FULL = encode_message(
    data_section(b"hello"),
    Properties(
        message_id="m-1",
        to="somewhere",
        subject="order",
        reply_to="answers",
        correlation_id="c-1",
        content_type="text/plain",
        group_id="s-1",
        reply_to_group_id="s-2",
    ),
    {"colour": "red", "DeadLetterReason": "tired", "DeadLetterErrorDescription": "of it all"},
    {"x-opt-partition-key": "s-1", "x-opt-scheduled-enqueue-time": Timestamp(ENQUEUED_MS - 1000)},
    ttl_ms=60_000,
)


def test_every_column() -> None:
    encoded = delivered(
        FULL,
        PARTITION_3 | 42,
        delivery_count=2,
        locked_until_ms=ENQUEUED_MS + 30_000,
        state=1,
        dead_letter_source="orders",
        enqueued_sequence_number=17,
    )
    assert rows(encoded) == [
        {
            "namespace": "Host:5672",
            "entity_path": "Orders",
            "partition_id": 3,
            "sequence_number": PARTITION_3 | 42,
            "enqueued_sequence_number": 17,
            "enqueued_time": ENQUEUED,
            "message_id": "m-1",
            "session_id": "s-1",
            "partition_key": "s-1",
            "correlation_id": "c-1",
            "subject": "order",
            "to": "somewhere",
            "reply_to": "answers",
            "reply_to_session_id": "s-2",
            "content_type": "text/plain",
            "time_to_live_ms": 60_000,
            "expires_at": datetime(2026, 11, 16, 10, 27, 21, 747_000, tzinfo=UTC),
            "scheduled_enqueue_time": datetime(2026, 11, 16, 10, 26, 20, 747_000, tzinfo=UTC),
            "delivery_count": 2,
            "state": "deferred",
            "dead_letter_source": "orders",
            "dead_letter_reason": "tired",
            "dead_letter_error_description": "of it all",
            "application_properties": {
                "colour": "red",
                "DeadLetterReason": "tired",
                "DeadLetterErrorDescription": "of it all",
            },
            "body": b"hello",
            "body_type": "data",
            "body_size": 5,
            "position": "host:5672/orders@7#3/42",
        }
    ]


def test_a_message_of_nothing() -> None:
    (row,) = rows(delivered(b""))
    present = {name for name, value in row.items() if value is not None}
    assert present == {
        "namespace",
        "entity_path",
        "partition_id",
        "sequence_number",
        "enqueued_sequence_number",
        "enqueued_time",
        "delivery_count",
        "state",
        "position",
    }


@pytest.mark.parametrize("name", [*ALL, AMQP.name])
def test_each_column_alone_is_as_among_all(name: str) -> None:
    """A projection decodes less and gives the same."""
    encoded = [delivered(FULL, 1), delivered(b"", 2), delivered(FULL, 3, state=1)]
    among_all = rows(*encoded, names=[*ALL, AMQP.name])
    assert rows(*encoded, names=[name]) == [{name: row[name]} for row in among_all]


@pytest.mark.parametrize(
    "body, kind, expected",
    [
        (data_section(b"a"), "data", b"a"),
        (data_section(b""), "data", b""),
        (data_section(b"x" * 300) + data_section(b"y"), "data", b"x" * 300 + b"y"),
        (value_section("Grüße"), "value", "Grüße".encode()),
        (value_section(b"\xff"), "value", b"\xff"),
        (value_section(17), "value", b"17"),
        (value_section(None), "value", b"null"),
        (value_section(True), "value", b"true"),
        (value_section({"a": [1, b"\x00", None]}), "value", b'{"a": [1, "AA==", null]}'),
        (value_section(Symbol("s")), "value", b"s"),
        (value_section("x" * 300), "value", b"x" * 300),
        (value_section([1.5, float("inf")]), "value", b'[1.5, "inf"]'),
        (sequence_section([1, "b"]), "sequence", b'[1, "b"]'),
        (sequence_section([1]) + sequence_section([2]), "sequence", b"[1, 2]"),
        (sequence_section([]), "sequence", b"[]"),
    ],
)
def test_bodies(body: bytes, kind: str, expected: bytes) -> None:
    (row,) = rows(delivered(encode_message(body)))
    assert (row["body_type"], row["body"], row["body_size"]) == (kind, expected, len(expected))


@pytest.mark.parametrize(
    "value, text",
    [
        ("text", "text"),
        ("", ""),
        (None, None),
        (True, "true"),
        (False, "false"),
        (1, "1"),
        (127, "127"),
        (-1, "-1"),
        (-128, "-128"),
        (-129, "-129"),
        (Int(7), "7"),
        (Int(-70_000), "-70000"),
        (1 << 40, "1099511627776"),
        (UInt(0), "0"),
        (ULong(1 << 63), "9223372036854775808"),
        (1.5, "1.5"),
        (Float(0.5), "0.5"),
        (b"\x00\x01", "AAE="),
        (Symbol("sym"), "sym"),
        (Timestamp(1_500), "1970-01-01T00:00:01.500Z"),
        (Timestamp(1 << 62), str(1 << 62)),
        (UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (Decimal32(b"\x00\x00\x00\x01"), "AAAAAQ=="),
        (Described(Symbol("unit"), 5), "5"),
        ([1, "a"], '[1, "a"]'),
        ("x" * 300, "x" * 300),
    ],
)
def test_properties_as_texts(value: object, text: str | None) -> None:
    encoded = encode_message(data_section(b""), Properties(), {"a": "b", "k": value, "z": "y"})
    (row,) = rows(delivered(encoded), names=["application_properties"])
    assert row["application_properties"] == {"a": "b", "k": text, "z": "y"}


@pytest.mark.parametrize(
    "given, text",
    [(UUID(int=5), str(UUID(int=5))), (ULong(5), "5"), (b"\x00", "AA=="), ("x" * 300, "x" * 300)],
)
def test_ids_of_other_types(given: object, text: str) -> None:
    encoded = encode_message(b"", Properties(message_id=given, correlation_id=given))
    (row,) = rows(delivered(encoded), names=["message_id", "correlation_id"])
    assert row == {"message_id": text, "correlation_id": text}


def test_a_time_to_live_beyond_49_days_is_told_by_times() -> None:
    days_100_ms = 100 * 86_400_000
    properties = Properties(absolute_expiry_ms=ENQUEUED_MS + days_100_ms, creation_ms=ENQUEUED_MS)
    (row,) = rows(delivered(encode_message(data_section(b""), properties)))
    assert row["time_to_live_ms"] == days_100_ms
    assert row["expires_at"].isoformat() == "2027-02-24T10:26:21.747000+00:00"


def test_for_ever_ends_with_the_year_9999() -> None:
    properties = Properties(absolute_expiry_ms=1 << 60, creation_ms=0)
    (row,) = rows(delivered(encode_message(data_section(b""), properties)))
    assert row["time_to_live_ms"] == 1 << 60
    assert row["expires_at"].year == 9999


@pytest.mark.parametrize("ms", [-(1 << 63), (1 << 63) - 1])
def test_times_beyond_any_calendar_stop_no_stream(ms: int) -> None:
    properties = Properties(absolute_expiry_ms=(1 << 63) - 1, creation_ms=ms)
    annotations: dict[str, object] = {"x-opt-scheduled-enqueue-time": Timestamp(ms)}
    encoded = encode_message(data_section(b"a"), properties, None, annotations)
    (row,) = rows(delivered(encoded))
    assert row["scheduled_enqueue_time"].year == (1 if ms < 0 else 9999)


def test_numbers_that_no_column_holds() -> None:
    annotations: dict[str, object] = {
        "x-opt-sequence-number": ULong((1 << 64) - 1),
        "x-opt-enqueued-time": Timestamp(-(1 << 63)),
    }
    header = b"\x00\x53\x70" + encode_value([None, None, UInt(1), None, UInt((1 << 32) - 1)])
    (row,) = rows(header + encode_message(data_section(b"a"), None, None, annotations))
    assert row["sequence_number"] is None
    assert row["delivery_count"] == (1 << 31) - 1


def test_annotations_in_another_order_than_ours() -> None:
    """As another Service Bus sends them."""
    annotations: dict[str, object] = {
        "x-opt-enqueued-time": Timestamp(ENQUEUED_MS),
        "x-opt-sequence-number": 5,
        "x-opt-message-state": 2,
        "x-opt-partition-key": "k",
    }
    encoded = encode_message(data_section(b"a"), Properties(message_id="1"), None, annotations)
    (row,) = rows(encoded)
    assert (row["sequence_number"], row["enqueued_time"], row["state"], row["partition_key"]) == (
        5,
        ENQUEUED,
        "scheduled",
        "k",
    )
    assert row["enqueued_sequence_number"] is None
    assert row["delivery_count"] == 0


def test_descriptors_in_their_long_form() -> None:
    short = delivered(FULL)
    long = short.replace(b"\x00\x53\x73", b"\x00\x80" + (0x73).to_bytes(8, "big"))
    assert len(long) == len(short) + 7
    assert rows(long) == rows(short)


@pytest.mark.parametrize(
    "section, unreadable",
    [
        (b"\x00\x53\x73\xc0\x04\x01\xa1\x09x", {"message_id"}),  # longer than its list
        (b"\x00\x53\x73\xc0\x05\x02\xa1\x02\xff\xff", {"message_id"}),  # not UTF-8
        (b"\x00\x53\x74\xc1\x04\x02\xa1\x09x", {"application_properties"}),
        (b"\x00\x53\x74\xc1\x05\x02\xa1\x01k\x81", {"application_properties"}),
    ],
)
def test_a_section_nobody_can_read_leaves_its_columns_null(
    section: bytes, unreadable: set[str]
) -> None:
    """One bad message stops no stream; the next one is as it should be."""
    head = delivered(b"")
    bad = head + section + data_section(b"still there")
    first, second = rows(bad, delivered(FULL, 2))
    assert all(first[name] is None for name in unreadable)
    assert first["sequence_number"] == 1
    assert first["body"] == b"still there"
    assert second["application_properties"]["colour"] == "red"
    assert second["message_id"] == "m-1"


@given(st.binary(max_size=60))
def test_any_bytes_give_a_row(junk: bytes) -> None:
    (row,) = rows(junk, names=[*ALL, AMQP.name])
    assert row["amqp"] == junk


@given(st.binary(min_size=1, max_size=3), st.integers(0, 400))
def test_damage_anywhere_gives_a_row(change: bytes, place: int) -> None:
    encoded = delivered(FULL)
    at = place % len(encoded)
    damaged = encoded[:at] + change + encoded[at + len(change) :]
    assert len(rows(damaged)) == 1


def test_only_wanted_numbers_and_times() -> None:
    encoded = [delivered(FULL, number) for number in range(1, 10)]
    kept = rows(*encoded, names=["sequence_number"], wanted=((2, 4), (7, 8)))
    assert [row["sequence_number"] for row in kept] == [2, 3, 7]
    for since, until, count in (
        (ENQUEUED_MS, None, 1),
        (ENQUEUED_MS + 1, None, 0),
        (None, ENQUEUED_MS + 1, 1),
        (None, ENQUEUED_MS, 0),
    ):
        builder = RowBuilder(["body"], "h", "q", 7, since_ms=since, until_ms=until)
        builder.add(delivered(FULL))
        assert builder.row_count == count


def test_size_and_rows_are_counted_from_batch_to_batch() -> None:
    builder = RowBuilder(["message_id"], "h", "q", None)
    encoded = delivered(FULL)
    builder.add(encoded)
    builder.add(encoded)
    assert (builder.row_count, builder.size_bytes) == (2, 2 * len(encoded))
    assert builder.take().num_rows == 2
    assert (builder.row_count, builder.size_bytes) == (0, 0)
    assert builder.take().num_rows == 0


PLAIN = delivered(encode_message(data_section(b"plain"), Properties(), {}), 1)
FULL_DELIVERED = delivered(
    FULL, PARTITION_3 | 42, delivery_count=2, state=1, dead_letter_source="orders"
)


@given(
    st.lists(
        st.sampled_from(
            [
                PLAIN,
                FULL_DELIVERED,
                delivered(encode_message(b""), 3),
                delivered(encode_message(value_section("v")), 4),
                b"junk",
            ]
        ),
        max_size=8,
    )
)
def test_a_row_is_the_same_among_others_as_alone(messages: list[bytes]) -> None:
    """Columns are kept only as far as they say something: no row may get another's values."""
    assert rows(*messages) == [rows(each)[0] for each in messages]


def test_every_number_has_the_position_of_its_own_partition() -> None:
    numbers = [5, PARTITION_3 | 5, 6]
    found = rows(*(delivered(FULL, number) for number in numbers), names=["position"])
    assert [row["position"] for row in found] == [
        "host:5672/orders@7#0/5",
        "host:5672/orders@7#3/5",
        "host:5672/orders@7#0/6",
    ]


def test_a_property_said_twice_counts_as_it_was_said_last() -> None:
    twice = {Symbol("DeadLetterReason"): "first", "DeadLetterReason": "last"}
    encoded = b"\x00\x53\x74" + encode_value(twice) + data_section(b"")
    first, second = rows(delivered(encoded), delivered(FULL), names=["dead_letter_reason"])
    assert (first["dead_letter_reason"], second["dead_letter_reason"]) == ("last", "tired")


@pytest.mark.parametrize("rows_max, bytes_max", [(3, 1 << 30), (1 << 30, 2 * len(PLAIN) + 1)])
def test_full_batches_come_out_and_the_rest_waits(rows_max: int, bytes_max: int) -> None:
    builder = RowBuilder(["sequence_number"], "h", "q", None)
    encoded = [
        delivered(encode_message(data_section(b"plain"), Properties(), {}), n) for n in range(1, 9)
    ]
    batches = [
        batch
        for chunk in (encoded[:4], encoded[4:])
        for batch in builder.batches(chunk, rows_max, bytes_max)
    ]
    assert [batch.num_rows for batch in batches] == [3, 3]
    numbers = [
        row["sequence_number"] for batch in [*batches, builder.take()] for row in batch.to_pylist()
    ]
    assert numbers == list(range(1, 9))


@given(st.text(max_size=300), st.text(max_size=300), st.integers(0, 15))
def test_a_position_is_a_producer_key(namespace: str, path: str, partition: int) -> None:
    prefix = position_prefix(namespace, path, 253_402_300_799_999, partition)
    key = f"{prefix}{(1 << 48) - 1}"
    assert len(key) <= POSITION_CHARS_MAX
    assert key.rpartition("/")[0]
    assert prefix == position_prefix(namespace, path, 253_402_300_799_999, partition)


def test_long_names_stay_apart() -> None:
    one, two = (position_prefix("host", "q" * 200 + end, 7, 0) for end in "ab")
    assert one != two
    assert one.startswith("host/~")


def test_values_that_json_does_not_know() -> None:
    value = {Symbol("t"): Timestamp(0), "u": UUID(int=1), 5: Described(1, [ULong(2)])}
    encoded = encode_message(b"\x00\x53\x77" + encode_value(value))
    (row,) = rows(delivered(encoded), names=["body"])
    assert json.loads(row["body"]) == {
        "t": "1970-01-01T00:00:00.000Z",
        "u": str(UUID(int=1)),
        "5": [2],
    }


def test_null_and_empty_maps_are_not_the_same() -> None:
    none = delivered(encode_message(data_section(b"")))
    empty = delivered(b"\x00\x53\x74" + encode_value({}) + data_section(b""))
    full = delivered(FULL)
    found = rows(none, full, none, empty, full, none, names=["application_properties"])
    lengths = [
        None if row["application_properties"] is None else len(row["application_properties"])
        for row in found
    ]
    assert lengths == [None, 3, None, 0, 3, None]
    assert isinstance(arrow_schema(["application_properties"]).field(0).type, pa.MapType)
