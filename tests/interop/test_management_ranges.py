"""Partitions, numbers, ranges and settling by number on real servers.

Everything twice: with the stores in the server's own process, and with broker processes.  The
official SDK sends and receives around it.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue

from tests.interop.outage import KEYS
from tests.interop.test_sdk_access import LISTENING, ROOT, SENDING, connection_string
from twinbus.amqp.types import Array, Int
from twinbus.client.admin import SUBSCRIPTION, TOPIC
from twinbus.client.connection import BusConnection
from twinbus.client.faults import FaultClient
from twinbus.client.meter import MeterClient
from twinbus.client.requests import ManagementNode
from twinbus.config import Identity, store_identity
from twinbus.entities.partitions import PARTITION_COUNT, partition_of
from twinbus.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    EntityNotFound,
    InvalidOperation,
    ServiceError,
    Unauthorized,
)
from twinbus.message.plain import decode_message
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.proves("D-1", "D-2", "C-2")

END: Final = 1 << 62
COUNT: Final = 32

Answer = dict[str, Any]

# What is asked, and where the messages for it are sent to.
PLACES: Final = {
    "plain": "plain",
    "sessions": "sessions",
    "parted": "parted",
    "parted-sessions": "parted-sessions",
    "news/Subscriptions/all": "news",
    "parted-news/Subscriptions/all": "parted-news",
}


@pytest.fixture(scope="module", params=["in process", "brokers"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server with one entity of each kind, each with 32 messages; some tests make their own."""
    directory = tmp_path_factory.mktemp("ranges")
    (directory / "data").mkdir()
    store_identity(directory / "data", Identity("ranges", (ROOT, SENDING, LISTENING)))
    arguments = [] if request.param == "in process" else ["--brokers", "2"]
    with ServerProcess(directory / "data", arguments=arguments) as process:
        create_entities(process)
        yield process
    assert "Traceback" not in process.log, process.log


def create_entities(server: ServerProcess) -> None:
    for name in ("plain", "sessions", "parted", "parted-sessions"):
        parted, sessions = name.startswith("parted"), name.endswith("sessions")
        server.create_queue(name, enable_partitioning=parted, requires_session=sessions)
    for name in ("news", "parted-news"):
        partitioning = str(name.startswith("parted")).lower()
        server.admin.create(TOPIC, [name], {"EnablePartitioning": partitioning})
        server.admin.create(SUBSCRIPTION, [name, "all"], {})
    with ServiceBusClient.from_connection_string(server.connection_string) as client:
        for name in set(PLACES.values()):
            is_topic = name.endswith("news")
            make = client.get_topic_sender if is_topic else client.get_queue_sender
            with make(name) as sender:
                for n in range(COUNT):
                    sender.send_messages(
                        ServiceBusMessage(b"%d" % n, session_id=KEYS[n % len(KEYS)])
                    )


def asked(server: ServerProcess, entity: str, operation: str, /, **fields: object) -> Answer:
    """The answer of the entity's node; `from_sequence_number` is 'from-sequence-number'."""

    body: dict[object, object] = {key.replace("_", "-"): value for key, value in fields.items()}
    return asyncio.run(ask(server.connection_string, entity, operation, body))


async def ask(string: str, entity: str, operation: str, body: dict[object, object]) -> Answer:
    async with await BusConnection.open(string) as connection:
        node = await ManagementNode.open(connection, entity)
        return await node.request(f"twinbus:{operation}", body)


def fill(server: ServerProcess, queue: str, *bodies: bytes) -> None:
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_sender(queue) as sender,
    ):
        for start in range(0, len(bodies), 200):  # as many as fit into one delivery
            sender.send_messages([ServiceBusMessage(body) for body in bodies[start : start + 200]])


def runs(server: ServerProcess, entity: str, **fields: object) -> list[tuple[int, int]]:
    bounds = asked(server, entity, "numbers", **fields).get("bounds", [])
    return list(zip(bounds[::2], bounds[1::2], strict=True))


def read(server: ServerProcess, entity: str, first: int, end: int) -> list[Any]:
    answer = asked(
        server,
        entity,
        "browse",
        from_sequence_number=first,
        to_sequence_number=end,
        maximum_bytes=Int(1 << 22),
    )
    assert answer.get("message-count", 0) == len(answer.get("messages", []))
    assert "next-sequence-number" not in answer
    return [decode_message(encoded) for encoded in answer.get("messages", [])]


def settle(server: ServerProcess, entity: str, *bounds: int, **fields: object) -> int:
    answer = asked(server, entity, "settle", bounds=Array(bounds), **fields)
    assert "next-sequence-number" not in answer
    return int(answer.get("message-count", 0))


# --- every kind of entity ---------------------------------------------------------------------


