"""What is told of dead letters, whatever their senders have written into them."""

import json
from datetime import UTC, datetime

import pytest

from twinbus.pipeline.report.dead_letters import (
    HEAD,
    cells,
    dead_letters_page,
    document,
    samples,
    shown,
)

pytestmark = pytest.mark.proves("D-6")

TIME = datetime(2026, 11, 16, 9, 30, tzinfo=UTC)
ROW = {
    "entity_path": "orders/$DeadLetterQueue",
    "reason": "<script>\x1b[2J",
    "description": "line\n<n> " + "x" * 100,
    "message_count": 1_234,
    "body_bytes": 9,
    "first_time": TIME,
    "last_time": TIME,
    "within_hour": 0,
    "within_day": 1_234,
    "within_week": 0,
    "older": 0,
    "samples": [
        {
            "sequence_number": 7,
            "enqueued_time": TIME,
            "message_id": "m\n1",
            "session_id": None,
            "subject": "",
            "error_description": "\x9b31m",
            "body": bytearray(b"\x00<b>\xff"),
            "body_size": 5,
        }
    ],
}


def test_a_line_stays_a_line() -> None:
    found = cells(ROW)
    assert len(found) == len(HEAD)
    assert found[3:7] == ["2026-11-16 09:30", "2026-11-16 09:30", "1,234", "0"]
    assert all(each.isprintable() for text in [*found, *samples(ROW)] for each in text)
    assert samples(ROW)[0].startswith('sequence_number=7  message_id="m\\n1"')
    assert len(shown("x" * 100)) == 60


def test_json_has_everything() -> None:
    found = json.loads(json.dumps(document(ROW)))
    assert found["first_time"] == "2026-11-16T09:30:00.000+00:00"
    assert found["samples"][0]["body"] == "\x00<b>�"


def test_a_page_is_not_what_a_message_says() -> None:
    text = dead_letters_page([ROW], "now")
    assert "<script>" not in text
    assert "<b>" not in text
    assert "1,234 dead letters in 1 queues" in text
    assert "No dead letters" in dead_letters_page([], "now")
