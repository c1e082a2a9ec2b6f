"""Values and bytes: fixed vectors in the layout of the AMQP 1.0 specification, fed three ways."""

from uuid import UUID

import pytest

from twinbus.amqp.decoding import decode_whole, decode_within, skip_value, skip_within
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
from twinbus.errors import LocalProtocolError, RemoteProtocolError
from twinbus.limits import NESTING_MAX


class OddBytes(bytes):
    """A kind of bytes AMQP knows nothing of."""


class OddInt(int):
    """A kind of int AMQP knows nothing of."""


SOME_UUID = UUID("00112233-4455-6677-8899-aabbccddeeff")

# The form we write, and the value.
CANONICAL: list[tuple[str, object]] = [
    ("40", None),
    ("41", True),
    ("42", False),
    ("50 ff", UByte(255)),
    ("60 ff ff", UShort(65_535)),
    ("43", UInt(0)),
    ("52 01", UInt(1)),
    ("52 ff", UInt(255)),
    ("70 00 00 01 00", UInt(256)),
    ("70 ff ff ff ff", UInt(4_294_967_295)),
    ("44", ULong(0)),
    ("53 ff", ULong(255)),
    ("80 00 00 00 00 00 00 01 00", ULong(256)),
    ("80 ff ff ff ff ff ff ff ff", ULong(18_446_744_073_709_551_615)),
    ("51 80", Byte(-128)),
    ("61 80 00", Short(-32_768)),
    ("54 80", Int(-128)),
    ("54 7f", Int(127)),
    ("71 ff ff ff 7f", Int(-129)),
    ("71 00 00 00 80", Int(128)),
    ("55 ff", -1),
    ("81 00 00 00 00 00 00 00 80", 128),
    ("81 80 00 00 00 00 00 00 00", -(2**63)),
    ("72 3f c0 00 00", Float(1.5)),
    ("82 3f f8 00 00 00 00 00 00", 1.5),
    ("74 01 02 03 04", Decimal32(b"\x01\x02\x03\x04")),
    ("84 01 02 03 04 05 06 07 08", Decimal64(bytes(range(1, 9)))),
    ("94 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f", Decimal128(bytes(range(16)))),
    ("73 00 01 f6 00", Char("\U0001f600")),
    ("83 00 00 01 8b cf e5 68 00", Timestamp(1_700_000_000_000)),
    ("83 ff ff ff ff ff ff ff ff", Timestamp(-1)),
    ("98 00112233445566778899aabbccddeeff", SOME_UUID),
    ("a0 02 00 ff", b"\x00\xff"),
    ("a1 03 61 c3 a4", "a\u00e4"),
    ("a3 04 61 6d 71 70", Symbol("amqp")),
    ("45", []),
    ("c0 04 02 43 54 07", [UInt(0), Int(7)]),
    ("c1 01 00", {}),
    ("c1 07 02 a3 01 6b a1 01 76", {Symbol("k"): "v"}),
    ("00 53 24 45", Described(ULong(0x24), [])),
    ("00 a3 01 64 40", Described(Symbol("d"), None)),
]
ARRAYS: list[tuple[str, object]] = [
    ("e0 0a 02 71 00 00 00 01 00 00 00 02", Array([Int(1), Int(2)])),
    ("e0 08 01 b3 00 00 00 02 68 69", Array([Symbol("hi")])),
    ("e0 05 02 a3 01 61 00", Array([Symbol("a"), Symbol("")], 0xA3)),
    ("e0 04 02 56 01 00", Array([True, False])),
    ("e0 02 03 41", Array([True, True, True], 0x41)),
    ("e0 02 00 81", Array([], 0x81)),
    ("e0 06 02 c0 01 00 01 00", Array([[], []], 0xC0)),
    ("e0 06 01 00 a3 01 64 43", Array([UInt(0)], 0x43, Symbol("d"))),
    ("e0 12 01 98 00112233445566778899aabbccddeeff", Array([SOME_UUID])),
]
# Valid, but not what we would write.
OTHER_FORMS: list[tuple[str, object]] = [
    ("56 01", True),
    ("56 00", False),
    ("70 00 00 00 00", UInt(0)),
    ("80 00 00 00 00 00 00 00 00", ULong(0)),
    ("71 00 00 00 05", Int(5)),
    ("81 00 00 00 00 00 00 00 05", 5),
    ("b0 00 00 00 01 78", b"x"),
    ("b1 00 00 00 01 78", "x"),
    ("b3 00 00 00 01 78", Symbol("x")),
    ("c0 01 00", []),
    ("d0 00 00 00 04 00 00 00 00", []),
    ("d0 00 00 00 05 00 00 00 01 43", [UInt(0)]),
    ("d1 00 00 00 0a 00 00 00 02 a1 01 6b a1 01 76", {"k": "v"}),
    ("f0 00 00 00 06 00 00 00 01 50 07", Array([UByte(7)])),
]


