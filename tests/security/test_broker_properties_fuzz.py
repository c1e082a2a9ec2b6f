"""Anything as BrokerProperties, as a property or as a batch: a message or a clear no."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinbus.entities.message import NEVER_MS
from twinbus.errors import ServiceError
from twinbus.message.incoming import new_message
from twinbus.message.message_id import MessageIds
from twinbus.message.plain import decode_message
from twinbus.server.http.rest.messages import (
    body_of,
    broker_properties,
    property_headers,
    read_batch,
    read_message,
)

pytestmark = pytest.mark.proves("M-11")

NOW_MS = 1_800_000_000_000
IDS = MessageIds(1)

names = st.sampled_from(
    [
        "CorrelationId",
        "ContentType",
        "ForcePersistence",
        "Label",
        "MessageId",
        "PartitionKey",
        "ReplyTo",
        "ReplyToSessionId",
        "ScheduledEnqueueTimeUtc",
        "SessionId",
        "TimeToLive",
        "TimeToLiveTimeSpan",
        "To",
        "ViaPartitionKey",
    ]
)
dates = st.sampled_from(
    ["Sun, 06 Nov 1994 08:49:37 GMT", "9999-12-31T23:59:59-23:59", "0001-01-01"]
)
spans = st.sampled_from(["00:00:01", "99999999.23:59:59.9999999", "10675199.02:48:05.4775807"])
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | dates | spans
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
objects = st.dictionaries(names | st.text(max_size=5), values, max_size=6)
# What a header can carry at all: h11 lets no control characters through.
header_text = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF), max_size=200)


def goes_through(encoded: bytes) -> None:
    """What was read can be stored, delivered and shown."""
    message = new_message(encoded, IDS, NEVER_MS)
    assert message.body
    decoded = decode_message(encoded)
    shown = broker_properties(decoded, {})
    assert shown.isascii() and shown.isprintable()
    body, content_type = body_of(decoded)
    assert isinstance(body, bytes)
    assert content_type.isascii() and content_type.isprintable()
    for name, value in property_headers(decoded):
        assert name.isascii() and value.isascii() and value.isprintable()


def read(headers: dict[str, str], body: bytes = b"x") -> None:
    lowered = {name.lower(): value for name, value in headers.items()}
    try:
        encoded = read_message(lowered, headers.items(), body, NOW_MS)
        goes_through(encoded)
    except ServiceError as refused:
        assert refused.http_status in (400, 403)


@given(header_text)
def test_any_text_as_broker_properties(text: str) -> None:
    read({"BrokerProperties": text})


@given(objects)
@settings(max_examples=300)
def test_any_object_as_broker_properties(value: dict[str, Any]) -> None:
    read({"BrokerProperties": json.dumps(value)})


@given(header_text, header_text)
def test_any_text_as_a_property_and_as_content_type(text: str, content_type: str) -> None:
    read({"Some-Name": text, "Content-Type": content_type})


@given(st.binary(max_size=200))
def test_any_bytes_as_a_batch(body: bytes) -> None:
    try:
        for encoded in read_batch(body, NOW_MS):
            goes_through(encoded)
    except ServiceError as refused:
        assert refused.http_status == 400


entries = st.fixed_dictionaries(
    {}, optional={"Body": values, "BrokerProperties": objects | values, "UserProperties": values}
)


@given(st.lists(entries | values, max_size=4) | values)
@settings(max_examples=300)
def test_any_json_as_a_batch(value: Any) -> None:
    try:
        for encoded in read_batch(json.dumps(value).encode(), NOW_MS):
            goes_through(encoded)
    except ServiceError as refused:
        assert refused.http_status in (400, 403)
