"""What Spark tells of a streaming query after each batch, as the few numbers that matter.

Pure.  Lag is counted in sequence numbers, of which some may be gone, so it is "at most so many".
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from twinbus.entities.partitions import COUNTER_BITS
from twinbus.pipeline.source.runs import Runs, count, merge, subtract

_COUNTER: Final = (1 << COUNTER_BITS) - 1


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """One batch, or one look in which nothing new was found."""

    batch_id: int
    rows: int
    rows_per_second: float  # of this batch, as it was processed
    duration_ms: int
    lag: int | None  # sequence numbers ahead of what has been read; None if no source tells


def batch_progress(progress: Mapping[str, Any]) -> BatchProgress:
    """From the JSON of a `StreamingQueryProgress`."""
    lags = [_source_lag(source) for source in progress.get("sources", [])]
    told = [lag for lag in lags if lag is not None]
    return BatchProgress(
        batch_id=int(progress["batchId"]),
        rows=int(progress.get("numInputRows") or 0),
        rows_per_second=float(progress.get("processedRowsPerSecond") or 0.0),
        duration_ms=int(progress.get("batchDuration") or 0),
        lag=sum(told) if told else None,
    )


def _source_lag(source: Mapping[str, Any]) -> int | None:
    end = _positions(source.get("endOffset"))
    latest = _positions(source.get("latestOffset"))
    if end is None or latest is None:
        return None
    return sum(_ahead(position, end.get(key)) for key, position in latest.items())


def _ahead(latest: object, end: object) -> int:
    if isinstance(latest, int):
        # A partition has its number in the upper bits of all of its sequence numbers.
        done = end if isinstance(end, int) else latest & ~_COUNTER
        return max(latest - done, 0)
    return count(subtract(_runs(latest), _runs(end or [])))


def _positions(offset: object) -> dict[str, object] | None:
    """By partition (`orders/0`); what else an offset says is left out."""
    if isinstance(offset, str):  # the first batch's, and those of other sources
        try:
            offset = json.loads(offset)
        except ValueError:
            return None
    if not isinstance(offset, dict):
        return None
    return {key: value for key, value in offset.items() if "/" in key}


def _runs(value: object) -> Runs:
    assert isinstance(value, Iterable)
    return merge((first, end) for first, end in value)
