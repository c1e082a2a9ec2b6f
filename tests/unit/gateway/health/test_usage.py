"""What a process uses, and what the throttle gets to know of it."""

from pathlib import Path

import pytest

from twinbus.gateway.health.health import BrokerReport, StoreReport
from twinbus.gateway.health.usage import Sampler, fitted, memory_in_use, memory_there_is
from twinbus.gateway.throttling.throttle import FULL, SEND, Throttle, Usage
from twinbus.limits import PROFILE_DEFAULT, THRESHOLDS_DEFAULT, Thresholds
from twinbus.links.store_link import UP
from twinbus.testing.clock import SimClock

pytestmark = [pytest.mark.proves("A-2"), pytest.mark.asyncio]

MEGABYTE = 1_048_576


class Source:
    """Two broker processes with a store each."""

    def __init__(self) -> None:
        self.all_brokers = [BrokerReport(0, "up"), BrokerReport(1, "up")]
        self.all_stores = [StoreReport(0, 0, UP), StoreReport(1, 1, UP)]

    def brokers(self) -> list[BrokerReport]:
        return self.all_brokers

    def stores(self) -> list[StoreReport]:
        return self.all_stores


def sampled(source: Source, thresholds: Thresholds = THRESHOLDS_DEFAULT) -> tuple[Throttle, Usage]:
    throttle = Throttle(thresholds, PROFILE_DEFAULT)
    usage, clock, looked = Usage(), SimClock(), []
    sampler = Sampler(throttle, source, clock, usage, lambda: looked.append(1))
    clock.advance(1_000)
    sum(range(1_000_000))  # something to do for the processor
    sampler.take(12)
    assert looked == [1]
    return throttle, usage


async def test_this_process() -> None:
    throttle, usage = sampled(Source())
    assert usage.lag_ms == 12
    assert usage.cpu_share > 0
    assert usage.memory_bytes > MEGABYTE
    assert throttle.is_calm


async def test_memory_is_that_of_all_processes() -> None:
    source = Source()
    before = sampled(source)[1].memory_bytes
    for broker in source.all_brokers:
        broker.pid, broker.memory_bytes = 1_000_000, 1 << 40
    assert sampled(source)[1].memory_bytes > before + (1 << 41) - 100 * MEGABYTE
    throttle, _ = sampled(source, fitted(THRESHOLDS_DEFAULT))
    assert throttle.shortage(0, SEND) == (FULL, "memory")


async def test_a_store_is_judged_by_its_disk_and_by_its_broker() -> None:
    source = Source()
    source.all_stores[0].disk_free_bytes = 0
    source.all_brokers[1].cpu_share, source.all_brokers[1].lag_ms = 1.0, 10_000
    throttle, _ = sampled(source)
    assert throttle.shortage(0, SEND) == (FULL, "storage")
    assert throttle.shortage(1, SEND) == (FULL, "cpu")


async def test_open_operations_are_those_of_all_stores() -> None:
    source = Source()
    for store in source.all_stores:
        store.open_count = 60_000
    throttle, usage = sampled(source)
    assert usage.open_count == 120_000
    assert throttle.pressures() == ["this process: operations is short"]


async def test_what_nobody_can_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.gateway.health.usage._PROCESS", tmp_path / "missing")
    assert memory_in_use() == 0


async def test_the_memory_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr("twinbus.gateway.health.usage._CGROUPS", (limit,))
    machine = memory_there_is()
    assert machine > 4_096
    limit.write_text("4096\n")
    assert memory_there_is() == 4_096
    limit.write_text("max\n")
    assert memory_there_is() == machine


async def test_a_threshold_for_memory() -> None:
    assert fitted(Thresholds(memory_bytes_max=5)).memory_bytes_max == 5
    assert fitted(Thresholds(memory_bytes_max=0)).memory_bytes_max == 0
    assert fitted(Thresholds()).memory_bytes_max == memory_there_is() * 4 // 5
