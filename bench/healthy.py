"""What does a pair cost while all is well?  The half of `bench.pairing` that compares senders.

The SDK's own senders and paired ones send to the same queue, from one process, by a connection
each.  They take turns in small blocks of calls, and who comes first changes at random: whatever
else the machine does, now or later, slows down both alike.  Then the medians over all blocks are
compared, and the difference of the two in each round tells how far they can be trusted.

There are several senders of each kind, which take turns as well: one connection is up to 3 %
quicker than the next, for as long as it lasts.  Why was not found.

Beside the time of the clock stands processor time, of the client and of the primary: it is what a
send costs, whoever else is there, and moves less.  Waiting, for the disk above all, is not in it.
"""

import argparse
import asyncio
import contextlib
import gc
import random
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import azure.servicebus.aio
from azure.servicebus import ServiceBusClient, ServiceBusMessage

import twinbus.pairing
import twinbus.pairing.aio
from bench import tools
from bench.paired_servers import BODY, LIST, QUEUE, empty, options_of
from twinbus.testing.server import ServerProcess

FORMS = {"one message": 1, f"list of {LIST}": LIST}
SENDERS = 4  # of each kind
WARM_UP_ROUNDS = 3 * SENDERS
FLAVOURS = ("blocking", "async")


class Cost(NamedTuple):
    """Of one call, mean of a block: microseconds."""

    wall_us: float
    client_us: float  # processor time
    server_us: float


Found = dict[tuple[str, str, str], list[Cost]]  # flavour, form, who → each block


class Reading(NamedTuple):
    """The clocks at the beginning of a block."""

    server: int
    client: int
    wall: int

    @classmethod
    def now(cls, server: ServerProcess) -> "Reading":
        return cls(processor_ns(server.pid), time.process_time_ns(), time.perf_counter_ns())

    def cost(self, server: ServerProcess, calls: int) -> Cost:
        wall, client = time.perf_counter_ns(), time.process_time_ns()
        ended = (wall - self.wall, client - self.client, processor_ns(server.pid) - self.server)
        return Cost(*(each / calls / 1_000 for each in ended))


