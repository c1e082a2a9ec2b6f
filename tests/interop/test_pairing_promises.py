"""What a pair promises to the letter: rights, backlog queues, sizes, pings, shared clients, cost.

Everyday use of a pair is in test_pairing.py; here each clause has two real servers, both flavours.
"""

import asyncio
import datetime as dt
import gc
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import azure.servicebus.aio.management
import azure.servicebus.management
import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusMessage

from tests.interop.administration import AsyncPlainTransport, PlainTransport, connect
from tests.interop.pairs import (
    SUBSCRIPTION,
    WAIT_S_MAX,
    Pair,
    Servers,
    client_of,
    open_pair,
    pair_servers,
    primary_of,
    run_servers,
    until,
)
from tests.interop.sdk import async_only
from twinbus.client.connection import BusConnection
from twinbus.client.meter import MeterClient
from twinbus.config import Identity, RuleConfig, store_identity
from twinbus.limits import MESSAGE_SIZE_BYTES_MAX
from twinbus.metered import PING, RECEIVE, SEND
from twinbus.pairing import SendAvailabilityPairedNamespaceOptions
from twinbus.pairing.errors import BacklogMessageSizeExceededError, PairFaultedError
from twinbus.pairing.events import EntityRecovered, PairFaulted, State
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.asyncio

ROOT = RuleConfig("RootManageSharedAccessKey", "root-key", "root-key-2")
CLERK = RuleConfig("clerk", "clerk-key", "clerk-key-2", ("Send", "Listen"))
QUIET_S = 0.3
NEVER = dt.timedelta(days=10_675_199)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """The secondary knows somebody who may send and listen, but not manage."""
    directory = tmp_path_factory.mktemp("promises")
    secondary = directory / "secondary"
    secondary.mkdir()
    store_identity(secondary, Identity("secondary", (ROOT, CLERK)))
    with run_servers(directory) as both:
        yield both


@pytest.fixture
def queue(servers: Servers, name: str) -> str:
    return servers.create_queue(name)


@asynccontextmanager
async def leaves_nothing_open() -> AsyncIterator[None]:
    """Neither sockets nor tasks nor threads of a pair."""
    sockets, tasks = open_sockets(), asyncio.all_tasks()
    yield
    # Those of the SDK's blocking administration client close when its pool of them is collected.
    await until(lambda: open_sockets() <= sockets, "sockets are left open")
    assert asyncio.all_tasks() == tasks
    assert not [each for each in threading.enumerate() if each.name.startswith("twinbus-pairing")]


def open_sockets() -> set[str]:
    gc.collect()
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found.add(str(descriptor.readlink()))
        except FileNotFoundError:  # the one that the directory was read with
            continue
    return {each for each in found if each.startswith("socket:")}


def operations(server: ServerProcess, entity: str) -> dict[str, int]:
    lines = MeterClient(server.connection_string).read()
    return {line.kind: line.operations for line in lines if line.entity == entity}


async def taken(
    server: ServerProcess, path: str, count: int | None = None, session_id: str | None = None
) -> list[str]:
    """So many messages of a queue and not one more, or what comes before a silence; taken out.

    By our own client: the SDK's takes a second to open a link and to close it.
    """
    found: list[str] = []
    async with await BusConnection.open(server.connection_string) as connection:
        if session_id is None:
            receiver = await connection.open_receiver(path)
        else:
            receiver = await connection.open_session_receiver(path, session_id, wait_s=WAIT_S_MAX)
        while True:
            is_due = count is not None and len(found) < count
            received = await receiver.receive(WAIT_S_MAX if is_due else QUIET_S)
            if received is None:
                break
            await receiver.complete(received)
            found.append(received.body.decode())
    assert count is None or len(found) == count, found
    return found


def options_for(servers: Servers, **settings: Any) -> SendAvailabilityPairedNamespaceOptions:
    return SendAvailabilityPairedNamespaceOptions.from_connection_string(
        servers.secondary.connection_string, 1, client_options={"retry_total": 0}, **settings
    )


# --- setting up -----------------------------------------------------------------------------------


@pytest.mark.proves("P-1", "P-2")
@pytest.mark.feature("pairing.backlog")
async def test_a_key_without_the_manage_claim_is_raised(
    servers: Servers, flavour: str, name: str
) -> None:
    """It exists and may send and listen, which is not enough to make queues."""
    text = re.sub(
        "SharedAccessKeyName=[^;]+;SharedAccessKey=[^;]+",
        f"SharedAccessKeyName={CLERK.name};SharedAccessKey={CLERK.primary_key}",
        servers.secondary.connection_string,
    )
    options = SendAvailabilityPairedNamespaceOptions.from_connection_string(
        text, 1, primary_name=name, enable_syphon=True
    )
    async with leaves_nothing_open():
        with pytest.raises(ClientAuthenticationError, check=is_refused):
            await pair_servers(flavour, servers.primary.connection_string, options)
    assert servers.backlog(name) == []


def is_refused(error: ClientAuthenticationError) -> bool:
    return error.status_code in {401, 403}


