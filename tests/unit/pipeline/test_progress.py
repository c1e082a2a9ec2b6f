"""Spark's progress, as it writes it, in a few numbers."""

from typing import Any

import pytest

from twinbus.pipeline.running.progress import BatchProgress, batch_progress

PROGRESS: dict[str, Any] = {
    "id": "6abbac93-b129-4f79-8ec0-b1dd5b2072bc",
    "batchId": 7,
    "batchDuration": 412,
    "numInputRows": 40,
    "processedRowsPerSecond": 97.08,
    "sources": [
        {
            "description": "servicebus",
            "startOffset": "None",
            "endOffset": {"created": {"orders": 1_763_280_000_000}, "orders/0": 40},
            "latestOffset": {"created": {"orders": 1_763_280_000_000}, "orders/0": 100},
        }
    ],
}


def with_offsets(end: object, latest: object) -> dict[str, Any]:
    return {**PROGRESS, "sources": [{"endOffset": end, "latestOffset": latest}]}


def test_the_numbers_of_a_batch() -> None:
    assert batch_progress(PROGRESS) == BatchProgress(
        batch_id=7, rows=40, rows_per_second=97.08, duration_ms=412, lag=60
    )


def test_what_spark_leaves_out_is_nothing() -> None:
    assert batch_progress({"batchId": 0}) == BatchProgress(0, 0, 0.0, 0, None)


@pytest.mark.parametrize(
    "end, latest, lag",
    [
        ('{"orders/0": 1}', '{"orders/0": 3}', 2),
        ({"orders/0": 5}, {"orders/0": 3}, 0),
        ({"round": 1, "backlog/0": 2}, {"round": 9, "backlog/0": 5}, 3),
        # A partition that is new, whose numbers begin high up.
        ({"orders/0": 5}, {"orders/0": 6, "orders/3": (3 << 48) + 4}, 5),
        # Dead letters: what is there and has not been read.
        ({"q/$dlq/0": [[3, 5]]}, {"q/$dlq/0": [[1, 2], [3, 8]]}, 4),
        ({}, {"q/$dlq/0": [[1, 4]]}, 3),
        ("None", {"orders/0": 3}, None),
        ({"orders/0": 3}, None, None),
        ("12", "15", None),  # another source's
    ],
)
def test_lag(end: object, latest: object, lag: int | None) -> None:
    assert batch_progress(with_offsets(end, latest)).lag == lag


def test_the_lag_of_several_sources_is_their_sum() -> None:
    progress = {**PROGRESS, "sources": [*PROGRESS["sources"], *PROGRESS["sources"], {}]}
    assert batch_progress(progress).lag == 120
