"""Capture: the messages of entities into files by entity, date and hour, each message once.

A micro-batch becomes visible like this (file_layout.py has the places):

    1. Spark writes it below `staging/<batch>`, which nobody reads, and a mark `_ready` follows
    2. its files are renamed, one by one, to where readers look: whole files, under final names
    3. a mark `done/<batch>` is written, and the staging folder goes

A driver that dies before the mark `_ready` has shown nothing: the batch is written anew.  One that
dies later is carried on with: the files that are still in staging are moved, nothing is read or
written twice.  A batch that is done is not done again.  So it does not matter when it dies, nor
that other receivers may have taken messages away before the batch is run once more.

Never deletes or replaces a file that a reader can see.  With `settle` = `delete` the source removes
messages of a batch only after Spark has noted it as committed, which is after step 3.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F  # noqa: N812 – as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery

from twinbus.errors import ConfigError
from twinbus.pipeline.jobs.file_layout import (
    CAPTURE,
    Files,
    check_name,
    claim_format,
    files_for,
    hour_folders,
    visible,
)

PARTITION_COLUMNS: Final = ("entity", "date", "hour")
# Formats that would take another compression by themselves.
_ZSTD: Final = ("parquet", "orc")
_READY: Final = "_ready"


@dataclass(frozen=True)
class CaptureSettings:
    """What to capture and where to; `source` are the options of `format("servicebus")`."""

    source: Mapping[str, str]
    directory: str
    name: str = "capture"  # captures of one directory differ by it, and go on by it
    format: str | None = None  # the directory's, or Parquet
    options: Mapping[str, str] = field(default_factory=dict)  # of the format
    is_once: bool = False
    interval_s: float = 10.0


def by_hour(messages: DataFrame) -> DataFrame:
    """With the columns that files are divided by: entity, and date and hour of arrival in UTC."""
    # Counted in seconds, since Spark's own date functions follow the session's time zone.
    seconds = F.unix_seconds("enqueued_time")
    day = F.floor(seconds / 86_400).cast("int")
    hour = F.floor(F.pmod(seconds, F.lit(86_400)) / 3_600).cast("int")
    return (
        messages.withColumn("entity", F.col("entity_path"))
        .withColumn("date", F.date_add(F.lit("1970-01-01").cast("date"), day).cast("string"))
        .withColumn("hour", F.lpad(hour.cast("string"), 2, "0"))
    )


def format_options(form: str) -> dict[str, str]:
    """What we would have a format do, before the user is asked."""
    return {"compression": "zstd"} if form in _ZSTD else {}


def writer_by_hour(messages: DataFrame, form: str, options: Mapping[str, str]) -> DataFrameWriter:
    """Writes messages below a directory in the layout of a capture."""
    writer = by_hour(messages).write.partitionBy(*PARTITION_COLUMNS).format(form)
    return writer.options(**{**format_options(form), **options})


class BatchPlacer:
    """Puts batches into place, each once, whatever was interrupted before."""

    def __init__(self, files: Files, directory: str, name: str) -> None:
        self._files = files
        self._directory = directory
        self._own = f"{directory}/{CAPTURE}/{name}"

    @property
    def checkpoint(self) -> str:
        return f"{self._own}/checkpoint"

    def place(self, batch: int, write: Callable[[str], None]) -> bool:
        """Write the batch and show it; False if it had been done already."""
        files = self._files
        planned = files.read_text(f"{self.checkpoint}/offsets/{batch}") or ""
        done = files.read_text(f"{self._own}/done/{batch}")
        if done is not None:
            self._check(batch, done, planned)
            files.delete(f"{self._own}/staging")
            return False
        staging = f"{self._own}/staging/{batch}"
        ready = files.read_text(f"{staging}/{_READY}")
        if ready is None:
            files.delete(f"{self._own}/staging")  # of this batch, or left over by one that is done
            write(staging)
            files.write_text(f"{staging}/{_READY}", planned)
        else:
            self._check(batch, ready, planned)
        self._show(batch, staging)
        files.write_text(f"{self._own}/done/{batch}", planned)
        files.delete(f"{self._own}/staging")
        for name in files.names(f"{self._own}/done"):
            if name != str(batch):
                files.delete(f"{self._own}/done/{name}")
        return True

    def _show(self, batch: int, staging: str) -> None:
        for folder in hour_folders(self._files, staging):
            for name in visible(self._files.names(f"{staging}/{folder}")):
                # Spark's own name has a random part: no two batches ever meet in one.
                shown = f"{self._directory}/{folder}/{batch:08}-{name}"
                self._files.rename(f"{staging}/{folder}/{name}", shown)

    def _check(self, batch: int, then: str, now: str) -> None:
        # Were it another range of messages, to leave it out would lose some of them.
        if then != now:
            raise ConfigError(
                f"batch {batch} has been captured from other offsets than {self.checkpoint} says: "
                "it is an old copy, or another capture's; take another directory or --name"
            )


def start_capture(spark: SparkSession, settings: CaptureSettings) -> StreamingQuery:
    """Start, or go on with, a capture.  The query may be stopped, killed and started again."""
    files, directory = files_for(spark, settings.directory)
    placer = BatchPlacer(files, directory, check_name(settings.name, "--name"))
    form = claim_format(files, directory, settings.format)

    def place(messages: DataFrame, batch: int) -> None:
        writer = writer_by_hour(messages, form, settings.options)
        placer.place(batch, writer.mode("overwrite").save)

    messages = spark.readStream.format("servicebus").options(**settings.source).load()
    stream = messages.writeStream.foreachBatch(place).option(
        "checkpointLocation", placer.checkpoint
    )
    if settings.is_once:
        stream = stream.trigger(availableNow=True)
    else:
        stream = stream.trigger(processingTime=f"{settings.interval_s:g} seconds")
    return stream.queryName(f"capture {settings.name}").start()
