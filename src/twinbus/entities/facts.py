"""Facts: what has happened to an entity, in the order it happened.

A queue decides at once and states facts; the store writes them; replaying them gives the same
queue.  Facts are absolute ("delivery count is now 3", never "one more"), so that replaying a fact
on a state that has already seen it changes nothing.  Snapshots taken in slices rest on that.
"""

from typing import Final

from twinbus.entities.message import Message, Overlay

# Which part of an entity a fact is about.
MAIN: Final = 0
DEAD_LETTER: Final = 1
TRANSFER_DEAD_LETTER: Final = 2
# What a fact about a message may take in the log beyond the body.
FACT_OVERHEAD_BYTES: Final = 128


class Fact:
    """Base of all facts; `entity_id` is the number the store gave the entity."""

    __slots__ = ("entity_id",)

    def __init__(self, entity_id: int) -> None:
        self.entity_id = entity_id


class EntityCreated(Fact):
    """An entity exists, or its description changed.  `description` is its JSON."""

    __slots__ = ("description", "kind", "name")

    def __init__(self, entity_id: int, kind: str, name: str, description: str) -> None:
        super().__init__(entity_id)
        self.kind = kind  # "queue", "topic", "subscription" or "rule"
        self.name = name
        self.description = description


class EntityDeleted(Fact):
    """The entity and everything in it are gone."""

    __slots__ = ()


class Stored(Fact):
    """Messages with their whole state: sent, scheduled, or moved to the head of the log."""

    __slots__ = ("messages", "subqueue")

    def __init__(self, entity_id: int, subqueue: int, messages: list[Message]) -> None:
        super().__init__(entity_id)
        self.subqueue = subqueue
        self.messages = messages


class Removed(Fact):
    """Messages are gone: completed, received and deleted, expired, cancelled."""

    __slots__ = ("sequence_numbers", "subqueue")

    def __init__(self, entity_id: int, subqueue: int, sequence_numbers: list[int]) -> None:
        super().__init__(entity_id)
        self.subqueue = subqueue
        self.sequence_numbers = sequence_numbers


class Locked(Fact):
    """Messages are locked; the i-th has grant `first_grant + i`."""

    __slots__ = ("first_grant", "sequence_numbers", "subqueue")

    def __init__(
        self, entity_id: int, subqueue: int, first_grant: int, sequence_numbers: list[int]
    ) -> None:
        super().__init__(entity_id)
        self.subqueue = subqueue
        self.first_grant = first_grant
        self.sequence_numbers = sequence_numbers


class Unlocked(Fact):
    """A lock ended and the message is free (or deferred) again, with this delivery count."""

    __slots__ = ("delivery_count", "overlay", "sequence_number", "state", "subqueue")

    def __init__(
        self,
        entity_id: int,
        subqueue: int,
        sequence_number: int,
        delivery_count: int,
        state: int,
        overlay: Overlay | None,
    ) -> None:
        super().__init__(entity_id)
        self.subqueue = subqueue
        self.sequence_number = sequence_number
        self.delivery_count = delivery_count
        self.state = state
        self.overlay = overlay


class DeadLettered(Fact):
    """A message moved to a dead-letter queue of its entity, keeping its number.

    From the main part to `subqueue`, or from the dead-letter queue to the transfer dead-letter
    queue: always to a higher one.
    """

    __slots__ = ("delivery_count", "overlay", "sequence_number", "subqueue")

    def __init__(
        self,
        entity_id: int,
        sequence_number: int,
        delivery_count: int,
        overlay: Overlay,
        subqueue: int = DEAD_LETTER,
    ) -> None:
        super().__init__(entity_id)
        self.sequence_number = sequence_number
        self.delivery_count = delivery_count
        self.overlay = overlay
        self.subqueue = subqueue


class Activated(Fact):
    """A scheduled message fell due: it got a new number and time and takes its place."""

    __slots__ = ("enqueued_ms", "expires_ms", "new_sequence_number", "sequence_number")

    def __init__(
        self,
        entity_id: int,
        sequence_number: int,
        new_sequence_number: int,
        enqueued_ms: int,
        expires_ms: int,
    ) -> None:
        super().__init__(entity_id)
        self.sequence_number = sequence_number
        self.new_sequence_number = new_sequence_number
        self.enqueued_ms = enqueued_ms
        self.expires_ms = expires_ms


