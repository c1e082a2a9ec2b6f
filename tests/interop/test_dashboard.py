"""The Grafana dashboard asks for nothing that a running server does not show."""

import json
import re
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.feature("observe.dashboard")

DASHBOARD = Path(__file__).parents[2] / "docs" / "operating" / "grafana-dashboard.json"
NAME = re.compile(r"\b((?:servicebus|twinbus)_[a-z_]+)(\{[^}]*\})?")
# What contract and dashboard share: Azure Monitor's metrics, each of which has to be on a panel.
AZURE_MONITOR = [
    "servicebus_incoming_messages_total",
    "servicebus_outgoing_messages_total",
    "servicebus_incoming_requests_total",
    "servicebus_successful_requests_total",
    "servicebus_server_errors_total",
    "servicebus_user_errors_total",
    "servicebus_throttled_requests_total",
    "servicebus_active_messages",
    "servicebus_deadlettered_messages",
    "servicebus_scheduled_messages",
    "servicebus_messages",
    "servicebus_size_bytes",
    "servicebus_active_connections",
    "servicebus_connections_opened_total",
    "servicebus_connections_closed_total",
    "servicebus_complete_message_total",
    "servicebus_abandon_message_total",
]


def expressions(part: Any) -> list[str]:
    """Every query of the dashboard, of panels and of variables."""
    if isinstance(part, dict):
        own = [part[key] for key in ("expr", "query") if isinstance(part.get(key), str)]
        return own + [text for value in part.values() for text in expressions(value)]
    if isinstance(part, list):
        return [text for value in part for text in expressions(value)]
    return []


def read_metrics(server: ServerProcess) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
        return str(answer.read().decode())


def test_every_metric_of_the_dashboard_is_shown(tmp_path: Path) -> None:
    asked = {
        (found[1], label)
        for text in expressions(json.loads(DASHBOARD.read_text()))
        for found in NAME.finditer(text)
        for label in re.findall(r"(\w+)=", found[2] or "") or [""]
    }
    assert len(asked) > 30
    # Two brokers: metrics of processes and partitions are only there with them.
    with ServerProcess(tmp_path / "data", arguments=["--brokers", "2"]) as server:
        server.create_queue("orders", enable_partitioning=True)
        client = ServiceBusClient.from_connection_string(server.connection_string)
        with client, client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage(b"x"))
        shown = read_metrics(server)
        while "twinbus_store_disk_free_bytes{" not in shown:  # brokers tell it every two seconds
            time.sleep(0.1)
            shown = read_metrics(server)
    for name, label in sorted(asked):
        assert re.search(rf"^{name}(\{{| )", shown, re.MULTILINE), name
        assert not label or re.search(rf"^{name}\{{.*\b{label}=", shown, re.MULTILINE), name
    assert {name for name, _ in asked} >= set(AZURE_MONITOR)
