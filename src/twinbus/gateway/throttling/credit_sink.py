"""A receiver's sink whose messages are paid for with the credits of a namespace (A-2)."""

from twinbus.clock import Clock
from twinbus.entities.message import Message
from twinbus.gateway.throttling.throttle import Throttle
from twinbus.links.sink import Sink
from twinbus.links.wrapper import SinkWrapper


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
