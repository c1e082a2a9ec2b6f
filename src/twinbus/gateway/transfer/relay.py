"""Relays: forwarding from, to and between partitioned entities, and between stores.  (E-11)

    orders#3 in store 1 ─▶ Relay ─┬▶ archive#0 in store 0
                                  ├▶ archive#1 in store 1
                                  └▶ …

Between two plain entities of one store forwarding is one frame of its log (broker/forwarding.py).
Everything else takes a relay for each part of the source, and for its dead-letter queue where that
is forwarded.  What a forwarded message is, and which cannot go on, is decided by the same code.

A message with a key goes to the partition of that key; others go round robin by their sequence
number, so that a relay which tries again after a restart tries the same partition: only that one
knows whether the message has come.  While a store is down what belongs there waits at the source.

`Relays` keeps those running that are needed.  It is told of entities and of the health of stores,
and of time; it asks nobody.
"""

from collections.abc import Sequence
from typing import Final

from twinbus.clock import Clock, Now
from twinbus.entities.commands import TRANSFER_DEAD_LETTER
from twinbus.entities.facts import DEAD_LETTER, MAIN
from twinbus.entities.fields import MessageCodec
from twinbus.entities.forwarded import (
    forwarded,
    refusal,
    target_name,
    target_not_found,
    too_many_hops,
)
from twinbus.entities.message import NewMessage, Overlay
from twinbus.entities.partitions import PARTITION_COUNT, hash_key, key_of, partition_name
from twinbus.errors import InvalidOperation, ServiceError
from twinbus.gateway.directory.directory import Directory, Entity, Part
from twinbus.gateway.transfer.carrier import CarriedMessage, Carrier, Lane
from twinbus.links.store_link import StoreLink

_PARTS: Final = (MAIN, DEAD_LETTER)


class Relay(Carrier):
    """Forwards one part of one source."""

    def __init__(
        self,
        links: Sequence[StoreLink],
        clock: Clock,
        codec: MessageCodec,
        source: Entity,
        part: Part,
        subqueue: int,
        target: Entity | None,
    ) -> None:
        name = source.name
        if source.is_partitioned:
            name = partition_name(name, part.partition)
        # An entity that is made anew under its old name begins with its numbers again.
        made = f"{part.entity_id}.{source.description.created_utc_ms}"
        super().__init__(links, clock, part, subqueue, f"{name}@{made}/{subqueue}")
        self.target = target
        self._codec = codec
        self._entity = source
        self._name = name

    @property
    def _shown_target(self) -> str:
        return _target_of(self._entity, self.subqueue) or ""

    def address(self, carried: CarriedMessage) -> int:
        target = self.target
        if target is None or target is self._entity:
            raise target_not_found(self._shown_target)
        if too_many_hops(carried.message) is not None:
            raise InvalidOperation("It has been forwarded too often.")  # `refuse` says it better
        if not target.needs_keys:
            return 0
        carried.keys = self._codec.read_keys(carried.body)
        if not target.is_partitioned:
            return 0
        new = NewMessage(b"")
        new.message_id, new.session_id, new.partition_key = carried.keys
        key = key_of(new, target.description.requires_duplicate_detection)
        return carried.number % PARTITION_COUNT if key is None else hash_key(key)

    def destination(self, lane: Lane) -> Part:
        if self.target is None:
            raise target_not_found(self._shown_target)
        return self.target.parts[lane.partition]

    def rewritten(self, carried: CarriedMessage, now: Now) -> NewMessage:
        new = forwarded(self._name, self.subqueue, carried.message, carried.body, now)
        new.message_id, new.session_id, new.partition_key = carried.keys
        return new

    def refuse(self, carried: CarriedMessage, error: ServiceError) -> tuple[int, Overlay | None]:
        return TRANSFER_DEAD_LETTER, too_many_hops(carried.message) or refusal(error)


