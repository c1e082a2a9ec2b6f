"""Health with broker processes: a broker that hangs is seen, in every place where one looks."""

import json
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError

from tests.interop.administration import connect
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.feature("available.health", "available.metrics")

PATIENCE_S = 30.0


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data_dir = tmp_path_factory.mktemp("brokers") / "data"
    with ServerProcess(data_dir, arguments=["--brokers", "2"]) as process:
        yield process


def read(server: ServerProcess, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}") as answer:
        return str(answer.read().decode())


def look(server: ServerProcess) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(read(server, "/health?detail"))
    return document


@pytest.mark.proves("A-1", "A-4", "E-12")
def test_a_broker_that_hangs(server: ServerProcess) -> None:
    with connect(server) as admin:
        admin.create_queue("orders", enable_partitioning=True)
        assert look(server)["status"] == "healthy"
        assert admin.get_queue("orders").availability_status == "Available"
        os.kill(look(server)["brokers"][1]["pid"], signal.SIGSTOP)
        sick: list[dict[str, Any]] = []
        availability: set[object] = set()
        metrics = ""
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            seen = look(server)
            if seen["entities"]:
                sick.append(seen)
                metrics = metrics or read(server, "/metrics")
            try:
                availability.add(admin.get_queue("orders").availability_status)
            except HttpResponseError:
                availability.add("refused")
            if sick and seen["status"] == "healthy":
                break
            time.sleep(0.02)
    assert "Limited" in availability
    first = sick[0]
    assert first["status"] == "degraded"
    assert first["brokers"][1]["state"] != "up"
    assert first["stores"][1]["health"] == "down"
    (orders,) = first["entities"]
    assert orders["entity"] == "orders"
    assert orders["availability"] == "Limited"
    assert set(orders["cannot"]) == {"manage"}  # sending and receiving go on
    assert [each["partition"] for each in orders["partitions"]] == list(range(1, 16, 2))
    at = 'twinbus_partition_up{namespace="twinbus",entity="orders",partition='
    assert metrics.count(at) == 16
    assert look(server)["brokers"][1]["restarts"] == 1
