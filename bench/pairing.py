"""What does a pair cost while all is well, and how fast does a backlog come home?

`python -m bench.pairing`: two servers, one client process, the official SDK with 1 KiB messages.

Healthy path: the SDK's own sender against a paired one, to the same queue, one message a call and
lists of 100, blocking and async.  Both take turns, in blocks of calls, so that a machine that slows
down slows down both alike; the ratio is that of their medians.

Syphon: a full backlog in ten queues, brought home by the syphon, against the same work done by hand
with the bare SDK: receive up to 100, send them as one list, complete each.  Without prefetch,
like the syphon: in a trial the SDK was slower with it, which would have flattered the syphon.
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
from twinbus.certificates import ca_certificate
from twinbus.pairing import SendAvailabilityPairedNamespaceOptions
from twinbus.pairing.events import Event, SyphonProgress
from twinbus.testing.server import ServerProcess

BODY = bytes(1_024)
QUEUE = "bench"
NAME = "bench"  # of the primary, in the names of the backlog queues
BACKLOG_QUEUES = 10
LIST = 100
FORMS = {"one message": 1, f"list of {LIST}": LIST}
WAIT_S = 5
Found = dict[tuple[str, str, str], list[float]]  # flavour, form, who → seconds a block


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=15, help="blocks of each kind")
    parser.add_argument("--calls", type=int, default=200, help="sends in a block")
    parser.add_argument("--count", type=int, default=20_000, help="messages in the backlog")
    parser.add_argument("--drains", type=int, default=3, help="of each kind")
    parser.add_argument("--only", choices=("healthy", "syphon"), help="one half (default: both)")
    parser.add_argument("--build", choices=("pure", "compiled"), default="compiled")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="twinbus-pairing-") as name:
        homes = [Path(name) / side for side in ("primary", "secondary")]
        servers = []
        for home in homes:
            home.mkdir()
            servers.append(Twinbus(home, options.build).server)
        with servers[0] as primary, servers[1] as secondary:
            primary.create_queue(QUEUE, max_size_in_megabytes=5_120)
            if options.only != "syphon":
                show_healthy(healthy(primary, secondary, options), options)
            if options.only != "healthy":
                create_backlog(primary, secondary)
                show_drains(drains(primary, secondary, options), options)


def options_of(secondary: ServerProcess, **more: Any) -> SendAvailabilityPairedNamespaceOptions:
    return SendAvailabilityPairedNamespaceOptions.from_connection_string(
        secondary.connection_string,
        BACKLOG_QUEUES,
        manager_options={"connection_verify": str(ca_certificate(secondary.data_dir))},
        primary_name=NAME,
        **more,
    )


def empty(server: ServerProcess) -> None:
    server.admin.delete_queue(QUEUE)
    server.create_queue(QUEUE, max_size_in_megabytes=5_120)


# --- healthy path ---------------------------------------------------------------------------------


def healthy(primary: ServerProcess, secondary: ServerProcess, options: argparse.Namespace) -> Found:
    found: Found = defaultdict(list)
    tools.wait_for_quiet()
    send_blocking(primary, secondary, options, found)
    empty(primary)
    tools.wait_for_quiet()
    asyncio.run(send_async(primary, secondary, options, found))
    empty(primary)
    return found


def block(form: str, calls: int) -> list[Any]:
    """What one block sends, made before the clock runs."""
    if FORMS[form] == 1:
        return [ServiceBusMessage(BODY) for _ in range(calls)]
    return [[ServiceBusMessage(BODY) for _ in range(LIST)] for _ in range(max(1, calls // 10))]


def send_blocking(
    primary: ServerProcess, secondary: ServerProcess, options: argparse.Namespace, found: Found
) -> None:
    bare = ServiceBusClient.from_connection_string(primary.connection_string)
    paired = twinbus.pairing.pair_namespace(
        ServiceBusClient.from_connection_string(primary.connection_string), options_of(secondary)
    )
    with bare, paired, bare.get_queue_sender(QUEUE) as a, paired.get_queue_sender(QUEUE) as b:
        for repetition in range(options.repetitions + 1):  # the first finds nothing warm
            for form in FORMS:
                for who, sender in in_turn(repetition, ("bare", a), ("paired", b)):
                    outgoing = block(form, options.calls)
                    started = time.perf_counter()
                    for each in outgoing:
                        sender.send_messages(each)
                    took = (time.perf_counter() - started) / len(outgoing)
                    if repetition:
                        found["blocking", form, who].append(took)


async def send_async(
    primary: ServerProcess, secondary: ServerProcess, options: argparse.Namespace, found: Found
) -> None:
    client = azure.servicebus.aio.ServiceBusClient
    bare = client.from_connection_string(primary.connection_string)
    paired = await twinbus.pairing.aio.pair_namespace(
        client.from_connection_string(primary.connection_string), options_of(secondary)
    )
    async with (
        bare,
        paired,
        bare.get_queue_sender(QUEUE) as a,
        paired.get_queue_sender(QUEUE) as b,
    ):
        for repetition in range(options.repetitions + 1):
            for form in FORMS:
                for who, sender in in_turn(repetition, ("bare", a), ("paired", b)):
                    outgoing = block(form, options.calls)
                    started = time.perf_counter()
                    for each in outgoing:
                        await sender.send_messages(each)
                    took = (time.perf_counter() - started) / len(outgoing)
                    if repetition:
                        found["async", form, who].append(took)


def in_turn(repetition: int, *senders: tuple[str, Any]) -> list[tuple[str, Any]]:
    """Who goes first changes every time: the second finds the server's garbage of the first."""
    return list(senders if repetition % 2 else reversed(senders))


def show_healthy(found: Found, options: argparse.Namespace) -> None:
    print(
        f"Healthy path: 1 KiB messages, medians of {options.repetitions} interleaved blocks of "
        f"{options.calls} sends (lists: {max(1, options.calls // 10)}), twinbus {options.build}\n"
    )
    print("| SDK | a call sends | bare, µs a call | paired, µs a call | paired / bare |")
    print("|---|---|---:|---:|---:|")
    for flavour in ("blocking", "async"):
        for form in FORMS:
            bare, paired = (
                statistics.median(found[flavour, form, who]) for who in ("bare", "paired")
            )
            cells = f"{bare * 1e6:,.0f} | {paired * 1e6:,.0f} | {paired / bare:.3f}"
            print(f"| {flavour} | {form} | {cells} |")
    print(flush=True)


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


class Moved:
    """Counts what the events of a pair say is home."""

    def __init__(self, count: int, done: Callable[[], None]) -> None:
        self._left = count
        self._done = done

    def __call__(self, event: Event) -> None:
        if isinstance(event, SyphonProgress):
            self._left -= event.moved
            if self._left <= 0:
                self._done()


def by_syphon(primary: ServerProcess, secondary: ServerProcess, count: int) -> None:
    done = threading.Event()
    client = ServiceBusClient.from_connection_string(primary.connection_string)
    with twinbus.pairing.pair_namespace(client, options_of(secondary, enable_syphon=True)) as pair:
        pair.on_event(Moved(count, done.set))
        done.wait()


async def by_syphon_async(primary: ServerProcess, secondary: ServerProcess, count: int) -> None:
    done = asyncio.Event()
    client = azure.servicebus.aio.ServiceBusClient.from_connection_string(primary.connection_string)
    pair = await twinbus.pairing.aio.pair_namespace(
        client, options_of(secondary, enable_syphon=True)
    )
    async with pair:
        pair.on_event(Moved(count, done.set))
        await done.wait()


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
