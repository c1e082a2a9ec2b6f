"""Partitioned queues and topics with the official SDK, on one server.

What happens when a broker or a store goes is in tests/crash.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio
from azure.core.exceptions import HttpResponseError
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import MessageNotFoundError, ServiceBusError
from azure.servicebus.management import EntityAvailabilityStatus, SqlRuleFilter

from tests.interop.administration import Admin, open_admin
from tests.interop.sdk import (
    Client,
    async_only,
    bodies,
    body,
    complete_all,
    nothing_comes,
    peek_all,
    receive_exactly,
    receive_one,
    session_of,
    sync_only,
)
from twinbus.entities.partitions import PARTITION_COUNT, hash_key, partition_of
from twinbus.testing.server import ServerProcess

pytestmark = [pytest.mark.proves("E-1", "E-14"), pytest.mark.asyncio(loop_scope="module")]
partitioned = pytest.mark.queue(enable_partitioning=True)
with_sessions = pytest.mark.queue(enable_partitioning=True, requires_session=True)


@pytest_asyncio.fixture(loop_scope="module")
async def admin(server: ServerProcess) -> AsyncIterator[Admin]:
    async with open_admin("async, no TLS", server) as opened:
        yield opened


def partitions(messages: list[Any]) -> list[int]:
    return [partition_of(message.sequence_number) for message in messages]


@pytest.mark.proves("E-1", "E-6")
@pytest.mark.feature("entity.partitions")
@partitioned
async def test_sixteen_messages_go_to_sixteen_partitions(sender: Any, receiver: Any) -> None:
    for number in range(PARTITION_COUNT):
        await sender.send_messages(ServiceBusMessage(str(number)))
    messages = await receive_exactly(receiver, PARTITION_COUNT)
    assert sorted(partitions(messages)) == list(range(PARTITION_COUNT))
    assert all(message.sequence_number & ((1 << 48) - 1) == 1 for message in messages)
    await complete_all(receiver, messages)
    assert await nothing_comes(receiver)


@pytest.mark.proves("E-3")
@pytest.mark.feature("entity.partitions")
@partitioned
async def test_one_key_one_partition_in_order(sender: Any, receiver: Any) -> None:
    for number in range(5):
        for key in ("red", "green", "blue"):
            message = ServiceBusMessage(f"{key} {number}", partition_key=key)
            await sender.send_messages(message)
    messages = await receive_exactly(receiver, 15)
    for key in ("red", "green", "blue"):
        mine = [message for message in messages if message.partition_key == key]
        assert bodies(mine) == [f"{key} {number}".encode() for number in range(5)]
        assert set(partitions(mine)) == {hash_key(key)}
    await complete_all(receiver, messages)


@pytest.mark.proves("E-4")
@partitioned
async def test_key_and_session_must_agree(sender: Any, receiver: Any) -> None:
    message = ServiceBusMessage(b"x", session_id="one", partition_key="one")
    await sender.send_messages(message)
    with pytest.raises(ValueError, match="partition_key"):
        ServiceBusMessage(b"x", session_id="one", partition_key="two")  # the SDK checks, too
    assert body(await receive_one(receiver)) == b"x"


@partitioned
async def test_a_batch_stays_together(sender: Any, receiver: Any) -> None:
    batch = await sender.create_message_batch()
    for number in range(10):
        batch.add_message(ServiceBusMessage(str(number)))
    await sender.send_messages(batch)
    messages = await receive_exactly(receiver, 10)
    assert len(set(partitions(messages))) == 1
    assert bodies(messages) == [str(number).encode() for number in range(10)]
    with pytest.raises(ServiceBusError, match="same partition key"):
        await sender.send_messages(
            [ServiceBusMessage(b"a", partition_key="a"), ServiceBusMessage(b"b", partition_key="b")]
        )


@pytest.mark.proves("E-3")
@pytest.mark.queue(enable_partitioning=True, requires_duplicate_detection=True)
async def test_duplicates_are_found_by_message_id(sender: Any, receiver: Any) -> None:
    for _ in range(2):
        await sender.send_messages(
            [ServiceBusMessage(str(number), message_id=f"id-{number}") for number in range(20)]
        )
    messages = await receive_exactly(receiver, 20)
    assert Counter(bodies(messages)) == Counter(str(number).encode() for number in range(20))
    for message in messages:
        assert partition_of(message.sequence_number) == hash_key(message.message_id)
    await complete_all(receiver, messages)
    assert await nothing_comes(receiver)


@pytest.mark.proves("E-8")
@pytest.mark.feature("entity.partitions")
@partitioned
async def test_every_settlement(sender: Any, receiver: Any, dead_letters: Any) -> None:
    await sender.send_messages([ServiceBusMessage(b"1"), ServiceBusMessage(b"2")])
    for text in (b"3", b"4", b"5"):
        await sender.send_messages(ServiceBusMessage(text))
    by_body = {body(each): each for each in await receive_exactly(receiver, 5)}
    await receiver.complete_message(by_body[b"1"])
    await receiver.abandon_message(by_body[b"2"])
    await receiver.defer_message(by_body[b"3"])
    await receiver.dead_letter_message(by_body[b"4"], reason="why")
    await receiver.renew_message_lock(by_body[b"5"])
    again = await receive_one(receiver)
    assert (body(again), again.delivery_count) == (b"2", 1)
    await complete_all(receiver, [again, by_body[b"5"]])
    number = by_body[b"3"].sequence_number
    [deferred] = await receiver.receive_deferred_messages(number)
    assert (body(deferred), deferred.delivery_count) == (b"3", 0)
    await receiver.complete_message(deferred)
    dead = await receive_one(dead_letters)
    assert (body(dead), dead.dead_letter_reason, dead.delivery_count) == (b"4", "why", 0)
    await dead_letters.abandon_message(dead)
    dead = await receive_one(dead_letters)
    assert (body(dead), dead.delivery_count) == (b"4", 0)
    await dead_letters.complete_message(dead)
    with pytest.raises(MessageNotFoundError):
        await receiver.receive_deferred_messages([number, (77 << 48) + 1])  # unknown partition


@pytest.mark.proves("E-8")
@partitioned
@async_only
async def test_competing_receivers_share_everything(
    new_client: Callable[..., Client], queue: str
) -> None:
    sender = new_client().sender(queue)
    await sender.send_messages([ServiceBusMessage(str(n), partition_key="k") for n in range(50)])
    for number in range(50, 150):
        await sender.send_messages(ServiceBusMessage(str(number)))
    everything: list[bytes] = []

    async def take(receiver: Any) -> None:
        while len(everything) < 150:
            # The first of these opens the link, too, which takes a busy machine its time.
            more = await receiver.receive_messages(max_message_count=20, max_wait_time=5)
            everything.extend(bodies(more))
            await complete_all(receiver, more)

    async with asyncio.timeout(60):
        await asyncio.gather(*(take(new_client().receiver(queue)) for _ in range(3)))
    assert sorted(everything, key=int) == [str(number).encode() for number in range(150)]


@partitioned
async def test_receive_and_delete(client: Client, sender: Any, queue: str) -> None:
    for number in range(40):
        await sender.send_messages(ServiceBusMessage(str(number)))
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    async with client.receiver(queue, receive_mode=mode) as first:
        some = await receive_exactly(first, 3)
    # What the first had not been given is not gone with it.
    async with client.receiver(queue, receive_mode=mode) as second:
        rest = await receive_exactly(second, 37)
        assert await second.receive_messages(max_wait_time=0.3) == []
    assert len({*bodies(some), *bodies(rest)}) == 40


@pytest.mark.proves("E-9")
@pytest.mark.feature("entity.partitions")
@partitioned
async def test_peek_reaches_every_message(sender: Any, receiver: Any) -> None:
    for number in range(60):
        await sender.send_messages(ServiceBusMessage(str(number)))
    found = await peek_all(receiver)
    assert sorted(bodies(found), key=int) == [str(number).encode() for number in range(60)]
    assert [m.sequence_number for m in found] == sorted(m.sequence_number for m in found)
    large = ServiceBusMessage(b"x" * 200_000, partition_key="a")
    for _ in range(3):
        await sender.send_messages(large)
    start = hash_key("a") << 48
    page = await receiver.peek_messages(max_message_count=50, sequence_number=start)
    assert sum(len(body(message)) for message in page) <= 262_144
    assert len([m for m in await peek_all(receiver) if len(body(m)) == 200_000]) == 3


@partitioned
@sync_only
async def test_schedule_and_cancel(sender: Any, receiver: Any) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    numbers = await sender.schedule_messages([ServiceBusMessage(b"never")], later)
    numbers += await sender.schedule_messages([ServiceBusMessage(b"neither")], later)
    assert len({partition_of(number) for number in numbers}) == 2
    await sender.cancel_scheduled_messages(numbers)
    with pytest.raises(MessageNotFoundError):
        await sender.cancel_scheduled_messages(numbers[0])
    await sender.schedule_messages(
        [ServiceBusMessage(b"soon")], datetime.now(UTC) + timedelta(seconds=1)
    )
    assert body(await receive_one(receiver)) == b"soon"


@pytest.mark.feature("entity.partitions")
@with_sessions
async def test_sessions_keep_their_order(sender: Any, client: Client, queue: str) -> None:
    for number in range(4):
        for session in ("a", "b", "c"):
            text = f"{session}{number}"
            await sender.send_messages(ServiceBusMessage(text, session_id=session))
    async with client.receiver(queue, session_id="b") as receiver:
        await session_of(receiver).set_state(b"seen")
        messages = await receive_exactly(receiver, 4)
        assert bodies(messages) == [b"b0", b"b1", b"b2", b"b3"]
        assert set(partitions(messages)) == {hash_key("b")}
        assert await session_of(receiver).get_state() == b"seen"
        await complete_all(receiver, messages)
    left = set()
    for _ in range(2):
        async with client.receiver(queue, session_id=NEXT_AVAILABLE_SESSION) as receiver:
            left.add(session_of(receiver).session_id)
            await complete_all(receiver, await receive_exactly(receiver, 4))
    assert left == {"a", "c"}


@pytest.mark.proves("E-13")
@pytest.mark.feature("entity.partitions")
@async_only
async def test_topics_and_rules(client: Client, admin: Admin) -> None:
    await admin.create_topic("parted", enable_partitioning=True)
    await admin.create_subscription("parted", "all")
    await admin.create_subscription("parted", "red")
    await admin.create_rule("parted", "red", "only", filter=SqlRuleFilter("color = 'red'"))
    await admin.delete_rule("parted", "red", "$Default")
    rules = [rule.name for rule in await admin.list_rules("parted", "red")]
    assert rules == ["only"]
    async with client.topic_sender("parted") as sender:
        for number in range(32):
            color = "red" if number % 4 == 0 else "blue"
            await sender.send_messages(
                ServiceBusMessage(str(number), application_properties={"color": color})
            )
    runtime = await admin.get_subscription_runtime_properties("parted", "all")
    assert runtime.active_message_count == 32
    async with client.subscription_receiver("parted", "red") as receiver:
        found = await receive_exactly(receiver, 8)
        assert sorted(bodies(found), key=int) == [str(n).encode() for n in range(0, 32, 4)]
        await complete_all(receiver, found)
    await admin.delete_topic("parted")


@pytest.mark.proves("E-1", "E-2", "E-12")
@pytest.mark.feature("entity.partitions")
@async_only
async def test_management_sees_one_entity(
    client: Client, admin: Admin, server: ServerProcess
) -> None:
    made = await admin.create_queue("whole", enable_partitioning=True, max_size_in_megabytes=2048)
    assert made.enable_partitioning
    assert made.max_size_in_megabytes == 16 * 2048
    assert made.availability_status == EntityAvailabilityStatus.AVAILABLE
    names = [each.name for each in await admin.list_queues()]
    assert names.count("whole") == 1
    assert not [name for name in names if "#" in name]
    async with client.sender("whole") as sender:
        for _ in range(20):
            await sender.send_messages(ServiceBusMessage(b"0123456789"))
    runtime = await admin.get_queue_runtime_properties("whole")
    assert runtime.active_message_count == runtime.total_message_count == 20
    assert runtime.size_in_bytes >= 200
    made.max_delivery_count = 3
    await admin.update_queue(made)
    assert (await admin.get_queue("whole")).max_delivery_count == 3
    made.enable_partitioning = False
    with pytest.raises(HttpResponseError, match="enable_partitioning"):
        await admin.update_queue(made)
    with pytest.raises(HttpResponseError):
        await admin.create_queue("odd", enable_partitioning=True, max_size_in_megabytes=6144)
    await admin.delete_queue("whole")
    assert "whole" not in [each.name for each in await admin.list_queues()]


@pytest.mark.proves("E-11")
@async_only
async def test_forwarding_keeps_the_key(client: Client, admin: Admin) -> None:
    await admin.create_queue("end", enable_partitioning=True)
    await admin.create_queue("middle", forward_to="end")
    await admin.create_queue("start", enable_partitioning=True, forward_to="middle")
    async with client.sender("start") as sender:
        for number in range(10):
            for key in ("x", "y"):
                message = ServiceBusMessage(f"{key}{number}", partition_key=key)
                await sender.send_messages(message)
    async with client.receiver("end") as receiver:
        found = await receive_exactly(receiver, 20)
        for key in ("x", "y"):
            mine = [message for message in found if message.partition_key == key]
            assert bodies(mine) == [f"{key}{number}".encode() for number in range(10)]
            assert set(partitions(mine)) == {hash_key(key)}
        await complete_all(receiver, found)


@pytest.mark.proves("E-14")
async def test_at_most_a_hundred(admin: Admin) -> None:
    count = sum([each.enable_partitioning for each in await admin.list_queues()])
    count += sum([each.enable_partitioning for each in await admin.list_topics()])
    for number in range(100 - count):
        await admin.create_queue(f"many-{number}", enable_partitioning=True)
    with pytest.raises(HttpResponseError, match="100 partitioned"):
        await admin.create_queue("one-too-many", enable_partitioning=True)
    await admin.create_queue("plain-is-fine")
    for number in range(100 - count):
        await admin.delete_queue(f"many-{number}")
