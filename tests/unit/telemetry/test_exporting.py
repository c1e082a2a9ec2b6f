"""Spans leave by a queue that is bounded: who takes them may hang or fail, the bus goes on."""

import threading
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from twinbus.telemetry.exporting import ExportQueue


class Collector(SpanExporter):
    """Takes spans when it may."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.is_busy = threading.Event()
        self.taken: list[str] = []
        self.results: list[SpanExportResult | Exception] = []
        self.is_closed = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.is_busy.set()
        self.may.wait()
        result = self.results.pop(0) if self.results else SpanExportResult.SUCCESS
        if isinstance(result, Exception):
            raise result
        self.taken += [span.name for span in spans]
        return result

    def shutdown(self) -> None:
        self.is_closed = True


def ended(queue: ExportQueue, count: int) -> None:
    for number in range(count):
        queue.on_end(ReadableSpan(str(number)))


def test_everything_goes_out_at_the_end() -> None:
    collector = Collector()
    collector.may.set()
    queue = ExportQueue(collector)
    ended(queue, 1_000)
    queue.shutdown()
    assert collector.taken == [str(number) for number in range(1_000)]
    assert collector.is_closed
    assert (queue.exported, queue.dropped, queue.failed) == (1_000, 0, 0)


def test_who_takes_them_hangs() -> None:
    collector = Collector()
    queue = ExportQueue(collector, spans_max=10)
    ended(queue, 1)
    queue.force_flush()
    collector.is_busy.wait()
    ended(queue, 15)  # returns at once, whatever the collector does
    assert queue.dropped == 5
    collector.may.set()
    queue.shutdown()
    assert (queue.exported, queue.dropped, queue.failed) == (11, 5, 0)


@pytest.mark.parametrize("result", [SpanExportResult.FAILURE, OSError("connection refused")])
def test_who_takes_them_fails(
    result: SpanExportResult | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    collector = Collector()
    collector.results = [result]
    queue = ExportQueue(collector)
    ended(queue, 1)
    queue.force_flush()
    collector.is_busy.wait()  # with this one alone
    ended(queue, 5)
    collector.may.set()
    queue.shutdown()
    assert (queue.exported, queue.dropped, queue.failed) == (5, 0, 1)
    texts = [record.message for record in caplog.records]
    assert texts == [
        "spans cannot be exported, and are lost: see OTEL_EXPORTER_OTLP_*",
        "spans are exported again",
    ]


def test_a_long_failure_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    collector = Collector()
    collector.may.set()
    collector.results = [SpanExportResult.FAILURE] * 2_000
    queue = ExportQueue(collector)
    ended(queue, 2_000)
    queue.shutdown()
    assert (queue.exported, queue.failed) == (0, 2_000)
    assert len(caplog.records) == 1
