"""The inside of a stored message: what filters see of it, and what actions change in it."""

import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from twinbus.amqp.encoding import encode_compound, encode_string, encode_symbol, encode_value
from twinbus.amqp.types import (
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Symbol,
    Timestamp,
    UByte,
    ULong,
)
from twinbus.entities.fields import Changes, MessageCodec
from twinbus.errors import RemoteProtocolError
from twinbus.message.filter_fields import StoredMessageCodec, read_fields, read_keys, rewrite
from twinbus.message.plain import (
    Properties,
    data_section,
    decode_message,
    encode_message,
    value_section,
)
from twinbus.message.scan import scan
from twinbus.message.stored import encode_delivered

pytestmark = pytest.mark.proves("M-6")

ID = UUID(int=0x1234)
NOON_MS = 1_793_534_400_000
NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
BODY = data_section(b"the body \x00\x53\x74 looks like a section")
YEAR_ONE_TICKS = 621_355_968_000_000_000  # from 0001 to 1970


def stored_of(raw: bytes) -> bytes:
    return scan(raw).stored()


def message(
    properties: Properties | None = None,
    user: dict[str, object] | None = None,
    annotations: dict[str, object] | None = None,
    ttl_ms: int | None = None,
) -> bytes:
    return stored_of(encode_message(BODY, properties, user, annotations, ttl_ms))


FULL = message(
    Properties(
        message_id="m",
        user_id=b"u",
        to="to",
        subject="label",
        reply_to="reply",
        correlation_id="c",
        content_type="text/plain",
        content_encoding="gzip",
        group_id="s",
        group_sequence=7,
        reply_to_group_id="rs",
    ),
    {"Color": "red", "size": Int(5)},
    {"x-opt-partition-key": "s", "x-opt-via-partition-key": "v", "own": 1},
    60_000,
)


# --- reading --------------------------------------------------------------------------------------
def test_system_properties() -> None:
    fields = read_fields(FULL)
    assert fields.system == {
        "messageid": "m",
        "to": "to",
        "label": "label",
        "replyto": "reply",
        "correlationid": "c",
        "contenttype": "text/plain",
        "sessionid": "s",
        "replytosessionid": "rs",
        "partitionkey": "s",
        "viapartitionkey": "v",
        "timetolive": timedelta(minutes=1),
        "size": fields.system["size"],
    }
    assert fields.user == {"color": "red", "size": 5}
    assert all(type(name) is str for name in fields.user)


def test_an_empty_message() -> None:
    fields = read_fields(stored_of(b""))
    assert fields.system == {"size": 0}
    assert fields.user == {}
    assert read_keys(stored_of(b"")) == (None, None, None)


def test_scheduled_time() -> None:
    stored = message(annotations={"x-opt-scheduled-enqueue-time": Timestamp(NOON_MS)})
    assert read_fields(stored).system["scheduledenqueuetimeutc"] == NOON


