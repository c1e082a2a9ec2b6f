"""Brokers are killed and hang, stores are slow, fail and are full, all under load.

0 acknowledged messages are lost, 0 completed ones come back, sends without a key always get through
within a client's own retries, others fail only while their own store is in trouble, and the order
inside a session is kept.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.crash.crashing import sized
from tests.crash.outage_judge import Timeline
from tests.crash.outage_sdk import SdkLoad
from tests.crash.outages import (
    FAIL,
    HANG,
    KILL,
    RESTART,
    SLOW,
    Cluster,
    Nemesis,
    Schedule,
    Strike,
    weather,
)

pytestmark = [pytest.mark.proves("A-3", "A-4", "E-15"), pytest.mark.asyncio]

SEED = 20_261_120
STORM_S = sized(4, nightly=12)  # 12 s: what moved away has time to move back


@pytest.fixture
def cluster_of(tmp_path: Path) -> Iterator[Callable[[Schedule], Cluster]]:
    """Starts the server for a schedule."""
    started: list[Cluster] = []

    def start(schedule: Schedule) -> Cluster:
        cluster = Cluster(tmp_path / f"{schedule.seed}", schedule.brokers, schedule.stores)
        started.append(cluster)
        cluster.start()
        return cluster

    yield start
    for cluster in started:
        if cluster.server.running:
            cluster.server.kill()


@pytest.mark.parametrize("pair", range(sized(5, nightly=50)))
async def test_random_schedules_of_outages(
    cluster_of: Callable[[Schedule], Cluster], pair: int
) -> None:
    """Two at a time: most of it is waiting for locks, and for brokers to come back."""
    await asyncio.gather(*(endured(cluster_of, SEED + 2 * pair + each) for each in (0, 1)))


async def endured(cluster_of: Callable[[Schedule], Cluster], seed: int) -> None:
    schedule = Schedule.draw(seed, STORM_S)
    cluster = await asyncio.to_thread(cluster_of, schedule)

    async def storm(timeline: Timeline) -> None:
        nemesis = Nemesis(cluster, timeline)
        await nemesis.carry_out(*schedule.strikes)
        assert len(nemesis.struck) > 1

    load = await weather(cluster, str(schedule), storm, seed=seed)
    assert load.acknowledged_count > 100
    await asyncio.to_thread(cluster.server.stop)


@pytest.mark.proves("E-7", "E-15")
async def test_the_official_client_gets_through(
    cluster_of: Callable[[Schedule], Cluster], caplog: pytest.LogCaptureFixture
) -> None:
    """What reaches an application that sends without a key is no error, ever."""
    caplog.set_level(logging.CRITICAL, "azure")  # it tells of every retry
    strikes = (
        Strike(KILL, 0, after_s=0.5),
        Strike(FAIL, 1, after_s=1.5, lasts_s=1.0),
        Strike(HANG, 2, after_s=1.5),
        Strike(SLOW, 0, after_s=1.0, lasts_s=1.5, delay_ms=1_500),
    )
    schedule = Schedule(SEED, 3, 3, strikes)
    cluster = await asyncio.to_thread(cluster_of, schedule)

    async def storm(timeline: Timeline) -> None:
        nemesis = Nemesis(cluster, timeline)
        await nemesis.carry_out(*strikes)
        assert nemesis.struck == [strike.kind for strike in strikes]

    load = await weather(cluster, str(schedule), storm, SdkLoad)
    assert load.acknowledged_count > 50
    await asyncio.to_thread(cluster.server.stop)


@pytest.mark.proves("A-3")
async def test_a_journal_outlives_the_server(cluster_of: Callable[[Schedule], Cluster]) -> None:
    """Acknowledged for a store that had failed, and still elsewhere when everything ended."""
    strikes = (Strike(FAIL, 0, after_s=0.5, lasts_s=2.0), Strike(RESTART, 0, after_s=1.5))
    schedule = Schedule(SEED, 2, 2, strikes)
    cluster = await asyncio.to_thread(cluster_of, schedule)

    async def storm(timeline: Timeline) -> None:
        await Nemesis(cluster, timeline).carry_out(*strikes)
        restarted_ms = timeline.outages[1].began_ms
        assert any(seen_ms <= restarted_ms for seen_ms, store in timeline.journalled if store == 0)

    await weather(cluster, str(schedule), storm)
    await asyncio.to_thread(cluster.server.stop)
