"""What does a pair cost while all is well, and how fast does a backlog come home?

`python -m bench.pairing`: two servers, one client process, the official SDK with 1 KiB messages.

Healthy path (healthy.py): the SDK's own sender against a paired one, to the same queue, one message
a call and lists of 100, blocking and async.

Syphon: a full backlog in ten queues, brought home by the syphon, against the same work done by hand
with the bare SDK: receive up to 100, send them as one list, complete each.  Without prefetch,
like the syphon: in a trial the SDK was slower with it, which would have flattered the syphon.

Partitions (pairing_partitions.py): both once more with a partitioned queue and messages without a
key; the senders also with a partition that is down.
"""

import argparse
import asyncio
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import azure.servicebus.aio
from azure.servicebus import ServiceBusClient, ServiceBusMessage

import twinbus.pairing
import twinbus.pairing.aio
from bench import tools
from bench.brokers import Twinbus
from bench.healthy import healthy, show_healthy
from bench.paired_servers import (
    BACKLOG_QUEUES,
    BODY,
    LIST,
    NAME,
    QUEUE,
    create_queue,
    empty,
    options_of,
)
from bench.pairing_partitions import show_partitions
from bench.pairing_syphons import by_syphon, by_syphon_async
from twinbus.testing.server import ServerProcess

WAIT_S = 5
PARTS = ("healthy", "syphon", "partitions")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=300, help="blocks of each kind")
    parser.add_argument(
        "--calls", type=int, default=50, help="sends in a block, ten times those of lists"
    )
    parser.add_argument("--count", type=int, default=20_000, help="messages in the backlog")
    parser.add_argument("--drains", type=int, default=3, help="of each kind")
    parser.add_argument("--only", choices=PARTS, help="one part (default: all)")
    parser.add_argument("--build", choices=("pure", "compiled"), default="compiled")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="twinbus-pairing-") as name:
        homes = [Path(name) / side for side in ("primary", "secondary")]
        servers = []
        for home in homes:
            home.mkdir()
            servers.append(Twinbus(home, options.build).server)
        with servers[0] as primary, servers[1] as secondary:
            create_queue(primary)
            if options.only in (None, "healthy"):
                show_healthy(healthy(primary, secondary, options), options)
            if options.only in (None, "syphon"):
                create_backlog(primary, secondary)
                show_drains(drains(primary, secondary, options), options)
            if options.only in (None, "partitions"):
                show_partitions(primary, secondary, options)


# --- bringing a backlog home ----------------------------------------------------------------------


def drains(
    primary: ServerProcess, secondary: ServerProcess, options: argparse.Namespace
) -> dict[tuple[str, str], list[float]]:
    """Messages a second, for each flavour, by hand and by syphon."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    ways: dict[tuple[str, str], Callable[[], None]] = {
        ("blocking", "by hand"): lambda: by_hand(primary, secondary, options.count),
        ("blocking", "syphon"): lambda: by_syphon(primary, secondary, options.count),
        ("async", "by hand"): lambda: asyncio.run(by_hand_async(primary, secondary, options.count)),
        ("async", "syphon"): lambda: asyncio.run(
            by_syphon_async(primary, secondary, options.count)
        ),
    }
    for _ in range(options.drains):
        for what, drain in ways.items():
            fill(secondary, options.count)
            tools.wait_for_quiet()
            started = time.perf_counter()
            drain()
            found[what].append(options.count / (time.perf_counter() - started))
            arrived = int(primary.admin.get_queue(QUEUE).properties["MessageCount"])
            assert arrived == options.count, f"{what}: {arrived} of {options.count} arrived"
            empty(primary)
    return found


def backlog_queues() -> list[str]:
    return [f"{NAME}/x-servicebus-transfer/{index}" for index in range(BACKLOG_QUEUES)]


def create_backlog(primary: ServerProcess, secondary: ServerProcess) -> None:
    """As a pair that is made does."""
    client = ServiceBusClient.from_connection_string(primary.connection_string)
    twinbus.pairing.pair_namespace(client, options_of(secondary)).close()


def fill(secondary: ServerProcess, count: int) -> None:
    """As many in each queue, with nothing to restore but the way home."""
    share = count // BACKLOG_QUEUES
    with ServiceBusClient.from_connection_string(secondary.connection_string) as client:
        for queue in backlog_queues():
            with client.get_queue_sender(queue) as sender:
                for start in range(0, share, LIST):
                    messages = [
                        ServiceBusMessage(BODY, application_properties={"x-ms-path": QUEUE})
                        for _ in range(min(LIST, share - start))
                    ]
                    sender.send_messages(messages)


def restored(message: Any) -> ServiceBusMessage:
    return ServiceBusMessage(b"".join(message.body), message_id=message.message_id)


def by_hand(primary: ServerProcess, secondary: ServerProcess, count: int) -> None:
    """A thread for each queue, as the syphon has."""
    receiving = ServiceBusClient.from_connection_string(secondary.connection_string)
    sending = ServiceBusClient.from_connection_string(primary.connection_string)

    def move(queue: str) -> None:
        left = count // BACKLOG_QUEUES
        with (
            receiving.get_queue_receiver(queue) as receiver,
            sending.get_queue_sender(QUEUE) as sender,
        ):
            while left:
                messages = receiver.receive_messages(LIST, max_wait_time=WAIT_S)
                sender.send_messages([restored(message) for message in messages])
                for message in messages:
                    receiver.complete_message(message)
                left -= len(messages)

    with receiving, sending:
        threads = [threading.Thread(target=move, args=(queue,)) for queue in backlog_queues()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


async def by_hand_async(primary: ServerProcess, secondary: ServerProcess, count: int) -> None:
    client = azure.servicebus.aio.ServiceBusClient
    receiving = client.from_connection_string(secondary.connection_string)
    sending = client.from_connection_string(primary.connection_string)

    async def move(queue: str) -> None:
        left = count // BACKLOG_QUEUES
        async with (
            receiving.get_queue_receiver(queue) as receiver,
            sending.get_queue_sender(QUEUE) as sender,
        ):
            while left:
                messages = await receiver.receive_messages(LIST, max_wait_time=WAIT_S)
                await sender.send_messages([restored(message) for message in messages])
                for message in messages:
                    await receiver.complete_message(message)
                left -= len(messages)

    async with receiving, sending:
        moving: list[Awaitable[None]] = [move(queue) for queue in backlog_queues()]
        await asyncio.gather(*moving)


def show_drains(found: dict[tuple[str, str], list[float]], options: argparse.Namespace) -> None:
    print(
        f"Syphon: {options.count:,} messages of 1 KiB in {BACKLOG_QUEUES} backlog queues, medians "
        f"of {options.drains} interleaved runs (least to most), connecting included\n"
    )
    print("| SDK | by hand, messages/s | syphon, messages/s | share |")
    print("|---|---:|---:|---:|")
    for flavour in ("blocking", "async"):
        hand, syphon = found[flavour, "by hand"], found[flavour, "syphon"]
        cells = " | ".join(
            f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"
            for rates in (hand, syphon)
        )
        share = statistics.median(syphon) / statistics.median(hand)
        print(f"| {flavour} | {cells} | {share:.0%} |", flush=True)


if __name__ == "__main__":
    main()
