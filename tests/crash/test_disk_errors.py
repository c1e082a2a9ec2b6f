"""Disks that fail: an error that cannot be mended stops the server; a full one only stops sends."""

import asyncio
import random
from collections.abc import Callable

import pytest

from tests.crash.crashing import (
    QUEUES,
    FaultyDisk,
    assert_nothing_broken,
    message_count,
    new_load,
    sized,
)
from twinbus.client.connection import BusConnection
from twinbus.client.links import Receiver, Sender
from twinbus.errors import QuotaExceeded
from twinbus.limits import SEGMENT_SIZE_BYTES
from twinbus.testing.checkers import History
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.asyncio

SEED = 20_261_116
BODY = b"x" * 250_000
WINDOW = 20
# Segments are allocated ahead, so a full disk still takes what fits into a few of them.
FULL_AFTER_COUNT_MAX = 8 * SEGMENT_SIZE_BYTES // len(BODY)
RECOVERY_S_MAX = 10


@pytest.mark.proves("M-1")
@pytest.mark.parametrize("operation", ["sync", "write"])
async def test_after_a_failed_sync_or_write_nothing_is_acknowledged(
    operation: str, server_with_queues: Callable[..., ServerProcess], faulty_disk: FaultyDisk
) -> None:
    """The failed sync takes its bytes with it, so an acknowledgement of them would be a lie.

    The server must not try again (the second sync would succeed), but end with an error code.
    """
    server = server_with_queues(faulty_disk.environment)
    moments = random.Random(SEED)
    load = new_load(server, History(), SEED)
    load.start(senders=4, receivers=4)
    try:
        for _ in range(sized(4, nightly=100)):
            await load.wait_for(20)
            await asyncio.sleep(moments.uniform(0, 0.2))
            faulty_disk.fail_once(operation)
            exit_code = await asyncio.to_thread(server.wait)
            assert faulty_disk.has_failed(operation)
            assert exit_code > 0, server.log
            load.history.server_ended()
            await asyncio.to_thread(server.restart)
        await assert_nothing_broken(server, load, f"{operation} errors, seed {SEED}")
    finally:
        await load.stop()
        await asyncio.to_thread(server.stop)


async def test_a_full_disk_refuses_sends_while_receive_and_complete_go_on(
    server_with_queues: Callable[..., ServerProcess], faulty_disk: FaultyDisk
) -> None:
    server = server_with_queues(faulty_disk.environment)
    queue = QUEUES[0]
    try:
        for _ in range(sized(2, nightly=20)):
            async with await BusConnection.open(server.connection_string) as connection:
                sender = await connection.open_sender(queue)
                faulty_disk.fill()
                waiting = await _send_until_refused(sender)
                assert server.running, server.log
                receiver = await connection.open_receiver(queue, credit=20)
                for _ in range(waiting):
                    await _receive_and_complete(receiver)
                faulty_disk.free()
                await _send_until_accepted(sender)
                await _receive_and_complete(receiver)
                assert await receiver.receive(0.1) is None
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.restart)
        assert message_count(server) == 0
    finally:
        await asyncio.to_thread(server.stop)


async def _send_until_refused(sender: Sender) -> int:
    """Send, many at a time, until the disk has no more room; gives how many were taken."""
    taken = 0
    for _ in range(FULL_AFTER_COUNT_MAX // WINDOW):
        sends = [sender.send(BODY) for _ in range(WINDOW)]
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        refusals = [outcome for outcome in outcomes if outcome is not None]
        taken += len(outcomes) - len(refusals)
        if refusals:
            assert {type(refusal) for refusal in refusals} == {QuotaExceeded}, refusals
            return taken
    pytest.fail(f"{taken} messages of {len(BODY)} bytes fit on a full disk")


async def _send_until_accepted(sender: Sender) -> None:
    """The server finds out by itself that there is room again."""
    for _ in range(RECOVERY_S_MAX * 20):
        try:
            await sender.send(BODY)
        except QuotaExceeded:
            await asyncio.sleep(0.05)
        else:
            return
    pytest.fail(f"sends are still refused {RECOVERY_S_MAX} s after there was space again")


async def _receive_and_complete(receiver: Receiver) -> None:
    received = await receiver.receive(10)
    assert received is not None, "a message that was there does not come"
    assert received.body == BODY
    await receiver.complete(received)
