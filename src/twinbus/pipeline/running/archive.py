"""An archive of the classes that Spark loads: half of its start-up time is loading them.

Made once, by a run that does a little of everything and has Java write down what it has loaded
when it ends; about a minute of work, and 180 MB in the cache.  `twinbus pipeline warm` makes it,
and so does, in the background, the end of the first command that a person has run in a terminal:
in scripts, containers and tests nobody wants a process that stays behind.
A missing, old or damaged archive costs time and nothing else: Java passes over it.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

from twinbus.clock import SystemClock
from twinbus.pipeline.running.home import SparkHome

# From which Java on an archive needs no archive of the JDK's own below it.
AOT_VERSION_MIN: Final = 25
# Whoever was about to make it and has not after so long never will.
_CLAIM_MS_MAX: Final = 600_000


def archive_path(home: SparkHome) -> Path | None:
    """Where the archive is or belongs; None if this Java cannot have one."""
    if home.java.has_base_archive:
        return home.path / "classes.jsa"
    if home.java.version >= AOT_VERSION_MIN:
        return home.path / "classes.aot"
    return None


def using_options(home: SparkHome) -> list[str]:
    """Java's options to start with the archive, if it is there."""
    path = archive_path(home)
    if path is None or not path.exists():
        return []
    if path.suffix == ".aot":
        return [f"-XX:AOTCache={path}"]
    return [f"-XX:SharedArchiveFile={path}", "-Xshare:auto"]


def making_options(path: Path) -> list[str]:
    """Java's options to leave an archive there when it ends."""
    option = "AOTCacheOutput" if path.suffix == ".aot" else "ArchiveClassesAtExit"
    return [f"-XX:{option}={path}"]


def should_make(home: SparkHome) -> bool:
    """Whether there could be one, is none, and nobody is at it."""
    path = archive_path(home)
    if path is None or path.exists():
        return False
    try:
        claimed_ms = _claim_path(path).stat().st_mtime_ns // 1_000_000
    except FileNotFoundError:
        return True
    return SystemClock().now().utc_ms - claimed_ms > _CLAIM_MS_MAX


def make_in_background() -> None:
    """Start `twinbus pipeline warm`, which goes on when this process has ended."""
    subprocess.Popen(
        [sys.executable, "-m", "twinbus", "pipeline", "warm"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def claim(path: Path) -> Path:
    """Say that we are at it; where Java is to write until the archive is whole."""
    _claim_path(path).touch()
    return path.with_name(f"{path.stem}-{os.getpid()}{path.suffix}")


def finish(spark: SparkSession, new: Path, path: Path) -> bool:
    """Do a little of everything, end Java, and give the archive its name; whether there is one."""
    try:
        with tempfile.TemporaryDirectory(prefix="twinbus-") as directory:
            _exercise(spark, Path(directory))
        gateway = SparkContext._gateway  # noqa: SLF001  Java writes when it ends, not when Spark does
        assert gateway is not None
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
        if new.exists():
            new.rename(path)
    finally:
        new.unlink(missing_ok=True)
        _claim_path(path).unlink(missing_ok=True)
    return path.exists()


def _claim_path(path: Path) -> Path:
    return path.with_suffix(".making")


def _exercise(spark: SparkSession, directory: Path) -> None:
    """What the commands do: a stream, a join, groups, windows, Parquet and JSON."""
    rows = str(directory / "rows")
    spark.range(1_000).selectExpr(
        "id",
        "id % 7 AS key",
        "cast(id AS string) AS text",
        "map('a', 'b') AS properties",
        "timestamp_millis(id) AS at",
        "cast('x' AS binary) AS body",
    ).write.option("compression", "zstd").parquet(rows)
    frame = spark.read.parquet(rows)
    frame.createOrReplaceTempView("rows")
    spark.sql(
        "SELECT key, count(*) AS n, count(DISTINCT text) AS d, sum(length(body)) AS s FROM rows "
        "LEFT ANTI JOIN (SELECT id + 500 AS id FROM rows) USING (id) GROUP BY key ORDER BY n"
    ).collect()
    spark.sql("SELECT id, max(id) OVER (PARTITION BY key ORDER BY id) FROM rows").write.json(
        str(directory / "json")
    )
    query = (
        spark.readStream.schema(frame.schema)
        .parquet(rows)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .option("path", str(directory / "stream"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
