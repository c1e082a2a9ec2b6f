"""Setting up a pair where not every backlog queue can serve; the SDK keeps its own retries.

Two real servers, both flavours.  Setting up where all is well is in test_pairing.py.
"""

import asyncio
import datetime as dt
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import azure.servicebus.aio.management
import azure.servicebus.management
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import EntityStatus

from tests.interop.administration import AsyncPlainTransport, PlainTransport, connect
from tests.interop.pairs import (
    Pair,
    Servers,
    client_of,
    pair_servers,
    primary_of,
    run_servers,
    take,
    texts,
    until,
)
from twinbus.pairing import (
    BacklogQueueLost,
    PairingError,
    SendAvailabilityPairedNamespaceOptions,
    State,
    SyphonResting,
)

pytestmark = pytest.mark.asyncio


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with run_servers(tmp_path_factory.mktemp("setup")) as both:
        yield both


@pytest.fixture
def queue(servers: Servers, name: str) -> str:
    return servers.create_queue(name)


def path(name: str, index: int) -> str:
    return f"{name}/x-servicebus-transfer/{index}"


def options_for(servers: Servers, name: str, count: int, **settings: Any) -> Any:
    return SendAvailabilityPairedNamespaceOptions.from_connection_string(
        servers.secondary.connection_string, count, primary_name=name, **settings
    )


@asynccontextmanager
async def paired(flavour: str, servers: Servers, options: Any) -> AsyncIterator[Pair]:
    pair = await pair_servers(flavour, primary_of(flavour, servers), options)
    try:
        yield pair
    finally:
        await pair.close()


def put(servers: Servers, queue: str, text: str, destination: str) -> None:
    """A message that has waited in the backlog since an earlier outage."""
    message = ServiceBusMessage(text, application_properties={"x-ms-path": destination})
    with (
        ServiceBusClient.from_connection_string(servers.secondary.connection_string) as client,
        client.get_queue_sender(queue) as sender,
    ):
        sender.send_messages(message)


def set_status(servers: Servers, queue: str, status: EntityStatus) -> None:
    with connect(servers.secondary) as admin:
        found = admin.get_queue(queue)
        found.status = status
        admin.update_queue(found)


def make_bad(servers: Servers, name: str) -> dict[str, str]:
    """One queue of each kind that cannot serve, with a part of what is to be said of it."""
    elsewhere = f"{name}-elsewhere"
    with connect(servers.secondary) as admin:
        admin.create_queue(elsewhere)
        for index in range(3):
            admin.create_queue(path(name, index))
        admin.create_queue(path(name, 3), requires_session=True)
        admin.create_queue(path(name, 4), forward_to=elsewhere)
    return {
        path(name, 0): "is disabled:",
        path(name, 1): "is disabled for sending",
        path(name, 2): "is disabled for receiving",
        path(name, 3): "requires sessions",
        path(name, 4): f"forwards to .*{elsewhere}",
    }


def disable(servers: Servers, name: str) -> None:
    statuses = (EntityStatus.DISABLED, EntityStatus.SEND_DISABLED, EntityStatus.RECEIVE_DISABLED)
    for index, status in enumerate(statuses):
        set_status(servers, path(name, index), status)


@pytest.mark.proves("P-1", "P-2", "P-5", "P-10")
@pytest.mark.feature("pairing.backlog", "pairing.events")
async def test_bad_backlog_queues_are_left_out_and_told(
    servers: Servers, flavour: str, name: str, queue: str
) -> None:
    """The others serve, and what was in the bad ones comes home as soon as it can."""
    reasons = make_bad(servers, name)
    put(servers, path(name, 0), "in 0", queue)
    put(servers, path(name, 1), "in 1", queue)
    disable(servers, name)
    options = options_for(servers, name, 7, enable_syphon=True)
    async with paired(flavour, servers, options) as pair:
        assert options.backlog_queue_count == 2
        lost = {event.queue: event for event in pair.seen(BacklogQueueLost)}
        assert list(lost) == list(reasons)
        assert [event.left for event in lost.values()] == [6, 5, 4, 3, 2]
        for each, reason in reasons.items():
            assert re.search(f"{each} {reason}", str(lost[each].error))
            assert not pair.backlog_queue(each).in_rotation
            assert pair.backlog_queue(each).last_error is lost[each].error
        pair.sdk.force_failover(queue)
        senders = [pair.sender(queue) for _ in range(8)]
        await asyncio.gather(*(each.send_messages(ServiceBusMessage("sent")) for each in senders))
        assert pair.entity(queue).sent_to_backlog == 8
        await until(lambda: moved(pair) == 9, "the backlog is not emptied")
        resting = {path(name, 0), path(name, 2)}
        await until(lambda: {each.path for each in pair.seen(SyphonResting)} == resting, "not told")
        set_status(servers, path(name, 0), EntityStatus.ACTIVE)
        await until(lambda: moved(pair) == 10, "a queue that is enabled is not emptied")
        assert len(pair.seen(BacklogQueueLost)) == len(reasons)
    assert sorted(texts(take(servers.primary, queue))) == ["in 0", "in 1", *["sent"] * 8]
    async with paired(flavour, servers, options) as pair:
        assert len(pair.sdk.status().backlog_queues) == 7  # as many as were asked for at first
        assert options.backlog_queue_count == 3


