"""The gateway: where a command, a receiver or a wait for a session goes.

    plain entity         to the link of the store it is in
    partitioned entity   by key, by sequence number or to all of its partitions (partitioned.py)

The server's links talk to this.  Numbers of entities are the directory's; only here are they
translated into those of a store.  Must never wait: anything that takes time is answered later.
"""

from collections.abc import Callable, Sequence

from twinbus.clock import Clock
from twinbus.entities.commands import Command, Reply, Send, dispatch_replies
from twinbus.entities.partitions import hash_key
from twinbus.entities.session_locks import SessionLock
from twinbus.errors import EntityNotFound, ServiceError
from twinbus.gateway.counting.counters import Metrics
from twinbus.gateway.counting.meter import Meter
from twinbus.gateway.directory.directory import (
    LOCAL_MASK,
    PARTITIONED,
    STORE_SHIFT,
    Directory,
    Entity,
    Part,
)
from twinbus.gateway.health.health import LIMITED, availability
from twinbus.gateway.partitions.fan_out import Losing, Ticking
from twinbus.gateway.partitions.receiver import PartitionedReceiver
from twinbus.gateway.partitions.routing import route
from twinbus.gateway.partitions.sessions import accept_session
from twinbus.gateway.throttling.link import ThrottledLink
from twinbus.gateway.throttling.throttle import Throttle
from twinbus.gateway.transfer.journal import Journals
from twinbus.links.sink import Sink
from twinbus.links.store_link import Accepting, Answer, ReceiverDescription, Receiving, StoreLink


