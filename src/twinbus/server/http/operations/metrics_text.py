"""Metrics as text: every family that `GET /metrics` shows.

Made in short pieces, because ten thousand entities are several megabytes of text.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from twinbus.entities.commands import Runtime
from twinbus.gateway.counting.counters import COUNTERS, EntityMetrics, Metrics
from twinbus.gateway.health.health import BrokerReport, StoreReport
from twinbus.gateway.throttling.throttle import REASONS, Throttle, Usage
from twinbus.links.store_link import DOWN, SLOW
from twinbus.server.http.operations.prometheus import (
    COUNTER,
    GAUGE,
    SUMMARY,
    family,
    header,
    labels,
)

NO_ENTITY: Final = "-NamespaceOnlyMetric-"  # what Azure Monitor writes for it
_LINES: Final = 500  # in one piece

# Attributes of Runtime, added up → name, meaning.
GAUGES: Final = (
    (
        ("active", "deferred", "scheduled", "dead_letter", "transfer_dead_letter"),
        "servicebus_messages",
        "Messages in the entity, in whatever state.",
    ),
    (("active",), "servicebus_active_messages", "Active messages."),
    (("dead_letter",), "servicebus_deadlettered_messages", "Messages in the dead-letter queue."),
    (("scheduled",), "servicebus_scheduled_messages", "Scheduled messages."),
    (("size_bytes",), "servicebus_size_bytes", "Size of the entity."),
    (("deferred",), "twinbus_deferred_messages", "Deferred messages."),
    (
        ("transfer_dead_letter",),
        "twinbus_transfer_deadlettered_messages",
        "Messages that could not be forwarded.",
    ),
)


class EntitySample(NamedTuple):
    """One entity at the moment of looking: its labels, its counters, what it holds."""

    at: str
    metrics: EntityMetrics | None
    runtime: Runtime | None = None  # a namespace has none


def entity_labels(namespace: str, path: str) -> str:
    return labels(namespace=namespace, entity=path)


def render_entities(seen: list[EntitySample]) -> Iterator[str]:
    """Everything about entities, in pieces of which none takes long."""
    used = [(each.at, each.metrics) for each in seen if each.metrics is not None]
    for attribute, name, meaning in COUNTERS:
        yield from _render(name, COUNTER, meaning, used, (attribute,))
    held = [(each.at, each.runtime) for each in seen if each.runtime is not None]
    for attributes, name, meaning in GAUGES:
        yield from _render(name, GAUGE, meaning, held, attributes)


def _render(
    name: str,
    kind: str,
    meaning: str,
    seen: Sequence[tuple[str, object]],
    attributes: tuple[str, ...],
) -> Iterator[str]:
    """One family: for each set of labels the sum of these attributes."""
    if seen:
        yield header(name, kind, meaning)
    for first in range(0, len(seen), _LINES):
        page = seen[first : first + _LINES]
        sums = [(at, sum([getattr(each, key) for key in attributes])) for at, each in page]
        yield "".join([f"{name}{at} {value}\n" for at, value in sums])


def render_partitions(samples: Iterable[tuple[str, int, int, int]]) -> str:
    """Labels of an entity, partition, its store, and the health of that."""
    return family(
        "twinbus_partition_up",
        GAUGE,
        "Whether a partition can be reached.",
        [
            (at[:-1] + "," + labels(partition=partition, store=store)[1:], int(health != DOWN))
            for at, partition, store, health in samples
        ],
    )


def render_server(metrics: Metrics, throttle: Throttle, usage: Usage, memory_bytes: int) -> str:
    """What is counted of the gateway as a whole; `memory_bytes` is what it may use."""
    opened, closed = metrics.connections_opened, metrics.connections_closed
    latency = metrics.send_latency
    memory = usage.memory_bytes / memory_bytes if memory_bytes else 0.0
    refused = zip(REASONS, throttle.refused_counts, strict=True)
    send_latency = "servicebus_server_send_latency_milliseconds"
    return "".join(
        [
            _one("servicebus_active_connections", GAUGE, "Connections.", opened - closed),
            _one("servicebus_connections_opened_total", COUNTER, "Connections opened.", opened),
            _one("servicebus_connections_closed_total", COUNTER, "Connections closed.", closed),
            _one(
                "servicebus_pending_checkpoint_operation_count",
                GAUGE,
                "Operations begun and not answered.",
                usage.open_count,
            ),
            header(send_latency, SUMMARY, "Time until a send was durable, of a sample."),
            f"{send_latency}_sum {latency.sum_ms}\n{send_latency}_count {latency.count}\n",
            _one(
                "servicebus_namespace_cpu_usage",
                GAUGE,
                "Percent of one core that this process uses.",
                round(usage.cpu_share * 100, 1),
            ),
            _one(
                "servicebus_namespace_memory_usage",
                GAUGE,
                "Percent of the memory there is for it that this process uses.",
                round(memory * 100, 1),
            ),
            _one("twinbus_memory_bytes", GAUGE, "The same in bytes.", usage.memory_bytes),
            _one("twinbus_loop_lag_seconds", GAUGE, "How late it is.", usage.lag_ms / 1_000),
            family(
                "twinbus_throttled_total",
                COUNTER,
                "Requests told to come later, by what was short.",
                [(labels(reason=reason), count) for reason, count in refused],
            ),
        ]
    )


def _one(name: str, kind: str, meaning: str, value: float) -> str:
    return family(name, kind, meaning, [("", value)])


def render_brokers(brokers: list[BrokerReport]) -> str:
    """Broker processes, one sample each."""
    rows = [(labels(broker=each.broker), each) for each in brokers]
    up = [(at, int(each.state == "up")) for at, each in rows]
    restarts = [(at, each.restarts) for at, each in rows]
    lag = [(at, each.lag_ms / 1_000) for at, each in rows]
    cpu = [(at, round(each.cpu_share * 100, 1)) for at, each in rows]
    memory = [(at, each.memory_bytes) for at, each in rows]
    return (
        family("twinbus_broker_up", GAUGE, "Whether a broker runs and is well.", up)
        + family("twinbus_broker_restarts_total", COUNTER, "How often it was restarted.", restarts)
        + family("twinbus_broker_lag_seconds", GAUGE, "How late its loop is.", lag)
        + family("twinbus_broker_cpu_usage", GAUGE, "Percent of one core that it uses.", cpu)
        + family("twinbus_broker_memory_bytes", GAUGE, "Memory that it uses.", memory)
    )


def render_stores(stores: list[StoreReport]) -> str:
    """Stores, one sample each."""
    rows = [(labels(store=each.store), each) for each in stores]
    up = [(at, int(each.health != DOWN)) for at, each in rows]
    slow = [(at, int(each.health == SLOW)) for at, each in rows]
    age = [(at, each.commit_age_ms / 1_000) for at, each in rows]
    pending = [(at, each.pending_bytes) for at, each in rows]
    free = [(at, each.disk_free_bytes) for at, each in rows if each.disk_free_bytes >= 0]
    return (
        family("twinbus_store_up", GAUGE, "Whether a store can be reached.", up)
        + family("twinbus_store_slow", GAUGE, "Whether it takes too long.", slow)
        + family("twinbus_store_commit_age_seconds", GAUGE, "Age of its oldest open commit.", age)
        + family("twinbus_store_pending_bytes", GAUGE, "Of sends not durable yet.", pending)
        + family("twinbus_store_disk_free_bytes", GAUGE, "Room left on its disk.", free)
    )


def render_traces(exported: int, dropped: int, failed: int) -> str:
    """Spans, where there are traces."""
    return _one(
        "twinbus_trace_spans_exported_total", COUNTER, "Spans that were exported.", exported
    ) + family(
        "twinbus_trace_spans_lost_total",
        COUNTER,
        "Spans that were not, by why.",
        [(labels(reason="queue"), dropped), (labels(reason="export"), failed)],
    )
