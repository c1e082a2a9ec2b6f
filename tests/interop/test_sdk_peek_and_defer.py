"""Looking without taking, and taking by sequence number, with the official SDK."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState, ServiceBusReceiveMode
from azure.servicebus.exceptions import MessageNotFoundError

from tests.interop.sdk import (
    Client,
    bodies,
    body,
    nothing_comes,
    peek_all,
    receive_exactly,
    receive_one,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def send_numbers(sender: Any, count: int) -> list[bytes]:
    texts = [b"%d" % number for number in range(count)]
    await sender.send_messages([ServiceBusMessage(text) for text in texts])
    return texts


async def defer_numbers(sender: Any, receiver: Any, count: int) -> list[int]:
    await send_numbers(sender, count)
    messages = await receive_exactly(receiver, count)
    for message in messages:
        await receiver.defer_message(message)
    return [message.sequence_number for message in messages]


@pytest.mark.proves("M-3")
@pytest.mark.feature("receive.peek")
async def test_peek_pages_through_the_queue(sender: Any, receiver: Any) -> None:
    texts = await send_numbers(sender, 25)
    pages = []
    while page := await receiver.peek_messages(max_message_count=10):
        pages.append(bodies(page))
    assert [text for page in pages for text in page] == texts
    assert len(pages) >= 3


@pytest.mark.proves("M-3")
@pytest.mark.feature("receive.peek")
async def test_peek_from_a_sequence_number(sender: Any, receiver: Any) -> None:
    texts = await send_numbers(sender, 10)
    page = await receiver.peek_messages(max_message_count=3, sequence_number=6)
    assert bodies(page) == texts[5:8]
    assert await receiver.peek_messages(sequence_number=11) == []


@pytest.mark.proves("M-3")
@pytest.mark.feature("receive.peek")
async def test_peek_neither_locks_nor_minds_locks(sender: Any, receiver: Any) -> None:
    await send_numbers(sender, 2)
    assert len(await peek_all(receiver)) == 2
    message = await receive_one(receiver)
    assert message.delivery_count == 0
    peeked = await peek_all(receiver)
    assert bodies(peeked) == [b"0", b"1"]
    with pytest.raises(ValueError, match="peeked"):
        await receiver.complete_message(peeked[1])


@pytest.mark.proves("M-3")
@pytest.mark.feature("receive.peek")
async def test_peek_shows_every_state(sender: Any, receiver: Any) -> None:
    await send_numbers(sender, 2)
    await receiver.defer_message(await receive_one(receiver))
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    await sender.schedule_messages(ServiceBusMessage(b"2"), tomorrow)
    assert [(body(message), message.state) for message in await peek_all(receiver)] == [
        (b"0", ServiceBusMessageState.DEFERRED),
        (b"1", ServiceBusMessageState.ACTIVE),
        (b"2", ServiceBusMessageState.SCHEDULED),
    ]


@pytest.mark.feature("receive.peek")
async def test_peek_of_large_messages_reaches_all_of_them(sender: Any, receiver: Any) -> None:
    for number in range(5):
        await sender.send_messages(ServiceBusMessage(bytes([number]) * 200_000))
    assert [body(message)[0] for message in await peek_all(receiver)] == [0, 1, 2, 3, 4]


@pytest.mark.proves("M-3")
@pytest.mark.feature("receive.dead-letter")
async def test_peek_at_dead_letters(sender: Any, receiver: Any, dead_letters: Any) -> None:
    await send_numbers(sender, 3)
    for message in await receive_exactly(receiver, 3):
        await receiver.dead_letter_message(message, reason="why")
    peeked = await peek_all(dead_letters)
    assert [(body(message), message.dead_letter_reason) for message in peeked] == [
        (b"0", "why"),
        (b"1", "why"),
        (b"2", "why"),
    ]


@pytest.mark.proves("M-3")
@pytest.mark.feature("receive.deferred")
async def test_receive_deferred_messages(sender: Any, receiver: Any) -> None:
    numbers = await defer_numbers(sender, receiver, 4)
    [single] = await receiver.receive_deferred_messages(numbers[1])
    assert body(single) == b"1"
    assert single.state is ServiceBusMessageState.DEFERRED
    assert single.locked_until_utc > datetime.now(UTC)
    several = await receiver.receive_deferred_messages([numbers[0], numbers[3]])
    assert bodies(several) == [b"0", b"3"]
    for message in [single, *several]:
        await receiver.complete_message(message)
    assert bodies(await peek_all(receiver)) == [b"2"]


@pytest.mark.proves("M-2", "M-3")
@pytest.mark.feature("receive.deferred")
async def test_settling_a_deferred_message(sender: Any, receiver: Any, dead_letters: Any) -> None:
    [number] = await defer_numbers(sender, receiver, 1)
    [message] = await receiver.receive_deferred_messages(number)
    assert await receiver.renew_message_lock(message) >= message.locked_until_utc
    await receiver.abandon_message(message)
    # Abandoned, it is still deferred; deferring it again changes nothing either.
    [message] = await receiver.receive_deferred_messages(number)
    await receiver.defer_message(message)
    assert await nothing_comes(receiver)
    [message] = await receiver.receive_deferred_messages(number)
    await receiver.dead_letter_message(message, reason="enough")
    assert (await receive_one(dead_letters)).dead_letter_reason == "enough"
    assert await peek_all(receiver) == []


@pytest.mark.proves("M-3")
@pytest.mark.feature("receive.deferred")
async def test_deferred_messages_received_and_deleted(
    client: Client, queue: str, sender: Any, receiver: Any
) -> None:
    numbers = await defer_numbers(sender, receiver, 2)
    deleting = client.receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    assert bodies(await deleting.receive_deferred_messages(numbers)) == [b"0", b"1"]
    assert await peek_all(receiver) == []


@pytest.mark.proves("M-3")
@pytest.mark.feature("receive.deferred")
async def test_unknown_or_locked_deferred_message_is_not_found(
    new_client: Callable[..., Client], queue: str, sender: Any
) -> None:
    receiver = new_client(retry_total=0).receiver(queue)
    [number] = await defer_numbers(sender, receiver, 1)
    await sender.send_messages(ServiceBusMessage(b"not deferred"))
    for unknown in ([4_711], [number, 4_711], [number + 1]):
        with pytest.raises(MessageNotFoundError):
            await receiver.receive_deferred_messages(unknown)
    # Asking for it together with an unknown one has not locked it.
    [message] = await receiver.receive_deferred_messages(number)
    with pytest.raises(MessageNotFoundError):
        await receiver.receive_deferred_messages(number)
    await receiver.complete_message(message)
