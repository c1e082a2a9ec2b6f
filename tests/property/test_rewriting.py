"""Whatever is sent, `restore` makes of a message in the backlog what it was before.

Byte for byte: each message goes through the SDK's own encoder and decoder, as it does between
sender, backlog queue and syphon, and is then encoded like the original.
"""

import copy
import datetime as dt
import decimal
from typing import Any

import pytest
from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from hypothesis import example, given, settings
from hypothesis import strategies as st

from twinbus.pairing.rewriting import encoded_size, restore, rewrite
from twinbus.pairing.rules import RESERVED
from twinbus.pairing.value_types import recover, types_of

pytestmark = pytest.mark.proves("P-11")

NOW = dt.datetime(2026, 11, 15, tzinfo=dt.UTC)


def encoded(message: AmqpAnnotatedMessage) -> bytes:
    """As the SDK puts it on the wire."""
    return bytes(encode_payload(bytearray(), PyamqpTransport.to_outgoing_amqp_message(message)))


def read(message: AmqpAnnotatedMessage) -> AmqpAnnotatedMessage:
    """As the SDK hands it to a receiver."""
    return ServiceBusReceivedMessage.from_bytes(encoded(message)).raw_amqp_message


def named(name: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return values.map(lambda value: {"TYPE": name, "VALUE": value})


texts = st.text(st.characters(codec="utf-8"), max_size=8)
symbols = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=8)
ints = st.integers(-(2**31), 2**31 - 1)
times = st.integers(0, 253402243199000).map(
    lambda ms: dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=ms)
)
decimals = st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=0, max_value=999)
simple = st.one_of(
    st.none(),
    st.booleans(),
    texts,
    st.uuids(),
    ints,
    st.floats(),
    times,
    decimals,
    named("LONG", st.integers(-(2**63), 2**63 - 1)),
    named("ULONG", st.integers(0, 2**64 - 1)),
    named("UINT", st.integers(0, 2**32 - 1)),
    named("USHORT", st.integers(0, 2**16 - 1)),
    named("UBYTE", st.integers(0, 255)),
    named("SHORT", st.integers(-(2**15), 2**15 - 1)),
    named("BYTE", st.integers(-128, 127)),
    named("FLOAT", st.floats(width=32, allow_nan=False)),
    named("SYMBOL", symbols),
    named("BINARY", st.binary(max_size=8)),
    named("TIMESTAMP", st.integers(-(2**63), 2**63 - 1)),
    named("DECIMAL128", decimals),
)
leaves = st.one_of(simple, st.binary(max_size=8), st.binary(max_size=8).map(bytearray))
arrays = named(
    "ARRAY",
    st.one_of(
        st.lists(ints, min_size=1, max_size=3),
        st.lists(texts, min_size=1, max_size=3),
        st.lists(st.binary(max_size=4), min_size=1, max_size=3),
    ),
)
described = st.tuples(
    st.one_of(named("SYMBOL", symbols), named("ULONG", st.integers(2**16, 2**64 - 1))),
    st.one_of(ints, texts, st.binary(max_size=4), times, st.lists(ints, max_size=2)),
)
# Text and binary keys of one map that are equal as bytes are one key to the SDK.
keys = st.one_of(texts, ints, st.uuids())
values = st.recursive(
    st.one_of(leaves, arrays, described),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(keys, inner, max_size=4),
        named("LIST", st.lists(inner, max_size=3)),
    ),
    max_leaves=10,
)
# As a whole value body a dict is always a map, even if it looks like a type and a value.
bodies = st.one_of(
    st.fixed_dictionaries({"data_body": st.lists(st.binary(max_size=40), max_size=3)}),
    st.fixed_dictionaries({"sequence_body": st.lists(st.lists(values, max_size=4), max_size=3)}),
    st.fixed_dictionaries(
        {
            "value_body": st.one_of(
                st.none(),
                texts,
                st.binary(max_size=8),
                ints,
                st.booleans(),
                st.floats(),
                st.uuids(),
                times,
                decimals,
                st.lists(values, max_size=4),
                st.dictionaries(keys, values, max_size=4),
                described,
            )
        }
    ),
)
names = texts.filter(lambda name: name not in RESERVED)
ids: st.SearchStrategy[Any] = st.one_of(
    st.none(), texts, st.binary(max_size=8), st.uuids(), st.integers(0, 2**64 - 1)
)
milliseconds = st.integers(1, 253402243199000)  # 0 the SDK takes for none


