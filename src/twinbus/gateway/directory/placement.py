"""Placement: entities in stores, stores at brokers.

Pure arithmetic over the current state.  An entity stays where it was placed: these rules apply only
to new ones, so a rule may change without moving any messages.
"""

from collections.abc import Iterable, Sequence
from zlib import crc32

from twinbus.entities.partitions import PARTITION_COUNT
from twinbus.errors import Unavailable
from twinbus.links.store_link import DOWN


def stores_of_partitions(path: str, healths: Sequence[int]) -> list[int]:
    """The store of each partition of a new entity; `healths` are those of the stores, in order.

    Spread evenly: two stores never differ by more than one partition.  Where the first goes depends
    on the name, because a short burst of keys that all hash to partition 0 should not always meet
    store 0.  An entity is made whole or not at all (E-12), so every store it needs must be there.
    """
    count = len(healths)
    first = crc32(path.lower().encode()) % count
    stores = [(first + partition) % count for partition in range(PARTITION_COUNT)]
    missing = sorted({store for store in stores if healths[store] == DOWN})
    if missing:
        named = ", ".join(map(str, missing))
        raise Unavailable(f"a partition of this entity belongs in store {named}, which is down")
    return stores


def store_of_plain(counts: Sequence[int], healths: Sequence[int]) -> int:
    """The store of a new plain entity: the one with the fewest of them (`counts`) that is there."""
    there = [store for store, health in enumerate(healths) if health != DOWN]
    if not there:
        raise Unavailable("no store is up to take a new entity")
    return min(there, key=lambda store: (counts[store], store))


def home_of(store: int, broker_count: int) -> int:
    """The broker that runs a store when nothing is wrong."""
    return store % broker_count


def least_loaded(live: Iterable[int], owners: Sequence[int]) -> int:
    """The broker that takes a store over: of the live ones that with the fewest, or -1.

    `owners` has a broker for each store, -1 where there is none.
    """
    return min(live, key=lambda broker: (owners.count(broker), broker), default=-1)
