"""Sends while a store is slow or fails: acknowledged, kept in order, there afterwards."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tests.interop.outage import KEYS, Bus, peek_all, run_server, send, text_of, until

pytestmark = [pytest.mark.proves("A-3"), pytest.mark.feature("available.journal")]

QUEUE = "orders"
STORE = 1  # the one that is sick
COUNT = 10  # messages before, during and after, with each key


@pytest.fixture(scope="module")
def whole_bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    with run_server(tmp_path_factory.mktemp("journal"), brokers=2, stores=2) as bus:
        bus.server.create_queue("victim", enable_partitioning=True)
        yield bus


@pytest.fixture
def bus(whole_bus: Bus) -> Iterator[Bus]:
    """An empty partitioned queue, and no fault left behind."""
    whole_bus.wait_until_well()
    until(lambda: not is_journalled(whole_bus), "the journal is not emptied")
    if QUEUE in {queue.name for queue in whole_bus.server.admin.list_queues()}:
        whole_bus.server.admin.delete_queue(QUEUE)
    whole_bus.server.create_queue(QUEUE, enable_partitioning=True)
    yield whole_bus
    whole_bus.faults.clear_all()


def keys_in_the_store(bus: Bus) -> list[str]:
    stores = bus.stores_of(QUEUE)
    return [key for partition, key in enumerate(KEYS) if stores[partition] == STORE][:2]


def is_journalled(bus: Bus) -> bool:
    return bool(bus.health()["stores"][STORE]["is_journalled"])


def break_store(bus: Bus, client: ServiceBusClient) -> None:
    """Its next write fails, and with it whoever has caused it.  From then on it is down."""
    stores = bus.stores_of("victim")
    bus.faults.add({"kind": "fail-store", "store": STORE})
    with client.get_queue_sender("victim") as sender, suppress(ServiceBusError):
        send(sender, "lost", KEYS[stores.index(STORE)])
    bus.wait_until_down(STORE)


def check(bus: Bus, keys: list[str], expected: list[str]) -> None:
    """Everything is there: once, and in order for each key."""
    with bus.client() as client, client.get_queue_receiver(QUEUE) as receiver:
        found = peek_all(receiver)
    for key in keys:
        assert text_of(each for each in found if each.partition_key == key) == expected
    assert len(found) == len(keys) * len(expected)


@pytest.mark.proves("A-3")
def test_a_slow_store(bus: Bus) -> None:
    """Nobody waits for it, once it is known to be slow."""
    keys = keys_in_the_store(bus)
    expected = [str(number) for number in range(3 * COUNT)]
    with bus.client(retry_total=0) as client, client.get_queue_sender(QUEUE) as sender:
        for text in expected[:COUNT]:
            for key in keys:
                send(sender, text, key)
        bus.faults.add({"kind": "slow-store", "store": STORE, "delay_ms": 2_000})
        for text in expected[COUNT : 2 * COUNT]:
            for key in keys:
                send(sender, text, key)
        assert is_journalled(bus)
        assert "send" not in bus.entity(QUEUE).get("cannot", {})
        bus.faults.clear_all()
        for text in expected[2 * COUNT :]:
            for key in keys:
                send(sender, text, key)
        until(lambda: not is_journalled(bus), "the journal is not emptied")
    check(bus, keys, expected)


@pytest.mark.proves("A-3")
@pytest.mark.parametrize("is_killed", [False, True], ids=["store back", "server killed"])
def test_a_store_that_fails(bus: Bus, is_killed: bool) -> None:
    """Kept beside the store, also when everything is killed; late, once, in order."""
    keys = keys_in_the_store(bus)
    expected = [str(number) for number in range(2 * COUNT)]
    with bus.client(retry_total=0) as client:
        break_store(bus, client)
        with client.get_queue_sender(QUEUE) as sender:
            for text in expected[:COUNT]:
                for key in keys:
                    send(sender, text, key)
            later = ServiceBusMessage("later", partition_key=keys[0])
            with pytest.raises(ServiceBusError):  # its number is asked for, and nobody has it
                sender.schedule_messages(later, datetime.now(UTC) + timedelta(hours=1))
    assert is_journalled(bus)
    with bus.client() as client, client.get_queue_receiver(QUEUE) as receiver:
        assert peek_all(receiver) == []
    if is_killed:
        bus.server.kill()
        bus.server.restart()
    else:
        bus.faults.clear_all()
    with bus.client(retry_total=0) as client, client.get_queue_sender(QUEUE) as sender:
        for text in expected[COUNT:]:
            for key in keys:
                send(sender, text, key)
    until(lambda: not is_journalled(bus), "the journal is not emptied")
    check(bus, keys, expected)


@pytest.mark.proves("A-3")
def test_a_plain_queue_in_the_store(bus: Bus) -> None:
    """What is not partitioned has one place to go to, and can be sent to all the same."""
    names = ["plain-0", "plain-1", "plain-2", "plain-3"]
    for name in names:
        bus.server.create_queue(name)
    with bus.client(retry_total=0) as client:
        break_store(bus, client)
        sick = {each["entity"] for each in bus.health()["entities"]}
        name = next(name for name in names if name in sick)
        assert "receive" in bus.entity(name)["cannot"]
        assert "send" not in bus.entity(name)["cannot"]
        with client.get_queue_sender(name) as sender:
            for number in range(COUNT):
                send(sender, str(number))
        bus.faults.clear_all()
        until(lambda: not is_journalled(bus), "the journal is not emptied")
        with client.get_queue_receiver(name) as receiver:
            assert text_of(peek_all(receiver)) == [str(number) for number in range(COUNT)]
