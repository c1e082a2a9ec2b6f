"""Frames: whole, byte by byte, many in one chunk, and everything a header can get wrong."""

import random

import pytest

from twinbus.amqp.frames import (
    AMQP_FRAME,
    AMQP_HEADER,
    EMPTY_FRAME,
    SASL_FRAME,
    SASL_HEADER,
    FrameBuffer,
    encode_frame,
)
from twinbus.errors import RemoteProtocolError

FRAMES = [
    (AMQP_FRAME, 0, b"a"),
    (SASL_FRAME, 0, b""),
    (AMQP_FRAME, 65_535, b"b" * 1_000),
    (AMQP_FRAME, 1, b""),
    (AMQP_FRAME, 2, b"c" * 504),
]
STREAM = b"".join(
    encode_frame(channel, body[:3], body[3:], frame_type) for frame_type, channel, body in FRAMES
)


def drain(frames: FrameBuffer) -> list[tuple[int, int, bytes]]:
    found = []
    while frames.next_frame():
        body = frames.data[frames.start : frames.end]
        found.append((frames.frame_type, frames.channel, body))
    return found


def test_layout() -> None:
    assert encode_frame(1, b"ab", b"c") == bytes.fromhex("0000000b 02 00 0001") + b"abc"
    assert encode_frame(0, b"", b"") == EMPTY_FRAME


def test_a_chunk_of_many_frames() -> None:
    frames = FrameBuffer(4_096)
    frames.feed(STREAM)
    assert drain(frames) == FRAMES
    assert frames.unread_bytes() == 0


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 500, 1_015])
def test_chunks_of_any_size(size: int) -> None:
    frames = FrameBuffer(4_096)
    found = []
    for start in range(0, len(STREAM), size):
        frames.feed(STREAM[start : start + size])
        found += drain(frames)
    assert found == FRAMES


def test_random_chunks() -> None:
    rng = random.Random("twinbus chunks")
    stream = STREAM * 50
    frames = FrameBuffer(4_096)
    found = []
    at = 0
    while at < len(stream):
        step = rng.choice((1, 5, 300, 5_000))
        frames.feed(stream[at : at + step])
        found += drain(frames)
        at += step
    assert found == FRAMES * 50


def test_what_follows_is_kept_for_later() -> None:
    frames = FrameBuffer(4_096)
    frames.feed(STREAM + b"\x00\x00")
    assert drain(frames) == FRAMES
    assert frames.unread_bytes() == 2
    frames.feed(EMPTY_FRAME[2:])
    assert drain(frames) == [(AMQP_FRAME, 0, b"")]


def test_feeding_without_draining_loses_nothing() -> None:
    frames = FrameBuffer(4_096)
    frames.feed(STREAM)
    assert frames.next_frame()
    frames.feed(STREAM)
    assert drain(frames) == FRAMES[1:] + FRAMES


def test_every_byte_is_counted_until_its_frame_is_handed_out() -> None:
    """Wherever the stream is cut."""
    for split in range(1, len(STREAM)):
        count_bytes_around(split)


def count_bytes_around(split: int) -> None:
    frames = FrameBuffer(4_096)
    frames.feed(STREAM[:split])
    before = drain(frames)
    assert frames.unread_bytes() == split - sum(8 + len(body) for _, _, body in before)
    frames.feed(STREAM[split:] + STREAM)
    assert frames.unread_bytes() + sum(8 + len(body) for _, _, body in before) == 2 * len(STREAM)
    assert frames.next_frame()  # for most splits the one that straddles the two chunks
    first = (frames.frame_type, frames.channel, frames.data[frames.start : frames.end])
    frames.feed(STREAM)
    assert [*before, first, *drain(frames)] == FRAMES * 3
    assert frames.unread_bytes() == 0


@pytest.mark.parametrize("split", range(1, 29))
def test_a_protocol_header_follows_a_frame_that_straddles(split: int) -> None:
    stream = encode_frame(0, b"x" * 12, b"", SASL_FRAME) + AMQP_HEADER + EMPTY_FRAME
    frames = FrameBuffer(512)
    frames.feed(stream[:split])
    frame_came = frames.next_frame()
    frames.feed(stream[split:])
    assert frame_came or frames.next_frame()
    assert frames.take(8) == AMQP_HEADER
    assert drain(frames) == [(AMQP_FRAME, 0, b"")]


def test_an_extended_header_is_passed_over() -> None:
    frames = FrameBuffer(512)
    frames.feed(bytes.fromhex("0000000e 03 00 0005 ffffffff 6162"))
    assert drain(frames) == [(AMQP_FRAME, 5, b"ab")]


def test_protocol_headers_come_before_frames() -> None:
    frames = FrameBuffer(512)
    stream = SASL_HEADER + encode_frame(0, b"x", b"", SASL_FRAME) + AMQP_HEADER
    for byte in stream[:7]:
        frames.feed(bytes((byte,)))
        assert frames.take(8) is None
    frames.feed(stream[7:])
    assert frames.take(8) == SASL_HEADER
    assert frames.next_frame()
    assert frames.take(8) == AMQP_HEADER
    assert frames.take(8) is None


@pytest.mark.parametrize(
    "header,reason",
    [
        ("00000007 02 00 0000", "shorter"),
        ("00000000 02 00 0000", "shorter"),
        ("00000201 02 00 0000", "at most 512"),
        ("ffffffff 02 00 0000", "at most 512"),
        ("00000010 01 00 0000", "data offset 1"),
        ("00000010 00 00 0000", "data offset 0"),
        ("00000010 05 00 0000", "data offset 5"),
        ("00000010 02 02 0000", "frame type 2"),
        ("414d5150 00 01 0000", "at most 512"),  # a protocol header where a frame should be
    ],
)
def test_bad_headers_are_refused_before_the_body_arrives(header: str, reason: str) -> None:
    for split in (0, 3, 7):
        frames = FrameBuffer(512)
        raw = bytes.fromhex(header)
        frames.feed(raw[:split])
        assert not frames.next_frame()
        frames.feed(raw[split:])
        with pytest.raises(RemoteProtocolError, match=reason) as caught:
            frames.next_frame()
        assert caught.value.condition == "amqp:connection:framing-error"


def test_the_limit_may_change_between_frames() -> None:
    frames = FrameBuffer(512)
    frames.feed(encode_frame(0, b"x" * 504))
    assert frames.next_frame()
    frames.frame_size_max = 1_024
    frames.feed(encode_frame(0, b"x" * 1_016))
    assert frames.next_frame()
    frames.feed(encode_frame(0, b"x" * 1_017))
    with pytest.raises(RemoteProtocolError):
        frames.next_frame()
