"""What the paired clients of both shells share: everything that does not wait.

The pairing is changed only while its lock is held.  The async shell has one loop and no threads:
its lock does nothing.
"""

import datetime as dt
import random
import warnings
from collections.abc import Callable, MutableSet
from contextlib import AbstractContextManager
from typing import Any, Final, Generic, TypeVar

from twinbus.pairing.core import Pairing, PairSettings
from twinbus.pairing.coupling import Coupling, Side
from twinbus.pairing.errors import PairFaultedError
from twinbus.pairing.events import Event, PairingStatus
from twinbus.pairing.fitness import FoundQueues
from twinbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from twinbus.pairing.sender import Shared
from twinbus.pairing.syphon import Syphon

SETUP_S_MAX: Final = 60.0  # for links to the secondary to open
OPEN_S_MAX: Final = 60.0  # a link that takes longer is not coming any more
# Closing says good-bye to the peer, which may be gone without a word.
CLOSE_S_MAX: Final = 5.0

LINK_METHODS: Final = (
    "get_queue_sender",
    "get_topic_sender",
    "get_queue_receiver",
    "get_subscription_receiver",
    "list_queue_sessions",
    "list_subscription_sessions",
)

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
        old_queues: list[str],
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
        # Senders use the queues; the syphon empties those of older versions, too.
        self._syphoned = [*found.syphoned, *old_queues] if options.enable_syphon else []
        self._coupling = Coupling()
        self._syphon = Syphon(settings, now, utc_now)
        self._backlog_limit_bytes = 0
        self._is_closed = False
        self._closed_sides: set[Side] = set()  # whose client somebody else has closed
        self._hooks: list[MethodHook] = []

    # --- links --------------------------------------------------------------------------------

    def get_queue_sender(self, queue_name: str, **settings: Any) -> Sender:
        """Keywords are those of the SDK's `get_queue_sender`."""
        return self._sender("get_queue_sender", queue_name, settings)

    def get_topic_sender(self, topic_name: str, **settings: Any) -> Sender:
        """Keywords are those of the SDK's `get_topic_sender`."""
        return self._sender("get_topic_sender", topic_name, settings)

    def get_queue_receiver(self, queue_name: str, **settings: Any) -> Receiver:
        """The primary's own: messages are received from the primary only."""
        self._check_live()
        receiver: Receiver = self.primary.get_queue_receiver(queue_name, **settings)
        return receiver

    def get_subscription_receiver(
        self, topic_name: str, subscription_name: str, **settings: Any
    ) -> Receiver:
        """The primary's own."""
        self._check_live()
        get: Callable[..., Receiver] = self.primary.get_subscription_receiver
        return get(topic_name, subscription_name, **settings)

    def list_queue_sessions(self, queue_name: str, **settings: Any) -> Sessions:
        """The primary's own."""
        self._check_live()
        sessions: Sessions = self.primary.list_queue_sessions(queue_name, **settings)
        return sessions

    def list_subscription_sessions(
        self, topic_name: str, subscription_name: str, **settings: Any
    ) -> Sessions:
        """The primary's own."""
        self._check_live()
        list_sessions: Callable[..., Sessions] = self.primary.list_subscription_sessions
        return list_sessions(topic_name, subscription_name, **settings)

    # --- control ------------------------------------------------------------------------------

    def status(self) -> PairingStatus:
        """How every entity and every backlog queue is, now."""
        with self._lock:
            return self._pairing.status(self._syphon.counts, running=self._syphoning.is_running)

    def force_failover(self, entity: str | None = None) -> None:
        """Send to the backlog from now on; without a name: all entities used so far."""
        self._check_live()
        with self._lock:
            self._pairing.force_failover(entity)
        self._dispatch()

    def force_failback(self, entity: str | None = None) -> None:
        """Send to the primary from now on; without a name: all entities used so far."""
        self._check_live()
        with self._lock:
            self._pairing.force_failback(entity)
        self._dispatch()

    # --- for the shells -----------------------------------------------------------------------

    def _check_live(self) -> None:
        with self._lock:
            self._pairing.check()  # that the pair is over says more
            if self._is_closed:
                raise ValueError("The paired client has already been closed.")

    def _sender(self, method: str, entity: str, settings: dict[str, Any]) -> Sender:
        self._check_live()

        def make(client_identifier: str | None) -> Any:
            """The SDK's, with the client identifier of another if it replaces that one."""
            more = {} if client_identifier is None else {"client_identifier": client_identifier}
            return _unhooked(getattr(self.primary, method))(entity, **{**settings, **more})

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
        return bare_sender(self.secondary, queue)

    def _ping_link(self, entity: str) -> Any:
        return self._new_link(
            lambda: bare_sender(self.primary, entity),
            self._closing,
            learn=self._pairing.learn_namespace,
        )

    def _note_fault(self, reason: str, client: str | None) -> bool:
        """Is the pair over?  Not yet if it is one client's fault: the other has time to follow."""
        if client is not None:
            with self._lock:
                self._coupling.faulted(Side(client), reason, self._now())
            self._background.wake()
            return False
        self._fault(reason)
        return True

    def _fault(self, reason: str) -> None:
        """The pair is over: it refuses from now on, and so do both of its clients."""
        with self._lock:
            self._pairing.fault(reason)
        if not self._is_closed:  # else they are somebody else's again
            for client in (self.primary, self.secondary):
                fault_client(client, reason)
        self._dispatch()

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
        noticed = BareSenderWarning(self.fully_qualified_namespace)
        self._hooks = [
            hook(self.primary, lambda: self._client_closed(Side.PRIMARY)),
            hook(self.secondary, lambda: self._client_closed(Side.SECONDARY)),
            *(SenderHook(self.primary, name, noticed) for name in LINK_METHODS[:2]),
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


class MethodHook:
    """Stands in for a method of one SDK client, until it is removed."""

    def __init__(self, client: Any, name: str) -> None:
        self.original = getattr(client, name)
        self._client = client
        self._name = name
        self._is_first = name not in vars(client)  # else another pair has hooked it before
        self._is_on = True
        setattr(client, name, self)

    def remove(self) -> None:
        self._is_on = False  # it stays where another pair has hooked the client since
        if vars(self._client).get(self._name) is not self:
            return
        if self._is_first:
            delattr(self._client, self._name)
        else:
            setattr(self._client, self._name, self.original)


class CloseHookBase(MethodHook):
    """Notices that somebody closes an SDK client: the SDK tells nobody."""

    def __init__(self, client: Any, closing: Callable[[], Any]) -> None:
        super().__init__(client, "close")
        self._closing = closing


class SenderHook(MethodHook):
    """Notices that somebody makes a sender of the bare primary client."""

    def __init__(self, client: Any, name: str, noticed: Callable[[], None]) -> None:
        super().__init__(client, name)
        self._noticed = noticed

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        if self._is_on:
            self._noticed()
        return _unhooked(self.original)(*arguments, **settings)


class BareSenderWarning:
    """Told once for each pair: who has read it needs no second one."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._is_told = False

    def __call__(self) -> None:
        if self._is_told:
            return
        self._is_told = True
        warnings.warn(
            f"This sender is not covered by the pair of {self._namespace}: it was made from the "
            "bare primary client, so in an outage its sends fail and nothing goes to the backlog. "
            "Get senders from the client that pair_namespace() has returned.",
            stacklevel=3,  # whoever has asked for the sender
        )


def bare_sender(client: Any, path: str) -> Any:
    """A sender of an SDK client for the pair's own use: no warning.

    A queue's sender reaches a topic just as well: only the path counts.
    """
    return _unhooked(client.get_queue_sender)(path)


def _unhooked(method: Any) -> Any:
    while isinstance(method, SenderHook):
        method = method.original
    return method


class FaultHook(MethodHook):
    """For good: the SDK's client would open new links even after it was closed."""

    def __init__(self, client: Any, name: str, reason: str) -> None:
        super().__init__(client, name)
        self.reason = reason

    def __call__(self, *_arguments: Any, **_settings: Any) -> Any:
        raise PairFaultedError(
            f"This client belongs to a pair that is over: {self.reason}. "
            "Make new clients, and a new pair of them."
        )


def fault_client(client: Any, reason: str) -> None:
    """From now on it refuses to make senders and receivers."""
    for name in LINK_METHODS:
        if hasattr(client, name) and not isinstance(getattr(client, name), FaultHook):
            FaultHook(client, name, reason)


def check_not_faulted(*clients: Any) -> None:
    """`PairFaultedError` if one of them was in a pair that has faulted."""
    for client in clients:
        method = client.get_queue_sender
        if isinstance(method, FaultHook):
            method()
