"""Steps: what a flow asks its shell to do, and the shell answers with the outcome.

A flow is a generator.  It yields a step; the shell performs it with the blocking or with the async
SDK and sends back what came of it, or throws the error that the SDK raised:

    flow   ──SendToPrimary──▶ shell ─▶ SDK
    flow   ◀──None or error── shell ◀─ SDK

So what happens in which case is written once, and a simulation can be the shell as well.
"""

import datetime as dt
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SendToPrimary:
    """`outgoing` is in the SDK's own form (message, list or batch), the caller's sender is used."""

    outgoing: Any
    timeout_s: float


@dataclass(frozen=True, slots=True)
class ScheduleOnPrimary:
    """Outcome: list of sequence numbers."""

    outgoing: Any
    time_utc: dt.datetime
    timeout_s: float


@dataclass(frozen=True, slots=True)
class OpenPrimary:
    """The caller's link.  Outcome: the largest batch that it takes, which only the peer knows."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class OpenBacklog:
    """A link to a backlog queue, to see whether it opens.  Outcome: the largest batch it takes."""

    queue: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class SendToBacklog:
    """Rewritten messages, few enough for one batch of this queue.

    A single one is sent as a message of its own: a batch around it might make it too large.
    """

    queue: str
    messages: list[AmqpAnnotatedMessage]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class SendPing:
    """By a sender of the background, never by the caller's."""

    entity: str
    message: AmqpAnnotatedMessage
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class ListQueues:
    """Outcome: the secondary's queues, as the administration client describes them."""


@dataclass(frozen=True, slots=True)
class CreateQueue:
    """`settings` are keywords of the administration client's `create_queue`."""

    queue: str
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Receive:
    """One long poll of a backlog queue.  Outcome: list of received messages, perhaps empty."""

    queue: str
    count_max: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class Peek:
    """Look into a backlog queue without locking anything.

    Outcome: list of messages from this sequence number on, locked ones too; empty at the end.
    """

    queue: str
    first: int
    count_max: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class SendRestored:
    """To the primary, all or none, by a sender that the syphon keeps for the path.

    `namespaces` are the ids that messages carry.  If the primary tells another one, nothing is sent
    and OtherNamespaceError is raised.
    """

    path: str
    messages: list[AmqpAnnotatedMessage]
    timeout_s: float
    namespaces: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class AskNamespace:
    """Open the sender of the path.  Outcome: the id that the primary tells, or None."""

    path: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Complete:
    """Outcome: None, or the error of each message that could not be completed."""

    queue: str
    messages: list[ServiceBusReceivedMessage]


@dataclass(frozen=True, slots=True)
class Abandon:
    """Give messages back before their locks end; those that cannot be given back do not matter."""

    queue: str
    messages: list[ServiceBusReceivedMessage]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    queue: str
    message: ServiceBusReceivedMessage
    reason: str
    description: str


Step: TypeAlias = (
    SendToPrimary
    | ScheduleOnPrimary
    | OpenPrimary
    | OpenBacklog
    | SendToBacklog
    | SendPing
    | Pause
    | ListQueues
    | CreateQueue
    | Receive
    | Peek
    | SendRestored
    | AskNamespace
    | Complete
    | Abandon
    | DeadLetter
)
Flow: TypeAlias = Generator[Step, Any, T]
