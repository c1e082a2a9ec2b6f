"""Settling with the official SDK: complete, abandon, defer, dead-letter, and what shows then."""

from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.exceptions import MessageAlreadySettled, MessageLockLostError

from tests.interop.sdk import body, peek_all, receive_exactly, receive_one

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.proves("M-2")
@pytest.mark.feature("receive.settle")
async def test_complete_removes_the_message(sender: Any, receiver: Any) -> None:
    await sender.send_messages([ServiceBusMessage(b"one"), ServiceBusMessage(b"two")])
    one, two = await receive_exactly(receiver, 2)
    await receiver.complete_message(one)
    assert [body(message) for message in await peek_all(receiver)] == [b"two"]
    with pytest.raises(MessageAlreadySettled):
        await receiver.complete_message(one)
    await receiver.complete_message(two)
    assert await peek_all(receiver) == []


@pytest.mark.proves("M-2")
@pytest.mark.feature("receive.settle")
async def test_abandon_gives_the_message_back(sender: Any, receiver: Any) -> None:
    await sender.send_messages([ServiceBusMessage(b"first"), ServiceBusMessage(b"second")])
    for delivery_count in range(3):
        message = await receive_one(receiver)
        # An abandoned message takes its old place, ahead of the second one.
        assert body(message) == b"first"
        assert message.sequence_number == 1
        assert message.delivery_count == delivery_count
        await receiver.abandon_message(message)


@pytest.mark.proves("M-2")
@pytest.mark.feature("receive.settle")
async def test_dead_letter_with_reason(sender: Any, receiver: Any, dead_letters: Any) -> None:
    await sender.send_messages(
        ServiceBusMessage(b"bad", message_id="m", application_properties={"mine": 1})
    )
    message = await receive_one(receiver)
    await receiver.dead_letter_message(message, reason="unreadable", error_description="line 3")
    assert await peek_all(receiver) == []
    dead = await receive_one(dead_letters)
    assert (body(dead), dead.message_id) == (b"bad", "m")
    assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("unreadable", "line 3")
    assert dead.application_properties[b"mine"] == 1
    assert dead.sequence_number == message.sequence_number
    await dead_letters.complete_message(dead)
    assert await peek_all(dead_letters) == []


@pytest.mark.proves("M-2")
@pytest.mark.feature("receive.settle")
async def test_dead_letter_without_reason(sender: Any, receiver: Any, dead_letters: Any) -> None:
    await sender.send_messages(ServiceBusMessage(b"bad"))
    await receiver.dead_letter_message(await receive_one(receiver))
    dead = await receive_one(dead_letters)
    assert (dead.dead_letter_reason, dead.dead_letter_error_description) == (None, None)
    await dead_letters.complete_message(dead)


@pytest.mark.proves("M-2")
@pytest.mark.feature("receive.delivery-count")
@pytest.mark.queue(max_delivery_count=2)
async def test_message_delivered_too_often_is_dead_lettered(
    sender: Any, receiver: Any, dead_letters: Any
) -> None:
    await sender.send_messages(ServiceBusMessage(b"poison"))
    for _ in range(2):
        await receiver.abandon_message(await receive_one(receiver))
    dead = await receive_one(dead_letters)
    assert body(dead) == b"poison"
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
    assert dead.delivery_count == 2
    assert await peek_all(receiver) == []


@pytest.mark.proves("M-2")
@pytest.mark.feature("receive.dead-letter")
@pytest.mark.queue(max_delivery_count=1)
async def test_dead_letter_queue_knows_no_maximum(
    sender: Any, receiver: Any, dead_letters: Any
) -> None:
    await sender.send_messages(ServiceBusMessage(b"poison"))
    await receiver.abandon_message(await receive_one(receiver))
    for _ in range(3):
        dead = await receive_one(dead_letters)
        assert dead.delivery_count == 1  # as it was when it died
        await dead_letters.abandon_message(dead)


@pytest.mark.proves("M-2")
@pytest.mark.feature("receive.delivery-count")
async def test_dead_lettering_and_deferring_are_no_failed_deliveries(
    sender: Any, receiver: Any, dead_letters: Any
) -> None:
    await sender.send_messages(ServiceBusMessage(b"bad"))
    await receiver.abandon_message(await receive_one(receiver))
    message = await receive_one(receiver)
    await receiver.defer_message(message)
    [deferred] = await receiver.receive_deferred_messages(message.sequence_number)
    assert deferred.delivery_count == 1
    await receiver.dead_letter_message(deferred, reason="bad")
    for _ in range(2):
        dead = await receive_one(dead_letters)
        assert dead.delivery_count == 1
        await dead_letters.abandon_message(dead)


@pytest.mark.proves("M-2", "M-3")
@pytest.mark.feature("receive.settle")
async def test_deferred_message_is_passed_over(sender: Any, receiver: Any) -> None:
    await sender.send_messages([ServiceBusMessage(b"later"), ServiceBusMessage(b"now")])
    await receiver.defer_message(await receive_one(receiver))
    message = await receive_one(receiver)
    assert body(message) == b"now"
    await receiver.complete_message(message)
    [deferred] = await peek_all(receiver)
    assert body(deferred) == b"later"
    assert deferred.state is ServiceBusMessageState.DEFERRED


@pytest.mark.proves("M-2")
@pytest.mark.feature("receive.tokens")
@pytest.mark.parametrize("settlement", ["complete", "abandon", "defer", "dead_letter"])
async def test_settle_through_another_receiver(
    sender: Any, receiver: Any, other: Any, dead_letters: Any, settlement: str
) -> None:
    """A link that never saw the message settles it by its lock token, over `$management`."""
    await sender.send_messages(ServiceBusMessage(b"passed on"))
    message = await receive_one(receiver)
    await getattr(other, f"{settlement}_message")(message)
    if settlement == "complete":
        assert await peek_all(other) == []
    elif settlement == "abandon":
        assert (await receive_one(other)).delivery_count == 1
    elif settlement == "defer":
        [peeked] = await peek_all(other)
        assert peeked.state is ServiceBusMessageState.DEFERRED
    else:
        assert body(await receive_one(dead_letters)) == b"passed on"


@pytest.mark.proves("M-2")
@pytest.mark.feature("receive.tokens")
async def test_settling_twice_through_two_receivers_is_refused(
    sender: Any, receiver: Any, other: Any
) -> None:
    await sender.send_messages(ServiceBusMessage(b"once"))
    message = await receive_one(receiver)
    token = message.lock_token
    await other.abandon_message(message)
    again = await receive_one(other)
    assert again.lock_token != token
    # The SDK has marked its message as settled; the server's own answer is what counts here.
    message._settled = False
    with pytest.raises(MessageLockLostError):
        await receiver.complete_message(message)
    await other.complete_message(again)
    assert await peek_all(receiver) == []
