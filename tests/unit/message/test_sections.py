"""The one walk over a message: where its sections are, whatever their order and form."""

import itertools

import pytest

from twinbus.amqp.encoding import encode_value
from twinbus.amqp.types import Symbol
from twinbus.errors import RemoteProtocolError
from twinbus.message.plain import data_section, sequence_section, value_section
from twinbus.message.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    FOOTER,
    HEADER,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    Outline,
    binary_start,
    descriptor,
    usual_end,
)

pytestmark = pytest.mark.proves("M-1")

VALUES = {
    HEADER: encode_value([True]),
    PROPERTIES: encode_value(["id"]),
    APPLICATION_PROPERTIES: encode_value({"name": "value"}),
    DATA: encode_value(b"body"),
    FOOTER: encode_value({Symbol("f"): 1}),
}
SHORT = {code: descriptor(code) + value for code, value in VALUES.items()}
# The same with the descriptor as a full ulong.
LONG = {code: b"\x00\x80" + code.to_bytes(8, "big") + value for code, value in VALUES.items()}
IN_ORDER = b"".join(SHORT.values())
BARE = b"".join(section for code, section in SHORT.items() if code != HEADER)


def test_any_order_gives_the_same_sections() -> None:
    for order in itertools.permutations(VALUES):
        outline = Outline(b"".join(SHORT[code] for code in order))
        assert {code: outline.value(code) for code in VALUES} == VALUES
        assert outline.bare() == BARE
        assert outline.body == DATA


def test_a_long_descriptor_becomes_a_short_one() -> None:
    for code, long in LONG.items():
        outline = Outline(b"".join([{**SHORT, code: long}[each] for each in VALUES]))
        assert outline.value(code) == VALUES[code]
        assert outline.bare() == BARE
        assert usual_end(long, 0) == 0


def test_what_is_not_there() -> None:
    outline = Outline(b"")
    assert outline.bare() == b""
    assert outline.body_borders() == []
    assert outline.value(HEADER) == b""
    assert outline.decoded(PROPERTIES) is None
    assert outline.body == 0


def test_sections_are_decoded_when_somebody_asks() -> None:
    outline = Outline(IN_ORDER)
    assert outline.decoded(PROPERTIES) == ["id"]
    assert outline.decoded(APPLICATION_PROPERTIES) == {"name": "value"}


@pytest.mark.parametrize(
    ("one", "two", "code"),
    [
        (data_section(b"a"), data_section(b""), DATA),
        (sequence_section(["a"]), sequence_section([]), SEQUENCE),
    ],
)
def test_a_body_of_several_sections(one: bytes, two: bytes, code: int) -> None:
    outline = Outline(SHORT[FOOTER] + one + two)
    assert outline.body == code
    assert len(outline.body_borders()) == 2
    assert outline.bare() == one + two + SHORT[FOOTER]


def test_where_the_bytes_of_a_body_begin() -> None:
    for body in (b"", b"short", bytes(300)):
        data = data_section(body)
        assert data[binary_start(data, 3) : usual_end(data, 0)] == body


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (SHORT[PROPERTIES] * 2, "twice"),
        (data_section(b"") + value_section(1), "two kinds"),
        (SHORT[DATA][:-1], "longer than the message"),
        (b"\x00\x53\x79\x40", "unknown"),
        (b"\x40", "described"),
        (descriptor(HEADER) + encode_value("text"), "wrong type"),
        (descriptor(VALUE), "cut short"),
        (b"\x00", "cut short"),
    ],
)
def test_what_is_no_message_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        Outline(data)
