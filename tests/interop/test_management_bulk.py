"""Batch delete and our own operations on a real server, with the official SDK around them."""

import asyncio
import json

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSubQueue,
)

from tests.interop.sdk import bodies
from twinbus.amqp.types import Array, Int, Timestamp
from twinbus.cli.arguments import CONNECTION_STRING
from twinbus.cli.main import main
from twinbus.client.connection import BusConnection
from twinbus.client.requests import ManagementNode
from twinbus.clock import SystemClock
from twinbus.errors import TwinbusError
from twinbus.testing.server import ServerProcess

BATCH_DELETE = "com.microsoft:batch-delete-messages"
COUNT = 3_000


async def ask(
    server: ServerProcess, entity: str, operation: str, body: dict[object, object]
) -> dict[str, object]:
    async with await BusConnection.open(server.connection_string) as connection:
        node = await ManagementNode.open(connection, entity)
        return await node.request(operation, body)


def asked(
    server: ServerProcess, entity: str, operation: str, body: dict[object, object]
) -> dict[str, object]:
    return asyncio.run(ask(server, entity, operation, body))


def send(server: ServerProcess, queue: str, *messages: ServiceBusMessage) -> None:
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_sender(queue) as sender,
    ):
        for start in range(0, len(messages), 1_000):
            sender.send_messages(list(messages[start : start + 1_000]))


def numbered(count: int) -> list[ServiceBusMessage]:
    return [
        ServiceBusMessage(b"%d" % number, application_properties={"n": number})
        for number in range(count)
    ]


def receive_two(receiver: ServiceBusReceiver) -> list[ServiceBusReceivedMessage]:
    messages: list[ServiceBusReceivedMessage] = []
    while len(messages) < 2:
        more = receiver.receive_messages(2 - len(messages))
        assert more, "nothing came"
        messages += more
    return messages


def message_count(server: ServerProcess, queue: str) -> int:
    return int(server.admin.get_queue(queue).properties["MessageCount"])


@pytest.mark.proves("M-5")
@pytest.mark.feature("receive.batch-delete")
def test_batch_delete_until_nothing_is_left(server: ServerProcess) -> None:
    """As an application purges a queue: batches, until an answer says that none went."""
    server.create_queue("batches")
    send(server, "batches", *numbered(5_000))
    body: dict[object, object] = {
        "message-count": Int(4_000),
        "enqueued-time-utc": Timestamp(SystemClock().now().utc_ms + 60_000),
    }
    answers = [asked(server, "batches", BATCH_DELETE, body) for _ in range(3)]
    assert [answer.get("message-count") for answer in answers] == [4_000, 1_000, None]
    assert message_count(server, "batches") == 0


