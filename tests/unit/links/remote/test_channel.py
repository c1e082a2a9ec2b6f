"""Frames: whole, byte by byte, many at once, too large, and broken."""

import marshal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.links.remote.channel import Channel, ChannelError
from twinbus.links.remote.operations import Operation

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9) | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)
operations = st.lists(st.tuples(st.integers(0, 200), st.integers(-1, 9), plain), max_size=4)


@given(st.lists(operations, min_size=1, max_size=3), st.integers(1, 40))
def test_frames_arrive_however_they_are_cut(turns: list[list[Operation]], step: int) -> None:
    sender = Channel()
    data = b"".join(sender.encode(turn) for turn in turns)
    expected = [operation for turn in turns for operation in turn]
    assert Channel().receive_data(data) == expected
    receiver = Channel()
    found: list[Operation] = []
    for start in range(0, len(data), step):
        found += receiver.receive_data(data[start : start + step])
    assert found == expected


def test_a_large_frame_in_pieces() -> None:
    """Sixteen megabytes in pieces of 64 KB: each byte is copied a few times, not hundreds."""
    body = bytes(16 << 20)
    data = Channel().encode([(1, 0, body)])
    receiver = Channel()
    pieces = [data[start : start + 65_536] for start in range(0, len(data), 65_536)]
    for piece in pieces[:-1]:
        assert receiver.receive_data(piece) == []
    assert receiver.receive_data(pieces[-1]) == [(1, 0, body)]


def test_a_turn_that_is_too_large_is_divided() -> None:
    channel = Channel(size_max=100)
    turn: list[Operation] = [(number, 0, b"x" * 40) for number in range(5)]
    assert Channel(size_max=100).receive_data(channel.encode(turn)) == turn
    with pytest.raises(ChannelError, match="one operation has"):
        channel.encode([(1, 0, b"x" * 200)])


def test_a_frame_that_claims_too_much_is_refused_before_it_comes() -> None:
    with pytest.raises(ChannelError, match="a frame of 101 bytes"):
        Channel(size_max=100).receive_data((101).to_bytes(4, "big"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage",
        marshal.dumps({"no": "list"}),
        marshal.dumps([1]),
        marshal.dumps([(1,)]),
        marshal.dumps([(1, 2)])[:-1],
    ],
)
def test_what_is_no_frame_is_an_error(content: bytes) -> None:
    with pytest.raises(ChannelError):
        Channel().receive_data(len(content).to_bytes(4, "big") + content)


class Symbol(str):
    """As those of AMQP are."""

    __slots__ = ()


class Number(int):
    """Likewise."""


def test_subclasses_of_builtins_arrive_as_what_they_are() -> None:
    sent = [(1, 0, Symbol("a"), [Number(5)], {"k": Symbol("b")}, (None, True, 1.5, b"x"))]
    (arrived,) = Channel().receive_data(Channel().encode(sent))
    assert arrived == (1, 0, "a", [5], {"k": "b"}, (None, True, 1.5, b"x"))
    assert type(arrived[2]) is str
    assert type(arrived[3][0]) is int


def test_what_is_no_builtin_is_a_bug() -> None:
    with pytest.raises(TypeError, match="object cannot be sent"):
        Channel().encode([(1, 0, object())])
