"""The four ways of being unavailable, and the rest of what holds with broker processes.

A-1 in one table, transactions on partitioned entities with Apache Qpid Proton, several
namespaces, and a server that starts again on its stores.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessagingEntityNotFoundError
from proton import Delivery, Message, symbol

from tests.interop.administration import connect
from tests.interop.outage import KEYS, Bus, peek_all, run_server, send, take, take_rest, text_of
from tests.interop.test_proton_transactions import TRANSACTIONAL, Client, open_connection
from twinbus.cli.main import main
from twinbus.cli.running import find_running
from twinbus.client.admin import SUBSCRIPTION, TOPIC, AdminClient
from twinbus.entities.partitions import PARTITION_COUNT, hash_key
from twinbus.launch import ServerFailed
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.proves("A-1", "E-10")

NAMES = ("shop", "office")
QUEUE = "orders"


@pytest.fixture(scope="module")
def whole_bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    """Two namespaces with a partitioned queue each, on two brokers with a store each."""
    arguments = [text for name in NAMES for text in ("--namespace", name)]
    directory = tmp_path_factory.mktemp("available")
    with run_server(directory, brokers=2, stores=2, arguments=arguments) as running:
        for string in find_running(running.server.data_dir).connection_strings.values():
            AdminClient(string).create_queue(QUEUE, {"EnablePartitioning": "true"})
        yield running


@pytest.fixture
def bus(whole_bus: Bus) -> Iterator[Bus]:
    """No fault is left behind."""
    yield whole_bus
    whole_bus.faults.clear_all()


# --- the four ways --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def attempts(whole_bus: Bus) -> Iterator[dict[str, Callable[[], object]]]:
    """What can be tried; all but the last on connections that are open."""
    with (
        whole_bus.client(retry_total=0) as client,
        client.get_queue_sender(QUEUE) as sender,
        client.get_queue_receiver(QUEUE) as receiver,
        connect(whole_bus.server) as admin,
    ):

        def contact() -> None:
            with whole_bus.client(retry_total=0) as another, another.get_queue_sender(QUEUE):
                pass

        send(sender, "for a receiver that comes before the sender")
        yield {
            "send": lambda: send(sender, "order"),
            "receive": lambda: take(receiver, 1),
            "manage": lambda: admin.get_queue(QUEUE),
            "contact": contact,
        }


@pytest.mark.proves("A-1")
@pytest.mark.feature("available.faults", "available.health")
@pytest.mark.parametrize(
    "kind, way",
    [
        ("refuse-sends", "send"),
        ("refuse-receives", "receive"),
        ("refuse-management", "manage"),
        ("refuse-connections", "contact"),
    ],
)
def test_one_way_of_being_unavailable(
    bus: Bus, attempts: dict[str, Callable[[], object]], kind: str, way: str
) -> None:
    """It is reported, and leaves everything else as it is."""
    for attempt in attempts.values():
        attempt()
    assert bus.entity(QUEUE) == {}
    scope = {"namespace": NAMES[0]} if way == "contact" else {"entity": QUEUE}
    fault = bus.faults.add({"kind": kind, **scope})
    seen = bus.health()
    assert {each["namespace"] for each in seen["entities"]} == {NAMES[0]}
    (sick,) = [each for each in seen["entities"] if each["entity"] == QUEUE]
    assert sick["cannot"] == {way: [f"fault {fault['id']} ({kind})"]}
    assert seen["status"] == "healthy"  # nothing is wrong with the server
    assert {name for name, attempt in attempts.items() if fails(attempt)} == {way}
    bus.faults.clear_all()
    assert bus.entity(QUEUE) == {}
    for attempt in attempts.values():
        attempt()


def fails(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except (AzureError, OSError):
        return True
    return False


@pytest.mark.proves("A-1", "A-5")
@pytest.mark.feature("available.faults", "available.health")
def test_a_namespace_that_cannot_be_contacted_at_all(bus: Bus) -> None:
    """Every way to it is cut, and the other namespace knows nothing of it."""
    shop, office = find_running(bus.server.data_dir).connection_strings.values()
    fault = bus.faults.add({"kind": "cut-namespace", "namespace": NAMES[1]})
    for sick in bus.health()["entities"]:
        assert sick["namespace"] == NAMES[1]
        assert sick["cannot"] == {"contact": [f"fault {fault['id']} (cut-namespace)"]}
    assert bus.entity(QUEUE)
    for string, is_cut in ((shop, False), (office, True)):
        with ServiceBusClient.from_connection_string(string, retry_total=0) as client:
            sender = client.get_queue_sender(QUEUE)
            assert fails(partial(send, sender, "order")) is is_cut
        with connect(bus.server, string) as admin:
            assert fails(partial(admin.get_queue, QUEUE)) is is_cut


# --- namespaces -----------------------------------------------------------------------------------


@pytest.mark.proves("M-12", "E-1")
@pytest.mark.feature("available.partitions")
def test_namespaces_share_brokers_and_nothing_else(bus: Bus) -> None:
    """Partitions of the same name do not meet."""
    strings = find_running(bus.server.data_dir).connection_strings
    assert list(strings) == list(NAMES)
    for name, string in strings.items():
        AdminClient(string).create_queue("same", {"EnablePartitioning": "true"})
        AdminClient(string).create_queue(f"{name}-only", {})
        with (
            ServiceBusClient.from_connection_string(string) as client,
            client.get_queue_sender("same") as sender,
        ):
            for key in KEYS:
                send(sender, f"{name} {key}", key)
    for name, string in strings.items():
        other = NAMES[1 - NAMES.index(name)]
        names = [queue.name for queue in AdminClient(string).list_queues()]
        assert f"{name}-only" in names
        assert f"{other}-only" not in names
        with ServiceBusClient.from_connection_string(string, retry_total=0) as client:
            with client.get_queue_receiver("same") as receiver:
                found = text_of(take(receiver, PARTITION_COUNT) + take_rest(receiver))
            assert sorted(found) == sorted(f"{name} {key}" for key in KEYS)
            with pytest.raises(MessagingEntityNotFoundError):
                client.get_queue_sender(f"{other}-only").send_messages(ServiceBusMessage("x"))


# --- transactions ---------------------------------------------------------------------------------


@pytest.fixture
def proton(bus: Bus) -> Iterator[Client]:
    with closing(open_connection(bus.server.connection_string)) as connection:
        yield Client(connection)


@pytest.fixture(scope="module")
def trio(whole_bus: Bus) -> tuple[str, str, str]:
    """Partitioned queues; key "k" leads to one store in the first two, to another in the third."""
    by_store: dict[int, list[str]] = {0: [], 1: []}
    for number in range(20):
        name = f"ledger-{number}"
        whole_bus.server.create_queue(name, enable_partitioning=True)
        by_store[whole_bus.stores_of(name)[hash_key("k")]].append(name)
        if len(by_store[0]) >= 2 and by_store[1]:
            return by_store[0][0], by_store[0][1], by_store[1][0]
    raise AssertionError("every name begins in the same store")


def keyed(key: str) -> dict[str, Any]:
    return {"annotations": {symbol("x-opt-partition-key"): key}}


def refusal_of(delivery: Any) -> str:
    assert delivery.remote_state == Delivery.REJECTED
    return f"{delivery.remote.condition.name}: {delivery.remote.condition.description}"


@pytest.mark.proves("E-10")
@pytest.mark.feature("available.partitions", "transaction.commit")
def test_a_transaction_with_one_key(proton: Client, trio: tuple[str, str, str]) -> None:
    """Received, settled and sent with the same key, all of it or nothing."""
    first, second, _ = trio
    proton.connection.create_sender(first).send(Message(body="order", **keyed("k")))
    for fail in (True, False):
        receiver = proton.connection.create_receiver(first, credit=1)
        sender = proton.connection.create_sender(second)
        transaction = proton.declare()
        text, delivery = proton.receive(receiver)
        assert text == "order"
        proton.accept(transaction, delivery)
        for number in range(3):
            sent = proton.send(transaction, sender, number, **keyed("k"))
            assert sent.remote_state == TRANSACTIONAL
        assert proton.discharge(transaction, fail=fail) == ("aborted" if fail else "committed")
        receiver.close()
        sender.close()
        assert proton.bodies(second) == ([] if fail else [0, 1, 2])
    assert proton.bodies(first) == []


@pytest.mark.proves("E-10")
@pytest.mark.feature("available.partitions", "transaction.limits")
def test_a_transaction_with_other_keys(proton: Client, trio: tuple[str, str, str]) -> None:
    """No key, another key, another session, another store: invalid; what was good commits."""
    first, _, far = trio
    senders = {name: proton.connection.create_sender(name) for name in (first, far)}
    transaction = proton.declare()
    delivery = proton.send(transaction, senders[first], "without")
    assert "needs a partition key" in refusal_of(delivery)
    delivery = proton.send(transaction, senders[first], "good", **keyed("k"))
    assert delivery.remote_state == TRANSACTIONAL
    delivery = proton.send(transaction, senders[first], "another key", **keyed("l"))
    assert "has one key" in refusal_of(delivery)
    delivery = proton.send(transaction, senders[first], "another session", group_id="m")
    assert "has one key" in refusal_of(delivery)
    delivery = proton.send(transaction, senders[far], "another store", **keyed("k"))
    assert "store" in refusal_of(delivery)
    assert proton.discharge(transaction) == "committed"
    assert proton.bodies(first) == ["good"]
    assert proton.bodies(far) == []


@pytest.mark.proves("M-7")
@pytest.mark.feature("available.partitions", "transaction.limits")
def test_a_transaction_over_plain_queues(
    bus: Bus, proton: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one store all of it happens; in two it is refused, with both named and what to do."""
    for number in range(4):  # by turns to the two stores, whatever was there before
        bus.server.create_queue(f"plain-{number}")
    at: dict[str, list[str]] = {"0": [], "1": []}
    string = bus.server.connection_string
    assert main(["status", "--prefix", "plain-", "--connection-string", string]) == 0
    for line in capsys.readouterr().out.splitlines():
        if line.startswith("plain-"):
            at[line.split()[-1]].append(line.split()[0])
    near, near_too, far = at["0"][0], at["0"][1], at["1"][0]
    senders = {name: proton.connection.create_sender(name) for name in (near, near_too, far)}
    transaction = proton.declare()
    for name in (near, near_too):
        assert proton.send(transaction, senders[name], name).remote_state == TRANSACTIONAL
    refusal = refusal_of(proton.send(transaction, senders[far], "lost"))
    assert refusal.startswith("amqp:not-allowed: A transaction stays in one store")
    assert f"'{near}' in store 0, and '{far}' is in store 1" in refusal
    assert "'twinbus status' shows where each is" in refusal
    assert proton.discharge(transaction) == "committed"
    assert [proton.bodies(name) for name in (near, near_too, far)] == [[near], [near_too], []]


