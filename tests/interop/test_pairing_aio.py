"""What only the async flavour of a pair can do or get wrong: tasks, cancellation, loops.

What both flavours share is in test_pairing.py, outages are in test_pairing_outages.py.
"""

import asyncio
import datetime as dt
import gc
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import azure.servicebus
import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.exceptions import OperationTimeoutError

from tests.interop.administration import AsyncPlainTransport
from tests.interop.pairs import Pair, Servers, client_of, open_pair, run_servers, take, texts, until
from twinbus.pairing.aio import (
    PairedServiceBusClient,
    SendAvailabilityPairedNamespaceOptions,
    pair_namespace,
)
from twinbus.pairing.errors import PairFaultedError
from twinbus.pairing.events import EntityFailedOver, EntityRecovered, Event, PairFaulted, State
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.asyncio

# More than the sockets of both ends hold, so that writing it to a stopped server never ends.
UNWRITABLE_BYTES = 900_000


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with run_servers(tmp_path_factory.mktemp("pairing")) as servers:
        yield servers
    gc.collect()  # what the SDK has left open is to be found here, where it is forgiven


@pytest.fixture
def queue(servers: Servers, name: str) -> str:
    return servers.create_queue(name)


@asynccontextmanager
async def open_clean(servers: Servers, name: str, **options: Any) -> AsyncIterator[Pair]:
    """A pair that leaves no task behind when it is closed."""
    before = asyncio.all_tasks()
    async with open_pair("async", servers, name=name, **options) as pair:
        yield pair
    assert asyncio.all_tasks() == before


