"""A message's short way and its long one end in the same bytes, or the long one judges."""

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from twinbus.amqp.encoding import encode_symbol, encode_value
from twinbus.entities.message import NEVER_MS, NewMessage
from twinbus.errors import RemoteProtocolError, ServiceError
from twinbus.limits import PING_SIZE_BYTES_MAX, PRODUCER_KEY_CHARS_MAX, PROPERTY_SIZE_BYTES_MAX
from twinbus.message.incoming import new_message
from twinbus.message.message_id import MessageIds
from twinbus.message.plain import (
    Properties,
    data_section,
    encode_message,
    sequence_section,
    value_section,
)
from twinbus.message.sections import DELIVERY_ANNOTATIONS, FOOTER, encode_map_section
from twinbus.message.short_scan import PlainSends
from twinbus.message.wire_names import PING_TYPE, PRODUCER_KEY

pytestmark = pytest.mark.proves("M-1")

texts = st.none() | st.text(st.characters(codec="utf-8"), max_size=20)
ids = texts | st.uuids() | st.binary(max_size=20) | st.sampled_from(["", "i" * 128, "i" * 129])
times = st.none() | st.sampled_from([0, 1_700_000_000_000, 1_900_000_000_000])
sizes = [0, 1, 100, 255, 256, PING_SIZE_BYTES_MAX, 1_024, PROPERTY_SIZE_BYTES_MAX + 1]
data_sections = st.sampled_from(sizes).map(lambda size: data_section(bytes(size)))
bodies = st.one_of(
    data_sections,
    st.lists(data_sections, max_size=3).map(b"".join),
    st.just(value_section("text")),
    st.just(sequence_section([1, 2])),
)
properties = st.none() | st.builds(
    Properties,
    message_id=ids,
    subject=texts,
    content_type=st.sampled_from([None, "text/plain", PING_TYPE]),
    absolute_expiry_ms=times,
    creation_ms=times,
    group_id=texts,
)
messages = st.builds(
    encode_message,
    bodies,
    properties,
    st.none() | st.just({"name": "value"}) | st.just({f"name {n}": n for n in range(60)}),
    st.none() | st.just({"x-opt-partition-key": "key"}),
    st.none() | st.sampled_from([0, 1, 5_000, 60_000, 0xFFFF_FFFF]),
    st.none() | st.booleans(),
    st.none() | st.integers(0, 9),
)
endings = st.sampled_from(
    [
        *(b"", b"", b"\x00"),
        encode_map_section(FOOTER, 0, b""),
        encode_map_section(DELIVERY_ANNOTATIONS, 0, b""),
    ]
)
limits = st.sampled_from([NEVER_MS, 10_000])


def key_section(key: object, *more: str) -> bytes:
    entries = encode_symbol(PRODUCER_KEY) + encode_value(key)
    for name in more:
        entries += encode_symbol(name) + encode_value("more")
    return encode_map_section(DELIVERY_ANNOTATIONS, 2 + 2 * len(more), entries)


keys = st.sampled_from(
    [
        *("p/1", "producer/123456789012345678", "a/b/7", "p" * 126 + "/1", "\u00fc/3"),
        *("", "p", "p/", "/1", "p/0", "p/x", "p/\u0661", "p/1234567890123456789", b"p/1", 7),
        *("p" * 127 + "/1", "p" * 300 + "/1"),
    ]
)
key_endings = st.builds(key_section, keys) | st.just(key_section("p/1", "another"))


def content(message: NewMessage) -> tuple[object, ...]:
    key = message.producer_key and (
        message.producer_key.producer,
        message.producer_key.number,
        message.producer_key.is_ping,
    )
    return (
        *(message.body, message.time_to_live_ms, message.scheduled_ms, message.message_id),
        *(message.session_id, message.partition_key, message.overlay, key),
    )


def agree(data: bytes, ttl_ms_max: int) -> bool:
    """Whether the short way took it; if so, both have made the same of it."""
    plain = PlainSends(MessageIds(7), ttl_ms_max)
    try:
        long = new_message(data, MessageIds(7), ttl_ms_max)
    except (RemoteProtocolError, ServiceError):
        with contextlib.suppress(RemoteProtocolError, ServiceError):  # it may refuse it as well
            assert plain.take(data) is None
        return False
    short = plain.take(data)
    if short is None:
        return False
    assert content(short) == content(long)
    again = plain.take(data)  # by what it has learnt of the header
    assert again is not None
    assert again.time_to_live_ms == long.time_to_live_ms
    assert len(again.body) == len(long.body)
    return True


