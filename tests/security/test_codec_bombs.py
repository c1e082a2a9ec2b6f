"""Hostile bytes: small inputs that claim to be large, deep or many, and plain noise.

C1 to C3 of the threat classes: sizes, counts and nesting are never believed.  Whatever arrives, the
only way out is a value or RemoteProtocolError, in memory and time linear in the input.
"""

import random
import tracemalloc
from collections.abc import Callable, Sized
from uuid import UUID

import pytest

from twinbus.amqp import transfers
from twinbus.amqp.composites import Accepted, AmqpError, Rejected, Source, Target
from twinbus.amqp.decoding import decode_whole, skip_value
from twinbus.amqp.encoding import encode_value
from twinbus.amqp.frames import FrameBuffer, encode_frame
from twinbus.amqp.performatives import Attach, Flow, Open, decode_performative
from twinbus.amqp.transfers import Disposition, Transfer
from twinbus.amqp.types import Array, Described, Int, Symbol, Timestamp, UInt, ULong
from twinbus.errors import RemoteProtocolError
from twinbus.limits import ELEMENTS_MAX, ZERO_WIDTH_ELEMENTS_MAX
from twinbus.message import scan as scanning
from twinbus.message import stored
from twinbus.message.plain import (
    Properties,
    build_batch,
    data_section,
    decode_message,
    encode_message,
    split_batch,
    value_section,
)
from twinbus.message.scan import scan
from twinbus.message.stored import encode_delivered

MEBIBYTE = 1_048_576


