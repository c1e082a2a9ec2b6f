"""Lazy messages: borders, the stored form, what a receiver gets; against two other codecs too."""

import itertools
from datetime import timedelta
from typing import Any
from uuid import UUID

import proton
import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.message import Message as SdkMessage
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage

from twinbus.amqp.decoding import decode_whole
from twinbus.amqp.encoding import encode_value
from twinbus.amqp.types import Described, Int, Symbol, Timestamp, UByte, UInt, ULong
from twinbus.errors import RemoteProtocolError
from twinbus.limits import SECTIONS_MAX
from twinbus.message.plain import (
    BATCH_FORMAT,
    Properties,
    build_batch,
    data_section,
    decode_message,
    encode_message,
    sequence_section,
    split_batch,
    value_section,
)
from twinbus.message.scan import Scanned, scan
from twinbus.message.sections import DATA, SEQUENCE, VALUE
from twinbus.message.stored import encode_delivered

HEADER, DELIVERY_ANNOTATIONS, ANNOTATIONS, PROPERTIES = 0x70, 0x71, 0x72, 0x73
APPLICATION_PROPERTIES, FOOTER = 0x74, 0x78


def section(code: int, value: object) -> bytes:
    return encode_value(Described(ULong(code), value))


WHOLE = {
    HEADER: section(HEADER, [True, UByte(7), UInt(60_000), None, UInt(3)]),
    DELIVERY_ANNOTATIONS: section(DELIVERY_ANNOTATIONS, {Symbol("x-opt-trace"): "t"}),
    ANNOTATIONS: section(ANNOTATIONS, {Symbol("x-opt-partition-key"): "pk"}),
    PROPERTIES: section(PROPERTIES, ["id-1", None, "to", "subject"]),
    APPLICATION_PROPERTIES: section(APPLICATION_PROPERTIES, {"a": Int(1)}),
    DATA: section(DATA, b"body " * 100),
    FOOTER: section(FOOTER, {Symbol("f"): 1}),
}
BARE = b"".join(WHOLE[code] for code in (PROPERTIES, APPLICATION_PROPERTIES, DATA, FOOTER))


def delivered(scanned: Scanned) -> bytes:
    return encode_delivered(scanned.stored(), 5, 1_700_000_000_000, 0, 0, 0)


def check_whole(scanned: Scanned) -> None:
    assert (scanned.durable, scanned.priority, scanned.ttl_ms) == (True, 7, 60_000)
    assert scanned.bare == BARE
    assert scanned.properties_at == 0
    assert scanned.application_properties_at == len(WHOLE[PROPERTIES])
    assert scanned.annotation_count == 2
    assert scanned.annotation("x-opt-partition-key") == "pk"
    assert scanned.annotation("x-opt-partition-id") is None
    assert scanned.annotation("pk") is None  # a value, not a name
    assert scanned.delivery_annotation("x-opt-trace") == "t"
    assert scanned.delivery_annotation("t") is None
    assert scanned.message_id() == "id-1"
    assert scanned.group_id() is None
    assert scanned.content_type() is None
    assert scanned.properties().subject == "subject"
    assert scanned.application_properties() == {"a": 1}


def test_a_message_in_the_standard_order() -> None:
    check_whole(scan(b"".join(WHOLE.values())))


@pytest.mark.parametrize(
    ("annotations", "value"),
    [
        ({Symbol("x-opt-key"): "a text"}, "a text"),
        ({Symbol("x-opt-key"): ""}, ""),
        ({Symbol("x-opt-key"): "t" * 255}, "t" * 255),
        ({Symbol("x-opt-key"): "t" * 300}, "t" * 300),
        ({Symbol("x-opt-key"): "täxt"}, "täxt"),
        ({Symbol("x-opt-key"): 7}, 7),
        ({Symbol("x-opt-key"): b"binary"}, b"binary"),
        ({Symbol("x-opt-key"): None}, None),
        ({"x-opt-key": "under a text"}, "under a text"),
        ({Symbol("x-opt-key"): "first", Symbol("x-opt-other"): "o"}, "first"),
        ({Symbol("x-opt-other"): "o", Symbol("x-opt-key"): "last"}, "last"),
        ({Symbol("x-opt-other"): "x-opt-key"}, None),
        ({Symbol("x-opt-key-of-another"): "o"}, None),
    ],
)
def test_a_delivery_annotation(annotations: dict[object, object], value: object) -> None:
    data = section(DATA, b"body") + section(DELIVERY_ANNOTATIONS, annotations)
    assert scan(data).delivery_annotation("x-opt-key") == value


