"""Commands: what a gateway asks of a broker, and the replies.

This is, with selections.py, the whole of the narrow interface between the two
(docs/internals/architecture.md).  A command names the entity by the number the broker gave it.
`context` is the gateway's own and comes back untouched with the reply.  A lock is the pair
(sequence number, grant).
"""

from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from twinbus.entities.message import Message, NewMessage, Overlay
from twinbus.errors import ServiceError

if TYPE_CHECKING:
    from twinbus.entities.descriptions import QueueDescription
    from twinbus.entities.rule_descriptions import RuleDescription

# How a receiver settles a message.
COMPLETE: Final = 0
ABANDON: Final = 1
DEFER: Final = 2
DEAD_LETTER: Final = 3
RELEASE: Final = 4  # given back unseen: free again, delivery count unchanged
TRANSFER_DEAD_LETTER: Final = 5  # the gateway's own: what cannot be forwarded

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

    __slots__ = (
        "carrier",
        "carrier_completed",
        "carrier_numbers",
        "has_room",
        "messages",
        "partition",
    )

    def __init__(self, entity_id: int, messages: list[NewMessage], context: object = None) -> None:
        super().__init__(entity_id, context)
        self.messages = messages
        self.partition = -1  # of a partitioned entity, where it is known already
        self.has_room = False  # it was found elsewhere, in other partitions: do not look for it
        # Who carries these over from another store, and their numbers there: what has come before
        # is dropped, and its sequence number is 0.
        self.carrier = ""
        self.carrier_numbers: list[int] = []
        # Numbers of earlier sends that the carrier has completed at home: they never come again.
        self.carrier_completed: list[int] = []


class Settle(Command):
    """End locks.  Reply: None, or one error (or None) per lock where any failed."""

    __slots__ = ("delay_ms", "locks", "outcome", "overlay", "subqueue")

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
        self.delay_ms = 0  # ours: an abandoned message comes back after so long


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

    __slots__ = ("count", "from_sequence_number", "session_id", "subqueue")

    def __init__(
        self,
        entity_id: int,
        subqueue: int,
        from_sequence_number: int,
        count: int,
        session_id: str | None = None,
    ) -> None:
        super().__init__(entity_id)
        self.subqueue = subqueue
        self.from_sequence_number = from_sequence_number
        self.count = count
        self.session_id = session_id  # only messages of this session


class ReceiveDeferred(Command):
    """Receive deferred messages by sequence number, all or none.  Reply: list of Delivered."""

    __slots__ = ("receive_mode", "sequence_numbers", "session_grant", "session_id", "subqueue")

    def __init__(
        self,
        entity_id: int,
        subqueue: int,
        sequence_numbers: list[int],
        receive_mode: int,
        session_id: str | None = None,
        session_grant: int = 0,
    ) -> None:
        super().__init__(entity_id)
        self.subqueue = subqueue
        self.sequence_numbers = sequence_numbers
        self.receive_mode = receive_mode
        self.session_id = session_id  # of a session entity: whose, and by which lock
        self.session_grant = session_grant


class CancelScheduled(Command):
    """Remove scheduled messages, all or none.  Reply: None."""

    __slots__ = ("sequence_numbers",)

    def __init__(self, entity_id: int, sequence_numbers: list[int]) -> None:
        super().__init__(entity_id)
        self.sequence_numbers = sequence_numbers


# --- sessions ---------------------------------------------------------------------------------


class SessionCommand(Command):
    """Base: about one session.  `grant` is the lock by which the asker holds it."""

    __slots__ = ("grant", "session_id")

    def __init__(self, entity_id: int, session_id: str, grant: int) -> None:
        super().__init__(entity_id)
        self.session_id = session_id
        self.grant = grant


class RenewSession(SessionCommand):
    """Prolong a session's lock.  Reply: until when (UTC, ms)."""

    __slots__ = ()


class GetSessionState(SessionCommand):
    """Reply: the state, bytes or None."""

    __slots__ = ()


class SetSessionState(SessionCommand):
    """Reply: None."""

    __slots__ = ("state",)

    def __init__(self, entity_id: int, session_id: str, grant: int, state: bytes | None) -> None:
        super().__init__(entity_id, session_id, grant)
        self.state = state


class ListSessions(Command):
    """Sessions with messages or state.  Reply: their ids, sorted, a page of them.

    `updated_since_ms` (UTC) keeps only those whose state changed after it; NEVER_MS asks for all.
    """

    __slots__ = ("skip", "top", "updated_since_ms")

    def __init__(self, entity_id: int, updated_since_ms: int, skip: int, top: int) -> None:
        super().__init__(entity_id)
        self.updated_since_ms = updated_since_ms
        self.skip = skip
        self.top = top


# --- rules ------------------------------------------------------------------------------------


class RuleCommand(Command):
    """Base: with the description of a subscription's rule.  Reply: None."""

    __slots__ = ("description",)

    def __init__(self, entity_id: int, description: "RuleDescription") -> None:
        super().__init__(entity_id)
        self.description = description


class AddRule(RuleCommand):
    """Give a subscription one more rule."""

    __slots__ = ()