def same(left: object, right: object) -> bool:
    """Equal in value and in AMQP type, all the way down."""
    if type(left) is not type(right) or left != right:
        return False
    if isinstance(left, dict) and isinstance(right, dict):
        return same(list(left), list(right)) and same(list(left.values()), list(right.values()))
    if isinstance(left, list) and isinstance(right, list):
        return all(same(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, Described) and isinstance(right, Described):
        return same(left.descriptor, right.descriptor) and same(left.value, right.value)
    return True


def check_decode(data: bytes, expected: object) -> None:
    """Decode whole, amid other bytes, and cut short at every byte."""
    assert same(decode_whole(data), expected)
    amid = b"\x99" + data + b"\x00\xff"
    value, after = decode_within(amid, 1, len(amid))
    assert same(value, expected)
    assert after == 1 + len(data)
    assert skip_value(amid, 1) == after
    for length in range(len(data)):
        with pytest.raises(RemoteProtocolError) as caught:
            decode_within(data[:length], 0, length)
        assert caught.value.condition == "amqp:decode-error"
        # A value may also end too late because what holds it ends, with more bytes behind.
        with pytest.raises(RemoteProtocolError):
            decode_within(data, 0, length)
        with pytest.raises(RemoteProtocolError):
            skip_within(data, 0, length)


@pytest.mark.parametrize("text,value", CANONICAL + ARRAYS)
def test_the_form_we_write(text: str, value: object) -> None:
    data = bytes.fromhex(text)
    assert encode_value(value) == data
    check_decode(data, value)


@pytest.mark.parametrize("text,value", OTHER_FORMS)
def test_other_valid_forms(text: str, value: object) -> None:
    check_decode(bytes.fromhex(text), value)


@pytest.mark.parametrize(
    "value,start",
    [
        (b"x" * 256, "b0 00 00 01 00"),
        ("x" * 256, "b1 00 00 01 00"),
        (Symbol("x" * 256), "b3 00 00 01 00"),
        ([None] * 254, "c0 ff fe"),
        ([None] * 255, "d0 00 00 01 03 00 00 00 ff"),
        ({Int(n): None for n in range(128)}, "d1"),
        (Array([UByte(1)] * 254), "f0"),
        (Array([UByte(1)] * 253), "e0 ff fd 50"),
    ],
)
def test_the_wide_forms_begin_where_the_narrow_ones_end(value: object, start: str) -> None:
    data = encode_value(value)
    assert data.startswith(bytes.fromhex(start))
    assert same(decode_whole(data), value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "01",  # no such type
        "46",
        "57 00",
        "62 00 00",
        "99",
        "a2 00",
        "c2 01 00",
        "ff",
        "56 02",  # boolean that is neither
        "73 00 11 00 00",  # beyond Unicode
        "73 00 00 d8 00",  # half of a surrogate pair
        "a1 02 c3 28",  # not UTF-8
        "a1 03 ed a0 80",  # a surrogate in UTF-8
        "a3 02 c3 a4",  # a symbol that is not ASCII
        "c0 00",  # no room for the count
        "d0 00 00 00 03 00 00 00",
        "c0 01 01",  # an element announced, none there
        "c0 02 00 40",  # an element that was not announced
        "c1 02 01 40",  # half a pair
        "c1 05 02 40 40",  # longer than there are bytes
        "c1 05 04 40 40 40 40",  # the same key twice
        "c1 07 04 a1 00 40 a3 00 40",  # likewise: string and symbol are one to us
        "c1 04 02 45 40 40",
        "c1 03 02 45 40",  # a list as key
        "c1 13 02 98 00112233445566778899aabbccddeeff 40",  # a uuid as key
        "e0 01 00",  # array without constructor
        "e0 03 01 01 00",  # array of an unknown type
        "e0 03 01 00 44",  # array with a descriptor but no constructor
        "e0 04 02 50 01",  # fewer elements than announced
        "e0 04 01 50 01 02",  # more
        "c1 04 02 40 40 40",  # a map with an element that was not announced
        "00 53",  # a descriptor and no value
        "00",
    ],
)
def test_bad_bytes_are_a_decode_error(text: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_whole(bytes.fromhex(text))
    assert caught.value.condition == "amqp:decode-error"


def test_bytes_after_the_only_value_are_an_error() -> None:
    with pytest.raises(RemoteProtocolError):
        decode_whole(b"\x40\x40")


def test_skipping_looks_at_the_outline_only() -> None:
    with pytest.raises(RemoteProtocolError):
        skip_value(b"\x01", 0)
    # A list of one element whose element is of no known type.
    assert skip_value(b"\xc0\x02\x01\x01", 0) == 4


def test_nesting_up_to_the_limit() -> None:
    value: object = Int(1)
    for _ in range(NESTING_MAX):
        value = [value]
    data = encode_value(value)
    assert same(decode_whole(data), value)
    with pytest.raises(LocalProtocolError):
        encode_value([value])
    with pytest.raises(RemoteProtocolError):
        decode_whole(b"\xd0" + (len(data) + 4).to_bytes(4, "big") + b"\x00\x00\x00\x01" + data)


@pytest.mark.parametrize(
    "value",
    [
        UByte(256),
        UByte(-1),
        UInt(2**32),
        ULong(-1),
        Int(2**31),
        2**63,
        Timestamp(2**63),
        Symbol("\u00e4"),
        "\ud800",
        Char("ab"),
        Char("\ud800"),
        Decimal32(b"abc"),
        Float(1e300),
        object(),
        {object(): 1},
        Array([Int(1), "mixed"]),
        Array(["x" * 256], 0xA1),
        Array([1], 0x45),
        Array([{}], 0xC0),
        Array([[1]], 0xE0),
        Array([1], 0x01),
        Array([True], 0x98),
        Array([UUID(int=1)], 0x94),
        OddBytes(b"x"),
        OddInt(5),
    ],
)
def test_what_amqp_cannot_say_is_a_local_error(value: object) -> None:
    with pytest.raises(LocalProtocolError):
        encode_value(value)


def test_an_array_takes_its_type_from_its_first_element() -> None:
    assert Array().code == 0x40
    assert Array([Array([1])]).code == 0xF0
    assert Array([SOME_UUID]).code == 0x98
    assert Array([1]) != Array([1], 0x55)
    assert Array([1]) == Array([1], 0x81)
    assert Array([1]) != "1"
    with pytest.raises(LocalProtocolError):
        Array([object()])
    nested: object = 1
    for _ in range(NESTING_MAX + 1):
        nested = Array([nested])
    with pytest.raises(LocalProtocolError):
        encode_value(nested)


def test_values_show_what_they_are() -> None:
    assert repr(Described(Symbol("d"), 1)) == "Described('d', 1)"
    assert repr(Array([1], 0x55)) == "Array([1], 0x55)"
    assert Described(1, 2) != (1, 2)
