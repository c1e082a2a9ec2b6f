"""Faults on purpose: what may be asked for, who is hit, and when it is over."""

from collections.abc import Callable

import pytest

from twinbus.clock import Now
from twinbus.entities.commands import (
    COMPLETE,
    PEEK_LOCK,
    CancelScheduled,
    Command,
    GetRuntime,
    GetSessionState,
    ListRules,
    Peek,
    ReceiveDeferred,
    RemoveRule,
    RenewLocks,
    Send,
    Settle,
)
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.partitions import PARTITION_COUNT
from twinbus.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    EntityNotFound,
    InvalidOperation,
    QuotaExceeded,
    ServerBusy,
    ServiceError,
    Unavailable,
)
from twinbus.gateway.directory.directory import Directory, Entity, Part
from twinbus.gateway.faults.faults import FAULTS_MAX, DiskPlan, Fault, Faults, Wanted
from twinbus.gateway.faults.kinds import KINDS, SCOPE_KEYS

pytestmark = pytest.mark.proves("A-1", "A-6")

NOW = Now(1_700_000_000_000, 5_000)
SEND = Send(1, [])
SETTLE = Settle(1, 0, [(1, 1)], COMPLETE)
LIST_RULES = ListRules(1, 0, 100)
DESCRIPTION = QueueDescription()


class World:
    """What there is: two namespaces, a few entities, two stores."""

    def __init__(self, broker_count: int = 2) -> None:
        self.store_count = 2
        self.broker_count = broker_count
        directory = self.directory = Directory()
        self.orders = directory.add("queue", "Orders", DESCRIPTION, [Part(0, 1, 0)])
        self.topic = directory.add("topic", "events", DESCRIPTION, [Part(0, 2, 0)])
        self.subscription = directory.add(
            "subscription", "events/Subscriptions/all", DESCRIPTION, [Part(0, 3, 0)]
        )
        self.events2 = directory.add("queue", "events2", DESCRIPTION, [Part(0, 5, 0)])
        self.other = directory.add("queue", "second:orders", DESCRIPTION, [Part(0, 4, 0)])
        parts = [Part(p % 2, 10 + p, p) for p in range(PARTITION_COUNT)]
        self.wide = directory.add("queue", "wide", DESCRIPTION, parts)
        self.find = directory.find

    def prefix(self, namespace: str) -> str | None:
        return {"first": "", "second": "second:"}.get(namespace.lower())


