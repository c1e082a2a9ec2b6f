"""Paired namespaces with two real servers and the official SDK, both flavours.

Clauses to the letter, and what ends a pair, are in test_pairing_promises.py.
"""

import asyncio
import datetime as dt
import os
import re
import signal
import threading
from collections.abc import Iterator
from typing import Any

import azure.servicebus
import azure.servicebus.aio
import azure.servicebus.aio.management
import azure.servicebus.management
import pytest
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusError,
)

from tests.interop.administration import AsyncPlainTransport, PlainTransport
from tests.interop.pairs import (
    Pair,
    Servers,
    client_of,
    open_pair,
    pair_servers,
    primary_of,
    run_servers,
    take,
    take_subscription,
    texts,
    until,
)
from tests.interop.sdk import sync_only
from twinbus.limits import MESSAGE_SIZE_BYTES_MAX
from twinbus.pairing import SendAvailabilityPairedNamespaceOptions
from twinbus.pairing.errors import BacklogUnavailableError, PairFaultedError, PairingError
from twinbus.pairing.events import (
    BacklogQueueLost,
    EntityFailedOver,
    EntityFailing,
    EntityRecovered,
    PairFaulted,
    State,
)

pytestmark = [pytest.mark.proves("P-1", "P-17"), pytest.mark.asyncio]


@pytest.fixture(scope="module")
def shared_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with run_servers(tmp_path_factory.mktemp("pairing")) as servers:
        yield servers


@pytest.fixture
def servers(shared_servers: Servers) -> Iterator[Servers]:
    """Whatever a test does to them, the next one finds both well."""
    yield shared_servers
    for server in (shared_servers.primary, shared_servers.secondary):
        if not server.running:
            server.restart()
    shared_servers.faults.clear_all()
    shared_servers.secondary_faults.clear_all()


@pytest.fixture
def queue(servers: Servers, name: str) -> str:
    return servers.create_queue(name)


def refuse_sends(servers: Servers, entity: str) -> None:
    servers.faults.add({"kind": "refuse-sends", "entity": entity})


def backlog_texts(servers: Servers, name: str) -> list[str]:
    """What is in the backlog queues of a pair, taken out of them."""
    return [text for each in servers.backlog(name) for text in texts(take(servers.secondary, each))]


def wrong_key(connection_string: str) -> str:
    return re.sub("SharedAccessKey=[^;]+", "SharedAccessKey=d3Jvbmc=", connection_string)


def our_threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("twinbus-pairing")]


# --- setting up -------------------------------------------------------------------------------


@pytest.mark.proves("P-1", "P-4")
@pytest.mark.feature("pairing.backlog")
async def test_everything_is_set_up_when_it_returns(
    servers: Servers, flavour: str, name: str
) -> None:
    """Backlog queues made as they must be, the syphon running."""
    async with open_pair(
        flavour, servers, name=name, backlog_queue_count=3, enable_syphon=True
    ) as pair:
        expected = [f"{name}/x-servicebus-transfer/{index}" for index in range(3)]
        assert servers.backlog(name) == expected
        assert pair.sdk.options.backlog_queue_count == 3
        assert pair.sdk.status().syphon_running
        assert list(pair.sdk.status().backlog_queues) == expected
        made = servers.secondary.admin.get_queue(expected[0]).properties
        assert made["MaxSizeInMegabytes"] == "5120"
        assert made["MaxDeliveryCount"] == str(2**31 - 1)
        assert made["LockDuration"] == "PT1M"
        assert made["DeadLetteringOnMessageExpiration"] == "true"
    assert not pair.sdk.status().syphon_running
    assert our_threads() == []


@pytest.mark.proves("P-5")
@pytest.mark.feature("pairing.backlog")
async def test_queues_that_are_there_are_used_as_they_are(
    servers: Servers, flavour: str, name: str
) -> None:
    """Also those beyond the count, which are left alone."""
    paths = [f"{name}/x-servicebus-transfer/{index}" for index in (0, 1, 7)]
    for path in (paths[0], paths[2]):
        servers.secondary.create_queue(path, lock_duration="PT5S")
    async with open_pair(flavour, servers, name=name, backlog_queue_count=2) as pair:
        assert servers.backlog(name) == paths
        assert list(pair.sdk.status().backlog_queues) == paths[:2]
        found = [servers.secondary.admin.get_queue(path).properties for path in paths]
        assert [each["LockDuration"] for each in found] == ["PT5S", "PT1M", "PT5S"]