@pytest.mark.proves("E-13")
@pytest.mark.feature("available.partitions", "transaction.limits")
def test_rules_in_a_transaction(bus: Bus, proton: Client) -> None:
    """They are not changed in one."""
    bus.server.admin.create(TOPIC, ["news"], {"EnablePartitioning": "true"})
    bus.server.admin.create(SUBSCRIPTION, ["news", "all"], {})
    node = "news/Subscriptions/all/$management"
    requests = proton.connection.create_sender(node)
    responses = proton.connection.create_receiver(node, credit=2)
    rule = {"rule-name": "red", "rule-description": {"sql-filter": {"expression": "color = 'red'"}}}
    message = Message(
        body=rule, properties={"operation": "com.microsoft:add-rule"}, id="1", reply_to="me"
    )
    transaction = proton.declare()
    transaction.send(requests.link, message)
    assert responses.receive(timeout=10).properties["statusCode"] == 501
    assert proton.discharge(transaction) == "committed"
    with connect(bus.server) as admin:
        assert [each.name for each in admin.list_rules("news", "all")] == ["$Default"]


# --- stores over restarts -------------------------------------------------------------------------


@pytest.mark.proves("E-1", "E-3")
@pytest.mark.feature("available.partitions", "ours.restart")
def test_stores_over_restarts(tmp_path: Path) -> None:
    """Everything is found again; a wrong order is refused; a new store is used."""
    places = [tmp_path / name for name in ("a", "b", "c")]

    def on(*stores: Path) -> tuple[str, ...]:
        return ("--brokers", "2", *(text for path in stores for text in ("--store", str(path))))

    server = ServerProcess(tmp_path / "data", arguments=on(*places[:2]))
    bus = Bus(server)
    with server:
        server.create_queue("wide", enable_partitioning=True)
        server.create_queue("plain")
        stores = bus.stores_of("wide")
        fill(bus, "wide", "first")
        with bus.client() as client, client.get_queue_sender("plain") as sender:
            send(sender, "plain")
    server.arguments = on(places[1], places[0])
    with pytest.raises(ServerFailed, match=r"begin with --store .*/a --store .*/b") as refused:
        server.start()
    assert refused.value.exit_code == 1
    server.arguments = on(*places)
    with server:
        assert bus.stores_of("wide") == stores
        server.create_queue("wider", enable_partitioning=True)
        assert sorted(Counter(bus.stores_of("wider")).values()) == [5, 5, 6]
        fill(bus, "wide", "second")
        with bus.client() as client:
            with client.get_queue_receiver("wide") as receiver:
                found = peek_all(receiver)
            with client.get_queue_receiver("plain") as receiver:
                assert text_of(peek_all(receiver)) == ["plain"]
    for key in KEYS:
        mine = [message for message in found if message.partition_key == key]
        assert text_of(mine) == ["first", "second"]
    assert "Traceback" not in server.log, server.log


def fill(bus: Bus, queue: str, text: str) -> None:
    with bus.client() as client, client.get_queue_sender(queue) as sender:
        for key in KEYS:
            send(sender, text, key)


@pytest.mark.feature("ours.restart")
@pytest.mark.parametrize("brokers", ["1", "2"])
def test_the_files_of_a_store_have_the_size_asked_for_at_first(
    tmp_path: Path, brokers: str
) -> None:
    """A store that is there already keeps the size it was made with."""
    data_dir = tmp_path / "data"
    for megabytes in (8, 32):
        given = ["--brokers", brokers, "--segment-size", str(megabytes)]
        with ServerProcess(data_dir, arguments=given) as server:
            server.create_queue(f"orders-{megabytes}")
        files = list(data_dir.rglob("0*.log"))
        assert len(files) >= int(brokers)
        assert {path.stat().st_size for path in files} == {8 * 1_048_576}
