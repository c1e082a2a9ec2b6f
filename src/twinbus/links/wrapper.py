"""Links and sinks around others: faults, throttling and traces look at what passes.

    gateway ── ThrottledLink ── TracedLink ── FaultyLink ── the store's own link

A wrapper that has nothing to do is not on the way of a message: the throttle's are put around the
links only while there is pressure (`Gateway.look_at_throttle`), the traces' only where traces are
asked for, and a `FaultyLink` lends out the `submit` of what it wraps until there is a fault.
"""

from collections.abc import Callable

from twinbus.clock import Clock
from twinbus.entities.commands import Command, Reply, dispatch_replies
from twinbus.entities.sessions import SessionLock
from twinbus.errors import ServiceError
from twinbus.links.sink import Sink
from twinbus.links.store_link import Accepting, Answer, StoreLink
from twinbus.links.transactions import StoreTransactions


class LinkWrapper:
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
        return self._link.transactions(clock, prefix)

    def turn_if_alone(self, client: object) -> None:
        self._link.turn_if_alone(client)

    def when_durable(self, call: Callable[[], None]) -> None:
        self._link.when_durable(call)

    def release_session(self, entity_id: int, lock: SessionLock) -> None:
        self._link.release_session(entity_id, lock)


class SinkWrapper:
    """All of a `Sink` but the messages, which are what there is to wrap it for."""

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


def submit_admitted(
    link: StoreLink, commands: list[Command], refusal: Callable[[Command], ServiceError | None]
) -> None:
    """Pass on what is not refused; who is refused hears so at once."""
    admitted: list[Command] = []
    refused: list[Reply] = []
    for command in commands:
        error = refusal(command)
        if error is None:
            admitted.append(command)
        else:
            refused.append(Reply(command, None, error))
    if admitted:
        link.submit(admitted)
    dispatch_replies(refused)
