"""The directory: every entity by name, and the stores of its parts.

The directory knows entities as a whole; a store holds a part of one.  A plain entity has one part,
a partitioned one sixteen, in the order of their partitions.  Numbers are the gateway's own (see
`plain_id`); a link's commands carry those of its store.

Names are those of the stores, with the namespace's prefix but without the partition.  The directory
decides nothing and asks nobody: others update it.
"""

from collections.abc import Callable, Iterable
from typing import Final

from twinbus.entities.commands import Listed
from twinbus.entities.descriptions import DISABLED, SEND_DISABLED, SUBSCRIPTIONS, QueueDescription
from twinbus.entities.partitions import PARTITION_COUNT, shown_name, split_partition
from twinbus.errors import EntityDisabled
from twinbus.gateway.counting.counters import EntityMetrics

STORE_SHIFT: Final = 40
LOCAL_MASK: Final = (1 << STORE_SHIFT) - 1
# In front of names that are the gateway's own (journals); no user's begins with it, and none of
# them is ever in the directory.
HIDDEN: Final = "$"
PARTITIONED: Final = 1 << 60  # the lowest number of a partitioned entity


def plain_id(store: int, entity_id: int) -> int:
    """The gateway's number of an entity that is in one store; in store 0 it is the store's."""
    return store << STORE_SHIFT | entity_id


class Part:
    """What one store holds of an entity."""

    __slots__ = ("entity_id", "partition", "store")

    def __init__(self, store: int, entity_id: int, partition: int) -> None:
        self.store = store
        self.entity_id = entity_id  # in that store
        self.partition = partition  # 0 … 15, and 0 of an entity without partitions


class Entity:
    """A queue, topic or subscription."""

    __slots__ = (
        "cursor",
        "description",
        "entity_id",
        "is_partitioned",
        "kind",
        "metrics",
        "name",
        "needs_keys",
        "parts",
        "subscriptions",
        "topic",
    )

    def __init__(
        self,
        entity_id: int,
        kind: str,
        name: str,
        description: QueueDescription,
        parts: list[Part],
        topic: "Entity | None" = None,
    ) -> None:
        self.entity_id = entity_id
        self.is_partitioned = entity_id >= PARTITIONED
        self.kind = kind  # "queue", "topic" or "subscription"
        self.name = name
        self.parts = parts
        self.topic = topic  # of a subscription
        self.subscriptions: dict[str, Entity] = {}  # of a topic, by lower-cased name
        self.metrics = EntityMetrics()
        self.cursor = 0  # the partition that takes the next message without a key
        self.description = description
        self.needs_keys = False  # whether a NewMessage must bring its ids along
        self.describe(description)

    def describe(self, description: QueueDescription) -> None:
        """It has a new description."""
        self.description = description
        self.needs_keys = (
            self.is_partitioned
            or description.requires_duplicate_detection
            or (description.requires_session and self.kind != "topic")
        )

    def check_sendable(self) -> None:
        """Refuse when the status of the entity keeps senders out."""
        if self.description.status in (DISABLED, SEND_DISABLED):
            raise self._disabled()

    def _disabled(self) -> EntityDisabled:
        return EntityDisabled(
            f"Messaging entity '{shown_name(self.name)}' is currently disabled: "
            f"its status is {self.description.status}."
        )


class Directory:
    """All entities that the gateway knows."""

    def __init__(self) -> None:
        self.by_id: dict[int, Entity] = {}
        self.names: dict[str, Entity] = {}  # lower-cased
        self._parts: dict[int, tuple[Entity, int]] = {}  # of partitioned ones, by `plain_id`
        self._next_partitioned = PARTITIONED + 1
        # Told of every entity that is new, has another description or is gone.
        self.on_changed: Callable[[Entity], None] = _ignore

    def find(self, name: str) -> Entity | None:
        return self.names.get(name.lower())

    def part(self, part_id: int) -> tuple[Entity, int] | None:
        """The entity and the partition that a store knows by this number (`plain_id`)."""
        plain = self.by_id.get(part_id)
        return self._parts.get(part_id) if plain is None else (plain, 0)

    def topic_of(self, name: str) -> Entity | None:
        """The topic that a subscription's name begins with."""
        return self.names.get(name.lower().partition(SUBSCRIPTIONS.lower())[0])

    def partitioned_id(self) -> int:
        """A number for one more partitioned entity."""
        self._next_partitioned += 1
        return self._next_partitioned - 1

    def plain_counts(self, store_count: int) -> list[int]:
        """How many plain entities each store has."""
        counts = [0] * store_count
        for entity in self.by_id.values():
            if not entity.is_partitioned:
                counts[entity.parts[0].store] += 1
        return counts

    def add(self, kind: str, name: str, description: QueueDescription, parts: list[Part]) -> Entity:
        """An entity with all its parts."""
        if len(parts) == PARTITION_COUNT:
            entity_id = self.partitioned_id()
        else:
            entity_id = plain_id(parts[0].store, parts[0].entity_id)
        topic = self.topic_of(name) if kind == "subscription" else None
        entity = Entity(entity_id, kind, name, description, parts, topic)
        if topic is not None:
            topic.subscriptions[name.lower()] = entity
        self.by_id[entity_id] = entity
        self.names[name.lower()] = entity
        if entity.is_partitioned:
            for part in parts:
                self._parts[plain_id(part.store, part.entity_id)] = (entity, part.partition)
        self.on_changed(entity)
        return entity

    def describe(self, entity: Entity, description: QueueDescription) -> None:
        """An entity has a new description."""
        entity.describe(description)
        self.on_changed(entity)

    def remove(self, entity: Entity) -> None:
        """The entity is gone, a topic with its subscriptions."""
        for subscription in list(entity.subscriptions.values()):
            self.remove(subscription)
        if entity.topic is not None:
            entity.topic.subscriptions.pop(entity.name.lower(), None)
        self.by_id.pop(entity.entity_id, None)
        if entity.is_partitioned:
            for part in entity.parts:
                self._parts.pop(plain_id(part.store, part.entity_id), None)
        if self.names.get(entity.name.lower()) is entity:
            del self.names[entity.name.lower()]
        self.on_changed(entity)

    def load(self, listings: Iterable[tuple[int, list[Listed]]]) -> list[Listed]:
        """Take in what the stores list; returns what is no whole entity."""
        found: dict[tuple[str, str], list[tuple[int, int, Listed]]] = {}
        for store, listed in listings:
            for each in listed:
                if each.name.startswith(HIDDEN):
                    continue
                name, partition = split_partition(each.name)
                found.setdefault((each.kind, name), []).append((partition, store, each))
        left: list[Listed] = []
        for kind in ("queue", "topic", "subscription"):
            for (found_kind, name), pieces in found.items():
                if found_kind == kind:
                    left += self._load(kind, name, pieces)
        return left

    def _load(self, kind: str, name: str, pieces: list[tuple[int, int, Listed]]) -> list[Listed]:
        pieces.sort(key=_partition)
        partitions = [piece[0] for piece in pieces]
        if partitions != [-1] and partitions != list(range(PARTITION_COUNT)):
            return [piece[2] for piece in pieces]
        parts = [Part(store, each.entity_id, max(0, p)) for p, store, each in pieces]
        self.add(kind, name, pieces[0][2].description, parts)
        return []


def _ignore(entity: Entity) -> None:
    """Nobody wants to know."""


def _partition(piece: tuple[int, int, Listed]) -> int:
    return piece[0]
