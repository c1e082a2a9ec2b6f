"""A pairing: what all senders of two paired clients share.

Settings, one `EntityFailover` for each entity, the rotation of backlog queues, the producer keys
and the events that nobody has been told yet.  Pure: it is told the time by a function, draws from
a `random.Random` it is given, and its shells call it under their lock.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from twinbus.pairing.errors import PairFaultedError
from twinbus.pairing.events import (
    BacklogQueueStatus,
    Event,
    PairFaulted,
    PairingStatus,
    SyphonCounts,
)
from twinbus.pairing.failover import EntityFailover
from twinbus.pairing.options import (
    Policy,
    RestoredTimeToLive,
    SendAvailabilityPairedNamespaceOptions,
)
from twinbus.pairing.primary import Primary, primary_of
from twinbus.pairing.producer_keys import ProducerKeys
from twinbus.pairing.rotation import BacklogRotation


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSettings:
    """Of one pairing; the options have checked the values."""

    primary: str  # fully qualified namespace
    secondary: str
    failover_interval_s: float = 60.0
    ping_interval_s: float = 60.0
    policy: Policy = "documented"
    restored_time_to_live: RestoredTimeToLive = "original"
    send_timeout_s: float = 60.0  # of one try, where the caller gives no timeout
    producer_keys: bool = True
    primary_name: str | None = None
    adopt_unmarked: bool = False

    @property
    def identity(self) -> Primary:
        """The primary as its backlog knows it."""
        return primary_of(self.primary, self.primary_name, adopts_unmarked=self.adopt_unmarked)

    @classmethod
    def of(
        cls, options: SendAvailabilityPairedNamespaceOptions, primary: str, secondary: str
    ) -> "PairSettings":
        return cls(
            primary=primary,
            secondary=secondary,
            failover_interval_s=options.failover_interval_s,
            ping_interval_s=options.ping_primary_interval_s,
            policy=options.policy,
            restored_time_to_live=options.restored_time_to_live,
            send_timeout_s=options.send_timeout_s,
            producer_keys=options.producer_keys,
            primary_name=options.primary_name,
            adopt_unmarked=options.adopt_unmarked,
        )


class Pairing:
    """The shared part of a paired client."""

    def __init__(
        self,
        settings: PairSettings,
        queues: list[str],
        chance: random.Random,
        now: Callable[[], float],
    ) -> None:
        self.settings = settings
        identity = settings.identity
        # On messages that go to the backlog: the mark, and the primary's id when it is known.
        self.mark = identity.mark
        self.namespace: str | None = None
        self._compares_ids = identity.compares_ids
        self.chance = chance
        self.now = now  # seconds of a steady clock
        self._events: list[Event] = []
        self.rotation = BacklogRotation(queues, chance, self._events)
        self.keys = ProducerKeys(chance, settings.producer_keys)
        self._entities: dict[str, EntityFailover] = {}
        self._fault = ""

    def entity(self, name: str) -> EntityFailover:
        """Made on demand; Service Bus's names compare without case."""
        folded = name.casefold()
        found = self._entities.get(folded)
        if found is None:
            found = self._entities[folded] = EntityFailover(
                name, self.settings.failover_interval_s, self.settings.ping_interval_s, self._events
            )
        return found

    def learn_namespace(self, told: str | None) -> None:
        """A link to the primary has opened, and this is the id that it tells.

        The lock need not be held: it is one assignment.
        """
        if self._compares_ids:
            self.namespace = told

    def tick(self) -> list[str]:
        """Time has passed: the entities whose ping is to go out now.

        Each is told once; the shell runs the flow of the ping for each of them.
        """
        now = self.now()
        return [entity.entity for entity in self._entities.values() if entity.tick(now)]

    def next_deadline(self) -> float | None:
        """When tick() is to be called again; None: not before something else happens."""
        deadlines = [entity.next_deadline() for entity in self._entities.values()]
        return min((each for each in deadlines if each is not None), default=None)

    @property
    def has_events(self) -> bool:
        """Whether take_events() has something to give: asked after every step of a send."""
        return bool(self._events)

    def take_events(self) -> list[Event]:
        """What has happened since the last call, in order."""
        events = self._events.copy()
        self._events.clear()
        return events

    def set_ping_interval(self, interval_s: float) -> None:
        """Of all entities, those that are failed over included."""
        self.settings = replace(self.settings, ping_interval_s=interval_s)
        for each in self._entities.values():
            each.set_ping_interval(interval_s)

    def force_failover(self, entity: str | None = None) -> None:
        """Send to the backlog from now on; None: all entities that have been used so far."""
        for each in self._chosen(entity):
            each.force_over(self.now())

    def force_failback(self, entity: str | None = None) -> None:
        """Send to the primary from now on; None: all entities that have been used so far."""
        for each in self._chosen(entity):
            each.force_back(self.now())

    def fault(self, reason: str) -> None:
        """The pair is over; the first reason is the one that is told."""
        if not self._fault:
            self._fault = reason
            self._events.append(PairFaulted(reason))

    def check(self) -> None:
        """Raise if the pair is over."""
        if self._fault:
            raise PairFaultedError(f"The pair is over: {self._fault}")

    def status(
        self, syphon: Mapping[str, SyphonCounts] | None = None, *, running: bool = False
    ) -> PairingStatus:
        """`syphon`: what this process's has done, by queue."""
        now = self.now()
        counts = syphon or {}
        rotation = self.rotation
        # Queues of older versions are only emptied.
        queues = [*rotation.queues, *(each for each in counts if each not in rotation.queues)]
        return PairingStatus(
            primary=self.settings.primary,
            secondary=self.settings.secondary,
            entities={each.entity: each.status(now) for each in self._entities.values()},
            backlog_queues={
                queue: BacklogQueueStatus(
                    queue,
                    queue in rotation.queues and rotation.is_in_use(queue, now),
                    rotation.last_error(queue),
                    *counts.get(queue, SyphonCounts()),
                )
                for queue in queues
            },
            syphon_running=running,
            fault=self._fault,
        )

    def _chosen(self, entity: str | None) -> list[EntityFailover]:
        return list(self._entities.values()) if entity is None else [self.entity(entity)]
