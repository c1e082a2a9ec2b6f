"""A bus and its server at the edges: starting, stopping, and turns in which something fails."""

import asyncio
import logging
from pathlib import Path

import pytest

from twinbus.clock import SystemClock
from twinbus.config import NamespaceConfig, ServerConfig, load_identities
from twinbus.entities.commands import Listed
from twinbus.entities.descriptions import QueueDescription
from twinbus.gateway.faults.faults import Fault
from twinbus.host.app import Server
from twinbus.host.bus import ServerBus
from twinbus.links.store_link import UP
from twinbus.telemetry.telemetry import Telemetry


def config(data_dir: Path, brokers: int = 1) -> ServerConfig:
    namespaces = tuple(NamespaceConfig(each) for each in load_identities(data_dir, 0))
    return ServerConfig(data_dir, namespaces, port=0, brokers=brokers)


def make_bus(config: ServerConfig) -> ServerBus:
    def failed(error: BaseException) -> None:
        raise error

    def lose(fault: Fault) -> None:
        raise AssertionError("there are no faults")

    return ServerBus(config, SystemClock(), failed, lose, Telemetry())


def test_who_is_told_to_stop_while_it_starts_never_gets_ready(tmp_path: Path) -> None:
    ready: list[int] = []

    async def run() -> int:
        server = Server(config(tmp_path), SystemClock(), Telemetry())
        server.stop()
        return await server.run(ready.append)

    assert asyncio.run(run()) == 0
    assert ready == []


class Broken:
    """A receiver that something is wrong with."""

    def tick(self) -> None:
        raise RuntimeError("broken")


def test_one_bad_receiver_does_not_stop_the_others_turns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> list[int]:
        bus = make_bus(config(tmp_path))
        bus.gateway.ticking.add(Broken())
        await bus.start()
        await bus.close()
        return bus._healths

    with caplog.at_level(logging.ERROR):
        assert asyncio.run(run()) == [UP]
    assert "a turn of tick failed" in caplog.text


def test_store_that_comes_up_in_the_middle_has_a_round_of_its_own(tmp_path: Path) -> None:
    """Its journals are not read before its entities are known."""
    early = (0, [Listed(1, "queue", "$journal/1/1.0", QueueDescription())])
    late = (1, [Listed(1, "queue", "$journal/0/1.1", QueueDescription())])

    async def run() -> list[tuple[int, list[Listed]]]:
        bus = make_bus(config(tmp_path, brokers=2))
        bus._listed(*early)
        async with bus.changes.lock.with_others():
            restoring = asyncio.ensure_future(bus._restore_again())
            await asyncio.sleep(0)
            bus._listed(*late)
        await restoring
        await bus.close()
        return bus._listings

    assert asyncio.run(run()) == [late]
