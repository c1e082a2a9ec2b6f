"""A pair of either flavour behind one interface, so that a test is written once.

    async with open_pair("sync", bus, failover_interval=0) as pair:
        sender = pair.sender("orders")
        await sender.send_messages(ServiceBusMessage("hello"))

Tests speak the async language; calls of the blocking flavour run in threads.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import azure.servicebus
import azure.servicebus.aio

from tests.crash.pairing_bus import Bus
from tests.interop.sdk import Threaded
from twinbus.pairing import pair_namespace
from twinbus.pairing.aio import pair_namespace as pair_namespace_async
from twinbus.pairing.events import EntityStatus, Event, PairingStatus, State

FLAVOURS = ("sync", "async")


class Pair:
    """A paired client and what it has told."""

    def __init__(self, flavour: str, client: Any) -> None:
        self.flavour = flavour
        self.client = client
        self.events: list[Event] = []
        client.on_event(self.events.append)

    def sender(self, queue: str) -> Any:
        return self._of_flavour(self.client.get_queue_sender(queue))

    def topic_sender(self, topic: str) -> Any:
        return self._of_flavour(self.client.get_topic_sender(topic))

    def status(self) -> PairingStatus:
        status: PairingStatus = self.client.status()
        return status

    def entity(self, name: str) -> EntityStatus:
        return self.status().entities[name]

    def state(self, name: str) -> State:
        return self.entity(name).state

    def events_of(self, kind: type[Any], entity: str = "") -> list[Any]:
        """Of one kind; those about one entity only, if one is named."""
        found = [event for event in self.events if isinstance(event, kind)]
        return [event for event in found if not entity or event.entity == entity]

    async def force_failover(self, entity: str | None = None) -> None:
        await self._call(self.client.force_failover, entity)

    async def force_failback(self, entity: str | None = None) -> None:
        await self._call(self.client.force_failback, entity)

    async def close(self) -> None:
        await self._call(self.client.close)

    async def _call(self, method: Any, *arguments: Any) -> None:
        if self.flavour == "sync":
            await asyncio.to_thread(method, *arguments)
        elif inspect.isawaitable(outcome := method(*arguments)):
            await outcome

    def _of_flavour(self, sender: Any) -> Any:
        return Threaded(sender) if self.flavour == "sync" else sender


@asynccontextmanager
async def open_pair(
    flavour: str,
    bus: Bus,
    *,
    primary: str = "",
    retries: Mapping[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Pair]:
    """The primary is that behind the bad network unless another one is given.

    `retries` are the SDK's settings of them, for the clients of both namespaces.
    """
    chosen = dict(retries or {})
    given = bus.options(client_options=chosen, **options)
    module = azure.servicebus if flavour == "sync" else azure.servicebus.aio
    make = module.ServiceBusClient.from_connection_string
    target: Any = make(primary or bus.through, **chosen)
    if flavour == "sync":
        client: Any = await asyncio.to_thread(pair_namespace, target, given)
    else:
        client = await pair_namespace_async(target, given)
    pair = Pair(flavour, client)
    try:
        yield pair
    finally:
        await pair.close()


@asynccontextmanager
async def open_pairs(bus: Bus, **options: Any) -> AsyncIterator[list[Pair]]:
    """One of each flavour, for tests in which both live through the same outage."""
    opening = [open_pair(flavour, bus, **options) for flavour in FLAVOURS]
    pairs = await asyncio.gather(*(each.__aenter__() for each in opening))
    try:
        yield pairs
    finally:
        await asyncio.gather(*(each.__aexit__(None, None, None) for each in opening))
