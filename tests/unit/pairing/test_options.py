"""What the options take, what they refuse, and with which words."""

import datetime as dt
import math
from typing import Any

import pytest

from twinbus.pairing.options import (
    PairedNamespaceOptions,
    SendAvailabilityPairedNamespaceOptions,
    is_same_namespace,
)

pytestmark = pytest.mark.proves("P-2")

CONNECTION_STRING = "Endpoint=sb://second.example/;SharedAccessKeyName=root;SharedAccessKey=a2V5"


def options(**settings: Any) -> SendAvailabilityPairedNamespaceOptions:
    return SendAvailabilityPairedNamespaceOptions(object(), object(), **settings)


@pytest.mark.proves("P-2")
def test_defaults() -> None:
    made = options()
    assert isinstance(made, PairedNamespaceOptions)
    assert made.backlog_queue_count == 10
    assert made.failover_interval == dt.timedelta(minutes=1)
    assert made.ping_primary_interval == dt.timedelta(minutes=1)
    assert made.send_timeout_s == 60.0
    assert made.enable_syphon is False
    assert made.producer_keys is True
    assert (made.policy, made.restored_time_to_live) == ("documented", "original")
    assert made.primary_name is None


@pytest.mark.proves("P-2")
@pytest.mark.parametrize("interval", [0, 0.5, 3600, dt.timedelta(hours=1)])
def test_failover_interval_in_range(interval: Any) -> None:
    made = options(failover_interval=interval)
    expected = interval if isinstance(interval, dt.timedelta) else dt.timedelta(seconds=interval)
    assert made.failover_interval == expected


@pytest.mark.proves("P-2")
@pytest.mark.parametrize("interval", [1, 1800, dt.timedelta(minutes=30)])
def test_ping_interval_in_range(interval: Any) -> None:
    assert options(ping_primary_interval=interval).ping_primary_interval_s in {1.0, 1800.0}


@pytest.mark.proves("P-2")
def test_the_original_arguments_by_position() -> None:
    """Those of the .NET class, in its order; no further one, whose place nobody could know."""
    manager, client = object(), object()
    made = SendAvailabilityPairedNamespaceOptions(manager, client, 3, dt.timedelta(seconds=5), True)
    assert (made.secondary_manager, made.secondary_client) == (manager, client)
    assert made.backlog_queue_count == 3
    assert made.failover_interval == dt.timedelta(seconds=5)
    assert made.enable_syphon is True
    make: Any = SendAvailabilityPairedNamespaceOptions
    with pytest.raises(TypeError, match="positional"):
        make(manager, client, 3, 5, True, 60)


@pytest.mark.proves("P-2")
def test_the_ping_interval_can_be_set_and_is_checked() -> None:
    made = options()
    told: list[float] = []

    def watcher() -> None:
        told.append(made.ping_primary_interval_s)

    made.watch(watcher)
    made.ping_primary_interval = dt.timedelta(seconds=5)
    assert made.ping_primary_interval == dt.timedelta(seconds=5)
    for wrong in (0.5, 1801, None, "60"):
        with pytest.raises(ValueError, match="from 1 s to 1800 s"):
            made.ping_primary_interval = wrong  # type: ignore[assignment]
    assert made.ping_primary_interval_s == 5.0
    made.unwatch(watcher)
    made.ping_primary_interval = dt.timedelta(minutes=30)
    assert told == [5.0]


