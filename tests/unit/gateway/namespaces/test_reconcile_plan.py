"""What is done when stores and catalog do not say the same, case by case."""

import dataclasses
import itertools

import pytest

from twinbus.entities.catalog_entry import MAKING, REMOVING, THERE, CatalogEntry
from twinbus.entities.commands import Listed
from twinbus.entities.descriptions import (
    DESCRIPTIONS,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.entities.partitions import PARTITION_COUNT, partition_name
from twinbus.errors import ConfigError
from twinbus.gateway.namespaces.reconcile_plan import Known, Plan, reconcile

pytestmark = pytest.mark.proves("E-12")

STORES = 3
PLAIN = QueueDescription()
PARTITIONED = QueueDescription(enable_partitioning=True, max_size_megabytes=1_024)
TOPIC = TopicDescription(enable_partitioning=True, max_size_megabytes=1_024)
SUBSCRIPTION = SubscriptionDescription()
ROUND = [partition % STORES for partition in range(PARTITION_COUNT)]


class Scene:
    """Stores with what they list, and a catalog."""

    def __init__(self) -> None:
        self.entries: dict[str, CatalogEntry] = {}
        self.listings: dict[int, list[Listed]] = {store: [] for store in range(STORES)}
        self.numbers = itertools.count(1)
        self.ids: dict[str, int] = {}  # by name in the store

    def write(
        self,
        name: str,
        state: str = THERE,
        description: QueueDescription = PLAIN,
        stores: list[int] | None = None,
    ) -> CatalogEntry:
        """The catalog knows it, with the numbers of what the stores have."""
        if stores is None:
            stores = ROUND if description.enable_partitioning else [1]
        entry = CatalogEntry(description.KIND, name, description.to_json(), stores, state)
        if state != MAKING:
            entry.entity_ids = [self.ids.get(each, 0) for each in names(name, len(stores))]
        self.entries[name.lower()] = entry
        return entry

    def put(self, store: int, name: str, description: QueueDescription = PLAIN) -> int:
        """A store has a part of this name."""
        number = next(self.numbers)
        self.ids[name] = number
        self.listings[store].append(Listed(number, description.KIND, name, description))
        return number

    def put_all(self, name: str, description: QueueDescription = PARTITIONED) -> None:
        for store, each in zip(ROUND, names(name), strict=True):
            self.put(store, each, description)

    def lose(self, *part_names: str) -> None:
        """The stores no longer have these."""
        for listed in self.listings.values():
            listed[:] = [each for each in listed if each.name not in part_names]

    def plan(self, *down: int) -> Plan:
        up = {store: listed for store, listed in self.listings.items() if store not in down}
        return reconcile(self.entries, up, STORES)

    def deletes(self, *part_names: str) -> list[int]:
        return [self.ids[name] for name in part_names]


def names(name: str, count: int = PARTITION_COUNT) -> list[str]:
    return [name] if count == 1 else [partition_name(name, i) for i in range(count)]


def parts(known: Known) -> list[tuple[int, int]]:
    return [(part.store, part.entity_id) for part in known.parts]


def does_nothing(plan: Plan) -> bool:
    return not (
        plan.deletes or plan.makes or plan.updates or plan.entries() or plan.gone or plan.warnings
    )


@pytest.fixture
def scene() -> Scene:
    return Scene()


# --- nothing wrong --------------------------------------------------------------------------------


def test_stores_and_catalog_agree(scene: Scene) -> None:
    scene.put(1, "Orders")
    scene.put_all("many")
    scene.put_all("news", TOPIC)
    scene.put_all("news/Subscriptions/all", SUBSCRIPTION)
    scene.write("Orders")
    scene.write("many", description=PARTITIONED)
    scene.write("news/Subscriptions/all", description=SUBSCRIPTION, stores=ROUND)
    scene.write("news", description=TOPIC)
    plan = scene.plan()
    assert does_nothing(plan)
    assert [known.name for known in plan.known] == [
        "Orders",
        "many",
        "news",
        "news/Subscriptions/all",
    ]
    assert parts(plan.known[0]) == [(1, scene.ids["Orders"])]
    assert plan.known[0].description == PLAIN
    expected = [(store, scene.ids[each]) for store, each in zip(ROUND, names("many"), strict=True)]
    assert parts(plan.known[1]) == expected
    assert [part.partition for part in plan.known[1].parts] == list(range(PARTITION_COUNT))


def test_an_empty_bus(scene: Scene) -> None:
    plan = scene.plan()
    assert does_nothing(plan)
    assert plan.known == []


def test_numbers_are_learned(scene: Scene) -> None:
    number = scene.put(1, "orders")
    scene.write("orders").entity_ids = [0]
    (entry,) = scene.plan().entries()
    assert (entry.state, entry.stores, entry.entity_ids) == (THERE, [1], [number])
    assert QueueDescription.from_json(entry.description) == PLAIN


def test_what_the_gateway_keeps_for_itself_is_no_entity(scene: Scene) -> None:
    scene.put(0, "$journal/1")
    plan = scene.plan()
    assert does_nothing(plan)
    assert plan.known == []


# --- making ---------------------------------------------------------------------------------------


@pytest.mark.proves("E-12")
@pytest.mark.parametrize("made", [1, 8, 15])
def test_a_half_made_entity_is_removed(scene: Scene, made: int) -> None:
    scene.put_all("orders")
    scene.lose(*names("orders")[made:])
    scene.write("orders", MAKING, PARTITIONED)
    plan = scene.plan()
    assert [part.entity_id for part in plan.deletes] == scene.deletes(*names("orders")[:made])
    assert [part.store for part in plan.deletes] == ROUND[:made]
    assert plan.gone == ["orders"]
    assert (plan.known, plan.makes, plan.warnings) == ([], [], [])


def test_what_was_only_intended_is_forgotten(scene: Scene) -> None:
    scene.write("orders", MAKING)
    plan = scene.plan()
    assert plan.gone == ["orders"]
    assert (plan.deletes, plan.known) == ([], [])


@pytest.mark.parametrize("description", [PLAIN, PARTITIONED])
def test_a_wholly_made_entity_is_finished(scene: Scene, description: QueueDescription) -> None:
    if description is PLAIN:
        scene.put(1, "orders")
    else:
        scene.put_all("orders")
    scene.write("orders", MAKING, description)
    plan = scene.plan()
    (known,) = plan.known
    (entry,) = plan.entries()
    assert entry.state == THERE
    assert entry.entity_ids == [number for _, number in parts(known)]
    assert 0 not in entry.entity_ids
    assert (plan.deletes, plan.makes, plan.gone, plan.warnings) == ([], [], [], [])


def test_half_made_is_not_decided_while_a_store_is_down(scene: Scene) -> None:
    scene.put_all("orders")
    scene.write("orders", MAKING, PARTITIONED)
    plan = scene.plan(2)
    assert does_nothing(plan)
    assert plan.known == []
    assert scene.plan().entries()[0].state == THERE


def test_half_made_is_removed_as_far_as_stores_are_up(scene: Scene) -> None:
    scene.put_all("orders")
    gone = names("orders")[0]
    scene.lose(gone)
    scene.write("orders", MAKING, PARTITIONED)
    plan = scene.plan(2)
    left = [each for each, store in zip(names("orders"), ROUND, strict=True) if store != 2]
    left.remove(gone)
    assert [part.entity_id for part in plan.deletes] == scene.deletes(*left)
    assert (plan.gone, plan.entries(), plan.known) == ([], [], [])  # the name stays taken
    scene.lose(*left)
    plan = scene.plan()
    assert {part.store for part in plan.deletes} == {2}
    assert plan.gone == ["orders"]


# --- there ----------------------------------------------------------------------------------------


def test_an_entity_of_a_store_that_is_down_is_known(scene: Scene) -> None:
    number = scene.put(1, "orders")
    scene.write("orders")
    plan = scene.plan(1)
    assert does_nothing(plan)
    assert parts(plan.known[0]) == [(1, number)]


def test_an_entity_of_which_no_number_is_known_yet(scene: Scene) -> None:
    scene.put(1, "orders")
    scene.write("orders").entity_ids = [0]
    plan = scene.plan(1)
    assert does_nothing(plan)
    assert parts(plan.known[0]) == [(1, 0)]


@pytest.mark.proves("E-15")
def test_partitions_of_a_store_that_is_down_are_known(scene: Scene) -> None:
    scene.put_all("orders")
    scene.write("orders", description=PARTITIONED)
    plan = scene.plan(0, 2)
    assert does_nothing(plan)
    expected = [
        (store, scene.ids[each]) for store, each in zip(ROUND, names("orders"), strict=True)
    ]
    assert parts(plan.known[0]) == expected


def test_a_lost_entity_is_made_again_and_told(scene: Scene) -> None:
    scene.write("ns:orders").entity_ids = [77]
    plan = scene.plan()
    (make,) = plan.makes
    assert (make.new.kind, make.new.name, make.new.description) == ("queue", "ns:orders", PLAIN)
    assert make.new.rule is None
    assert make.part is plan.known[0].parts[0]
    assert (make.part.store, make.part.entity_id) == (1, 0)
    assert make.rules_from is None
    assert plan.warnings == [
        "'orders' has lost what it had in store 1, partition 0; it is made again, empty"
    ]
    make.part.entity_id = 78  # as its store said when it was made
    (entry,) = plan.entries()
    assert (entry.state, entry.entity_ids) == (THERE, [78])


def test_lost_partitions_are_made_again(scene: Scene) -> None:
    scene.put_all("news", TOPIC)
    scene.put_all("news/Subscriptions/all", SUBSCRIPTION)
    scene.write("news", description=TOPIC)
    scene.write("news/Subscriptions/all", description=SUBSCRIPTION, stores=ROUND)
    scene.listings[1] = []  # replaced by an empty one
    plan = scene.plan()
    lost = [partition for partition in range(PARTITION_COUNT) if ROUND[partition] == 1]
    topics = [partition_name("news", partition) for partition in lost]
    subscriptions = [partition_name("news/Subscriptions/all", partition) for partition in lost]
    assert [make.new.name for make in plan.makes] == topics + subscriptions
    assert {make.part.store for make in plan.makes} == {1}
    assert len(plan.warnings) == len(plan.makes)
    for make in plan.makes:
        if make.new.kind == "topic":
            assert make.rules_from is None
        else:
            source = plan.known[1].parts[0]
            assert make.rules_from is source
            assert source.store == 0
    assert [entry.name for entry in plan.entries()] == ["news", "news/Subscriptions/all"]
    assert plan.deletes == []


@pytest.mark.parametrize("is_topic", [True, False])
def test_a_plain_entity_that_its_broker_has_deleted_for_being_idle(
    scene: Scene, is_topic: bool
) -> None:
    kind = TopicDescription if is_topic else QueueDescription
    description = kind(auto_delete_on_idle_ms=300_000)
    scene.write("orders", description=description)
    if is_topic:
        scene.write("orders/Subscriptions/all", description=SUBSCRIPTION)
    plan = scene.plan(0)
    assert (plan.known, plan.makes, plan.warnings) == ([], [], [])
    assert plan.gone == [entry.name for entry in scene.entries.values()]
    assert [known.name for known in scene.plan(1).known] == plan.gone  # while nobody can know


def test_idle_partitions_are_the_gateways_and_made_again(scene: Scene) -> None:
    description = dataclasses.replace(PARTITIONED, auto_delete_on_idle_ms=300_000)
    scene.put_all("orders", description)
    scene.write("orders", description=description)
    scene.lose("orders#3")
    plan = scene.plan()
    assert [make.new.name for make in plan.makes] == ["orders#3"]


@pytest.mark.proves("E-12")
def test_a_change_that_was_not_finished_is_taken_back(scene: Scene) -> None:
    scene.put_all("orders")
    scene.write("orders", description=PARTITIONED)
    newer = dataclasses.replace(PARTITIONED, max_delivery_count=3, updated_utc_ms=7)
    for each in scene.listings[1]:
        each.description = newer
    plan = scene.plan()
    assert {update.part.store for update in plan.updates} == {1}
    assert len(plan.updates) == ROUND.count(1)
    assert {update.description for update in plan.updates} == {PARTITIONED}
    assert plan.known[0].description == PARTITIONED
    assert (plan.makes, plan.deletes, plan.entries(), plan.warnings) == ([], [], [], [])


def test_stores_that_were_renumbered(scene: Scene) -> None:
    number = scene.put(2, "orders")
    scene.write("orders")
    plan = scene.plan()
    assert parts(plan.known[0]) == [(2, number)]
    assert plan.warnings == ["'orders' has a part in store 2 that belongs in store 1"]
    assert (plan.makes, plan.deletes) == ([], [])
    assert plan.entries()[0].stores == [2]


def test_a_part_that_is_there_twice(scene: Scene) -> None:
    scene.put(0, "orders")
    number = scene.put(1, "orders")
    scene.write("orders")
    plan = scene.plan()
    assert parts(plan.known[0]) == [(1, number)]
    assert plan.warnings == ["'orders' has a part twice; that in store 0 is left alone"]
    assert (plan.makes, plan.deletes, plan.entries()) == ([], [], [])


def test_a_store_that_is_configured_no_longer(scene: Scene) -> None:
    scene.write("orders", stores=[STORES])
    with pytest.raises(ConfigError, match="'orders' has a part in store 3, and only 3 stores"):
        scene.plan()


def test_a_name_with_parts_of_another_kind(scene: Scene) -> None:
    scene.put(1, "orders")
    scene.write("orders")
    scene.put(2, "orders", TopicDescription())
    scene.put(1, "orders#4", PARTITIONED)
    plan = scene.plan()
    assert plan.warnings == [
        "'orders' has parts that it should not have; they are left alone",
        "'orders' is also a topic in a store; that is left alone",
    ]
    assert (plan.makes, plan.deletes, plan.entries()) == ([], [], [])


# --- removing -------------------------------------------------------------------------------------


@pytest.mark.proves("E-12")
def test_the_rest_is_removed(scene: Scene) -> None:
    scene.put_all("orders")
    scene.write("orders", REMOVING, PARTITIONED)
    scene.lose(*names("orders")[:5])
    plan = scene.plan()
    assert [part.entity_id for part in plan.deletes] == scene.deletes(*names("orders")[5:])
    assert plan.gone == ["orders"]
    assert (plan.known, plan.makes, plan.warnings) == ([], [], [])


def test_removing_goes_on_when_a_store_is_back(scene: Scene) -> None:
    scene.put_all("orders")
    scene.write("orders", REMOVING, PARTITIONED)
    plan = scene.plan(1)
    assert {part.store for part in plan.deletes} == {0, 2}
    assert (plan.gone, plan.entries(), plan.known) == ([], [], [])
    scene.listings[0] = []
    scene.listings[2] = []
    plan = scene.plan()
    assert {part.store for part in plan.deletes} == {1}
    assert plan.gone == ["orders"]


def test_the_subscriptions_go_with_their_topic(scene: Scene) -> None:
    """Though the gateway ended before it could say so of each."""
    scene.put_all("news", TOPIC)
    scene.put_all("news/Subscriptions/all", SUBSCRIPTION)
    scene.put_all("news/Subscriptions/unknown", SUBSCRIPTION)
    scene.write("news", REMOVING, TOPIC)
    scene.write("news/Subscriptions/all", description=SUBSCRIPTION, stores=ROUND)
    plan = scene.plan(1)
    assert plan.known == []
    assert plan.gone == []
    (entry,) = plan.entries()
    assert (entry.name, entry.state) == ("news/Subscriptions/all", REMOVING)
    plan = scene.plan()
    assert plan.known == []
    assert plan.gone == ["news", "news/Subscriptions/all"]
    expected = scene.deletes(*names("news"), *names("news/Subscriptions/all"))
    assert [part.entity_id for part in plan.deletes] == expected


def test_a_subscription_that_outlived_its_topic_in_the_catalog(scene: Scene) -> None:
    scene.write("news/Subscriptions/all", REMOVING, SUBSCRIPTION)
    plan = scene.plan()
    assert plan.gone == ["news/Subscriptions/all"]
    assert plan.deletes == []


def test_a_subscription_of_a_topic_that_is_not_decided_is_left_alone(scene: Scene) -> None:
    scene.put_all("news", TOPIC)
    scene.write("news", MAKING, TOPIC)
    scene.put_all("news/Subscriptions/all", SUBSCRIPTION)
    scene.write("news/Subscriptions/all", description=SUBSCRIPTION, stores=ROUND)
    plan = scene.plan(1)
    assert (plan.deletes, plan.gone, plan.known) == ([], [], [])
    assert plan.warnings == ["'news/Subscriptions/all' has no topic; it is left alone"]


# --- what the catalog does not know ---------------------------------------------------------------


def test_everything_of_a_single_store_is_taken_in(scene: Scene) -> None:
    """The first start with more than one store, or without the catalog there was."""
    for name, description in [("orders", PLAIN), ("news", TopicDescription())]:
        scene.put(0, name, description)
    scene.put(0, "news/Subscriptions/all", SUBSCRIPTION)
    for each in names("many"):
        scene.put(0, each, PARTITIONED)
    plan = scene.plan()
    assert {entry.name: (entry.state, entry.stores) for entry in plan.entries()} == {
        "orders": (THERE, [0]),
        "many": (THERE, [0] * PARTITION_COUNT),
        "news": (THERE, [0]),
        "news/Subscriptions/all": (THERE, [0]),
    }
    for entry, known in zip(plan.entries(), plan.known, strict=True):
        assert entry.entity_ids == [
            scene.ids[each] for each in names(entry.name, len(entry.stores))
        ]
        assert entry.kind == known.kind
        assert DESCRIPTIONS[entry.kind].from_json(entry.description) == known.description
    assert (plan.deletes, plan.makes, plan.updates, plan.warnings) == ([], [], [], [])


def test_an_unknown_entity_with_partitions_in_a_store_that_is_down(scene: Scene) -> None:
    scene.put_all("news", TOPIC)
    scene.put_all("news/Subscriptions/all", SUBSCRIPTION)
    plan = scene.plan(2)
    assert (plan.makes, plan.deletes, plan.warnings) == ([], [], [])
    for known in plan.known:
        assert [part.store for part in known.parts] == ROUND
        assert [part.entity_id == 0 for part in known.parts] == [store == 2 for store in ROUND]
    # When it is up, what it has is learned.
    scene.entries = {entry.name.lower(): entry for entry in plan.entries()}
    plan = scene.plan()
    for known in plan.known:
        expected = [scene.ids[each] for each in names(known.name)]
        assert [part.entity_id for part in known.parts] == expected
    assert len(plan.entries()) == 2
    assert (plan.makes, plan.deletes, plan.warnings) == ([], [], [])


def test_an_unknown_entity_with_partitions_missing_is_completed(scene: Scene) -> None:
    """It cannot be told whether it was half-made or lost something: nothing is thrown away."""
    scene.put_all("orders")
    scene.lose("orders#3", "orders#4")
    plan = scene.plan()
    assert [make.new.name for make in plan.makes] == ["orders#3", "orders#4"]
    assert [make.part.store for make in plan.makes] == [0, 1]
    assert len(plan.warnings) == 2
    assert plan.deletes == []
    assert len(plan.known[0].parts) == PARTITION_COUNT


def test_an_unknown_name_in_two_stores(scene: Scene) -> None:
    number = scene.put(1, "orders")
    scene.put(2, "orders")
    plan = scene.plan()
    assert parts(plan.known[0]) == [(1, number)]
    assert plan.warnings == ["'orders' has a part twice; that in store 2 is left alone"]


def test_an_unknown_name_with_two_kinds(scene: Scene) -> None:
    scene.put(1, "orders")
    scene.put(2, "Orders", TopicDescription())
    plan = scene.plan()
    assert [known.kind for known in plan.known] == ["queue"]
    assert plan.warnings == ["'Orders' is also a topic in a store; that is left alone"]


# --- every combination ----------------------------------------------------------------------------


ANY_STORES = list(itertools.product([False, True], repeat=STORES))


@pytest.mark.parametrize("state", [None, MAKING, THERE, REMOVING])
@pytest.mark.parametrize("up", ANY_STORES)
def test_doing_what_is_to_be_done_ends_in_peace(state: str | None, up: tuple[bool, ...]) -> None:
    """Whatever the stores have and whichever are up: done once, nothing is left to do; and when all
    are up at last, the entity is there as a whole or nothing of it is anywhere."""
    down = [store for store in range(STORES) if not up[store]]
    for present in ANY_STORES:
        scene = Scene()
        scene.put_all("orders")
        for store in range(STORES):
            if not present[store]:
                scene.listings[store] = []
        if state is not None:
            scene.write("orders", state, PARTITIONED)
        for lacking in (down, []):
            carry_out(scene, scene.plan(*lacking))
            again = scene.plan(*lacking)
            assert not (again.deletes or again.makes or again.entries() or again.gone)
        held = sum(len(listed) for listed in scene.listings.values())
        if scene.entries:
            assert held == PARTITION_COUNT
            assert scene.entries["orders"].state == THERE
            assert len(scene.plan().known) == 1
            assert state != REMOVING
        else:
            assert held == 0
            assert state != THERE


def carry_out(scene: Scene, plan: Plan) -> None:
    for part in plan.deletes:
        listed = scene.listings[part.store]
        listed[:] = [each for each in listed if each.entity_id != part.entity_id]
    for make in plan.makes:
        make.part.entity_id = scene.put(make.part.store, make.new.name, make.new.description)
    for entry in plan.entries():
        scene.entries[entry.name.lower()] = entry
    for name in plan.gone:
        del scene.entries[name.lower()]