@pytest.mark.proves("D-1", "D-2")
@pytest.mark.parametrize("entity", PLACES)
def test_from_the_partitions_to_the_last_message(server: ServerProcess, entity: str) -> None:
    """What a pipeline does: where are they, read them, put some away, delete the rest."""
    states = asked(server, entity, "partitions")["partitions"]
    count = PARTITION_COUNT if "parted" in entity else 1
    assert [state["partition"] for state in states] == list(range(count))
    assert all(state["is-up"] for state in states)
    assert sum(state["message-count"] for state in states) == COUNT
    spans = [(state["first-sequence-number"], state["next-sequence-number"]) for state in states]
    assert runs(server, entity) == spans
    messages = [message for first, end in spans for message in read(server, entity, first, end)]
    assert sorted(int(message.body) for message in messages) == list(range(COUNT))

    first, end = spans[-1]
    reason = {"deadletter_reason": "Odd", "deadletter_description": "as a test"}
    assert settle(server, entity, end - 2, end, **reason) == 2
    dead = f"{entity}/$DeadLetterQueue"
    assert runs(server, dead) == [(end - 2, end)]
    assert {
        (message.application_properties["DeadLetterReason"], message.properties.group_id)
        for message in read(server, dead, 0, END)
    } <= {("Odd", key) for key in KEYS}
    assert runs(server, entity, from_sequence_number=first) == [(first, end - 2)] * (
        end - first > 2
    )
    with pytest.raises(InvalidOperation, match="cannot be dead-lettered"):
        settle(server, dead, 0, END, **reason)
    assert settle(server, dead, 0, END) == 2
    assert settle(server, entity, 0, END) == COUNT - 2
    assert settle(server, entity, 0, END) == 0
    after = asked(server, entity, "partitions")["partitions"]
    assert [state["next-sequence-number"] for state in after] == [end for _, end in spans]
    assert [state["first-sequence-number"] for state in after] == [end for _, end in spans]
    assert runs(server, entity) == []
    transfer = asked(server, f"{entity}/$Transfer/$DeadLetterQueue", "partitions")
    assert [state["message-count"] for state in transfer["partitions"]] == [0] * count


def test_locked_and_scheduled_messages_are_left_alone(server: ServerProcess) -> None:
    server.create_queue("locked")
    fill(server, "locked", b"0", b"1", b"2")
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_receiver("locked") as receiver,
    ):
        (held,) = receiver.receive_messages(1)
        assert runs(server, "locked") == [(1, 4)]
        assert settle(server, "locked", 0, END) == 2
        receiver.complete_message(held)  # its receiver still has it
    assert runs(server, "locked") == []


def test_a_large_answer(server: ServerProcess) -> None:
    """4 MiB at a time, in order, and as many messages as there are in them."""
    server.create_queue("large")
    fill(server, "large", *[bytes(1_000)] * 1_200)
    answer = asked(server, "large", "browse", maximum_bytes=Int(1_000_000))
    assert 900 < len(answer["messages"]) < 1_000
    assert answer["next-sequence-number"] == len(answer["messages"]) + 1
    numbers = [
        message.annotations["x-opt-sequence-number"] for message in read(server, "large", 0, END)
    ]
    assert numbers == list(range(1, 1_201))
    old = asked(server, "large", "browse")  # without a size it is as it has been
    assert len(old["messages"]) < 300
    assert set(old["messages"][0]) == {"message"}


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "operation, fields, text",
    [
        ("settle", {}, "'bounds' must be an array"),
        ("settle", {"bounds": [1]}, "'bounds' must hold pairs"),
        ("settle", {"bounds": [1, "2"]}, "'bounds' must hold whole numbers"),
        ("settle", {"bounds": [3, 3]}, "'bounds' must ascend"),
        ("settle", {"bounds": [1, 5, 4, 8]}, "'bounds' must ascend"),
        ("settle", {"bounds": [-1, 5]}, "negative"),
        ("settle", {"bounds": [*range(2_050)]}, "more than 2048"),
        ("settle", {"bounds": [1, 2], "deadletter-reason": 7}, "must be a string"),
        ("settle", {"bounds": [1, 2], "deadletter-description": "x"}, "'deadletter-reason'"),
        ("browse", {"maximum-bytes": Int(0)}, "'maximum-bytes' is 1 to 4194304"),
        ("browse", {"maximum-bytes": Int(4_194_305)}, "'maximum-bytes' is 1 to 4194304"),
        ("browse", {"maximum-bytes": "much"}, "whole number"),
        ("browse", {"maximum-bytes": Int(9), "message-count": Int(16_385)}, "1 to 16384"),
        ("browse", {"to-sequence-number": "9"}, "whole number"),
        ("numbers", {"states": ["lost"]}, "'states' must hold"),
        ("numbers", {"session-id": "x"}, "no sessions"),
    ],
)
def test_what_makes_no_sense_is_refused(
    server: ServerProcess, operation: str, fields: dict[str, object], text: str
) -> None:
    refusals = (ArgumentInvalid, ArgumentOutOfRange, InvalidOperation)
    with pytest.raises(refusals, match=text):
        asked(server, "plain", operation, **fields)


@pytest.mark.parametrize(
    "operation, fields", [("partitions", {}), ("numbers", {}), ("settle", {"bounds": [0, 9]})]
)
def test_a_topic_has_nothing_to_read(
    server: ServerProcess, operation: str, fields: dict[str, object]
) -> None:
    for topic in ("news", "parted-news"):
        with pytest.raises(InvalidOperation, match="ask at its subscriptions"):
            asked(server, topic, operation, **fields)


