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
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from bench import tools
from bench.brokers import Twinbus
from bench.client_clock import ClientClock
from bench.paired_servers import QUEUE
from bench.pairing import backlog_queues, create_backlog, fill
from bench.pipeline_reads import PARTITION_COUNT, show_reads
from bench.pipeline_sdk import ask_sdk
from twinbus.amqp.message import data_section
from twinbus.pipeline.bus.pool import bus_for
from twinbus.pipeline.jobs.syphon import SyphonSettings, start_syphon
from twinbus.pipeline.running.session import open_session
from twinbus.testing.server import ServerProcess

BODY_SECTION = data_section(bytes(1_024))
SDK_SHARE = 10  # the SDK gets so much less to do: its rate does not depend on it
FLOOR_BATCHES = 9
FLOOR_SIZE = 1_000
# How many queues, and whether they have partitions.  The first line finds nothing warm.
ENTITIES = ((1, False), (1, False), (4, False), (16, False), (1, True))
Rates = dict[str, list[tuple[float, float]]]  # what → messages a second: wall, client's processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=60_000, help="messages a measurement")
    parser.add_argument("--repetitions", type=int, default=3, help="of each")
    parser.add_argument("--build", choices=("pure", "compiled"), default="compiled")
    parser.add_argument("--only", choices=("reads", "rest", "floor"), help="a part of it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="twinbus-pipeline-") as name:
        home = Path(name)
        spark = open_session("bench")
        for side in ("primary", "secondary"):
            (home / side).mkdir()
        primary, secondary = (
            Twinbus(home / side, options.build).server for side in ("primary", "secondary")
        )
        with primary, secondary:
            if options.only in (None, "reads"):
                show_reads(spark, primary, secondary, options.count, options.repetitions)
            if options.only in (None, "rest"):
                show_rates(measure(spark, primary, secondary, home, options), options)
            if options.only in (None, "floor"):
                show_floor(spark, primary, home)
        spark.stop()


# --- rates ----------------------------------------------------------------------------------------


def measure(
    spark: SparkSession,
    primary: ServerProcess,
    secondary: ServerProcess,
    home: Path,
    options: argparse.Namespace,
) -> Rates:
    rates: Rates = {}
    count = options.count
    create_backlog(primary, secondary)

    def take(what: str, prepare: Callable[[], None], work: Callable[[], None], size: int) -> None:
        prepare()
        tools.wait_for_quiet()
        with ClientClock() as clock:
            started = time.perf_counter()
            work()
            wall_s = time.perf_counter() - started
        cpu_s = clock.seconds
        rates.setdefault(what, []).append((size / wall_s, size / cpu_s))
        print(f"{what}: {size / wall_s:,.0f}/s, {size / cpu_s:,.0f}/s of a core", flush=True)

    for repetition in range(options.repetitions + 1):
        checkpoint = home / f"checkpoint-{repetition}"
        ways: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
            "write": (lambda: refill(primary, 0), lambda: write(spark, primary, count)),
            "move": (
                lambda: refill(primary, count),
                lambda: move(spark, primary, checkpoint),  # noqa: B023 - called in this turn
            ),
            "syphon": (
                lambda: refill_backlog(primary, secondary, count),
                lambda: syphon(spark, primary, secondary, home / f"syphon-{time.time_ns()}"),
            ),
        }
        for what, (prepare, work) in ways.items():
            take(what, prepare, work, count)
        if repetition == 0:
            rates.clear()  # the first finds nothing warm
        for what in ways:
            few = count // SDK_SHARE
            if what == "syphon":
                refill_backlog(primary, secondary, few)
            else:
                refill(primary, 0 if what == "write" else few)
            tools.wait_for_quiet()
            wall, cpu = ask_sdk(what, primary, secondary, few)
            rates.setdefault(f"SDK {what}", []).append((wall, cpu))
    return rates


def refill(server: ServerProcess, count: int) -> None:
    for queue in ("in", "out"):
        if any(entry.name == queue for entry in server.admin.list_queues()):
            server.admin.delete_queue(queue)
        server.create_queue(queue, max_size_in_megabytes=5_120)
    if count:
        bus_for(server.connection_string).send("in", [BODY_SECTION] * count)


def refill_backlog(primary: ServerProcess, secondary: ServerProcess, count: int) -> None:
    if any(entry.name == QUEUE for entry in primary.admin.list_queues()):
        primary.admin.delete_queue(QUEUE)
    primary.create_queue(QUEUE, max_size_in_megabytes=5_120)
    fill(secondary, count)


def write(spark: SparkSession, server: ServerProcess, count: int) -> None:
    frame = spark.range(0, count, 1, 2).selectExpr(
        "cast(id as string) as message_id", "cast(repeat('x', 1024) as binary) as body"
    )
    sink = frame.write.format("servicebus").mode("append").option("entityPath", "out")
    sink.option("connectionString", server.connection_string).save()


def move(spark: SparkSession, server: ServerProcess, checkpoint: Path) -> None:
    source = spark.readStream.format("servicebus").option("entityPath", "in")
    source = source.option("connectionString", server.connection_string)
    frame = source.option("settle", "delete").option("maxOffsetsPerTrigger", 50_000).load()
    sink = frame.writeStream.format("servicebus").option("entityPath", "out")
    sink = sink.option("connectionString", server.connection_string)
    sink = sink.option("checkpointLocation", f"{checkpoint}-{time.time_ns()}")
    sink.trigger(availableNow=True).start().awaitTermination()


def syphon(
    spark: SparkSession, primary: ServerProcess, secondary: ServerProcess, checkpoint: Path
) -> None:
    """What `twinbus pipeline syphon --once` does, in the session that is there."""
    source = {
        "primary": primary.connection_string,
        "secondary": secondary.connection_string,
        "queues": ",".join(backlog_queues()),
    }
    settings = SyphonSettings(source, str(checkpoint), is_once=True)
    start_syphon(spark, settings, lambda rows: None).awaitTermination()


def show_rates(rates: Rates, options: argparse.Namespace) -> None:
    print(
        f"\n1 KiB messages, {options.count:,} a run (SDK: {options.count // SDK_SHARE:,}), medians "
        f"of {options.repetitions}, twinbus {options.build}, Spark local[*]\n"
    )
    print("| what | Spark, messages/s | a core | SDK, messages/s | a core | Spark / SDK, a core |")
    print("|---|---:|---:|---:|---:|---:|")
    for what in [name for name in rates if not name.startswith("SDK")]:
        spark = [statistics.median(each) for each in zip(*rates[what], strict=True)]
        sdk = [statistics.median(each) for each in zip(*rates[f"SDK {what}"], strict=True)]
        cells = " | ".join(f"{each:,.0f}" for each in (*spark, *sdk))
        print(f"| {what} | {cells} | {spark[1] / sdk[1]:.1f} |")
    print(flush=True)


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
