"""Every AMQP type there and back, for values hypothesis comes up with; type included."""

import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.amqp.decoding import decode_whole, decode_within, skip_value
from twinbus.amqp.encoding import encode_value
from twinbus.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from twinbus.message.plain import Properties, data_section, decode_message, encode_message
from twinbus.message.scan import scan
from twinbus.message.stored import encode_delivered

ascii_text = st.text(st.characters(max_codepoint=127), max_size=300)
texts = st.text(st.characters(codec="utf-8"), max_size=300)


def signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def unsigned(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, 2**bits - 1)


BY_TYPE: list[st.SearchStrategy[object]] = [
    st.booleans(),
    unsigned(8).map(UByte),
    unsigned(16).map(UShort),
    unsigned(32).map(UInt),
    unsigned(64).map(ULong),
    signed(8).map(Byte),
    signed(16).map(Short),
    signed(32).map(Int),
    signed(64),
    signed(64).map(Timestamp),
    st.floats(width=32, allow_nan=False).map(Float),
    st.floats(allow_nan=False),
    st.characters(codec="utf-8").map(Char),
    st.binary(min_size=4, max_size=4).map(Decimal32),
    st.binary(min_size=8, max_size=8).map(Decimal64),
    st.binary(min_size=16, max_size=16).map(Decimal128),
    st.uuids(),
    st.binary(max_size=300),
    texts,
    ascii_text.map(Symbol),
]
primitives = st.one_of(st.none(), *BY_TYPE)
keys = primitives.filter(lambda key: not isinstance(key, UUID))
arrays = st.one_of(*[st.lists(kind, min_size=1, max_size=5).map(Array) for kind in BY_TYPE])


def containers(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    lists: st.SearchStrategy[object] = st.lists(inner, max_size=6)
    return st.one_of(
        lists,
        st.dictionaries(keys, inner, max_size=5),
        st.builds(Described, st.one_of(ascii_text.map(Symbol), unsigned(64).map(ULong)), inner),
        st.lists(st.lists(inner, max_size=3), min_size=1, max_size=3).map(Array),
        st.lists(arrays, min_size=1, max_size=3).map(Array),
    )


values = st.recursive(st.one_of(primitives, arrays), containers, max_leaves=15)


def shape(value: object) -> object:
    """A value with its types spelled out, so that == compares both."""
    if isinstance(value, dict):
        return dict, [(shape(key), shape(entry)) for key, entry in value.items()]
    if isinstance(value, Array):
        return Array, value.code, [shape(entry) for entry in value]
    if isinstance(value, list):
        return list, [shape(entry) for entry in value]
    if isinstance(value, Described):
        return Described, shape(value.descriptor), shape(value.value)
    if isinstance(value, float):
        return type(value), struct.pack(">d", value)  # tells 0.0 from -0.0
    return type(value), value


@given(values)
def test_decoding_undoes_encoding(value: object) -> None:
    data = encode_value(value)
    assert shape(decode_whole(data)) == shape(value)


@given(values, st.binary(max_size=10), st.binary(max_size=10))
def test_what_stands_around_a_value_does_not_matter(
    value: object, before: bytes, after: bytes
) -> None:
    data = encode_value(value)
    amid = before + data + after
    end = len(before) + len(data)
    read, stopped = decode_within(amid, len(before), len(amid))
    assert shape(read) == shape(value)
    assert stopped == end
    assert skip_value(amid, len(before)) == end


@pytest.mark.proves("M-1")
@given(
    st.dictionaries(ascii_text, values, max_size=4),
    st.dictionaries(texts, primitives, max_size=4),
    st.one_of(st.none(), texts, st.uuids(), unsigned(64).map(ULong), st.binary(max_size=20)),
    st.binary(max_size=400),
    st.one_of(st.none(), texts),
)
def test_messages_come_out_as_they_went_in(
    annotations: dict[str, object],
    application_properties: dict[str, object],
    message_id: object,
    body: bytes,
    reason: str | None,
) -> None:
    """What a receiver gets is what was sent, with the broker's own words added."""
    sent = encode_message(
        data_section(body), Properties(message_id), application_properties, annotations
    )
    scanned = scan(sent)
    assert scanned.message_id() == message_id
    received = decode_message(
        encode_delivered(scanned.stored(), 1, 2, 3, 4, 0, dead_letter_reason=reason)
    )
    kept = {name: entry for name, entry in annotations.items() if name in received.annotations}
    assert shape({Symbol(name): entry for name, entry in annotations.items()}) == shape(
        {Symbol(name): received.annotations[name] for name in kept}
    )
    expected = dict(application_properties)
    if reason is not None:
        expected["DeadLetterReason"] = reason
    assert received.application_properties == expected
    assert received.body == body
    assert shape(received.properties.message_id) == shape(message_id)
