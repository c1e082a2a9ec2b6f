"""How fast is Spark on twinbus, and how does it compare with the official SDK doing the same?

`python -m bench.pipeline`: one server, 1 KiB messages, one Spark session in this process, and the
blocking SDK in a process of its own.  Reading, writing, moving from queue to queue, and bringing a
backlog home.  Besides messages a second, messages a second of processor time on the client's side
(this process, the JVM and its Python workers; or the SDK's process): the share of a core that a
message costs whoever runs the work, whatever the server needs.

Then the floor: what a micro-batch of one message takes, and how that grows with queues, and with
the partitions of one queue.
"""

import argparse
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from bench import tools
from bench.brokers import Twinbus
from bench.paired_servers import NAME, QUEUE
from bench.pairing import backlog_queues, create_backlog, fill
from bench.pipeline_costs import Pair, median, rates_of, spread, timed
from bench.pipeline_reads import PARTITION_COUNT, show_reads
from bench.pipeline_sdk import ask_sdk
from bench.pipeline_writes import show_moves, show_writes
from twinbus.message.plain import data_section
from twinbus.pipeline.bus.pool import bus_for
from twinbus.pipeline.jobs.syphon import SyphonSettings, start_syphon
from twinbus.pipeline.running.session import open_session
from twinbus.testing.server import ServerProcess

BODY_SECTION = data_section(bytes(1_024))
SDK_SHARE = 10
FLOOR_BATCHES = 9
FLOOR_SIZE = 1_000
# How many queues, and whether they have partitions.  The first line finds nothing warm.
ENTITIES = ((1, False), (1, False), (4, False), (16, False), (1, True))
PARTS = ("reads", "writes", "moves", "syphon", "floor")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=40_000, help="messages of a small run")
    parser.add_argument("--repetitions", type=int, default=3, help="of each")
    parser.add_argument("--build", choices=("pure", "compiled"), default="compiled")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, help="parts of it")
    options = parser.parse_args()
    parts, count, repetitions = options.only, options.count, options.repetitions
    with tempfile.TemporaryDirectory(prefix="twinbus-pipeline-") as name:
        home = Path(name)
        spark = open_session("bench")
        for side in ("primary", "secondary"):
            (home / side).mkdir()
        primary, secondary = (
            Twinbus(home / side, options.build).server for side in ("primary", "secondary")
        )
        with primary, secondary:
            if "reads" in parts:
                show_reads(spark, primary, secondary, count, repetitions)
            if "writes" in parts:
                show_writes(spark, primary, secondary, count, repetitions)
            if "moves" in parts:
                show_moves(spark, primary, secondary, home, count, repetitions)
            if "syphon" in parts:
                show_syphon(spark, primary, secondary, home, count, repetitions)
            if "floor" in parts:
                show_floor(spark, primary, home)
        spark.stop()


# --- the syphon -----------------------------------------------------------------------------------


def show_syphon(
    spark: SparkSession,
    primary: ServerProcess,
    secondary: ServerProcess,
    home: Path,
    count: int,
    repetitions: int,
) -> None:
    """Ten backlog queues come home; the SDK gets a tenth, its rate does not depend on it."""
    create_backlog(primary, secondary)
    rates: list[Pair] = []
    sdk: list[Pair] = []
    for _ in range(repetitions + 1):
        refill_backlog(primary, secondary, count)
        checkpoint = home / f"syphon-{time.time_ns()}"
        run = timed("syphon", partial(syphon, spark, primary, secondary, checkpoint))
        rates += rates_of([run], count)
        refill_backlog(primary, secondary, count // SDK_SHARE)
        tools.wait_for_quiet()
        sdk.append(ask_sdk("syphon", primary, secondary, count // SDK_SHARE))
    del rates[0], sdk[0]  # they found nothing warm
    print(f"\nThe syphon, {count:,} messages of 1 KiB a run, medians of {repetitions}\n")
    print("| Spark, messages/s | a core | SDK, messages/s | a core | Spark / SDK, a core |")
    print("|---:|---:|---:|---:|---:|")
    print(
        f"| {median(rates, 0):,.0f} | {spread(rates)} | {median(sdk, 0):,.0f} | {spread(sdk)} |"
        f" {median(rates, 1) / median(sdk, 1):.1f} |\n",
        flush=True,
    )


def refill_backlog(primary: ServerProcess, secondary: ServerProcess, count: int) -> None:
    if any(entry.name == QUEUE for entry in primary.admin.list_queues()):
        primary.admin.delete_queue(QUEUE)
    primary.create_queue(QUEUE, max_size_in_megabytes=5_120)
    fill(secondary, count)


def syphon(
    spark: SparkSession, primary: ServerProcess, secondary: ServerProcess, checkpoint: Path
) -> None:
    """What `twinbus pipeline syphon --once` does, in the session that is there."""
    source = {
        "primary": primary.connection_string,
        "secondary": secondary.connection_string,
        "queues": ",".join(backlog_queues()),
        "primaryName": NAME,
    }
    settings = SyphonSettings(source, str(checkpoint), is_once=True)
    start_syphon(spark, settings, lambda rows: None).awaitTermination()


# --- the floor ------------------------------------------------------------------------------------


def show_floor(spark: SparkSession, server: ServerProcess, home: Path) -> None:
    print("A micro-batch, source → noop, medians in milliseconds (of so many)\n")
    print(f"| queues | one message each | {FLOOR_SIZE:,} each |")
    print("|---|---:|---:|")
    bus = bus_for(server.connection_string)
    for line, (number, is_partitioned) in enumerate(ENTITIES):
        name = f"floor-{line}"
        queues = [f"{name}-{index}" for index in range(number)]
        for queue in queues:
            server.create_queue(queue, enable_partitioning=is_partitioned)
        source = spark.readStream.format("servicebus").option("entityPaths", ",".join(queues))
        frame = source.option("connectionString", server.connection_string).load()
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", str(home / name))
            .trigger(processingTime="1 second")  # time to send: all of it is one batch
            .start()
        )
        # What is sent at once to a partitioned queue goes to one partition.
        shares = PARTITION_COUNT if is_partitioned else 1
        cells = []
        for size in (1, FLOOR_SIZE):
            share = max(1, size // shares)
            took: dict[int, int] = {}
            for _ in range(FLOOR_BATCHES):
                for queue in queues * shares:
                    bus.send(queue, [BODY_SECTION] * share)
                query.processAllAvailable()
                took |= {
                    each["batchId"]: each["durationMs"]["triggerExecution"]
                    for each in query.recentProgress
                    if each["numInputRows"] == number * shares * share
                }
            middle = statistics.median(took.values()) if took else float("nan")
            cells.append(f"{middle:,.0f} ({len(took)})")
        query.stop()
        title = f"{number}, {PARTITION_COUNT} partitions" if is_partitioned else str(number)
        title += "" if line else ", cold"
        print(f"| {title} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
