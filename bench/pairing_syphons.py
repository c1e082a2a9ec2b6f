"""A syphon at work until a backlog is home, blocking and async: for parts of `bench.pairing`."""

import asyncio
import threading
from collections.abc import Callable

import azure.servicebus.aio
from azure.servicebus import ServiceBusClient

import twinbus.pairing
import twinbus.pairing.aio
from bench.paired_servers import options_of
from twinbus.pairing.events import Event, SyphonProgress
from twinbus.testing.server import ServerProcess


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
