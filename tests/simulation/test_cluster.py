"""Whole-cluster schedules: random work while brokers, stores, disks and the gateway fail.

Two to four stores at two or three broker processes, with partitioned and plain queues, sessions and
a topic.  Each schedule draws from its seed which faults it meets and when (`Nemesis`), then
everything is healed and fetched, and the judge compares that with what clients were told:

- every acknowledged message arrives, once; none that was refused or completed does
- what has the same key or session keeps its order, and numbers are never used twice
- no receiver gets more than it asked for, and every command is answered exactly once
- a store never has two owners, and in the end all of them are open and empty

A failure names its seed; `PYTHONPATH=src:. python -m tests.simulation.test_cluster SEED` plays it
again.
"""

import os
import random
import sys
from dataclasses import replace
from functools import cache
from typing import Final

import pytest

from tests.simulation.cluster import Cluster
from tests.simulation.cluster_clients import LOCK_MS, PLACES, Receiver, World
from tests.simulation.cluster_faults import Nemesis, disk_with
from tests.simulation.cluster_fetching import check_served, fetch_everything
from tests.simulation.cluster_judge import Judge
from tests.simulation.cluster_processes import Loop
from tests.simulation.cluster_sessions import start_clients
from twinbus.entities.commands import NewEntity
from twinbus.entities.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.entities.partitions import PARTITION_COUNT, partition_name
from twinbus.entities.rule_descriptions import default_rule
from twinbus.gateway.directory.placement import stores_of_partitions
from twinbus.host.brokers.supervisor import Timings
from twinbus.testing.clock import SimClock
from twinbus.testing.disk import SimDisk

pytestmark = pytest.mark.proves("A-4", "E-3", "E-4", "E-5", "E-7", "E-8", "E-15")

SCHEDULES = 10_000 if os.environ.get("TWINBUS_TEST_SIZE") == "nightly" else 300
PARTS = 20  # of a test each, so that a failure does not hide the rest
WORK_MS = (5_000, 10_000, 20_000)
HEAL_MS_MAX = 400_000
MAX_DELIVERY_COUNT: Final = 6


# --- disks with the entities on them ----------------------------------------------------------


@cache
def founded(store_count: int) -> list[SimDisk]:
    """Disks of stores with all entities in them; to be copied."""
    clock = SimClock()
    healths = [0] * store_count
    queue = QueueDescription(
        lock_duration_ms=LOCK_MS, max_delivery_count=MAX_DELIVERY_COUNT, enable_partitioning=True
    )
    sessions = QueueDescription(
        lock_duration_ms=LOCK_MS,
        max_delivery_count=100,
        requires_session=True,
        enable_partitioning=True,
    )
    plain = QueueDescription(lock_duration_ms=LOCK_MS, max_delivery_count=MAX_DELIVERY_COUNT)
    plain_sessions = QueueDescription(
        lock_duration_ms=LOCK_MS, max_delivery_count=100, requires_session=True
    )
    topic = TopicDescription(enable_partitioning=True)
    subscription = SubscriptionDescription(lock_duration_ms=LOCK_MS)
    news: list[list[NewEntity]] = [[] for _ in range(store_count)]
    forwarding = replace(queue, forward_to="q1")
    distinct = replace(queue, requires_duplicate_detection=True)
    partitioned = (("pq", queue), ("ps", sessions), ("fp", forwarding), ("pd", distinct))
    for name, each in partitioned:
        for partition, store in enumerate(stores_of_partitions(name, healths)):
            news[store].append(NewEntity("queue", partition_name(name, partition), each))
    topic_stores = stores_of_partitions("pt", healths)
    for partition in range(PARTITION_COUNT):
        here = news[topic_stores[partition]]
        here.append(NewEntity("topic", partition_name("pt", partition), topic))
        for name in ("pt/Subscriptions/a", "pt/Subscriptions/b"):
            path = partition_name(name, partition)
            here.append(NewEntity("subscription", path, subscription, default_rule()))
    news[0].append(NewEntity("queue", "q0", plain))
    news[0].append(NewEntity("queue", "f0", replace(plain, forward_to="pq")))
    news[1].append(NewEntity("queue", "q1", plain))
    news[-1].append(NewEntity("queue", "s0", plain_sessions))
    return [disk_with(clock, each) for each in news]


# --- schedules --------------------------------------------------------------------------------


class Schedule:
    """One seeded run."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.loop = Loop(rng)
        self.judge = Judge(PLACES)
        store_count = rng.choice((2, 2, 3, 4))
        disks = [disk.restarted() for disk in founded(store_count)]
        timings = Timings(well_ms=rng.choice((500, 2_000, 10_000)))  # how soon stores move home
        self.cluster = Cluster(self.loop, disks, rng.choice((2, 2, 3)), timings)
        self.world = World(self.cluster, self.judge)
        self.nemesis: Nemesis | None = None

    def run(self) -> None:
        world = self.world
        assert self.loop.run(20_000, self.is_well), "it does not come up"
        start_clients(world)
        self.nemesis = Nemesis(world, self.loop.rng)
        self.loop.run(self.loop.rng.choice(WORK_MS))
        self.nemesis.heal()
        world.is_over = True
        assert self.loop.run(HEAL_MS_MAX, self.is_well), "it is not well again"
        assert self.loop.run(60_000, self.is_quiet), f"not answered: {self.open_questions()}"
        check_served(world)
        for client in world.clients:
            if isinstance(client, Receiver):
                client.close()
        fetch_everything(world)
        self.judge.finish()

    def is_well(self) -> bool:
        return self.cluster.gateway.is_well

    def is_quiet(self) -> bool:
        return not self.world.asked and not any(
            client.link is not None and client.link.is_draining and not client.link.is_full
            for client in self.world.clients
            if isinstance(client, Receiver)
        )

    def open_questions(self) -> list[str]:
        asked = [type(each.command).__name__ for each in self.world.asked]
        drains = [
            f"drain of {client.place}"
            for client in self.world.clients
            if isinstance(client, Receiver) and client.link is not None and client.link.is_draining
        ]
        return asked + drains


def run(seed: int) -> Schedule:
    schedule = Schedule(seed)
    try:
        schedule.run()
    except BaseException as error:
        done = [] if schedule.nemesis is None else schedule.nemesis.done
        error.add_note(f"seed {seed}, faults: {done}")
        error.add_note(f"again: PYTHONPATH=src:. python -m tests.simulation.test_cluster {seed}")
        raise
    return schedule


@pytest.mark.proves("A-3", "A-4", "E-3", "E-5", "E-7", "E-8", "E-15")
@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_breaks_a_promise(part: int) -> None:
    """Whatever fails, and whenever."""
    for seed in range(part, SCHEDULES, PARTS):
        run(seed)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        run(int(argument))
        sys.stdout.write(f"seed {argument}: all promises are kept\n")
