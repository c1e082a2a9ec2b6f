"""A link to a store that asks the throttle first (A-2): wraps any `StoreLink`.

    no pressure              nothing asks
    pressure, or credits     every command, every receiver and every wait for a session asks

It knows which part of which entity a command is for, so that every partition has its own share.
"""

from twinbus.clock import Clock
from twinbus.entities.commands import Command
from twinbus.entities.message import Message
from twinbus.errors import ServerBusy
from twinbus.gateway.directory.directory import Directory, plain_id
from twinbus.gateway.throttling.throttle import RECEIVE, Throttle, prefix_of
from twinbus.links.sink import Sink
from twinbus.links.store_link import (
    SLOW,
    UP,
    Accepting,
    Answer,
    ReceiverDescription,
    Receiving,
    StoreLink,
)
from twinbus.links.wrapper import LinkWrapper, SinkWrapper, submit_admitted


class ThrottledLink(LinkWrapper):
    """One store, behind the throttle."""

    def __init__(
        self, store: int, link: StoreLink, directory: Directory, throttle: Throttle, clock: Clock
    ) -> None:
        super().__init__(link, has_work=False)
        self.throttle = throttle
        self._store = store
        self._directory = directory
        self._clock = clock

    @property
    def health(self) -> int:
        """A store that takes no sends is evaded by whatever may go to another one."""
        health = self._link.health
        is_full = self.has_work and self.throttle.is_store_full(self._store)
        return SLOW if is_full and health == UP else health

    def _submit(self, commands: list[Command]) -> None:
        submit_admitted(self._link, commands, self._refusal)

    def _refusal(self, command: Command) -> ServerBusy | None:
        part_id = plain_id(self._store, command.entity_id)
        found = self._directory.part(part_id)
        if found is None:
            return None  # about no entity, or the gateway's own
        now = self._clock.now()
        error = self.throttle.admit_command(found[0], part_id, command, now)
        if error is None:
            self.throttle.begin(part_id, 1)
        return error

    def _receiver_refusal(self, entity_id: int) -> ServerBusy | None:
        part_id = plain_id(self._store, entity_id)
        found = self._directory.part(part_id)
        if found is None:
            return None
        return self.throttle.admit(prefix_of(found[0]), part_id, RECEIVE, 1, self._clock.now())

    def _paid(self, entity_id: int, sink: Sink) -> Sink:
        found = self._directory.part(plain_id(self._store, entity_id))
        if found is None or not self.throttle.has_credits:
            return sink
        return PaidSink(sink, prefix_of(found[0]), self.throttle, self._clock)

    def open_receiver(self, description: ReceiverDescription, sink: Sink) -> Receiving:
        if self.has_work and not description.relays:
            error = self._receiver_refusal(description.entity_id)
            if error is not None:
                raise error
            sink = self._paid(description.entity_id, sink)
        return self._link.open_receiver(description, sink)

    def accept_session(
        self, entity_id: int, session_id: str | None, timeout_ms: int, grant: int, then: Answer
    ) -> Accepting:
        error = self._receiver_refusal(entity_id) if self.has_work else None
        if error is not None:
            raise error
        return super().accept_session(entity_id, session_id, timeout_ms, grant, then)


class PaidSink(SinkWrapper):
    """Hands on everything, and counts the messages."""

    __slots__ = ("_clock", "_prefix", "_throttle")

    def __init__(self, sink: Sink, prefix: str, throttle: Throttle, clock: Clock) -> None:
        super().__init__(sink)
        self._prefix = prefix
        self._throttle = throttle
        self._clock = clock

    def deliver(
        self, messages: list[Message], bodies: list[bytes], locked_until_utc_ms: int
    ) -> None:
        self._throttle.spend(self._prefix, len(messages), self._clock.now())
        self._sink.deliver(messages, bodies, locked_until_utc_ms)
