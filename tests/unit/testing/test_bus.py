"""`twinbus.testing.Bus`: a real server as a context manager, in the manner of Testcontainers."""

import sys
from datetime import timedelta
from pathlib import Path

import pytest

from twinbus.client.admin import RULE
from twinbus.errors import ConfigError, EntityNotFound, ServiceError
from twinbus.launch import ServerFailed
from twinbus.testing.bus import Bus

pytestmark = pytest.mark.feature("dropin.bus")

CONFIG = {"UserConfig": {"Namespaces": [{"Name": "shop", "Queues": [{"Name": "orders"}]}]}}


def test_a_bus_and_its_namespaces() -> None:
    """Everything a test may want of one, and nothing left behind."""
    with Bus(CONFIG) as bus:
        folder = bus.server.data_dir
        assert bus.get_connection_string() == bus.connection_string
        assert (bus.get_container_host_ip(), bus.get_exposed_port(5672)) == (bus.host, bus.port)
        assert bus.message_count("orders") == 0
        with bus.fresh_namespace() as other:
            with pytest.raises(EntityNotFound):
                other.message_count("orders")
            made = other.create_queue(
                "slow", lock_duration=timedelta(seconds=90), max_delivery_count=3
            )
            assert made.properties["LockDuration"] == "PT1M30S"
            assert made.properties["MaxDeliveryCount"] == "3"
            made = other.create_topic("news", requires_duplicate_detection=True)
            assert made.properties["RequiresDuplicateDetection"] == "true"
            other.create_subscription("news", "all", default_message_time_to_live="PT1H")
            other.create_subscription("news", "large", sql="amount > 100")
            rules = [rule.name for rule in other.admin.list(RULE, ("news", "large"))]
            assert rules == ["sql"]
            with other.fault("refuse-management"), pytest.raises(ServiceError):
                other.message_count("slow")
            assert other.message_count("slow") == 0
            assert other.message_count("news", "all") == 0
            other.fault("slow-store", delay_ms=1)  # of all; ends with the namespace
            other.kill()
        # It had to be started again for that.
        assert bus.message_count("orders") == 0
        bus.restart()
        assert bus.message_count("orders") == 0
    assert not folder.exists()
    with pytest.raises(ConfigError, match="not running"):
        bus.connection_string  # noqa: B018 - looking is what is tested


def test_a_directory_of_its_own(tmp_path: Path) -> None:
    bus = Bus().with_data(tmp_path / "kept" / "data").with_arguments("--namespace", "shop")
    bus.start()
    bus.create_queue("orders")
    with pytest.raises(ConfigError, match="runs already"):
        bus.start()
    bus.stop()
    bus.stop()  # once more does no harm
    path = tmp_path / "kept" / "Config.json"
    path.write_text('{"UserConfig": {"Namespaces": [{"Queues": [{"Name": "bills"}]}]}}')
    with bus.with_config(path):
        assert [queue.name for queue in bus.admin.list_queues()] == ["bills", "orders"]


def test_a_bus_that_cannot_start() -> None:
    bus = Bus(arguments=["--limits", "none"])
    with pytest.raises(ServerFailed, match="--limits"):
        bus.start()
    with pytest.raises(ConfigError, match="not running"):
        bus.kill()


def test_a_failure_is_not_covered() -> None:
    """Not by what an end of the server might have to say as well."""
    bus = Bus()
    with pytest.raises(ZeroDivisionError):
        fail_within(bus)
    with pytest.raises(ConfigError, match="not running"):
        bus.kill()


def fail_within(bus: Bus) -> None:
    with bus:
        raise ZeroDivisionError


def test_without_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is needed for its clients only."""
    monkeypatch.setitem(sys.modules, "azure.servicebus", None)
    with pytest.raises(ConfigError, match=r"twinbus\[pairing\]"):
        Bus().client()
