"""Real broker processes that end, hang, break and come back; every message through the links."""

import asyncio
import json
import os
import resource
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from twinbus.clock import SystemClock
from twinbus.config import Identity, NamespaceConfig, RuleConfig, ServerConfig, known_stores
from twinbus.entities.commands import CreateEntities, Listed, NewEntity, Peek, Send
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.facts import MAIN
from twinbus.entities.message import NewMessage
from twinbus.errors import ConfigError, DirectoryInUse, Unavailable
from twinbus.gateway.faults.faults import DiskPlan
from twinbus.host.brokers.fault_effects import NO_FAULT
from twinbus.host.brokers.processes import Brokers
from twinbus.limits import BROKER_BEAT_MS
from twinbus.links.remote.operations import ANY
from twinbus.links.request import ask
from twinbus.links.store_link import DOWN, UP
from twinbus.telemetry.telemetry import Telemetry
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.asyncio

RULE = RuleConfig("RootManageSharedAccessKey", "a key that must never be shown", "another")
WAIT_S_MAX = 30.0
TIMEOUT_S = 1.5  # short enough to test, long enough for a busy machine


class Bus:
    """Brokers with a queue in each store, and everything that was acknowledged."""

    def __init__(self, brokers: Brokers, data_dir: Path) -> None:
        self.brokers = brokers
        self.data_dir = data_dir
        self.queues: list[int] = []
        self.acknowledged: list[list[bytes]] = []
        self.sent = 0

    async def make_queues(self) -> None:
        for link in self.brokers.links:
            new = NewEntity("queue", "orders", QueueDescription())
            self.queues += await ask(link, CreateEntities([new]))
            self.acknowledged.append([])

    async def send(self, store: int) -> None:
        self.sent += 1
        body = b"\x00Su\xa0\x04%04d" % self.sent
        link = self.brokers.links[store]
        await ask(link, Send(self.queues[store], [NewMessage(body)]))
        self.acknowledged[store].append(body)

    async def check(self) -> None:
        """Whatever was acknowledged is there, in this order; what was not may be."""
        for store, link in enumerate(self.brokers.links):
            found = await ask(link, Peek(self.queues[store], MAIN, 0, 1_000))
            bodies = [bytes(each.body) for each in found]
            known = set(self.acknowledged[store])
            assert [body for body in bodies if body in known] == self.acknowledged[store]

    def owners(self) -> list[int]:
        return [report.broker for report in self.brokers.health.stores()]

    def bundles(self) -> list[Path]:
        directory = self.data_dir / "diagnostics"
        return sorted(directory.iterdir()) if directory.exists() else []


def config_of(data_dir: Path, brokers: int, **changes: Any) -> ServerConfig:
    namespaces = (NamespaceConfig(Identity("bus", (RULE,))),)
    config = ServerConfig(data_dir, namespaces, brokers=brokers, broker_timeout_s=TIMEOUT_S)
    return replace(config, broker_well_s=0.5, **changes)


@asynccontextmanager
async def running(config: ServerConfig) -> AsyncIterator[Bus]:
    brokers = Brokers(config, SystemClock(), Telemetry())
    try:
        await brokers.start()
        yield Bus(brokers, config.data_dir)
    finally:
        await brokers.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S_MAX):
        while not condition():  # noqa: ASYNC110 - nobody tells a test
            await asyncio.sleep(0.02)


async def kept_sending(bus: Bus, store: int, until_true: Callable[[], bool]) -> int:
    """Send to one store all the time; how often that was refused."""
    refused = 0

    async def send() -> None:
        nonlocal refused
        while not until_true():
            try:
                await bus.send(store)
            except Unavailable:
                refused += 1
            await asyncio.sleep(0.005)

    await asyncio.wait_for(send(), WAIT_S_MAX)
    return refused