class Rescheduled(Fact):
    """A locked or deferred message waits until a time before it is active again (ours)."""

    __slots__ = ("delivery_count", "due_ms", "overlay", "sequence_number")

    def __init__(
        self,
        entity_id: int,
        sequence_number: int,
        delivery_count: int,
        due_ms: int,
        overlay: Overlay | None,
    ) -> None:
        super().__init__(entity_id)
        self.sequence_number = sequence_number
        self.delivery_count = delivery_count
        self.due_ms = due_ms  # UTC
        self.overlay = overlay


class SessionStateSet(Fact):
    """A session's state is now this; None when it has none."""

    __slots__ = ("session_id", "state", "updated_ms")

    def __init__(
        self, entity_id: int, session_id: str, state: bytes | None, updated_ms: int
    ) -> None:
        super().__init__(entity_id)
        self.session_id = session_id
        self.state = state
        self.updated_ms = updated_ms  # UTC


class IdsSeen(Fact):
    """Message ids that duplicate detection must remember, as digests of 16 bytes each."""

    __slots__ = ("digests", "seen_ms")

    def __init__(self, entity_id: int, seen_ms: int, digests: bytes) -> None:
        super().__init__(entity_id)
        self.seen_ms = seen_ms  # UTC
        self.digests = digests


class Carried(Fact):
    """These numbers of a carrier have come, and no others need be remembered (carried.py)."""

    __slots__ = ("carrier", "numbers")

    def __init__(self, entity_id: int, carrier: str, numbers: list[int]) -> None:
        super().__init__(entity_id)
        self.carrier = carrier
        self.numbers = numbers


class Arrived(Fact):
    """Numbers of a producer that have come: from one bound to before the next (arrivals.py)."""

    __slots__ = ("bounds", "producer")

    def __init__(self, entity_id: int, producer: str, bounds: list[int]) -> None:
        super().__init__(entity_id)
        self.producer = producer
        self.bounds = bounds


class FannedOut(Fact):
    """One message of a topic is in these subscriptions now; its body is written once.

    `entity_id` is the topic, `sequence_number` the number the topic gave the message.  All
    `messages` share their body and each belongs to the subscription at the same place in
    `subscription_ids`.
    """

    __slots__ = ("messages", "sequence_number", "subscription_ids")

    def __init__(
        self,
        entity_id: int,
        sequence_number: int,
        subscription_ids: list[int],
        messages: list[Message],
    ) -> None:
        super().__init__(entity_id)
        self.sequence_number = sequence_number
        self.subscription_ids = subscription_ids
        self.messages = messages


class LastNumber(Fact):
    """The highest sequence number an entity has given out, where no other fact says so."""

    __slots__ = ("sequence_number",)

    def __init__(self, entity_id: int, sequence_number: int) -> None:
        super().__init__(entity_id)
        self.sequence_number = sequence_number


class Together(Fact):
    """Facts that are true only together: they are written into one frame.

    A frame is whole or not there at all, so nothing but the facts themselves goes to disk.
    """

    __slots__ = ("facts",)

    def __init__(self, facts: list[Fact]) -> None:
        super().__init__(0)
        self.facts = facts


def gather(facts: list[Fact], mark: int) -> None:
    """Make one `Together` of everything that was stated since `mark`, the length it had then."""
    count = len(facts) - mark
    if count < 2:
        return
    if count == 2:  # a message and its number: with every send of a paired sender
        first, second = facts[mark], facts[mark + 1]
        if not isinstance(first, Together) and not isinstance(second, Together):
            facts.pop()
            facts[mark] = Together([first, second])
            return
    together: list[Fact] = []
    for fact in facts[mark:]:
        if isinstance(fact, Together):
            together.extend(fact.facts)
        else:
            together.append(fact)
    del facts[mark:]
    facts.append(Together(together))