def options_for(text: str, **settings: Any) -> SendAvailabilityPairedNamespaceOptions:
    return SendAvailabilityPairedNamespaceOptions.from_connection_string(
        text, 1, manager_options={"retry_total": 0}, client_options={"retry_total": 0}, **settings
    )


@pytest.mark.proves("P-1")
async def test_a_namespace_cannot_be_paired_with_itself(servers: Servers, flavour: str) -> None:
    """Bad input."""
    text = servers.primary.connection_string
    with pytest.raises(ValueError, match="cannot be paired with itself"):
        await pair_servers(flavour, text, options_for(text))


@pytest.mark.proves("P-1")
async def test_a_credential_that_may_not_manage_is_raised(
    servers: Servers, flavour: str, name: str
) -> None:
    """The SDK's own error, and nothing of the pair is left."""
    options = options_for(wrong_key(servers.secondary.connection_string), primary_name=name)
    with pytest.raises(ClientAuthenticationError):
        await pair_servers(flavour, servers.primary.connection_string, options)
    assert our_threads() == []


@pytest.mark.proves("P-1")
async def test_a_credential_that_may_not_send_is_raised(
    servers: Servers, flavour: str, name: str
) -> None:
    """It is not found out in the outage.  The caller's own clients stay open."""
    good = servers.secondary.connection_string
    is_sync = flavour == "sync"
    management = azure.servicebus.management if is_sync else azure.servicebus.aio.management
    manager = management.ServiceBusAdministrationClient.from_connection_string(
        good, transport=PlainTransport() if is_sync else AsyncPlainTransport()
    )
    secondary = client_of(flavour, wrong_key(good), retry_total=0)
    primary = primary_of(flavour, servers)
    options = SendAvailabilityPairedNamespaceOptions(manager, secondary, 1, primary_name=name)
    with pytest.raises(ServiceBusAuthenticationError):
        await pair_servers(flavour, primary, options)
    assert our_threads() == []
    assert "close" not in vars(primary)
    for client in (manager, secondary, primary):
        await (asyncio.to_thread(client.close) if is_sync else client.close())


@pytest.mark.proves("P-1")
async def test_a_secondary_that_cannot_be_reached_is_raised(
    servers: Servers, flavour: str, name: str
) -> None:
    """The SDK's own error."""
    nobody = re.sub(r":\d+", ":9", servers.secondary.connection_string, count=1)
    with pytest.raises(ServiceRequestError):
        await pair_servers(
            flavour, servers.primary.connection_string, options_for(nobody, primary_name=name)
        )
    assert our_threads() == []


@pytest.mark.proves("P-1", "P-9")
async def test_a_pair_is_made_while_the_primary_is_down(
    servers: Servers, flavour: str, name: str, queue: str
) -> None:
    """A sender can be entered, a batch made and sent, as if nothing were wrong."""
    servers.primary.kill()
    async with (
        open_pair(flavour, servers, name=name, failover_interval=0) as pair,
        pair.sender(queue) as sender,
    ):
        batch = await sender.create_message_batch()
        batch.add_message(ServiceBusMessage("one"))
        await sender.send_messages(batch)
        assert pair.state(queue) is State.FAILED_OVER
    assert backlog_texts(servers, name) == ["one"]


# --- a healthy primary ------------------------------------------------------------------------


@pytest.mark.proves("P-6")
@pytest.mark.feature("pairing.send")
async def test_a_healthy_primary_gets_everything(
    servers: Servers, flavour: str, name: str, queue: str
) -> None:
    """Every form of sending; the caller's objects stay as they are."""
    topic = servers.create_topic(f"{name}-topic")
    async with open_pair(flavour, servers, name=name) as pair:
        sender = pair.sender(queue)
        assert sender.entity_name == queue
        assert sender.fully_qualified_namespace == pair.sdk.primary.fully_qualified_namespace
        single = ServiceBusMessage("single", application_properties={"a": 1})
        await sender.send_messages(single)
        assert single.raw_amqp_message.delivery_annotations is None
        await sender.send_messages([])
        await sender.send_messages([ServiceBusMessage("first"), {"body": "second"}])
        batch = await sender.create_message_batch()
        batch.add_message(ServiceBusMessage("batched"))
        await sender.send_messages(batch)
        await pair.topic_sender(topic).send_messages(ServiceBusMessage("news"))
        found = take(servers.primary, queue, 4)
        assert texts(found) == ["single", "first", "second", "batched"]
        assert found[0].application_properties == {b"a": 1}
        assert texts(take_subscription(servers.primary, topic, 1)) == ["news"]
        assert pair.entity(queue).sent_to_primary == 4
        assert pair.events == []
    assert backlog_texts(servers, name) == []


