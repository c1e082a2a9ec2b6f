"""Partitioned entities on broker processes and several stores, and the loss of a part.

What is asked here is what a client of the official SDK sees.  Random schedules of outages under
load are in tests/crash.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient, SqlRuleFilter

from tests.interop.administration import connect
from tests.interop.outage import (
    KEYS,
    RECEIVE_S,
    Bus,
    Traffic,
    peek_all,
    run_server,
    send,
    take,
    take_rest,
    text_of,
)
from twinbus.entities.partitions import PARTITION_COUNT, partition_of

pytestmark = [pytest.mark.proves("E-1", "E-15"), pytest.mark.feature("available.partitions")]

STORES = 4
BROKERS = 2
DOWN = 5  # the partition that is taken away


@pytest.fixture(scope="module")
def whole_bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    directory = tmp_path_factory.mktemp("wide")
    with run_server(directory, brokers=BROKERS, stores=STORES) as bus:
        yield bus


@pytest.fixture
def bus(whole_bus: Bus) -> Iterator[Bus]:
    """Everybody is at home, and no fault is left behind."""
    whole_bus.wait_until_even()
    yield whole_bus
    whole_bus.faults.clear_all()


@pytest.fixture(scope="module")
def admin(whole_bus: Bus) -> Iterator[ServiceBusAdministrationClient]:
    with connect(whole_bus.server) as opened:
        yield opened


@pytest.fixture(scope="module")
def client(whole_bus: Bus) -> Iterator[ServiceBusClient]:
    """Tries again as the SDK does by default."""
    with whole_bus.client() as opened:
        yield opened


@pytest.fixture(scope="module")
def impatient(whole_bus: Bus) -> Iterator[ServiceBusClient]:
    """Never tries again."""
    with whole_bus.client(retry_total=0) as opened:
        yield opened


@pytest.fixture
def queue(bus: Bus, request: pytest.FixtureRequest) -> str:
    """A partitioned queue of the test's own.  Locks outlast every test."""
    name = str(request.node.name).replace("[", "-").replace("]", "").replace(" ", "-")
    bus.server.create_queue(name, enable_partitioning=True, lock_duration="PT5M")
    return name


def take_away(bus: Bus, queue: str, *partitions: int) -> None:
    bus.faults.add({"kind": "partition-down", "entity": queue, "partition": list(partitions)})


def fill(sender: Any, count: int) -> list[str]:
    """So many messages into each partition, one after the other."""
    texts = [f"{number} of {key}" for number in range(count) for key in KEYS]
    for text in texts:
        send(sender, text, text.rpartition(" ")[2])
    return texts


# --- where things are -----------------------------------------------------------------------------


