"""The supervisor with real queries: what Spark makes of an error, and a start after it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from twinbus import errors
from twinbus.pipeline.running.progress import batch_progress
from twinbus.pipeline.running.supervisor import QueryFailed, supervise

ROWS = 3

pytestmark = pytest.mark.feature("pipeline.running")


class FailingSource(DataSource):
    """Fails with the error of the option `error`; not again where the file `once` is."""

    @classmethod
    def name(cls) -> str:
        return "failing"

    def schema(self) -> str:
        return "number int"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        del schema
        return FailingReader(self.options["error"], Path(self.options["once"]))


class FailingReader(DataSourceStreamReader):
    def __init__(self, error: str, once: Path) -> None:
        self._error = error
        self._once = once

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"failing/0": 0}

    def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:  # noqa: N802
        del start, limit
        if not self._once.exists():
            self._once.touch()
            raise getattr(errors, self._error)("not today")
        return {"failing/0": ROWS}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        del start, end
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        del partition
        yield from ((number,) for number in range(ROWS))


class Run:
    """A query on that source, supervised until it has read what there is."""

    def __init__(self, spark: SparkSession, directory: Path, error: str) -> None:
        spark.dataSource.register(FailingSource)
        self._source = spark.readStream.format("failing").options(
            error=error, once=str(directory / "once")
        )
        self._checkpoint = str(directory / "checkpoint")
        self.rows = 0
        self.lines: list[str] = []

    def start(self) -> StreamingQuery:
        sink = self._source.load().writeStream.format("noop")
        return (
            sink.option("checkpointLocation", self._checkpoint).trigger(availableNow=True).start()
        )

    def progressed(self, progress: dict[str, Any]) -> None:
        self.rows += batch_progress(progress).rows

    def supervise(self) -> None:
        supervise(
            self.start,
            on_progress=self.progressed,
            should_stop=lambda: False,
            on_restart=self.lines.append,
            sleep=lambda seconds: None,
        )


@pytest.mark.proves("D-7")
def test_a_query_that_fails_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    run = Run(spark, tmp_path, "ServerBusy")
    run.supervise()
    assert run.lines == ["ServerBusy: not today; starting again in 1 s"]
    assert run.rows == ROWS


@pytest.mark.proves("D-7")
def test_a_queue_that_is_not_there_ends_it(spark: SparkSession, tmp_path: Path) -> None:
    run = Run(spark, tmp_path, "EntityNotFound")
    with pytest.raises(QueryFailed, match=r"^EntityNotFound: not today$"):
        run.supervise()
    assert run.lines == []
