"""Setting up a pair: clients of the secondary, and its backlog queues (P-1, P-4, P-5).

Nothing here outlives the setting up, except the client that was asked for.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from azure.core.pipeline.transport import AioHttpTransport
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from twinbus.pairing.aio._running import run
from twinbus.pairing.aio._steady import Closing, SteadySender
from twinbus.pairing.backlog_queues import REQUEST_S_MAX, find_old, find_or_create
from twinbus.pairing.client import SETUP_S_MAX
from twinbus.pairing.core import Pairing
from twinbus.pairing.fitness import FoundQueues, open_one
from twinbus.pairing.options import SendAvailabilityPairedNamespaceOptions, clients_of, without_tls
from twinbus.pairing.primary import Primary
from twinbus.pairing.steps import CreateQueue, ListQueues, OpenBacklog, Pause, Step


class PlainTransport(AioHttpTransport):  # type: ignore[misc]  # found at run time only
    async def send(self, request: Any, **options: Any) -> Any:
        return await super().send(without_tls(request), **options)


def open_secondary(
    options: SendAvailabilityPairedNamespaceOptions, opened: AsyncExitStack
) -> tuple[ServiceBusAdministrationClient, ServiceBusClient]:
    """The options' own clients, or new ones, which are put on the stack."""
    kinds = (ServiceBusAdministrationClient, ServiceBusClient)
    hint = "clients of azure.servicebus.aio; for blocking ones there is twinbus.pairing"
    return clients_of(options, kinds, hint, PlainTransport, opened.push_async_callback)


async def find_backlog_queues(
    manager: ServiceBusAdministrationClient, primary_name: str, count: int
) -> FoundQueues:
    """All of them are there then, and at least one can serve."""
    return await run(find_or_create(primary_name, count), partial(_perform, manager))


async def find_old_queues(manager: ServiceBusAdministrationClient, primary: Primary) -> list[str]:
    """Those of older versions, which the syphon empties as well."""
    return await run(find_old(primary), partial(_perform, manager))


async def _perform(manager: ServiceBusAdministrationClient, step: Step) -> Any:
    match step:
        case ListQueues():
            async with asyncio.timeout(REQUEST_S_MAX):
                return [queue async for queue in manager.list_queues()]
        case CreateQueue(queue, settings):
            async with asyncio.timeout(REQUEST_S_MAX):
                return await manager.create_queue(queue, **settings)
        case Pause(seconds):
            return await asyncio.sleep(seconds)
        case _:
            raise AssertionError(f"no step of setting up: {step}")


async def open_backlog(
    pairing: Pairing, get_sender: Callable[[str], ServiceBusSender], closing: Closing
) -> int:
    """Shows that some backlog queue can be sent to; the largest batch that it takes."""

    async def perform(step: Step) -> int:
        assert isinstance(step, OpenBacklog), f"no step of setting up: {step}"
        link = SteadySender(lambda: get_sender(step.queue), closing)
        try:
            await link.open(step.timeout_s)
            return link.batch_bytes
        finally:
            closing.begin(link.close())

    return await run(open_one(pairing, SETUP_S_MAX), perform)