@pytest.mark.proves("P-6")
@pytest.mark.feature("pairing.send")
async def test_scheduling_and_cancelling(
    servers: Servers, flavour: str, name: str, queue: str
) -> None:
    """What was scheduled in the backlog has no number to cancel it by."""
    later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    async with open_pair(flavour, servers, name=name, failover_interval=0) as pair:
        sender = pair.sender(queue)
        numbers = await sender.schedule_messages([ServiceBusMessage("never")] * 2, later)
        assert len(set(numbers)) == 2
        await sender.cancel_scheduled_messages(numbers)
        with pytest.raises(ServiceBusError):
            await sender.cancel_scheduled_messages(numbers[0])  # there is none any more
        pair.sdk.force_failover(queue)
        assert await sender.schedule_messages(ServiceBusMessage("later"), later) == [0]
        with pytest.raises(PairingError, match="cannot be cancelled"):
            await sender.cancel_scheduled_messages(0)
    assert backlog_texts(servers, name) == ["later"]


@pytest.mark.proves("P-16")
@pytest.mark.feature("pairing.send")
async def test_receivers_are_the_primarys_own(
    servers: Servers, flavour: str, name: str, queue: str
) -> None:
    """And they are closed with the pair."""
    module = azure.servicebus if flavour == "sync" else azure.servicebus.aio
    async with open_pair(flavour, servers, name=name) as pair:
        own = pair.sdk.get_queue_receiver(queue, max_wait_time=5)
        assert type(own) is module.ServiceBusReceiver
        assert own.fully_qualified_namespace == pair.sdk.primary.fully_qualified_namespace
        await pair.sender(queue).send_messages(ServiceBusMessage("one"))
        [message] = await pair.receiver(queue).receive_messages()
        assert texts([message]) == ["one"]
    with pytest.raises(ValueError, match="closed"):
        pair.sdk.get_queue_sender(queue)


# --- failing over -----------------------------------------------------------------------------


@pytest.mark.proves("P-7")
@pytest.mark.feature("pairing.failover")
async def test_failover_is_per_entity_and_after_the_interval(
    servers: Servers, flavour: str, name: str, queue: str
) -> None:
    """Until then the caller sees the error and has the message; no further send is needed."""
    other = servers.create_queue(f"{name}-other")
    refuse_sends(servers, queue)
    async with open_pair(flavour, servers, name=name, failover_interval=1) as pair:
        sender = pair.sender(queue)
        with pytest.raises(ServiceBusError):
            await sender.send_messages(ServiceBusMessage("refused"))
        assert pair.state(queue) is State.FAILING
        await pair.reaches(queue, State.FAILED_OVER)
        await sender.send_messages(ServiceBusMessage("kept"))
        await pair.sender(other).send_messages(ServiceBusMessage("other"))
        assert pair.state(other) is State.HEALTHY
        assert [type(event) for event in pair.events[:2]] == [EntityFailing, EntityFailedOver]
    assert backlog_texts(servers, name) == ["kept"]
    assert texts(take(servers.primary, other, 1)) == ["other"]


@pytest.mark.proves("P-7")
@pytest.mark.feature("pairing.failover")
async def test_a_send_that_succeeds_stops_the_timer(
    servers: Servers, flavour: str, name: str, queue: str
) -> None:
    refuse_sends(servers, queue)
    async with open_pair(flavour, servers, name=name, failover_interval=60) as pair:
        sender = pair.sender(queue)
        with pytest.raises(ServiceBusError):
            await sender.send_messages(ServiceBusMessage("one"))
        servers.faults.clear_all()
        await sender.send_messages(ServiceBusMessage("one"))
        assert pair.state(queue) is State.HEALTHY
        assert pair.entity(queue).failing_for_s is None
    assert texts(take(servers.primary, queue)) == ["one"]


@pytest.mark.proves("P-8")
@pytest.mark.feature("pairing.failover")
async def test_programming_errors_are_raised_and_fail_nothing_over(
    servers: Servers, flavour: str, name: str, queue: str
) -> None:
    """Not found, too large, wrong type; the sender is as good as before."""
    async with open_pair(flavour, servers, name=name, failover_interval=0) as pair:
        with pytest.raises(MessagingEntityNotFoundError):
            await pair.sender("nowhere").send_messages(ServiceBusMessage("one"))
        sender = pair.sender(queue)
        with pytest.raises(ValueError):
            await sender.send_messages(ServiceBusMessage(b"x" * 2 * MESSAGE_SIZE_BYTES_MAX))
        with pytest.raises(TypeError):
            await sender.send_messages(7)
        with pytest.raises(ValueError):
            await sender.send_messages(ServiceBusMessage("one"), timeout=0)
        await sender.send_messages(ServiceBusMessage("one"))
        assert pair.state("nowhere") is State.HEALTHY
        assert pair.state(queue) is State.HEALTHY
        assert pair.events == []
    assert texts(take(servers.primary, queue)) == ["one"]


