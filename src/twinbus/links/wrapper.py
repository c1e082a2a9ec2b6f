"""What a link or a sink that wraps another one passes on as it is."""

from collections.abc import Callable

from twinbus.broker.delivery import Sink
from twinbus.broker.session_waiters import Answer
from twinbus.clock import Clock
from twinbus.entities.sessions import SessionLock
from twinbus.errors import ServiceError
from twinbus.gateway.transactions import StoreTransactions, open_transactions
from twinbus.links.store_link import Accepting, StoreLink


class PassingLink:
    """All of a `StoreLink` but commands and receivers, which are what there is to wrap it for."""

    __slots__ = ("_link",)

    def __init__(self, link: StoreLink) -> None:
        self._link = link

    @property
    def health(self) -> int:
        return self._link.health

    @property
    def pending_bytes(self) -> int:
        return self._link.pending_bytes

    @property
    def open_count(self) -> int:
        return self._link.open_count

    def accept_session(
        self, entity_id: int, session_id: str | None, timeout_ms: int, grant: int, then: Answer
    ) -> Accepting:
        return self._link.accept_session(entity_id, session_id, timeout_ms, grant, then)

    def transactions(self, clock: Clock, prefix: bytes) -> StoreTransactions:
        return open_transactions(self._link, clock, prefix)

    def hurry(self, talker: object) -> None:
        self._link.hurry(talker)

    def when_durable(self, call: Callable[[], None]) -> None:
        self._link.when_durable(call)

    def release_session(self, entity_id: int, lock: SessionLock) -> None:
        self._link.release_session(entity_id, lock)


class PassingSink:
    """All of a `Sink` but the messages."""

    __slots__ = ("_sink",)

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def full(self) -> bool:
        return self._sink.full()

    def drained(self) -> None:
        self._sink.drained()

    def removed(self) -> None:
        self._sink.removed()

    def lost(self, error: ServiceError) -> None:
        self._sink.lost(error)
