"""Writing and moving, in `bench.pipeline`: Spark next to the SDK, at two sizes.

Plain messages are 1 KiB and a message id; ordinary ones have four properties and three application
properties.  Moving is from queue to queue, all at once, and what was read is deleted at the end.
Spark moves whatever a message has.  The SDK takes over the bodies alone of plain messages, and all
that a sender may have said of ordinary ones; it does not keep a message from arriving twice.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from bench import tools
from bench.pipeline_costs import LARGER, Costs, show_costs, timed
from bench.pipeline_reads import fill
from bench.pipeline_sdk import ask_sdk
from twinbus.message.plain import data_section
from twinbus.pipeline.bus.pool import bus_for
from twinbus.testing.server import ServerProcess

SDK_COUNT = 6_000  # its rate does not depend on it
PLAIN = "cast(id as string) as message_id, cast(repeat('x', 1024) as binary) as body"
ORDINARY = (
    "concat('order-', lpad(cast(id as string), 12, '0')) as message_id, 'order' as subject,"
    " concat('cart-', cast(id div 3 as string)) as correlation_id,"
    " 'application/json' as content_type,"
    " map('tenant', 'contoso', 'number', cast(id as string), 'urgent', 'false')"
    " as application_properties, cast(repeat('x', 1024) as binary) as body"
)
WRITES = {"write": PLAIN, "write, ordinary": ORDINARY}
MOVES = {"move": False, "move, ordinary": True}


@dataclass
class Work:
    """What is measured, and what has to be there before; both are told how many messages."""

    prepare: Callable[[int], None]
    do: Callable[[int], None]


def show_writes(
    spark: SparkSession, server: ServerProcess, other: ServerProcess, count: int, repetitions: int
) -> None:
    works = {
        what: Work(lambda _: renew(server), partial(write, spark, server, columns))
        for what, columns in WRITES.items()
    }
    show("Writing", works, server, other, count, repetitions)


def show_moves(
    spark: SparkSession,
    server: ServerProcess,
    other: ServerProcess,
    home: Path,
    count: int,
    repetitions: int,
) -> None:
    works = {
        what: Work(partial(refill, server, is_ordinary), partial(move, spark, server, home))
        for what, is_ordinary in MOVES.items()
    }
    show("Moving", works, server, other, count, repetitions)


def show(
    doing: str,
    works: dict[str, Work],
    server: ServerProcess,
    other: ServerProcess,
    count: int,
    repetitions: int,
) -> None:
    lines = {what: Costs() for what in works}
    for repetition in range(repetitions + 1):
        for what, work in works.items():
            costs = lines[what]
            for size, runs in ((count, costs.few), (count * LARGER, costs.many)):
                work.prepare(size)
                runs.append(timed(f"{what}, {size:,}", partial(work.do, size)))
            work.prepare(SDK_COUNT)
            tools.wait_for_quiet()
            costs.sdk.append(ask_sdk(what, server, other, SDK_COUNT))
        if repetition == 0:
            for costs in lines.values():
                costs.clear()
    show_costs(doing, "what", lines, count)


def renew(server: ServerProcess) -> None:
    """Empty queues."""
    for queue in ("in", "out"):
        if any(entry.name == queue for entry in server.admin.list_queues()):
            server.admin.delete_queue(queue)
        server.create_queue(queue, max_size_in_megabytes=5_120)


def refill(server: ServerProcess, is_ordinary: bool, count: int) -> None:
    renew(server)
    if is_ordinary:
        fill(server, "in", count)
    else:
        bus_for(server.connection_string).send("in", [data_section(bytes(1_024))] * count)


def write(spark: SparkSession, server: ServerProcess, columns: str, count: int) -> None:
    frame = spark.sql(f"select {columns} from range(0, {count}, 1, 2)")
    sink = frame.write.format("servicebus").mode("append").option("entityPath", "out")
    sink.option("connectionString", server.connection_string).save()


def move(spark: SparkSession, server: ServerProcess, home: Path, count: int) -> None:
    source = spark.readStream.format("servicebus").option("entityPath", "in")
    source = source.option("connectionString", server.connection_string)
    frame = source.option("settle", "delete").load()
    sink = frame.writeStream.format("servicebus").option("entityPath", "out")
    sink = sink.option("connectionString", server.connection_string)
    sink = sink.option("checkpointLocation", str(home / f"move-{time.time_ns()}"))
    query = sink.trigger(availableNow=True).start()
    query.awaitTermination()
    moved = sum(each["numInputRows"] for each in query.recentProgress)
    assert moved == count, moved