@pytest.mark.proves("P-8")
@pytest.mark.feature("pairing.failover")
async def test_a_wrong_key_is_raised_and_fails_nothing_over(
    servers: Servers, flavour: str, name: str, queue: str
) -> None:
    """The client is misconfigured."""
    text = servers.secondary.connection_string
    options = options_for(text, primary_name=name, failover_interval=0)
    primary = client_of(flavour, wrong_key(servers.primary.connection_string), retry_total=0)
    pair = await pair_servers(flavour, primary, options)
    try:
        with pytest.raises(ServiceBusAuthenticationError):
            await pair.sender(queue).send_messages(ServiceBusMessage("one"))
        assert pair.state(queue) is State.HEALTHY
    finally:
        await pair.close()


@pytest.mark.proves("P-8")
@sync_only
@pytest.mark.feature("pairing.failover")
async def test_a_busy_primary_is_waited_for(
    servers: Servers, flavour: str, name: str, queue: str
) -> None:
    """After a pause it is sent again, and nothing fails over."""
    servers.faults.add({"kind": "throttle", "entity": queue, "duration_s": 3})
    async with open_pair(flavour, servers, name=name, failover_interval=0) as pair:
        await pair.sender(queue).send_messages(ServiceBusMessage("one"))
        assert pair.events == []
    assert texts(take(servers.primary, queue)) == ["one"]


@pytest.mark.proves("P-7", "P-9", "P-13")
@pytest.mark.feature("pairing.recovery")
async def test_killed_and_back_with_the_sdks_own_retries(
    servers: Servers, flavour: str, name: str, queue: str
) -> None:
    """Kill -9; the first ping that gets through brings back every sender."""
    retries = {"retry_backoff_factor": 0.1}  # three, as always, but soon
    async with open_pair(
        flavour, servers, name=name, failover_interval=0, primary_options=retries
    ) as pair:
        one, two = pair.sender(queue), pair.sender(queue)
        await one.send_messages(ServiceBusMessage("before"))
        await two.send_messages(ServiceBusMessage("before"))
        servers.primary.kill()
        await one.send_messages(ServiceBusMessage("during"))
        await two.send_messages([ServiceBusMessage("during"), ServiceBusMessage("during")])
        assert pair.entity(queue).sent_to_backlog == 3
        servers.primary.restart()
        await pair.sees(EntityRecovered)
        await one.send_messages(ServiceBusMessage("after"))
        await two.send_messages(ServiceBusMessage("after"))
        assert pair.state(queue) is State.HEALTHY
        assert pair.entity(queue).next_ping_in_s is None
    assert texts(take(servers.primary, queue)) == ["before"] * 2 + ["after"] * 2  # and no ping
    assert backlog_texts(servers, name) == ["during"] * 3


@pytest.mark.proves("P-7")
@pytest.mark.feature("pairing.failover")
async def test_a_primary_that_hangs_holds_nobody_longer_than_the_timeout(
    servers: Servers, flavour: str, name: str, queue: str
) -> None:
    """SIGSTOP, on an open link and on one that is only being opened."""
    async with open_pair(
        flavour, servers, name=name, backlog_queue_count=1, failover_interval=0
    ) as pair:
        used, new = pair.sender(queue), pair.sender(servers.create_queue(f"{name}-new"))
        await used.send_messages(ServiceBusMessage("before"))
        os.kill(servers.primary.pid, signal.SIGSTOP)
        try:
            await used.send_messages(ServiceBusMessage("one"), timeout=5)
            await new.send_messages(ServiceBusMessage("two"), timeout=5)
        finally:
            os.kill(servers.primary.pid, signal.SIGCONT)
        assert pair.entity(queue).sent_to_backlog == 1
        await pair.reaches(queue, State.RECOVERING)
    assert sorted(backlog_texts(servers, name)) == ["one", "two"]


# --- the backlog ------------------------------------------------------------------------------