@st.composite
def properties(draw: st.DrawFn) -> AmqpMessageProperties:
    def maybe(strategy: st.SearchStrategy[Any]) -> Any:
        return draw(st.none() | strategy)

    return AmqpMessageProperties(
        message_id=draw(ids),
        user_id=maybe(st.binary(max_size=8)),
        to=maybe(texts),
        subject=maybe(texts),
        reply_to=maybe(texts),
        correlation_id=draw(ids),
        content_type=maybe(symbols),
        content_encoding=maybe(symbols),
        creation_time=maybe(milliseconds),
        absolute_expiry_time=maybe(milliseconds),
        group_id=maybe(texts),
        group_sequence=maybe(st.integers(0, 2**32 - 1)),
        reply_to_group_id=maybe(texts),
    )


@st.composite
def messages(draw: st.DrawFn) -> AmqpAnnotatedMessage:
    annotations = draw(st.dictionaries(symbols.map(lambda name: "x-" + name), values, max_size=3))
    scheduled = draw(st.none() | times)
    if scheduled is not None:
        annotations["x-opt-scheduled-enqueue-time"] = scheduled
    return AmqpAnnotatedMessage(
        **draw(bodies),
        header=draw(
            st.none()
            | st.builds(
                AmqpMessageHeader,
                durable=st.none() | st.booleans(),
                priority=st.none() | st.integers(0, 255),
            )
        ),
        properties=draw(st.none() | properties()),
        application_properties=draw(
            st.none() | st.dictionaries(names, simple | texts.map(str.encode), max_size=4)
        ),
        annotations=annotations or None,
        footer=draw(st.none() | st.dictionaries(symbols, values, max_size=2)),
    )


@pytest.mark.proves("P-11")
@settings(max_examples=100, deadline=None)
@given(message=messages(), key=st.none() | symbols)
@example(message=AmqpAnnotatedMessage(value_body=b""), key=None)
@example(message=AmqpAnnotatedMessage(value_body={"TYPE": "LONG", "VALUE": 5}), key=None)
@example(message=AmqpAnnotatedMessage(value_body=decimal.Decimal("12.50")), key=None)
def test_restored_equals_original(message: AmqpAnnotatedMessage, key: str | None) -> None:
    """Body, properties, annotations, footer: the same bytes."""
    before = copy.deepcopy(vars(message))
    rewritten = rewrite(message, "some/path", key)
    assert _same(vars(message), before), "the caller's message has been changed"
    assert encoded_size(rewritten) == len(encoded(rewritten))
    restored = restore(read(rewritten), NOW)
    assert restored.path == "some/path"
    assert restored.key == key
    restored.message.delivery_annotations = None
    assert encoded(restored.message) == encoded(message)


@pytest.mark.proves("P-11")
@settings(max_examples=50, deadline=None)
@given(message=messages())
def test_the_broker_has_nothing_to_act_on(message: AmqpAnnotatedMessage) -> None:
    """No session, no expiry and no schedule in the backlog."""
    waiting = read(rewrite(message, "q"))
    if waiting.properties:
        assert waiting.properties.group_id is None
        assert waiting.properties.absolute_expiry_time is None
    assert waiting.header is None or waiting.header.time_to_live is None
    assert b"x-opt-scheduled-enqueue-time" not in (waiting.annotations or {})


@settings(max_examples=60, deadline=None)
@given(value=values)
def test_values_without_notes_survive(value: Any) -> None:
    """Of a message that another client has put there: the defaults can always be sent."""
    message = AmqpAnnotatedMessage(sequence_body=[[value]])
    if "DECIMAL128" in types_of([value]):
        return
    [[came]] = list(read(message).body)
    again = AmqpAnnotatedMessage(sequence_body=[[recover(came)]])
    [[came_again]] = list(read(again).body)
    assert _same(came_again, came)


def _same(one: object, other: object) -> bool:
    """Equal, where NaN equals itself."""
    return repr(one) == repr(other)
