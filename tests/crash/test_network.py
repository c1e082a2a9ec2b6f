"""Connections that break, stall and crawl: clients do not know what happened, the server does."""

import asyncio
import random
from collections.abc import Callable

import pytest

from tests.crash.crashing import LOCK_DURATION_MS, QUEUES, assert_nothing_broken, sized
from twinbus.testing.checkers import History
from twinbus.testing.load import Load
from twinbus.testing.proxy import BadNetwork
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.asyncio

SEED = 20_261_119


async def test_broken_connections_lose_nothing_and_keep_locks(
    server_with_queues: Callable[..., ServerProcess],
) -> None:
    """A lock outlives the connection it was granted on: nobody else gets the message meanwhile."""
    server = server_with_queues()
    whims = random.Random(SEED)
    async with BadNetwork(server.port) as network:
        through = server.connection_string.replace(f":{server.port};", f":{network.port};")
        load = Load(through, QUEUES, History(), lock_duration_ms=LOCK_DURATION_MS, seed=SEED)
        load.start(senders=4, receivers=4)
        try:
            for _ in range(sized(30, nightly=1_000)):
                await load.wait_for(10)
                network.segment_bytes_max = whims.choice((1, 7, 100, 4_096, 65_536))
                await asyncio.sleep(whims.uniform(0, 0.1))
                if whims.random() < 0.3:
                    network.stall()
                    await asyncio.sleep(0.05)
                network.cut()
                network.flow()
            network.segment_bytes_max = 65_536
            await assert_nothing_broken(server, load, f"broken connections, seed {SEED}")
        finally:
            await load.stop()
    await asyncio.to_thread(server.stop)
    assert "Traceback" not in server.log, server.log
