"""What is told of dead letters, as cells, as JSON, and as a page.

A row is one of `summarised` as a dictionary.  Texts and bodies come from whoever sent them: nothing
in them may command a terminal, break a line or a page.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from twinbus.pipeline.report.page import figure, page, section, table
from twinbus.pipeline.report.svg import Html, bars

TEXT_CHARS_MAX: Final = 60
TEXT_COLUMNS: Final = ("entity_path", "reason", "description")
AGE_COLUMNS: Final = {
    "within_hour": "< 1 h",
    "within_day": "< 1 d",
    "within_week": "< 7 d",
    "older": "older",
}
HEAD: Final = ("entity", "reason", "description", "first", "last", "count", *AGE_COLUMNS.values())
BARS_MAX: Final = 12
_SAMPLE_TEXTS: Final = ("message_id", "session_id", "subject", "error_description")

Row = Mapping[str, Any]


def cells(row: Row) -> list[str]:
    """One line of the table."""
    texts = [shown(row[name]) for name in TEXT_COLUMNS]
    times = [_time(row[name]) for name in ("first_time", "last_time")]
    counts = [f"{row[name]:,}" for name in ("message_count", *AGE_COLUMNS)]
    return [*texts, *times, *counts]


def samples(row: Row) -> list[str]:
    """A line for each example."""
    return [_sample(sample) for sample in row["samples"]]


def document(row: Row) -> dict[str, object]:
    """The row as JSON can have it."""
    return {name: _plain(value) for name, value in row.items()}


def dead_letters_page(rows: Sequence[Row], made: str) -> str:
    total = sum(row["message_count"] for row in rows)
    queues = len({row["entity_path"] for row in rows})
    parts: list[Html] = []
    for name, column in (("By reason", "reason"), ("By entity", "entity_path")):
        counts: Counter[str] = Counter()
        for row in rows:
            counts[shown(row[column]) or "(none)"] += row["message_count"]
        caption = "" if len(counts) <= BARS_MAX else f"The first {BARS_MAX} of {len(counts):,}."
        found = [(text, float(count)) for text, count in counts.most_common(BARS_MAX)]
        parts.append(section(name, figure(bars(found, name), caption)))
    parts.append(section("In detail", table(HEAD, [cells(row) for row in rows], 3)))
    examples = [[*cells(row)[:2], sample] for row in rows for sample in samples(row)]
    parts.append(section("Examples", table(("entity", "reason", "message"), examples, 3)))
    verdict = f"{total:,} dead letters in {queues:,} queues" if rows else "No dead letters"
    return page("Dead letters", verdict, None, parts if rows else [], _footer(made))


def _footer(made: str) -> str:
    return (
        f"twinbus pipeline dead-letters, {made}. Times are UTC, those at which the bus took the "
        "message. Numbers, ids and times in descriptions are left out."
    )


def shown(text: str) -> str:
    """Short, on one line, without anything that a terminal would obey."""
    plain = "".join(each if each.isprintable() else "�" for each in " ".join(text.split()))
    return plain if len(plain) <= TEXT_CHARS_MAX else plain[: TEXT_CHARS_MAX - 1] + "…"


def _time(value: datetime | None) -> str:
    # Spark gives times of this machine's zone, without saying so.
    return "-" if value is None else value.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def _sample(sample: Row) -> str:
    told = [f"{name}={json.dumps(sample[name])}" for name in _SAMPLE_TEXTS if sample[name]]
    body = json.dumps(_plain(sample["body"]))
    return "  ".join([f"sequence_number={sample['sequence_number']}", *told, f"body={body}"])


def _plain(value: object) -> object:
    """Bytes as text, unreadable ones replaced."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds")
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value
