"""The drill of paired namespaces: everything fails in turn, and every accepted message arrives.

Two real servers, applications of both flavours that send through a pair at full speed with the
SDK's own retries on, syphons in processes of their own; primary, entities, a partition, backlog
queues and syphons fail at random.  Then everything is up again, and nothing may be lost, doubled or
changed.
"""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest
from azure.servicebus import ServiceBusClient

from tests.crash.crashing import sized
from tests.crash.pairing_bus import BACKLOG_QUEUE_COUNT, PLACES, Bus, SyphonProcess, until
from tests.crash.pairing_client import FLAVOURS, Pair, open_pair
from tests.crash.pairing_ledger import Ledger, judge
from tests.crash.pairing_load import SENDERS_AN_APPLICATION, Load
from tests.crash.pairing_messages import Plan, Portrait, build, portrait
from tests.crash.pairing_outages import Nemesis, Schedule
from twinbus.client.connection import BusConnection
from twinbus.pairing.events import State
from twinbus.testing.server import ServerProcess

log = logging.getLogger(__name__)

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.feature("pairing.failover", "pairing.recovery", "pairing.syphon"),
    # The SDK forgets to close its sockets when the server goes away.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

SEED: Final = 20_261_118  # without producer keys, this one finds copies
EXTRA_STRIKES: Final = sized(2, nightly=16)
SEND_TIMEOUT_S: Final = 2.0  # of one try, so that a storm of seconds sees many
THREADS: Final = 32  # a blocking sender must not wait for another's thread
CALM_S_MAX: Final = 90.0
REFERENCE: Final = "reference"
NAMELESS: Final = "name-00-000000"


@pytest.mark.proves("P-6", "P-16")
@pytest.mark.parametrize("number", range(sized(1, nightly=40)))
async def test_every_accepted_message_arrives(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    """P-6 … P-16 at once: 0 lost, 0 doubled, nothing changed, no ping seen, nothing left over."""
    caplog.set_level(logging.CRITICAL, "azure")  # it tells of every retry
    schedule = Schedule.draw(SEED + number, EXTRA_STRIKES, BACKLOG_QUEUE_COUNT)
    log.info("%s", schedule)
    ledger = Ledger()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    async with Bus(tmp_path / "bus") as bus:
        load = Load(bus, ledger, schedule.seed)
        try:
            await _drill(bus, load, schedule, tmp_path)
            left = await _drained(bus)
        finally:
            await load.stop_receiving()
        plans = {sent.plan for sent in ledger.sent.values()}
        direct = await _portraits(bus.secondary, plans)
    broken = judge(ledger, PLACES, direct.__getitem__)
    if left:
        broken["left over"] = [f"{place}: {count}" for place, count in left.items()]
    log.info("%d sent, %d accepted", len(ledger.sent), ledger.accepted_count)
    assert broken == {}, _told(schedule, ledger, broken)
    assert ledger.accepted_count > 50, _told(schedule, ledger, {})


async def _drill(bus: Bus, load: Load, schedule: Schedule, directory: Path) -> None:
    """Load, the storm, the calm in which everybody is back on the primary, and the end of it."""
    async with AsyncExitStack() as opened:
        syphons = [
            SyphonProcess(bus, directory / f"syphon-{number}.log", FLAVOURS[number % 2])
            for number in range(schedule.syphons)
        ]
        for syphon in syphons:
            opened.callback(syphon.kill)
            await asyncio.to_thread(syphon.start)
        pairs = []
        for flavour, interval_s in zip(FLAVOURS, schedule.failover_intervals_s, strict=True):
            opening = open_pair(
                flavour, bus, failover_interval=interval_s, send_timeout=SEND_TIMEOUT_S
            )
            pairs.append(await opened.enter_async_context(opening))
        load.start_receiving()
        senders = [
            asyncio.create_task(load.keep_sending(pair, f"name-{pair.flavour[0]}{number}"))
            for pair in pairs
            for number in range(SENDERS_AN_APPLICATION)
        ]
        try:
            nemesis = Nemesis(bus, syphons)
            await nemesis.carry_out(*schedule.strikes)
            assert len(nemesis.struck) == len(schedule.strikes)
            for pair in pairs:
                await _recovered(pair)
        finally:
            load.stopping.set()
            await asyncio.gather(*senders)
        await _drained(bus)
        for syphon in syphons:
            await asyncio.to_thread(syphon.stop)


async def _recovered(pair: Pair) -> None:
    """Everybody is back on the primary and pings have stopped."""

    def is_back() -> bool:
        return all(
            entity.state in {State.HEALTHY, State.RECOVERING} and entity.next_ping_in_s is None
            for entity in pair.status().entities.values()
        )

    assert await until(is_back, CALM_S_MAX), pair.status()
    for entity in pair.status().entities.values():
        ways = entity.sent_to_primary, entity.sent_to_backlog
        log.info("%s, %s: %d direct, %d by the backlog", pair.flavour, entity.entity, *ways)


async def _drained(bus: Bus) -> dict[str, int]:
    """Wait until nothing is left anywhere; what is, if that takes too long."""
    await until(lambda: not bus.waiting(), CALM_S_MAX)
    return await asyncio.to_thread(bus.waiting)


async def _portraits(server: ServerProcess, plans: set[Plan]) -> dict[Plan, Portrait]:
    """What a message of each plan is like after a direct send."""
    ordered = list(plans)
    await asyncio.to_thread(server.create_queue, REFERENCE)
    await asyncio.to_thread(_send_all, server.connection_string, ordered)
    found: dict[Plan, Portrait] = {}
    async with await BusConnection.open(server.connection_string) as connection:
        receiver = await connection.open_receiver(REFERENCE, receive_and_delete=True)
        for plan in ordered:
            received = await receiver.receive(5)
            assert received is not None
            found[plan] = portrait(received.data, NAMELESS)
    return found


def _send_all(connection_string: str, plans: list[Plan]) -> None:
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_sender(REFERENCE) as sender,
    ):
        for plan in plans:
            sender.send_messages(build(plan, NAMELESS, None))


def _told(schedule: Schedule, ledger: Ledger, broken: dict[str, list[str]]) -> str:
    """What a person needs to find out why."""
    lines = [str(schedule), f"{len(ledger.sent)} sent, {ledger.accepted_count} accepted"]
    for name, texts in broken.items():
        lines.append(f"{name}: {len(texts)}")
        lines += [f"    {text}" for text in texts[:10]]
    lines += [f"{count} × {text}" for text, count in ledger.errors.items()]
    return "\n".join(lines)
