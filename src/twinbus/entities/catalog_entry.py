"""What the catalog says of one entity: which stores have its parts, and what is being done to it.

    making ─▶ there ─▶ removing ─▶ removed
          └───────────────────────▶

The catalog (storage/catalog.py) keeps these, the gateway compares them with what the stores have.
"""

from collections.abc import Sequence
from typing import Final

from twinbus.entities.descriptions import DESCRIPTIONS, QueueDescription

MAKING: Final = "making"  # nobody has been told that it exists
THERE: Final = "there"
REMOVING: Final = "removing"
REMOVED: Final = "removed"  # nothing is left of it


class CatalogEntry:
    """One entity at one time; a later one takes its place."""

    __slots__ = ("_read", "description", "entity_ids", "kind", "name", "state", "stores")

    def __init__(
        self,
        kind: str,
        name: str,
        description: str,
        stores: Sequence[int],
        state: str,
        entity_ids: Sequence[int] = (),
    ) -> None:
        self.kind = kind
        self.name = name  # with namespace, without partition
        self.description = description  # JSON
        self.stores = list(stores)  # of its parts: one, or sixteen in the order of the partitions
        self.state = state
        # The numbers of the parts in their stores, 0 where it is not known yet.
        self.entity_ids = list(entity_ids) or [0] * len(self.stores)
        self._read: QueueDescription | None = None

    def read_description(self) -> QueueDescription:
        """The description, read once: it is compared whenever a store comes up."""
        if self._read is None:
            self._read = DESCRIPTIONS[self.kind].from_json(self.description)
        return self._read

    def changed(
        self, state: str, description: str | None = None, entity_ids: Sequence[int] = ()
    ) -> "CatalogEntry":
        """The same entity later on."""
        if description is None:
            description = self.description
        numbers = entity_ids or self.entity_ids
        return CatalogEntry(self.kind, self.name, description, self.stores, state, numbers)
