"""kill -9 and SIGTERM under load: what was acknowledged is there, what was completed is gone."""

import asyncio
import random
from collections.abc import Callable

import pytest

from tests.crash.crashing import assert_nothing_broken, new_load, sized
from twinbus.testing.checkers import History
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.asyncio

SEED = 20_261_115


@pytest.mark.proves("M-1")
@pytest.mark.feature("send.durable", "ours.restart")
async def test_kill_9_under_load_loses_and_resurrects_nothing(
    server_with_queues: Callable[..., ServerProcess],
) -> None:
    """A send is acknowledged only when the message is durable."""
    cycles = sized(60, nightly=1_000)
    server = server_with_queues()
    moments = random.Random(SEED)
    load = new_load(server, History(), SEED)
    load.start(senders=4, receivers=4)
    try:
        for _ in range(cycles):
            await load.wait_for(20)
            await asyncio.sleep(moments.uniform(0, 0.3))
            await asyncio.to_thread(server.kill)
            load.history.server_ended()
            await asyncio.to_thread(server.restart)
        await assert_nothing_broken(server, load, f"{cycles} kills, seed {SEED}")
    finally:
        await load.stop()
        await asyncio.to_thread(server.stop)


@pytest.mark.feature("send.durable", "ours.restart")
async def test_sigterm_under_load_ends_cleanly_and_loses_nothing(
    server_with_queues: Callable[..., ServerProcess],
) -> None:
    server = server_with_queues()
    moments = random.Random(SEED)
    load = new_load(server, History(), SEED)
    load.start(senders=4, receivers=4)
    try:
        for _ in range(sized(5, nightly=100)):
            await load.wait_for(20)
            await asyncio.sleep(moments.uniform(0, 0.3))
            await asyncio.to_thread(server.stop)  # raises unless the exit code is 0
            load.history.server_ended()
            await asyncio.to_thread(server.restart)
        await assert_nothing_broken(server, load, f"SIGTERM, seed {SEED}")
    finally:
        await load.stop()
        await asyncio.to_thread(server.stop)
