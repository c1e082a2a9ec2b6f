"""Reading, in `bench.pipeline`: Spark next to the SDK, at two sizes, and of one or 16 partitions.

A job of Spark costs something before it reads its first message: it is planned, workers are asked,
code is compiled.  So the same is read of a small and of a ten times larger queue.  What the larger
one costs more is the price of a message; what the smaller one costs beyond that is the price of the
job, whatever it reads.

The messages are ordinary ones: 1 KiB, four properties, three application properties.
"""

import statistics
import time
from collections.abc import Iterator

from pyspark.sql import DataFrame, Observation, SparkSession, functions

from bench import tools
from bench.client_clock import ClientClock
from bench.pipeline_sdk import READ_QUEUE, READS, ask_sdk
from twinbus.amqp.message import Properties, data_section, encode_message
from twinbus.pipeline.bus.pool import bus_for
from twinbus.testing.server import ServerProcess

LARGER = 10
PARTITION_COUNT = 16
BODY = data_section(bytes(1_024))
BLOCK = 50_000
SCHEMAS = {"all columns": None, "body and message id": "message_id string, body binary"}
# Queue, and how many tasks read it: as many as there are cores here, or one for each partition.
LARGE_READS = {
    "one partition, 2 tasks": ("many", 2),
    f"{PARTITION_COUNT} partitions, 2 tasks": ("parted", 2),
    f"{PARTITION_COUNT} partitions, {PARTITION_COUNT} tasks": ("parted", PARTITION_COUNT),
}
Costs = dict[tuple[str, str], list[tuple[float, float]]]  # columns, which read → seconds: wall, cpu


def show_reads(
    spark: SparkSession, server: ServerProcess, other: ServerProcess, count: int, repetitions: int
) -> None:
    sizes = {READ_QUEUE: count, "many": count * LARGER, "parted": count * LARGER}
    for queue, size in sizes.items():
        server.create_queue(
            queue, max_size_in_megabytes=5_120, enable_partitioning=queue == "parted"
        )
        fill(server, queue, size)
    costs: Costs = {}
    sdk: dict[str, list[tuple[float, float]]] = {}
    ways = {"few": (READ_QUEUE, 2), **LARGE_READS}
    for repetition in range(repetitions + 1):
        for columns, schema in SCHEMAS.items():
            for what, (queue, task_count) in ways.items():
                frame = read(spark, server, queue, schema, task_count)
                costs.setdefault((columns, what), []).append(cost(frame, sizes[queue]))
        for columns in READS:
            tools.wait_for_quiet()
            sdk.setdefault(columns, []).append(ask_sdk(columns, server, other, count))
        if repetition == 0:
            costs.clear()  # the first finds nothing warm
            sdk.clear()
    _show_against_sdk(costs, sdk, count, repetitions)
    _show_partitions(costs, count * LARGER)


def fill(server: ServerProcess, queue: str, count: int) -> None:
    bus = bus_for(server.connection_string)
    for first in range(0, count, BLOCK):
        bus.send(queue, list(messages(first, min(first + BLOCK, count))))


def messages(first: int, end: int) -> Iterator[bytes]:
    for number in range(first, end):
        properties = Properties(
            message_id=f"order-{number:012d}",
            subject="order",
            correlation_id=f"cart-{number // 3}",
            content_type="application/json",
        )
        yield encode_message(
            BODY, properties, {"tenant": "contoso", "number": number, "urgent": False}
        )


def read(
    spark: SparkSession, server: ServerProcess, queue: str, schema: str | None, task_count: int
) -> DataFrame:
    reader = spark.read.format("servicebus")
    if schema is not None:
        reader = reader.schema(schema)
    connection = reader.option("connectionString", server.connection_string)
    return connection.option("entityPath", queue).option("numTasks", task_count).load()


def cost(frame: DataFrame, expected: int) -> tuple[float, float]:
    """Seconds of reading everything and doing nothing with it: on the wall, of processors."""
    tools.wait_for_quiet()
    seen = Observation()
    observed = frame.observe(seen, functions.count(functions.lit(1)).alias("count"))
    with ClientClock() as clock:
        started = time.perf_counter()
        observed.write.format("noop").mode("overwrite").save()
        wall_s = time.perf_counter() - started
    assert seen.get["count"] == expected, seen.get
    print(f"{expected:,} read: {wall_s:.2f} s, {clock.seconds:.2f} s of processors", flush=True)
    return wall_s, clock.seconds


def _show_against_sdk(
    costs: Costs, sdk: dict[str, list[tuple[float, float]]], count: int, repetitions: int
) -> None:
    large = count * LARGER
    print(
        f"\nReading 1 KiB messages, {large:,} a run, {count:,} of the SDK; medians of {repetitions}"
        " and, of what a core does, the lowest and the highest.  A message, a job: µs of\n"
        f"processor time for one message more, ms for the job itself (from {count:,} and {large:,})"
    )
    print(
        "\n| columns | Spark, messages/s | a core | a message, µs | a job, ms |"
        " SDK, messages/s | a core | Spark / SDK, a core |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for columns in SCHEMAS:
        runs = costs[columns, next(iter(LARGE_READS))]
        rates = [(large / wall, large / cpu) for wall, cpu in runs]
        small_s = statistics.median(cpu for _, cpu in costs[columns, "few"])
        large_s = statistics.median(cpu for _, cpu in runs)
        message_s = (large_s - small_s) / (large - count)
        job_s = small_s - count * message_s
        ratio = _median(rates, 1) / _median(sdk[columns], 1)
        print(
            f"| {columns} | {_median(rates, 0):,.0f} | {_spread(rates)} | {message_s * 1e6:.1f} |"
            f" {job_s * 1e3:,.0f} | {_median(sdk[columns], 0):,.0f} | {_spread(sdk[columns])} |"
            f" {ratio:.1f} |"
        )
    print(f"\nThe SDK that looks into nothing: {_spread(sdk['nothing'])} a core\n", flush=True)


def _show_partitions(costs: Costs, size: int) -> None:
    print("| all columns | messages/s | a core |")
    print("|---|---:|---:|")
    for what in LARGE_READS:
        rates = [(size / wall, size / cpu) for wall, cpu in costs["all columns", what]]
        print(f"| {what} | {_median(rates, 0):,.0f} | {_spread(rates)} |")
    print(flush=True)


def _median(rates: list[tuple[float, float]], place: int) -> float:
    return statistics.median(each[place] for each in rates)


def _spread(rates: list[tuple[float, float]]) -> str:
    cores = [core for _, core in rates]
    return f"{statistics.median(cores):,.0f} ({min(cores):,.0f}–{max(cores):,.0f})"
