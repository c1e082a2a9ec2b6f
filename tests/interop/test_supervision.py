"""A broker process that ends or hangs while clients of the official SDK are at work."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tests.interop.administration import connect
from tests.interop.outage import KEYS, RECEIVE_S, Bus, peek_all, run_server, text_of, until
from twinbus.entities.partitions import PARTITION_COUNT, hash_key, partition_of

pytestmark = [pytest.mark.proves("A-4"), pytest.mark.feature("available.supervision")]

MESSAGES = 12


@pytest.fixture(scope="module")
def whole_bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    """Three brokers: whoever is lost, its store is taken over by one of two."""
    with run_server(tmp_path_factory.mktemp("supervised"), brokers=3, stores=3) as bus:
        yield bus


@pytest.fixture
def bus(whole_bus: Bus) -> Iterator[Bus]:
    whole_bus.wait_until_well()
    yield whole_bus
    whole_bus.faults.clear_all()


@pytest.fixture(scope="module")
def client(whole_bus: Bus) -> Iterator[ServiceBusClient]:
    with whole_bus.client() as opened:
        yield opened


class SessionReader:
    """Reads a session; if that is lost it accepts the session again, as a program would."""

    def __init__(self, client: ServiceBusClient, queue: str, session_id: str) -> None:
        self._client = client
        self._queue = queue
        self._session_id = session_id
        self._receiver = self._accept()
        self.texts: list[str] = []  # in the order they came first
        self.losses = 0

    def _accept(self) -> Any:
        return self._client.get_queue_receiver(self._queue, session_id=self._session_id)

    def read(self, count: int) -> None:
        until(lambda: self._read_more(count), f"{len(self.texts)} of {count} came")

    def _read_more(self, count: int) -> bool:
        try:
            for message in self._receiver.receive_messages(1, max_wait_time=RECEIVE_S):
                if str(message) not in self.texts:
                    self.texts.append(str(message))
                self._receiver.complete_message(message)
        except ServiceBusError:
            self.losses += 1
            self._receiver.close()
            self._receiver = self._accept()
        return len(self.texts) >= count

    def close(self) -> None:
        self._receiver.close()


def check_bundle(bus: Bus, broker: int, kind: str, pid: int) -> None:
    """What was found out about the broker was written down."""
    bundle = bus.bundles(broker)[-1]
    files = {path.name: path.read_text() for path in bundle.iterdir()}
    assert set(files) == {"reason.txt", "stacks.txt", "counters.json", "log.txt"}
    assert f"process: {pid}, " in files["reason.txt"]
    assert json.loads(files["counters.json"])
    if kind == "kill-broker":
        assert "the process has ended: SIGKILL" in files["reason.txt"]
    else:
        assert "no sign of life" in files["reason.txt"]
        assert "State:\tT (stopped)" in files["stacks.txt"]  # it was not killed yet


@pytest.mark.proves("A-4")
@pytest.mark.parametrize("kind", ["kill-broker", "hang-broker"])
def test_sessions_go_on(bus: Bus, client: ServiceBusClient, kind: str) -> None:
    """Another broker takes over; a session there goes on in order, others do not notice."""
    queue = f"visits-{kind}"
    bus.server.create_queue(queue, enable_partitioning=True, requires_session=True)
    stores, owners = bus.stores_of(queue), bus.owners()
    victim = owners[stores[0]]
    there = KEYS[0]
    elsewhere = next(KEYS[p] for p in range(PARTITION_COUNT) if owners[stores[p]] != victim)
    expected = [str(number) for number in range(MESSAGES)]
    with client.get_queue_sender(queue) as sender:
        for session_id in (there, elsewhere):
            sender.send_messages(
                [ServiceBusMessage(text, session_id=session_id) for text in expected]
            )
    readers = [SessionReader(client, queue, session_id) for session_id in (there, elsewhere)]
    for reader in readers:
        reader.read(MESSAGES // 3)
    before = bus.health()["brokers"][victim]
    bus.faults.add({"kind": kind, "broker": victim})
    readers[1].read(2 * MESSAGES // 3)
    readers[0].read(MESSAGES)
    readers[1].read(MESSAGES)
    assert [reader.texts for reader in readers] == [expected, expected]
    assert readers[1].losses == 0
    bus.wait_until_well()
    after = bus.health()["brokers"][victim]
    assert after["restarts"] == before["restarts"] + 1
    assert after["pid"] != before["pid"]
    check_bundle(bus, victim, kind, before["pid"])
    for reader in readers:
        reader.close()


@pytest.mark.proves("E-9")
def test_peek_does_not_wait_for_a_broker_that_hangs(bus: Bus, client: ServiceBusClient) -> None:
    """What the others have comes while the broker still hangs; later everything does."""
    queue = "looked-at"
    bus.server.create_queue(queue, enable_partitioning=True)
    stores, owners = bus.stores_of(queue), bus.owners()
    victim = owners[stores[0]]  # a peek from the beginning asks it first
    with client.get_queue_sender(queue) as sender:
        for key in KEYS:
            sender.send_messages(ServiceBusMessage(key, partition_key=key))
    others = {KEYS[p] for p in range(PARTITION_COUNT) if owners[stores[p]] != victim}
    with client.get_queue_receiver(queue) as receiver:
        assert set(text_of(peek_all(receiver))) == set(KEYS)
        # Where a machine is busy the server may find out before the answer is here; not always.
        assert any(_is_peeked_meanwhile(bus, receiver, victim, others) for _ in range(4))
        assert set(text_of(peek_all(receiver))) == set(KEYS)


def _is_peeked_meanwhile(bus: Bus, receiver: Any, victim: int, expected: set[str]) -> bool:
    """Hang a broker and peek: did the answer come while the server took it for well?"""
    before = bus.health()["brokers"][victim]
    bus.faults.add({"kind": "hang-broker", "broker": victim})
    found = set(text_of(receiver.peek_messages(PARTITION_COUNT, sequence_number=1)))
    meanwhile = bus.health()["brokers"][victim]
    is_hanging = all(meanwhile[name] == before[name] for name in ("state", "pid", "restarts"))
    assert not is_hanging or found == expected
    bus.faults.clear_all()
    bus.wait_until_even()
    return is_hanging


@pytest.mark.proves("E-11")
def test_forwarding_while_a_broker_is_killed(bus: Bus, client: ServiceBusClient) -> None:
    """Between partitioned entities in different stores, by key, in order, exactly once."""
    bus.server.create_queue("end", enable_partitioning=True)
    bus.server.create_queue("middle", enable_partitioning=True, forward_to="end")
    bus.server.create_queue("start", enable_partitioning=True)
    spread = [bus.stores_of(name) for name in ("start", "middle", "end")]
    keys = [key for p, key in enumerate(KEYS) if len({stores[p] for stores in spread}) > 1]
    assert keys, "every partition is in the same store as its target's"
    texts = {key: [f"{key} {number}" for number in range(100)] for key in keys[:4]}
    with client.get_queue_sender("start") as sender:
        for key, some in texts.items():
            sender.send_messages([ServiceBusMessage(text, partition_key=key) for text in some])
    with connect(bus.server) as admin:
        start = admin.get_queue("start")
        start.forward_to = "middle"
        admin.update_queue(start)
        bus.faults.add({"kind": "kill-broker", "broker": bus.owners()[spread[1][0]]})

        def counts() -> list[int | None]:
            return [
                admin.get_queue_runtime_properties(name).total_message_count
                for name in ("start", "middle", "end")
            ]

        # A relay completes what has come to the next queue, a moment later.
        until(lambda: counts() == [0, 0, 400], "not everything has come, or too much")
        bus.wait_until_well()
    with client.get_queue_receiver("end") as receiver:
        found = peek_all(receiver)
    for key, some in texts.items():
        mine = [message for message in found if message.partition_key == key]
        assert text_of(mine) == some
        assert {partition_of(message.sequence_number) for message in mine} == {hash_key(key)}
