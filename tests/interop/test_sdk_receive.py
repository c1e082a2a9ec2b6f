"""Receiving with the official SDK: waiting, counting, streaming, prefetching, sharing."""

import asyncio
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode

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
    sync_only,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def send_numbers(sender: Any, count: int) -> list[bytes]:
    texts = [b"%d" % number for number in range(count)]
    for start in range(0, count, 1_000):
        part = texts[start : start + 1_000]
        await sender.send_messages([ServiceBusMessage(text) for text in part])
    return texts


@pytest.mark.proves("M-2")
@pytest.mark.feature("receive.wait")
async def test_empty_queue_gives_an_empty_list(receiver: Any) -> None:
    assert await nothing_comes(receiver)


@pytest.mark.proves("M-2")
@pytest.mark.feature("receive.wait")
async def test_without_wait_time_it_returns_what_is_there(
    client: Client, sender: Any, queue: str
) -> None:
    await send_numbers(sender, 3)
    receiver = client.receiver(queue, max_wait_time=None)
    assert len(await receiver.receive_messages(max_message_count=10)) == 3


@pytest.mark.proves("M-2")
@pytest.mark.feature("receive.wait")
async def test_count_is_an_upper_bound(sender: Any, receiver: Any) -> None:
    texts = await send_numbers(sender, 7)
    first = await receiver.receive_messages(max_message_count=5)
    assert bodies(first) == texts[:5]
    second = await receiver.receive_messages(max_message_count=5)
    assert bodies(second) == texts[5:]
    await complete_all(receiver, first + second)
    assert await peek_all(receiver) == []


@pytest.mark.proves("M-2")
@pytest.mark.feature("receive.wait")
async def test_iterator_ends_when_nothing_more_comes(
    client: Client, sender: Any, queue: str
) -> None:
    texts = await send_numbers(sender, 10)
    receiver = client.receiver(queue, max_wait_time=1)
    received = []
    async for message in receiver:
        received.append(body(message))
        await receiver.complete_message(message)
    assert received == texts
    assert await peek_all(receiver) == []


@pytest.mark.feature("receive.prefetch")
@pytest.mark.parametrize("prefetch_count", [1, 100])
async def test_prefetch(client: Client, sender: Any, queue: str, prefetch_count: int) -> None:
    texts = await send_numbers(sender, 30)
    async with client.receiver(queue, prefetch_count=prefetch_count) as receiver:
        messages = await receive_exactly(receiver, 30)
        assert bodies(messages) == texts
        await complete_all(receiver, messages)
        assert await peek_all(receiver) == []


@pytest.mark.proves("M-2")
@pytest.mark.feature("receive.modes")
async def test_receive_and_delete(client: Client, sender: Any, queue: str) -> None:
    texts = await send_numbers(sender, 20)
    receiver = client.receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    messages = await receive_exactly(receiver, 5)
    assert bodies(messages) == texts[:5]
    assert messages[0].lock_token is None
    assert bodies(await peek_all(receiver)) == texts[5:]
    with pytest.raises(ValueError, match="RECEIVE_AND_DELETE"):
        await receiver.complete_message(messages[0])


@pytest.mark.feature("receive.modes")
async def test_receive_and_delete_with_prefetch(client: Client, sender: Any, queue: str) -> None:
    texts = await send_numbers(sender, 50)
    receiver = client.receiver(
        queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE, prefetch_count=20
    )
    assert bodies(await receive_exactly(receiver, 50)) == texts
    assert await peek_all(receiver) == []


@pytest.mark.proves("M-1")
@pytest.mark.feature("receive.wait")
async def test_waiting_receiver_gets_a_new_message(sender: Any, receiver: Any) -> None:
    async with sender, receiver:
        waiting = asyncio.create_task(receiver.receive_messages(max_wait_time=30))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await sender.send_messages(ServiceBusMessage(b"at last"))
        [message] = await asyncio.wait_for(waiting, 10)
        assert body(message) == b"at last"
        await receiver.complete_message(message)


@pytest.mark.proves("M-1")
@pytest.mark.feature("receive.wait")
async def test_message_waits_for_its_receiver(client: Client, queue: str) -> None:
    async with client.sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage(b"sender is gone"))
    assert body(await receive_one(client.receiver(queue))) == b"sender is gone"


@pytest.mark.proves("M-2")
@pytest.mark.feature("receive.compete")
async def test_locked_message_goes_to_nobody_else(sender: Any, receiver: Any, other: Any) -> None:
    await send_numbers(sender, 2)
    first = await receive_one(receiver)
    second = await receive_one(other)
    assert (body(first), body(second)) == (b"0", b"1")
    assert await nothing_comes(receiver)
    assert await nothing_comes(other)


@pytest.mark.proves("M-1")
@pytest.mark.feature("receive.compete")
@sync_only
async def test_competing_receivers_share_the_load(client: Client, sender: Any, queue: str) -> None:
    texts = await send_numbers(sender, 120)

    async def work() -> list[bytes]:
        done: list[bytes] = []
        async with client.receiver(queue, max_wait_time=1) as receiver:
            while messages := await receiver.receive_messages(max_message_count=10):
                await complete_all(receiver, messages)
                done += bodies(messages)
        return done

    shares = await asyncio.gather(work(), work(), work())
    assert all(shares)
    assert sorted(text for share in shares for text in share) == sorted(texts)
    assert await peek_all(client.receiver(queue)) == []


@pytest.mark.proves("M-2")
@pytest.mark.feature("receive.prefetch")
async def test_close_gives_prefetched_messages_back(
    client: Client, sender: Any, queue: str
) -> None:
    texts = await send_numbers(sender, 20)
    async with client.receiver(queue, prefetch_count=50) as receiver:
        kept = await receive_one(receiver)
        await receiver.complete_message(kept)
    others = await receive_exactly(client.receiver(queue), 19)
    assert bodies(others) == texts[1:]
    assert {message.delivery_count for message in others} == {0}


@pytest.mark.proves("M-2")
@pytest.mark.feature("receive.prefetch")
@async_only
async def test_message_on_leftover_credit_is_not_counted_as_delivered(
    sender: Any, receiver: Any, other: Any
) -> None:
    await send_numbers(sender, 1)
    assert len(await receiver.receive_messages(max_message_count=10)) == 1
    # Nine credits are left with the server; the SDK releases what comes on them while nobody
    # receives, some seconds later.
    await sender.send_messages(ServiceBusMessage(b"unasked"))
    [message] = await other.receive_messages(max_wait_time=20)
    assert body(message) == b"unasked"
    assert message.delivery_count == 0


@pytest.mark.proves("M-1")
@pytest.mark.feature("receive.modes")
@sync_only
async def test_many_messages_exactly_once(client: Client, sender: Any, queue: str) -> None:
    texts = await send_numbers(sender, 2_000)
    received: list[bytes] = []
    async with client.receiver(queue, prefetch_count=300) as receiver:
        while len(received) < 2_000:
            messages = await receiver.receive_messages(max_message_count=300)
            assert messages, f"only {len(received)} messages came"
            await complete_all(receiver, messages)
            received += bodies(messages)
    assert received == texts
    assert await nothing_comes(client.receiver(queue))
