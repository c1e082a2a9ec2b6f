"""Two blocking SDK clients as one: `pair_namespace` and the client it gives.

Everything is set up when `pair_namespace` returns, or what went wrong is raised and whatever was
opened is closed again (P-1).  The primary is not asked: a pair can be made while it is down.
"""

import random
import secrets
import threading
from contextlib import ExitStack
from typing import Any, Self
from weakref import WeakSet

from azure.core.paging import ItemPaged
from azure.servicebus import ServiceBusClient, ServiceBusReceiver

from twinbus.clock import monotonic_s
from twinbus.pairing.blocking._audience import Audience, Reader
from twinbus.pairing.blocking._background import Background
from twinbus.pairing.blocking._posting import Post, posts_of, report_now, utc_now
from twinbus.pairing.blocking._refusals import CAN_RAISE
from twinbus.pairing.blocking._reporting import Reporter
from twinbus.pairing.blocking._sender import PairedSender
from twinbus.pairing.blocking._setup import (
    find_backlog_queues,
    find_old_queues,
    open_backlog,
    open_secondary,
)
from twinbus.pairing.blocking._steady import Closing, SteadySender
from twinbus.pairing.blocking._syphon import BlockingSyphon
from twinbus.pairing.client import SETUP_S_MAX, CloseHookBase, PairedClientBase, check_not_faulted
from twinbus.pairing.coupling import Side
from twinbus.pairing.events import Callback
from twinbus.pairing.fitness import FoundQueues
from twinbus.pairing.options import SendAvailabilityPairedNamespaceOptions, check_kinds
from twinbus.pairing.primary import primary_of


def pair_namespace(
    primary: ServiceBusClient | str, options: SendAvailabilityPairedNamespaceOptions
) -> "PairedServiceBusClient":
    """Pair the primary namespace (its client, or its connection string) with a secondary.

    Raises `ValueError` for a namespace that is paired with itself, and what the SDK raises if the
    secondary cannot be reached, refuses the credential or cannot make the backlog queues;
    `PairingError` if none of these can be used, with the reason for each.
    """
    check_kinds(primary, options, ServiceBusClient)
    with ExitStack() as opened:
        posts = posts_of(options, primary)
        if isinstance(primary, str):
            primary = ServiceBusClient.from_connection_string(primary)
            opened.callback(primary.close)
        manager, secondary = open_secondary(options, opened)
        check_not_faulted(primary, secondary)
        identity = primary_of(
            primary.fully_qualified_namespace,
            options.primary_name,
            secondary=secondary.fully_qualified_namespace,
        )
        found = find_backlog_queues(manager, identity.name, options.backlog_queues_wanted)
        old_queues = find_old_queues(manager, identity) if options.enable_syphon else []
        paired = PairedServiceBusClient(primary, secondary, options, found, old_queues, posts)
        paired._start()  # noqa: SLF001 - there is no other way to make one
        opened.pop_all()
        if options.connection_string is not None:
            manager.close()  # it has done its work
        return paired


class PairedServiceBusClient(PairedClientBase[PairedSender, ServiceBusReceiver, ItemPaged[str]]):
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
        lock = threading.Lock()
        chance = random.Random(secrets.randbits(128))  # noqa: S311 - seeded by the system
        super().__init__(
            primary, secondary, options, found, old_queues, lock, chance, monotonic_s, utc_now
        )
        self._pairing.keys.can_ask = CAN_RAISE
        self._audience = Audience()
        self._closing: Closing = Closing()
        self._background: Background = Background(
            self._pairing,
            self._coupling,
            lock,
            self._dispatch,
            self._ping_link,
            self._fault_partner,
        )
        self._syphoning: BlockingSyphon = BlockingSyphon(
            self._syphon, self._syphoned, primary, secondary, lock, self._dispatch, self._closing
        )
        self._senders: WeakSet[PairedSender] = WeakSet()
        self._reporter = Reporter(posts, lambda: report_now(self.status()))

    @classmethod
    def from_connection_strings(
        cls, primary: str, secondary: str, **options: Any
    ) -> "PairedServiceBusClient":
        """`options` are those of `SendAvailabilityPairedNamespaceOptions`."""
        made = SendAvailabilityPairedNamespaceOptions.from_connection_string(secondary, **options)
        return pair_namespace(primary, made)

    def __enter__(self) -> Self:
        self._check_live()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # --- events and the end ------------------------------------------------------------------

    def on_event(self, callback: Callback) -> None:
        """Call it for each event from now on, in order, on one of the pair's or caller's threads.

        First it is called for what setting up has found.  It should return soon.  What it raises is
        logged.
        """
        self._audience.add(callback)

    def events(self) -> Reader:
        """Iterate over what happens from now on; ends when the pair is closed.

        First comes what setting up has found.
        """
        return self._audience.read()

    def fault(self, reason: str, client: str | None = None) -> None:
        """End the pair: sends raise `PairFaultedError` with this reason, both clients close.

        With a `client`, "primary" or "secondary", only this one is of no further use; its partner
        has five seconds to be closed before the pair ends (P-17).
        """
        if self._note_fault(reason, client):
            self.close()

    def close(self) -> None:
        """Close senders, syphon and both SDK clients.  To close twice does nothing."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._stop()
        for client in (self.primary, self.secondary):
            self._closing.begin(client.close)
        self._closing.wait()
        self._dispatch()
        self._audience.close()

    # --- inside ------------------------------------------------------------------------------

    def _start(self) -> None:
        """Open what shows whether the secondary can be used, and start the threads."""
        try:
            self._backlog_limit_bytes = open_backlog(
                self._pairing, self._backlog_sender, self._closing
            )
            self._found(self._audience.remember)
            self._syphoning.start(SETUP_S_MAX, self._fit)
        except BaseException:
            self._stop()
            raise
        self._background.start()
        self._reporter.start()
        self._hook(CloseHook)

    def _stop(self) -> None:
        """End everything of ours; the SDK's clients stay as they are."""
        self._unhook()
        self._close_senders()
        self._reporter.close()
        self._background.close()
        self._syphoning.close()
        self._closing.wait()

    def _dispatch(self) -> None:
        """Tell what has happened; called after every step, and mostly nothing has."""
        if not (self._pairing.has_events or self._syphon.has_events):
            return
        with self._lock:
            self._audience.gather(self._pairing.take_events())
            self._audience.gather(self._syphon.take_events())
        self._background.wake()
        self._reporter.wake()
        self._audience.tell()

    def _client_closed(self, side: Side) -> None:
        if self._note_closed(side):
            self.close()
            return
        self._syphoning.close()
        if side is Side.PRIMARY:
            self._close_senders()

    def _close_senders(self) -> None:
        with self._lock:
            senders = list(self._senders)
        for sender in senders:
            sender.begin_close()

    def _fault_partner(self, side: Side) -> None:
        self.fault(self._partner_fault(side))


class CloseHook(CloseHookBase):
    def __call__(self) -> None:
        if self._is_on:
            self._closing()
        self.original()