def processor_ns(pid: int) -> int:
    """What all threads of a process have used, by the kernel's scheduler."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def healthy(
    primary: ServerProcess,
    secondary: ServerProcess,
    options: argparse.Namespace,
    queue: str = QUEUE,
) -> Found:
    found: Found = defaultdict(list)
    for flavour in FLAVOURS:
        tools.wait_for_quiet()
        if flavour == "blocking":
            send_blocking(primary, secondary, options, found, queue)
        else:
            asyncio.run(send_async(primary, secondary, options, found, queue))
        empty(primary, queue)
    return found


def block(form: str, calls: int) -> list[Any]:
    """What one block sends, made before the clock runs."""
    if FORMS[form] == 1:
        return [ServiceBusMessage(BODY) for _ in range(calls)]
    return [[ServiceBusMessage(BODY) for _ in range(LIST)] for _ in range(list_calls(calls))]


def list_calls(calls: int) -> int:
    return max(1, calls // 10)


def in_turn(form: str, options: argparse.Namespace) -> list[tuple[int, str]]:
    """The round and whose block it is, of all blocks of a form; bare and paired in each round."""
    chance = random.Random(form)  # the same order every time
    rounds = range(-WARM_UP_ROUNDS, options.repetitions)
    return [(number, who) for number in rounds for who in chance.sample(("bare", "paired"), k=2)]


def send_blocking(
    primary: ServerProcess,
    secondary: ServerProcess,
    options: argparse.Namespace,
    found: Found,
    queue: str,
) -> None:
    connect, text = ServiceBusClient.from_connection_string, primary.connection_string
    senders: dict[str, list[Any]] = defaultdict(list)
    with contextlib.ExitStack() as stack:
        for _ in range(SENDERS):
            bare = stack.enter_context(connect(text))
            paired = stack.enter_context(
                twinbus.pairing.pair_namespace(connect(text), options_of(secondary))
            )
            senders["bare"].append(stack.enter_context(bare.get_queue_sender(queue)))
            senders["paired"].append(stack.enter_context(paired.get_queue_sender(queue)))
        for form in FORMS:
            for number, who in in_turn(form, options):
                outgoing = block(form, options.calls)
                send_one = senders[who][number % SENDERS].send_messages
                gc.collect()  # or one pays for what the other has left
                began = Reading.now(primary)
                for each in outgoing:
                    send_one(each)
                cost = began.cost(primary, len(outgoing))
                if number >= 0:
                    found["blocking", form, who].append(cost)


async def send_async(
    primary: ServerProcess,
    secondary: ServerProcess,
    options: argparse.Namespace,
    found: Found,
    queue: str,
) -> None:
    connect = azure.servicebus.aio.ServiceBusClient.from_connection_string
    text = primary.connection_string
    senders: dict[str, list[Any]] = defaultdict(list)
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        for _ in range(SENDERS):
            bare = await enter(connect(text))
            pair = twinbus.pairing.aio.pair_namespace(connect(text), options_of(secondary))
            paired = await enter(await pair)
            senders["bare"].append(await enter(bare.get_queue_sender(queue)))
            senders["paired"].append(await enter(paired.get_queue_sender(queue)))
        for form in FORMS:
            for number, who in in_turn(form, options):
                outgoing = block(form, options.calls)
                send_one = senders[who][number % SENDERS].send_messages
                gc.collect()
                began = Reading.now(primary)
                for each in outgoing:
                    await send_one(each)
                cost = began.cost(primary, len(outgoing))
                if number >= 0:
                    found["async", form, who].append(cost)


def show_healthy(found: Found, options: argparse.Namespace, title: str = "Healthy path") -> None:
    print(
        f"{title}: 1 KiB messages, {options.repetitions} blocks of {options.calls} sends "
        f"each (lists: {list_calls(options.calls)}) in random turns, medians, µs a call, twinbus "
        f"{options.build}.  In brackets: paired / bare of half of the rounds, and the range in "
        "which the ratio of medians lies in 19 of 20 draws with replacement.\n"
    )
    print(
        "| SDK | a call sends | | bare | paired | paired / bare | half of the rounds | 19 of 20 |"
    )
    print("|---|---|---|---:|---:|---:|---|---|")
    kinds = {"time": 0, "client's processor": 1, "server's processor": 2}
    for flavour in FLAVOURS:
        for form in FORMS:
            for kind, index in kinds.items():
                bare, paired = (
                    [cost[index] for cost in found[flavour, form, who]]
                    for who in ("bare", "paired")
                )
                print(f"| {flavour} | {form} | {kind} | {compared(bare, paired)} |")
    print(flush=True)


def compared(bare: list[float], paired: list[float]) -> str:
    ratios = [b / a for a, b in zip(bare, paired, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    least, most = trusted(bare, paired)
    a, b = statistics.median(bare), statistics.median(paired)
    return (
        f"{a:,.0f} | {b:,.0f} | {b / a:.3f} | {low:.3f} to {high:.3f} | {least:.3f} to {most:.3f}"
    )


def trusted(bare: list[float], paired: list[float], draws: int = 1_000) -> tuple[float, float]:
    """Rounds drawn again with replacement: where the ratio of medians lies in 19 of 20 draws."""
    chance = random.Random(0)  # the same answer for the same figures
    rounds = list(zip(bare, paired, strict=True))
    ratios = []
    for _ in range(draws):
        drawn = chance.choices(rounds, k=len(rounds))
        a, b = (statistics.median(each) for each in zip(*drawn, strict=True))
        ratios.append(b / a)
    cuts = statistics.quantiles(ratios, n=40)
    return cuts[0], cuts[-1]