@pytest.mark.proves("P-2", "P-4")
@pytest.mark.feature("pairing.backlog")
async def test_backlog_queues_are_described_to_the_letter(servers: Servers, flavour: str) -> None:
    """Also their paths, where nobody has chosen a name, and their number."""
    options = options_for(servers)
    pair = await pair_servers(flavour, servers.primary.connection_string, options)
    await pair.close()
    path = f"127.0.0.1-{servers.primary.port}/x-servicebus-transfer/0"
    assert list(pair.sdk.status().backlog_queues) == [path]
    assert options.backlog_queue_count == 1
    with connect(servers.secondary) as admin:
        made = admin.get_queue(path)
        admin.delete_queue(path)  # the other flavour makes it again
    assert made.max_size_in_megabytes == 5120
    assert made.max_delivery_count == 2**31 - 1
    assert isinstance(made.default_message_time_to_live, dt.timedelta)
    assert isinstance(made.auto_delete_on_idle, dt.timedelta)
    assert made.default_message_time_to_live > NEVER
    assert made.auto_delete_on_idle > NEVER
    assert made.lock_duration == dt.timedelta(minutes=1)
    assert made.dead_lettering_on_message_expiration
    assert made.enable_batched_operations
    assert not made.requires_session
    assert not made.requires_duplicate_detection
    assert not made.enable_partitioning
    assert made.forward_to is None


@pytest.mark.proves("P-5")
@pytest.mark.feature("pairing.backlog", "pairing.syphon")
async def test_queues_of_others_stay_as_they_are_and_unused(
    servers: Servers, flavour: str, name: str, queue: str
) -> None:
    """Neither the syphon nor any sender goes beyond the count; nothing is described anew."""
    theirs, ours, extra = (f"{name}/x-servicebus-transfer/{index}" for index in (0, 1, 7))
    for path in (theirs, extra):
        servers.secondary.create_queue(path, max_delivery_count=3, lock_duration="PT20S")
    async with await BusConnection.open(servers.secondary.connection_string) as connection:
        await (await connection.open_sender(extra)).send(b"left alone")
    before = [description(servers, path) for path in (theirs, extra)]
    async with open_pair(flavour, servers, name=name, enable_syphon=True) as pair:
        pair.sdk.force_failover(queue)
        senders = [pair.sender(queue) for _ in range(3)]
        await asyncio.gather(*(each.send_messages(ServiceBusMessage("ours")) for each in senders))
        await until(lambda: moved(pair) == 3, "the backlog is not emptied")
        assert list(pair.sdk.status().backlog_queues) == [theirs, ours]
    assert [description(servers, path) for path in (theirs, extra)] == before
    assert operations(servers.secondary, extra)[SEND] == 1
    assert await taken(servers.secondary, extra, 1) == ["left alone"]
    assert await taken(servers.primary, queue, 3) == ["ours"] * 3


def description(servers: Servers, path: str) -> dict[str, str]:
    """What the owner of a queue has said about it."""
    found = servers.secondary.admin.get_queue(path).properties
    names = ("MaxDeliveryCount", "LockDuration", "MaxSizeInMegabytes", "AutoDeleteOnIdle")
    more = ("DefaultMessageTimeToLive", "DeadLetteringOnMessageExpiration", "Status")
    return {name: found[name] for name in (*names, *more)}


def moved(pair: Pair) -> int:
    return sum(each.moved for each in pair.sdk.status().backlog_queues.values())


# --- failed over ----------------------------------------------------------------------------------


@pytest.mark.proves("P-9")
@async_only
@pytest.mark.feature("pairing.backlog")
async def test_a_sender_stays_with_the_backlog_queue_that_it_has_picked(
    servers: Servers, flavour: str, name: str, queue: str
) -> None:
    """At random, each for itself, so that many senders use all of them."""
    async with open_pair(flavour, servers, name=name) as pair:
        pair.sdk.force_failover(queue)
        senders = {str(number): pair.sender(queue) for number in range(12)}
        for _ in range(2):
            sends = (each.send_messages(ServiceBusMessage(text)) for text, each in senders.items())
            await asyncio.gather(*sends)
    paths = servers.backlog(name)
    first, second = [Counter(await taken(servers.secondary, path)) for path in paths]
    assert first and second  # but for one run in 2,048
    assert first + second == Counter(dict.fromkeys(senders, 2))
    assert not first & second
    assert operations(servers.primary, queue).get(SEND, 0) == 0


@pytest.mark.proves("P-12")
@pytest.mark.feature("pairing.rewriting")
async def test_too_large_for_the_backlog_is_refused_before_it_is_sent(
    servers: Servers, flavour: str, name: str, queue: str
) -> None:
    """The primary takes it; the error names both sizes, and no backlog queue is blamed."""
    body = b"x" * (MESSAGE_SIZE_BYTES_MAX - 100)
    message = ServiceBusMessage(body, session_id="s", message_id="m")
    async with open_pair(flavour, servers, name=name) as pair:
        sender = pair.sender(queue)
        await sender.send_messages(message)
        pair.sdk.force_failover(queue)
        with pytest.raises(BacklogMessageSizeExceededError) as caught:
            await sender.send_messages(message)
        error = caught.value
        assert error.size_bytes <= error.limit_bytes < error.rewritten_bytes
        assert f"{error.size_bytes} bytes" in str(error)
        assert f"{error.rewritten_bytes} bytes" in str(error)
        assert (message.session_id, message.message_id) == ("s", "m")
        assert all(each.in_rotation for each in pair.sdk.status().backlog_queues.values())
    for path in servers.backlog(name):
        assert SEND not in operations(servers.secondary, path)
    assert await taken(servers.primary, queue, 1) == [body.decode()]


