"""What a pipeline can ask of a namespace, whichever way it is asked (`bus.py`).

Reading never changes anything.  Whatever is safe to do twice is tried again by itself for a minute
when the connection is lost; a send is only if its caller says that it may be.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol, Self

from twinbus.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    InvalidOperation,
    MessageSizeExceeded,
    ServiceError,
    TwinbusError,
)

# Larger batches cost the bus more memory and win nothing any more.
SEND_BATCH_BYTES: Final = 512 * 1024
SENDERS_MAX: Final = 100  # links open at a time; a bus allows some 250 on a connection
# Refusals that may be one message's own fault.
OF_ONE_MESSAGE: Final = (ArgumentInvalid, ArgumentOutOfRange, InvalidOperation, MessageSizeExceeded)


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition; an entity without partitions has one of them, numbered 0."""

    partition: int
    is_up: bool
    first: int  # lowest sequence number that is there; `next` if there is none
    next: int  # above every number that has been given: lower ones never appear later
    count: int


@dataclass(frozen=True, slots=True)
class EntityState:
    """What is where in a queue, subscription or sub-queue at this moment."""

    path: str
    created_ms: int | None  # UTC; None if the bus does not tell
    partitions: list[PartitionState]


class SendRefused(TwinbusError):
    """The bus refused a message for good.

    `index` is its place in what was given to `send` or `submit`; all before it are stored, itself
    and all after it may or may not be.  `reason` is the error that the bus named.
    """

    def __init__(self, path: str, index: int, reason: ServiceError) -> None:
        super().__init__(f"'{path[:64]}' refused message {index}: {reason}")
        self.path = path
        self.index = index
        self.reason = reason


class Pending(Protocol):
    """A send that is under way."""

    def wait(self) -> None:
        """Return when all of it is stored; raise why when it is not (`SendRefused`, …)."""


class BusSender(Protocol):
    """A sender to one queue or topic."""

    @property
    def namespace_id(self) -> str | None:
        """Which namespace it is connected to, whatever its address; None if the bus does not tell.

        That of a pinned sender stays the same.
        """

    def submit(self, messages: Sequence[bytes]) -> Pending:
        """Send encoded messages without waiting; waits only if too much is under way already.

        They go as one batch, as several if that would be too large.  Where the destination has
        partitions all of them must belong to the same (docs/reference/beyond-azure.md).  What is
        submitted later is stored later, unless the bus refused the earlier one for a while: who
        needs the order in any case waits for each.
        """

    def close(self) -> None:
        """Detach.  What was not waited for may or may not be stored."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Bus(Protocol):
    """One namespace.  Every method blocks, raises `twinbus.errors.*`, and may be called again.

    One thread at a time.  Paths are as receivers write them: `orders`, `orders/$DeadLetterQueue`,
    `topic/Subscriptions/name`.  Ranges of sequence numbers are [first, end).
    """

    def entity(self, path: str) -> EntityState:
        """Its partitions, and the numbers that are in them."""

    def numbers(self, path: str, first: int, end: int, limit: int) -> list[tuple[int, int]]:
        """The runs of numbers that are there in the range, lowest first, `limit` at most."""

    def browse(self, path: str, first: int, end: int) -> Iterator[list[bytes]]:
        """The messages in the range in order of their numbers, in chunks of about 1 MiB.

        Encoded as a receiver gets them; active and deferred ones, locked or not, no scheduled ones.
        """

    def settle(
        self,
        path: str,
        ranges: Sequence[tuple[int, int]],
        reason: str | None = None,
        description: str | None = None,
    ) -> int:
        """Delete what is there in the ranges, or dead-letter it if there is a `reason`.

        What others have locked stays.  Gives how many; durable when it returns.
        """

    def send(self, path: str, messages: Sequence[bytes], *, retry: bool = False) -> None:
        """Send encoded messages in order; all are stored when it returns.

        `retry`: go on after a lost connection, although what was under way may then be stored
        twice; right for messages with producer keys, which the bus stores once.
        """

    def open_sender(
        self,
        path: str,
        *,
        retry: bool = False,
        batch_bytes: int = SEND_BATCH_BYTES,
        halves: bool = True,
        pinned: bool = False,
    ) -> BusSender:
        """A sender for many submissions; `retry` as in `send`.

        Without `halves` a batch that is refused is not tried in parts: its first message is named.
        A `pinned` one sends nothing more when another namespace answers after a lost connection.
        """

    def close(self) -> None:
        """Hang up.  A closed bus is not used again."""
