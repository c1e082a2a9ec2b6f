"""A pair takes nothing away from partitions: messages spread, and evade what refuses them.

Everything has its default settings: the SDK tries again by itself.  An entity that fails over does
so at once, so that any error of a partition would show.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError, ServiceBusQuotaExceededError

from tests.interop.outage import KEYS
from tests.interop.pairs import Pair, Servers, open_pair, run_servers, take, texts, until
from tests.interop.sdk import open_client
from twinbus.entities.partitions import PARTITION_COUNT, partition_of
from twinbus.pairing.events import EntityFailing, State, SyphonProgress

BROKERS: Final = 2
BAD: Final = 5  # the partition that something is wrong with
ROUNDS: Final = 4
COUNT: Final = ROUNDS * PARTITION_COUNT
EVEN: Final = dict.fromkeys(range(PARTITION_COUNT), ROUNDS)
LARGE: Final = bytes(60_000)  # of these a partition takes seventeen

pytestmark = [pytest.mark.asyncio, pytest.mark.proves("P-20"), pytest.mark.feature("pairing.send")]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    # Without limits a partition may have as little as 1 MB.
    arguments = ["--brokers", str(BROKERS), "--limits", "unlimited"]
    with run_servers(tmp_path_factory.mktemp("partitions"), arguments=arguments) as both:
        yield both


@pytest.fixture
def queue(servers: Servers, request: pytest.FixtureRequest) -> Iterator[str]:
    name = str(request.node.name).replace("[", "-").replace("]", "")
    servers.create_queue(name, enable_partitioning=True, max_size_in_megabytes=1)
    yield name
    servers.faults.clear_all()


@pytest.fixture(params=["sync", "async"])
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture
async def pair(servers: Servers, flavour: str) -> AsyncIterator[Pair]:
    async with open_impatient(servers, flavour) as opened:
        yield opened


def open_impatient(servers: Servers, flavour: str, **options: Any) -> Any:
    given = {"failover_interval": 0, "primary_options": {}, "client_options": {}, "name": flavour}
    return open_pair(flavour, servers, **{**given, **options})


async def send(sender: Any, count: int = COUNT) -> list[str]:
    sent = [str(number) for number in range(count)]
    for text in sent:
        await sender.send_messages(ServiceBusMessage(text))
    return sent


async def arrived(servers: Servers, queue: str, count: int) -> tuple[list[str], Counter[int]]:
    """The texts, and how many messages there were in each partition."""
    messages = await asyncio.to_thread(take, servers.primary, queue, count)
    spread = Counter(partition_of(message.sequence_number) for message in messages)
    return sorted(texts(messages), key=int), spread


def take_away(servers: Servers, queue: str, kind: str, partition: int) -> Any:
    fault = servers.faults.add({"kind": kind, "entity": queue, "partition": [partition]})
    return fault["id"]


# --- everything is well ---------------------------------------------------------------------------


async def test_messages_spread_evenly(servers: Servers, pair: Pair, queue: str) -> None:
    sent = await send(pair.sender(queue))
    assert await arrived(servers, queue, COUNT) == (sent, EVEN)


async def test_lists_spread_evenly_each_in_one_place(
    servers: Servers, pair: Pair, queue: str
) -> None:
    sender = pair.sender(queue)
    for first in range(0, COUNT, ROUNDS):
        texts_of_list = [str(first + number) for number in range(ROUNDS)]
        await sender.send_messages([ServiceBusMessage(text) for text in texts_of_list])
    _, spread = await arrived(servers, queue, COUNT)
    assert spread == EVEN


@pytest.mark.feature("pairing.syphon")
async def test_messages_spread_evenly_by_way_of_the_backlog(
    servers: Servers, flavour: str, queue: str
) -> None:
    fault = servers.faults.add({"kind": "refuse-sends", "entity": queue})
    async with open_impatient(servers, flavour, ping_primary_interval=600) as pair:
        sent = await send(pair.sender(queue))
        assert pair.state(queue) is State.FAILED_OVER
    servers.faults.clear(fault["id"])
    async with open_impatient(servers, flavour, enable_syphon=True):
        assert await arrived(servers, queue, COUNT) == (sent, EVEN)


# --- something is wrong with a partition ----------------------------------------------------------


@pytest.mark.parametrize("kind", ["partition-down", "refuse-sends", "throttle"])
async def test_a_partition_that_refuses_is_evaded(
    servers: Servers, pair: Pair, queue: str, kind: str
) -> None:
    sender = pair.sender(queue)
    take_away(servers, queue, kind, BAD)
    begun_s = time.monotonic()
    sent = await send(sender)
    assert time.monotonic() - begun_s < 9.0, "nobody waits for a partition"
    assert pair.state(queue) is State.HEALTHY
    assert pair.seen(EntityFailing) == []
    servers.faults.clear_all()
    found, spread = await arrived(servers, queue, COUNT)
    assert found == sent
    assert set(spread) == set(range(PARTITION_COUNT)) - {BAD}
    assert max(spread.values()) - min(spread.values()) <= 1


async def test_a_full_partition_is_evaded(servers: Servers, pair: Pair, queue: str) -> None:
    client = open_client("async", servers.primary.connection_string)
    async with client.sender(queue) as bare:
        full = await fill(bare, partition_key=KEYS[BAD])
    await client.close()
    sender = pair.sender(queue)
    for _ in range(2 * PARTITION_COUNT):
        await sender.send_messages(ServiceBusMessage(LARGE))
    assert pair.seen(EntityFailing) == []
    count = full + 2 * PARTITION_COUNT
    messages = await asyncio.to_thread(take, servers.primary, queue, count)
    spread = Counter(partition_of(message.sequence_number) for message in messages)
    assert spread.pop(BAD) == full
    assert set(spread.values()) == {2, 3}


async def test_a_pair_gets_as_much_in_as_the_sdk(servers: Servers, flavour: str) -> None:
    counts: list[int] = []
    for kind in ("bare", "paired"):
        queue = f"filled-{kind}-{flavour}"
        servers.create_queue(queue, enable_partitioning=True, max_size_in_megabytes=1)
        if kind == "bare":
            client = open_client(flavour, servers.primary.connection_string)
            async with client.sender(queue) as sender:
                counts.append(await fill(sender))
            await client.close()
        else:
            async with open_impatient(servers, flavour, failover_interval=60) as pair:
                counts.append(await fill(pair.sender(queue)))
                assert pair.state(queue) is State.FAILING
    assert counts[0] == counts[1] > 10 * PARTITION_COUNT


async def fill(sender: Any, **properties: Any) -> int:
    """How many messages there is room for."""
    count = 0
    try:
        while True:
            await sender.send_messages(ServiceBusMessage(LARGE, **properties))
            count += 1
    except ServiceBusQuotaExceededError:
        return count


@pytest.mark.feature("pairing.syphon")
async def test_a_syphon_goes_on_past_a_partition_that_is_down(
    servers: Servers, flavour: str, queue: str
) -> None:
    """What it holds stays locked, and comes again: a backlog queue of the test's own is quick."""
    options: dict[str, Any] = {"name": queue, "backlog_queue_count": 1}
    servers.secondary.create_queue(f"{queue}/x-servicebus-transfer/0", lock_duration="PT5S")
    fault = servers.faults.add({"kind": "refuse-sends", "entity": queue})
    async with open_impatient(servers, flavour, ping_primary_interval=600, **options) as pair:
        sent = await send(pair.sender(queue))
    servers.faults.clear(fault["id"])
    down = take_away(servers, queue, "partition-down", BAD)
    async with open_impatient(servers, flavour, enable_syphon=True, **options) as pair:
        await until(lambda: moved(pair) == COUNT - ROUNDS, "the others are not moved")
        servers.faults.clear(down)
        await until(lambda: moved(pair) == COUNT, "what was held is not moved")
    assert await arrived(servers, queue, COUNT) == (sent, EVEN)