def test_delivery_annotations_that_are_damaged() -> None:
    whole = section(DELIVERY_ANNOTATIONS, {Symbol("x-opt-key"): "text"})
    for at in range(5, len(whole)):
        for code in (0x00, 0xA1, 0xA3, 0xB1, 0xFF):
            data = section(DATA, b"body") + whole[:at] + bytes((code,)) + whole[at + 1 :]
            try:
                found = scan(data).delivery_annotation("x-opt-key")
            except RemoteProtocolError:
                continue
            assert found is None or isinstance(found, str)


def test_delivery_annotations_last_as_the_sdk_sends_them() -> None:
    order = (HEADER, ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES, DATA, FOOTER)
    check_whole(scan(b"".join(WHOLE[code] for code in (*order, DELIVERY_ANNOTATIONS))))
    annotated = AmqpAnnotatedMessage(data_body=[b"a", b"b"], delivery_annotations={"d": 1})
    bare = section(DATA, b"a") + section(DATA, b"b")
    assert scan(sdk_bytes(annotated)).bare == bare
    assert scan(sdk_bytes(annotated)).delivery_annotation("d") == 1
    assert scan(bare).delivery_annotation("d") is None
    assert scan(WHOLE[DELIVERY_ANNOTATIONS] + bare).bare == bare


def test_any_order_of_sections() -> None:
    for order in itertools.islice(itertools.permutations(WHOLE), 0, None, 7):
        check_whole(scan(b"".join(WHOLE[code] for code in order)))


def test_any_form_of_descriptor() -> None:
    names = {
        HEADER: "header:list",
        DELIVERY_ANNOTATIONS: "delivery-annotations:map",
        ANNOTATIONS: "message-annotations:map",
        PROPERTIES: "properties:list",
        APPLICATION_PROPERTIES: "application-properties:map",
        DATA: "data:binary",
        FOOTER: "footer:map",
    }
    symbolic = [
        b"\x00" + encode_value(Symbol("amqp:" + names[code])) + raw[3:]
        for code, raw in WHOLE.items()
    ]
    check_whole(scan(b"".join(symbolic)))
    wide = [b"\x00\x80" + code.to_bytes(8, "big") + raw[3:] for code, raw in WHOLE.items()]
    check_whole(scan(b"".join(wide)))


def test_an_empty_message_is_valid() -> None:
    scanned = scan(b"")
    assert (scanned.bare, scanned.ttl_ms, scanned.durable, scanned.priority) == (b"", -1, False, 4)
    assert scanned.message_id() is None
    assert scan(section(PROPERTIES, [])).message_id() is None
    assert scanned.properties().message_id is None
    assert scanned.application_properties() == {}
    assert decode_message(delivered(scanned)).body_section == 0


def test_short_sections_and_bodies() -> None:
    for raw in (
        section(DATA, b""),
        section(VALUE, None),
        section(VALUE, "text"),
        section(SEQUENCE, [1]),
        section(SEQUENCE, []) + section(SEQUENCE, [1, 2]),
        section(DATA, b"x") * 3,
        section(PROPERTIES, []),
        section(DATA, b"x" * 70_000),
    ):
        assert scan(raw).bare == raw
        header = section(HEADER, [])
        assert scan(header + raw).bare == raw
        message = decode_message(delivered(scan(raw)))
        assert message.annotations["x-opt-sequence-number"] == 5


