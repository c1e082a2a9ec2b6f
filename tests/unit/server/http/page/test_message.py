"""Messages as the page shows them: whatever they hold, it is JSON that a browser can show."""

import json
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.amqp.types import Described, Symbol, Timestamp, ULong
from twinbus.entities.commands import Delivered
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.message import NEVER_MS, SCHEDULED, Message, Overlay
from twinbus.limits import PAGE_BODY_BYTES_MAX
from twinbus.message.incoming import new_message
from twinbus.message.message_id import MessageIds
from twinbus.message.plain import Properties, data_section, encode_message, value_section
from twinbus.server.http.page.message import message_document, readable

IDS = MessageIds(7)
EVIL = "<script>alert(1)</script>\u202e\x00\"';--"


def shown(
    body: bytes, overlay: Overlay | None = None, state: int = 0, **fields: Any
) -> dict[str, Any]:
    encoded = encode_message(body, **fields)
    stored = new_message(encoded, IDS, QueueDescription().default_time_to_live_ms, False).body
    message = Message((3 << 48) | 7, None, len(stored), 1_800_000_000_000, NEVER_MS, None, state)
    message.overlay = overlay
    document = message_document(Delivered(message, stored, 0))
    return json.loads(json.dumps(document))  # type: ignore[no-any-return]


def test_every_field() -> None:
    found = shown(
        data_section(b'{"n": 1}'),
        Overlay("TooOften", "ten times", "elsewhere", None, 0, 5),
        properties=Properties("a", to="t", subject="s", reply_to="r", correlation_id=ULong(9)),
        application_properties={"region": "north", "n": 12, "at": Timestamp(0), "b": b"\xff"},
        annotations={"x-opt-partition-key": "p"},
    )
    assert found["sequence_number"] == str((3 << 48) | 7)
    assert found["enqueued_sequence_number"] == "5"
    assert (found["message_id"], found["correlation_id"], found["to"]) == ("a", "9", "t")
    assert (found["subject"], found["reply_to"], found["partition_key"]) == ("s", "r", "p")
    assert found["enqueued"] == "2027-01-15T08:00:00.000Z"
    assert found["expires"] is None
    assert found["dead_letter"] == {
        "reason": "TooOften",
        "description": "ten times",
        "source": "elsewhere",
    }
    assert found["properties"] == [
        {"name": "region", "type": "string", "value": "north"},
        {"name": "n", "type": "long", "value": "12"},
        {"name": "at", "type": "timestamp", "value": "1970-01-01T00:00:00.000Z"},
        {"name": "b", "type": "binary", "value": "ff"},
    ]
    assert found["body"] == {
        "kind": "text",
        "text": '{"n": 1}',
        "size_bytes": 8,
        "is_truncated": False,
    }


def test_a_scheduled_message_has_come_nowhere_yet() -> None:
    found = shown(data_section(b""), state=SCHEDULED)
    assert (found["state"], found["enqueued"]) == ("scheduled", None)
    assert found["scheduled"] == "2027-01-15T08:00:00.000Z"


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (data_section(b"two\nlines\t"), "text", "two\nlines\t"),
        (data_section(b"a\x00b"), "hex", "610062"),
        (data_section(b"\xff\xfe"), "hex", "fffe"),
        (data_section(b""), "text", ""),
        (value_section("a text"), "text", "a text"),
        (value_section(None), "none", ""),
        (value_section({"a": [1, None, UUID(int=1)]}), "value", None),
        (value_section(Described(Symbol("x"), 5)), "value", "5"),
    ],
)
def test_bodies(body: bytes, kind: str, text: str | None) -> None:
    found = shown(body)["body"]
    assert found["kind"] == kind
    assert found["text"] == (
        '{"a": [1, null, "00000000-0000-0000-0000-000000000001"]}' if text is None else text
    )


@pytest.mark.parametrize("character", ["x", "ä", "€", "\U0001f600", "\xff"])
def test_a_long_body_is_cut(character: str) -> None:
    raw = (character * 100_000).encode("latin-1" if character == "\xff" else "utf-8")
    found = shown(data_section(raw))["body"]
    assert found["is_truncated"]
    assert found["size_bytes"] == len(raw)
    if character == "\xff":
        assert (found["kind"], len(found["text"])) == ("hex", 2 * PAGE_BODY_BYTES_MAX)
    else:
        assert found["kind"] == "text"
        assert set(found["text"]) == {character}
        assert PAGE_BODY_BYTES_MAX - 4 < len(found["text"].encode()) <= PAGE_BODY_BYTES_MAX


def test_hostile_fields_stay_text() -> None:
    found = shown(
        data_section(EVIL.replace("\x00", "").encode()),
        Overlay(EVIL, EVIL, EVIL),
        properties=Properties(EVIL, subject=EVIL, content_type="text/html", group_id=EVIL),
        application_properties={EVIL: EVIL, "DeadLetterReason": EVIL, "far": Timestamp(1 << 62)},
    )
    assert found["message_id"] == found["subject"] == found["session_id"] == EVIL
    assert found["dead_letter"]["reason"] == EVIL
    assert found["properties"][0] == {"name": EVIL, "type": "string", "value": EVIL}
    assert found["properties"][1]["value"].startswith("9999-12-31")


def test_what_nobody_can_read_is_shown_as_it_is() -> None:
    stored = new_message(encode_message(data_section(b"x")), IDS, NEVER_MS, False).body
    message = Message(1, None, len(stored), 0)
    found = message_document(Delivered(message, stored[:-1] + b"\xff\xff", 0))
    assert found["body"]["kind"] in ("hex", "text")


@given(st.binary(max_size=50), st.booleans())
def test_readable_is_what_utf_8_says(data: bytes, is_whole: bool) -> None:
    text = readable(data, is_whole=is_whole)
    if text is not None:
        assert data.startswith(text.encode())
        assert not is_whole or text.encode() == data