@contextmanager
def stopped(server: ServerProcess) -> Iterator[None]:
    """A server that is there and says nothing."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


async def in_queue(servers: Servers, queue: str) -> list[str]:
    return texts(await asyncio.to_thread(take, servers.primary, queue))


async def in_backlog(servers: Servers, name: str) -> list[str]:
    found: list[str] = []
    for each in await asyncio.to_thread(servers.backlog, name):
        found += texts(await asyncio.to_thread(take, servers.secondary, each))
    return found


def messages(count: int) -> list[ServiceBusMessage]:
    return [ServiceBusMessage(str(number)) for number in range(count)]


# --- tasks ------------------------------------------------------------------------------------


@pytest.mark.proves("P-6", "P-9")
@pytest.mark.feature("pairing.send")
async def test_many_tasks_share_a_sender(servers: Servers, name: str, queue: str) -> None:
    """Each message goes one way, once, whoever sends it and whenever it fails over."""
    async with open_clean(servers, name, backlog_queue_count=1) as pair:
        sender = pair.sdk.get_queue_sender(queue)
        await asyncio.gather(*(sender.send_messages(each) for each in messages(20)))
        pair.sdk.force_failover(queue)
        await asyncio.gather(*(sender.send_messages(each) for each in messages(20)))
        pair.sdk.force_failback(queue)
        await asyncio.gather(*(sender.send_messages(each) for each in messages(20)))
        status = pair.entity(queue)
        assert (status.sent_to_primary, status.sent_to_backlog) == (40, 20)
        assert status.state is State.HEALTHY
    numbers = sorted(str(number) for number in range(20))
    assert sorted(await in_queue(servers, queue)) == sorted(2 * numbers)
    assert sorted(await in_backlog(servers, name)) == numbers


@pytest.mark.proves("P-7")
async def test_tasks_that_wait_for_a_hanging_send_end_by_their_own_time(
    servers: Servers, name: str, queue: str
) -> None:
    """Nobody waits for the time of others, and all of them reach the backlog."""
    async with open_clean(servers, name, failover_interval=0, backlog_queue_count=1) as pair:
        sender = pair.sdk.get_queue_sender(queue)
        await sender.send_messages(ServiceBusMessage("before"))
        with stopped(servers.primary):
            sends = (sender.send_messages(each, timeout=6) for each in messages(8))
            await asyncio.gather(*sends)
            assert pair.state(queue) is State.FAILED_OVER
    assert sorted(await in_backlog(servers, name)) == [str(number) for number in range(8)]


@pytest.mark.proves("P-7")
@pytest.mark.parametrize("size_bytes", [1, UNWRITABLE_BYTES])
async def test_a_send_to_a_stopped_server_ends_and_the_next_one_is_well(
    servers: Servers, name: str, queue: str, size_bytes: int
) -> None:
    """The caller sees the error and keeps the message, even if not all of it was written."""
    async with open_clean(servers, name) as pair:
        sender = pair.sdk.get_queue_sender(queue)
        await sender.send_messages(ServiceBusMessage("before"))
        message = ServiceBusMessage(b"-" * size_bytes)
        with stopped(servers.primary), pytest.raises(OperationTimeoutError):
            await sender.send_messages(message, timeout=1)
        assert pair.state(queue) is State.FAILING
        await sender.send_messages(message)
        assert pair.state(queue) is State.HEALTHY
    # It may have arrived the first time, after its time: it has the same producer key.
    assert [len(text) for text in await in_queue(servers, queue)] == [6, size_bytes]


# --- cancellation -----------------------------------------------------------------------------


@pytest.mark.proves("P-7")
async def test_a_cancelled_send_counts_for_nothing(servers: Servers, name: str, queue: str) -> None:
    """Nobody knows what came of it, so nothing fails over and the message keeps its key."""
    async with open_clean(servers, name, failover_interval=0) as pair:
        sender = pair.sdk.get_queue_sender(queue)
        await sender.send_messages(ServiceBusMessage("before"))
        message = ServiceBusMessage("again")
        with stopped(servers.primary):
            sending = asyncio.create_task(sender.send_messages(message))
            waiting = asyncio.create_task(sender.send_messages(ServiceBusMessage("waits")))
            await asyncio.sleep(0.3)  # it is on its way, and the other waits for its turn
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
        await waiting
        await sender.send_messages(message)
        status = pair.entity(queue)
        assert (status.state, status.sent_to_primary) == (State.HEALTHY, 3)
        assert pair.events == []
    assert sorted(await in_queue(servers, queue)) == ["again", "before", "waits"]


@pytest.mark.proves("P-6")
async def test_cancelled_while_it_opens(servers: Servers, name: str, queue: str) -> None:
    """The link goes on opening, for whoever comes next."""
    async with open_clean(servers, name) as pair:
        sender = pair.sdk.get_queue_sender(queue)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await sender.send_messages(ServiceBusMessage("never"))
        await sender.send_messages(ServiceBusMessage("one"))
    assert await in_queue(servers, queue) == ["one"]


@pytest.mark.proves("P-1")
async def test_cancelled_while_it_pairs(servers: Servers, name: str) -> None:
    """What was opened is closed again."""
    before = asyncio.all_tasks()
    options = SendAvailabilityPairedNamespaceOptions.from_connection_string(
        servers.secondary.connection_string, 2, primary_name=name, enable_syphon=True
    )
    with stopped(servers.secondary), pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await pair_namespace(servers.primary.connection_string, options)
    assert asyncio.all_tasks() == before
    async with await pair_namespace(servers.primary.connection_string, options) as client:
        assert client.status().syphon_running


# --- kinds of clients -------------------------------------------------------------------------


@pytest.mark.proves("P-1")
async def test_blocking_clients_are_refused(servers: Servers) -> None:
    """As a mistake of the caller's, before anything is opened."""
    text = servers.primary.connection_string
    options = SendAvailabilityPairedNamespaceOptions.from_connection_string(text)
    blocking = azure.servicebus.ServiceBusClient.from_connection_string(text)
    with pytest.raises(TypeError, match=r"azure\.servicebus\.aio"):
        await pair_namespace(blocking, options)  # type: ignore[arg-type]
    options = SendAvailabilityPairedNamespaceOptions(blocking, blocking)
    with pytest.raises(TypeError, match=r"azure\.servicebus\.aio"):
        await pair_namespace(text, options)
    with pytest.raises(TypeError, match="SendAvailabilityPairedNamespaceOptions"):
        await pair_namespace(text, {})  # type: ignore[arg-type]


@pytest.mark.proves("P-1", "P-3")
@pytest.mark.feature("pairing.send")
async def test_wrapped_around_clients_that_are_there(
    servers: Servers, name: str, queue: str
) -> None:
    """Four async objects of the SDK, made by the application."""
    text = servers.secondary.connection_string
    secondary = azure.servicebus.aio.ServiceBusClient.from_connection_string(text)
    async with ServiceBusAdministrationClient.from_connection_string(
        text, transport=AsyncPlainTransport()
    ) as manager:
        options = SendAvailabilityPairedNamespaceOptions(manager, secondary, 3, primary_name=name)
        primary = client_of("async", servers.primary.connection_string)
        client = await pair_namespace(primary, options)
        async with client, client.get_queue_sender(queue) as sender:
            await sender.send_messages(ServiceBusMessage("one"))
            async with client.get_queue_receiver(queue, max_wait_time=5) as receiver:
                [message] = await receiver.receive_messages()
                await receiver.complete_message(message)
        assert client.options.backlog_queue_count == 3
        assert len([queue async for queue in manager.list_queues()]) >= 3  # still open
    assert str(message) == "one"


# --- events -----------------------------------------------------------------------------------