def moved(pair: Pair) -> int:
    return sum(each.moved for each in pair.sdk.status().backlog_queues.values())


@pytest.mark.proves("P-1")
@pytest.mark.feature("pairing.backlog")
async def test_no_backlog_queue_is_left(servers: Servers, flavour: str, name: str) -> None:
    """Why is told for each; the application's own client stays as it was."""
    reasons = make_bad(servers, name)
    disable(servers, name)
    primary = primary_of(flavour, servers)
    options = options_for(servers, name, 5)
    with pytest.raises(PairingError, match=r"No backlog queue can be used\.") as raised:
        await pair_servers(flavour, primary, options)
    for each, reason in reasons.items():
        assert re.search(f"{each} {reason}", str(raised.value))
    assert options.backlog_queue_count == 5
    assert "close" not in vars(primary)
    await (asyncio.to_thread(primary.close) if flavour == "sync" else primary.close())


@pytest.mark.proves("P-10")
@pytest.mark.feature("pairing.backlog")
async def test_a_queue_that_is_disabled_later_is_told(
    servers: Servers, flavour: str, name: str, queue: str
) -> None:
    """By the first send to it, which goes to another one."""
    options = options_for(servers, name, 2)
    async with paired(flavour, servers, options) as pair:
        assert options.backlog_queue_count == 2
        assert pair.events == []
        pair.sdk.force_failover(queue)
        set_status(servers, path(name, 1), EntityStatus.DISABLED)
        senders = [pair.sender(queue) for _ in range(12)]
        for each in senders:
            await each.send_messages(ServiceBusMessage("sent"))
        [lost] = pair.seen(BacklogQueueLost)  # but for one run in 4,096
        assert (lost.queue, lost.left) == (path(name, 1), 1)
        assert not pair.backlog_queue(path(name, 1)).in_rotation
    assert texts(take(servers.secondary, path(name, 0))) == ["sent"] * 12


# --- options --------------------------------------------------------------------------------------


@pytest.mark.proves("P-2", "P-9", "P-13")
@pytest.mark.feature("pairing.recovery")
async def test_the_ping_interval_can_be_set_while_the_primary_is_down(
    servers: Servers, flavour: str, name: str, queue: str
) -> None:
    """Nobody waits for the half hour that was chosen first; a closed pair is not told."""
    options = options_for(servers, name, 1, failover_interval=0, ping_primary_interval=1800)
    async with paired(flavour, servers, options) as pair:
        servers.faults.add({"kind": "refuse-sends", "entity": queue})
        await pair.sender(queue).send_messages(ServiceBusMessage("during"))
        assert pair.state(queue) is State.FAILED_OVER
        servers.faults.clear_all()
        with pytest.raises(ValueError, match="from 1 s to 1800 s"):
            options.ping_primary_interval = 0
        options.ping_primary_interval = 1
        await pair.reaches(queue, State.RECOVERING)
    options.ping_primary_interval = 2


@pytest.mark.proves("P-2")
async def test_the_arguments_of_the_original_by_position(
    servers: Servers, flavour: str, name: str, queue: str
) -> None:
    """Interval 0, with a syphon: the send that fails goes to the backlog and comes home."""
    is_sync = flavour == "sync"
    text = servers.secondary.connection_string
    management = azure.servicebus.management if is_sync else azure.servicebus.aio.management
    manager = management.ServiceBusAdministrationClient.from_connection_string(
        text, transport=PlainTransport() if is_sync else AsyncPlainTransport()
    )
    options = SendAvailabilityPairedNamespaceOptions(
        manager, client_of(flavour, text), 2, dt.timedelta(0), True, primary_name=name
    )
    async with paired(flavour, servers, options) as pair:
        assert list(pair.sdk.status().backlog_queues) == [path(name, 0), path(name, 1)]
        servers.faults.add({"kind": "refuse-sends", "entity": queue})
        await pair.sender(queue).send_messages(ServiceBusMessage("by way of the backlog"))
        servers.faults.clear_all()
        await until(lambda: moved(pair) == 1, "it does not come home")
    await (asyncio.to_thread(manager.close) if is_sync else manager.close())
    assert texts(take(servers.primary, queue, 1)) == ["by way of the backlog"]
