"""Server-busy means ten seconds of quiet: what clients send meanwhile is counted at the server.

An entity is throttled for 15 s: who keeps quiet is refused twice, at 0 and 10 s, and served at 20.
All clients have the SDK's default retries unless the docs say otherwise, and wait at the same time.
"""

import asyncio
import datetime as dt
import re
import urllib.request
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusServerBusyError

from tests.interop.administration import connect
from tests.interop.pairs import Servers, open_pair, run_servers, until
from tests.interop.sdk import open_client, receive_one
from twinbus.pairing.events import State, SyphonResting
from twinbus.pairing.rests import BUSY_REST_S
from twinbus.testing.server import ServerProcess

BUSY_S: Final = 15
REFUSALS: Final = 2
FOR_GOOD: Final = 3600
SENDS_MAX: Final = 3  # of a pair, then it raises
ADVISED: Final = {"retry_mode": "fixed", "retry_backoff_factor": 10}  # operating/throttling.md
FLAVOURS: Final = ("sync", "async")
THREADS: Final = 64

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.proves("A-2", "P-8"),
    pytest.mark.feature("available.throttling"),
]

Use = Callable[[Any], Awaitable[Any]]  # a sender


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    arguments = ["--open-metrics", "--brokers", "2", "--log-level", "info"]
    with run_servers(tmp_path_factory.mktemp("busy"), arguments=arguments) as both:
        yield both