def moved(pair: Pair) -> int:
    return sum(event.moved for event in pair.seen(SyphonProgress))


# --- a part of the server dies --------------------------------------------------------------------


@pytest.mark.proves("P-20", "E-15")
@pytest.mark.feature("pairing.syphon")
async def test_a_broker_that_dies_costs_nothing(servers: Servers, flavour: str, queue: str) -> None:
    """What was under way keeps its partition; what comes after evades those of the broker."""
    count = 4 * COUNT
    async with open_impatient(servers, flavour, enable_syphon=True) as pair:
        sender = pair.sender(queue)
        for number in range(count):
            if number in (COUNT, 2 * COUNT):
                servers.faults.add({"kind": "kill-broker", "broker": number // COUNT - 1})
            await send_until_taken(sender, ServiceBusMessage(str(number)))
        found, spread = await arrived(servers, queue, count)
    assert found == [str(number) for number in range(count)]
    assert set(spread) == set(range(PARTITION_COUNT))


async def send_until_taken(sender: Any, message: ServiceBusMessage) -> None:
    """As an application does: the same object again."""
    for _ in range(20):
        try:
            await sender.send_messages(message)
        except ServiceBusError:
            await asyncio.sleep(0.5)
        else:
            return
    pytest.fail("nobody takes it")
