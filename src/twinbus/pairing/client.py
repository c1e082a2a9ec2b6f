"""What the paired clients of both shells share: two SDK clients, and the links to the primary."""

import datetime as dt
import random
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from twinbus.pairing.core import Pairing, PairSettings
from twinbus.pairing.coupling import Coupling, Side
from twinbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from twinbus.pairing.syphon import Syphon

SETUP_S_MAX: Final = 60.0  # for links to the secondary to open

Sender = TypeVar("Sender")
Receiver = TypeVar("Receiver")
Sessions = TypeVar("Sessions")


class PairedClientBase(Generic[Sender, Receiver, Sessions]):
    """The SDK clients are blocking or async ones; here nobody calls what would tell."""

    primary: Any
    secondary: Any

    def __init__(
        self,
        options: SendAvailabilityPairedNamespaceOptions,
        queues: list[str],
        chance: random.Random,
        now: Callable[[], float],
        utc_now: Callable[[], dt.datetime],
    ) -> None:
        self.options = options
        self.fully_qualified_namespace: str = self.primary.fully_qualified_namespace
        settings = PairSettings.of(
            options, self.fully_qualified_namespace, self.secondary.fully_qualified_namespace
        )
        self._pairing = Pairing(settings, queues, chance, now)
        self._queues = queues
        self._coupling = Coupling()
        self._syphon = Syphon(settings, now, utc_now)
        self._backlog_limit_bytes = 0
        self._closed_sides: set[Side] = set()  # whose client somebody else has closed

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

    def _sender(self, make: Callable[[str | None], Any]) -> Sender:
        """A paired sender; `make` gives the SDK's, with the client identifier of another."""
        raise NotImplementedError

    def _backlog_sender(self, queue: str) -> Any:
        return self.secondary.get_queue_sender(queue)


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
