"""What a server carries along of telemetry, on and off."""

import sys

import pytest

from tests.unit.gateway.sim_stores import SimStores
from twinbus.entities.descriptions import QueueDescription, SharedAccessRule
from twinbus.errors import ConfigError
from twinbus.telemetry.secrets import HIDDEN, KnownSecrets
from twinbus.telemetry.telemetry import Telemetry, open_telemetry


def test_off_there_is_nothing_in_the_way() -> None:
    stores = SimStores(2)
    telemetry = Telemetry()
    links = telemetry.traced(stores.stores, lambda _: None, "first", lambda: stores.directory)
    assert all(link is own for link, own in zip(links, stores.stores, strict=True))
    assert telemetry.trace_counts is None
    telemetry.close()


def test_without_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "twinbus.telemetry.tracing", None)
    with pytest.raises(ConfigError, match=r"pip install 'twinbus\[telemetry\]'"):
        open_telemetry("text", KnownSecrets(), "otlp")


def test_what_a_collector_is_told_is_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=key-of-the-collector,b=c")
    secrets = KnownSecrets()
    open_telemetry("text", secrets, None)
    assert secrets.hide("sent key-of-the-collector") == f"sent {HIDDEN}"


def test_keys_of_entities() -> None:
    stores = SimStores(1)
    rule = SharedAccessRule("Mine", ("Send",), "first-key-of-mine", "second-key-of-mine")
    entity = stores.create("orders", [0], QueueDescription(authorization_rules=(rule,)))
    telemetry = Telemetry()
    telemetry.hide_keys_of(entity)
    hidden = telemetry.secrets.hide("first-key-of-mine second-key-of-mine")
    assert hidden == f"{HIDDEN} {HIDDEN}"
