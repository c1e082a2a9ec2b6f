"""The SDK's own clients of a pair: bare senders warn, and a pair that has faulted takes them along.

Two real servers, both flavours, the SDK's default retries.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from tests.interop.pairs import (
    Pair,
    Servers,
    open_pair,
    pair_servers,
    primary_of,
    run_servers,
    take,
    texts,
)
from twinbus.pairing import SendAvailabilityPairedNamespaceOptions
from twinbus.pairing.errors import PairFaultedError
from twinbus.pairing.events import PairFaulted

pytestmark = pytest.mark.asyncio

DEFAULTS: dict[str, Any] = {"primary_options": {}, "client_options": {}}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with run_servers(tmp_path_factory.mktemp("clients")) as both:
        yield both


@pytest.fixture
def queue(servers: Servers, name: str) -> str:
    return servers.create_queue(name)


@asynccontextmanager
async def paired(flavour: str, servers: Servers, name: str, primary: Any) -> AsyncIterator[Pair]:
    options = SendAvailabilityPairedNamespaceOptions.from_connection_string(
        servers.secondary.connection_string, 1, primary_name=name, enable_syphon=True
    )
    pair = await pair_servers(flavour, primary, options)
    try:
        yield pair
    finally:
        await pair.close()


async def close(flavour: str, client: Any) -> None:
    await (asyncio.to_thread(client.close) if flavour == "sync" else client.close())


# --- bare senders -----------------------------------------------------------------------------


@pytest.mark.proves("P-3", "P-6")
@pytest.mark.feature("pairing.send")
async def test_a_sender_of_the_bare_primary_client_warns_once(
    servers: Servers, flavour: str, name: str, queue: str
) -> None:
    """In words, at the line that asks for it; the sender works, and nothing is left behind."""
    primary = primary_of(flavour, servers)
    topic = servers.create_topic(f"{name}-topic")
    primary.get_queue_sender(queue)  # not paired yet
    async with paired(flavour, servers, name, primary) as pair:
        await pair.sender(queue).send_messages(ServiceBusMessage("covered"))
        pair.topic_sender(topic)
        pair.receiver(queue)
        with pytest.warns(UserWarning, match="not covered by the pair") as caught:
            bare = primary.get_queue_sender(queue)
        primary.get_queue_sender(queue)  # a second warning would be an error here
        primary.get_topic_sender(topic)
        [warning] = caught
        assert warning.filename == __file__
        sending: Any = bare.send_messages, ServiceBusMessage("bare")
        await (asyncio.to_thread(*sending) if flavour == "sync" else sending[0](sending[1]))
        # Also what the pair itself opens, for pings and for the syphon, is not warned of.
        pair.sdk.force_failover(queue)
        await pair.sender(queue).send_messages(ServiceBusMessage("by way of the backlog"))
        arrived = await asyncio.to_thread(take, servers.primary, queue, 3)
        assert sorted(texts(arrived)) == ["bare", "by way of the backlog", "covered"]
    assert not {"get_queue_sender", "get_topic_sender", "close"} & set(vars(primary))
    primary.get_queue_sender(queue)  # not paired any more


@pytest.mark.proves("P-6")
async def test_a_client_of_two_pairs_warns_once(
    servers: Servers, flavour: str, name: str, queue: str
) -> None:
    """Neither takes the other's senders for bare ones."""
    primary = primary_of(flavour, servers)
    async with (
        paired(flavour, servers, f"{name}-1", primary) as one,
        paired(flavour, servers, f"{name}-2", primary) as other,
    ):
        for pair in (one, other):  # a warning would be an error here
            await pair.sender(queue).send_messages(ServiceBusMessage("covered"))
        with pytest.warns(UserWarning, match="not covered") as caught:
            primary.get_queue_sender(queue)
        assert len(caught) == 1
        primary.get_queue_sender(queue)
    assert not {"get_queue_sender", "get_topic_sender", "close"} & set(vars(primary))


# --- the end ----------------------------------------------------------------------------------


async def fault(pair: Pair, reason: str, side: str | None = None) -> None:
    faulting = pair.sdk.fault
    await (
        asyncio.to_thread(faulting, reason, side)
        if pair.flavour == "sync"
        else faulting(reason, side)
    )


@pytest.mark.proves("P-17")
@pytest.mark.feature("pairing.coupling")
@pytest.mark.parametrize("side", [None, "secondary"])
async def test_a_faulted_pair_refuses_by_all_its_clients(
    servers: Servers, flavour: str, name: str, queue: str, side: str | None
) -> None:
    """With the reason.  The SDK's clients would open new links even after they were closed."""
    async with open_pair(flavour, servers, name=name, **DEFAULTS) as pair:
        sender = pair.sender(queue)
        await sender.send_messages(ServiceBusMessage("one"))
        await fault(pair, "the key was withdrawn", side)
        await pair.sees(PairFaulted)
        sdk = pair.sdk
        refusing: list[Callable[[], Any]] = [sdk.force_failover, sdk.force_failback]
        for client in (sdk, sdk.primary, sdk.secondary):
            refusing += [
                partial(client.get_queue_sender, queue),
                partial(client.get_topic_sender, queue),
                partial(client.get_queue_receiver, queue),
                partial(client.get_subscription_receiver, queue, "all"),
            ]
        for refuse in refusing:
            with pytest.raises(PairFaultedError, match="the key was withdrawn"):
                refuse()
        for refuse in (
            lambda: sender.send_messages(ServiceBusMessage("two")),
            lambda: sender.schedule_messages(ServiceBusMessage("two"), None),
            lambda: sender.cancel_scheduled_messages(1),
            sender.create_message_batch,
        ):
            with pytest.raises(PairFaultedError, match="the key was withdrawn"):
                await refuse()
        with pytest.raises(PairFaultedError, match="Make new clients"):
            async with paired(flavour, servers, name, sdk.primary):
                raise AssertionError("a faulted client was paired again")
        assert "the key was withdrawn" in sdk.status().fault
    assert texts(take(servers.primary, queue)) == ["one"]


@pytest.mark.proves("P-17")
async def test_a_closed_pair_gives_no_receivers_and_its_clients_are_free(
    servers: Servers, flavour: str, name: str, queue: str
) -> None:
    """Closed is not faulted: who has made the client may use it again."""
    primary = primary_of(flavour, servers)
    async with paired(flavour, servers, name, primary) as pair:
        pass
    for get in (pair.sdk.get_queue_sender, pair.sdk.get_queue_receiver):
        with pytest.raises(ValueError, match="already been closed"):
            get(queue)
    async with paired(flavour, servers, name, primary) as again:
        await again.sender(queue).send_messages(ServiceBusMessage("again"))
    assert texts(take(servers.primary, queue)) == ["again"]
