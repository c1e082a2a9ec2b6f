"""Sessions through the official SDK, sync and async.

A queue that requires sessions is received from by accepting one: by its id, or the next that is
available.  The shortest session lock lasts five seconds, so a few tests wait for real.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import azure.servicebus
import azure.servicebus.aio
import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from tests.interop.sdk import (
    Client,
    async_only,
    bodies,
    body,
    complete_all,
    peek_all,
    receive_exactly,
    receive_one,
    session_of,
    sync_only,
)

pytestmark = [
    pytest.mark.proves("M-4"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.queue(requires_session=True, lock_duration="PT5S"),
]

NewClient = Callable[..., Client]


def messages_to(session_id: str, *texts: bytes) -> list[ServiceBusMessage]:
    return [ServiceBusMessage(text, session_id=session_id) for text in texts]


def next_session(client: Client, queue: str, **options: Any) -> Any:
    return client.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, **options)


# --- accepting ------------------------------------------------------------------------------------


@pytest.mark.feature("session.accept")
async def test_accept_by_id(sender: Any, client: Client, queue: str) -> None:
    await sender.send_messages(messages_to("red", b"r1", b"r2"))
    await sender.send_messages(messages_to("blue", b"b1"))
    before = datetime.now(UTC)
    async with client.receiver(queue, session_id="red") as receiver:
        assert session_of(receiver).session_id == "red"
        left = session_of(receiver).locked_until_utc - before
        assert timedelta(seconds=4) < left < timedelta(seconds=15)
        messages = await receive_exactly(receiver, 2)
        assert bodies(messages) == [b"r1", b"r2"]
        assert [message.session_id for message in messages] == ["red", "red"]
        await complete_all(receiver, messages)
        assert await receiver.receive_messages(max_wait_time=0.3) == []


@pytest.mark.feature("session.accept")
async def test_accept_the_next_available(sender: Any, client: Client, queue: str) -> None:
    await sender.send_messages(messages_to("first", b"1"))
    await sender.send_messages(messages_to("second", b"2"))
    async with next_session(client, queue) as one, next_session(client, queue) as two:
        assert [session_of(one).session_id, session_of(two).session_id] == ["first", "second"]
        for receiver, expected in ((one, b"1"), (two, b"2")):
            message = await receive_one(receiver)
            assert body(message) == expected
            await receiver.complete_message(message)


@pytest.mark.feature("session.accept")
@async_only
async def test_accept_waits_for_a_session(sender: Any, client: Client, queue: str) -> None:
    receiver = next_session(client, queue, max_wait_time=20)
    opening = asyncio.create_task(receiver.__aenter__())
    await asyncio.sleep(0.5)
    assert not opening.done()
    await sender.send_messages(messages_to("late", b"x"))
    await opening
    assert session_of(receiver).session_id == "late"
    assert body(await receive_one(receiver)) == b"x"
    await receiver.close()


@pytest.mark.feature("session.accept")
async def test_no_session_in_time(new_client: NewClient, queue: str) -> None:
    receiver = next_session(new_client(retry_total=0), queue, max_wait_time=1)
    with pytest.raises(OperationTimeoutError):
        await receiver.__aenter__()


@pytest.mark.feature("session.accept")
@async_only
async def test_an_empty_session_is_accepted_all_the_same(
    sender: Any, client: Client, queue: str
) -> None:
    async with client.receiver(queue, session_id="") as receiver:
        assert session_of(receiver).session_id == ""
        assert await receiver.receive_messages(max_wait_time=0.3) == []
        await sender.send_messages(messages_to("", b"now there is one"))
        assert body(await receive_one(receiver)) == b"now there is one"


@pytest.mark.feature("session.order")
@sync_only
async def test_only_one_holds_a_session(
    sender: Any, client: Client, new_client: NewClient, queue: str
) -> None:
    await sender.send_messages(messages_to("mine", b"x"))
    other = new_client(retry_total=0)
    async with client.receiver(queue, session_id="mine"):
        with pytest.raises(SessionCannotBeLockedError):
            await other.receiver(queue, session_id="mine").__aenter__()
    async with other.receiver(queue, session_id="mine") as receiver:
        assert body(await receive_one(receiver)) == b"x"


@pytest.mark.feature("session.order")
@async_only
async def test_competing_acceptors_share_the_sessions(
    sender: Any, client: Client, queue: str
) -> None:
    """Every session goes to exactly one of them, and each gets its messages in order."""
    ids = [f"s{number}" for number in range(12)]
    for step in range(3):
        await sender.send_messages([m for each in ids for m in messages_to(each, b"%d" % step)])
    got: dict[str, list[bytes]] = {}

    async def work() -> None:
        for _ in range(3):
            async with next_session(client, queue) as receiver:
                messages = await receive_exactly(receiver, 3)
                session_id = session_of(receiver).session_id
                assert session_id not in got
                got[session_id] = bodies(messages)
                await complete_all(receiver, messages)

    await asyncio.gather(*(work() for _ in range(4)))
    assert got == {each: [b"0", b"1", b"2"] for each in ids}


# --- order and settling ---------------------------------------------------------------------------


@pytest.mark.feature("session.order")
async def test_an_abandoned_message_comes_before_later_ones(
    sender: Any, client: Client, queue: str
) -> None:
    await sender.send_messages(messages_to("s", b"1", b"2", b"3"))
    async with client.receiver(queue, session_id="s") as receiver:
        first = await receive_one(receiver)
        await receiver.abandon_message(first)
        seen = []
        for _ in range(3):
            message = await receive_one(receiver)
            seen.append((body(message), message.delivery_count))
            await receiver.complete_message(message)
        assert seen == [(b"1", 1), (b"2", 0), (b"3", 0)]


@pytest.mark.feature("session.order")
@sync_only
async def test_defer_dead_letter_and_peek_in_a_session(
    sender: Any, client: Client, dead_letters: Any, queue: str
) -> None:
    await sender.send_messages(messages_to("other", b"not mine"))
    await sender.send_messages(messages_to("s", b"defer", b"bury", b"stay"))
    async with client.receiver(queue, session_id="s") as receiver:
        defer, bury = await receive_exactly(receiver, 2)
        await receiver.defer_message(defer)
        await receiver.dead_letter_message(bury, reason="unwanted")
        assert bodies(await peek_all(receiver)) == [b"defer", b"stay"]
        [deferred] = await receiver.receive_deferred_messages([defer.sequence_number])
        assert (body(deferred), deferred.session_id) == (b"defer", "s")
        await receiver.complete_message(deferred)
    dead = await receive_one(dead_letters)
    assert (body(dead), dead.session_id, dead.dead_letter_reason) == (b"bury", "s", "unwanted")
    await dead_letters.complete_message(dead)


@pytest.mark.feature("session.order")
@sync_only
async def test_receive_and_delete_from_a_session(sender: Any, client: Client, queue: str) -> None:
    await sender.send_messages(messages_to("s", b"1", b"2"))
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    async with next_session(client, queue, receive_mode=mode) as receiver:
        assert bodies(await receive_exactly(receiver, 2)) == [b"1", b"2"]
        assert await peek_all(receiver) == []


@pytest.mark.feature("session.order")
@async_only
async def test_scheduled_messages_come_to_their_session(
    sender: Any, client: Client, queue: str
) -> None:
    due = datetime.now(UTC) + timedelta(seconds=1)
    [number] = await sender.schedule_messages(messages_to("s", b"gone"), due)
    await sender.schedule_messages(messages_to("s", b"later"), due)
    await sender.cancel_scheduled_messages(number)
    async with next_session(client, queue, max_wait_time=20) as receiver:
        assert session_of(receiver).session_id == "s"
        assert body(await receive_one(receiver)) == b"later"


# --- state ----------------------------------------------------------------------------------------


@pytest.mark.feature("session.state")
async def test_state_is_set_read_and_cleared(client: Client, queue: str) -> None:
    async with client.receiver(queue, session_id="s") as receiver:
        session = session_of(receiver)
        assert await session.get_state() is None
        await session.set_state(b"step 1")
        assert await session.get_state() == b"step 1"
        await session.set_state(b"")
        assert await session.get_state() == b""
        await session.set_state(b"step 2")
    async with client.receiver(queue, session_id="s") as receiver:
        session = session_of(receiver)
        assert await session.get_state() == b"step 2", "the next holder finds it"
        await session.set_state(None)
        assert await session.get_state() is None


# --- locks ----------------------------------------------------------------------------------------


@pytest.mark.feature("session.renew")
@sync_only
async def test_a_renewed_session_stays(sender: Any, client: Client, queue: str) -> None:
    await sender.send_messages(messages_to("s", b"slow"))
    async with client.receiver(queue, session_id="s") as receiver:
        session = session_of(receiver)
        first_until = session.locked_until_utc
        message = await receive_one(receiver)
        for _ in range(2):
            await asyncio.sleep(2.7)
            renewed = await session.renew_lock()
            assert renewed > first_until
            assert session.locked_until_utc == renewed
        assert datetime.now(UTC) > first_until
        await receiver.complete_message(message)


@pytest.mark.feature("session.renew")
@async_only
async def test_the_sdk_renews_by_itself(sender: Any, client: Client, queue: str) -> None:
    await sender.send_messages(messages_to("s", b"slow"))
    renewer = azure.servicebus.aio.AutoLockRenewer(max_lock_renewal_duration=60)
    async with renewer, next_session(client, queue, auto_lock_renewer=renewer) as receiver:
        first_until = session_of(receiver).locked_until_utc
        message = await receive_one(receiver)
        await asyncio.sleep(6)
        assert session_of(receiver).locked_until_utc > first_until
        await receiver.complete_message(message)
        assert await peek_all(receiver) == []


@pytest.mark.feature("session.renew")
@async_only
async def test_a_lost_session_goes_to_others(
    sender: Any, client: Client, new_client: NewClient, queue: str
) -> None:
    await sender.send_messages(messages_to("s", b"slow"))
    async with client.receiver(queue, session_id="s") as receiver:
        late = await receive_one(receiver)
        waiting = next_session(new_client(), queue, max_wait_time=20)
        await waiting.__aenter__()
        again = await receive_one(waiting)
        assert (body(again), again.delivery_count) == (b"slow", 1)
        with pytest.raises(SessionLockLostError):
            await receiver.complete_message(late)
        with pytest.raises(SessionLockLostError):
            await session_of(receiver).get_state()
        await waiting.complete_message(again)


# --- release --------------------------------------------------------------------------------------


@pytest.mark.feature("session.release")
async def test_closing_releases_the_session_uncounted(
    sender: Any, client: Client, queue: str
) -> None:
    await sender.send_messages(messages_to("s", b"1", b"2"))
    async with client.receiver(queue, session_id="s") as receiver:
        await receive_exactly(receiver, 2)
    async with next_session(client, queue) as receiver:
        messages = await receive_exactly(receiver, 2)
        assert [(body(m), m.delivery_count) for m in messages] == [(b"1", 0), (b"2", 0)]


@pytest.mark.feature("session.release")
@sync_only
async def test_a_lost_connection_releases_the_session(
    sender: Any, client: Client, queue: str
) -> None:
    await sender.send_messages(messages_to("s", b"1"))
    lost = client.receiver(queue, session_id="s")
    await lost.__aenter__()
    await receive_one(lost)
    # The SDK has no way to let go without a word, so this takes the socket from it.
    transport = lost.target._handler._connection._transport
    await asyncio.to_thread(transport.sock.shutdown, 2)
    async with next_session(client, queue) as receiver:
        message = await receive_one(receiver)
        assert (body(message), message.delivery_count) == (b"1", 0)


# --- enumeration ----------------------------------------------------------------------------------


@pytest.mark.feature("session.list")
@sync_only
async def test_list_sessions(sender: Any, client: Client, queue: str) -> None:
    ids = [f"s{number:03d}" for number in range(230)]
    await sender.send_messages([m for each in ids for m in messages_to(each, b"")])
    start = datetime.now(UTC) - timedelta(seconds=1)
    async with client.receiver(queue, session_id="with state") as receiver:
        await session_of(receiver).set_state(b"x")
    listed = await asyncio.to_thread(lambda: list(client.sdk.list_queue_sessions(queue)))
    assert listed == [*ids, "with state"], "in three pages"

    def updated_after(moment: datetime) -> list[str]:
        return list(client.sdk.list_queue_sessions(queue, state_updated_after=moment))

    assert await asyncio.to_thread(updated_after, start) == ["with state"]
    assert await asyncio.to_thread(updated_after, start + timedelta(hours=1)) == []


# --- what does not fit ----------------------------------------------------------------------------


@pytest.mark.feature("session.accept")
@async_only
async def test_a_message_without_a_session_is_refused(sender: Any) -> None:
    with pytest.raises(ServiceBusError, match="session id"):
        await sender.send_messages(ServiceBusMessage(b"whose?"))


@pytest.mark.feature("session.accept")
@async_only
async def test_a_receiver_without_a_session_is_refused(new_client: NewClient, queue: str) -> None:
    receiver = new_client(retry_total=0).receiver(queue)
    with pytest.raises(ServiceBusError, match="requires sessions"):
        await receiver.__aenter__()


@pytest.mark.feature("session.accept")
@async_only
@pytest.mark.queue
async def test_a_session_on_a_plain_queue_is_refused(new_client: NewClient, queue: str) -> None:
    client = new_client(retry_total=0)
    for receiver in (client.receiver(queue, session_id="s"), next_session(client, queue)):
        with pytest.raises(ServiceBusError, match="does not require sessions"):
            await receiver.__aenter__()