class Relays:
    """All relays of a gateway."""

    def __init__(
        self, links: Sequence[StoreLink], directory: Directory, clock: Clock, codec: MessageCodec
    ) -> None:
        self._links = links
        self._directory = directory
        self._clock = clock
        self._codec = codec
        # By source, part and subqueue.
        self._running: dict[tuple[int, int, int], Relay] = {}
        self._ending: dict[tuple[int, int, int], list[Relay]] = {}
        self._sources: dict[int, Entity] = {}  # whatever forwards, by the directory's number
        self._forwarders: dict[str, set[int]] = {}  # who forwards to a name
        self._named: dict[int, set[str]] = {}  # the same from the source's side

    def load(self) -> None:
        """The directory has been filled: begin."""
        for entity in list(self._directory.by_id.values()):
            self._note(entity)
        for entity in list(self._sources.values()):
            self._review(entity)

    def entity_changed(self, entity: Entity) -> None:
        """An entity is new, has another description or is gone: a source, a target, or both."""
        self._note(entity)
        self._review(entity)
        for entity_id in list(self._forwarders.get(entity.name.lower(), ())):
            source = self._sources.get(entity_id)
            if source is not None:
                self._review(source)

    def _note(self, entity: Entity) -> None:
        """Keep in mind who forwards to whom."""
        entity_id = entity.entity_id
        for name in self._named.pop(entity_id, ()):
            self._forwarders[name].discard(entity_id)
            if not self._forwarders[name]:
                del self._forwarders[name]
        names = _targets(entity)
        if entity_id not in self._directory.by_id or not names:
            self._sources.pop(entity_id, None)
            return
        self._sources[entity_id] = entity
        self._named[entity_id] = names
        for name in names:
            self._forwarders.setdefault(name, set()).add(entity_id)

    def _review(self, source: Entity) -> None:
        """Run the relays that this source needs, and no others."""
        for subqueue in _PARTS:
            is_needed, target = self._need(source, subqueue)
            for part in source.parts:
                key = (source.entity_id, part.partition, subqueue)
                running = self._running.get(key)
                if running is not None and (not is_needed or running.target is not target):
                    del self._running[key]
                    self._ending.setdefault(key, []).append(running)
                    running.close()
                    running = None
                if is_needed and running is None:
                    self._run(key, source, part, subqueue, target)

    def _need(self, source: Entity, subqueue: int) -> tuple[bool, Entity | None]:
        """Does this part of the source take a relay, and to whom?"""
        name = _target_of(source, subqueue)
        if name is None or source.entity_id not in self._sources:
            return False, None
        target = self._directory.find(target_name(source.name, name))
        if source.is_partitioned or target is None:
            return True, target  # only here is it known that there is no target in any store
        return target.is_partitioned or target.parts[0].store != source.parts[0].store, target

    def _run(
        self,
        key: tuple[int, int, int],
        source: Entity,
        part: Part,
        subqueue: int,
        target: Entity | None,
    ) -> None:
        relay = Relay(self._links, self._clock, self._codec, source, part, subqueue, target)
        self._running[key] = relay
        if not self._is_ending(key):
            relay.open()

    def _is_ending(self, key: tuple[int, int, int]) -> bool:
        """Does a former relay still have to find out what has become of its last send?"""
        left = [relay for relay in self._ending.get(key, ()) if not relay.is_done]
        if left:
            self._ending[key] = left
            return True
        self._ending.pop(key, None)
        return False

    def concerns(self, entity: Entity) -> bool:
        """Does anything forward from it or to it?"""
        return entity.entity_id in self._sources or entity.name.lower() in self._forwarders

    def health_changed(self, store: int) -> None:
        """A store is up, slow or down now."""
        for relay in self._all():
            relay.health_changed(store)

    def tick(self, now: Now) -> None:
        """Time has passed."""
        for relay in self._all():
            relay.tick(now)
        for key in list(self._ending):
            if not self._is_ending(key) and key in self._running:
                self._running[key].open()

    def close(self) -> None:
        """The gateway stops: give back what has not been sent."""
        for relay in self._all():
            relay.close()

    def _all(self) -> list[Relay]:
        ending = [relay for relays in self._ending.values() for relay in relays]
        return [*self._running.values(), *ending]


def _target_of(source: Entity, subqueue: int) -> str | None:
    """The name to which a part is forwarded, as its users know it."""
    description = source.description
    if subqueue == MAIN:
        return description.forward_to
    return description.forward_dead_lettered_messages_to


def _targets(source: Entity) -> set[str]:
    names = [_target_of(source, subqueue) for subqueue in _PARTS]
    return {target_name(source.name, name).lower() for name in names if name is not None}
