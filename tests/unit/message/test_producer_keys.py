"""Producer keys and pings as they are read off the wire."""

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

from twinbus.amqp.types import Symbol
from twinbus.entities.message import NEVER_MS, NewMessage
from twinbus.errors import ArgumentInvalid, RemoteProtocolError
from twinbus.limits import PING_SIZE_BYTES_MAX
from twinbus.message.incoming import new_message
from twinbus.message.message_id import MessageIds
from twinbus.message.plain import Properties, data_section, encode_message
from twinbus.message.sections import DELIVERY_ANNOTATIONS, encode_map_section
from twinbus.message.wire_names import PING_TYPE, PRODUCER_KEY

pytestmark = pytest.mark.proves("P-13")


def annotated(key: object, body: bytes = b"body") -> NewMessage:
    """A message as the SDK sends it."""
    message = ServiceBusMessage(body, message_id="id")
    message.raw_amqp_message.delivery_annotations = {PRODUCER_KEY: key}
    outgoing = PyamqpTransport.to_outgoing_amqp_message(message.raw_amqp_message)
    return read(bytes(encode_payload(bytearray(), outgoing)))


def read(data: bytes) -> NewMessage:
    return new_message(data, MessageIds(7), NEVER_MS)


# --- producer keys ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "producer", "number"),
    [("p/1", "p", 1), ("a/b~3/4096", "a/b~3", 4_096), ("ü/" + "9" * 18, "ü", 10**18 - 1)],
)
def test_a_key_is_read(key: str, producer: str, number: int) -> None:
    producer_key = annotated(key).producer_key
    assert producer_key is not None
    assert (producer_key.producer, producer_key.number, producer_key.is_ping) == (
        producer,
        number,
        False,
    )


def test_nothing_of_it_is_stored() -> None:
    assert annotated("p/1").body == annotated("q/2").body
    assert b"producer" not in annotated("p/1").body


@pytest.mark.parametrize(
    "key",
    [
        "p",
        "p/",
        "/1",
        "p/0",
        "p/-1",
        "p/+1",
        "p/1.5",
        "p/1e3",
        "p/ 1",
        "p/1 ",
        "p/x",
        "p/٣",
        "p/" + "9" * 19,
        "p" * 127 + "/1",
        "",
        7,
        True,
        b"p/1",
        ["p/1"],
        {"p": 1},
    ],
)
def test_a_malformed_key_is_refused(key: object) -> None:
    with pytest.raises(ArgumentInvalid, match="The producer key"):
        annotated(key)


def test_a_refusal_repeats_little_of_what_was_sent() -> None:
    with pytest.raises(ArgumentInvalid) as caught:
        annotated("x" * 100)
    assert "x" * 65 not in str(caught.value)


def test_a_key_of_null_is_none() -> None:
    assert annotated(None).producer_key is None


def test_other_annotations_mean_nothing() -> None:
    message = ServiceBusMessage(b"body")
    message.raw_amqp_message.delivery_annotations = {"x-opt-other": PRODUCER_KEY}
    outgoing = PyamqpTransport.to_outgoing_amqp_message(message.raw_amqp_message)
    assert read(bytes(encode_payload(bytearray(), outgoing))).producer_key is None


@pytest.mark.parametrize("is_early", [True, False])
def test_the_section_may_be_first_or_last(is_early: bool) -> None:
    bare = encode_message(data_section(b"body"))
    raw = b"\xa3" + bytes([len(PRODUCER_KEY)]) + PRODUCER_KEY.encode() + b"\xa1\x03p/5"
    section = encode_map_section(DELIVERY_ANNOTATIONS, 2, raw)
    producer_key = read(section + bare if is_early else bare + section).producer_key
    assert producer_key is not None
    assert producer_key.number == 5


def test_a_section_that_cannot_be_read() -> None:
    raw = b"\xa3" + bytes([len(PRODUCER_KEY)]) + PRODUCER_KEY.encode()
    section = encode_map_section(DELIVERY_ANNOTATIONS, 1, raw)
    with pytest.raises(RemoteProtocolError):
        read(encode_message(data_section(b"body")) + section)


# --- pings --------------------------------------------------------------------------------------


def typed(content_type: str | None, body: bytes = b"") -> NewMessage:
    return read(encode_message(data_section(body), Properties(content_type=content_type)))


@pytest.mark.parametrize("content_type", [PING_TYPE, Symbol(PING_TYPE)])
def test_a_small_message_of_that_content_type_is_a_ping(content_type: str) -> None:
    assert typed(content_type).is_ping


def test_what_the_sdk_sends_as_a_ping() -> None:
    message = ServiceBusMessage(b"", content_type=PING_TYPE, session_id="s")
    message.raw_amqp_message.delivery_annotations = {PRODUCER_KEY: "p/1"}
    outgoing = PyamqpTransport.to_outgoing_amqp_message(message.raw_amqp_message)
    assert read(bytes(encode_payload(bytearray(), outgoing))).is_ping, "key or no key"


def test_nothing_else_is_a_ping() -> None:
    assert not typed("text/plain").is_ping
    assert not typed(PING_TYPE.upper()).is_ping
    assert not typed(PING_TYPE + "; charset=utf-8").is_ping
    assert not typed(None, PING_TYPE.encode()).is_ping, "it only talks of one"
    assert not read(encode_message(data_section(PING_TYPE.encode()))).is_ping


def test_a_large_message_is_no_ping() -> None:
    size = len(encode_message(data_section(b""), Properties(content_type=PING_TYPE)))
    assert typed(PING_TYPE, bytes(PING_SIZE_BYTES_MAX - size - 3)).is_ping
    large = typed(PING_TYPE, bytes(PING_SIZE_BYTES_MAX - size + 1))
    assert not large.is_ping
    assert len(large.body) > PING_SIZE_BYTES_MAX
