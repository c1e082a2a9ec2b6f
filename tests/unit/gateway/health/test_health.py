"""Availability of entities, and the four ways of being unavailable told apart."""

import pytest

from twinbus.clock import Now
from twinbus.entities.descriptions import QueueDescription
from twinbus.gateway.directory.directory import PARTITIONED, Directory, Entity, Part
from twinbus.gateway.faults.faults import Faults, Wanted
from twinbus.gateway.health.health import (
    BrokerReport,
    Obstacles,
    StoreReport,
    availability,
    server_status,
)
from twinbus.gateway.throttling.throttle import Throttle, Usage
from twinbus.limits import PROFILES, Thresholds
from twinbus.links.store_link import DOWN, SLOW, UP, StoreLink

pytestmark = pytest.mark.proves("A-1")

NOW = Now(0, 1_000)
BUS = "bus"


class Link:
    """A store, of which only the health is looked at."""

    def __init__(self, health: int) -> None:
        self.health = health


def links(*healths: int) -> list[StoreLink]:
    return [Link(health) for health in healths]  # type: ignore[misc]


class Known:
    """Two stores, no broker processes, one namespace."""

    store_count = 2
    broker_count = 0

    def __init__(self, directory: Directory) -> None:
        self.find = directory.find

    def prefix(self, namespace: str) -> str | None:
        return {BUS: "", "other": "other:"}.get(namespace)


def make_directory() -> Directory:
    directory = Directory()
    directory.add("queue", "plain", QueueDescription(), [Part(1, 5, 0)])
    parts = [Part(number % 2, 10 + number, number) for number in range(16)]
    directory.add("queue", "orders", QueueDescription(), parts)
    return directory


DIRECTORY = make_directory()


def entity(name: str = "plain", status: str = "Active") -> Entity:
    found = DIRECTORY.find(name)
    assert found is not None
    description = QueueDescription(status=status)
    return Entity(found.entity_id, found.kind, name, description, found.parts)


def throttle() -> Throttle:
    return Throttle(Thresholds(memory_bytes_max=100), PROFILES["premium"])


def faults(*wanted: Wanted) -> Faults:
    made = Faults(Known(DIRECTORY), lambda: 0.5)
    for each in wanted:
        made.add(each, NOW)
    return made


def obstacles(
    subject: Entity, *healths: int, busy: Throttle | None = None, wrong: Faults | None = None
) -> dict[str, list[str]]:
    wrong = wrong or faults()
    seen = Obstacles(links(*healths), busy or throttle(), wrong.all())
    return seen.of(subject, BUS)


@pytest.mark.proves("E-12")
@pytest.mark.parametrize(
    "name, healths, expected",
    [
        ("plain", (DOWN, UP), "Available"),
        ("plain", (UP, SLOW), "Limited"),
        ("plain", (UP, DOWN), "Restoring"),
        ("orders", (UP, UP), "Available"),
        ("orders", (UP, SLOW), "Limited"),
        ("orders", (UP, DOWN), "Limited"),
        ("orders", (DOWN, DOWN), "Restoring"),
    ],
)
def test_availability(name: str, healths: tuple[int, ...], expected: str) -> None:
    assert availability(entity(name), links(*healths)) == expected


def test_what_is_well_has_no_obstacles() -> None:
    assert obstacles(entity(), UP, UP) == {}
    assert obstacles(entity("orders"), UP, SLOW) == {}


@pytest.mark.proves("A-1")
@pytest.mark.parametrize(
    "status, ways",
    [
        ("Disabled", {"send", "receive"}),
        ("SendDisabled", {"send"}),
        ("ReceiveDisabled", {"receive"}),
    ],
)
def test_status(status: str, ways: set[str]) -> None:
    found = obstacles(entity(status=status), UP, UP)
    assert set(found) == ways
    assert found[min(ways)] == [f"its status is {status}"]


@pytest.mark.proves("A-1")
def test_a_store_that_is_down() -> None:
    everything = {way: ["store 1 is down"] for way in ("send", "receive", "manage")}
    assert obstacles(entity(), UP, DOWN) == everything
    assert obstacles(entity(), DOWN, UP) == {}