@pytest.mark.proves("E-1")
def test_partitions_are_spread_evenly(bus: Bus, queue: str) -> None:
    stores = bus.stores_of(queue)
    owners = bus.owners()
    assert Counter(stores) == dict.fromkeys(range(STORES), PARTITION_COUNT // STORES)
    brokers = Counter(owners[store] for store in stores)
    assert brokers == dict.fromkeys(range(BROKERS), PARTITION_COUNT // BROKERS)
    seen = bus.health()
    assert len({broker["pid"] for broker in seen["brokers"]} | {bus.server.pid}) == BROKERS + 1
    assert seen["status"] == "healthy"


# --- one partition is down ------------------------------------------------------------------------


@pytest.mark.proves("E-5")
def test_a_key_whose_partition_is_down(bus: Bus, impatient: ServiceBusClient, queue: str) -> None:
    """An error, the message stays with the caller, and other keys go on."""
    take_away(bus, queue, DOWN)
    message = ServiceBusMessage("kept", partition_key=KEYS[DOWN])
    with impatient.get_queue_sender(queue) as sender:
        with pytest.raises(ServiceBusError, match=f"partition {DOWN}|partition-down"):
            sender.send_messages(message)
        for key in KEYS:
            if key != KEYS[DOWN]:
                send(sender, key, key)
        bus.faults.clear_all()
        sender.send_messages(message)
    with impatient.get_queue_receiver(queue) as receiver:
        found = text_of(take(receiver, PARTITION_COUNT) + take_rest(receiver))
    assert sorted(found) == sorted(["kept", *KEYS[:DOWN], *KEYS[DOWN + 1 :]])


@pytest.mark.proves("E-6", "E-7")
def test_no_key_and_partitions_are_down(bus: Bus, client: ServiceBusClient, queue: str) -> None:
    """The others take the messages in turn, and no send fails."""
    down = {0, DOWN}
    take_away(bus, queue, *down)
    with client.get_queue_sender(queue) as sender:
        for number in range(2 * (PARTITION_COUNT - len(down))):
            send(sender, str(number))
    with client.get_queue_receiver(queue) as receiver:
        found = take(receiver, 2 * (PARTITION_COUNT - len(down)))
    places = Counter(partition_of(message.sequence_number) for message in found)
    assert places == dict.fromkeys(set(range(PARTITION_COUNT)) - down, 2)


@pytest.mark.proves("E-8", "E-9")
def test_receiving_and_peeking_go_on_from_the_rest(
    bus: Bus, client: ServiceBusClient, queue: str
) -> None:
    """What is in the partition that is down comes when it is back."""
    with client.get_queue_sender(queue) as sender:
        texts = fill(sender, 2)
    missing = [text for text in texts if text.endswith(f" {KEYS[DOWN]}")]
    take_away(bus, queue, DOWN)
    with client.get_queue_receiver(queue) as receiver:
        assert sorted(text_of(peek_all(receiver))) == sorted(set(texts) - set(missing))
        found = take(receiver, len(texts) - len(missing)) + take_rest(receiver)
        assert sorted(text_of(found)) == sorted(set(texts) - set(missing))
    bus.faults.clear_all()
    # A new one: the SDK leaves credit behind, and gives back what comes by it between two calls,
    # so that the second message may come before the first.
    with client.get_queue_receiver(queue) as receiver:
        assert text_of(peek_all(receiver)) == missing
        assert text_of(take(receiver, 2)) == missing
        assert take_rest(receiver) == []


@pytest.mark.proves("E-8")
@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "idle"])
def test_what_a_link_has_kept_comes_back(
    client: ServiceBusClient, queue: str, is_closed: bool
) -> None:
    """A link that closes, or asks for nothing more, gives back what came in advance.

    Locks last for minutes, and giving back is no delivery.
    """
    with client.get_queue_sender(queue) as sender:
        texts = fill(sender, 1)
    first = client.get_queue_receiver(queue)
    (message,) = first.receive_messages(1, max_wait_time=RECEIVE_S)
    first.complete_message(message)
    if is_closed:
        first.close()
    with client.get_queue_receiver(queue) as second:
        others = take(second, PARTITION_COUNT - 1)
    first.close()
    assert sorted(text_of([message, *others])) == sorted(texts)
    assert {each.delivery_count for each in others} == {0}


# --- management -----------------------------------------------------------------------------------