@pytest.mark.feature("pairing.events")
async def test_events_reach_async_callbacks_and_readers(
    servers: Servers, name: str, queue: str
) -> None:
    """Callbacks of both kinds and `async for`; one that fails hurts nobody."""
    heard: list[Event] = []

    async def slow(event: Event) -> None:
        await asyncio.sleep(0.05)
        heard.append(event)

    async def failing(event: Event) -> None:
        raise LookupError(event)

    def plain(event: Event) -> None:
        raise LookupError(event)

    async with open_clean(servers, name) as pair:
        client: PairedServiceBusClient = pair.sdk
        for callback in (plain, failing, slow):
            client.on_event(callback)
        reader = client.events()
        client.get_queue_sender(queue)
        client.force_failover()
        client.force_failback(queue.upper())  # names compare without case
    kinds = [type(event) for event in heard]
    assert kinds == [EntityFailedOver, EntityRecovered]  # close has waited for them
    assert [event async for event in reader] == pair.events == heard
    assert [event async for event in client.events()] == []


@pytest.mark.proves("P-17")
async def test_a_callback_may_close_the_pair(servers: Servers, name: str, queue: str) -> None:
    """It does not wait for itself."""
    async with open_clean(servers, name) as pair:
        client: PairedServiceBusClient = pair.sdk
        sender = client.get_queue_sender(queue)

        async def close(event: Event) -> None:
            await client.fault("the application wants no backlog")

        client.on_event(close)
        client.force_failover(queue)
        await pair.sees(PairFaulted)
        with pytest.raises(PairFaultedError, match="wants no backlog"):
            await sender.send_messages(ServiceBusMessage("late"))
        assert client.status().fault == "the application wants no backlog"


# --- close ------------------------------------------------------------------------------------


@pytest.mark.proves("P-14")
async def test_a_poll_of_fifteen_minutes_ends_at_once(
    servers: Servers, name: str, queue: str
) -> None:
    """Closing does not wait for the long poll, and what comes later stays in the backlog."""
    async with open_clean(servers, name, enable_syphon=True) as pair:
        sender = pair.sdk.get_queue_sender(queue)
        pair.sdk.force_failover(queue)
        await sender.send_messages(ServiceBusMessage("moved"))
        await until(
            lambda: sum(each.moved for each in pair.sdk.status().backlog_queues.values()),
            "nothing is moved",
        )
        assert pair.sdk.status().syphon_running
    assert not pair.sdk.status().syphon_running
    assert await in_queue(servers, queue) == ["moved"]


@pytest.mark.proves("P-17")
@pytest.mark.feature("pairing.coupling")
async def test_both_clients_closed_by_the_application_end_the_pair_in_peace(
    servers: Servers, name: str, queue: str
) -> None:
    """Within the five seconds nobody is faulted, and no task is left."""
    before = asyncio.all_tasks()
    client = await PairedServiceBusClient.from_connection_strings(
        servers.primary.connection_string,
        servers.secondary.connection_string,
        backlog_queue_count=1,
        primary_name=name,
        enable_syphon=True,
    )
    reader = client.events()
    sender = client.get_queue_sender(queue)
    await sender.send_messages(ServiceBusMessage("one"))
    await client.secondary.close()
    await sender.send_messages(ServiceBusMessage("two"))
    async with client.primary:
        pass
    assert [event async for event in reader] == []
    assert asyncio.all_tasks() == before
    with pytest.raises(ValueError, match="closed"):
        await sender.send_messages(ServiceBusMessage("late"))
    assert await in_queue(servers, queue) == ["one", "two"]


@pytest.mark.proves("P-14", "P-17")
async def test_a_closed_primary_is_used_by_nobody(servers: Servers, name: str, queue: str) -> None:
    """Messages of the backlog must not pay for it that their way home is closed."""
    async with open_clean(servers, name, enable_syphon=True) as pair:
        sender = pair.sdk.get_queue_sender(queue)
        await sender.send_messages(ServiceBusMessage("one"))
        with stopped(servers.primary):
            sending = asyncio.create_task(sender.send_messages(ServiceBusMessage("two")))
            await asyncio.sleep(0)  # it has begun
            await pair.sdk.primary.close()
        assert not pair.sdk.status().syphon_running
        with pytest.raises(PairFaultedError, match="closed"):
            await sending
        with pytest.raises(ValueError, match="closed"):
            await sender.send_messages(ServiceBusMessage("late"))
        assert pair.events == []


@pytest.mark.proves("P-6")
@pytest.mark.feature("pairing.send")
async def test_a_schedule_is_cancelled_on_the_primary(
    servers: Servers, name: str, queue: str
) -> None:
    """By several tasks at once, as everything else."""
    later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    async with open_clean(servers, name) as pair:
        sender = pair.sdk.get_queue_sender(queue)
        numbers = await asyncio.gather(
            *(sender.schedule_messages(each, later) for each in messages(5))
        )
        await asyncio.gather(*(sender.cancel_scheduled_messages(each) for each in numbers))
        async with pair.sdk.get_queue_receiver(queue) as receiver:
            assert await receiver.peek_messages() == []