def test_cut_short_at_every_byte() -> None:
    data = b"".join(WHOLE.values())
    borders = {0}
    for raw in WHOLE.values():
        borders.add(max(borders) + len(raw))
    for length in range(len(data)):
        if length in borders:
            scan(data[:length])
            continue
        with pytest.raises(RemoteProtocolError) as caught:
            scan(data[:length])
        assert caught.value.condition == "amqp:decode-error"


@pytest.mark.parametrize("code", [code for code in WHOLE if code != DATA])
def test_single_sections_given_twice(code: int) -> None:
    for raw in (
        b"".join(WHOLE.values()) + WHOLE[code],
        WHOLE[code] * 2 + WHOLE[DATA],
        WHOLE[code] + WHOLE[DATA] + WHOLE[code],
    ):
        with pytest.raises(RemoteProtocolError):
            scan(raw)
        with pytest.raises(RemoteProtocolError):
            decode_message(raw)


@pytest.mark.parametrize(
    "raw",
    [
        section(0x79, []),  # no such section
        section(HEADER, {}),
        section(HEADER, [UInt(1)]),
        section(HEADER, [None] * 6),
        section(HEADER, [None, UInt(256)]),
        section(ANNOTATIONS, []),
        b"\x00\x53\x72\xc1\x02\x01\x40",  # half a pair
        b"\x00\x53\x72\xc1\x03\x02\xa3\x05",  # a key beyond the map
        b"\x00\x53\x72\xc1\x00",
        b"\x00\x53\x72\xc1\x04\x02\x40\x40\x40",  # an element that was not announced
        b"\x00\x53\x72\xd1\x00\x00\x00\x03\x00\x00\x00",
        section(APPLICATION_PROPERTIES, []),
        section(DATA, "text"),
        section(SEQUENCE, b""),
        section(DATA, b"x") + section(VALUE, 1),
        section(VALUE, 1) * 2,
        section(SEQUENCE, [1]) + section(DATA, b"x"),
        b"\x40",  # a value without descriptor
        b"\x00\x53\x75\xb0\xff\xff\xff\xff" + b"x" * 100,
        b"\x00\x53\x75\xa0\xff" + b"x" * 100,
    ],
)
def test_malformed(raw: bytes) -> None:
    for data in (raw, WHOLE[HEADER] + raw if raw[2:3] != b"\x70" else raw):
        with pytest.raises(RemoteProtocolError) as caught:
            scan(data)
        assert caught.value.condition == "amqp:decode-error"


def test_the_number_of_body_sections_is_bounded() -> None:
    one = section(DATA, b"xxxxxxxx")
    assert scan(one * SECTIONS_MAX).bare == one * SECTIONS_MAX
    with pytest.raises(RemoteProtocolError):
        scan(one * (SECTIONS_MAX + 1))


@pytest.mark.parametrize(
    "header,times,ttl_ms",
    [
        ([], [], -1),
        ([None, None, UInt(5)], [Timestamp(2_000), Timestamp(1_000)], 5),
        ([], [Timestamp(2**50 + 7), Timestamp(7)], 2**50),
        ([None, None, UInt(0xFFFF_FFFF)], [Timestamp(2**50 + 7), Timestamp(7)], 2**50),
        ([None, None, UInt(0xFFFF_FFFF)], [], -1),
        ([], [Timestamp(2_000)], -1),
        ([], [None, Timestamp(2_000)], -1),
        ([], [Timestamp(1_000), Timestamp(2_000)], 0),
        ([None, None, UInt(0)], [], 0),
    ],
)
def test_time_to_live(header: list[object], times: list[object], ttl_ms: int) -> None:
    properties = section(PROPERTIES, ["id\u0083"] + [None] * 7 + times)
    body = section(DATA, b"x" * 20)
    assert scan(section(HEADER, header) + properties + body).ttl_ms == ttl_ms
    assert scan(body + properties + section(HEADER, header)).ttl_ms == ttl_ms