@pytest.mark.proves("E-12")
def test_management_while_a_store_is_down(
    bus: Bus, admin: ServiceBusAdministrationClient, client: ServiceBusClient, queue: str
) -> None:
    """A clear error and nothing half-made, `Limited`, and counts of what is there."""
    names = [each.name for each in admin.list_queues()]
    topics = [each.name for each in admin.list_topics()]
    down = bus.stores_of(queue)[DOWN]
    with client.get_queue_sender(queue) as sender:
        fill(sender, 1)
    properties = admin.get_queue(queue)
    bus.faults.add({"kind": "fail-store", "store": down})
    with pytest.raises(HttpResponseError) as caught:  # it fails while the entity is being made
        admin.create_queue("half-made", enable_partitioning=True)
    assert caught.value.status_code == 503
    bus.wait_until_down(down)
    changed = admin.get_queue(queue)
    changed.max_delivery_count = 3
    for attempt in (
        lambda: admin.create_queue("half-made", enable_partitioning=True),
        lambda: admin.create_topic("half-made", enable_partitioning=True),
        lambda: admin.update_queue(changed),
        lambda: admin.delete_queue(queue),
    ):
        with pytest.raises(HttpResponseError, match=f"store {down}") as caught:
            attempt()
        assert caught.value.status_code == 503
    assert [each.name for each in admin.list_queues()] == names
    assert [each.name for each in admin.list_topics()] == topics
    seen = admin.get_queue(queue)
    assert seen.max_delivery_count == properties.max_delivery_count
    assert seen.availability_status == "Limited"
    count = admin.get_queue_runtime_properties(queue).total_message_count
    assert count == PARTITION_COUNT - PARTITION_COUNT // STORES
    assert bus.entity(queue)["cannot"] == {"manage": [f"store {down} is down"]}
    bus.faults.clear_all()
    bus.wait_until_well()
    assert [each.name for each in admin.list_queues()] == names
    assert admin.get_queue(queue).availability_status == "Available"
    assert admin.get_queue_runtime_properties(queue).total_message_count == PARTITION_COUNT
    admin.create_queue("half-made", enable_partitioning=True)
    admin.delete_queue("half-made")
    admin.delete_queue(queue)
    assert queue not in [each.name for each in admin.list_queues()]


@pytest.mark.proves("E-13")
def test_rules_while_a_partition_is_down(
    bus: Bus, admin: ServiceBusAdministrationClient, client: ServiceBusClient
) -> None:
    """Rules are the same in all partitions, or do not change."""
    admin.create_topic("news", enable_partitioning=True)
    admin.create_subscription("news", "red")
    take_away(bus, "news", DOWN)
    red = SqlRuleFilter("color = 'red'")
    for attempt in (
        lambda: admin.create_rule("news", "red", "only-red", filter=red),
        lambda: admin.delete_rule("news", "red", "$Default"),
    ):
        with pytest.raises(HttpResponseError) as caught:
            attempt()
        assert caught.value.status_code == 503
    bus.faults.clear_all()
    assert [rule.name for rule in admin.list_rules("news", "red")] == ["$Default"]
    admin.create_rule("news", "red", "only-red", filter=red)
    admin.delete_rule("news", "red", "$Default")
    assert [rule.name for rule in admin.list_rules("news", "red")] == ["only-red"]
    with client.get_topic_sender("news") as sender:
        for color in ("red", "blue"):
            for key in KEYS:
                message = ServiceBusMessage(f"{color} {key}", partition_key=key)
                message.application_properties = {"color": color}
                sender.send_messages(message)
    with client.get_subscription_receiver("news", "red") as receiver:
        found = text_of(take(receiver, PARTITION_COUNT) + take_rest(receiver))
    assert sorted(found) == sorted(f"red {key}" for key in KEYS)


# --- a broker or a store is lost ------------------------------------------------------------------


@pytest.mark.proves("A-4", "E-7", "E-15")
@pytest.mark.feature("available.supervision")
@pytest.mark.parametrize(
    "fault",
    [{"kind": "kill-broker", "broker": 1}, {"kind": "fail-store", "store": 1}],
    ids=lambda fault: str(fault["kind"]),
)
def test_the_loss_of_one_leaves_the_rest(bus: Bus, fault: dict[str, Any]) -> None:
    """The share of the others is sent and received all the time.

    Then all is back: also while stores move home, nobody is refused.
    """
    name = f"rest-{fault['kind']}"
    # A lock that its client could not settle runs out soon.
    bus.server.create_queue(name, enable_partitioning=True, lock_duration="PT5S")
    lost = {1, 3} if fault["kind"] == "kill-broker" else {1}
    stores = bus.stores_of(name)
    well = [KEYS[partition] for partition in range(8) if stores[partition] not in lost][:2]
    with Traffic(bus, name, [None, *well]) as traffic:
        bus.faults.add(fault)
        traffic.goes_on()
        bus.faults.clear_all()
        bus.wait_until_even()
        traffic.goes_on()
    assert traffic.refused == []