@pytest.mark.proves("P-10")
@pytest.mark.feature("pairing.backlog")
async def test_a_backlog_queue_that_fails_leaves_the_rotation(
    servers: Servers, flavour: str, name: str, queue: str
) -> None:
    """For every sender; with none left the send fails and says so."""
    async with open_pair(flavour, servers, name=name, failover_interval=0) as pair:
        pair.sdk.force_failover(queue)
        bad, good = servers.backlog(name)
        servers.secondary_faults.add({"kind": "refuse-sends", "entity": bad})
        senders = [pair.sender(queue) for _ in range(8)]  # all of them on the good one: 1 in 256
        await asyncio.gather(*(each.send_messages(ServiceBusMessage("one")) for each in senders))
        [lost] = pair.seen(BacklogQueueLost)
        assert (lost.queue, lost.left) == (bad, 1)
        assert not pair.backlog_queue(bad).in_rotation
        servers.secondary_faults.add({"kind": "refuse-sends", "entity": good})
        with pytest.raises(BacklogUnavailableError, match="No backlog queue has taken"):
            await senders[0].send_messages(ServiceBusMessage("refused"))
        servers.secondary_faults.clear_all()
        await senders[0].send_messages(ServiceBusMessage("one"))
    assert backlog_texts(servers, name) == ["one"] * 9


# --- events, control, close -------------------------------------------------------------------


@pytest.mark.feature("pairing.failover", "pairing.events")
async def test_forced_over_and_back(servers: Servers, flavour: str, name: str, queue: str) -> None:
    """Events come in order, to callbacks and to readers, whose iteration ends with the pair."""
    async with open_pair(flavour, servers, name=name) as pair:
        reader = pair.sdk.events()
        pair.sdk.on_event(lambda event: event / 0)  # somebody's mistake: logged, nothing else
        sender = pair.sender(queue)
        pair.sdk.force_failover()
        await sender.send_messages(ServiceBusMessage("over"))
        assert pair.entity(queue).forced
        pair.sdk.force_failback()
        await sender.send_messages(ServiceBusMessage("back"))
        assert pair.state(queue) is State.HEALTHY
    if flavour == "sync":
        read = list(reader)
    else:
        read = [event async for event in reader]
    assert read == pair.events
    assert [type(event) for event in read] == [EntityFailedOver, EntityRecovered]
    assert backlog_texts(servers, name) == ["over"]
    assert texts(take(servers.primary, queue)) == ["back"]


@pytest.mark.proves("P-17")
@pytest.mark.feature("pairing.coupling")
@pytest.mark.parametrize("side", ["primary", "secondary"])
async def test_one_client_is_closed_and_its_partner_is_faulted(
    servers: Servers, flavour: str, name: str, queue: str, side: str
) -> None:
    async with open_pair(flavour, servers, name=name, enable_syphon=True) as pair:
        sender = pair.sender(queue)
        await sender.send_messages(ServiceBusMessage("one"))
        client = getattr(pair.sdk, side)
        await (asyncio.to_thread(client.close) if flavour == "sync" else client.close())
        fault = await pair.sees(PairFaulted)
        assert f"the {side} client has been closed" in fault.reason
        with pytest.raises(PairFaultedError, match=side):
            await sender.send_messages(ServiceBusMessage("two"))
        await until(lambda: not pair.sdk.status().syphon_running, "the syphon goes on")
        await until(lambda: our_threads() == [], "threads are left")


async def fault_client(pair: Pair, client: str, reason: str) -> None:
    faulting = pair.sdk.fault(reason, client)
    if faulting is not None:
        await faulting


@pytest.mark.proves("P-17")
@pytest.mark.feature("pairing.coupling")
async def test_one_client_faults_and_its_partner_is_faulted(
    servers: Servers, flavour: str, name: str, queue: str
) -> None:
    async with open_pair(flavour, servers, name=name) as pair:
        sender = pair.sender(queue)
        with pytest.raises(ValueError, match="tertiary"):
            await fault_client(pair, "tertiary", "there are two")
        await fault_client(pair, "secondary", "its key was withdrawn")
        await sender.send_messages(ServiceBusMessage("in the five seconds"))
        fault = await pair.sees(PairFaulted)
        assert "the secondary client has faulted: its key was withdrawn" in fault.reason
        with pytest.raises(PairFaultedError, match="withdrawn"):
            await sender.send_messages(ServiceBusMessage("too late"))


@pytest.mark.proves("P-17")
@pytest.mark.feature("pairing.coupling")
async def test_both_clients_closed_by_the_caller_end_the_pair(
    servers: Servers, flavour: str, name: str
) -> None:
    """Nobody is faulted."""
    async with open_pair(flavour, servers, name=name, enable_syphon=True) as pair:
        for client in (pair.sdk.primary, pair.sdk.secondary):
            await (asyncio.to_thread(client.close) if flavour == "sync" else client.close())
        assert not pair.sdk.status().syphon_running
        assert pair.events == []