def test_properties_are_checked_when_asked_for() -> None:
    for fields in ([None] * 10 + [b"not text"], [None] * 14):
        scanned = scan(section(PROPERTIES, fields) + WHOLE[DATA])
        with pytest.raises(RemoteProtocolError):
            scanned.properties()
    with pytest.raises(RemoteProtocolError):
        scan(section(PROPERTIES, [None] * 10 + [b"not text"])).group_id()


# --- annotations ---------------------------------------------------------------------------------
BROKER_OWNED = (
    "x-opt-sequence-number",
    "x-opt-enqueued-time",
    "x-opt-locked-until",
    "x-opt-enqueue-sequence-number",
    "x-opt-message-state",
    "x-opt-deadletter-source",
    "x-opt-lock-token",
    "x-opt-partition-id",
)


@pytest.mark.parametrize("name", BROKER_OWNED)
def test_a_sender_cannot_speak_for_the_broker(name: str) -> None:
    """C11: annotations that only a broker may set are dropped, in any encoding of their names."""
    long_name = b"\xb3" + len(name).to_bytes(4, "big") + name.encode()
    for key in (encode_value(Symbol(name)), encode_value(name), long_name):
        entries = key + encode_value(99) + encode_value(Symbol("mine")) + encode_value(1)
        raw = b"\x00\x53\x72\xd1" + (len(entries) + 4).to_bytes(4, "big") + b"\x00\x00\x00\x04"
        scanned = scan(raw + entries + WHOLE[DATA])
        assert scanned.annotation(name) is None
        assert scanned.annotation("mine") == 1
        message = decode_message(delivered(scanned))
        assert message.annotations.get(name) != 99
        assert message.annotations["mine"] == 1


def test_annotations_under_numbers_are_kept() -> None:
    scanned = scan(section(ANNOTATIONS, {ULong(5): "five", Symbol("mine"): 1}) + WHOLE[DATA])
    assert decode_message(delivered(scanned)).annotations[5] == "five"
    assert scanned.annotation("mine") == 1


def test_the_senders_own_annotations_come_back() -> None:
    own: dict[str, object] = {
        "x-opt-partition-key": "pk",
        "x-opt-via-partition-key": "vpk",
        "x-opt-scheduled-enqueue-time": Timestamp(1_700_000_000_000),
        "custom": [1, {"deep": True}],
        "long": "x" * 300,
    }
    scanned = scan(encode_message(data_section(b"b"), annotations=own))
    for name, value in own.items():
        assert scanned.annotation(name) == value
    message = decode_message(delivered(scanned))
    for name, value in own.items():
        assert message.annotations[name] == value


# --- delivering ----------------------------------------------------------------------------------
def test_what_a_receiver_gets() -> None:
    stored = scan(b"".join(WHOLE.values())).stored()
    data = encode_delivered(stored, 2**50, 1_700_000_000_000, 3, 1_700_000_060_000, 0)
    message = decode_message(data)
    assert (message.durable, message.priority, message.ttl_ms) == (True, 7, 60_000)
    assert message.delivery_count == 3
    assert message.delivery_annotations == {}
    assert message.annotations == {
        "x-opt-sequence-number": 2**50,
        "x-opt-enqueued-time": Timestamp(1_700_000_000_000),
        "x-opt-enqueue-sequence-number": 2**50,
        "x-opt-locked-until": Timestamp(1_700_000_060_000),
        "x-opt-partition-key": "pk",
    }
    assert all(type(key) is Symbol for key in message.annotations)
    assert type(message.annotations["x-opt-sequence-number"]) is int  # AMQP long
    assert type(message.annotations["x-opt-enqueued-time"]) is Timestamp
    assert data.endswith(BARE)


