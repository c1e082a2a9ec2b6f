"""Spans of the bus join those of the official SDK: one trace from the application to the settling.

The application's half is `azure-core-tracing-opentelemetry`, Azure's own way of tracing its SDKs;
the bus's half is read from the file that `--traces` names.
"""

import json
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from azure.core.settings import settings
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.interop.administration import connect
from twinbus.launch import ServerFailed
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.feature("observe.traces")


@pytest.fixture(scope="module")
def application() -> Iterator[InMemorySpanExporter]:
    """Spans of this process, which is the application, and of the SDK in it."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    settings.tracing_implementation = "opentelemetry"
    yield exporter
    settings.tracing_implementation.unset_value()


def trace_of(span: ReadableSpan) -> str:
    return f"0x{span.context.trace_id:032x}"


def id_of(span: ReadableSpan) -> str:
    return f"0x{span.context.span_id:016x}"


def read_spans(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_one_trace_from_end_to_end(application: InMemorySpanExporter, tmp_path: Path) -> None:
    """Through broker processes and a partition, which is the longest way there is."""
    spans = tmp_path / "spans.jsonl"
    arguments = ["--traces", str(spans), "--brokers", "2"]
    with ServerProcess(tmp_path / "data", arguments=arguments) as server:
        server.create_queue("orders", enable_partitioning=True)
        with connect(server) as admin:
            admin.create_topic("news")
            admin.create_subscription("news", "all")
        application.clear()
        checkout = trace.get_tracer("shop").start_as_current_span("checkout")
        client = ServiceBusClient.from_connection_string(server.connection_string)
        with client, checkout:
            with client.get_queue_sender("orders") as sender:
                sender.send_messages(ServiceBusMessage(b"one coffee", message_id="first"))
            with client.get_queue_receiver("orders") as receiver:
                [message] = receiver.receive_messages(1, max_wait_time=10)
                receiver.dead_letter_message(message, reason="cold")
            with client.get_topic_sender("news") as publisher:
                publisher.send_messages(ServiceBusMessage(b"closed", message_id="second"))
            with client.get_subscription_receiver("news", "all") as receiver:
                [message] = receiver.receive_messages(1, max_wait_time=10)
                receiver.complete_message(message)
    own = {span.name: span for span in application.get_finished_spans()}
    assert own.keys() >= {"checkout", "ServiceBus.send", "ServiceBus.message"}
    found = read_spans(spans)
    assert {span["context"]["trace_id"] for span in found} == {trace_of(own["checkout"])}
    assert {trace_of(span) for span in application.get_finished_spans()} == {
        trace_of(own["checkout"])
    }
    sent = [id_of(each) for each in application.get_finished_spans() if "message" in each.name]
    for name, message_id, outcome, parent in (
        ("orders", "first", "dead_letter", sent[0]),
        ("news/Subscriptions/all", "second", "complete", sent[1]),
    ):
        store, deliver, settle = [
            span for span in found if span["attributes"]["messaging.message.id"] == message_id
        ]
        assert store["name"] == f"store {name.partition('/')[0]}"
        assert deliver["name"] == f"deliver {name}"
        assert settle["name"] == f"settle {name}"
        assert store["parent_id"] == deliver["parent_id"] == parent
        assert settle["parent_id"] == deliver["context"]["span_id"]
        attributes = settle["attributes"]
        assert attributes["messaging.servicebus.disposition_status"] == outcome
        assert attributes["messaging.destination.name"] == name.partition("/")[0]
        assert attributes["messaging.system"] == "servicebus"
        assert attributes["twinbus.namespace"] == "twinbus"
    assert found[-1]["attributes"]["messaging.destination.subscription.name"] == "all"


def test_without_a_trace_there_are_no_spans(
    application: InMemorySpanExporter, tmp_path: Path
) -> None:
    spans = tmp_path / "spans.jsonl"
    with ServerProcess(tmp_path / "data", arguments=["--traces", str(spans)]) as server:
        server.create_queue("orders")
        with ServiceBusClient.from_connection_string(server.connection_string) as client:
            settings.tracing_implementation = None
            with client.get_queue_sender("orders") as sender:
                sender.send_messages([ServiceBusMessage(b"x") for _ in range(3)])
                settings.tracing_implementation = "opentelemetry"
                sender.send_messages(ServiceBusMessage(b"x", message_id="traced"))
            with client.get_queue_receiver("orders", receive_mode="receiveanddelete") as receiver:
                left = 4
                while left:
                    left -= len(receiver.receive_messages(left, max_wait_time=10))
    found = read_spans(spans)
    assert [span["name"] for span in found] == ["store orders", "deliver orders"]
    assert {span["attributes"]["messaging.message.id"] for span in found} == {"traced"}


class Collecting(BaseHTTPRequestHandler):
    """The least of an OTLP collector."""

    requests: list[ExportTraceServiceRequest]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.requests.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Nothing."""


def test_otlp_to_where_the_environment_says(
    application: InMemorySpanExporter, tmp_path: Path
) -> None:
    requests: list[ExportTraceServiceRequest] = []
    handler = type("Handler", (Collecting,), {"requests": requests})
    with HTTPServer(("127.0.0.1", 0), handler) as collector:
        thread = Thread(target=collector.serve_forever)
        thread.start()
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
            "OTEL_SERVICE_NAME": "the-bus",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        }
        with ServerProcess(
            tmp_path / "data", arguments=["--traces", "otlp"], environment=environment
        ) as server:
            server.create_queue("orders")
            client = ServiceBusClient.from_connection_string(server.connection_string)
            with client, client.get_queue_sender("orders") as sender:
                sender.send_messages(ServiceBusMessage(b"x"))
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
                assert 'twinbus_trace_spans_lost_total{reason="queue"} 0' in answer.read().decode()
        collector.shutdown()
        thread.join()
    [resource] = requests[0].resource_spans
    names = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert names["service.name"] == "the-bus"
    assert [span.name for span in resource.scope_spans[0].spans] == ["store orders"]


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data", arguments=["--traces", str(tmp_path)])
    with pytest.raises(ServerFailed, match="--traces cannot write"):
        server.start()
