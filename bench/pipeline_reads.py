"""Reading, in `bench.pipeline`: Spark next to the SDK, at two sizes, and of one or 16 partitions.

The messages are ordinary ones: 1 KiB, four properties, three application properties.
"""

from collections.abc import Iterator

from pyspark.sql import DataFrame, Observation, SparkSession, functions

from bench import tools
from bench.pipeline_costs import LARGER, Costs, Pair, median, rates_of, show_costs, spread, timed
from bench.pipeline_sdk import READ_QUEUE, READS, ask_sdk
from twinbus.message.plain import Properties, data_section, encode_message
from twinbus.pipeline.bus.pool import bus_for
from twinbus.testing.server import ServerProcess

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


def show_reads(
    spark: SparkSession, server: ServerProcess, other: ServerProcess, count: int, repetitions: int
) -> None:
    sizes = {READ_QUEUE: count, "many": count * LARGER, "parted": count * LARGER}
    for queue, size in sizes.items():
        server.create_queue(
            queue, max_size_in_megabytes=5_120, enable_partitioning=queue == "parted"
        )
        fill(server, queue, size)
    first = next(iter(LARGE_READS))
    costs = {columns: Costs() for columns in SCHEMAS}
    others: dict[str, list[Pair]] = {what: [] for what in LARGE_READS if what != first}
    nothing: list[Pair] = []
    for repetition in range(repetitions + 1):
        for columns, schema in SCHEMAS.items():
            few = read(spark, server, READ_QUEUE, 2, schema)
            costs[columns].few.append(cost(few, count))
            many = read(spark, server, *LARGE_READS[first], schema)
            costs[columns].many.append(cost(many, count * LARGER))
        for what, runs in others.items():
            runs.append(cost(read(spark, server, *LARGE_READS[what], None), count * LARGER))
        for columns in READS:
            tools.wait_for_quiet()
            runs = costs[columns].sdk if columns in costs else nothing
            runs.append(ask_sdk(columns, server, other, count))
        if repetition == 0:
            for each in costs.values():
                each.clear()  # the first finds nothing warm
            for runs in (*others.values(), nothing):
                runs.clear()
    show_costs("Reading", "columns", costs, count)
    print(f"The SDK that looks into nothing: {spread(nothing)} a core\n")
    _show_partitions({first: costs["all columns"].many} | others, count * LARGER)


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
    spark: SparkSession, server: ServerProcess, queue: str, task_count: int, schema: str | None
) -> DataFrame:
    reader = spark.read.format("servicebus")
    if schema is not None:
        reader = reader.schema(schema)
    connection = reader.option("connectionString", server.connection_string)
    return connection.option("entityPath", queue).option("numTasks", task_count).load()


def cost(frame: DataFrame, expected: int) -> Pair:
    """Seconds of reading everything and doing nothing with it."""
    seen = Observation()
    observed = frame.observe(seen, functions.count(functions.lit(1)).alias("count"))
    writer = observed.write.format("noop").mode("overwrite")
    found = timed(f"{expected:,} read", writer.save)
    assert seen.get["count"] == expected, seen.get
    return found


def _show_partitions(runs: dict[str, list[Pair]], size: int) -> None:
    print("| all columns | messages/s | a core |")
    print("|---|---:|---:|")
    for what, each in runs.items():
        rates = rates_of(each, size)
        print(f"| {what} | {median(rates, 0):,.0f} | {spread(rates)} |")
    print(flush=True)
