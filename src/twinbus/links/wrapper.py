"""Links and sinks around others: faults, throttling and traces look at what passes.

    gateway ── ThrottledLink ── TracedLink ── FaultyLink ── the store's own link

A wrapper that has nothing to do is not on the way of a message: it lends out the `submit` of what
it wraps, and wraps no sink.  Work begins and ends with `set_work`: for the throttle with pressure,
for faults with the first and the last that is in force.  A `TracedLink` exists only where there are
traces, and always has work.
"""

from collections.abc import Callable

from twinbus.clock import Clock
from twinbus.entities.commands import Command, Reply, dispatch_replies
from twinbus.entities.session_locks import SessionLock
from twinbus.errors import ServiceError
from twinbus.links.sink import Sink
from twinbus.links.store_link import Accepting, Answer, ReceiverDescription, Receiving, StoreLink
from twinbus.links.transactions import StoreTransactions


class LinkWrapper:
    """A complete `StoreLink`; subclasses replace what concerns commands and receivers."""

    def __init__(self, link: "StoreLink | LinkWrapper", *, has_work: bool) -> None:
        self._link: StoreLink = link
        self.outer: LinkWrapper | None = None  # lends out what this one does
        if isinstance(link, LinkWrapper):
            link.outer = self
        self.set_work(has_work)

    def set_work(self, has_work: bool) -> None:
        """From now on it looks at what passes, or has nothing to do with it."""
        self.has_work = has_work
        self.lend()

    def lend(self) -> None:
        """Point `submit` to its own method, or to that of what it wraps."""
        self.submit = self._submit if self.has_work else self._link.submit
        if self.outer is not None:
            self.outer.lend()

    def _submit(self, commands: list[Command]) -> None:
        raise NotImplementedError

    @property
    def health(self) -> int:
        return self._link.health

    @property
    def pending_bytes(self) -> int:
        return self._link.pending_bytes

    @property
    def open_count(self) -> int:
        return self._link.open_count

    def open_receiver(self, description: ReceiverDescription, sink: Sink) -> Receiving:
        return self._link.open_receiver(description, sink)

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
    """A complete `Sink` except for messages, which subclasses handle."""

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