@pytest.mark.parametrize("delivery_count,first_acquirer", [(0, True), (1, False), (2**31, False)])
def test_the_header(delivery_count: int, first_acquirer: bool) -> None:
    for ttl_ms, expected in ((-1, None), (0, 0), (5, 5), (2**31, 2**31), (2**40, 0xFFFF_FFFF)):
        properties = Properties(creation_ms=0, absolute_expiry_ms=ttl_ms if ttl_ms >= 0 else None)
        stored = scan(encode_message(data_section(b"b"), properties)).stored()
        data = encode_delivered(stored, 1, 2, delivery_count, 3, 0)
        described = decode_whole(data[: 5 + data[4]])
        assert described == Described(
            ULong(HEADER), [False, UByte(4), expected, first_acquirer, delivery_count]
        )


def test_without_lock_with_state() -> None:
    stored = scan(WHOLE[DATA]).stored()
    message = decode_message(encode_delivered(stored, 1, 2, 0, 0, 1))
    assert "x-opt-locked-until" not in message.annotations
    assert message.annotations["x-opt-message-state"] == 1
    assert type(message.annotations["x-opt-message-state"]) is Int
    plain = decode_message(encode_delivered(stored, 1, 2, 0, 0, 0))
    assert len(plain.annotations) == 3


def test_the_lock_token_goes_into_the_delivery_annotations() -> None:
    token = UUID("00112233-4455-6677-8899-aabbccddeeff")
    stored = scan(WHOLE[ANNOTATIONS] + WHOLE[DATA]).stored()
    data = encode_delivered(stored, 1, 2, 0, 5, 0, lock_token=token.bytes)
    message = decode_message(data)
    assert message.delivery_annotations == {"x-opt-lock-token": token}
    assert message.annotations["x-opt-partition-key"] == "pk"
    # Sections stand in the standard order.
    assert data.index(b"\x00\x53\x70") < data.index(b"\x00\x53\x71") < data.index(b"\x00\x53\x72")


@pytest.mark.parametrize("with_properties", [True, False])
@pytest.mark.parametrize("application_properties", [None, {"DeadLetterReason": "old", "a": 1}])
def test_dead_letter_reasons_become_application_properties(
    with_properties: bool, application_properties: dict[str, object] | None
) -> None:
    properties = Properties(message_id="m") if with_properties else None
    raw = encode_message(data_section(b"body"), properties, application_properties)
    stored = scan(raw).stored()
    message = decode_message(
        encode_delivered(stored, 1, 2, 3, 4, 0, None, "reason", "description", "queue")
    )
    expected = {"DeadLetterReason": "reason", "DeadLetterErrorDescription": "description"}
    assert message.application_properties == (application_properties or {}) | expected
    assert all(type(key) is str for key in message.application_properties)
    assert message.annotations["x-opt-deadletter-source"] == "queue"
    assert message.properties.message_id == ("m" if with_properties else None)
    assert message.body == b"body"


def test_overlay_properties_replace_and_add() -> None:
    raw = encode_message(
        data_section(b"body"),
        Properties(message_id="m"),
        {"keep": Int(1), "change": "old", "other": True},
    )
    overlay = encode_value({"change": Int(2), Symbol("other"): None, "new": "n"})
    data = encode_delivered(scan(raw).stored(), 1, 2, 0, 4, 0, overlay, "reason")
    assert decode_message(data).application_properties == {
        "keep": 1,
        "change": 2,
        "other": None,
        "new": "n",
        "DeadLetterReason": "reason",
    }
    assert data.endswith(data_section(b"body"))


def test_properties_nobody_can_read_give_way() -> None:
    broken = b"\x00\x53\x74\xc1\x03\x04\x40\x40"
    stored = scan(broken + data_section(b"body")).stored()
    message = decode_message(encode_delivered(stored, 1, 2, 0, 0, 0, None, "reason"))
    assert message.application_properties == {"DeadLetterReason": "reason"}
    assert message.body == b"body"


def test_merging_into_nothing() -> None:
    data = encode_delivered(scan(b"").stored(), 1, 2, 0, 4, 0, encode_value({"k": 1}))
    assert decode_message(data).application_properties == {"k": 1}