@pytest.mark.proves("A-4", "E-15")
@pytest.mark.parametrize("way", ["kill", "hang"])
async def test_a_broker_is_lost_and_its_store_taken_over_and_given_back(
    tmp_path: Path, way: str
) -> None:
    """The others take over, diagnostics are there, nothing acknowledged is lost."""
    async with running(config_of(tmp_path, brokers=3)) as bus:
        await bus.make_queues()
        listings: list[tuple[int, list[str]]] = []

        def listed(store: int, entities: list[Listed]) -> None:
            listings.append((store, [each.name for each in entities]))

        bus.brokers.on_listing = listed
        for store in (0, 1, 2):
            await bus.send(store)
        pid = bus.brokers.health.brokers()[1].pid
        getattr(bus.brokers.effects, f"{way}_broker")(1)

        refused = await kept_sending(bus, 1, lambda: bus.owners()[1] in {0, 2})
        assert refused > 0  # nobody waits for who is gone
        for store in (0, 2):
            await bus.send(store)
        # What moves home as planned makes nobody fail.
        await until(lambda: bus.brokers.links[1].health == UP)
        assert await kept_sending(bus, 1, lambda: bus.owners() == [0, 1, 2]) == 0
        await until(lambda: bus.brokers.links[1].health == UP)
        await bus.check()

        assert listings == [(1, ["orders"]), (1, ["orders"])]
        report = bus.brokers.health.brokers()[1]
        assert report.state == "up"
        assert report.restarts == 1
        assert report.pid != pid
        (bundle,) = bus.bundles()
        assert bundle.name.endswith("-broker-1")
        reason = (bundle / "reason.txt").read_text()
        assert f"process: {pid}, " in reason
        assert "stores: 1\n" in reason
        if way == "kill":
            assert "the process has ended: SIGKILL" in reason
        else:
            assert "no sign of life" in reason
            # It cannot speak for itself.
            assert "State:\tT (stopped)" in (bundle / "stacks.txt").read_text()
        assert json.loads((bundle / "counters.json").read_text())
        assert "store 1" in (bundle / "log.txt").read_text()
        assert not [
            path for path in bundle.iterdir() if RULE.primary_key.encode() in path.read_bytes()
        ]


@pytest.mark.proves("A-4")
async def test_a_broker_that_finds_itself_broken_says_where_it_is(tmp_path: Path) -> None:
    """A broker in an inconsistent state."""
    async with running(config_of(tmp_path, brokers=2)) as bus:
        await bus.make_queues()
        await bus.send(0)
        run = bus.brokers._runs.latest[0]
        assert run is not None
        run.process.send((9_999, ANY))
        await until(lambda: bus.owners()[0] == 1)
        await until(lambda: bus.owners() == [0, 1])
        await bus.check()
        (bundle,) = bus.bundles()
        assert "an invariant failed" in (bundle / "reason.txt").read_text()
        stacks = (bundle / "stacks.txt").read_text()
        assert "AssertionError: operation 9999" in stacks
        assert "most recent call first" in stacks  # of every thread, by faulthandler


async def test_a_broker_that_stood_still_for_a_moment_goes_on(tmp_path: Path) -> None:
    async with running(config_of(tmp_path, brokers=1)) as bus:
        await bus.make_queues()
        bus.brokers.effects.hang_broker(0)
        sending = asyncio.create_task(bus.send(0))
        await asyncio.sleep(TIMEOUT_S / 4)
        bus.brokers.effects.resume_broker(0)
        await sending
        await bus.check()
        assert bus.brokers.health.brokers()[0].restarts == 0


async def test_a_broker_that_crashes_leaves_its_stack(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, limits[1]))  # no file of its memory
    async with running(config_of(tmp_path, brokers=2)) as bus:
        os.kill(bus.brokers.health.brokers()[0].pid, signal.SIGSEGV)
        await until(lambda: len(bus.bundles()) == 1)
        await until(lambda: bus.owners() == [0, 1])
        (bundle,) = bus.bundles()
        assert "the process has ended: SIGSEGV" in (bundle / "reason.txt").read_text()
        assert "Segmentation fault" in (bundle / "stacks.txt").read_text()


