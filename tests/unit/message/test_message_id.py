"""Messages without an id get one, and nothing else about them changes."""

import pytest

from twinbus.message.message_id import MessageIds, has_message_id, with_message_id
from twinbus.message.plain import decode_message

BODY = b"\x00\x53\x75\xa0\x04body"
SUBJECT = b"\xa1\x07subject"

# Properties without an id, in every form a list may have.
WITHOUT_ID = [
    b"",
    b"\x00\x53\x73\x45",
    b"\x00\x53\x73\xc0\x01\x00",
    b"\x00\x53\x73\xc0\x02\x01\x40",
    b"\x00\x53\x73\xd0\x00\x00\x00\x04\x00\x00\x00\x00",
    b"\x00\x53\x73\xd0\x00\x00\x00\x05\x00\x00\x00\x01\x40",
]
SUBJECT_ONLY = b"\x00\x53\x73\xc0\x0d\x04\x40\x40\x40" + SUBJECT
WITH_ID = [
    b"\x00\x53\x73\xc0\x04\x01\xa1\x01m",
    b"\x00\x53\x73\xc0\x02\x01\x44",
    b"\x00\x53\x73\xd0\x00\x00\x00\x07\x00\x00\x00\x01\xa1\x01m",
]


@pytest.mark.parametrize("properties", WITHOUT_ID)
@pytest.mark.parametrize("body", [b"", BODY])
def test_message_without_id_gets_one(properties: bytes, body: bytes) -> None:
    bare = properties + body
    assert not has_message_id(bare)
    given = with_message_id(bare, b"made-up")
    assert has_message_id(given)
    assert decode_message(given).properties.message_id == "made-up"
    assert given.endswith(body)


def test_other_properties_stay() -> None:
    given = with_message_id(SUBJECT_ONLY + BODY, b"made-up")
    message = decode_message(given)
    assert message.properties.message_id == "made-up"
    assert message.properties.subject == "subject"
    assert given.endswith(SUBJECT + BODY)


@pytest.mark.parametrize("properties", WITH_ID)
def test_message_with_id_is_recognised(properties: bytes) -> None:
    assert has_message_id(properties + BODY)
    assert has_message_id(properties)


@pytest.mark.parametrize("end", [b"\xc0\x02\x01", b"\xc0\x00", b"\xd0\x00\x00\x00\x00"])
def test_cut_short_properties_have_no_id(end: bytes) -> None:
    assert not has_message_id(b"\x00\x53\x73" + end)


def test_ids_are_not_repeated() -> None:
    ids = MessageIds(0xABCD)
    made = [ids.next() for _ in range(3)]
    assert len(set(made)) == 3
    assert made[0] == b"000000000000abcd0000000000000001"