@pytest.mark.parametrize(
    "sent,seen",
    [
        (None, None),
        (True, True),
        ("text", "text"),
        ("t" * 300, "t" * 300),
        ("größe", "größe"),
        (Symbol("sym"), "sym"),
        (Char("x"), "x"),
        (5, 5),
        (Int(-5), -5),
        (UByte(5), 5),
        (ULong(2**64 - 1), 2**64 - 1),
        (1.5, 1.5),
        (Float(0.5), 0.5),
        (b"\x00", b"\x00"),
        (ID, ID),
        (Timestamp(NOON_MS), NOON),
        (Timestamp(2**63 - 1), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
        (Timestamp(-(2**63)), datetime(1, 1, 1, tzinfo=UTC)),
        (Described(Symbol("com.microsoft:timespan"), 36_000_000_000), timedelta(hours=1)),
        (
            Described(Symbol("com.microsoft:datetime-offset"), YEAR_ONE_TICKS + NOON_MS * 10_000),
            NOON,
        ),
        (Described(Symbol("com.microsoft:uri"), "http://a/b"), "http://a/b"),
        (Described(Symbol("com.microsoft:timespan"), "odd"), None),
        (Described(Symbol("unknown"), 5), None),
        ([1, 2], None),
        ({"a": 1}, None),
        # 1, -1.5 and 9999999 E90, the largest, written out by hand from IEEE 754-2008
        (Decimal32(bytes.fromhex("32800001")), Decimal(1)),
        (Decimal64(bytes.fromhex("b1a000000000000f")), Decimal("-1.5")),
        (Decimal32(bytes.fromhex("77f8967f")), Decimal("9999999E90")),
        (Decimal128((6_176 << 113 | 5).to_bytes(16, "big")), Decimal(5)),
        (Decimal64(bytes.fromhex("7800000000000000")), float("inf")),
        (Decimal64(bytes.fromhex("f800000000000000")), float("-inf")),
        (Decimal32(bytes.fromhex("6ffffff0")), Decimal(0)),  # not canonical
    ],
)
def test_values(sent: object, seen: object) -> None:
    value = read_fields(message(user={"a": sent})).user["a"]
    assert value == seen
    assert type(value) is type(seen)


def test_decimal_nan() -> None:
    value = read_fields(message(user={"a": Decimal128(b"\x7c" + bytes(15))})).user["a"]
    assert isinstance(value, float)
    assert value != value


@pytest.mark.parametrize(
    "sent,text", [("x", "x"), (ID, str(ID)), (ULong(17), "17"), (b"\x01\xff", "01ff"), ("", "")]
)
def test_ids_of_every_type_have_a_text(sent: object, text: str) -> None:
    stored = message(Properties(message_id=sent, correlation_id=sent))
    assert read_fields(stored).system["messageid"] == text
    assert read_fields(stored).system["correlationid"] == text
    assert read_keys(stored) == (text, None, None)


def test_keys() -> None:
    assert read_keys(FULL) == ("m", "s", "s")
    assert read_keys(message(Properties(group_id=""))) == (None, "", None)
    assert read_keys(message(annotations={"x-opt-partition-key": "p"})) == (None, None, "p")
    assert read_keys(message(annotations={"other": "x-opt-partition-key"})) == (None, None, None)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x53\x73" + encode_value([True]),
        b"\x00\x53\x73" + encode_value([None] * 10 + [5]),
        b"\x00\x53\x72" + encode_value({Symbol("x-opt-partition-key"): 5}),
    ],
    ids=["message-id", "group-id", "partition-key"],
)
def test_keys_of_a_wrong_type_are_none(raw: bytes) -> None:
    assert read_keys(stored_of(raw + BODY)) == (None, None, None)


MALFORMED_PROPERTIES = b"\x00\x53\x73\xc0\x03\x02\xa1\x09"  # a string longer than the list
MALFORMED_MAP = b"\x00\x53\x74\xc1\x05\x02\xa1\x01a\xa1"
TWICE = b"\x00\x53\x74" + encode_compound(
    0xC1, 4, encode_string("a") + encode_value(1) + encode_string("A") + encode_value(2)
)


def test_what_nobody_can_read_is_empty() -> None:
    fields = read_fields(stored_of(MALFORMED_PROPERTIES + MALFORMED_MAP + BODY))
    assert fields.user == {}
    assert set(fields.system) == {"size"}
    assert read_keys(stored_of(MALFORMED_PROPERTIES + BODY)) == (None, None, None)
    not_utf8 = b"\x00\x53\x74" + encode_compound(0xC1, 2, b"\xa1\x01\xff\x40")
    assert read_fields(stored_of(not_utf8 + BODY)).user == {}


def test_names_that_differ_in_case_only() -> None:
    assert read_fields(stored_of(TWICE + BODY)).user == {"a": 2}


def test_damaged_bytes_are_read_or_refused() -> None:
    chance = random.Random(7)
    for _ in range(2_000):
        damaged = bytearray(FULL)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        for read in (read_fields, read_keys):
            try:
                read(bytes(damaged[: chance.randint(0, len(damaged))]))
            except RemoteProtocolError:
                pass


# --- writing --------------------------------------------------------------------------------------
def changed(
    stored: bytes,
    system: dict[str, object] | None = None,
    user: dict[str, object] | None = None,
    removed: set[str] | None = None,
) -> bytes:
    changes = Changes()
    changes.system = system or {}
    changes.user = user or {}
    changes.removed = removed or set()
    return rewrite(stored, changes)


def test_no_changes_change_no_byte() -> None:
    for stored in (FULL, message(), stored_of(b""), stored_of(TWICE + MALFORMED_MAP[:0] + BODY)):
        assert changed(stored) == stored


