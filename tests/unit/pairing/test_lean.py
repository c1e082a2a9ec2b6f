"""Properties without the nulls at their end: the same to whoever reads them (P-6)."""

from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties
from hypothesis import given
from hypothesis import strategies as some

from twinbus.message.scan import scan
from twinbus.pairing.lean import (
    CAN_BE_LEAN,
    ENCODERS,
    PROPERTIES,
    LeanMessage,
    encoded,
    lean,
    outgoing_of,
)
from twinbus.pairing.stamps import with_stamp_in_its_form

TEXTS = some.text(max_size=40)
SYMBOLS = some.text(some.characters(codec="ascii"), max_size=40)
SETTINGS = {
    "message_id": TEXTS,
    "user_id": some.binary(max_size=40),
    "to": TEXTS,
    "subject": TEXTS,
    "reply_to": TEXTS,
    "correlation_id": TEXTS,
    "content_type": SYMBOLS,
    "content_encoding": SYMBOLS,
    "absolute_expiry_time": some.integers(0, 2**40),
    "creation_time": some.integers(0, 2**40),
    "group_id": TEXTS,
    "group_sequence": some.integers(0, 2**32 - 1),
    "reply_to_group_id": TEXTS,
}


def message_of(properties: dict[str, Any]) -> AmqpAnnotatedMessage:
    message = AmqpAnnotatedMessage(data_body=b"body", application_properties={"a": 1})
    message.properties = AmqpMessageProperties(**properties)
    return message


def test_this_sdk_can() -> None:
    assert CAN_BE_LEAN


@pytest.mark.parametrize("encoder", ENCODERS)
@given(properties=some.fixed_dictionaries({}, optional=SETTINGS))
def test_whoever_reads_it_sees_the_same(encoder: str, properties: dict[str, Any]) -> None:
    outgoing = outgoing_of(message_of(properties))
    whole, short = encoded(outgoing, encoder), encoded(lean(outgoing), encoder)
    assert decode_payload(memoryview(short)) == decode_payload(memoryview(whole))
    assert scan(short).properties().encode() == scan(whole).properties().encode()
    assert len(short) <= len(whole)


@given(properties=some.fixed_dictionaries({}, optional=SETTINGS).filter(bool))
def test_what_is_set_last_comes_last(properties: dict[str, Any]) -> None:
    outgoing = outgoing_of(message_of(properties))
    short, whole = lean(outgoing)[PROPERTIES], outgoing[PROPERTIES]
    if any(value is not None for value in whole):
        assert short[-1] is not None
        assert (*short, *[None] * (len(whole) - len(short))) == tuple(whole)
    else:
        assert short is whole, "such as an expiry of 0, for which the SDK writes a null"


def test_a_message_without_properties_stays_as_it_is() -> None:
    outgoing = outgoing_of(AmqpAnnotatedMessage(data_body=b"body"))
    assert lean(outgoing) is outgoing


def test_what_tracing_adds_is_sent() -> None:
    """The SDK takes the message out, adds to it, and puts it back."""
    stamped = with_stamp_in_its_form(ServiceBusMessage(b"body"), "producer/1")
    assert type(stamped) is LeanMessage
    stamped._message = PyamqpTransport.to_outgoing_amqp_message(stamped.raw_amqp_message)
    stamped._message = PyamqpTransport.update_message_app_properties(
        stamped._message, "Diagnostic-Id", "00-trace"
    )
    read = decode_payload(memoryview(encoded(stamped._message, ENCODERS[0])))
    assert read.application_properties == {b"Diagnostic-Id": b"00-trace"}
    assert read.properties is not None and stamped.message_id is not None
    assert read.properties.message_id == stamped.message_id.encode()
    assert len(stamped._message[PROPERTIES]) == 1


def test_a_class_of_the_callers_own_is_kept() -> None:
    class Order(ServiceBusMessage):
        """With more than a message has."""

    assert type(with_stamp_in_its_form(Order(b"body"), "producer/1")) is Order
