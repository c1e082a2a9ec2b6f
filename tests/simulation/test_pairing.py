"""Schedules of a pair: random outages, slow answers, cancelled calls and forced failovers.

Several senders on several entities, both policies, intervals down to 0, in simulated time.  While
the schedule runs the judge holds:

- a send fails only if the way that was open did: never both closed while one works
- every message that was taken is in one place; twice only where an answer was lost, with one key
- no send goes to the primary of a failed-over entity, and the interval passes unseen by nobody
- server-busy and unauthorized never fail over
- the first ping comes one interval after the failover, later ones at most one an interval

Then everything is healed: all senders are back on the primary, and pings stop.  A failure names its
seed; `PYTHONPATH=src:. python -m tests.simulation.test_pairing SEED` plays it again.
"""

import os
import random
import sys
from typing import Final

import pytest

from tests.simulation.pairing_judge import Judge
from tests.simulation.pairing_world import Health, Place, Sender, World
from twinbus.pairing.core import Pairing, PairSettings
from twinbus.pairing.events import State
from twinbus.pairing.options import Policy

pytestmark = pytest.mark.proves("P-7", "P-10", "P-13")

SCHEDULES = 100_000 if os.environ.get("TWINBUS_TEST_SIZE") == "nightly" else 2_000
PARTS = 20  # of a test each, so that a failure does not hide the rest
WORK_S: Final = 300.0
# Of a ping that hangs, a call that hangs, a pause, a queue's rest, and the longest interval.
HEAL_S: Final = 120.0 + 180.0 + 30.0 + 60.0 + 2 * 60.0 + 2 * 120.0

POLICIES: Final[tuple[Policy, ...]] = ("documented", "documented", "legacy")
OUTAGES: Final = (Health.DOWN, Health.HUNG, Health.LOST, Health.FULL, Health.STRANGE)
REFUSALS: Final = (Health.BUSY, Health.FORBIDDEN, Health.GONE)


def play(seed: int) -> Judge:
    rng = random.Random(seed)
    entities = ["orders", "Bills", "topic"][: rng.randint(1, 3)]
    queues = [f"primary/x-servicebus-transfer/{each}" for each in range(rng.choice((1, 2, 3)))]
    world = World(rng, entities, queues)
    settings = PairSettings(
        primary="primary",
        secondary="secondary",
        failover_interval_s=rng.choice((0.0, 0.0, 5.0, 30.0, 60.0)),
        ping_interval_s=rng.choice((1.0, 10.0, 60.0)),
        policy=rng.choice(POLICIES),
        send_timeout_s=rng.choice((3.0, 20.0)),
    )
    world.pairing = Pairing(settings, queues, rng, world.clock)
    world.judge = Judge(world.pairing, entities)
    gap_s = rng.choice((8.0, 20.0, 50.0))
    senders = [
        Sender(world, entity, f"{entity}-{each}", gap_s)
        for entity in entities
        for each in range(rng.choice((1, 1, 2)))
    ]
    for _ in range(rng.randint(1, 6)):
        world.later(rng.random() * WORK_S, lambda: harm(world))
    for _ in range(rng.choice((0, 0, 1, 3))):
        world.later(rng.random() * WORK_S, lambda: force(world))
    world.run(WORK_S)
    world.later(0.0, lambda: heal(world, senders))
    world.run(WORK_S + HEAL_S)
    world.judge.check_recovered()
    finish(world, senders)
    return world.judge


def harm(world: World) -> None:
    """A place, or all of a kind, does badly for a while."""
    rng = world.rng
    places: list[Place] = rng.choice((list(world.entities.values()), list(world.queues.values())))
    hit = places if rng.random() < 0.4 else [rng.choice(places)]
    health = rng.choice(OUTAGES if rng.random() < 0.75 else REFUSALS)
    for place in hit:
        place.health = health
    for_s = rng.choice((2.0, 40.0, 150.0))
    world.later(for_s, lambda: recover(hit))


def recover(places: list[Place]) -> None:
    for place in places:
        place.health = Health.UP


def force(world: World) -> None:
    entity = world.rng.choice((None, *world.entities))
    if world.rng.random() < 0.6:
        world.pairing.force_failover(entity)
    else:
        force_back(world, entity)


def force_back(world: World, entity: str | None) -> None:
    world.pairing.force_failback(entity)
    for each in world.entities if entity is None else [entity]:
        world.judge.forced_back(each)


def heal(world: World, senders: list[Sender]) -> None:
    """Nothing fails any more, and what was forced over is forced back."""
    for sender in senders:
        sender.gap_s = 160.0  # a few sends are enough to see
    recover([*world.entities.values(), *world.queues.values()])
    for name in world.entities:
        if world.pairing.entity(name).forced:
            force_back(world, name)


def finish(world: World, senders: list[Sender]) -> None:
    """A quiet hour: no ping, and the counters tell what happened."""
    for name in world.entities:
        assert world.pairing.entity(name).state is State.HEALTHY, f"{name}: nothing got through"
    for sender in senders:
        sender.is_stopped = True
    pings = world.judge.pings
    world.run(world.now + 3_600.0)
    assert world.judge.pings == pings, "pings go on after the recovery"
    assert world.pairing.next_deadline() is None
    statuses = world.pairing.status().entities.values()
    assert sum(each.pings for each in statuses) == pings


@pytest.mark.parametrize("part", range(PARTS))
def test_schedules(part: int) -> None:
    seen = [0, 0, 0]
    for seed in range(part, SCHEDULES, PARTS):
        try:
            judge = play(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        seen[0] += judge.in_backlog
        seen[1] += judge.recoveries
        seen[2] += judge.pings
    # A simulation in which nothing goes wrong proves nothing.
    assert min(seen) > SCHEDULES // PARTS


if __name__ == "__main__":
    play(int(sys.argv[1]))
