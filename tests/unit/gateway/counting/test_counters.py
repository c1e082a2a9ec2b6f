"""Counters, and their text in Prometheus's format."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from twinbus.entities.commands import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DEFER,
    PEEK_LOCK,
    RELEASE,
    Delivered,
    Peek,
    ReceiveDeferred,
    Reply,
    Runtime,
    Send,
    Settle,
)
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.message import Message, NewMessage
from twinbus.errors import EntityNotFound, MessageLockLost, ServerBusy, ServiceError, Unavailable
from twinbus.gateway.counting.counters import COUNTERS, Enlisted, EntityMetrics, Metrics
from twinbus.gateway.directory.directory import Directory, Part
from twinbus.gateway.health.health import BrokerReport, StoreReport
from twinbus.gateway.throttling.throttle import SEND, Throttle, Usage
from twinbus.limits import PROFILES, THRESHOLDS_DEFAULT
from twinbus.links.store_link import DOWN, SLOW, UP
from twinbus.server.http.operations.metrics_text import (
    GAUGES,
    EntitySample,
    entity_labels,
    render_brokers,
    render_entities,
    render_partitions,
    render_server,
    render_stores,
    render_traces,
)
from twinbus.server.http.operations.prometheus import COUNTER, family, labels
from twinbus.testing.clock import SimClock

PAGE = Path(__file__).parents[4] / "docs" / "operating" / "metrics.md"
# What Azure Monitor lists for Microsoft.ServiceBus/namespaces, without what is deprecated there
# (CPUXNS, WSXNS) and what needs two regions (replication lag).
AZURE = {
    "IncomingRequests",
    "SuccessfulRequests",
    "ServerErrors",
    "UserErrors",
    "ThrottledRequests",
    "PendingCheckpointOperationCount",
    "ServerSendLatency",
    "IncomingMessages",
    "OutgoingMessages",
    "IncomingBytes",
    "Messages",
    "ActiveMessages",
    "DeadletteredMessages",
    "ScheduledMessages",
    "CompleteMessage",
    "AbandonMessage",
    "Size",
    "ActiveConnections",
    "ConnectionsOpened",
    "ConnectionsClosed",
    "NamespaceCpuUsage",
    "NamespaceMemoryUsage",
}


def send(count: int = 1) -> Send:
    return Send(7, [NewMessage(b"body") for _ in range(count)])


def settle(outcome: int, count: int = 1) -> Settle:
    return Settle(7, 0, [(number, 1) for number in range(count)], outcome)


def counted(metrics: EntityMetrics) -> dict[str, int]:
    """Everything that is not zero."""
    every = {attribute: getattr(metrics, attribute) for attribute, _, _ in COUNTERS}
    return {attribute: count for attribute, count in every.items() if count}


# --- counting ---------------------------------------------------------------------------------


def test_a_send() -> None:
    metrics = EntityMetrics()
    metrics.replied(Reply(send(3), [1, 2, 3], None))
    assert counted(metrics) == {
        "incoming_requests": 1,
        "successful_requests": 1,
        "incoming_messages": 3,
        "incoming_bytes": 3 * len(b"body"),
    }


@pytest.mark.parametrize(
    "error, attribute",
    [
        (ServerBusy("wait"), "throttled_requests"),
        (Unavailable("down"), "server_errors"),
        (EntityNotFound("gone"), "user_errors"),
        (MessageLockLost("lost"), "user_errors"),
    ],
)
def test_a_refusal(error: ServiceError, attribute: str) -> None:
    metrics = EntityMetrics()
    metrics.replied(Reply(send(3), None, error))
    assert counted(metrics) == {"incoming_requests": 1, attribute: 1}


@pytest.mark.parametrize(
    "outcome, attribute",
    [
        (COMPLETE, "completed"),
        (ABANDON, "abandoned"),
        (DEFER, "deferred"),
        (DEAD_LETTER, "dead_lettered"),
    ],
)
def test_settlements(outcome: int, attribute: str) -> None:
    metrics = EntityMetrics()
    metrics.replied(Reply(settle(outcome, 4), None, None))
    assert counted(metrics) == {"incoming_requests": 1, "successful_requests": 1, attribute: 4}


def test_a_settlement_that_failed_in_part() -> None:
    metrics = EntityMetrics()
    result = [None, MessageLockLost("lost"), None]
    metrics.replied(Reply(settle(COMPLETE, 3), result, None))
    assert metrics.completed == 2


def test_what_is_a_request_and_nothing_more() -> None:
    metrics = EntityMetrics()
    metrics.replied(Reply(settle(RELEASE), None, None))
    metrics.replied(Reply(Peek(7, 0, 0, 1), [], None))
    assert counted(metrics) == {"incoming_requests": 2, "successful_requests": 2}


def test_deferred_messages_that_are_received() -> None:
    metrics = EntityMetrics()
    found = [Delivered(Message(1, None, 4, 0), b"body", 0)]
    metrics.replied(Reply(ReceiveDeferred(7, 0, [1], PEEK_LOCK), found, None))
    assert (metrics.outgoing_messages, metrics.outgoing_bytes) == (1, 4)


def test_deliveries() -> None:
    metrics = EntityMetrics()
    metrics.delivered(10, 4_000)
    metrics.delivered(1, 100)
    assert counted(metrics) == {"outgoing_messages": 11, "outgoing_bytes": 4_100}


def test_counters_belong_to_an_entity_and_go_with_it() -> None:
    directory = Directory()
    entity = directory.add("queue", "orders", QueueDescription(), [Part(0, 7, 0)])
    unused = entity.metrics.is_used
    entity.metrics.delivered(1, 1)
    assert (unused, entity.metrics.is_used) == (False, True)
    directory.remove(entity)
    again = directory.add("queue", "orders", QueueDescription(), [Part(0, 8, 0)])
    assert not again.metrics.is_used


@pytest.mark.proves("M-7")
def test_what_a_transaction_does_counts_when_it_is_committed() -> None:
    metrics = EntityMetrics()
    Enlisted(metrics, settle(COMPLETE, 2)).rolled_back()
    assert counted(metrics) == {}
    Enlisted(metrics, settle(COMPLETE, 2)).committed()
    Enlisted(metrics, send(3)).committed()
    assert (metrics.completed, metrics.incoming_messages) == (2, 3)


def test_the_counters_of_a_namespace() -> None:
    metrics = Metrics(SimClock())
    assert metrics.of_namespace("bus") is metrics.of_namespace("bus")
    assert metrics.of_namespace("bus") is not metrics.of_namespace("other")


def test_one_send_at_a_time_is_timed() -> None:
    clock = SimClock()
    latency = Metrics(clock).send_latency
    first, second = send(), send()
    latency.begin(first)
    clock.advance(5)
    latency.begin(second)
    latency.end(second)
    clock.advance(3)
    latency.end(first)
    latency.end(first)
    assert (latency.count, latency.sum_ms) == (1, 8)


def test_a_send_that_is_never_answered_does_not_end_the_timing() -> None:
    clock = SimClock()
    latency = Metrics(clock).send_latency
    latency.begin(send())
    clock.advance(60_000)
    for _ in range(10_001):
        last = send()
        latency.begin(last)
    clock.advance(2)
    latency.end(last)
    assert (latency.count, latency.sum_ms) == (1, 2)


# --- text -------------------------------------------------------------------------------------

SAMPLE = re.compile(
    r'([a-z_]+)(\{[a-z]+="([^"\\\n]|\\[\\n"])*"(,[a-z]+="([^"\\\n]|\\.)*")*\})? (\S+)'
)


def check_format(text: str) -> dict[str, str]:
    """Every line is what the format allows, every family stands together; samples by line."""
    samples: dict[str, str] = {}
    seen: list[str] = []
    kind = ""
    assert text.endswith("\n")
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            assert line.split(" ")[2] not in seen, "a family may stand in one place only"
            seen.append(line.split(" ")[2])
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == seen[-1]
            assert kind in {"counter", "gauge", "summary"}
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert match[1] in (seen[-1], seen[-1] + "_sum", seen[-1] + "_count")
            assert (kind == "counter") == match[1].endswith("_total")
            float(match[6])
            assert line.rpartition(" ")[0] not in samples
            samples[line.rpartition(" ")[0]] = match[6]
    return samples


def seen(count: int = 1) -> list[EntitySample]:
    found = []
    for number in range(count):
        runtime = Runtime()
        runtime.active, runtime.scheduled, runtime.size_bytes = 3, 2, 1 << 60
        metrics = EntityMetrics()
        metrics.delivered(number, 0)
        found.append(EntitySample(entity_labels("bus", f"queue-{number}"), metrics, runtime))
    return found


def test_entities() -> None:
    samples = check_format("".join(render_entities(seen())))
    at = '{namespace="bus",entity="queue-0"}'
    assert samples["servicebus_messages" + at] == "5"
    assert samples["servicebus_active_messages" + at] == "3"
    assert samples["servicebus_scheduled_messages" + at] == "2"
    assert samples["servicebus_size_bytes" + at] == str(1 << 60)
    assert samples["servicebus_outgoing_messages_total" + at] == "0"


def test_many_entities_come_in_pieces() -> None:
    pieces = list(render_entities(seen(1_200)))
    assert max(len(piece) for piece in pieces) < 100_000
    samples = check_format("".join(pieces))
    assert len(samples) == 1_200 * (len(COUNTERS) + len(GAUGES))


def test_an_entity_that_nobody_has_used_has_gauges_only() -> None:
    samples = check_format("".join(render_entities([EntitySample("", None, Runtime())])))
    assert set(samples) == {name for _, name, _ in GAUGES}


def test_nothing_is_said_of_nobody() -> None:
    assert "".join(render_entities([])) == ""
    assert family("x", COUNTER, "X.", []) == ""


@pytest.mark.parametrize(
    "name, escaped",
    [
        ('a"} 1\nb{c="', r"a\"} 1\nb{c=\""),
        ("back\\slash", r"back\\slash"),
        ("ümlaut/子", "ümlaut/子"),
    ],
)
def test_a_name_cannot_break_out_of_its_label(name: str, escaped: str) -> None:
    text = labels(entity=name)
    assert text == '{entity="' + escaped + '"}'
    check_format(family("x", "gauge", "X.", [(text, 1)]))


def test_partitions() -> None:
    at = entity_labels("bus", "orders")
    samples = check_format(render_partitions([(at, 3, 1, DOWN), (at, 4, 0, SLOW)]))
    prefix = 'twinbus_partition_up{namespace="bus",entity="orders",partition='
    assert samples == {prefix + '"3",store="1"}': "0", prefix + '"4",store="0"}': "1"}


def test_brokers_and_stores() -> None:
    broker = BrokerReport(1, "starting")
    broker.restarts, broker.lag_ms, broker.cpu_share = 2, 1_500, 0.5
    samples = check_format(render_brokers([BrokerReport(0, "up"), broker]))
    assert samples['twinbus_broker_up{broker="0"}'] == "1"
    assert samples['twinbus_broker_up{broker="1"}'] == "0"
    assert samples['twinbus_broker_restarts_total{broker="1"}'] == "2"
    assert samples['twinbus_broker_lag_seconds{broker="1"}'] == "1.5"
    assert samples['twinbus_broker_cpu_usage{broker="1"}'] == "50.0"
    stores = [StoreReport(0, 0, UP), StoreReport(1, -1, DOWN), StoreReport(2, 0, SLOW)]
    stores[0].disk_free_bytes = 5
    samples = check_format(render_stores(stores))
    assert [samples[f'twinbus_store_up{{store="{n}"}}'] for n in range(3)] == ["1", "0", "1"]
    assert [samples[f'twinbus_store_slow{{store="{n}"}}'] for n in range(3)] == ["0", "0", "1"]
    assert samples['twinbus_store_disk_free_bytes{store="0"}'] == "5"
    assert 'twinbus_store_disk_free_bytes{store="1"}' not in samples


def server_text() -> str:
    metrics = Metrics(SimClock())
    metrics.connections_opened, metrics.connections_closed = 5, 2
    throttle = Throttle(THRESHOLDS_DEFAULT, PROFILES["standard"])
    throttle.observe(Usage(1.0, 5_000))
    throttle.admit("", 7, SEND, 1, SimClock().now())
    return render_server(metrics, throttle, Usage(0.25, 10, 300, open_count=9), 1_000)


def test_the_server() -> None:
    samples = check_format(server_text())
    assert samples["servicebus_active_connections"] == "3"
    assert samples["servicebus_connections_opened_total"] == "5"
    assert samples["servicebus_pending_checkpoint_operation_count"] == "9"
    assert samples["servicebus_namespace_cpu_usage"] == "25.0"
    assert samples["servicebus_namespace_memory_usage"] == "30.0"
    assert samples["servicebus_server_send_latency_milliseconds_count"] == "0"
    assert samples['twinbus_throttled_total{reason="cpu"}'] == "1"


def test_traces() -> None:
    samples = check_format(render_traces(30, 2, 1))
    assert samples["twinbus_trace_spans_exported_total"] == "30"
    assert samples['twinbus_trace_spans_lost_total{reason="queue"}'] == "2"
    assert samples['twinbus_trace_spans_lost_total{reason="export"}'] == "1"


# --- the documentation ------------------------------------------------------------------------


def names(text: str) -> set[str]:
    return set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))


def in_backticks(lines: Iterable[str]) -> set[str]:
    return {name for line in lines for name in re.findall(r"`((?:servicebus|twinbus)_\w+)`", line)}


def test_every_name_is_documented_and_every_documented_name_is_there() -> None:
    text = server_text() + "".join(render_entities(seen()))
    text += render_brokers([BrokerReport(0, "up")])
    store = StoreReport(0, 0, UP)
    store.disk_free_bytes = 1
    text += render_stores([store])
    text += render_partitions([(entity_labels("bus", "orders"), 0, 0, UP)])
    text += render_traces(3, 2, 1)
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    assert in_backticks(rows) == names(text)


def test_every_metric_of_azure_has_its_row() -> None:
    rows = re.findall(r"^\| (\w+) \| `servicebus_\w+`", PAGE.read_text(), re.MULTILINE)
    assert set(rows) == AZURE
