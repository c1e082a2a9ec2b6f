"""Commands: what a gateway asks of a broker, and the replies.

This is the whole of the narrow interface between the two (docs/internals/architecture.md).  A
command names the entity by the number the broker gave it.  `context` is the gateway's own and comes
back untouched with the reply.  A lock is the pair (sequence number, grant).
"""

from typing import Final

from twinbus.entities.message import Message, NewMessage, Overlay
from twinbus.errors import ServiceError

# How a receiver settles a message.
COMPLETE: Final = 0
ABANDON: Final = 1
DEFER: Final = 2
DEAD_LETTER: Final = 3
RELEASE: Final = 4  # given back unseen: free again, delivery count unchanged

PEEK_LOCK: Final = 0
RECEIVE_AND_DELETE: Final = 1

Lock = tuple[int, int]


class Command:
    """Base: which entity, and what the gateway wants to remember."""

    __slots__ = ("context", "entity_id")

    def __init__(self, entity_id: int, context: object = None) -> None:
        self.entity_id = entity_id
        self.context = context


class Send(Command):
    """Enqueue (or schedule) messages, all or none.  Reply: their sequence numbers."""

    __slots__ = ("messages",)

    def __init__(self, entity_id: int, messages: list[NewMessage], context: object = None) -> None:
        super().__init__(entity_id, context)
        self.messages = messages


class Settle(Command):
    """End locks.  Reply: None, or one error (or None) per lock where any failed."""

    __slots__ = ("locks", "outcome", "overlay", "subqueue")

    def __init__(
        self,
        entity_id: int,
        subqueue: int,
        locks: list[Lock],
        outcome: int,
        overlay: Overlay | None = None,
        context: object = None,
    ) -> None:
        super().__init__(entity_id, context)
        self.subqueue = subqueue
        self.locks = locks
        self.outcome = outcome
        self.overlay = overlay


class RenewLocks(Command):
    """Prolong locks.  Reply: for each, until when (UTC, ms)."""

    __slots__ = ("locks", "subqueue")

    def __init__(
        self, entity_id: int, subqueue: int, locks: list[Lock], context: object = None
    ) -> None:
        super().__init__(entity_id, context)
        self.subqueue = subqueue
        self.locks = locks


class Peek(Command):
    """Look without locking.  Reply: list of Delivered, in order of sequence number."""

    __slots__ = ("count", "from_sequence_number", "subqueue")

    def __init__(
        self,
        entity_id: int,
        subqueue: int,
        from_sequence_number: int,
        count: int,
        context: object = None,
    ) -> None:
        super().__init__(entity_id, context)
        self.subqueue = subqueue
        self.from_sequence_number = from_sequence_number
        self.count = count


class ReceiveDeferred(Command):
    """Receive deferred messages by sequence number, all or none.  Reply: list of Delivered."""

    __slots__ = ("receive_mode", "sequence_numbers", "subqueue")

    def __init__(
        self,
        entity_id: int,
        subqueue: int,
        sequence_numbers: list[int],
        receive_mode: int,
        context: object = None,
    ) -> None:
        super().__init__(entity_id, context)
        self.subqueue = subqueue
        self.sequence_numbers = sequence_numbers
        self.receive_mode = receive_mode


class CancelScheduled(Command):
    """Remove scheduled messages, all or none.  Reply: None."""

    __slots__ = ("sequence_numbers",)

    def __init__(self, entity_id: int, sequence_numbers: list[int], context: object = None) -> None:
        super().__init__(entity_id, context)
        self.sequence_numbers = sequence_numbers


class Delivered:
    """A message handed out, with its body at hand."""

    __slots__ = ("body", "locked_until_utc_ms", "message")

    def __init__(self, message: Message, body: bytes, locked_until_utc_ms: int) -> None:
        self.message = message
        self.body = body
        self.locked_until_utc_ms = locked_until_utc_ms  # 0 when not locked


class Reply:
    """The answer to one command; exactly one of `result` and `error` counts."""

    __slots__ = ("command", "error", "result")

    def __init__(self, command: Command, result: object, error: ServiceError | None) -> None:
        self.command = command
        self.result = result
        self.error = error
