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


class Fact:
    """Base of all facts; `entity_id` is the number the store gave the entity."""

    __slots__ = ("entity_id",)

    def __init__(self, entity_id: int) -> None:
        self.entity_id = entity_id


class EntityCreated(Fact):
    """A queue exists, or its description changed.  `description` is its JSON."""

    __slots__ = ("description", "kind", "name")

    def __init__(self, entity_id: int, kind: str, name: str, description: str) -> None:
        super().__init__(entity_id)
        self.kind = kind  # "queue"; "topic", "subscription", "rule" later
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
    """A message moved from the main part to the dead-letter queue, keeping its number."""

    __slots__ = ("delivery_count", "overlay", "sequence_number")

    def __init__(
        self, entity_id: int, sequence_number: int, delivery_count: int, overlay: Overlay
    ) -> None:
        super().__init__(entity_id)
        self.sequence_number = sequence_number
        self.delivery_count = delivery_count
        self.overlay = overlay


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
