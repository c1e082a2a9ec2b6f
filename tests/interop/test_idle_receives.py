"""What waiting for messages costs when the server detaches idle links in the middle of it.

A syphon polls for 15 minutes, idle links are detached after 10.  Here both are fifty times shorter:
18 s and 12 s.  The SDK is left with its own retries: it attaches again and waits on.  Everybody
waits at the same time.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import azure.servicebus
import azure.servicebus.aio
import pytest

from tests.interop.administration import connect
from tests.interop.pairs import Servers, open_pair, run_servers, until
from tests.interop.sdk import open_client
from twinbus.client.meter import MeterClient
from twinbus.limits import LINK_IDLE_S_MAX
from twinbus.metered import RECEIVE
from twinbus.pairing import syphon
from twinbus.testing.server import ServerProcess

IDLE_S: Final = 12.0
POLL_S: Final = 18.0
POLLS: Final = 3
THREADS: Final = 32
BACKLOG_QUEUES: Final = 2

pytestmark = [pytest.mark.asyncio, pytest.mark.proves("C-2"), pytest.mark.feature("ours.metering")]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    arguments = ["--link-idle", str(IDLE_S), "--log-level", "debug", "--brokers", "2"]
    with run_servers(tmp_path_factory.mktemp("idle"), arguments=arguments) as both:
        yield both


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many receives of the SDK were begun, by queue."""
    found: Counter[str] = Counter()
    for kind in (azure.servicebus.ServiceBusReceiver, azure.servicebus.aio.ServiceBusReceiver):
        monkeypatch.setattr(kind, "receive_messages", counted(kind.receive_messages, found))
    return found


def counted(receive_messages: Any, found: Counter[str]) -> Any:
    def receive(receiver: Any, *arguments: Any, **options: Any) -> Any:
        found[receiver.entity_path] += 1
        return receive_messages(receiver, *arguments, **options)

    return receive


def received(server: ServerProcess, queue: str) -> tuple[int, int]:
    """What was metered: receives, and how many of them were empty."""
    lines = MeterClient(server.connection_string).read()
    [line] = [each for each in lines if (each.entity, each.kind) == (queue, RECEIVE)]
    return line.operations, line.empty


def attached(server: ServerProcess, queue: str) -> int:
    """How many links were attached to the queue, by the server's log."""
    lines = [line for line in server.log.splitlines() if "link attached" in line]
    return len([line for line in lines if queue in line])


async def poll_by_syphon(flavour: str, servers: Servers, begun: Counter[str]) -> None:
    async with open_pair(
        flavour,
        servers,
        name=flavour,
        backlog_queue_count=BACKLOG_QUEUES,
        enable_syphon=True,
        primary_options={},
        client_options={},
    ):
        queues = servers.backlog(flavour)
        await until(lambda: min(begun[each] for each in queues) > POLLS, "no polls")
    for queue in queues:
        assert received(servers.secondary, queue) == (begun[queue], begun[queue])
        assert attached(servers.secondary, queue) > POLLS, "nothing was detached"


async def poll_by_sdk(
    flavour: str, servers: Servers, kind: str, cost: int = POLLS, **options: Any
) -> None:
    """The SDK's own receiver, which leaves its credit behind when a receive ends."""
    queue = f"{flavour}-{kind}"
    with connect(servers.primary) as admin:
        admin.create_queue(queue, enable_partitioning=kind == "partitioned")
    client = open_client(flavour, servers.primary.connection_string)
    async with client.receiver(queue, **options) as receiver:
        for _ in range(POLLS):
            assert await receiver.receive_messages(10, max_wait_time=POLL_S) == []
    await client.close()
    assert received(servers.primary, queue) == (cost, cost)
    assert attached(servers.primary, queue) > POLLS, "nothing was detached"


@pytest.mark.proves("C-2", "P-14")
@pytest.mark.feature("pairing.syphon")
async def test_waiting_costs_one_receive_a_poll(
    servers: Servers, begun: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert IDLE_S / POLL_S == LINK_IDLE_S_MAX / syphon.POLL_S
    monkeypatch.setattr(syphon, "POLL_S", POLL_S)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    waiting: list[Coroutine[Any, Any, None]] = []
    for flavour in ("sync", "async"):
        waiting.append(poll_by_syphon(flavour, servers, begun))
        waiting += [poll_by_sdk(flavour, servers, kind) for kind in ("plain", "partitioned")]
        # Credit that is granted once and for all is one receive, however long.
        waiting.append(poll_by_sdk(flavour, servers, "prefetching", cost=1, prefetch_count=5))
    errors = await asyncio.gather(*waiting, return_exceptions=True)
    assert [error for error in errors if error is not None] == []
