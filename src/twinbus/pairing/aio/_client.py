"""Two async SDK clients as one: `pair_namespace` and the client it gives.

Everything is set up when `pair_namespace` returns, or what went wrong is raised and whatever was
opened is closed again (P-1).  The primary is not asked: a pair can be made while it is down.
"""

import asyncio
import random
import secrets
from contextlib import AsyncExitStack, nullcontext
from typing import Any, Self

from azure.core.async_paging import AsyncItemPaged
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

from twinbus.pairing.aio._audience import Audience, Reader
from twinbus.pairing.aio._background import Background
from twinbus.pairing.aio._refusals import CAN_RAISE
from twinbus.pairing.aio._reporting import Reporter
from twinbus.pairing.aio._sender import PairedSender
from twinbus.pairing.aio._setup import (
    find_backlog_queues,
    find_old_queues,
    open_backlog,
    open_secondary,
)
from twinbus.pairing.aio._steady import Closing, SteadySender, close_in_time
from twinbus.pairing.aio._syphon import RunningSyphon
from twinbus.pairing.blocking._posting import Post, posts_of, report_now, utc_now
from twinbus.pairing.client import CloseHookBase, PairedClientBase, check_not_faulted
from twinbus.pairing.coupling import Side
from twinbus.pairing.events import Callback
from twinbus.pairing.fitness import FoundQueues
from twinbus.pairing.options import SendAvailabilityPairedNamespaceOptions, check_kinds
from twinbus.pairing.primary import primary_of


async def pair_namespace(
    primary: ServiceBusClient | str, options: SendAvailabilityPairedNamespaceOptions
) -> "PairedServiceBusClient":
    """Pair the primary namespace (its client, or its connection string) with a secondary.

    Raises `ValueError` for a namespace that is paired with itself, and what the SDK raises if the
    secondary cannot be reached, refuses the credential or cannot make the backlog queues;
    `PairingError` if none of these can be used, with the reason for each.
    """
    check_kinds(primary, options, ServiceBusClient)
    async with AsyncExitStack() as opened:
        posts = posts_of(options, primary)
        if isinstance(primary, str):
            primary = ServiceBusClient.from_connection_string(primary)
            opened.push_async_callback(primary.close)
        manager, secondary = open_secondary(options, opened)
        check_not_faulted(primary, secondary)
        identity = primary_of(
            primary.fully_qualified_namespace,
            options.primary_name,
            secondary=secondary.fully_qualified_namespace,
        )
        found = await find_backlog_queues(manager, identity.name, options.backlog_queues_wanted)
        old_queues = await find_old_queues(manager, identity) if options.enable_syphon else []
        paired = PairedServiceBusClient(primary, secondary, options, found, old_queues, posts)
        await paired._start()  # noqa: SLF001 - there is no other way to make one
        opened.pop_all()
        if options.connection_string is not None:
            await close_in_time(manager.close)  # it has done its work
        return paired


