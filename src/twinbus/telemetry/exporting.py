"""Exports spans on a separate thread, so that the bus never waits for the exporter.

    ended spans ─▶ queue, bounded ─▶ thread ─▶ exporter (OTLP, standard error, a file)
                     └─ full: dropped, and counted

Whatever the exporter does (hang, refuse, raise) costs spans, never a message.
"""

import logging
import threading
from collections import deque
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

log = logging.getLogger("twinbus.telemetry")

SPANS_MAX: Final = 16_384  # waiting; some 30 MB at most
_BATCH: Final = 512
_INTERVAL_S: Final = 1.0
_END_S_MAX: Final = 3.0  # for what is left when the server stops


class ExportQueue(SpanProcessor):
    """Takes spans that have ended; a thread hands them to the exporter."""

    def __init__(self, exporter: SpanExporter, spans_max: int = SPANS_MAX) -> None:
        self._exporter = exporter
        self._spans_max = spans_max
        self._waiting: deque[ReadableSpan] = deque()
        self._wanted = threading.Event()
        self._is_ending = False
        self._has_failed = False
        self.exported = 0
        self.dropped = 0  # the queue was full
        self.failed = 0  # the exporter would not have them
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing is exported before it has ended."""

    def on_end(self, span: ReadableSpan) -> None:
        if len(self._waiting) >= self._spans_max:
            self.dropped += 1
            return
        self._waiting.append(span)
        if len(self._waiting) >= _BATCH:
            self._wanted.set()

    def shutdown(self) -> None:
        """Export what is left, within a few seconds."""
        self._is_ending = True
        self._wanted.set()
        self._thread.join(_END_S_MAX)
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        self._wanted.set()
        return True

    def _run(self) -> None:
        while not self._is_ending:
            self._wanted.wait(_INTERVAL_S)
            self._wanted.clear()
            while self._waiting:
                self._export_some()
        while self._waiting:
            self._export_some()

    def _export_some(self) -> None:
        count = min(len(self._waiting), _BATCH)
        batch = [self._waiting.popleft() for _ in range(count)]
        try:
            is_done = self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001 - not ours, and nothing of it may stop the thread
            log.debug("exporting spans failed: %s", error)
            is_done = False
        if is_done:
            self.exported += count
        else:
            self.failed += count
        if is_done is self._has_failed:  # once, not for every batch
            self._has_failed = not is_done
            if is_done:
                log.warning("spans are exported again")
            else:
                log.warning("spans cannot be exported, and are lost: see OTEL_EXPORTER_OTLP_*")