def test_application_properties() -> None:
    stored = changed(FULL, user={"color": "blue", "New": 2**40, "null": None}, removed={"size"})
    delivered = decode_message(encode_delivered(stored, 1, NOON_MS, 0, 0, 0))
    assert delivered.application_properties == {"Color": "blue", "New": 2**40, "null": None}
    assert stored.endswith(BODY)
    assert read_fields(stored).system | {"size": 0} == read_fields(FULL).system | {"size": 0}
    assert FULL[: len(FULL) // 2] == stored[: len(FULL) // 2]


def test_setting_and_removing_all() -> None:
    bare = message(user={"a": 1})
    assert changed(bare, removed={"a"}) == message()
    assert changed(message(), user={"a": 1}) == bare
    assert read_fields(changed(stored_of(TWICE + BODY), user={"A": 3})).user == {"a": 3}
    assert read_fields(changed(stored_of(TWICE + BODY), removed={"a"})).user == {}


def test_properties_nobody_can_read_give_way() -> None:
    stored = stored_of(MALFORMED_PROPERTIES + MALFORMED_MAP + BODY)
    again = changed(stored, {"label": "x"}, {"a": 1})
    assert read_fields(again).system["label"] == "x"
    assert read_fields(again).user == {"a": 1}
    assert again.endswith(BODY)


def test_system_properties_are_written() -> None:
    system: dict[str, object] = {
        "messageid": "M",
        "to": None,
        "label": "L" * 300,
        "replyto": "R",
        "correlationid": None,
        "contenttype": "application/json",
        "sessionid": "S",
        "replytosessionid": None,
        "partitionkey": "S",
        "viapartitionkey": None,
        "timetolive": timedelta(seconds=5),
    }
    stored = changed(FULL, system)
    seen = read_fields(stored).system
    assert {name: seen.get(name) for name in system} == system
    assert read_keys(stored) == ("M", "S", "S")
    delivered = decode_message(encode_delivered(stored, 1, NOON_MS, 0, 0, 0))
    assert delivered.properties.user_id == b"u"
    assert delivered.properties.content_encoding == "gzip"
    assert delivered.properties.group_sequence == 7
    assert delivered.ttl_ms == 5_000
    assert delivered.annotations[Symbol("own")] == 1
    assert "x-opt-via-partition-key" not in delivered.annotations
    assert delivered.application_properties == {"Color": "red", "size": 5}
    assert stored.endswith(BODY)


def test_system_properties_of_a_message_without_any() -> None:
    stored = changed(message(), {"label": "x", "partitionkey": "p"})
    assert read_fields(stored).system["label"] == "x"
    assert read_keys(stored) == (None, None, "p")
    assert changed(stored, {"label": None, "partitionkey": None})[19:] == b"\x00\x53\x73\x45" + BODY


def test_the_times_of_a_message_follow_its_time_to_live() -> None:
    """.NET believes the difference of these two rather than the header."""
    properties = Properties(absolute_expiry_ms=NOON_MS + 10_000, creation_ms=NOON_MS)
    stored = changed(message(properties, ttl_ms=10_000), {"timetolive": timedelta(seconds=3)})
    delivered = decode_message(encode_delivered(stored, 1, NOON_MS, 0, 0, 0))
    assert delivered.ttl_ms == 3_000
    assert delivered.properties.absolute_expiry_ms == NOON_MS + 3_000
    assert delivered.properties.creation_ms == NOON_MS
    endless = changed(stored, {"timetolive": None})
    delivered = decode_message(encode_delivered(endless, 1, NOON_MS, 0, 0, 0))
    assert delivered.ttl_ms is None
    assert delivered.properties.absolute_expiry_ms is None


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -5,
        2**63 - 1,
        2**64 - 1,
        1.5,
        "größe",
        b"\x00",
        ID,
        NOON,
        timedelta(days=-1, microseconds=3),
        Decimal("-123.450"),
        Decimal(0),
        Decimal("9" * 28),
        Decimal("9" * 34 + "E6111"),
        Decimal("1E6144"),
        Decimal("1E-6176"),
    ],
    ids=str,
)
def test_values_there_and_back(value: object) -> None:
    again = read_fields(changed(message(), user={"a": value})).user["a"]
    assert again == value
    assert type(again) is type(value)


def test_durations_longer_than_the_wire_knows() -> None:
    again = read_fields(changed(message(), user={"a": timedelta.max, "b": timedelta.min})).user
    assert again == {
        "a": timedelta(microseconds=(2**63 - 1) // 10),
        "b": timedelta(microseconds=-(2**63 - 1) // 10),
    }
    stored = changed(message(), {"timetolive": timedelta.max})
    assert read_fields(stored).system["timetolive"] == timedelta.max - timedelta(microseconds=999)


def test_other_bodies_are_left_alone() -> None:
    for body in (value_section({"a": [1]}), BODY * 3, b""):
        stored = stored_of(encode_message(body, Properties(message_id="m"), {"a": 1}))
        assert changed(stored, {"label": "x"}, {"a": 2}).endswith(body)
        assert changed(stored, user={"a": 1}) == stored


def test_the_codec_is_what_the_entities_ask_for() -> None:
    codec: MessageCodec = StoredMessageCodec()
    assert codec.read_fields(FULL).user == read_fields(FULL).user
    assert codec.read_keys(FULL) == read_keys(FULL)
    assert codec.rewrite(FULL, Changes()) == FULL
    assert codec.new_id() != codec.new_id()
    assert encode_symbol("x-opt-partition-key") in FULL
