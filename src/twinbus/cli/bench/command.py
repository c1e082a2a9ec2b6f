"""`twinbus bench`: a quick measurement of a bus, or of one that is started for it.

Makes a queue of its own and deletes it in the end, also when it is interrupted; touches nothing
else.
"""

import argparse
import asyncio
import os
import re
import secrets
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from twinbus.cli.arguments import (
    CONNECTION_STRING,
    Commands,
    add_connection_string,
    add_json,
    add_option,
    positive_count,
    span_ms,
)
from twinbus.cli.bench.run import Bench, BenchSettings, Measured
from twinbus.cli.connecting import open_connection
from twinbus.cli.exit_codes import Nonsense
from twinbus.cli.printing import print_json, print_table
from twinbus.cli.progress import Progress
from twinbus.client.admin import AdminClient
from twinbus.client.connection import BusConnection
from twinbus.client.connection_string import ConnectionString
from twinbus.clock import SystemClock
from twinbus.errors import ConfigError, TwinbusError
from twinbus.launch import ServerProcess

_SIZE: Final = re.compile(r"(\d{1,9})(|k|m)", re.ASCII | re.IGNORECASE)
_UNITS: Final = {"": 1, "k": 1_024, "m": 1_048_576}
_PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
CONNECTIONS_MAX: Final = 100


def add_arguments(commands: Commands) -> None:
    parser = commands.add_parser(
        "bench",
        description="Measure sending, receiving with completing, and the round trip of one message "
        "at a time.  Without a connection string, start a temporary bus on this machine's disk.",
    )
    add_connection_string(parser)
    parser.add_argument(
        "--temporary",
        action="store_true",
        help=f"start a temporary bus, even if ${CONNECTION_STRING} is set",
    )
    add_option(
        parser,
        "--data DIR",
        "keep the temporary bus's data in a new directory below this one, to measure its disk",
        Path,
    )
    add_option(parser, "--queue NAME", "an empty queue to use (default: a temporary one)")
    add_option(parser, "--duration TIME", "how long to send (5s)", span_ms, 5_000)
    add_option(parser, "--size N", "size of a body: bytes, 4k, 1m (1k)", _size, 1_024)
    add_option(parser, "--connections N", "connections to use (2)", positive_count, 2)
    add_option(
        parser, "--in-flight N", "messages in flight on each connection (100)", positive_count, 100
    )
    add_json(parser)
    parser.set_defaults(run=run)


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"'{text[:64]}' is not a size; write 200, 4k or 1m")
    return int(match[1]) * _UNITS[match[2].lower()]


def run(options: argparse.Namespace) -> int:
    if options.connections > CONNECTIONS_MAX:
        raise Nonsense(f"{options.connections} connections; use {CONNECTIONS_MAX} at most")
    with _bus(options) as text, _queue(options, text) as queue:
        settings = BenchSettings(
            queue, options.size, options.duration / 1_000, options.connections, options.in_flight
        )
        parts = asyncio.run(_measure(text, settings))
    place = "a bus of its own" if _is_temporary(options) else ConnectionString.parse(text).authority
    if options.json:
        print_json(_document(place, settings, parts))
    else:
        _print(place, settings, parts)
    return 0


def _is_temporary(options: argparse.Namespace) -> bool:
    given = options.connection_string or os.environ.get(CONNECTION_STRING)
    return options.temporary or options.data is not None or not given


@contextmanager
def _bus(options: argparse.Namespace) -> Iterator[str]:
    """The connection string of the bus to measure."""
    if not _is_temporary(options):
        yield options.connection_string or os.environ[CONNECTION_STRING]
        return
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="twinbus-bench-", dir=options.data)
            )
        except OSError as error:
            raise ConfigError(
                f"cannot write in {options.data} ({error.strerror}); "
                "set --data to an existing, writable directory"
            ) from None
        server = ServerProcess(Path(folder) / "data")
        yield stack.enter_context(server).connection_string


@contextmanager
def _queue(options: argparse.Namespace, text: str) -> Iterator[str]:
    admin = AdminClient(text)
    name: str | None = options.queue
    if name is not None:
        found = admin.get_queue(name).properties
        if found.get("ActiveMessageCount", "0") != "0":
            raise ConfigError(f"queue {name[:64]} has messages; set --queue to an empty one")
        yield name
        return
    name = f"twinbus-bench-{secrets.token_hex(4)}"
    admin.create_queue(name)
    try:
        yield name
    except BaseException:
        with suppress(TwinbusError):  # what went wrong first is what is told
            admin.delete_queue(name)
        raise
    admin.delete_queue(name)


async def _measure(text: str, settings: BenchSettings) -> dict[str, Measured]:
    progress, clock = Progress(sys.stderr), SystemClock()

    def show(part: str, count: int, seconds: float) -> None:
        now_ms = clock.now().mono_ms
        if progress.is_due(now_ms):
            rate = count / seconds if seconds else 0.0
            progress.show(f"{part}: {count:,} messages, {rate:,.0f}/s", now_ms)

    async with AsyncExitStack() as stack:
        connections: list[BusConnection] = [
            await stack.enter_async_context(await open_connection(text))
            for _ in range(settings.connections)
        ]
        bench = Bench(settings, connections, show)
        send = await bench.send()
        receive = await bench.receive(send.messages)
        round_trip = await bench.round_trip()
    progress.finish()
    return {"send": send, "receive": receive, "round trip": round_trip}


def _document(place: str, settings: BenchSettings, parts: dict[str, Measured]) -> dict[str, object]:
    return {
        "bus": place,
        **{name: value for name, value in vars(settings).items() if name != "queue"},
        **{
            part.replace(" ", "_"): {
                "messages": each.messages,
                "seconds": round(each.seconds, 3),
                "messages_per_s": round(each.rate, 1),
                "latency_ms": {
                    name: round(each.percentile(share), 3) for name, share in _PERCENTILES.items()
                },
            }
            for part, each in parts.items()
        },
    }


def _print(place: str, settings: BenchSettings, parts: dict[str, Measured]) -> None:
    print(
        f"{place}: bodies of {settings.size_bytes:,} bytes, {settings.connections} connections, "
        f"{settings.in_flight} messages in flight on each"
    )
    head = [
        "PART",
        "MESSAGES",
        "A SECOND",
        "MB/S",
        *(f"{name.upper()} MS" for name in _PERCENTILES),
    ]
    rows = [
        [
            part,
            f"{each.messages:,}",
            f"{each.rate:,.0f}",
            f"{each.rate * settings.size_bytes / 1e6:,.1f}",
            *(f"{each.percentile(share):,.2f}" for share in _PERCENTILES.values()),
        ]
        for part, each in parts.items()
    ]
    print_table(head, rows, 1)
