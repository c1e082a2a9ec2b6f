"""Two pairs with one secondary: the first one's primary is a whole simulated cluster.

    applications ─▶ flows of pair A ─▶ Call ─▶ Gateway of a Cluster, with all its faults
                        └─▶ backlog queues ─▶ syphons of A and B, which must not mix up
    applications ─▶ flows of pair B ─▶ Call ─▶ Recorder

The flows, the syphon, and everything behind the gateway are the real code.  A schedule draws from
its seed what goes wrong and when; then all is healed, the backlog is moved home, journals are
emptied, and the judges compare what is there with what applications were told.
"""

import random
from functools import cache
from typing import Final

from tests.simulation.cluster import Cluster
from tests.simulation.cluster_clients import World
from tests.simulation.cluster_faults import disk_with
from tests.simulation.cluster_fetching import as_list, ask_now
from tests.simulation.cluster_judge import ACKNOWLEDGED, Judge, Place
from tests.simulation.cluster_processes import Loop
from tests.simulation.paired_backlog import Backlog
from tests.simulation.paired_faults import PairNemesis
from tests.simulation.paired_primary import ClusterPrimary, Network, Recorder, name_in
from tests.simulation.paired_senders import Caller, Entity, Pair
from twinbus.entities.commands import Delivered, NewEntity, Peek
from twinbus.entities.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.entities.facts import DEAD_LETTER, MAIN
from twinbus.entities.partitions import partition_name
from twinbus.entities.rule_descriptions import default_rule
from twinbus.gateway.directory.placement import stores_of_partitions
from twinbus.host.brokers.supervisor import Timings
from twinbus.pairing.core import PairSettings
from twinbus.pairing.options import Policy
from twinbus.testing.clock import SimClock
from twinbus.testing.disk import SimDisk

SUBSCRIPTION: Final = "pt/Subscriptions/a"
PLACES: Final = {
    "pq": Place("pq", True, False),
    "ps": Place("ps", True, True),
    "pt": Place(SUBSCRIPTION, True, False),
    "q0": Place("q0", False, False),
    "s0": Place("s0", False, True),
}
ENTITIES: Final = {
    "pq": Entity("pq", ["pq"], "partition"),
    "ps": Entity("ps", ["ps"], "session"),
    "pt": Entity("pt", [SUBSCRIPTION], "partition"),
    "q0": Entity("q0", ["q0"], ""),
    "s0": Entity("s0", ["s0"], "session"),
}
# What a schedule has: to make and to open partitions takes time.
CASTS: Final = (("pq", "q0"), ("pq", "q0"), ("pq", "s0"), ("ps", "q0"), ("pt", "q0"))
HEALTHY_ENTITY: Final = Entity("pq", ["pq"], "")  # nothing has a key
STRANGE: Final = Entity("pq", ["pq"], "partition")  # of the other pair: the same name
POLICIES: Final[tuple[Policy, ...]] = ("documented", "documented", "legacy")
WORK_MS: Final = (2_000, 4_000)
HEAL_MS_MAX: Final = 400_000


@cache
def founded(store_count: int, cast: tuple[str, ...]) -> list[SimDisk]:
    """Disks of stores with these entities in them; to be copied."""
    news: list[list[NewEntity]] = [[] for _ in range(store_count)]
    for name in cast:
        place = PLACES[name]
        if place.is_partitioned:
            for partition, store in enumerate(stores_of_partitions(name, [0] * store_count)):
                news[store] += _partition(name, partition)
        else:
            described = QueueDescription(requires_session=place.has_sessions)
            news[0].append(NewEntity("queue", name, described))
    return [disk_with(SimClock(), each) for each in news]


def _partition(name: str, partition: int) -> list[NewEntity]:
    path = partition_name(name, partition)
    if name != "pt":
        has_sessions = PLACES[name].has_sessions
        queue = QueueDescription(enable_partitioning=True, requires_session=has_sessions)
        return [NewEntity("queue", path, queue)]
    below = partition_name(SUBSCRIPTION, partition)
    return [
        NewEntity("topic", path, TopicDescription(enable_partitioning=True)),
        NewEntity("subscription", below, SubscriptionDescription(), default_rule()),
    ]


