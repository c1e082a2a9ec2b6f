"""What the official SDK does is metered as what it is, and stays so."""

import asyncio
import datetime as dt
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from azure.core.exceptions import ResourceExistsError
from azure.servicebus import ServiceBusMessage

from tests.interop.administration import connect
from tests.interop.sdk import Client, complete_all, open_client, receive_exactly, receive_one
from twinbus.client.meter import MeterClient
from twinbus.testing.server import ServerProcess

PING: Final = "application/vnd.ms-servicebus-ping"
TOMORROW: Final = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
WAIT_S_MAX: Final = 20.0

pytestmark = [
    pytest.mark.proves("P-18", "C-1", "C-2"),
    pytest.mark.asyncio,
    pytest.mark.feature("ours.metering"),
]

Counts = dict[str, tuple[int, int]]


def metered(server: ServerProcess, entity: str) -> Counts:
    """Operations and units of one entity, by kind."""
    lines = MeterClient(server.connection_string).read()
    return {line.kind: (line.operations, line.units) for line in lines if line.entity == entity}


def on_disk(server: ServerProcess, entity: str) -> Counts:
    """The same out of the files, as `twinbus cost show` finds them."""
    command = [sys.executable, "-m", "twinbus", "cost", "show", "--json", "--by", "entity,kind"]
    command += ["--data", str(server.data_dir)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = json.loads(shown.stdout)["rows"]
    return {
        row["kind"]: (row["operations"], row["units"]) for row in rows if row["entity"] == entity
    }


def wait_for(server: ServerProcess, entity: str, expected: Counts) -> None:
    """Until the files say so; a second passes before what was counted is written."""
    deadline = time.monotonic() + WAIT_S_MAX
    while (found := on_disk(server, entity)) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


@pytest_asyncio.fixture
async def client(server: ServerProcess) -> Any:
    client = open_client("async", server.connection_string)
    yield client
    await client.close()


def create(server: ServerProcess, name: str) -> Counts:
    """A queue, and what making it has cost."""
    server.create_queue(name)
    return {"management": (1, 1)}


@pytest.mark.proves("C-1")
async def test_sends_in_units_of_64_kib(server: ServerProcess, client: Client) -> None:
    """One, a list, a batch, a large one."""
    expected = create(server, "sends")
    async with client.sender("sends") as sender:
        await sender.send_messages(ServiceBusMessage("one"))
        await sender.send_messages([ServiceBusMessage("1"), ServiceBusMessage("2")])
        batch = await sender.create_message_batch()
        for _ in range(3):
            batch.add_message(ServiceBusMessage(bytes(30_000)))
        await sender.send_messages(batch)
        await sender.send_messages(ServiceBusMessage(bytes(200_000)))
        await sender.schedule_messages(ServiceBusMessage("later"), TOMORROW)
    assert metered(server, "sends") == {**expected, "send": (8, 11)}


@pytest.mark.proves("C-1", "E-1")
async def test_a_partitioned_queue_is_metered_as_one(server: ServerProcess, client: Client) -> None:
    """Sixteen partitions cost what one queue costs: to make, send, peek, receive and look at."""
    found: list[Counts] = []
    for name, is_partitioned in (("one-part", False), ("sixteen-parts", True)):
        with connect(server) as admin:
            admin.create_queue(name, enable_partitioning=is_partitioned)
            admin.get_queue_runtime_properties(name)
        async with client.sender(name) as sender:
            await sender.send_messages([ServiceBusMessage(str(number)) for number in range(32)])
            await sender.send_messages(ServiceBusMessage(bytes(100_000)))
        async with client.receiver(name) as receiver:
            assert await receiver.peek_messages(max_message_count=1)
            await complete_all(receiver, await receive_exactly(receiver, 33))
        found.append(metered(server, name))
    assert found[0] == found[1]
    assert found[1]["send"] == (33, 34)
    assert found[1]["receive"] == (33, 34)


@pytest.mark.proves("C-1", "C-2")
async def test_receives_with_and_without_messages(server: ServerProcess, client: Client) -> None:
    """A message that comes is one, and so is a receive that ends without any."""
    expected = create(server, "receives")
    async with client.sender("receives") as sender:
        await sender.send_messages([ServiceBusMessage("1"), ServiceBusMessage("2")])
        await sender.send_messages(ServiceBusMessage(bytes(200_000)))
    async with client.receiver("receives") as receiver:
        messages = await receive_exactly(receiver, 3)
        await complete_all(receiver, messages)
        for _ in range(3):
            assert await receiver.receive_messages(max_message_count=5, max_wait_time=0.3) == []
    expected |= {"send": (3, 6), "receive": (6, 9)}
    assert metered(server, "receives") == expected
    async with client.receiver("receives", receive_mode="receiveanddelete") as receiver:
        assert await receiver.receive_messages(max_wait_time=0.3) == []
    assert metered(server, "receives") == {**expected, "receive": (7, 10)}


@pytest.mark.proves("C-2")
async def test_a_receive_that_is_served_bit_by_bit(server: ServerProcess, client: Client) -> None:
    """None of the SDK's receives was empty, however it dealt with its credit."""
    create(server, "bits")
    async with client.sender("bits") as sender, client.receiver("bits") as receiver:
        for count in (1, 4, 2):
            await sender.send_messages([ServiceBusMessage("x") for _ in range(count)])
            got = 0
            while got < count:
                messages = await receiver.receive_messages(max_message_count=4)
                await complete_all(receiver, messages)
                got += len(messages)
    lines = MeterClient(server.connection_string).read()
    [line] = [each for each in lines if (each.entity, each.kind) == ("bits", "receive")]
    assert line.empty == 0
    assert line.operations >= 7, "what comes between two receives is given back and comes again"


@pytest.mark.proves("P-18", "C-1")
async def test_pings_and_management(server: ServerProcess, client: Client) -> None:
    """A ping is a ping, not a send; peeking and renewing are management."""
    create(server, "pinged")
    async with client.sender("pinged") as sender:
        await sender.send_messages(ServiceBusMessage(b"", content_type=PING))
        await sender.send_messages(ServiceBusMessage("x"))
    async with client.receiver("pinged") as receiver:
        await receiver.peek_messages()
        message = await receive_one(receiver)
        await receiver.renew_message_lock(message)
        await receiver.defer_message(message)
        deferred = await receiver.receive_deferred_messages(message.sequence_number)
        await receiver.dead_letter_message(deferred[0], reason="tired")
    async with client.dead_letter_receiver("pinged") as receiver:
        await receiver.complete_message(await receive_one(receiver))
    found = metered(server, "pinged")
    assert found == {"management": (3, 3), "ping": (1, 1), "send": (1, 1), "receive": (2, 2)}
    assert metered(server, "pinged/$deadletterqueue") == {"receive": (1, 1)}


@pytest.mark.proves("C-1")
async def test_topics_subscriptions_and_the_namespace(
    server: ServerProcess, client: Client
) -> None:
    """Each under its own name; what a subscription gets costs when it is received."""
    before = metered(server, "").get("management", (0, 0))[0]
    with connect(server) as admin:
        admin.create_topic("News")
        admin.create_subscription("news", "all")
        admin.get_subscription_runtime_properties("news", "ALL")
        assert [each.name for each in admin.list_topics()] == ["News"]
    async with client.topic_sender("news") as sender:
        await sender.send_messages(ServiceBusMessage("x"))
    async with client.subscription_receiver("news", "all") as receiver:
        await receiver.complete_message(await receive_one(receiver))
    assert metered(server, "News") == {"management": (1, 1), "send": (1, 1)}
    found = metered(server, "News/Subscriptions/all")
    assert found == {"management": (2, 2), "receive": (1, 1)}
    assert metered(server, "")["management"][0] == before + 1


async def test_what_was_refused_is_not_metered(server: ServerProcess, client: Client) -> None:
    create(server, "refusing")
    async with client.sender("refusing") as sender:
        with pytest.raises(ValueError, match="size"):
            await sender.send_messages(ServiceBusMessage(bytes(2_000_000)))
    with connect(server) as admin, pytest.raises(ResourceExistsError):
        admin.create_queue("refusing")
    assert metered(server, "refusing") == {"management": (1, 1)}


# --- durable --------------------------------------------------------------------------------------


@pytest.fixture(params=[1, 2], ids=["one process", "two brokers"])
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    arguments = ["--brokers", str(request.param), "--namespace", "first", "--namespace", "second"]
    with ServerProcess(tmp_path / "data", arguments=arguments) as process:
        yield process


async def send(server: ServerProcess, count: int) -> None:
    client = open_client("sync", server.connection_string)
    async with client.sender("q") as sender:
        await sender.send_messages([ServiceBusMessage("x") for _ in range(count)])
    await client.close()


@pytest.mark.proves("C-1")
async def test_the_meter_survives(own_server: ServerProcess) -> None:
    """What was counted before a stop is there after it; after kill -9 all but a second."""
    server = own_server
    server.create_queue("q")
    await send(server, 3)
    server.stop()
    expected = {"management": (1, 1), "send": (3, 3)}
    assert on_disk(server, "q") == expected
    server.restart()
    await send(server, 4)
    expected["send"] = (7, 7)
    await asyncio.to_thread(wait_for, server, "q", expected)
    server.kill()
    assert on_disk(server, "q") == expected
    server.restart()
    assert metered(server, "q") == expected


@pytest.mark.proves("C-2")
async def test_a_message_through_a_backlog_costs_4_operations(tmp_path: Path) -> None:
    """Sent to the backlog, received from it, sent to the primary, received from there."""
    backlog = "main/x-servicebus-transfer/0"
    with (
        ServerProcess(tmp_path / "primary", arguments=["--namespace", "main"]) as primary,
        ServerProcess(tmp_path / "secondary", arguments=["--namespace", "spare"]) as secondary,
    ):
        primary.create_queue("orders")
        secondary.create_queue(backlog)
        first = open_client("sync", primary.connection_string)
        second = open_client("sync", secondary.connection_string)
        async with (
            first.sender("orders") as sender,
            first.receiver("orders") as receiver,
            second.sender(backlog) as backlog_sender,
            second.receiver(backlog) as backlog_receiver,
        ):
            await backlog_sender.send_messages(ServiceBusMessage("x"))
            moved = await receive_one(backlog_receiver)
            await sender.send_messages(ServiceBusMessage("x"))
            await backlog_receiver.complete_message(moved)
            await receiver.complete_message(await receive_one(receiver))
        await asyncio.gather(first.close(), second.close())
        found = {**metered(primary, "orders")}, {**metered(secondary, backlog)}
        made = {"management": (1, 1)}
        assert found == (
            {**made, "send": (1, 1), "receive": (1, 1)},
            {**made, "send": (1, 1), "receive": (1, 1)},
        )