@pytest.mark.proves("A-1")
def test_a_store_that_is_down_costs_a_partitioned_entity_its_management_only() -> None:
    assert obstacles(entity("orders"), UP, DOWN) == {"manage": ["store 1 is down"]}
    assert set(obstacles(entity("orders"), DOWN, DOWN)) == {"send", "receive", "manage"}


@pytest.mark.proves("A-3")
def test_sends_that_are_taken_elsewhere_are_possible() -> None:
    seen = Obstacles(links(UP, DOWN), throttle(), [], frozenset({1}))
    assert set(seen.of(entity(), BUS)) == {"receive", "manage"}


@pytest.mark.proves("A-1", "A-2")
def test_throttling() -> None:
    busy = throttle()
    busy.observe_store(1, Usage(memory_bytes=200))
    assert obstacles(entity(), UP, UP, busy=busy) == {"send": ["throttled (memory)"]}
    assert obstacles(entity("orders"), UP, UP, busy=busy) == {}  # half of it takes sends


@pytest.mark.proves("A-1")
@pytest.mark.parametrize(
    "kind, ways",
    [
        ("refuse-sends", {"send"}),
        ("refuse-receives", {"receive"}),
        ("refuse-management", {"manage"}),
        ("cut-namespace", {"contact"}),
        ("refuse-connections", {"contact"}),
        ("throttle", {"send", "receive", "manage"}),
    ],
)
def test_one_kind_of_fault_does_not_take_the_others_with_it(kind: str, ways: set[str]) -> None:
    found = obstacles(entity(), UP, UP, wrong=faults(Wanted(kind, namespace=BUS)))
    assert set(found) == ways
    assert all(reasons == [f"fault 1 ({kind})"] for reasons in found.values())


def test_faults_of_others() -> None:
    wrong = faults(
        Wanted("refuse-sends", namespace=BUS, entity="orders"),
        Wanted("cut-namespace", namespace="other"),
    )
    assert obstacles(entity(), UP, UP, wrong=wrong) == {}


def test_a_fault_that_acts_sometimes_says_how_often_and_is_not_hit_by_looking() -> None:
    wrong = faults(Wanted("refuse-sends", probability=0.25))
    assert obstacles(entity(), UP, UP, wrong=wrong) == {
        "send": ["fault 1 (refuse-sends, in 25% of cases)"]
    }
    assert wrong.all()[0].acted == 0


def test_partitions() -> None:
    wrong = faults(Wanted("partition-down", namespace=BUS, entity="orders", partitions=(2,)))
    seen = Obstacles(links(UP, DOWN), throttle(), wrong.all())
    assert seen.sick_partitions(entity()) == []
    assert seen.sick_partitions(entity("orders")) == [
        *[(number, 1, "down") for number in range(1, 16, 2)],
        (2, 0, "fault 1 (partition-down)"),
    ]
    assert set(seen.of(entity("orders"), BUS)) == {"manage"}


def test_all_partitions_down_on_purpose() -> None:
    wrong = faults(Wanted("partition-down", namespace=BUS, entity="orders"))
    assert set(obstacles(entity("orders"), UP, UP, wrong=wrong)) == {"send", "receive", "manage"}


@pytest.mark.parametrize(
    "state, healths, expected",
    [
        ("up", [UP, UP], "healthy"),
        ("up", [UP, SLOW], "degraded"),
        ("up", [UP, DOWN], "degraded"),
        ("starting", [UP, UP], "degraded"),
        ("up", [DOWN, DOWN], "unhealthy"),
    ],
)
def test_the_server_in_one_word(state: str, healths: list[int], expected: str) -> None:
    stores = [StoreReport(store, 0, health) for store, health in enumerate(healths)]
    assert server_status([BrokerReport(0, state)], stores) == expected


def test_the_scene() -> None:
    assert entity("orders").entity_id >= PARTITIONED
    assert {part.store for part in entity("orders").parts} == {0, 1}
