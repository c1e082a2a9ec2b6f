"""Messages as JSON: what is printed can be sent, and is the same message again."""

import json
import math
from uuid import UUID

import pytest

from twinbus.amqp.types import Int, Symbol, Timestamp, ULong
from twinbus.cli.messages.documents import SENT, document_of, encode_document, line_of
from twinbus.errors import ConfigError
from twinbus.message.plain import (
    Properties,
    data_section,
    decode_message,
    encode_message,
    sequence_section,
    value_section,
)

IDENTITY = UUID("12345678-1234-5678-1234-567812345678")
RICH = encode_message(
    data_section(b"body"),
    Properties(
        message_id=IDENTITY,
        to="there",
        subject="what",
        reply_to="here",
        correlation_id=ULong(7),
        content_type="text/plain",
        group_id="session",
        reply_to_group_id="other",
    ),
    {
        "text": "x",
        "number": Int(-3),
        "long": 1 << 40,
        "huge": ULong((1 << 64) - 1),
        "truth": True,
        "nothing": None,
        "half": 0.5,
        "no number": math.inf,
        "when": Timestamp(1_700_000_000_123),
        "who": IDENTITY,
        "bytes": b"\x00\xff",
        "symbol": Symbol("s"),
    },
    {
        "x-opt-partition-key": "session",
        "x-opt-via-partition-key": "via",
        "x-opt-scheduled-enqueue-time": Timestamp(1_800_000_000_999),
    },
    ttl_ms=60_000,
    durable=True,
)
BODIES = [
    data_section(b""),
    data_section("üñí\n\x00".encode()),
    data_section(b"\xff\xfe"),
    value_section("text"),
    value_section(None),
    value_section({"a": [1, b"b", {"c": Timestamp(0)}]}),
    sequence_section([1, "two", [3.5, None]]),
    b"",
]


@pytest.mark.parametrize("data", [RICH, *(encode_message(body) for body in BODIES)])
def test_there_and_back(data: bytes) -> None:
    printed = document_of(data)
    again = encode_document(json.loads(json.dumps(printed)))
    assert document_of(again) == printed
    before, after = decode_message(data), decode_message(again)
    assert after.body == before.body or not before.body
    assert after.application_properties == before.application_properties
    assert after.annotations == before.annotations
    assert after.ttl_ms == before.ttl_ms
    for name in Properties.__slots__:
        assert getattr(after.properties, name) == getattr(before.properties, name), name


def test_everything_that_can_be_sent_is_printed() -> None:
    assert set(SENT) - set(document_of(RICH)) == {"body_base64", "body_type"}


def test_what_only_the_bus_says_is_passed_over() -> None:
    document = {"sequence_number": 7, "state": "active", "enqueued_time": "now", "body": "x"}
    assert document_of(encode_document(document))["body"] == "x"
    assert "sequence_number" not in document_of(encode_document(document))


def test_a_json_body_is_sent_as_its_text() -> None:
    assert decode_message(encode_document({"body": {"a": [1]}})).body == b'{"a": [1]}'


def test_no_message_breaks_out_of_its_line() -> None:
    hostile = {"body": "a\nb\x1b[31m", "subject": "\r\n", "message_id": "\u2028"}
    line = line_of({"state": "active", "delivery_count": 0, **hostile})
    assert len(line.splitlines()) == 1
    assert line.isprintable()


@pytest.mark.parametrize(
    "document, reason",
    [
        ({"boddy": "x"}, "a message has no 'boddy'"),
        ({"body": "x", "body_base64": "eA=="}, "both body and body_base64"),
        ({"body_base64": "?"}, "body_base64 is not base64"),
        ({"body": "x", "body_type": "sequence"}, "body_type is not valid"),
        ({"subject": 7}, "subject is not text"),
        ({"message_id": -1}, "message_id is not an id"),
        ({"message_id": [1]}, "message_id is not an id"),
        ({"time_to_live_ms": 0}, "time_to_live_ms is not a duration"),
        ({"scheduled_enqueue_time": "noon"}, "'noon' is not a time"),
        ({"application_properties": [1]}, "application_properties is not a JSON object"),
        ({"application_properties": {"a": {"$uuid": "x"}}}, "is not a \\$uuid"),
        ({"application_properties": {"a": {"$binary": "x"}}}, "is not base64"),
    ],
)
def test_what_is_no_message(document: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"{reason}.*; "):
        encode_document(document)
