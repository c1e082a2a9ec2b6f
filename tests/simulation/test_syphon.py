"""Syphons in simulated time: nothing is lost, nothing is twice, others go on."""

import collections
import os
import random
from collections.abc import Callable

import pytest
from azure.servicebus.exceptions import (
    ServiceBusAuthorizationError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from tests.simulation.syphon_world import BacklogQueue, Destination, World, down
from twinbus.pairing.events import StrangersLeft
from twinbus.pairing.rules import DESTINATION_NOT_FOUND, TOO_LARGE

pytestmark = pytest.mark.proves("P-14", "P-15", "C-2")

HOUR_S = 3600.0
SCHEDULES = range(2_000 if os.environ.get("TWINBUS_TEST_SIZE") == "nightly" else 12)


def world_of(queues: int, *paths: str, seed: int = 0) -> World:
    world = World(seed)
    names = [f"backlog/x-servicebus-transfer/{index}" for index in range(queues)]
    world.queues = {name: BacklogQueue() for name in names}
    world.destinations = {path: Destination() for path in paths}
    return world


@pytest.mark.proves("C-2")
@pytest.mark.parametrize(("hours", "receives"), [(1, 40), (24, 960)])
def test_receives_of_idle_queues(hours: int, receives: int) -> None:
    """10 idle queues, one syphon: 40 an hour, 960 a day, and nothing else at all."""
    world = world_of(10)
    world.start()
    world.run(hours * HOUR_S - 1.0)
    assert sum(queue.receives for queue in world.queues.values()) == receives
    assert world.pauses_s == []


def test_a_thousand_messages_in_one_go() -> None:
    world = world_of(1, "q")
    for number in range(1000):
        world.put("backlog/x-servicebus-transfer/0", "q", str(number))
    syphon = world.start()
    world.run(10.0)
    assert [body for body, _ in world.destinations["q"].arrived] == [str(n) for n in range(1000)]
    assert world.destinations["q"].sends == 10
    assert syphon.moved == {"backlog/x-servicebus-transfer/0": 1000}


@pytest.mark.proves("P-14")
def test_a_destination_that_is_down_holds_up_nobody() -> None:
    """2,000 messages for it come first, those for the other arrive within the minute."""
    world = world_of(1, "down", "up")
    world.destinations["down"].error = down()
    for number in range(2000):
        world.put("backlog/x-servicebus-transfer/0", "down", str(number))
    world.put("backlog/x-servicebus-transfer/0", "up", "at last")
    world.start()
    world.run(60.0)
    assert world.destinations["up"].arrived == [("at last", None)]
    assert world.destinations["down"].sends < 10, "it rests between the tries"
    world.destinations["down"].error = None
    world.run(600.0)
    assert len(world.destinations["down"].arrived) == 2000
    assert not world.queues["backlog/x-servicebus-transfer/0"].messages


def test_a_long_outage_is_cheap() -> None:
    """The rests grow to two minutes, and receives with them."""
    world = world_of(1, "q")
    world.destinations["q"].error = down()
    for number in range(50):
        world.put("backlog/x-servicebus-transfer/0", "q", str(number))
    world.start()
    world.run(HOUR_S)
    assert world.destinations["q"].sends < 60
    assert world.queues["backlog/x-servicebus-transfer/0"].receives < 120


@pytest.mark.parametrize(
    "error",
    [
        ServiceBusServerBusyError(message="busy"),
        ServiceBusQuotaExceededError(message="full"),
        ServiceBusAuthorizationError(message="wrong key"),
        OSError("cut"),
    ],
)
def test_nothing_is_dead_lettered_for_what_can_be_mended(error: Exception) -> None:
    world = world_of(1, "q")
    world.destinations["q"].error = error
    for number in range(10):
        world.put("backlog/x-servicebus-transfer/0", "q", str(number))
    world.start()
    world.run(HOUR_S)
    assert len(world.queues["backlog/x-servicebus-transfer/0"].messages) == 10
    world.destinations["q"].error = None
    world.run(HOUR_S + 300.0)
    assert len(world.destinations["q"].arrived) == 10
    assert not world.queues["backlog/x-servicebus-transfer/0"].dead


def trouble(world: World, destination: Destination, until: float) -> None:
    """Goes up and down, refuses and loses answers, and is well from `until` on."""
    when = 0.0
    while when < until:
        when += world.chance.uniform(5, 120)
        error = world.chance.choice([None, down(), ServiceBusServerBusyError(message="busy")])
        loses = world.chance.random() < 0.3

        def change(error: Exception | None = error, loses: bool = loses) -> None:
            destination.error, destination.loses_answers = error, loses

        world.at(min(when, until), change)

    def mend() -> None:
        destination.error, destination.loses_answers = None, False

    world.at(until, mend)


def fill(world: World, count: int, until: float) -> dict[str, list[str]]:
    """Messages at random times; gives the bodies of each path in the order of their queue."""
    paths = [*world.destinations, "gone"]
    sent: dict[str, list[str]] = collections.defaultdict(list)
    chance = world.chance
    for when in sorted(chance.uniform(0, until) for _ in range(count)):
        queue = chance.choice(list(world.queues))
        path = chance.choices(paths, [8] * len(world.destinations) + [1])[0]
        session_id = chance.choice([None, "a", "b"])

        def put(args: tuple[str, str, str | None] = (queue, path, session_id)) -> None:
            queue, path, session_id = args
            body = f"{queue} {session_id} {world.queues[queue].last_number + 1}"
            sent[path].append(body)
            if chance.random() < 0.05 and path != "gone":
                world.destinations[path].too_large.add(body)
            world.put(queue, path, body, session_id)

        world.at(when, put)
    return sent


def check_everything_arrived(world: World, sent: dict[str, list[str]]) -> None:
    dead = collections.Counter(
        reason for queue in world.queues.values() for reason, _ in queue.dead.values()
    )
    assert not any(queue.messages for queue in world.queues.values()), "something is left"
    too_large = set[str]()
    for path, destination in world.destinations.items():
        arrived = [body for body, _ in destination.arrived]
        too_large |= destination.too_large
        assert sorted(arrived) == sorted(set(sent[path]) - destination.too_large), path
    expected = {DESTINATION_NOT_FOUND: len(sent["gone"]), TOO_LARGE: len(too_large)}
    assert dict(dead) == {reason: count for reason, count in expected.items() if count}


def check_order(world: World) -> None:
    for destination in world.destinations.values():
        last: dict[tuple[str, str], int] = {}
        for body, session_id in destination.arrived:
            queue, _, number = body.rsplit(" ", 2)
            if session_id is not None:
                assert int(number) > last.get((queue, session_id), 0), f"{body} was overtaken"
                last[queue, session_id] = int(number)


@pytest.mark.proves("P-14")
@pytest.mark.parametrize("seed", SCHEDULES)
def test_order_of_sessions_with_one_syphon(seed: int) -> None:
    """Destinations go up and down, answers get lost; order per session stays."""
    world = world_of(2, "q", "r", seed=seed)
    world.send_s = slow_at_times(world.chance)
    for destination in world.destinations.values():
        destination.batch_max = world.chance.choice([3, 50, 1000])
        trouble(world, destination, 900.0)
    sent = fill(world, 80, 900.0)
    world.start()
    world.run(2 * HOUR_S)
    check_everything_arrived(world, sent)
    check_order(world)


@pytest.mark.proves("P-15")
@pytest.mark.parametrize("seed", SCHEDULES)
def test_several_syphons_that_crash(seed: int) -> None:
    """Killed before and after any step, between send and complete too: none lost or twice."""
    world = world_of(2, "q", "r", seed=1000 + seed)
    world.send_s = slow_at_times(world.chance)
    world.crash_chance = 0.05
    for destination in world.destinations.values():
        trouble(world, destination, 900.0)
    sent = fill(world, 80, 900.0)
    for _ in range(3):
        world.start()
    world.run(3 * HOUR_S)
    check_everything_arrived(world, sent)


def test_copies_do_happen() -> None:
    """Otherwise the tests above would show nothing: it is the key that keeps them out."""
    copies = 0
    for seed in range(5):
        world = world_of(1, "q", seed=seed)
        world.crash_chance = 0.2
        for number in range(300):
            world.put("backlog/x-servicebus-transfer/0", "q", str(number))
        world.start()
        world.run(3 * HOUR_S)
        copies += world.destinations["q"].copies
        assert len(world.destinations["q"].arrived) == 300
    assert copies > 0


def slow_at_times(chance: random.Random) -> Callable[[], float]:
    return lambda: chance.choice([0.01] * 9 + [25.0])


# --- messages of other primaries ------------------------------------------------------------------

OWN = "backlog/x-servicebus-transfer/0"
SHARED = "old/x-servicebus-transfer/0"


def strangers(world: World) -> list[StrangersLeft]:
    return [event for event in world.events if isinstance(event, StrangersLeft)]


@pytest.mark.proves("P-19")
@pytest.mark.parametrize("name", [OWN, SHARED])
def test_strangers_in_front_hold_up_nobody(name: str) -> None:
    """However many there are; they stay as they are, and are reported once."""
    world = world_of(1, "q")
    world.queues = {name: BacklogQueue()}
    for number in range(3_000):
        world.put(name, "q", f"stranger {number}", mark="another")
    for number in range(10):
        world.put(name, "q", str(number))
    world.start()
    world.run(120.0)
    assert [body for body, _ in world.destinations["q"].arrived] == [str(n) for n in range(10)]
    world.run(HOUR_S)
    world.put(name, "q", "late")
    world.run(2 * HOUR_S)
    assert world.destinations["q"].arrived[-1] == ("late", None)
    assert len(world.destinations["q"].arrived) == 11
    assert len(world.queues[name].messages) == 3_000
    assert not world.queues[name].dead
    assert strangers(world) == [StrangersLeft(name, "another", 3_000)]


@pytest.mark.proves("P-19")
def test_what_is_nobodys_here_is_not_locked() -> None:
    """Its own syphon shall find it; and to look at it now and then costs little."""
    world = world_of(1, "q")
    world.queues = {SHARED: BacklogQueue()}
    for number in range(7):
        world.put(SHARED, "q", f"{number}", mark=None if number < 3 else "another")
    world.start()
    world.run(HOUR_S)
    queue = world.queues[SHARED]
    assert queue.receives == 0
    assert queue.peeks < 40
    assert strangers(world) == [StrangersLeft(SHARED, "", 3), StrangersLeft(SHARED, "another", 4)]
    assert world.destinations["q"].arrived == []


@pytest.mark.proves("P-19")
def test_strangers_are_not_received_over_and_over() -> None:
    """Each receive counts as a delivery, and their queue may have a limit."""
    world = world_of(1, "q")
    world.put(OWN, "q", "stranger", mark="another")
    world.start()
    world.run(24 * HOUR_S)
    assert world.queues[OWN].receives <= 2


@pytest.mark.proves("P-19")
@pytest.mark.parametrize("name", [OWN, SHARED])
def test_a_drain_ends_where_only_strangers_are_left(name: str) -> None:
    world = world_of(1, "q")
    world.queues = {name: BacklogQueue()}
    for number in range(250):
        world.put(name, "q", str(number), mark="another" if number % 2 else "backlog")
    world.start(until_empty=True)
    world.run(60.0)
    assert world.is_over
    assert len(world.destinations["q"].arrived) == len(world.queues[name].messages) == 125
    assert strangers(world) == [StrangersLeft(name, "another", 125)]
    locks = [each.locked_until for each in world.queues[name].messages.values()]
    assert max(locks) < 10.0, "they are given back, not left locked"