@pytest.mark.parametrize("operation", ["partitions", "numbers", "browse", "settle"])
def test_listening_is_the_right_that_it_takes(server: ServerProcess, operation: str) -> None:
    listening = connection_string(server, "listening", LISTENING.primary_key)
    sending = connection_string(server, "sending", SENDING.primary_key)
    body: dict[object, object] = {"bounds": [END, END + 1]} if operation == "settle" else {}
    asyncio.run(ask(listening, "plain", operation, body))
    with pytest.raises(Unauthorized):
        asyncio.run(ask(sending, "plain", operation, body))


# --- what lasts -------------------------------------------------------------------------------


def test_an_entity_that_is_made_again_is_another(server: ServerProcess) -> None:
    """By when it was created one tells them apart: sequence numbers begin anew."""
    created = []
    for _ in range(2):
        server.create_queue("again", enable_partitioning=True)
        created.append(asked(server, "again", "partitions")["created"])
        server.admin.delete_queue("again")
    assert created[0] < created[1]
    with pytest.raises(EntityNotFound):
        asked(server, "again", "partitions")


def test_a_partition_that_is_down(server: ServerProcess) -> None:
    """It is told, and nothing in it seems to be gone."""
    server.create_queue("sick", enable_partitioning=True)
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_sender("sick") as sender,
    ):
        for key in KEYS:
            sender.send_messages(ServiceBusMessage(key, partition_key=key))
    faults = FaultClient(server.connection_string)
    faults.add({"kind": "partition-down", "entity": "sick", "partition": [3]})
    try:
        states = asked(server, "sick", "partitions")["partitions"]
        assert [state["partition"] for state in states if not state["is-up"]] == [3]
        numbers = asked(server, "sick", "numbers")
        assert partition_of(numbers["next-sequence-number"]) == 3
        with pytest.raises(ServiceError, match="Partition 3 of 'sick' is down"):
            read(server, "sick", 3 << 48, 4 << 48)
        done = asked(server, "sick", "settle", bounds=[0, END])
        assert done["message-count"] == PARTITION_COUNT - 1
        with pytest.raises(ServiceError):
            asked(server, "sick", "settle", bounds=[done["next-sequence-number"], END])
        faults.add({"kind": "refuse-receives", "entity": "plain"})
        (plain,) = asked(server, "plain", "partitions")["partitions"]
        assert plain == {
            "partition": 0,
            "is-up": False,
            "first-sequence-number": 0,
            "next-sequence-number": 0,
            "message-count": 0,
        }
    finally:
        faults.clear_all()
    assert settle(server, "sick", 0, END) == 1


@pytest.mark.proves("C-1", "C-2")
def test_everything_is_metered(server: ServerProcess) -> None:
    """Settled messages as received ones, by their size; any other request as one."""
    server.create_queue("billed")
    fill(server, "billed", b"", bytes(100_000))
    asked(server, "billed", "partitions")
    asked(server, "billed", "numbers")
    asked(server, "billed", "browse", maximum_bytes=Int(1 << 20))
    assert settle(server, "billed", 0, END) == 2
    lines = MeterClient(server.connection_string).read()
    counts = {line.kind: (line.operations, line.units) for line in lines if line.entity == "billed"}
    assert counts == {"send": (2, 3), "receive": (2, 3), "management": (4, 4)}


@pytest.mark.proves("D-2")
def test_what_was_settled_stays_settled(tmp_path: Path) -> None:
    """It is durable when it is answered; so are the numbers and the time of creation."""
    with ServerProcess(tmp_path / "data") as server:
        server.create_queue("lasting", enable_partitioning=True)
        fill(server, "lasting", *[b"%d" % n for n in range(64)])
        before = asked(server, "lasting", "partitions")
        full = next(state for state in before["partitions"] if state["message-count"])
        first = full["first-sequence-number"]
        assert settle(server, "lasting", first, first + 2, first + 3, first + 4) == 3
        reason = {"deadletter_reason": "Kept"}
        assert settle(server, "lasting", first + 2, first + 3, **reason) == 1
        server.kill()
        server.restart()
        after = asked(server, "lasting", "partitions")
        assert after["created"] == before["created"]
        for old, new in zip(before["partitions"], after["partitions"], strict=True):
            assert new["next-sequence-number"] == old["next-sequence-number"]
        assert (first, first + 4) not in runs(server, "lasting")
        assert runs(server, "lasting", to_sequence_number=first + 4) == []
        assert runs(server, "lasting/$DeadLetterQueue") == [(first + 2, first + 3)]
        with ServiceBusClient.from_connection_string(server.connection_string) as client:
            dead = ServiceBusSubQueue.DEAD_LETTER
            with client.get_queue_receiver("lasting", sub_queue=dead) as receiver:
                (message,) = receiver.receive_messages(1)
                assert message.dead_letter_reason == "Kept"
                receiver.complete_message(message)
