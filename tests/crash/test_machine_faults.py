"""Faults of a whole machine, under load: standing still, a full disk, a clock that jumps.

What is promised is the same as in `test_outages.py`, and judged by the same judge.
"""

import asyncio
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.outage_judge import Timeline
from tests.crash.outage_load import now_ms
from tests.crash.outages import FAIL, FULL, HANG, KILL, Cluster, Nemesis, Strike, weather

pytestmark = pytest.mark.asyncio

STANDSTILL_S = 4.0  # twice as long as a broker may be silent
MOMENT_S = 1.0


class JumpingClock:
    """The clock of `jumping_clock.c`."""

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        self.jump_to(0)
        self.environment = {"LD_PRELOAD": str(library), "JUMPING_CLOCK": str(file)}

    def shown_s(self) -> float:
        """The time of day for those who live by it."""
        command = [sys.executable, "-c", "import time; print(time.time())"]
        environment = {**os.environ, **self.environment}
        return float(subprocess.check_output(command, env=environment))

    def jump_to(self, offset_s: int) -> None:
        """From now on the time of day is off by so much."""
        with self._file.open("r+b" if self._file.exists() else "xb") as file:
            file.write(struct.pack("=q", offset_s))


@pytest.fixture
def jumping_clock(tmp_path: Path) -> JumpingClock:
    library = tmp_path / "jumping_clock.so"
    source = Path(__file__).with_name("jumping_clock.c")
    compiler = os.environ.get("CC", "cc")
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return JumpingClock(library, tmp_path / "offset")


@pytest.fixture
def cluster_of(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Starts a server with two brokers and a store for each."""
    started: list[Cluster] = []

    def start(**options: Any) -> Cluster:
        cluster = Cluster(tmp_path / "bus", 2, 2, **options)
        started.append(cluster)
        cluster.start()
        return cluster

    yield start
    for cluster in started:
        if cluster.server.running:
            cluster.server.kill()


def restarts(cluster: Cluster) -> list[int]:
    return [broker["restarts"] for broker in cluster.health()["brokers"]]


async def test_a_gateway_that_stood_still_blames_nobody(cluster_of: Callable[..., Cluster]) -> None:
    """SIGSTOP of the process that supervises: it has heard nobody, and nobody is to blame."""
    cluster = await asyncio.to_thread(cluster_of)

    async def storm(timeline: Timeline) -> None:
        await asyncio.sleep(MOMENT_S)
        os.kill(cluster.server.pid, signal.SIGSTOP)
        await asyncio.sleep(STANDSTILL_S)
        os.kill(cluster.server.pid, signal.SIGCONT)
        await asyncio.sleep(MOMENT_S)
        await cluster.until_well()

    load = await weather(cluster, "the gateway stands still", storm)
    assert load.failures == []  # whoever waits is served in the end
    assert restarts(cluster) == [0, 0]
    assert not (cluster.server.data_dir / "diagnostics").exists()
    await asyncio.to_thread(cluster.server.stop)


@pytest.mark.proves("A-4")
async def test_a_broker_that_stands_still_is_replaced(cluster_of: Callable[..., Cluster]) -> None:
    """SIGSTOP of one broker; the other takes over, and gives back without anybody failing."""
    cluster = await asyncio.to_thread(cluster_of)

    def is_home(health: dict[str, Any]) -> bool:
        return [store["broker"] for store in health["stores"]] == [0, 1]

    async def storm(timeline: Timeline) -> None:
        await Nemesis(cluster, timeline).carry_out(Strike(HANG, 1, after_s=MOMENT_S))
        await cluster.until(is_home, "everybody at home")
        await cluster.until_well()

    load = await weather(cluster, "a broker stands still", storm)
    assert load.failures  # somebody was waiting for it
    assert restarts(cluster) == [0, 1]
    assert len(list((cluster.server.data_dir / "diagnostics").iterdir())) == 1
    await asyncio.to_thread(cluster.server.stop)


async def test_a_disk_that_is_full_costs_its_own_store_only(
    cluster_of: Callable[..., Cluster],
) -> None:
    """What is in the full store can be received and completed; new messages go to the other."""
    cluster = await asyncio.to_thread(cluster_of)

    async def storm(timeline: Timeline) -> None:
        strike = Strike(FULL, 0, after_s=MOMENT_S, lasts_s=STANDSTILL_S)
        await Nemesis(cluster, timeline).carry_out(strike)

    load = await weather(cluster, "a full disk", storm, body_size_bytes_max=100_000)
    assert {failure.lane.store for failure in load.failures} == {0}
    assert restarts(cluster) == [0, 0]
    await asyncio.to_thread(cluster.server.stop)


async def test_a_clock_that_jumps(
    cluster_of: Callable[..., Cluster], jumping_clock: JumpingClock
) -> None:
    """Forth and back, with all stores well, with one journalled, and before a broker is lost."""
    cluster = await asyncio.to_thread(cluster_of, environment=jumping_clock.environment)

    async def storm(timeline: Timeline) -> None:
        nemesis = Nemesis(cluster, timeline)
        for offset_s in (120, -600):
            await asyncio.sleep(MOMENT_S)
            # Nobody has a reason to fail because of it.
            jumping_clock.jump_to(offset_s)
            off_s = jumping_clock.shown_s() - now_ms() / 1_000
            assert abs(off_s - offset_s) < abs(offset_s)
        failing = nemesis.carry_out(Strike(FAIL, 0, after_s=MOMENT_S, lasts_s=MOMENT_S))
        jumping = _later(jumping_clock, 1.5 * MOMENT_S, 60)
        await asyncio.gather(failing, jumping)
        await nemesis.carry_out(Strike(KILL, 1, after_s=MOMENT_S))
        jumping_clock.jump_to(0)

    await weather(cluster, "a clock that jumps", storm, is_clock_shared=False)
    assert restarts(cluster) == [0, 1]
    await asyncio.to_thread(cluster.server.stop)


async def _later(clock: JumpingClock, delay_s: float, offset_s: int) -> None:
    await asyncio.sleep(delay_s)
    clock.jump_to(offset_s)
