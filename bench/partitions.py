"""What do partitions and broker processes cost, and what do they bring?

`python -m bench.partitions`: rates of a plain and of a partitioned queue, with the broker in the
server's own process and with one and two broker processes (over two stores); repetitions are
interleaved.  Then what a receiver of a partitioned queue waits for a message: one that is in its
link's cache already, and one that the partitions have to be asked for.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from bench import tools
from bench.brokers import Twinbus
from twinbus.client.connection import BusConnection
from twinbus.client.connection_string import ConnectionString
from twinbus.testing.server import ServerProcess

FORMS = (("in process", ()), ("1 broker process", ("--brokers", "1")), ("2", ("--brokers", "2")))
QUEUES = ("plain", "partitioned")
MODES = ("send", "recv", "both")
IDLE_S = 3.0
Found = dict[tuple[str, str], dict[str, list[float]]]


def server_of(directory: Path, build: str, title: str, arguments: tuple[str, ...]) -> ServerProcess:
    """One form.  A broker process of its own needs a second store, or it would not be one."""
    home = directory / title.replace(" ", "-")
    home.mkdir()
    server = Twinbus(home, build).server
    stores = ("--store", str(home / "a"), "--store", str(home / "b"))
    server.arguments = arguments + (stores if arguments else ())
    return server


def rate(server: ServerProcess, queue: str, mode: str, count: int) -> float:
    known = ConnectionString.parse(server.connection_string)
    who = ("-p", known.port, "-a", queue, "--sasl", "plain", "-u", known.key_name, "-P", known.key)
    shape = ("-b", 1_024, "-w", 1_000, "-c", 1_000)
    return float(tools.run("amqpbench", mode, "-n", count, *shape, *who)["msgs_per_s"])


async def waits(server: ServerProcess, queue: str, count: int) -> tuple[float, float]:
    """Medians in microseconds: of messages at hand, and of those that have to be asked for."""
    at_hand: list[float] = []
    asked_for: list[float] = []
    async with await BusConnection.open(server.connection_string) as connection:
        sender = await connection.open_sender(queue)
        receiver = await connection.open_receiver(queue, credit=0)
        for _ in range(count):
            await asyncio.gather(*(sender.send(b"x") for _ in range(16)))
            await asyncio.sleep(IDLE_S)  # by then a link's cache has been given back
            for place in range(16):
                started = time.perf_counter()
                receiver.set_credit(1)
                received = await receiver.receive(10)
                took = (time.perf_counter() - started) * 1e6
                assert received is not None
                (at_hand if place else asked_for).append(took)
                receiver.set_credit(0)
                await receiver.complete(received)
    return statistics.median(at_hand), statistics.median(asked_for)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--count", type=int, default=40_000)
    parser.add_argument("--build", choices=("pure", "compiled"), default="compiled")
    options = parser.parse_args()
    tools.prepare()
    with tempfile.TemporaryDirectory(prefix="twinbus-partitions-") as name:
        servers = [
            (title, server_of(Path(name), options.build, title, arguments))
            for title, arguments in FORMS
        ]
        for _, server in servers:
            server.start()
            server.create_queue("plain")
            server.create_queue("partitioned", enable_partitioning=True)
        try:
            found = measure(servers, options.repetitions, options.count)
            show(found, servers, options)
        finally:
            for _, server in servers:
                server.stop()


def measure(servers: list[tuple[str, ServerProcess]], repetitions: int, count: int) -> Found:
    found: Found = defaultdict(lambda: defaultdict(list))
    for repetition in range(repetitions + 1):  # the first pays for what later ones find warm
        for title, server in servers:
            for queue in QUEUES:
                for mode in MODES:
                    tools.wait_for_quiet()
                    value = rate(server, queue, mode, count)
                    if repetition:
                        found[title, queue][mode].append(value)
        print(f"{repetition}/{repetitions}", flush=True)
    return found


def show(
    found: Found, servers: list[tuple[str, ServerProcess]], options: argparse.Namespace
) -> None:
    print(
        f"twinbus, {options.build}, {options.count:,} messages of 1 KiB, n = {options.repetitions}"
    )
    print("| brokers | queue | send | receive + settle | both | at hand µs | asked for µs |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for title, server in servers:
        for queue in QUEUES:
            values = found[title, queue]
            rates = " | ".join(
                f"{statistics.median(values[mode]):,.0f} "
                f"({min(values[mode]):,.0f}–{max(values[mode]):,.0f})"
                for mode in MODES
            )
            hit, miss = asyncio.run(waits(server, queue, 15))
            print(f"| {title} | {queue} | {rates} | {hit:,.0f} | {miss:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
