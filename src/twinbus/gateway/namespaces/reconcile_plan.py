"""Decides what to do when stores and catalog disagree.

Runs at start, and again whenever a store comes up late.  The catalog (storage/catalog.py) says
what was intended, the lists of the stores say what exists:

    catalog     in the stores                 done
    making      all parts                     finished: it is there
                some part is missing          the others are removed: nobody was told of it
    there       a part is missing             made again, empty: a store was replaced
                  of a plain entity that      gone: its broker has deleted it, and nobody was left
                  is deleted when idle        to write that down
                a part is in another store    taken where it is: the stores were renumbered
                another description           the catalog's is set: a change was not finished
    removing    anything                      removed
    nothing     an entity                     taken into the catalog: there was one store before,
                                              or the catalog was lost

A store that is down has no list.  Its contents are dealt with when it is up; until then its
entities are known from the catalog.

Only decides.  Never removes anything unless the catalog says that it is being removed or was never
finished.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from twinbus.entities.catalog_entry import REMOVING, THERE, CatalogEntry
from twinbus.entities.commands import Listed, NewEntity
from twinbus.entities.descriptions import SUBSCRIPTIONS, QueueDescription
from twinbus.entities.message import NEVER_MS
from twinbus.entities.partitions import (
    NO_PARTITION,
    PARTITION_COUNT,
    partition_name,
    shown_name,
    split_partition,
)
from twinbus.errors import ConfigError
from twinbus.gateway.directory.directory import HIDDEN, Part

_SUBSCRIPTIONS: Final = SUBSCRIPTIONS.lower()
_KINDS: Final = ("queue", "topic", "subscription")  # none comes before what it belongs to


@dataclass
class Known:
    """An entity that belongs in the directory."""

    kind: str
    name: str
    description: QueueDescription
    parts: list[Part]  # their number is 0 where a store is down that nobody has asked yet
    is_changed: bool = False  # the catalog has to learn of it

    def part_name(self, part: Part) -> str:
        """What a part is called in its store."""
        if len(self.parts) < PARTITION_COUNT:
            return self.name
        return partition_name(self.name, part.partition)


@dataclass
class Make:
    """A part to be made, empty; its number is then the part's."""

    new: NewEntity
    part: Part
    # Where a subscription's rules can be copied from; else it gets the rule that takes all.
    rules_from: Part | None


@dataclass
class Update:
    """A part that is to get the description of its entity."""

    part: Part
    description: QueueDescription


@dataclass
class Plan:
    """The steps, in order; afterwards the catalog gets `entries` and `gone`."""

    deletes: list[Part] = field(default_factory=list)
    makes: list[Make] = field(default_factory=list)  # topics before their subscriptions
    updates: list[Update] = field(default_factory=list)
    known: list[Known] = field(default_factory=list)  # topics before their subscriptions
    removing: list[CatalogEntry] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)  # nothing of this should happen

    def entries(self) -> list[CatalogEntry]:
        """What the catalog has to learn; asked when everything else is done."""
        changed = [
            CatalogEntry(
                known.kind,
                known.name,
                known.description.to_json(),
                [part.store for part in known.parts],
                THERE,
                [part.entity_id for part in known.parts],
            )
            for known in self.known
            if known.is_changed
        ]
        return changed + self.removing


def reconcile(
    entries: Mapping[str, CatalogEntry], listings: Mapping[int, Sequence[Listed]], store_count: int
) -> Plan:
    """What is to be done, given the lists of all stores that are up.

    Nobody may be making, changing or removing an entity meanwhile (change_lock.py).
    """
    return _Reconciliation(entries, listings, store_count).run()


@dataclass
class _Found:
    """Where the parts of one entity are: by partition and store."""

    kind: str
    name: str
    parts: dict[int, dict[int, Listed]] = field(default_factory=dict)


@dataclass
class _Place:
    """A part: as its store lists it, missing from a store that is up, or unknown."""

    store: int
    listed: Listed | None
    is_up: bool

    @property
    def is_missing(self) -> bool:
        return self.is_up and self.listed is None