class Schedule:
    """One seeded run."""

    def __init__(self, seed: int, cast: tuple[str, ...] = ()) -> None:
        rng = random.Random(seed)
        self.loop = Loop(rng)
        self.cast = cast or rng.choice(CASTS)
        self.judge = Judge([PLACES[name] for name in self.cast])
        self.stranger_judge = Judge([Place("pq", False, False)])
        disks = [disk.restarted() for disk in founded(rng.choice((2, 2, 3)), self.cast)]
        timings = Timings(well_ms=rng.choice((500, 2_000)))
        self.cluster = Cluster(self.loop, disks, 2, timings)
        self.world = World(self.cluster, self.judge)
        self.cluster.on_loss = self._store_lost
        self._losses = 0
        self.network = Network(self.loop, rng)
        self.primary = ClusterPrimary(self.world)
        self.stranger = Recorder(rng)
        # In two clouds a namespace may have the same name: then both use the same backlog queues.
        settings = self._settings("shop.servicebus.chinacloudapi.cn")
        strange = self._settings("shop.servicebus.usgovcloudapi.net")
        queues = [f"{settings.identity.prefix}{index}" for index in range(rng.choice((1, 2)))]
        self.backlog = Backlog(self.network, queues, rng.choice((1.0, 5.0)))
        self.backlog.crash_chance = rng.choice((0.0, 0.0, 0.05))
        self.pair = Pair("A", settings, self.network, self.primary, self.backlog, self.judge)
        self.other = Pair(
            "B", strange, self.network, self.stranger, self.backlog, self.stranger_judge
        )
        self.nemesis: PairNemesis | None = None

    def _settings(self, primary: str) -> PairSettings:
        rng = self.loop.rng
        return PairSettings(
            primary=primary,
            secondary="spare.servicebus.windows.net",
            failover_interval_s=rng.choice((0.0, 0.0, 0.5, 2.0)),
            ping_interval_s=1.0,
            policy=rng.choice(POLICIES),
            send_timeout_s=rng.choice((0.7, 2.0)),
        )

    def run(self) -> None:
        rng = self.loop.rng
        self.come_up()
        for name in (self.cast[0], *self.cast):
            Caller(self.pair, ENTITIES[name], rng.choice((120, 300)))
        Caller(self.other, STRANGE, 300)
        for _ in range(rng.choice((1, 1, 2))):
            self.backlog.start_syphon(self.pair.settings, self.primary)
        self.backlog.start_syphon(self.other.settings, self.stranger)
        self.nemesis = PairNemesis(self, rng)
        self.loop.run(rng.choice(WORK_MS))
        self.heal()
        self.check()

    def come_up(self) -> None:
        assert self.loop.run(20_000, self._is_well), "it does not come up"

    def heal(self) -> None:
        if self.nemesis is not None:
            self.nemesis.heal()
        self.pair.is_over = self.other.is_over = True
        assert self.loop.run(HEAL_MS_MAX, self._is_well), "it is not well again"
        self.backlog.restart_all()
        assert self.loop.run(HEAL_MS_MAX, self._is_quiet), f"not quiet: {self._open_questions()}"

    def _is_well(self) -> bool:
        return self.cluster.gateway.is_well

    def _is_quiet(self) -> bool:
        return not any(self._open_questions()) and self._is_well()

    def _open_questions(self) -> list[int]:
        return [
            len(self.world.asked),
            self.network.calls + self.network.under_way,
            not self.pair.is_quiet or not self.other.is_quiet,
            not self.backlog.is_empty,
        ]

    # -- the end ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Everything that was acknowledged is at its own primary, once."""
        for place in self.judge.places:
            for each in self._listed(place, MAIN):
                self._found(place, each)
            dead = [name_in(each.body) for each in self._listed(place, DEAD_LETTER)]
            assert not dead, f"{dead} are dead letters of {place}"
        self.judge.finish()
        for queue in self.backlog.queues.values():
            assert not queue.dead, f"dead letters in the backlog: {queue.dead}"
        self._check_stranger()

    def _listed(self, place: str, subqueue: int) -> list[Delivered]:
        """All that is there.  A peek passes over a store that moves, so it may take another."""
        while True:
            assert self.loop.run(HEAL_MS_MAX, self._is_well), "it does not stay well"
            changes = self._changes()
            listed: list[Delivered] = []
            number = 0
            while peeked := as_list(
                ask_now(self.world, Peek(self.world.number_of(place), subqueue, number, 100))
            ):
                listed += [each for each in peeked if isinstance(each, Delivered)]
                number = listed[-1].message.sequence_number + 1
            if changes == self._changes():
                return listed

    def _changes(self) -> tuple[int, int]:
        return self.cluster.move_count, self._losses

    def _store_lost(self, number: int) -> None:
        self._losses += 1

    def _found(self, place: str, each: Delivered) -> None:
        name = name_in(each.body).decode()
        assert name.startswith("A"), f"{name} belongs to another primary than {place}"
        now_ms = self.loop.clock.now().utc_ms
        judge = self.judge
        copy = judge.delivered(place, MAIN, each.message, int(name[1:]), 0, now_ms, 0, None)
        judge.found(copy)

    def _check_stranger(self) -> None:
        arrived = [name.decode() for name in self.stranger.arrived]
        strange = [name for name in arrived if not name.startswith("B")]
        assert not strange, f"{strange} belong to another primary than the stranger"
        assert len(set(arrived)) == len(arrived), "something is at the stranger twice"
        for number, attempt in enumerate(self.stranger_judge.attempts):
            is_there = f"B{number}" in arrived
            assert is_there or attempt.state != ACKNOWLEDGED, f"B{number} is lost"