def refused(data: bytes, read: Callable[[bytes], object] = decode_whole) -> None:
    """Refused with the right condition, and without memory out of proportion."""
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError) as caught:
            read(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.condition == "amqp:decode-error"
    assert peak < 16 * MEBIBYTE


def u32(value: int) -> bytes:
    return value.to_bytes(4, "big")


@pytest.mark.parametrize("code", [0xB0, 0xB1, 0xB3, 0xD0, 0xD1, 0xF0])
@pytest.mark.parametrize("size", [2**31, 2**32 - 1, 2**32 - 5])
def test_sizes_beyond_the_input(code: int, size: int) -> None:
    refused(bytes((code,)) + u32(size) + b"\x00" * 100)
    with pytest.raises(RemoteProtocolError):
        skip_value(bytes((code,)) + u32(size) + b"\x00" * 100, 0)


@pytest.mark.parametrize("code", [0xD0, 0xD1, 0xF0])
@pytest.mark.parametrize("count", [2**32 - 1, 2**32 - 2, 70_000, 200])
def test_counts_beyond_the_input(code: int, count: int) -> None:
    body = u32(count) + b"\x50" + b"\x00" * 99
    refused(bytes((code,)) + u32(len(body)) + body)


@pytest.mark.parametrize("code", [0x40, 0x41, 0x42, 0x43, 0x44, 0x45])
def test_arrays_of_elements_without_width(code: int) -> None:
    def array(count: int) -> bytes:
        return b"\xf0\x00\x00\x00\x05" + u32(count) + bytes((code,))

    value = decode_whole(array(ZERO_WIDTH_ELEMENTS_MAX))
    assert isinstance(value, Array)
    assert len(value) == ZERO_WIDTH_ELEMENTS_MAX
    refused(array(ZERO_WIDTH_ELEMENTS_MAX + 1))
    refused(array(2**32 - 1))


def test_many_arrays_without_width_share_one_budget() -> None:
    array = b"\xf0\x00\x00\x00\x05" + u32(ZERO_WIDTH_ELEMENTS_MAX) + b"\x45"
    body = u32(60_000) + array * 60_000
    refused(b"\xd0" + u32(len(body)) + body)


def test_many_empty_lists_share_one_budget() -> None:
    inner = b"\xd0" + u32(60_004) + u32(60_000) + b"\x45" * 60_000
    body = u32(16) + inner * 16
    refused(b"\xd0" + u32(len(body)) + body)


def test_as_many_elements_as_allowed() -> None:
    assert decode_whole(encode_value([None] * ELEMENTS_MAX)) == [None] * ELEMENTS_MAX
    refused(encode_value([None] * (ELEMENTS_MAX + 1)))


@pytest.mark.parametrize("depth", [33, 1_000, 10_000])
def test_nesting(depth: int) -> None:
    lists = b"\x45"
    for _ in range(depth):
        lists = b"\xd0" + u32(len(lists) + 4) + u32(1) + lists
    refused(lists)
    refused(b"\x00" * depth + b"\x40" * (depth + 1))
    refused(b"\x00\x40" * depth + b"\x40")
    array = b"\x40"
    for _ in range(depth):
        array = b"\xf0" + u32(len(array) + 4) + u32(1) + array
    refused(array)
    with pytest.raises(RemoteProtocolError):
        skip_value(b"\x00" * depth + b"\x40" * (depth + 1), 0)
    refused(b"\x00\x53\x77" + lists, decode_message)
    refused(b"\x00\x53\x10" + lists, lambda data: decode_performative(data, 0, len(data)))


def test_keys_chosen_to_collide() -> None:
    """Uuids hash without a secret, so one can choose thousands with one hash: no keys here."""
    modulus = 2**61 - 1
    colliding = [UUID(int=modulus * n) for n in range(1, 3)]
    assert hash(colliding[0]) == hash(colliding[1])
    entries = b"".join(encode_value(key) + b"\x40" for key in colliding)
    refused(b"\xc1" + bytes((len(entries) + 1, 4)) + entries)


def test_a_hundred_thousand_sections() -> None:
    section = b"\x00\x53\x75\xa0\x03abc"
    refused(section * 100_000, scan)
    refused(section * 100_000, split_batch)
    refused(section * 100_000, decode_message)
    refused(b"\x00\x53\x76\x45" * 100_000, scan)
    refused(b"\x00\x53\x71\xc1\x01\x00" * 100_000, scan)


def test_annotations_that_announce_too_much() -> None:
    refused(b"\x00\x53\x72\xd1" + u32(104) + u32(2**32 - 2) + b"\x40" * 100, scan)
    refused(b"\x00\x53\x72\xd1" + u32(200_004) + u32(200_000) + b"\x40" * 200_000, scan)


def test_frames_that_announce_too_much_hold_no_memory() -> None:
    tracemalloc.start()
    try:
        frames = FrameBuffer(8_192)
        frames.feed(u32(8_192) + b"\x02\x00\x00\x00")
        for _ in range(8_183):
            assert not frames.next_frame()
            frames.feed(b"x")
        assert not frames.next_frame()
        assert frames.unread_bytes() == 8_191
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1_024
    frames = FrameBuffer(8_192)
    frames.feed(b"\xff\xff\xff\xff\x02\x00\x00\x00")
    with pytest.raises(RemoteProtocolError):
        frames.next_frame()


def test_tables_of_what_was_seen_stay_small() -> None:
    """A peer that never repeats itself makes us parse, not remember."""
    tables: list[Sized] = [
        scanning._headers,
        scanning._annotations,
        stored._heads,
        transfers.PLAIN_ENDINGS,
        transfers._disposition_tails,
    ]
    largest = [0] * len(tables)
    for n in range(1_500):
        data = encode_message(data_section(b"x"), annotations={f"name-{n}": "v"}, ttl_ms=n)
        encode_delivered(scan(data).stored(), n, n, 0, 0, 0)
        transfers.remember_ending(b"%d" % n, 5, Transfer(1, n, b"tag", n))
        data = Disposition(True, n, n, True, Rejected(AmqpError("c", str(n)))).encode()
        decode_performative(data, 0, len(data))
        largest = [max(most, len(table)) for most, table in zip(largest, tables, strict=True)]
    assert all(100 < most <= 1_024 for most in largest)


# --- noise ---------------------------------------------------------------------------------------
def read_value(data: bytes) -> object:
    decode_whole(data)
    return skip_value(data, 0)


def read_performative(data: bytes) -> object:
    return decode_performative(data, 0, len(data))


def read_message(data: bytes) -> object:
    scanned = scan(data)
    deliver(scanned.stored())
    scanned.message_id()
    scanned.group_id()
    scanned.properties()
    scanned.annotation("x-opt-partition-key")
    return scanned.application_properties()


def deliver(kept: bytes) -> None:
    """Once a message is taken, delivering it must work, whatever its sections contain."""
    overlay = encode_value({"k": "v"})
    try:
        scan(encode_delivered(kept, 1, 2, 3, 4, 0))
        scan(encode_delivered(kept, 1, 2, 3, 4, 1, overlay, "why", "because", "queue", bytes(16)))
    except RemoteProtocolError as error:
        raise AssertionError(kept.hex()) from error


def read_batch(data: bytes) -> object:
    return [scan(one) for one in split_batch(data)]


def read_frames(data: bytes) -> object:
    frames = FrameBuffer(4_096)
    frames.feed(data)
    found = []
    while frames.next_frame():
        found.append(decode_performative(frames.data, frames.start, frames.end))
    return found


MESSAGE = encode_message(
    data_section(b"body" * 20),
    Properties(
        "id", correlation_id=ULong(5), creation_ms=1, absolute_expiry_ms=5_000, group_id="g"
    ),
    {"a": Int(1), "b": "two", "c": None},
    {"x-opt-partition-key": "pk", "x-opt-scheduled-enqueue-time": Timestamp(5)},
    ttl_ms=5_000,
)
VALUE = encode_value(
    {
        "list": [None, True, UInt(7), ULong(2**40), "text", b"bytes", UUID(int=1), 1.5],
        Symbol("map"): {"array": Array([Symbol("a"), Symbol("b")]), "ints": Array([1, 2, 3])},
        Int(5): Described(ULong(0x77), [Timestamp(5), [[[]]]]),
    }
)
FRAMES = b"".join(
    encode_frame(1, performative.encode(), b"body")
    for performative in (
        Open("c", "h", 512, 10, 1_000, properties={"p": "v"}),
        Attach("l", 1, True, 0, 1, Source("q", filter={"f": "s"}), Target("t"), None, False, 0, 5),
        Flow(1, 2, 3, 4, 5, 6, 7, 8, True, False),
        Transfer(1, 2, b"tag", 0, False, False),
        Disposition(True, 1, 2, True, Accepted()),
        Disposition(True, 1, 2, True, Rejected(AmqpError("c", "d", {"k": "v"}))),
    )
)
TARGETS: list[tuple[str, Callable[[bytes], object], list[bytes], int]] = [
    ("value", read_value, [VALUE], 12_000),
    (
        "performative",
        read_performative,
        [
            Open("c", "h", 512, 10, 1_000, properties={"p": "v"}).encode(),
            Attach("l", 1, True, 0, 1, Source("q"), Target("t"), None, False, 0, 5).encode(),
            Transfer(1, 2, b"t" * 16, 0, False, False).encode() + b"body",
            Disposition(True, 1, 70_000, True, Accepted()).encode(),
            Disposition(True, 1, 2, False, Rejected(AmqpError("c", "d", {"k": "v"}))).encode(),
        ],
        16_000,
    ),
    ("message", read_message, [MESSAGE], 12_000),
    ("request", decode_message, [MESSAGE, encode_message(value_section({"k": [1]}))], 6_000),
    ("batch", read_batch, [build_batch([MESSAGE, MESSAGE])], 4_000),
    ("frames", read_frames, [FRAMES], 6_000),
]


MEANINGFUL = b"\x00\x40\x43\x45\x53\x70\x71\x80\x98\xa0\xb0\xc0\xd0\xe0\xf0\xff"


def mutate(rng: random.Random, data: bytes) -> bytes:
    """Flip, insert, delete, duplicate, cut, or replace by bytes that mean something."""
    mutant = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 8))):
        if not mutant:
            break
        at = rng.randrange(len(mutant))
        kind = rng.randrange(7)
        if kind == 0:
            mutant[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            mutant[at] = rng.choice(MEANINGFUL)
        elif kind == 2:
            del mutant[at : at + rng.randrange(1, 9)]
        elif kind == 3:
            mutant[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 4:
            mutant[at:at] = mutant[at : at + rng.randrange(1, 40)]
        elif kind == 5:
            del mutant[at:]
        else:
            mutant[at : at + 4] = rng.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", u32(1)))
    return bytes(mutant)


@pytest.mark.parametrize("name,read,corpus,count", TARGETS, ids=[case[0] for case in TARGETS])
def test_mutations(
    name: str, read: Callable[[bytes], object], corpus: list[bytes], count: int
) -> None:
    """56,000 in all.  Anything but a result or RemoteProtocolError fails, with what caused it."""
    rng = random.Random(f"twinbus {name}")
    accepted = 0
    for number in range(count):
        data = mutate(rng, rng.choice(corpus))
        try:
            read(data)
            accepted += 1
        except RemoteProtocolError:
            pass
        except Exception as error:
            error.add_note(f"input {number}: {data.hex()}")
            raise
    # Both ways out must have been taken, or the test tests nothing.
    assert 0 < accepted < count


def test_noise() -> None:
    rng = random.Random("twinbus noise")
    for number in range(6_000):
        data = rng.randbytes(rng.randrange(0, 60))
        for read in (read_value, read_performative, read_message, read_batch, read_frames):
            try:
                read(data)
            except RemoteProtocolError:
                continue
            except Exception as error:
                error.add_note(f"input {number}: {data.hex()}")
                raise