class ReplaceRule(RuleCommand):
    """Put a rule in the place of the one with its name, in one step."""

    __slots__ = ()


class RemoveRule(Command):
    """Reply: None."""

    __slots__ = ("name",)

    def __init__(self, entity_id: int, name: str) -> None:
        super().__init__(entity_id)
        self.name = name


class ListRules(Command):
    """Reply: a page of RuleDescriptions, in order of their names."""

    __slots__ = ("skip", "top")

    def __init__(self, entity_id: int, skip: int, top: int) -> None:
        super().__init__(entity_id)
        self.skip = skip
        self.top = top


# --- entities ---------------------------------------------------------------------------------


class StoreCommand(Command):
    """Base: about a store and not about one of its entities."""

    __slots__ = ()

    def __init__(self, context: object = None) -> None:
        super().__init__(0, context)


class NewEntity:
    """An entity to be made.  A subscription brings its first rule along."""

    __slots__ = ("description", "kind", "name", "rule")

    def __init__(
        self,
        kind: str,
        name: str,
        description: "QueueDescription",
        rule: "RuleDescription | None" = None,
    ) -> None:
        self.kind = kind
        self.name = name  # as the store knows it: with namespace and partition
        self.description = description
        self.rule = rule


class CreateEntities(StoreCommand):
    """Make entities, all or none.  Reply: their numbers."""

    __slots__ = ("entities",)

    def __init__(self, entities: list[NewEntity], context: object = None) -> None:
        super().__init__(context)
        self.entities = entities


class UpdateEntities(StoreCommand):
    """Give entities a new description, all or none.  Reply: None."""

    __slots__ = ("description", "entity_ids")

    def __init__(self, entity_ids: list[int], description: "QueueDescription") -> None:
        super().__init__()
        self.entity_ids = entity_ids
        self.description = description


class EntitiesCommand(StoreCommand):
    """Base: about these entities of a store."""

    __slots__ = ("entity_ids",)

    def __init__(self, entity_ids: list[int], context: object = None) -> None:
        super().__init__(context)
        self.entity_ids = entity_ids


class DeleteEntities(EntitiesCommand):
    """Remove entities with all that belongs to them; those that are gone are no error."""

    __slots__ = ()


class ListEntities(StoreCommand):
    """Reply: a Listed for every entity of the store but rules."""

    __slots__ = ()


class Listed:
    """An entity as its store has it."""

    __slots__ = ("description", "entity_id", "kind", "name")

    def __init__(
        self, entity_id: int, kind: str, name: str, description: "QueueDescription"
    ) -> None:
        self.entity_id = entity_id
        self.kind = kind
        self.name = name
        self.description = description


class GetRuntime(EntitiesCommand):
    """Reply: a Runtime for each entity asked for, None where there is no such entity."""

    __slots__ = ()


class Runtime:
    """What an entity holds at this moment."""

    __slots__ = (
        "accessed_utc_ms",
        "active",
        "correlation_filter_count",
        "dead_letter",
        "deferred",
        "is_busy",
        "last_sequence_number",
        "rule_count",
        "scheduled",
        "size_bytes",
        "sql_filter_count",
        "transfer_dead_letter",
    )

    def __init__(self) -> None:
        self.active = 0
        self.deferred = 0
        self.scheduled = 0
        self.dead_letter = 0
        self.transfer_dead_letter = 0
        self.size_bytes = 0  # a topic's: with its subscriptions
        self.accessed_utc_ms = 0
        self.is_busy = False  # somebody receives from it, or waits to
        self.last_sequence_number = 0
        self.sql_filter_count = 0  # of a topic
        self.correlation_filter_count = 0
        self.rule_count = 0  # of a subscription, or of all of a topic


# --- partitions -------------------------------------------------------------------------------


class ListPartitions(Command):
    """Ours: from where to where a part's numbers go.  Reply: a PartitionState for each partition.

    A plain entity has one, its partition 0.
    """

    __slots__ = ("subqueue",)

    def __init__(self, entity_id: int, subqueue: int) -> None:
        super().__init__(entity_id)
        self.subqueue = subqueue


class PartitionState:
    """What one partition has of a part of its entity; nothing is known of one that is down."""

    __slots__ = ("count", "first", "is_up", "next", "partition")

    def __init__(self, partition: int, is_up: bool, first: int, next_: int, count: int) -> None:
        self.partition = partition
        self.is_up = is_up
        self.first = first  # the lowest sequence number that is there; `next` if nothing is
        self.next = next_  # one more than the highest that has been published
        self.count = count


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


class Asked(Protocol):
    """Who gets a reply, with what it wanted to remember."""

    def replied(self, reply: Reply, rest: Any) -> None: ...  # type: ignore[explicit-any]


def dispatch_replies(replies: list[Reply]) -> None:
    """Give each reply to whoever asked.

    A command's context is nothing, or whoever asked together with what he wanted to remember.
    """
    for reply in replies:
        context = reply.command.context
        if context is not None:
            asked, rest = cast(tuple[Asked, object], context)
            asked.replied(reply, rest)
