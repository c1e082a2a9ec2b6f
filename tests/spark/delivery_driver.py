"""A driver of its own for the proof of delivery: two queries, source → sink, until all is moved.

    python delivery_driver.py <connection string> <folder of the checkpoints>

Killed at any moment and started again, it goes on from its checkpoints.  Not a test by itself.
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from twinbus.pipeline.running.session import open_session

BATCH_ROWS = 1_000
# Which queue goes where, and with which keys.
FLOWS: dict[str, tuple[str, dict[str, str]]] = {
    "from-default": ("to-default", {}),
    "from-position": ("to-position", {"producerKeyColumn": "position"}),
}


def start(spark: SparkSession, bus: str, source: str, folder: Path) -> StreamingQuery:
    destination, options = FLOWS[source]
    reader = spark.readStream.format("servicebus").option("connectionString", bus)
    rows = reader.options(
        entityPath=source, settle="delete", maxOffsetsPerTrigger=BATCH_ROWS, numTasks=2
    ).load()
    writer = rows.writeStream.format("servicebus").option("connectionString", bus)
    writer = writer.options(entityPath=destination, **options)
    writer = writer.option("checkpointLocation", str(folder / source))
    return writer.trigger(availableNow=True).start()


def main() -> None:
    bus, folder = sys.argv[1:]
    spark = open_session("delivery", profile="test")
    queries = [start(spark, bus, source, Path(folder)) for source in FLOWS]
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