@pytest.mark.proves("E-15")
async def test_a_store_that_fails_is_opened_again_and_the_others_do_not_notice(
    tmp_path: Path,
) -> None:
    """The loss of one store."""
    stores = (tmp_path / "a", tmp_path / "b")
    config = replace(config_of(tmp_path, brokers=1), stores=stores)
    async with running(config) as bus:
        await bus.make_queues()
        pid = bus.brokers.health.brokers()[0].pid
        await bus.send(0)
        await bus.send(1)
        bus.brokers.effects.set_disk_plan(0, DiskPlan(0, 0.0, 1.0, 0.0))
        with pytest.raises(Unavailable):
            await bus.send(0)
        await until(lambda: bus.brokers.links[0].health == DOWN)
        for _ in range(20):
            await bus.send(1)
        assert "fault" in bus.brokers.health.stores()[0].trouble
        bus.brokers.effects.set_disk_plan(0, NO_FAULT)
        await until(lambda: bus.brokers.links[0].health == UP)
        await bus.send(0)
        await bus.check()
        await until(lambda: bus.brokers.effects.disk_counts(0)[1] > 0)
        assert bus.brokers.effects.disk_counts(1) == (0, 0, 0)
        assert bus.brokers.health.brokers()[0].pid == pid
        assert bus.bundles() == []


async def test_a_gateway_that_slept_blames_nobody(tmp_path: Path) -> None:
    """SIGSTOP of the gateway, a machine that was suspended."""
    async with running(config_of(tmp_path, brokers=2)) as bus:
        time.sleep(2 * TIMEOUT_S)  # noqa: ASYNC251 - that is the point: the loop stands still
        for _ in range(4):
            await asyncio.sleep(BROKER_BEAT_MS / 1_000)
        assert [report.restarts for report in bus.brokers.health.brokers()] == [0, 0]
        assert bus.bundles() == []


async def test_everything_ends_and_begins_again(tmp_path: Path) -> None:
    config = config_of(tmp_path, brokers=2)
    async with running(config) as bus:
        await bus.make_queues()
        await bus.send(0)
        await bus.send(1)
        pids = [report.pid for report in bus.brokers.health.brokers()]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert known_stores(tmp_path) == (tmp_path / "store-0", tmp_path / "store-1")
    async with running(replace(config, brokers=1, stores=known_stores(tmp_path))) as again:
        again.queues, again.acknowledged = bus.queues, bus.acknowledged
        await again.check()
        assert again.owners() == [0, 0]


async def test_a_second_server_is_turned_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twinbus.host.brokers.processes.IN_USE_S_MAX", 0.1)
    config = config_of(tmp_path, brokers=2)
    async with running(config) as bus:
        with pytest.raises(DirectoryInUse):
            async with running(config):
                pass
        other = tmp_path / "other"
        other.mkdir()
        # Another data directory, and a store that is taken.
        with pytest.raises(DirectoryInUse):
            async with running(replace(config, data_dir=other, stores=(tmp_path / "store-1",))):
                pass
        await bus.make_queues()


async def test_a_damaged_store_is_down_and_the_others_serve(tmp_path: Path) -> None:
    config = config_of(tmp_path, brokers=2)
    async with running(config) as bus:
        await bus.make_queues()
        await bus.send(0)
        await bus.send(1)
    _damage(tmp_path / "store-0")
    async with running(config) as again:
        healths = [link.health for link in again.brokers.links]
        assert healths == [DOWN, UP]
        assert again.brokers.health.stores()[0].trouble
        again.queues, again.acknowledged = bus.queues, bus.acknowledged
        await again.send(1)
        with pytest.raises(Unavailable):
            await again.send(0)
    _damage(tmp_path / "store-1")
    with pytest.raises(ConfigError, match=r"no store can be opened: .*twinbus verify"):
        async with running(config):
            pass


async def test_brokers_end_with_their_gateway(tmp_path: Path) -> None:
    """kill -9 of the whole server: no broker stays behind with a store that the next one needs."""
    server = ServerProcess(tmp_path / "data", arguments=["--brokers", "2"])
    await asyncio.to_thread(server.start)
    try:
        server.create_queue("orders")
        brokers = _children_of(server.pid)
        assert len(brokers) == 2
        server.kill()
        await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in brokers))
        await asyncio.to_thread(server.restart)
        assert server.admin.get_queue("orders").name == "orders"
    finally:
        await asyncio.to_thread(server.stop)


def _children_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in children.split()]


def _damage(store: Path) -> None:
    """Something else stands where every file begins."""
    for path in store.glob("*.log"):
        with path.open("r+b") as file:
            file.write(b"this is no log" * 10)
    for path in store.glob("*.snapshot"):
        path.write_bytes(b"this is no snapshot")