class Gateway:
    """Routes requests from a client's links to the stores."""

    def __init__(
        self, links: list[StoreLink], clock: Clock, stores: Sequence[StoreLink] | None = None
    ) -> None:
        """`stores` are the links without any wrapper, for what no wrapper is about."""
        self.links = links
        self.clock = clock
        self.directory = Directory()
        self.metrics = Metrics(clock)
        self.meter = Meter()
        # Partitions of an entity that a fault has made unreachable.
        self.down_partitions: Callable[[Entity], frozenset[int]] = _no_partitions
        self.journals: Journals | None = None  # where there are several stores
        self.ticking: set[Ticking] = (
            set()
        )  # receivers with a cache and peeks, at partitioned entities
        self.receivers: set[Losing] = set()  # all of those
        self._stores = list(links if stores is None else stores)
        self._only_store = self._stores[0] if len(self._stores) == 1 else None
        self._throttled: list[ThrottledLink] = []
        self._throttle: Throttle | None = None
        self._only = links[0] if len(links) == 1 else None

    def set_throttle(self, throttle: Throttle) -> None:
        """From now on this one may refuse things."""
        self._throttle = throttle
        self._throttled = [
            ThrottledLink(store, link, self.directory, throttle, self.clock)
            for store, link in enumerate(self.links)
        ]
        self.links = list[StoreLink](self._throttled)
        self._only = self.links[0] if len(self.links) == 1 else None
        self.look_at_throttle()

    def look_at_throttle(self) -> None:
        """It may have a reason to refuse something now, or none any more."""
        for link in self._throttled:
            link.set_work(not link.throttle.is_calm)

    def check_management(self, prefix: str) -> None:
        """Refuse to manage entities of a namespace while there is too much to do."""
        if self._throttle is not None and not self._throttle.is_calm:
            refusal = self._throttle.admit_management(prefix, self.clock.now())
            if refusal is not None:
                raise refusal

    # -- commands --------------------------------------------------------------------------------

    def submit(self, commands: list[Command]) -> None:
        """Have these decided; each goes its own way, those for one store keep their order."""
        only = self._only
        if only is not None:
            for command in commands:
                if command.entity_id >= PARTITIONED:
                    break
            else:  # the usual case by far: the numbers are the store's own
                only.submit(commands)
                return
        journals = self.journals
        batches: dict[int, list[Command]] = {}
        for command in commands:
            entity_id = command.entity_id
            if entity_id >= PARTITIONED:
                self._send_off(batches)
                self._route(command)
                continue
            store = entity_id >> STORE_SHIFT
            if journals is not None and journals.takes(store) and isinstance(command, Send):
                entity = self.directory.by_id.get(entity_id)
                if entity is not None and journals.divert(entity, entity.parts[0], command):
                    continue
            command.entity_id = entity_id & LOCAL_MASK
            batches.setdefault(store, []).append(command)
        self._send_off(batches)

    def _send_off(self, batches: dict[int, list[Command]]) -> None:
        for store, batch in batches.items():
            self.links[store].submit(batch)
        batches.clear()

    def _route(self, command: Command) -> None:
        entity = self.directory.by_id.get(command.entity_id)
        try:
            if entity is None:
                raise EntityNotFound("The messaging entity could not be found.")
            route(self, entity, command)
        except ServiceError as error:
            self.answer(Reply(command, None, error))

    def answer(self, reply: Reply) -> None:
        """A reply that no store has given."""
        dispatch_replies([reply])

    def divert(self, entity: Entity, part: Part, command: Send) -> bool:
        """Take a send for a store that is not well elsewhere, if that can be done."""
        return self.journals is not None and self.journals.divert(entity, part, command)

    def tick(self) -> None:
        """A second or so has passed."""
        for each in list(self.ticking):
            each.tick()

    def turn_if_alone(self, client: object) -> None:
        if self._only_store is not None:
            self._only_store.turn_if_alone(client)
            return
        for link in self._stores:
            link.turn_if_alone(client)

    @property
    def pending_bytes(self) -> int:
        """Of sends on their way to the disks."""
        if self._only_store is not None:
            return self._only_store.pending_bytes
        return max([link.pending_bytes for link in self._stores])

    def when_durable(self, call: Callable[[], None]) -> None:
        """Call when everything submitted until now is durable and answered."""
        if self._only_store is not None:
            self._only_store.when_durable(call)
            return
        countdown = _Countdown(len(self._stores), call)
        for link in self._stores:
            link.when_durable(countdown.one_less)

    # -- receivers and sessions ------------------------------------------------------------------

    def open_receiver(self, description: ReceiverDescription, sink: Sink) -> Receiving:
        """Receive from a part of an entity.  A refusal is raised, or comes as `sink.lost`."""
        entity_id, session = description.entity_id, description.session
        if entity_id >= PARTITIONED:
            entity = self._partitioned(entity_id)
            if session is None:
                return PartitionedReceiver(self, entity, description, sink)
            part = entity.parts[hash_key(session.session_id)]
            link, local_id = self.links[part.store], part.entity_id
        else:
            link, local_id = self.links[entity_id >> STORE_SHIFT], entity_id & LOCAL_MASK
        return link.open_receiver(description.of(local_id), sink)

    def accept_session(
        self, entity_id: int, session_id: str | None, timeout_ms: int, grant: int, then: Answer
    ) -> Accepting:
        """Lock a session for a receiver, the next available one if none is named."""
        if entity_id >= PARTITIONED:
            entity = self._partitioned(entity_id)
            return accept_session(self, entity, session_id, timeout_ms, grant, then)
        link = self.links[entity_id >> STORE_SHIFT]
        return link.accept_session(entity_id & LOCAL_MASK, session_id, timeout_ms, grant, then)

    def release_session(self, entity_id: int, lock: SessionLock) -> None:
        """A lock that was given for a receiver which could not be opened."""
        if entity_id >= PARTITIONED:
            entity = self.directory.by_id.get(entity_id)
            if entity is not None:
                part = entity.parts[hash_key(lock.session_id)]
                self.links[part.store].release_session(part.entity_id, lock)
            return
        self.links[entity_id >> STORE_SHIFT].release_session(entity_id & LOCAL_MASK, lock)

    def _partitioned(self, entity_id: int) -> Entity:
        entity = self.directory.by_id.get(entity_id)
        if entity is None:
            raise EntityNotFound("The messaging entity could not be found.")
        return entity

    def lose(self, is_lost: Callable[[Entity, int], bool], error: ServiceError) -> None:
        """From these partitions of entities nothing more comes, until they can be asked again."""
        for receiver in list(self.receivers):
            receiver.lose(is_lost, error)

    # -- health ----------------------------------------------------------------------------------

    def availability(self, entity: Entity) -> str:
        """What management says of an entity: is all of it there?"""
        if self.down_partitions(entity):
            return LIMITED
        return availability(entity, self.links)


def _no_partitions(entity: Entity) -> frozenset[int]:
    """Where nothing goes wrong on purpose."""
    return frozenset()


class _Countdown:
    """Calls back after a number of calls."""

    __slots__ = ("_call", "_left")

    def __init__(self, count: int, call: Callable[[], None]) -> None:
        self._left = count
        self._call = call

    def one_less(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._call()
