"""Where a receiver's messages go: what a gateway puts behind a receiver."""

from typing import Final, Protocol

from twinbus.entities.message import Message
from twinbus.errors import ServiceError

LARGE_BODY_BYTES: Final = 65_536  # bodies above this are handed over few at a time


class Sink(Protocol):
    """Takes the messages of one receiver."""

    def deliver(
        self, messages: list[Message], bodies: list[bytes], locked_until_utc_ms: int
    ) -> None:
        """Send these out; `locked_until_utc_ms` is 0 when they are gone from the queue already."""

    def full(self) -> bool:
        """True while the connection holds more unsent bytes than it should."""

    def drained(self) -> None:
        """Everything there was has been delivered; the rest of the credit is returned."""

    def removed(self) -> None:
        """The entity is gone."""

    def lost(self, error: ServiceError) -> None:
        """The session it receives from is not its own any more."""