class _Reconciliation:
    """One comparison."""

    def __init__(
        self,
        entries: Mapping[str, CatalogEntry],
        listings: Mapping[int, Sequence[Listed]],
        store_count: int,
    ) -> None:
        self._entries = entries
        self._listings = listings
        self._store_count = store_count
        self._found = _sorted_out(listings)
        self._known: dict[str, Known] = {}
        self._going: set[str] = set()
        self._plan = Plan()

    def run(self) -> Plan:
        for kind in _KINDS:
            for entry in self._entries.values():
                if entry.kind == kind:
                    self._compare(entry)
            for found in self._found.values():
                if found.kind == kind:
                    self._take_in(found)
        self._plan.known = list(self._known.values())
        return self._plan

    # -- what the catalog knows --------------------------------------------------------------------

    def _compare(self, entry: CatalogEntry) -> None:
        found = self._found.pop((entry.kind, entry.name.lower()), None)
        stores = entry.stores
        is_orphan = False
        if entry.kind == "subscription":
            topic = self._known.get(_topic_name(entry.name.lower()))
            if topic is None:
                # Its topic is going, and perhaps nobody has come to say so of the subscription.
                is_orphan = self._is_going(_topic_name(entry.name.lower()))
                if not is_orphan:
                    self._warn(entry.name, "has no topic; it is left alone")
                    return
            elif len(topic.parts) == len(stores):
                stores = [part.store for part in topic.parts]
        places = self._places(entry.name, stores, found)
        if entry.state == REMOVING or is_orphan:
            self._remove(entry, places)
        elif entry.state == THERE or all(place.listed is not None for place in places):
            self._keep(entry, places)
        elif any(place.is_missing for place in places):
            self._remove(entry, places)
        # Else a store is down that may have all that is missing: then it is finished.

    def _is_going(self, topic_name: str) -> bool:
        return topic_name not in self._entries or topic_name in self._going

    def _places(self, name: str, stores: list[int], found: _Found | None) -> list[_Place]:
        """Each part where the catalog says it is; if it is not, where it was found."""
        places: list[_Place] = []
        for index, store in enumerate(stores):
            partition = NO_PARTITION if len(stores) == 1 else index
            listed = {} if found is None else found.parts.pop(partition, {})
            if listed and store not in listed:
                moved = min(listed)
                self._warn(name, f"has a part in store {moved} that belongs in store {store}")
                store = moved
            for other in sorted(set(listed) - {store}):
                self._warn(name, f"has a part twice; that in store {other} is left alone")
            places.append(_Place(store, listed.get(store), store in self._listings))
        if found is not None and found.parts:
            self._warn(name, "has parts that it should not have; they are left alone")
        return places

    def _remove(self, entry: CatalogEntry, places: list[_Place]) -> None:
        self._going.add(entry.name.lower())
        for index, place in enumerate(places):
            if place.listed is not None:
                self._plan.deletes.append(Part(place.store, place.listed.entity_id, index))
        if all(place.is_up for place in places):
            self._plan.gone.append(entry.name)
        elif entry.state == THERE:
            self._plan.removing.append(entry.changed(REMOVING))

    def _keep(self, entry: CatalogEntry, places: list[_Place]) -> None:
        description = entry.read_description()
        if len(places) == 1 and places[0].is_missing and _deletes_itself(description):
            self._remove(entry, places)
            return
        numbers = [
            known if place.listed is None else place.listed.entity_id
            for place, known in zip(places, entry.entity_ids, strict=True)
        ]
        known = self._know(entry.kind, entry.name, description, places, numbers)
        stores = [place.store for place in places]
        known.is_changed |= (
            entry.state != THERE or entry.stores != stores or entry.entity_ids != numbers
        )

    # -- what it does not know ---------------------------------------------------------------------

    def _take_in(self, found: _Found) -> None:
        lowered = found.name.lower()
        if lowered in self._known or lowered in self._entries:
            self._warn(found.name, f"is also a {found.kind} in a store; that is left alone")
            return
        topic = self._known.get(_topic_name(lowered))
        if found.kind == "subscription" and topic is None:
            return  # it goes with its topic
        first = next(iter(next(iter(found.parts.values())).values()))
        if topic is not None:
            stores = [part.store for part in topic.parts]
        elif NO_PARTITION in found.parts:
            stores = [min(found.parts[NO_PARTITION])]
        else:
            stores = [self._guess(found, partition) for partition in range(PARTITION_COUNT)]
        places = self._places(found.name, stores, found)
        numbers = [0 if place.listed is None else place.listed.entity_id for place in places]
        known = self._know(found.kind, found.name, first.description, places, numbers)
        known.is_changed = True

    def _guess(self, found: _Found, partition: int) -> int:
        """The store of a partition; if it is in none that is up, it may be in one that is down."""
        if partition in found.parts:
            return min(found.parts[partition])
        down = [store for store in range(self._store_count) if store not in self._listings]
        choice = down or range(self._store_count)
        return choice[partition % len(choice)]

    # -- both --------------------------------------------------------------------------------------

    def _know(
        self,
        kind: str,
        name: str,
        description: QueueDescription,
        places: list[_Place],
        numbers: list[int],
    ) -> Known:
        """The entity is in the directory, and whole where its stores are up."""
        parts = [
            Part(place.store, number, index)
            for index, (place, number) in enumerate(zip(places, numbers, strict=True))
        ]
        known = Known(kind, name, description, parts)
        self._known[name.lower()] = known
        rules_from: Part | None = None
        for part, place in zip(parts, places, strict=True):
            if place.store >= self._store_count:
                raise ConfigError(
                    f"'{shown_name(name)}' has a part in store {place.store}, and only "
                    f"{self._store_count} stores are configured; pass all of them, in the old order"
                )
            if place.listed is not None:
                rules_from = rules_from or part
                if place.listed.description != description:
                    self._plan.updates.append(Update(part, description))
        for part, place in zip(parts, places, strict=True):
            if place.is_missing:
                part.entity_id = 0
                known.is_changed = True
                new = NewEntity(kind, known.part_name(part), description)
                copied = rules_from if kind == "subscription" else None
                self._plan.makes.append(Make(new, part, copied))
                self._warn(
                    name,
                    f"has lost what it had in store {part.store}, partition {part.partition}; "
                    "it is made again, empty",
                )
        return known

    def _warn(self, name: str, what: str) -> None:
        self._plan.warnings.append(f"'{shown_name(name)}' {what}")


def _deletes_itself(description: QueueDescription) -> bool:
    return description.auto_delete_on_idle_ms != NEVER_MS


def _topic_name(lowered: str) -> str:
    """The topic of a subscription, in lower case; of anything else, itself."""
    return lowered.partition(_SUBSCRIPTIONS)[0]


def _sorted_out(listings: Mapping[int, Sequence[Listed]]) -> dict[tuple[str, str], _Found]:
    """What the stores list, by kind and lower-cased name of the whole entity."""
    sorted_out: dict[tuple[str, str], _Found] = {}
    for store in sorted(listings):
        for listed in listings[store]:
            if listed.name.startswith(HIDDEN):
                continue  # whoever made it looks after it
            name, partition = split_partition(listed.name)
            key = (listed.kind, name.lower())
            found = sorted_out.setdefault(key, _Found(listed.kind, name))
            found.parts.setdefault(partition, {})[store] = listed
    return sorted_out