def test_stored_forms_of_another_version_are_refused() -> None:
    stored = scan(WHOLE[DATA]).stored()
    for broken in (b"", stored[:10], b"\x02" + stored[1:]):
        with pytest.raises(RemoteProtocolError):
            encode_delivered(broken, 1, 2, 0, 0, 0)


# --- batches and plain messages ------------------------------------------------------------------
def test_batches() -> None:
    assert BATCH_FORMAT == 0x8001_3700
    messages = [encode_message(data_section(bytes((n,)) * n * 10)) for n in range(50)] + [b""]
    batch = build_batch(messages)
    assert split_batch(batch) == messages
    envelope = WHOLE[ANNOTATIONS] + WHOLE[PROPERTIES] + batch
    assert split_batch(envelope) == messages
    assert split_batch(b"") == []
    for broken in (
        batch[:-1],
        batch + b"\x00",
        batch + section(VALUE, 1),
        batch + section(DATA, "text instead of bytes"),
        batch + b"\x00\x53\x75\xb0\x00\x00\x01\x00 too short",
        batch + WHOLE[HEADER] * 7,
    ):
        with pytest.raises(RemoteProtocolError):
            split_batch(broken)
    with pytest.raises(RemoteProtocolError):
        split_batch(build_batch([b""] * (SECTIONS_MAX + 1)))


@pytest.mark.parametrize(
    "body,kind,value",
    [
        (b"", 0, None),
        (data_section(b"a") + data_section(b"b"), DATA, b"ab"),
        (value_section({"k": Int(1)}), VALUE, {"k": 1}),
        (value_section([1, 2]), VALUE, [1, 2]),
        (value_section(b"bytes"), VALUE, b"bytes"),
        (sequence_section([1]) + sequence_section([2, "3"]), SEQUENCE, [1, 2, "3"]),
    ],
)
def test_plain_messages_there_and_back(body: bytes, kind: int, value: object) -> None:
    properties = Properties(
        UUID(int=5), b"user", "to", "subject", "reply", ULong(7), "text/plain", "gzip",
        1_000, 500, "group", 3, "reply-group",
    )  # fmt: skip
    data = encode_message(
        body, properties, {"statusCode": Int(200)}, {"x-opt-partition-key": "pk"}, 5, True, 9
    )
    message = decode_message(data)
    names = [name for name in dir(Properties) if name[0] != "_" and name != "encode"]
    assert len(names) == 13
    for name in names:
        assert getattr(message.properties, name) == getattr(properties, name), name
    assert type(message.properties.message_id) is UUID
    assert type(message.properties.correlation_id) is ULong
    assert message.application_properties == {"statusCode": 200}
    assert message.annotations == {Symbol("x-opt-partition-key"): "pk"}
    assert (message.ttl_ms, message.durable, message.priority) == (5, True, 9)
    assert (message.body_section, message.body) == (kind, value)
    assert message.delivery_annotations == {}
    scanned = scan(data)
    assert scanned.message_id() == UUID(int=5)
    assert (scanned.group_id(), scanned.content_type()) == ("group", "text/plain")


def test_plain_messages_are_checked() -> None:
    for raw in (
        section(DATA, b"x") + section(VALUE, 1),
        section(PROPERTIES, [None] * 8 + ["not a time"]),
        section(HEADER, [None, "not a number"]),
    ):
        with pytest.raises(RemoteProtocolError):
            decode_message(raw)


# --- against azure-servicebus and Qpid Proton ----------------------------------------------------
def sdk_bytes(message: ServiceBusMessage | AmqpAnnotatedMessage) -> bytes:
    annotated = message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message
    outgoing = PyamqpTransport.to_outgoing_amqp_message(annotated)
    return bytes(encode_payload(bytearray(), outgoing))


def sdk_reads(data: bytes) -> SdkMessage:
    return decode_payload(memoryview(data))