@given(messages, endings, limits)
@example(encode_message(data_section(b""), Properties(content_type=PING_TYPE)), b"", NEVER_MS)
def test_the_short_way_stores_what_the_long_one_does(
    message: bytes, ending: bytes, ttl_ms_max: int
) -> None:
    agree(message + ending, ttl_ms_max)


@given(messages, limits, st.data())
def test_damaged_messages_are_the_long_ways(
    message: bytes, ttl_ms_max: int, data: st.DataObject
) -> None:
    """C1: whatever a peer makes of the first bytes; there is what the short way reads."""
    at = data.draw(st.integers(0, min(len(message), 60)))
    byte = data.draw(st.sampled_from([0x00, 0x40, 0x53, 0x70, 0x73, 0x75, 0x80, 0xC0, 0xD0, 0xFF]))
    agree(message[:at] + bytes((byte,)) + message[at + 1 :], ttl_ms_max)
    agree(message[:at], ttl_ms_max)


@pytest.mark.proves("P-13")
@given(messages, key_endings, limits, st.data())
def test_numbered_messages_are_the_same_too(
    message: bytes, ending: bytes, ttl_ms_max: int, data: st.DataObject
) -> None:
    """The producer's number, or the same refusal."""
    agree(message + ending, ttl_ms_max)
    at = data.draw(st.integers(0, len(ending) - 1))
    byte = data.draw(st.sampled_from([0, 1, 2, 4, 0x2F, 0x53, 0x71, 0xA1, 0xA3, 0xC1, 0xFF]))
    agree(message + ending[:at] + bytes((byte,)) + ending[at + 1 :], ttl_ms_max)
    agree(message + ending[:at], ttl_ms_max)


near_keys = st.builds(
    "{}/{}".format,
    st.sampled_from(["p", "q", "p/1", "pp", "~", "p" * 125, "p" * 126, "\u00fc"]),
    st.sampled_from(["1", "2", "07", "0", "", "x", "9" * 18, "1" + "0" * 18, "+1", "1 ", "\u0661"]),
)


@pytest.mark.proves("P-13")
@given(st.lists(near_keys, max_size=8))
@example(["p" * 126 + "/1", "p" * 126 + "/23"])  # the second is too long
def test_what_a_link_remembers_of_a_producer_changes_nothing(sent: list[str]) -> None:
    """Whoever was last on this link, each message has the number that it says."""
    plain = PlainSends(MessageIds(7), NEVER_MS)
    for key in sent:
        data = encode_message(data_section(b"body"), Properties("id")) + key_section(key)
        found: list[object] = []
        for way in (plain.take, lambda data: new_message(data, MessageIds(7), NEVER_MS)):
            try:
                message = way(data)
                found.append(None if message is None else content(message))
            except ServiceError as error:
                found.append(str(error))
        short, long = found
        is_the_long_ways = len(key) > PRODUCER_KEY_CHARS_MAX or not key.isascii()
        assert short == long or (short is None and is_the_long_ways), key


def test_what_senders_usually_send_takes_the_short_way() -> None:
    body = data_section(bytes(1_024))
    for ttl_ms in (None, 60_000):
        assert agree(encode_message(body, None, None, None, ttl_ms, durable=True), NEVER_MS)
        assert agree(encode_message(body, Properties("id"), {"a": 1}, None, ttl_ms), 10_000)
    assert agree(body, NEVER_MS)
    assert agree(encode_message(body, Properties("id")) + key_section("p/17"), NEVER_MS)
    assert agree(body + key_section("p" * 100 + "/17"), NEVER_MS)
    assert agree(encode_message(data_section(b"small"), Properties("id")), NEVER_MS)


def test_a_new_time_to_live_holds_from_then_on() -> None:
    plain = PlainSends(MessageIds(7), NEVER_MS)
    data = encode_message(data_section(bytes(1_024)), Properties("id"), None, None, 60_000)
    for ttl_ms_max, expected in ((NEVER_MS, 60_000), (5_000, 5_000), (90_000, 60_000)):
        plain.limit(ttl_ms_max)
        message = plain.take(data)
        assert message is not None
        assert message.time_to_live_ms == expected
        assert content(message) == content(new_message(data, MessageIds(7), ttl_ms_max))


def test_headers_that_are_never_the_same_are_not_gathered() -> None:
    plain = PlainSends(MessageIds(7), NEVER_MS)
    for ttl_ms in range(1_000):
        data = encode_message(data_section(bytes(600)), Properties("id"), None, None, ttl_ms)
        message = plain.take(data)
        assert message is not None
        assert message.time_to_live_ms == ttl_ms
    assert len(plain._heads) <= 64