class Seen:
    """Who acts for faults."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def begin(self, fault: Fault) -> None:
        self.events.append(("begin", fault.fault_id))

    def end(self, fault: Fault) -> None:
        self.events.append(("end", fault.fault_id))


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def faults(world: World) -> Faults:
    return Faults(world, never_asked)


def never_asked() -> float:
    raise AssertionError("what is certain needs no chance")


def refused(faults: Faults, command: Command, entity: Entity, partition: int = 0) -> bool:
    return faults.refusal(command, entity, partition) is not None


# --- what is refused ------------------------------------------------------------------------------


def test_nothing_in_force(faults: Faults, world: World) -> None:
    assert not faults.active
    assert not faults.connections_active
    assert faults.refusal(SEND, world.orders, 0) is None
    assert faults.down_partitions(world.wide) == frozenset()
    assert faults.disk_plan(0) == DiskPlan(0, 0.0, 0.0, 0.0)
    assert not faults.refuses_connection("first")
    assert faults.connection_delay_ms("first") == 0
    assert faults.next_end_ms() is None


@pytest.mark.proves("A-1")
@pytest.mark.parametrize(
    "kind, sends, receives, manages",
    [
        ("throttle", True, True, True),
        ("refuse-sends", True, False, False),
        ("refuse-receives", False, True, False),
        ("refuse-management", False, False, True),
    ],
)
def test_each_way_of_being_unavailable_alone(
    faults: Faults, world: World, kind: str, sends: bool, receives: bool, manages: bool
) -> None:
    faults.add(Wanted(kind, entity="orders"), NOW)
    assert faults.active
    sending: tuple[Command, ...] = (SEND, CancelScheduled(1, [1]))
    receiving: tuple[Command, ...] = (
        SETTLE,
        Peek(1, 0, 0, 1),
        RenewLocks(1, 0, [(1, 1)]),
        ReceiveDeferred(1, 0, [1], PEEK_LOCK),
        GetSessionState(1, "s", 1),
    )
    managing: tuple[Command, ...] = (LIST_RULES, GetRuntime([1]), RemoveRule(1, "r"))
    for commands, expected in ((sending, sends), (receiving, receives), (managing, manages)):
        for command in commands:
            assert refused(faults, command, world.orders) == expected
    assert (faults.receiver_refusal(world.orders, 0) is not None) == receives
    assert (faults.management_refusal("ORDERS") is not None) == manages


@pytest.mark.proves("A-2")
def test_what_they_are_told(faults: Faults, world: World) -> None:
    faults.add(Wanted("throttle", entity="orders"), NOW)
    busy = faults.refusal(SEND, world.orders, 0)
    assert isinstance(busy, ServerBusy)
    assert "10 seconds" in str(busy)
    assert "Fault 1 (throttle)" in str(busy)
    faults.add(Wanted("refuse-sends", entity="events"), NOW)
    assert isinstance(faults.refusal(SEND, world.topic, 0), Unavailable)


def test_what_the_bus_carries_itself_is_not_refused(faults: Faults, world: World) -> None:
    faults.add(Wanted("refuse-sends"), NOW)
    carried = Send(1, [])
    carried.carrier = "a queue"
    assert not refused(faults, carried, world.orders)
    assert refused(faults, SEND, world.orders)


def test_one_entity(faults: Faults, world: World) -> None:
    fault = faults.add(Wanted("refuse-sends", namespace="first", entity="EVENTS"), NOW)
    assert refused(faults, SEND, world.topic)
    assert refused(faults, SEND, world.subscription)  # what is below belongs to it
    for entity in (world.orders, world.other, world.events2):
        assert not refused(faults, SEND, entity)
    assert fault.acted == 2


def test_one_namespace(faults: Faults, world: World) -> None:
    faults.add(Wanted("refuse-sends", namespace="First"), NOW)
    assert refused(faults, SEND, world.orders)
    assert not refused(faults, SEND, world.other)
    faults.clear(faults.get("1"))
    faults.add(Wanted("refuse-sends", namespace="second"), NOW)
    assert not refused(faults, SEND, world.orders)
    assert refused(faults, SEND, world.other)


def test_the_same_name_in_another_namespace(faults: Faults, world: World) -> None:
    faults.add(Wanted("refuse-sends", namespace="second", entity="orders"), NOW)
    assert not refused(faults, SEND, world.orders)
    assert refused(faults, SEND, world.other)
    assert faults.management_refusal("orders") is None


def test_a_name_that_is_still_to_be_made(faults: Faults) -> None:
    faults.add(Wanted("refuse-management", namespace="first"), NOW)
    assert faults.management_refusal("new") is not None
    assert faults.management_refusal("second:new") is None


def test_one_partition(faults: Faults, world: World) -> None:
    faults.add(Wanted("throttle", entity="wide", partitions=(3, 5)), NOW)
    assert [p for p in range(PARTITION_COUNT) if refused(faults, SEND, world.wide, p)] == [3, 5]
    assert faults.receiver_refusal(world.wide, 3) is not None
    assert faults.management_refusal("wide") is None  # that is about all of them
    assert faults.down_partitions(world.wide) == frozenset()


@pytest.mark.proves("A-6")
def test_partitions_that_are_down(faults: Faults, world: World) -> None:
    fault = faults.add(Wanted("partition-down", entity="wide", partitions=(3,)), NOW)
    assert faults.active
    assert faults.down_partitions(world.wide) == {3}
    assert faults.down_partitions(world.orders) == frozenset()
    for command in (SEND, SETTLE, LIST_RULES):
        assert isinstance(faults.refusal(command, world.wide, 3), Unavailable)
        assert not refused(faults, command, world.wide, 4)
    assert fault.acted == 3
    faults.add(Wanted("partition-down", entity="wide", partitions=(9,)), NOW)
    assert faults.down_partitions(world.wide) == {3, 9}
    faults.add(Wanted("partition-down", entity="wide"), NOW)
    assert faults.down_partitions(world.wide) == set(range(PARTITION_COUNT))


def test_how_likely(world: World) -> None:
    chances = [0.19, 0.2, 0.9, 0.0]
    faults = Faults(world, lambda: chances.pop(0))
    fault = faults.add(Wanted("throttle", entity="orders", probability=0.2), NOW)
    assert [refused(faults, SEND, world.orders) for _ in range(4)] == [True, False, False, True]
    assert fault.acted == 2
    assert not refused(faults, SEND, world.topic)  # whoever is not meant throws no dice


# --- disks and connections ------------------------------------------------------------------------


def test_the_worst_of_several_faults_on_a_store(faults: Faults) -> None:
    faults.add(Wanted("slow-store", store=0, delay_ms=50), NOW)
    faults.add(Wanted("slow-store", delay_ms=200, probability=0.5), NOW)
    faults.add(Wanted("fail-store", store=1, probability=0.25), NOW)
    faults.add(Wanted("full-store", store=0), NOW)
    assert faults.disk_plan(0) == DiskPlan(200, 0.5, 0.0, 1.0)
    assert faults.disk_plan(1) == DiskPlan(200, 0.5, 0.25, 0.0)
    assert not faults.active  # the gateway need not ask
    faults.clear(faults.get("2"))
    assert faults.disk_plan(0) == DiskPlan(50, 1.0, 0.0, 1.0)


@pytest.mark.proves("A-1", "A-5")
@pytest.mark.parametrize("kind", ["cut-namespace", "refuse-connections"])
def test_new_connections(faults: Faults, kind: str) -> None:
    fault = faults.add(Wanted(kind, namespace="Second"), NOW)
    assert faults.connections_active
    assert not faults.active
    assert faults.refuses_connection("second")
    assert not faults.refuses_connection("first")
    assert not faults.refuses_connection(None)
    assert fault.acted == 1
    faults.clear(fault)
    assert not faults.connections_active


def test_late_connections(faults: Faults) -> None:
    faults.add(Wanted("delay-connections", delay_ms=100), NOW)
    faults.add(Wanted("delay-connections", namespace="second", delay_ms=300), NOW)
    assert faults.connections_active
    assert faults.connection_delay_ms("second") == 300
    assert faults.connection_delay_ms(None) == 100
    assert not faults.refuses_connection("second")


# --- beginning and ending -------------------------------------------------------------------------


def test_who_acts_is_told(faults: Faults) -> None:
    seen = faults.observer = Seen()
    first = faults.add(Wanted("fail-store"), NOW)
    faults.add(Wanted("kill-broker", broker=1), NOW)
    assert faults.all() == [first]  # what happens once is not in force
    faults.clear(first)
    faults.clear(first)
    assert seen.events == [("begin", "1"), ("begin", "2"), ("end", "1")]


@pytest.mark.proves("A-6")
def test_it_lasts_as_long_as_it_should(faults: Faults, world: World) -> None:
    seen = faults.observer = Seen()
    short = faults.add(Wanted("refuse-sends", duration_ms=1_000), NOW)
    faults.add(Wanted("throttle", duration_ms=2_000), NOW)
    endless = faults.add(Wanted("slow-store", delay_ms=1), NOW)
    assert faults.next_end_ms() == short.ends_ms == 6_000
    faults.expire(Now(0, 5_999))
    assert len(faults.all()) == 3
    faults.expire(Now(0, 6_000))
    assert faults.next_end_ms() == 7_000
    faults.expire(Now(0, 10_000_000))
    assert faults.all() == [endless]
    assert faults.next_end_ms() is None
    assert not faults.active
    assert not refused(faults, SEND, world.orders)
    assert seen.events[3:] == [("end", "1"), ("end", "2")]


def test_one_that_is_not_there(faults: Faults) -> None:
    with pytest.raises(EntityNotFound, match="No fault 7 is in force"):
        faults.get("7")


def test_there_may_not_be_too_many(faults: Faults) -> None:
    for _ in range(FAULTS_MAX):
        faults.add(Wanted("throttle"), NOW)
    with pytest.raises(QuotaExceeded, match="clear some first"):
        faults.add(Wanted("throttle"), NOW)


# --- what makes no sense --------------------------------------------------------------------------


@pytest.mark.proves("A-6")
@pytest.mark.parametrize(
    "wanted, error, text",
    [
        (Wanted("explode"), ArgumentInvalid, "There is no fault 'explode'; there are throttle"),
        (Wanted("x" * 1_000), ArgumentInvalid, f"'{'x' * 64}'"),
        (Wanted("throttle", store=0), ArgumentInvalid, "has no store"),
        (Wanted("refuse-management", entity="wide", partitions=(1,)), ArgumentInvalid, "partition"),
        (Wanted("slow-store", entity="orders", delay_ms=1), ArgumentInvalid, "has no entity"),
        (Wanted("cut-namespace", entity="orders"), ArgumentInvalid, "has no entity"),
        (Wanted("kill-broker", broker=0, store=0), ArgumentInvalid, "has no store"),
        (Wanted("kill-broker"), ArgumentInvalid, "needs a broker"),
        (Wanted("partition-down"), ArgumentInvalid, "needs an entity"),
        (Wanted("throttle", namespace="third"), EntityNotFound, "no namespace 'third'"),
        (Wanted("throttle", entity="missing"), EntityNotFound, "no entity 'missing'"),
        (Wanted("throttle", entity="second:orders"), EntityNotFound, "no entity"),
        (Wanted("throttle", namespace="second", entity="wide"), EntityNotFound, "no entity"),
        (Wanted("throttle", partitions=(1,)), ArgumentInvalid, "needs the entity"),
        (Wanted("throttle", entity="orders", partitions=(0,)), InvalidOperation, "not partit"),
        (Wanted("partition-down", entity="orders"), InvalidOperation, "not partitioned"),
        (Wanted("throttle", entity="wide", partitions=(16,)), ArgumentOutOfRange, "0 to 15"),
        (Wanted("throttle", entity="wide", partitions=(3, -1)), ArgumentOutOfRange, "0 to 15"),
        (Wanted("fail-store", store=2), ArgumentOutOfRange, "no store 2; the last one is 1"),
        (Wanted("fail-store", store=-1), ArgumentOutOfRange, "no store -1"),
        (Wanted("hang-broker", broker=2), ArgumentOutOfRange, "no broker 2; the last one is 1"),
        (Wanted("throttle", duration_ms=0), ArgumentOutOfRange, "duration"),
        (Wanted("throttle", duration_ms=10**12), ArgumentOutOfRange, "7 days"),
        (Wanted("kill-broker", broker=0, duration_ms=1), ArgumentInvalid, "happens once"),
        (Wanted("throttle", probability=0.0), ArgumentOutOfRange, "probability"),
        (Wanted("throttle", probability=1.01), ArgumentOutOfRange, "probability"),
        (Wanted("throttle", probability=float("nan")), ArgumentOutOfRange, "probability"),
        (Wanted("cut-namespace", probability=0.5), ArgumentInvalid, "acts always"),
        (Wanted("slow-store"), ArgumentInvalid, "needs a delay"),
        (Wanted("throttle", delay_ms=5), ArgumentInvalid, "has no delay"),
        (Wanted("slow-store", delay_ms=0), ArgumentOutOfRange, "delay"),
        (Wanted("slow-store", delay_ms=600_001), ArgumentOutOfRange, "10 minutes"),
    ],
)
def test_the_exact_error_and_nothing_changed(
    faults: Faults, wanted: Wanted, error: type[ServiceError], text: str
) -> None:
    seen = faults.observer = Seen()
    with pytest.raises(error, match=text):
        faults.add(wanted, NOW)
    assert not faults.all()
    assert not seen.events
    assert not faults.active


def test_brokers_in_the_same_process() -> None:
    faults = Faults(World(broker_count=0), never_asked)
    with pytest.raises(InvalidOperation, match="--brokers 2"):
        faults.add(Wanted("hang-broker", broker=0), NOW)


def whole(kind: str) -> Wanted:
    """A fault with everything that its kind takes."""
    allowed = KINDS[kind]
    given: dict[str, Callable[[], dict[str, object]]] = {
        "namespace": lambda: {"namespace": "first"},
        "entity": lambda: {"entity": "wide"},
        "partition": lambda: {"partitions": (1,)},
        "store": lambda: {"store": 1},
        "broker": lambda: {"broker": 1},
    }
    values: dict[str, object] = {}
    for key in allowed.scope:
        values |= given[key]()
    if allowed.has_delay:
        values["delay_ms"] = 5
    if allowed.is_likely:
        values["probability"] = 1.0
    if not allowed.is_once:
        values["duration_ms"] = 60_000
    return Wanted(kind, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_with_everything_it_takes(faults: Faults, kind: str) -> None:
    fault = faults.add(whole(kind), NOW)
    assert fault.kind is KINDS[kind]
    assert fault.kind.scope <= set(SCOPE_KEYS)
    assert fault.kind.sentence.endswith(".")