@pytest.mark.proves("P-13", "P-18")
@pytest.mark.feature("pairing.recovery")
async def test_sessions_and_topics_take_pings_that_nobody_gets(
    servers: Servers, flavour: str, name: str
) -> None:
    """The ping brings the entity back; on the bill it is a ping and no send."""
    sessions = servers.create_queue(name, requires_session=True)
    topic = servers.create_topic(f"{name}-topic")
    async with open_pair(flavour, servers, name=name, failover_interval=0) as pair:
        senders = [pair.sender(sessions), pair.topic_sender(topic)]
        for entity in (sessions, topic):
            servers.faults.add({"kind": "refuse-sends", "entity": entity})
        await asyncio.gather(*(sender.send_messages(said("during")) for sender in senders))
        assert {pair.state(entity) for entity in (sessions, topic)} == {State.FAILED_OVER}
        servers.faults.clear_all()
        await until(lambda: len(pair.seen(EntityRecovered)) == 2, "they do not recover")
        await asyncio.gather(*(sender.send_messages(said("after")) for sender in senders))
    assert await taken(servers.primary, sessions, 1, "s") == ["after"]
    assert await taken(servers.primary, f"{topic}/Subscriptions/{SUBSCRIPTION}", 1) == ["after"]
    for entity in (sessions, topic):
        found = operations(servers.primary, entity)
        assert (found[PING], found[SEND]) == (1, 1)


def said(text: str) -> ServiceBusMessage:
    return ServiceBusMessage(text, session_id="s")


# --- cost -----------------------------------------------------------------------------------------


@pytest.mark.proves("P-18", "C-2")
@pytest.mark.feature("pairing.syphon", "ours.metering")
async def test_an_idle_syphon_costs_one_receive_a_poll(
    servers: Servers, flavour: str, name: str
) -> None:
    """One long poll for each backlog queue, and nothing else; closing ends it."""
    async with open_pair(
        flavour, servers, name=name, backlog_queue_count=3, enable_syphon=True
    ) as pair:
        assert pair.sdk.status().syphon_running
        await asyncio.sleep(0.5)  # nothing happens, that is the point
    for path in servers.backlog(name):
        found = operations(servers.secondary, path)
        assert (found[RECEIVE], found.get(SEND, 0)) == (1, 0)


# --- the end --------------------------------------------------------------------------------------


@pytest.mark.proves("P-17")
@pytest.mark.feature("pairing.coupling")
async def test_faulted_by_the_application(
    servers: Servers, flavour: str, name: str, queue: str
) -> None:
    """Both clients end, and whoever sends is told why."""
    options = options_for(servers, primary_name=name, enable_syphon=True)
    async with leaves_nothing_open():
        pair = await pair_servers(flavour, primary_of(flavour, servers), options)
        sender = pair.sender(queue)
        await sender.send_messages(ServiceBusMessage("one"))
        fault = pair.sdk.fault
        await (asyncio.to_thread(fault, "enough") if flavour == "sync" else fault("enough"))
        assert [event.reason for event in pair.seen(PairFaulted)] == ["enough"]
        with pytest.raises(PairFaultedError, match="enough"):
            await sender.send_messages(ServiceBusMessage("one"))
        with pytest.raises(PairFaultedError, match="enough"):
            pair.sdk.get_queue_sender(queue)
        assert not pair.sdk.status().syphon_running
        assert pair.sdk.status().fault == "enough"


@pytest.mark.proves("P-17")
@pytest.mark.feature("pairing.coupling")
async def test_clients_in_two_pairs_end_both(servers: Servers, flavour: str, name: str) -> None:
    """Each pair notices that the other one has closed its clients."""
    is_sync = flavour == "sync"
    text = servers.secondary.connection_string
    management = azure.servicebus.management if is_sync else azure.servicebus.aio.management
    manager = management.ServiceBusAdministrationClient.from_connection_string(
        text, transport=PlainTransport() if is_sync else AsyncPlainTransport()
    )
    primary, secondary = primary_of(flavour, servers), client_of(flavour, text)
    pairs = [
        await pair_servers(
            flavour,
            primary,
            SendAvailabilityPairedNamespaceOptions(
                manager, secondary, 1, primary_name=f"{name}-{number}", enable_syphon=True
            ),
        )
        for number in range(2)
    ]
    other, newer = pairs
    await newer.close()
    assert not other.sdk.status().syphon_running
    with pytest.raises(ValueError, match="closed"):
        other.sdk.get_queue_sender("orders")
    await other.close()
    assert [pair.events for pair in pairs] == [[], []]
    await (asyncio.to_thread(manager.close) if is_sync else manager.close())
