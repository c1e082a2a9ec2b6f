"""A driver program of its own: copies a queue to another on a cluster, and tells who has done it.

    python cluster_driver.py MASTER SOURCE-QUEUE DESTINATION-QUEUE

The connection string is in the environment; the last line of the output is JSON.
"""

import json
import os
import sys
from collections.abc import Iterable, Iterator

from twinbus.pipeline.running.session import open_session


def executors(numbers: Iterable[int]) -> Iterator[str]:
    """In which directory, and so in which executor, each number is looked at."""
    for _ in numbers:
        yield os.getcwd()  # noqa: PTH109  plain text goes over the wire


def main(master: str, source: str, destination: str) -> None:
    spark = open_session(
        "cluster test",
        master=master,
        profile="test",
        conf={
            "spark.driver.host": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": os.environ["SPARK_DAEMON_JAVA_OPTS"],
            "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
            # Nothing begins before both workers are there.
            "spark.cores.max": "2",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        },
    )
    used = spark.sparkContext.parallelize(range(8), 8).mapPartitions(executors).collect()
    options = {"connectionString": os.environ["TWINBUS_CONNECTION_STRING"]}
    messages = spark.read.format("servicebus").options(**options, entityPath=source).load()
    copied = messages.write.format("servicebus").options(**options, entityPath=destination)
    copied.option("producerKeyColumn", "position").mode("append").save()
    told = {"executors": sorted(set(used)), "master": spark.sparkContext.master}
    sys.stdout.write(json.dumps(told) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
