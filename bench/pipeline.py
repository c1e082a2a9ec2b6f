"""How fast is Spark on twinbus, and how does it compare with the official SDK doing the same?

`python -m bench.pipeline`: one server, 1 KiB messages, one Spark session in this process, and the
blocking SDK in a process of its own.  Reading, writing, moving from queue to queue, and bringing a
backlog home.  Besides messages a second, messages a second of processor time on the client's side
(this process, the JVM and its Python workers; or the SDK's process): the share of a core that a
message costs whoever runs the work, whatever the server needs.

Then the floor: what a micro-batch of one message takes, and how that grows with queues.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from pyspark.sql import DataFrame, SparkSession

from bench import tools
from bench.brokers import Twinbus
from bench.pairing import BACKLOG_QUEUES, QUEUE, backlog_queues, create_backlog, fill
from twinbus.amqp.message import data_section
from twinbus.pipeline.bus.pool import bus_for
from twinbus.pipeline.jobs.syphon import SyphonSettings, start_syphon
from twinbus.pipeline.running.session import open_session
from twinbus.testing.server import ServerProcess

BODY_SECTION = data_section(bytes(1_024))
SDK_SHARE = 10  # the SDK gets so much less to do: its rate does not depend on it
FLOOR_BATCHES = 15
ENTITIES = (1, 4, 16)
Rates = dict[str, list[tuple[float, float]]]  # what → messages a second: wall, client's processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="messages a measurement")
    parser.add_argument("--repetitions", type=int, default=3, help="of each")
    parser.add_argument("--build", choices=("pure", "compiled"), default="compiled")
    parser.add_argument("--sdk", nargs=4, help=argparse.SUPPRESS)  # this is the SDK's process
    options = parser.parse_args()
    if options.sdk:
        run_sdk(*options.sdk)
        return
    with tempfile.TemporaryDirectory(prefix="twinbus-pipeline-") as name:
        home = Path(name)
        spark = open_session("bench")
        for side in ("primary", "secondary"):
            (home / side).mkdir()
        primary, secondary = (
            Twinbus(home / side, options.build).server for side in ("primary", "secondary")
        )
        with primary, secondary:
            show_rates(measure(spark, primary, secondary, home, options), options)
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
            "read": (
                lambda: refill(primary, count),
                lambda: discard(read(spark, primary, "in")),
            ),
            "read body and id": (
                lambda: None,
                lambda: discard(read(spark, primary, "in", "message_id string, body binary")),
            ),
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
        for what in ("read", "write", "move", "syphon"):
            few = count // SDK_SHARE
            if what == "syphon":
                refill_backlog(primary, secondary, few)
            else:
                refill(primary, 0 if what == "write" else few)
            tools.wait_for_quiet()
            wall, cpu = ask_sdk(what, primary, secondary, few)
            rates.setdefault(f"SDK {what}", []).append((wall, cpu))
    return rates


class ClientClock:
    """Processor time of this process and everything below it but the servers.

    Spark's workers come and go and take their times with them, so they are looked at all the time.
    """

    def __init__(self) -> None:
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._first = ticks_of_clients()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    @property
    def seconds(self) -> float:
        ticks = sum(last - self._first.get(pid, 0) for pid, last in self._last.items())
        return ticks / os.sysconf("SC_CLK_TCK")

    def _watch(self) -> None:
        while not self._is_over.wait(0.1):
            self._last |= ticks_of_clients()
        self._last |= ticks_of_clients()


def ticks_of_clients() -> dict[int, int]:
    children: dict[int, list[tuple[int, int]]] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            own = int(fields[11]) + int(fields[12])
            children.setdefault(int(fields[1]), []).append((int(entry.name), own))
            if int(entry.name) == os.getpid():
                ticks[os.getpid()] = own
    waiting = [os.getpid()]
    while waiting:
        for child, own in children.get(waiting.pop(), []):
            if "serve" not in command_of(child):
                ticks[child] = own
                waiting.append(child)
    return ticks


def command_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


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


def read(
    spark: SparkSession, server: ServerProcess, queue: str, schema: str | None = None
) -> DataFrame:
    reader = spark.read.format("servicebus")
    if schema is not None:
        reader = reader.schema(schema)
    connection = reader.option("connectionString", server.connection_string)
    return connection.option("entityPath", queue).option("numTasks", 2).load()


def discard(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


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


# --- the SDK, in a process of its own -------------------------------------------------------------


def ask_sdk(
    what: str, primary: ServerProcess, secondary: ServerProcess, count: int
) -> tuple[float, float]:
    command = [sys.executable, "-m", "bench.pipeline", "--sdk", what, str(count)]
    command += [primary.connection_string, secondary.connection_string]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rates = json.loads(done.stdout)
    return rates["wall"], rates["cpu"]


def run_sdk(what: str, count_text: str, primary: str, secondary: str) -> None:
    from azure.servicebus import ServiceBusClient, ServiceBusMessage  # noqa: PLC0415

    count = int(count_text)
    with (
        ServiceBusClient.from_connection_string(primary) as client,
        ServiceBusClient.from_connection_string(secondary) as other,
    ):
        started, busy = time.perf_counter(), time.process_time()
        if what == "read":
            with client.get_queue_receiver("in") as receiver:
                number = 1
                while seen := receiver.peek_messages(250, sequence_number=number):
                    number = (seen[-1].sequence_number or 0) + 1
        elif what == "write":
            with client.get_queue_sender("out") as sender:
                for _ in range(count // 100):
                    sender.send_messages([ServiceBusMessage(bytes(1_024)) for _ in range(100)])
        else:
            queues = ["in"] if what == "move" else backlog_queues()
            share = count if what == "move" else count // BACKLOG_QUEUES
            target = "out" if what == "move" else QUEUE
            source = client if what == "move" else other
            with client.get_queue_sender(target) as sender:
                for queue in queues:
                    carry(source, queue, sender, share)
        wall_s, cpu_s = time.perf_counter() - started, time.process_time() - busy
    print(json.dumps({"wall": count / wall_s, "cpu": count / cpu_s}))


def carry(source: Any, queue: str, sender: Any, count: int) -> None:
    from azure.servicebus import ServiceBusMessage  # noqa: PLC0415

    with source.get_queue_receiver(queue) as receiver:
        while count:
            messages = receiver.receive_messages(100, max_wait_time=5)
            sender.send_messages([ServiceBusMessage(b"".join(each.body)) for each in messages])
            for each in messages:
                receiver.complete_message(each)
            count -= len(messages)


def show_rates(rates: Rates, options: argparse.Namespace) -> None:
    print(
        f"\n1 KiB messages, {options.count:,} a run (SDK: {options.count // SDK_SHARE:,}), medians "
        f"of {options.repetitions}, twinbus {options.build}, Spark local[*]\n"
    )
    print("| what | Spark, messages/s | a core | SDK, messages/s | a core | Spark / SDK, a core |")
    print("|---|---:|---:|---:|---:|---:|")
    for what in [name for name in rates if not name.startswith("SDK")]:
        spark = [statistics.median(each) for each in zip(*rates[what], strict=True)]
        sdk_rates = rates[f"SDK {what.split()[0]}"]
        sdk = [statistics.median(each) for each in zip(*sdk_rates, strict=True)]
        cells = " | ".join(f"{each:,.0f}" for each in (*spark, *sdk))
        print(f"| {what} | {cells} | {spark[1] / sdk[1]:.1f} |")
    print(flush=True)


# --- the floor ------------------------------------------------------------------------------------


def show_floor(spark: SparkSession, server: ServerProcess, home: Path) -> None:
    print(f"A micro-batch, source → noop, medians of {FLOOR_BATCHES}, milliseconds\n")
    print("| queues | one message each | 1,000 each |")
    print("|---:|---:|---:|")
    bus = bus_for(server.connection_string)
    for number in ENTITIES:
        queues = [f"floor-{number}-{index}" for index in range(number)]
        for queue in queues:
            server.create_queue(queue)
        source = spark.readStream.format("servicebus").option("entityPaths", ",".join(queues))
        frame = source.option("connectionString", server.connection_string).load()
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", str(home / f"floor-{number}"))
            .trigger(processingTime="0 seconds")
            .start()
        )
        cells = []
        for size in (1, 1_000):
            took = []
            for _ in range(FLOOR_BATCHES):
                for queue in queues:
                    bus.send(queue, [BODY_SECTION] * size)
                query.processAllAvailable()
                took += [
                    each["durationMs"]["triggerExecution"]
                    for each in query.recentProgress
                    if each["numInputRows"] >= size
                ][-1:]
            cells.append(f"{statistics.median(took):,.0f}")
        query.stop()
        print(f"| {number} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