@pytest.mark.proves("M-1")
@pytest.mark.feature("ours.browse")
def test_what_was_purged_does_not_come_back_after_a_kill(server: ServerProcess) -> None:
    """Killed the moment the answer is there."""
    server.create_queue("killed")
    send(server, "killed", *numbered(COUNT))
    answer = asked(server, "killed", "twinbus:purge", {"filter": "n % 3 <> 0"})
    server.kill()
    assert answer == {"message-count": COUNT * 2 // 3}
    server.restart()
    assert message_count(server, "killed") == COUNT // 3
    assert asked(server, "killed", "twinbus:purge", {"filter": "n % 3 <> 0"}) == {}


@pytest.mark.feature("ours.browse")
def test_others_are_served_while_a_large_request_runs(server: ServerProcess) -> None:
    """A send that comes in the middle of a purge is over long before the purge is."""

    async def both() -> list[str]:
        ended: list[str] = []
        async with await BusConnection.open(server.connection_string) as connection:
            node = await ManagementNode.open(connection, "busy")
            sender = await connection.open_sender("other")

            async def purge() -> None:
                await node.request("twinbus:purge", {"filter": "n >= 0"})
                ended.append("purge")

            async def send_one() -> None:
                await sender.send(b"x")
                ended.append("send")

            await asyncio.gather(purge(), send_one())
        return ended

    server.create_queue("busy")
    server.create_queue("other")
    send(server, "busy", *numbered(COUNT))
    assert asyncio.run(both()) == ["send", "purge"]
    assert message_count(server, "busy") == 0


@pytest.mark.proves("M-4")
@pytest.mark.feature("ours.undefer")
def test_undeferred_messages_are_received_again(server: ServerProcess) -> None:
    """Whoever lost the sequence numbers gets at his messages all the same."""
    server.create_queue("deferred")
    send(server, "deferred", *numbered(3))
    with ServiceBusClient.from_connection_string(server.connection_string) as client:
        receiver = client.get_queue_receiver("deferred", max_wait_time=5)
        with receiver:
            for _ in range(3):
                [message] = receiver.receive_messages(1)
                receiver.defer_message(message)
            numbers: dict[object, object] = {"sequence-numbers": Array([2])}
            assert asked(server, "deferred", "twinbus:undefer", numbers) == {"message-count": 1}
            assert bodies(receiver.receive_messages(3)) == [b"1"]
            assert asked(server, "deferred", "twinbus:undefer", {}) == {"message-count": 2}
            received = receive_two(receiver)
            assert bodies(received) == [b"0", b"2"]
            assert [message.delivery_count for message in received] == [0, 0]


@pytest.mark.feature("ours.resubmit")
def test_resubmitted_dead_letters_are_received_as_new(server: ServerProcess) -> None:
    server.create_queue("dead")
    send(server, "dead", *numbered(2))
    with ServiceBusClient.from_connection_string(server.connection_string) as client:
        with client.get_queue_receiver("dead", max_wait_time=5) as receiver:
            for reason in ("keep", "again"):
                [message] = receiver.receive_messages(1)
                receiver.dead_letter_message(message, reason=reason, error_description="text")
            body: dict[object, object] = {"filter": "DeadLetterReason = 'again'"}
            entity = "dead/$DeadLetterQueue"
            assert asked(server, entity, "twinbus:resubmit", body) == {"message-count": 1}
            [message] = receiver.receive_messages(1)
            assert bodies([message]) == [b"1"]
            assert message.dead_letter_reason is None
            assert message.application_properties == {b"n": 1}
            assert (message.sequence_number, message.delivery_count) == (3, 0)
            receiver.complete_message(message)
        dead_letters = client.get_queue_receiver("dead", sub_queue=ServiceBusSubQueue.DEAD_LETTER)
        with dead_letters:
            assert [each.dead_letter_reason for each in dead_letters.peek_messages(5)] == ["keep"]


@pytest.mark.proves("M-12")
def test_a_stranger_learns_nothing(server: ServerProcess) -> None:
    """Whether the entity exists or not."""
    server.create_queue("guarded")
    wrong = server.connection_string.replace("SharedAccessKey=", "SharedAccessKey=x")

    async def knock(entity: str) -> str:
        try:
            async with await BusConnection.open(wrong) as connection:
                await ManagementNode.open(connection, entity)
        except TwinbusError as error:
            return str(error).replace(entity, "entity")
        return "open"

    reasons = {asyncio.run(knock(entity)) for entity in ("guarded", "missing")}
    assert len(reasons) == 1
    assert reasons != {"open"}


# --- the commands of the same name ---------------------------------------------------------------


@pytest.fixture
def environment(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONNECTION_STRING, server.connection_string)


@pytest.mark.feature("ours.browse", "ours.undefer", "ours.resubmit")
@pytest.mark.usefixtures("environment")
def test_commands(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> str:
        assert main(list(arguments)) == 0
        return capsys.readouterr().out

    server.create_queue("shop")
    send(server, "shop", *numbered(25), ServiceBusMessage(b"\xff\xfe", subject="odd\nline"))
    assert run("peek", "shop").count("\n") == 10
    lines = run("peek", "shop", "--count", "100", "--filter", "n > 22", "--json").splitlines()
    shown = [json.loads(line) for line in lines]
    assert [each["body"] for each in shown] == ["23", "24"]
    assert shown[0]["application_properties"] == {"n": 23}
    assert shown[0]["state"] == "active"
    last = run("peek", "shop", "--from", "26")
    assert '"odd\\nline"' in last
    assert last.count("\n") == 1
    assert run("purge", "shop", "--count", "5") == "5 messages deleted\n"
    assert run("purge", "shop", "--filter", "n = 5") == "1 message deleted\n"
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_receiver("shop", max_wait_time=5) as receiver,
    ):
        [first, second] = receive_two(receiver)
        receiver.dead_letter_message(first, reason="bad")
        receiver.defer_message(second)
    assert "reason=" in run("peek", "shop", "--dead-letter")
    assert "deferred" in run("peek", "shop", "--state", "deferred")
    replayed = json.loads(run("replay", "shop", "--json"))
    assert replayed == {"entity": "shop/$DeadLetterQueue", "message_count": 1}
    assert run("undefer", "shop") == "1 message made active\n"
    assert run("purge", "shop", "--before", "2026-01-01") == "0 messages deleted\n"
    assert run("purge", "shop", "--state", "active") == "20 messages deleted\n"
    assert run("peek", "shop", "--json") == ""


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["peek", "missing"], "missing"),
        (["purge", "known", "--filter", "a = = 1"], "5"),
        (["peek", "known", "--session", "s"], "sessions"),
        (["peek", "known", "--connection-string", "nonsense"], "connection string"),
    ],
)
def test_refused_commands(
    server: ServerProcess, arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "known" not in {queue.name for queue in server.admin.list_queues()}:
        server.create_queue("known")
    assert main(arguments) == 1
    [line, fix] = capsys.readouterr().err.splitlines()
    assert reason in line
    assert fix.startswith("  fix: ")


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    text = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=n;SharedAccessKey=k;"
    text += "UseDevelopmentEmulator=true;"
    assert main(["peek", "orders", "--connection-string", text]) == 1
    [line, fix] = capsys.readouterr().err.splitlines()
    assert "no bus answers at 127.0.0.1:1" in line
    assert "twinbus serve" in fix
