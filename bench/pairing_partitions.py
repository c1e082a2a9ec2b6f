"""What do partitions cost a pair?  The part of `bench.pairing` with messages without a key.

Senders: as healthy.py, with a partitioned queue; then once more with one of its partitions down.
The SDK's sender has each message put where there is room.  A paired one chooses a partition for
each call itself, and evades the one that is down (src/twinbus/pairing/spread.py).

Syphon: a backlog for a plain and one for a partitioned queue, made by a pair that has failed over,
one message a call.  So neighbours belong to different partitions, and the syphon has to sort them.
"""

import argparse
import asyncio
import statistics
import time
from collections import defaultdict

from azure.servicebus import ServiceBusClient, ServiceBusMessage

import twinbus.pairing
from bench import tools
from bench.healthy import FLAVOURS, healthy, show_healthy
from bench.paired_servers import BACKLOG_QUEUES, BODY, QUEUE, WIDE, create_queue, empty, options_of
from bench.pairing_syphons import by_syphon, by_syphon_async
from twinbus.client.faults import FaultClient
from twinbus.testing.server import ServerProcess

DOWN = 5
QUEUES = {"plain": QUEUE, "partitioned": WIDE}
Rates = dict[tuple[str, str], list[float]]  # flavour, kind of queue → messages a second, each run


def show_partitions(
    primary: ServerProcess, secondary: ServerProcess, options: argparse.Namespace
) -> None:
    create_queue(primary, WIDE)
    found = healthy(primary, secondary, options, WIDE)
    show_healthy(found, options, "Partitioned queue, messages without a key")
    faults = FaultClient(primary.connection_string)
    faults.add({"kind": "partition-down", "entity": WIDE, "partition": [DOWN]})
    found = healthy(primary, secondary, options, WIDE)
    show_healthy(found, options, "Partitioned queue, one of 16 partitions down")
    faults.clear_all()
    show_syphons(syphons(primary, secondary, options), options)


def syphons(primary: ServerProcess, secondary: ServerProcess, options: argparse.Namespace) -> Rates:
    found: Rates = defaultdict(list)
    for _ in range(options.drains):
        for flavour in FLAVOURS:
            for kind, queue in QUEUES.items():
                fill_by_pair(primary, secondary, queue, options.count)
                tools.wait_for_quiet()
                started = time.perf_counter()
                if flavour == "blocking":
                    by_syphon(primary, secondary, options.count)
                else:
                    asyncio.run(by_syphon_async(primary, secondary, options.count))
                found[flavour, kind].append(options.count / (time.perf_counter() - started))
                arrived = int(primary.admin.get_queue(queue).properties["MessageCount"])
                assert arrived == options.count, f"{kind}: {arrived} of {options.count} arrived"
                empty(primary, queue)
    return found


def fill_by_pair(primary: ServerProcess, secondary: ServerProcess, queue: str, count: int) -> None:
    """With all that a pair writes on its messages, the chosen partition included."""
    client = ServiceBusClient.from_connection_string(primary.connection_string)
    options = options_of(secondary, ping_primary_interval=1_800)
    with (
        twinbus.pairing.pair_namespace(client, options) as pair,
        pair.get_queue_sender(queue) as sender,
    ):
        pair.force_failover(queue)
        for _ in range(count):
            sender.send_messages(ServiceBusMessage(BODY))
        assert pair.status().entities[queue].sent_to_backlog == count


def show_syphons(found: Rates, options: argparse.Namespace) -> None:
    print(
        f"Syphon: {options.count:,} messages of 1 KiB in {BACKLOG_QUEUES} backlog queues, medians "
        f"of {options.drains} interleaved runs (least to most), connecting included\n"
    )
    print("| SDK | to a plain queue, messages/s | to a partitioned one | share |")
    print("|---|---:|---:|---:|")
    for flavour in FLAVOURS:
        plain, wide = found[flavour, "plain"], found[flavour, "partitioned"]
        cells = " | ".join(
            f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"
            for rates in (plain, wide)
        )
        share = statistics.median(wide) / statistics.median(plain)
        print(f"| {flavour} | {cells} | {share:.0%} |", flush=True)
