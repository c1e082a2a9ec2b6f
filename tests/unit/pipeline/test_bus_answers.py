"""Messages are cut out of answers in every form in which a bus may write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.amqp.encoding import encode_value
from twinbus.amqp.types import Int, Symbol
from twinbus.client.answers import read_map
from twinbus.errors import RemoteProtocolError

sizes = st.sampled_from([0, 1, 30, 200, 229, 230, 255, 256, 300, 70_000])
messages = st.lists(sizes.map(lambda size: b"m" * size), max_size=6)


def apart(value: object) -> tuple[dict[str, object], list[bytes]]:
    data = b"before" + encode_value(value)
    return read_map(data, len(b"before"), len(data), apart=True)


def in_every_form(bodies: list[bytes]) -> list[list[object]]:
    return [
        list(bodies),
        [{"message": body} for body in bodies],
        [{Symbol("message"): body} for body in bodies],
        [{"message": body, "lock-token": "t"} for body in bodies],
        [{"lock-token": "t", "message": body} for body in bodies],
    ]


@given(messages)
def test_every_form_gives_the_same_messages(bodies: list[bytes]) -> None:
    for form in in_every_form(bodies):
        read, found = apart({"message-count": Int(3), "messages": form, "next": 17})
        assert found == bodies
        assert read == {"message-count": 3, "next": 17}


@given(messages)
def test_without_apart_they_are_read_like_the_rest(bodies: list[bytes]) -> None:
    for form in in_every_form(bodies):
        data = encode_value({"messages": form})
        assert read_map(data, 0, len(data)) == ({"messages": form}, [])


def test_an_answer_without_a_map_says_nothing() -> None:
    assert apart(None) == ({}, [])
    assert read_map(b"", 0, 0, apart=True) == ({}, [])
    assert apart({"messages": "none"}) == ({"messages": "none"}, [])


@pytest.mark.parametrize("element", [7, {"other": b"x"}, {"message": "text"}, None])
def test_what_is_no_message_is_an_error(element: object) -> None:
    with pytest.raises(RemoteProtocolError):
        apart({"messages": [b"good", element]})


@given(messages.filter(any), st.data())
def test_damaged_answers_end_in_an_error_or_in_bytes(
    bodies: list[bytes], draw: st.DataObject
) -> None:
    """Never in anything else: no crash, no slice beyond the answer."""
    form = draw.draw(st.sampled_from(in_every_form(bodies)))
    data = bytearray(encode_value({"messages": form}))
    del data[draw.draw(st.integers(max(1, len(data) - 20), len(data))) :]
    place = draw.draw(st.integers(0, min(len(data), 120) - 1))
    data[place] = draw.draw(st.integers(0, 255))
    try:
        _, found = read_map(bytes(data), 0, len(data), apart=True)
    except RemoteProtocolError:
        return
    assert sum(map(len, found)) <= len(data)