def test_a_message_of_the_sdk() -> None:
    data = sdk_bytes(
        ServiceBusMessage(
            b"body",
            application_properties={"a": 1, "b": "two"},
            session_id="s",
            message_id="m",
            time_to_live=timedelta(seconds=30),
            content_type="text/plain",
            partition_key="s",
            subject="label",
        )
    )
    scanned = scan(data)
    assert (scanned.ttl_ms, scanned.message_id(), scanned.group_id()) == (30_000, "m", "s")
    assert scanned.annotation("x-opt-partition-key") == "s"
    assert scanned.content_type() == "text/plain"
    assert scanned.application_properties()["a"] == 1
    read = sdk_reads(
        encode_delivered(scanned.stored(), 9, 1_000, 2, 5_000, 0, None, "why", "because")
    )
    assert read.header is not None
    assert read.properties is not None
    assert read.message_annotations is not None
    assert read.application_properties is not None
    assert (read.header[2], read.header[4]) == (30_000, 2)
    assert read.properties[0] == b"m"
    assert read.message_annotations[b"x-opt-sequence-number"] == 9
    assert read.message_annotations[b"x-opt-locked-until"] == 5_000
    assert read.message_annotations[b"x-opt-partition-key"] == b"s"
    assert read.application_properties[b"DeadLetterReason"] == b"why"
    assert read.application_properties[b"b"] == b"two"
    assert read.data == [b"body"]


@pytest.mark.parametrize(
    "body",
    [
        {"value_body": {"k": [1, 2]}},
        {"value_body": "text"},
        {"value_body": 0},
        {"sequence_body": [[1, 2], ["3"]]},
        {"data_body": [b"a", b"b"]},
    ],
)
def test_every_body_of_the_sdk(body: dict[str, Any]) -> None:
    data = sdk_bytes(
        AmqpAnnotatedMessage(
            **body, delivery_annotations={"d": 1}, annotations={"a": "x"}, footer={"f": 1}
        )
    )
    scanned = scan(data)
    read = sdk_reads(delivered(scanned))
    original = sdk_reads(data)
    assert read.value == original.value
    assert read.sequence == original.sequence
    assert read.data == original.data
    assert read.footer == original.footer
    assert not read.delivery_annotations
    assert scanned.annotation("a") == "x"


@pytest.mark.parametrize("body", [b"bytes", "text", {"k": [1, 2.5]}, None, [1, "two"], 2**40])
def test_messages_of_proton(body: Any) -> None:
    sent = proton.Message(
        body=body,
        id=UUID(int=9),
        subject="s",
        ttl=5.0,
        durable=True,
        priority=6,
        group_id="g",
        properties={"a": 1, "b": "two"},
        annotations={proton.symbol("mine"): "x"},
        instructions={proton.symbol("d"): 1},
    )
    scanned = scan(bytes(sent.encode()))
    assert (scanned.durable, scanned.priority, scanned.ttl_ms) == (True, 6, 5_000)
    assert (scanned.message_id(), scanned.group_id()) == (UUID(int=9), "g")
    assert scanned.annotation("mine") == "x"
    received: Any = proton.Message()
    received.decode(encode_delivered(scanned.stored(), 7, 1_000, 2, 5_000, 1, None, "why"))
    assert received.body == body
    assert (received.id, received.subject, received.group_id) == (UUID(int=9), "s", "g")
    assert received.delivery_count == 2
    assert received.annotations["x-opt-sequence-number"] == 7
    assert received.annotations["x-opt-message-state"] == 1
    assert received.annotations["mine"] == "x"
    assert received.properties == {"a": 1, "b": "two", "DeadLetterReason": "why"}
    assert not received.instructions


def test_proton_reads_plain_messages() -> None:
    received: Any = proton.Message()
    received.decode(
        encode_message(
            value_section({"sequence-numbers": [1, 2]}),
            Properties(correlation_id=UUID(int=3), content_type="a/b"),
            {"statusCode": Int(200), "statusDescription": "OK"},
        )
    )
    assert received.correlation_id == UUID(int=3)
    assert received.properties == {"statusCode": 200, "statusDescription": "OK"}
    assert received.body == {"sequence-numbers": [1, 2]}
