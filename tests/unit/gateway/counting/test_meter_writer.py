"""Metering: what a second has counted becomes durable, whatever the disk says."""

import asyncio
import json
from typing import Any

import pytest

from tests.unit.broker.harness import BrokerHarness
from tests.unit.server.http.atom.atom_harness import sign
from twinbus.errors import Unavailable
from twinbus.gateway.access.shared_access import LISTEN, MANAGE, AuthorizationRule, Authorizer
from twinbus.gateway.counting.meter import Meter
from twinbus.gateway.counting.meter_writer import Metering
from twinbus.gateway.namespaces.namespace import Namespace
from twinbus.gateway.namespaces.registry import Namespaces
from twinbus.metered import HOUR_MS, Metered
from twinbus.server.http.access import HttpAccess
from twinbus.server.http.exchange import Request
from twinbus.server.http.operations.meter import MeterRequests, is_about_meter
from twinbus.testing.clock import SimClock

pytestmark = [pytest.mark.proves("C-1"), pytest.mark.asyncio]


class Target:
    """A disk that may be full."""

    def __init__(self) -> None:
        self.lines: list[Metered] = []
        self.is_full = False
        self.is_broken = False
        self.tries = 0
        self.is_closed = False

    def append(self, lines: list[Metered]) -> None:
        self.tries += 1
        if self.is_full:
            raise OSError(28, "No space left on device")
        assert len({line.from_ms // HOUR_MS for line in lines}) == 1
        self.lines += lines

    def read(self, from_ms: int, to_ms: int) -> list[Metered]:
        if self.is_broken:
            raise OSError(5, "Input/output error")
        return [line for line in self.lines if from_ms <= line.from_ms < to_ms]

    def close(self) -> None:
        self.is_closed = True

    @property
    def operations(self) -> int:
        return sum(line.operations for line in self.lines)


class Scene:
    def __init__(self) -> None:
        self.clock = SimClock()
        self.meter = Meter()
        self.target = Target()
        self.metering = Metering(self.meter, self.target, self.target.read, self.clock)

    def count(self) -> None:
        self.meter.of("main", "q").managed_once()


async def test_what_was_counted_is_written() -> None:
    scene = Scene()
    await scene.metering.flush()
    assert scene.target.tries == 0, "nothing has happened"
    scene.count()
    scene.count()
    begun_ms = scene.clock.now().utc_ms
    scene.clock.advance(1_000)
    await scene.metering.flush()
    [line] = scene.target.lines
    assert (line.operations, line.from_ms, line.to_ms) == (2, begun_ms, begun_ms + 1_000)
    await scene.metering.close()
    assert scene.target.is_closed


@pytest.mark.proves("C-1")
async def test_a_full_disk_is_said_once_and_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Counting goes on in memory, an hour at a time, and is written when there is room."""
    scene = Scene()
    scene.target.is_full = True
    for _ in range(5):
        scene.count()
        scene.clock.advance(HOUR_MS // 3)
        await scene.metering.flush()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "No space left" in caplog.text
    assert sum(line.operations for line in await scene.metering.read(0, 1 << 50)) == 5
    scene.target.is_full = False
    await scene.metering.flush()
    assert scene.target.operations == 5
    assert len(scene.target.lines) < 5
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    await scene.metering.close()


async def test_the_last_second_is_written_at_the_end() -> None:
    scene = Scene()
    scene.metering.start()
    scene.count()
    await scene.metering.close()
    assert scene.target.operations == 1


async def test_reading_includes_what_is_on_its_way() -> None:
    scene = Scene()
    scene.count()
    reading = asyncio.ensure_future(scene.metering.read(0, 1 << 50))
    scene.count()
    found = await reading
    assert sum(line.operations for line in found) == 2
    await scene.metering.close()


# --- over HTTP ------------------------------------------------------------------------------------


class Client:
    """Asks for /$meter; there are two namespaces, and the key decides which one is meant."""

    def __init__(self) -> None:
        self.harness = BrokerHarness()
        clock = self.harness.clock
        self.target = Target()
        gateway = self.harness.gateway
        self.metering = Metering(gateway.meter, self.target, self.target.read, clock)
        namespaces = [
            Namespace(name, gateway, self.harness.changes, Authorizer(rules), clock, 0, prefix)
            for name, prefix, rules in (
                ("main", "", [AuthorizationRule("Root", [MANAGE], "key", "spare")]),
                ("other", "other:", [AuthorizationRule("Other", [LISTEN], "other key", "spare")]),
            )
        ]
        self.router = MeterRequests(HttpAccess(Namespaces(namespaces), clock), self.metering)

    async def ask(
        self, query: dict[str, str], token: str, method: str = "GET", path: str = "/$meter"
    ) -> tuple[int, dict[str, Any]]:
        request = Request(method, path, query, {"authorization": token}, b"")
        assert is_about_meter(request.segments())
        response = await self.router.answer(request)
        return response.status, json.loads(response.body)


async def test_a_namespace_sees_what_is_its_own() -> None:
    client = Client()
    meter = client.harness.gateway.meter
    meter.of("main", "q").managed_once()
    meter.of("other", "secret").managed_once()
    status, document = await client.ask({}, sign())
    assert status == 200
    assert [line["entity"] for line in document["metered"]] == ["q"]
    assert (await client.ask({}, sign("", "Other", "other key")))[0] == 401
    assert (await client.ask({"from": "2999-01-01"}, sign()))[1] == {"metered": []}
    assert (await client.ask({"to": "1999-01-01"}, sign()))[1] == {"metered": []}
    await client.metering.close()


async def test_what_is_asked_wrongly_is_told_so() -> None:
    client = Client()
    status, document = await client.ask({"from": "noon" * 50}, sign())
    assert (status, str(document["error"])[:15]) == (400, "from=noonnoonno")
    assert len(str(document["error"])) < 150
    assert (await client.ask({}, sign(), "DELETE"))[0] == 405
    assert (await client.ask({}, sign(), path="/$meter/q"))[0] == 404
    client.target.is_broken = True
    status, document = await client.ask({}, sign())
    assert (status, document["error"]) == (
        Unavailable.http_status,
        "What was metered cannot be read: Input/output error.",
    )
    await client.metering.close()