class PairedServiceBusClient(
    PairedClientBase[PairedSender, ServiceBusReceiver, AsyncItemPaged[str]]
):
    """Senders that outlive the primary, and the primary's own receivers.

    Made by `pair_namespace`.  Closing it closes both SDK clients, also those that it was given.
    """

    _new_sender = PairedSender
    _new_link = SteadySender

    def __init__(
        self,
        primary: ServiceBusClient,
        secondary: ServiceBusClient,
        options: SendAvailabilityPairedNamespaceOptions,
        found: FoundQueues,
        old_queues: list[str],
        posts: list[Post],
    ) -> None:
        now = asyncio.get_running_loop().time
        chance = random.Random(secrets.randbits(128))  # noqa: S311 - seeded by the system
        super().__init__(
            primary, secondary, options, found, old_queues, nullcontext(), chance, now, utc_now
        )
        self._pairing.keys.can_ask = CAN_RAISE
        self._audience = Audience()
        self._closing: Closing = Closing()
        self._background: Background = Background(
            self._pairing, self._coupling, self._dispatch, self._ping_link, self._fault_partner
        )
        self._syphoning: RunningSyphon = RunningSyphon(
            self._syphon, primary, secondary, self._closing, self._dispatch
        )
        self._senders: set[PairedSender] = set()
        self._reporter = Reporter(posts, lambda: report_now(self.status()))
        self._ending: asyncio.Task[None] | None = None

    @classmethod
    async def from_connection_strings(
        cls, primary: str, secondary: str, **options: Any
    ) -> "PairedServiceBusClient":
        """`options` are those of `SendAvailabilityPairedNamespaceOptions`."""
        made = SendAvailabilityPairedNamespaceOptions.from_connection_string(secondary, **options)
        return await pair_namespace(primary, made)

    async def __aenter__(self) -> Self:
        self._check_live()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    # --- events and the end ------------------------------------------------------------------

    def on_event(self, callback: Callback) -> None:
        """Call it for each event from now on, in order; what an async one gives is awaited.

        First it is called for what setting up has found.  A plain one should return soon.  What it
        raises is logged.
        """
        self._audience.add(callback)

    def events(self) -> Reader:
        """Iterate with `async for` over what happens from now on; ends when the pair is closed.

        First comes what setting up has found.
        """
        return self._audience.read()

    async def fault(self, reason: str, client: str | None = None) -> None:
        """End the pair: sends raise `PairFaultedError` with this reason, both clients close.

        With a `client`, "primary" or "secondary", only this one is of no further use; its partner
        has five seconds to be closed before the pair ends (P-17).
        """
        if self._note_fault(reason, client):
            await self.close()

    async def close(self) -> None:
        """Close senders, syphon and both SDK clients.  To close twice does nothing."""
        self._audience.excuse(asyncio.current_task())
        # Shielded: a closer that is cancelled leaves nothing half closed.
        await asyncio.shield(self._begin_end())

    # --- inside ------------------------------------------------------------------------------

    async def _start(self) -> None:
        """Open what shows whether the secondary can be used, and start the tasks."""
        try:
            self._backlog_limit_bytes = await open_backlog(
                self._pairing, self._backlog_sender, self._closing
            )
            self._found(self._audience.remember)
            await self._syphoning.open([queue for queue in self._syphoned if queue in self._fit])
            self._syphoning.start(self._syphoned)
        except BaseException:
            await self._syphoning.stop()
            await self._closing.wait()
            raise
        self._background.start()
        self._reporter.start()
        self._hook(CloseHook)

    def _begin_end(self) -> asyncio.Task[None]:
        if self._ending is None:
            self._is_closed = True
            self._ending = asyncio.create_task(self._end(), name="end of a pair")
        return self._ending

    async def _end(self) -> None:
        self._unhook()
        await asyncio.gather(
            self._background.stop(),
            self._reporter.stop(),
            self._syphoning.stop(),
            self._close_senders(),
        )
        await self._closing.wait()
        clients = {Side.PRIMARY: self.primary, Side.SECONDARY: self.secondary}
        left = [client for side, client in clients.items() if side not in self._closed_sides]
        await asyncio.gather(*(close_in_time(client.close) for client in left))
        self._dispatch()
        await self._audience.close()

    def _dispatch(self) -> None:
        """Tell what has happened; called often, and mostly nothing has."""
        events = [*self._pairing.take_events(), *self._syphon.take_events()]
        if events:
            self._audience.tell(events)
            self._background.wake()
            self._reporter.wake()

    async def _client_closed(self, side: Side) -> None:
        if self._note_closed(side):
            await self.close()
            return
        senders = [self._close_senders()] if side is Side.PRIMARY else []
        await asyncio.gather(self._syphoning.stop(), *senders)

    def _fault_partner(self, side: Side) -> None:
        self._fault(self._partner_fault(side))
        self._begin_end()  # nobody waits here: it is the background that is called, and ended

    async def _close_senders(self) -> None:
        await asyncio.gather(*(sender.close() for sender in list(self._senders)))


class CloseHook(CloseHookBase):
    async def __call__(self) -> None:
        if self._is_on:
            await self._closing()
        await self.original()
