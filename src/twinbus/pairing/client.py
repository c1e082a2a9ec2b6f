"""What the paired clients of both shells share: everything that does not wait.

The pairing is changed only while its lock is held.  The async shell has one loop and no threads:
its lock does nothing.
"""

import datetime as dt
import random
from collections.abc import Callable, MutableSet
from contextlib import AbstractContextManager
from typing import Any, Final, Generic, TypeVar

from twinbus.pairing.core import Pairing, PairSettings
from twinbus.pairing.coupling import Coupling, Side
from twinbus.pairing.events import Event, PairingStatus
from twinbus.pairing.fitness import FoundQueues
from twinbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from twinbus.pairing.sender import Shared
from twinbus.pairing.syphon import Syphon

SETUP_S_MAX: Final = 60.0  # for links to the secondary to open
OPEN_S_MAX: Final = 60.0  # a link that takes longer is not coming any more
# Closing says good-bye to the peer, which may be gone without a word.
CLOSE_S_MAX: Final = 5.0

Sender = TypeVar("Sender")
Receiver = TypeVar("Receiver")
Sessions = TypeVar("Sessions")


class PairedClientBase(Generic[Sender, Receiver, Sessions]):
    """The SDK clients are blocking or async ones; here nobody calls what would tell."""

    # Of the shell's own kinds.
    _new_sender: Callable[..., Sender]
    _new_link: Callable[..., Any]  # its SteadySender
    _senders: MutableSet[Sender]
    _closing: Any
    _background: Any
    _syphoning: Any

    def __init__(
        self,
        primary: Any,
        secondary: Any,
        options: SendAvailabilityPairedNamespaceOptions,
        found: FoundQueues,
        lock: AbstractContextManager[Any],
        chance: random.Random,
        now: Callable[[], float],
        utc_now: Callable[[], dt.datetime],
    ) -> None:
        self.primary = primary
        self.secondary = secondary
        self.options = options
        self.fully_qualified_namespace: str = primary.fully_qualified_namespace
        settings = PairSettings.of(
            options, self.fully_qualified_namespace, secondary.fully_qualified_namespace
        )
        self._lock = lock
        self._now = now
        self._pairing = Pairing(settings, found.names, chance, now)
        for queue, error in found.unfit.items():
            self._pairing.rotation.leave_out(queue, error, now())
        self._fit = set(found.names) - set(found.unfit)
        self._syphoned = found.syphoned if options.enable_syphon else []
        self._coupling = Coupling()
        self._syphon = Syphon(settings, now, utc_now)
        self._backlog_limit_bytes = 0
        self._is_closed = False
        self._closed_sides: set[Side] = set()  # whose client somebody else has closed
        self._hooks: list[CloseHookBase] = []

    # --- links --------------------------------------------------------------------------------

    def get_queue_sender(self, queue_name: str, **settings: Any) -> Sender:
        """Keywords are those of the SDK's `get_queue_sender`."""
        return self._sender(_maker(self.primary.get_queue_sender, queue_name, settings))

    def get_topic_sender(self, topic_name: str, **settings: Any) -> Sender:
        """Keywords are those of the SDK's `get_topic_sender`."""
        return self._sender(_maker(self.primary.get_topic_sender, topic_name, settings))

    def get_queue_receiver(self, queue_name: str, **settings: Any) -> Receiver:
        """The primary's own: messages are received from the primary only."""
        receiver: Receiver = self.primary.get_queue_receiver(queue_name, **settings)
        return receiver

    def get_subscription_receiver(
        self, topic_name: str, subscription_name: str, **settings: Any
    ) -> Receiver:
        """The primary's own."""
        get: Callable[..., Receiver] = self.primary.get_subscription_receiver
        return get(topic_name, subscription_name, **settings)

    def list_queue_sessions(self, queue_name: str, **settings: Any) -> Sessions:
        """The primary's own."""
        sessions: Sessions = self.primary.list_queue_sessions(queue_name, **settings)
        return sessions

    def list_subscription_sessions(
        self, topic_name: str, subscription_name: str, **settings: Any
    ) -> Sessions:
        """The primary's own."""
        list_sessions: Callable[..., Sessions] = self.primary.list_subscription_sessions
        return list_sessions(topic_name, subscription_name, **settings)

    # --- control ------------------------------------------------------------------------------

    def status(self) -> PairingStatus:
        """How every entity and every backlog queue is, now."""
        with self._lock:
            return self._pairing.status(self._syphon.counts, running=self._syphoning.is_running)

    def force_failover(self, entity: str | None = None) -> None:
        """Send to the backlog from now on; without a name: all entities used so far."""
        with self._lock:
            self._pairing.force_failover(entity)
        self._dispatch()

    def force_failback(self, entity: str | None = None) -> None:
        """Send to the primary from now on; without a name: all entities used so far."""
        with self._lock:
            self._pairing.force_failback(entity)
        self._dispatch()

    # --- for the shells -----------------------------------------------------------------------

    def _sender(self, make: Callable[[str | None], Any]) -> Sender:
        """A paired sender; `make` gives the SDK's, with the client identifier of another."""
        with self._lock:
            self._pairing.check()
            if self._is_closed:
                raise ValueError("The paired client has already been closed.")
        shared = Shared(
            self._pairing,
            self._lock,
            self._dispatch,
            self._closing,
            self._backlog_sender,
            self._backlog_limit_bytes,
            self._senders.discard,
        )
        sender = self._new_sender(shared, make)
        with self._lock:
            self._senders.add(sender)
        return sender

    def _found(self, remember: Callable[[list[Event]], None]) -> None:
        """Which queues are in use is known now; whoever listens later is to hear of the rest."""
        with self._lock:
            events = self._pairing.take_events()
            in_use = self._pairing.rotation.in_use(self._now())
        remember(events)
        self.options.note_backlog_queues(len(in_use))

    def _backlog_sender(self, queue: str) -> Any:
        return self.secondary.get_queue_sender(queue)

    def _ping_link(self, entity: str) -> Any:
        # A queue's sender reaches a topic just as well: only the path counts.
        return self._new_link(lambda: self.primary.get_queue_sender(entity), self._closing)

    def _note_fault(self, reason: str, client: str | None) -> bool:
        """Is the pair over?  Not yet if it is one client's fault: the other has time to follow."""
        if client is not None:
            with self._lock:
                self._coupling.faulted(Side(client), reason, self._now())
            self._background.wake()
            return False
        with self._lock:
            self._pairing.fault(reason)
        self._dispatch()
        return True

    def _note_closed(self, side: Side) -> bool:
        """Somebody closes one of the SDK clients.  Are both closed now?"""
        with self._lock:
            self._coupling.closed(side, self._now())
            self._closed_sides.add(side)
            are_both = len(self._closed_sides) == len(Side)
        self._background.wake()
        return are_both

    def _partner_fault(self, side: Side) -> str:
        """What ends the pair when one client has ended, and this one has not followed (P-17)."""
        return f"{self._coupling.reason}, so the {side.value} client was closed too"

    def _hook(self, hook: "type[CloseHookBase]") -> None:
        """From now on what is done to the clients and the options is noticed."""
        self._hooks = [
            hook(self.primary, lambda: self._client_closed(Side.PRIMARY)),
            hook(self.secondary, lambda: self._client_closed(Side.SECONDARY)),
        ]
        self.options.watch(self._take_ping_interval)
        self._take_ping_interval()  # it may have been set since the pairing was made

    def _unhook(self) -> None:
        self.options.unwatch(self._take_ping_interval)
        for hook in self._hooks:
            hook.remove()

    def _take_ping_interval(self) -> None:
        with self._lock:
            self._pairing.set_ping_interval(self.options.ping_primary_interval_s)
        self._background.wake()

    # --- what a shell does --------------------------------------------------------------------

    def _dispatch(self) -> None:
        """Tell what has happened."""
        raise NotImplementedError

    def _client_closed(self, side: Side) -> Any:
        """Somebody is closing one of the SDK clients: what uses it has to end before."""
        raise NotImplementedError


class CloseHookBase:
    """Notices that somebody closes an SDK client: the SDK tells nobody."""

    def __init__(self, client: Any, closing: Callable[[], Any]) -> None:
        self._client = client
        self._close = client.close
        self._is_first = "close" not in vars(client)  # else another pair has hooked it before
        self._closing: Callable[[], Any] | None = closing
        client.close = self

    def remove(self) -> None:
        self._closing = None  # it stays where another pair has hooked the client since
        if vars(self._client).get("close") is not self:
            return
        if self._is_first:
            del self._client.close
        else:
            self._client.close = self._close


def _maker(
    get: Callable[..., Any], entity: str, settings: dict[str, Any]
) -> Callable[[str | None], Any]:
    def make(client_identifier: str | None) -> Any:
        if client_identifier is None:
            return get(entity, **settings)
        return get(entity, **{**settings, "client_identifier": client_identifier})

    return make