def refused(server: ServerProcess, queue: str) -> int:
    """How many requests about the queue the server has answered with server-busy."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
        text = answer.read().decode()
    found = re.findall(r"^servicebus_throttled_requests_total{(.*)} (\d+)$", text, re.MULTILINE)
    return sum(int(count) for labels, count in found if f'entity="{queue}"' in labels)


def throttled(servers: Servers, queue: str, seconds: int, **settings: Any) -> str:
    with connect(servers.primary) as admin:
        admin.create_queue(queue, **settings)
    servers.faults.add({"kind": "throttle", "entity": queue, "duration_s": seconds})
    return queue


async def together(waiting: list[Coroutine[Any, Any, None]]) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    errors = await asyncio.gather(*waiting, return_exceptions=True)
    assert [error for error in errors if error is not None] == []


# --- a pair ---------------------------------------------------------------------------------------


async def send_one(sender: Any) -> None:
    await sender.send_messages(ServiceBusMessage("one", partition_key="k"))


async def send_list(sender: Any) -> None:
    await sender.send_messages([ServiceBusMessage(text, partition_key="k") for text in "ab"])


async def send_free(sender: Any) -> None:
    """Any partition will do, but all of them are busy."""
    await sender.send_messages([ServiceBusMessage(text) for text in "ab"])


async def schedule(sender: Any) -> None:
    later = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
    await sender.schedule_messages(ServiceBusMessage("later"), later)


@pytest.mark.proves("A-2", "P-8")
@pytest.mark.feature("pairing.failover")
async def test_a_pair_keeps_quiet(servers: Servers) -> None:
    """One message, a list, a schedule, partitions: each is refused twice, then taken."""

    async def wait(flavour: str, kind: str, use: Use, warm: bool = False, **settings: Any) -> None:
        queue = f"pair-{flavour}-{kind}"
        with connect(servers.primary) as admin:
            admin.create_queue(queue, **settings)
        async with open_pair(
            flavour, servers, name=flavour, primary_options={}, client_options={}
        ) as pair:
            sender = pair.sender(queue)
            if warm:  # its link is open, and it goes the shortest way
                await send_one(sender)
            servers.faults.add({"kind": "throttle", "entity": queue, "duration_s": BUSY_S})
            await use(sender)
            assert pair.state(queue) is State.HEALTHY
        assert refused(servers.primary, queue) == REFUSALS

    waiting: list[Coroutine[Any, Any, None]] = []
    for flavour in FLAVOURS:
        waiting += [
            wait(flavour, "one", send_one),
            wait(flavour, "warm", send_one, warm=True),
            wait(flavour, "list", send_list),
            wait(flavour, "schedule", schedule),
            wait(flavour, "partitioned", send_list, enable_partitioning=True),
            wait(flavour, "spread", send_free, enable_partitioning=True),
        ]
    await together(waiting)


@pytest.mark.proves("A-2", "P-8")
@pytest.mark.feature("pairing.failover")
async def test_a_pair_gives_up_after_two_pauses(servers: Servers) -> None:
    """By the policy `legacy` it says so at once."""

    async def wait(flavour: str, policy: str, sends: int) -> None:
        queue = throttled(servers, f"patience-{flavour}-{policy}", FOR_GOOD)
        async with open_pair(
            flavour, servers, name=flavour, policy=policy, primary_options={}, client_options={}
        ) as pair:
            with pytest.raises(ServiceBusServerBusyError):
                await send_one(pair.sender(queue))
            assert refused(servers.primary, queue) == sends

    policies = {"documented": SENDS_MAX, "legacy": 1}
    await together([wait(each, *policy) for each in FLAVOURS for policy in policies.items()])


@pytest.mark.proves("A-2", "P-14")
@pytest.mark.feature("pairing.syphon")
async def test_a_syphon_keeps_quiet(servers: Servers) -> None:
    """Towards a destination that is busy, and towards a backlog queue that is.

    A pair whose backlog is busy can be made: its syphon comes again.
    """

    async def wait(flavour: str) -> None:
        name = f"syphon-{flavour}"
        servers.create_queue(name)
        options: dict[str, Any] = {"name": name, "backlog_queue_count": 1}
        options |= {"primary_options": {}, "client_options": {}}
        fault = servers.faults.add({"kind": "refuse-sends", "entity": name})
        async with open_pair(flavour, servers, failover_interval=0, **options) as pair:
            await send_one(pair.sender(name))
        servers.faults.clear(fault["id"])
        servers.faults.add({"kind": "throttle", "entity": name})
        [backlog] = servers.backlog(name)
        fault = servers.secondary_faults.add({"kind": "throttle", "entity": backlog})
        async with open_pair(flavour, servers, enable_syphon=True, **options) as pair:
            resting = await pair.sees(SyphonResting)
            assert (resting.path, resting.rest_s) == (backlog, BUSY_REST_S)
            servers.secondary_faults.clear(fault["id"])
            await until(lambda: len(pair.seen(SyphonResting)) > 1, "nothing was sent on")
            resting = pair.seen(SyphonResting)[-1]
            assert (resting.path, resting.rest_s) == (name, BUSY_REST_S)
            assert refused(servers.primary, name) == 1

    await together([wait(flavour) for flavour in FLAVOURS])


# --- the bare SDK ---------------------------------------------------------------------------------


@pytest.mark.proves("A-2")
async def test_the_sdk_keeps_quiet_as_configured(servers: Servers) -> None:
    """With the settings that the docs give: sending, scheduling and receiving."""

    async def send(flavour: str, kind: str, use: Use) -> None:
        queue = throttled(servers, f"sdk-{flavour}-{kind}", BUSY_S)
        client = open_client(flavour, servers.primary.connection_string, **ADVISED)
        async with client.sender(queue) as sender:
            await use(sender)
        await client.close()
        assert refused(servers.primary, queue) == REFUSALS

    async def receive(flavour: str) -> None:
        queue = f"sdk-{flavour}-receive"
        servers.create_queue(queue)
        client = open_client(flavour, servers.primary.connection_string, **ADVISED)
        async with client.sender(queue) as sender:
            await send_one(sender)
        fault = servers.faults.add({"kind": "throttle", "entity": queue, "duration_s": BUSY_S})
        async with client.receiver(queue) as receiver:
            await receiver.complete_message(await receive_one(receiver))
        await client.close()
        assert len(re.findall(f"link refused: .* Fault {fault['id']} ", servers.primary.log)) == 2

    waiting: list[Coroutine[Any, Any, None]] = []
    for flavour in FLAVOURS:
        waiting += [send(flavour, "one", send_one), send(flavour, "schedule", schedule)]
        waiting.append(receive(flavour))
    await together(waiting)