@pytest.mark.proves("P-2")
@pytest.mark.parametrize(
    ("setting", "value", "text"),
    [
        ("backlog_queue_count", 0, "at least 1, not 0"),
        ("backlog_queue_count", -1, "at least 1"),
        ("backlog_queue_count", 1.5, "whole number"),
        ("backlog_queue_count", "10", "whole number"),
        ("backlog_queue_count", True, "whole number"),
        ("failover_interval", -0.001, "from 0 s to 3600 s"),
        ("failover_interval", 3600.1, "from 0 s to 3600 s"),
        ("failover_interval", math.nan, "from 0 s to 3600 s"),
        ("failover_interval", math.inf, "from 0 s to 3600 s"),
        ("failover_interval", "60", "from 0 s to 3600 s"),
        ("failover_interval", dt.timedelta(minutes=61), "from 0 s to 3600 s"),
        ("ping_primary_interval", 0.999, "from 1 s to 1800 s"),
        ("ping_primary_interval", 1801, "from 1 s to 1800 s"),
        ("ping_primary_interval", None, "from 1 s to 1800 s"),
        ("send_timeout", 0, "above 0 s"),
        ("send_timeout", -1, "send_timeout must be"),
        ("policy", "lenient", "'documented' or 'legacy'"),
        ("restored_time_to_live", "none", "'original' or 'remaining'"),
        ("primary_name", "", "without '/'"),
        ("primary_name", "a/b", "without '/'"),
    ],
)
def test_out_of_range(setting: str, value: Any, text: str) -> None:
    """Whatever is outside is a ValueError that says what would be inside."""
    with pytest.raises(ValueError, match=text):
        options(**{setting: value})
    with pytest.raises(ValueError, match=text):
        SendAvailabilityPairedNamespaceOptions.from_connection_string(
            CONNECTION_STRING, **{setting: value}
        )


@pytest.mark.parametrize("setting", ["enable_syphon", "producer_keys"])
def test_switches_are_switches(setting: str) -> None:
    with pytest.raises(TypeError, match="True or False"):
        options(**{setting: "yes"})


def test_both_clients_are_needed() -> None:
    with pytest.raises(TypeError, match="must both be given"):
        SendAvailabilityPairedNamespaceOptions(None, object())
    with pytest.raises(TypeError, match="must both be given"):
        SendAvailabilityPairedNamespaceOptions(object(), None)


@pytest.mark.proves("P-2")
def test_the_count_tells_how_many_are_in_use() -> None:
    """Pairing writes it back; another pair of these options still wants as many as were asked."""
    made = options(backlog_queue_count=3)
    made.note_backlog_queues(1)
    assert (made.backlog_queue_count, made.backlog_queues_wanted) == (1, 3)
    made.backlog_queue_count = 2
    assert (made.backlog_queue_count, made.backlog_queues_wanted) == (2, 2)
    with pytest.raises(ValueError, match="at least 1"):
        made.backlog_queue_count = 0


def test_from_connection_string_keeps_the_text() -> None:
    made = SendAvailabilityPairedNamespaceOptions.from_connection_string(
        CONNECTION_STRING, 4, client_options={"retry_total": 0}, enable_syphon=True
    )
    assert made.connection_string == CONNECTION_STRING
    assert made.secondary_manager is None
    assert made.secondary_client is None
    assert made.backlog_queue_count == 4
    assert made.client_options == {"retry_total": 0}
    assert made.manager_options == {}
    assert made.enable_syphon is True
    assert options().connection_string is None


def test_no_connection_string() -> None:
    with pytest.raises(ValueError, match="connection string"):
        SendAvailabilityPairedNamespaceOptions.from_connection_string("second.example")


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        ("contoso.servicebus.windows.net", True),
        ("CONTOSO.servicebus.windows.net.", True),
        ("sb://contoso.servicebus.windows.net/", True),
        ("contoso2.servicebus.windows.net", False),
        ("contoso.servicebus.windows.net:5671", True),
        ("contoso.servicebus.windows.net:5672", False),
    ],
)
def test_same_namespace(other: str, is_same: bool) -> None:
    assert is_same_namespace("contoso.servicebus.windows.net", other) is is_same


def test_ports_tell_servers_of_one_machine_apart() -> None:
    assert is_same_namespace("localhost:5672", "sb://localhost:5672")
    assert not is_same_namespace("localhost:5672", "localhost:5673")
