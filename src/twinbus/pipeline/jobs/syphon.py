"""The syphon for large backlogs, as a streaming query (D-2): starts it, and hands on what it did.

The query's rows are what tasks have done already, not something to be computed: each batch is
collected once, and nothing else may be asked of it, or its tasks would work once more.
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 – as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery

from twinbus.pipeline.syphon.mover import DEAD_LETTERED, HELD, LEFT, MOVED
from twinbus.pipeline.syphon.source import FORMAT, SyphonDataSource

INTERVAL_S: Final = 1
Done = Mapping[str, Any]  # one row: what became of the messages of one destination


@dataclass(frozen=True)
class SyphonSettings:
    """`source` are the options of `format("servicebus-syphon")`."""

    source: Mapping[str, str]
    checkpoint: str
    is_once: bool = False
    ledger: str | None = None  # a directory or URL


def start_syphon(
    spark: SparkSession, settings: SyphonSettings, on_round: Callable[[Sequence[Done]], None]
) -> StreamingQuery:
    """Start, or go on with, a syphon.  The query may be stopped, killed and started again."""
    spark.dataSource.register(SyphonDataSource)

    def take(batch: DataFrame, number: int) -> None:
        rows = batch.collect()
        if rows and settings.ledger is not None:
            # Appended: a batch that is repeated does what was left of it, and adds that.
            kept = spark.createDataFrame(rows, batch.schema).coalesce(1)
            kept = kept.withColumns({"batch": F.lit(number), "time": F.current_timestamp()})
            kept.write.mode("append").parquet(settings.ledger)
        on_round([row.asDict() for row in rows])

    stream = spark.readStream.format(FORMAT).options(**settings.source).load().writeStream
    stream = stream.foreachBatch(take).option("checkpointLocation", settings.checkpoint)
    if settings.is_once:
        stream = stream.trigger(availableNow=True)
    else:
        stream = stream.trigger(processingTime=f"{INTERVAL_S} seconds")
    return stream.queryName("syphon").start()


class Totals:
    """What this run has done so far, and what the last round has left."""

    def __init__(self) -> None:
        self.moved: dict[str, int] = {}  # by destination
        self.dead_lettered: dict[tuple[str, str], int] = {}  # by destination and reason
        self.held: dict[str, int] = {}  # by destination, of the last round
        self.held_for: dict[str, str] = {}  # why
        # Not this primary's, or perhaps not: by backlog queue and why, of the last round.
        self.left: dict[tuple[str, str], int] = {}
        self.size_bytes = 0

    def add(self, rows: Sequence[Done]) -> None:
        """A round."""
        self.held, self.held_for, self.left = {}, {}, {}
        for row in rows:
            path, count = row["destination"], row["count"]
            if row["outcome"] == MOVED:
                self.moved[path] = self.moved.get(path, 0) + count
                self.size_bytes += row["bytes"]
            elif row["outcome"] == DEAD_LETTERED:
                key = (path, row["reason"])
                self.dead_lettered[key] = self.dead_lettered.get(key, 0) + count
            elif row["outcome"] == HELD:
                self.held[path] = self.held.get(path, 0) + count
                self.held_for[path] = row["reason"]
            elif row["outcome"] == LEFT:
                key = (row["queue"], row["reason"])
                self.left[key] = self.left.get(key, 0) + count

    @property
    def moved_count(self) -> int:
        return sum(self.moved.values())

    @property
    def dead_letter_count(self) -> int:
        return sum(self.dead_lettered.values())

    @property
    def held_count(self) -> int:
        return sum(self.held.values())


def default_checkpoint(secondary_authority: str, prefix: str) -> str:
    """A place of its own for each pair: `$XDG_STATE_HOME/twinbus/syphon/…`, or in `~/.local/state`.

    It only keeps the count of rounds: what is to be done stands in the backlog.
    """
    base = os.environ.get("XDG_STATE_HOME")
    root = Path(base) if base else Path.home() / ".local" / "state"
    pair = hashlib.sha256(f"{secondary_authority}\n{prefix}".lower().encode()).hexdigest()[:16]
    return str(root / "twinbus" / "syphon" / pair)
