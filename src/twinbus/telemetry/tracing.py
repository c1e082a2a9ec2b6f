"""OpenTelemetry spans for messages that carry a trace (trace_context.py).

    application ─▶ SDK's message span ─┬▶ store     accepted, until it is durable
                                       └▶ deliver   handed to a receiver ─▶ settle

Names and attributes follow OpenTelemetry's conventions for messaging systems.  `--traces` sets
where spans go; OpenTelemetry's own environment variables set endpoint, headers, resource and
sampler.  This module is loaded only for `--traces`: it needs the extra `telemetry`.
"""

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from twinbus import PRODUCT_NAME, __version__
from twinbus.errors import ConfigError
from twinbus.telemetry.exporting import ExportQueue
from twinbus.telemetry.trace_context import find_parent, find_state

OTLP: Final = "otlp"
CONSOLE: Final = "console"
STORE: Final = "store"
DELIVER: Final = "deliver"
SETTLE: Final = "settle"
FORWARD: Final = "forward"
# OpenTelemetry's few kinds of operations; the names are ours.
_TYPES: Final = {STORE: "send", DELIVER: "receive", SETTLE: "settle", FORWARD: "send"}

_SYSTEM: Final = "messaging.system"
_OPERATION: Final = "messaging.operation.name"
_OPERATION_TYPE: Final = "messaging.operation.type"
_DESTINATION: Final = "messaging.destination.name"
_SUBSCRIPTION: Final = "messaging.destination.subscription.name"
_MESSAGE_ID: Final = "messaging.message.id"
_SUBSCRIPTIONS: Final = "/subscriptions/"

Attributes = Mapping[str, str | int]


class Tracing:
    """Makes spans; one for a server."""

    def __init__(self, exporter: SpanExporter) -> None:
        self.queue = ExportQueue(exporter)
        # What the environment says of the service counts, and ours is only a default.
        resource = Resource({"service.name": PRODUCT_NAME, "service.version": __version__}).merge(
            OTELResourceDetector().detect()
        )
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(self.queue)
        self._tracer = self._provider.get_tracer("twinbus", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def parent_of(self, stored: bytes) -> Context | None:
        """The sender's span, if the message names it."""
        parent = find_parent(stored)
        if parent is None:
            return None
        carrier = {"traceparent": parent}
        state = find_state(stored)
        if state is not None:
            carrier["tracestate"] = state
        return self._propagator.extract(carrier, Context())

    def begin(
        self,
        operation: str,
        path: str,
        message_id: str | None,
        parent: Context,
        more: Attributes | None = None,
    ) -> Span:
        """A span that begins now; `path` is the entity's."""
        attributes: dict[str, str | int] = {
            _SYSTEM: "servicebus",
            _OPERATION: operation,
            _OPERATION_TYPE: _TYPES[operation],
            **(more or {}),
        }
        at = path.lower().find(_SUBSCRIPTIONS)
        attributes[_DESTINATION] = path if at < 0 else path[:at]
        if at >= 0:
            attributes[_SUBSCRIPTION] = path[at + len(_SUBSCRIPTIONS) :]
        if message_id is not None:
            attributes[_MESSAGE_ID] = message_id
        return self._tracer.start_span(
            f"{operation} {path}", context=parent, kind=SpanKind.SERVER, attributes=attributes
        )

    def end(self, span: Span, error: Exception | None = None) -> Context:
        """It is over; what it leads to has this context."""
        if error is not None:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(Status(StatusCode.ERROR, str(error)))
        span.end()
        return trace.set_span_in_context(span, Context())

    def close(self) -> None:
        self._provider.shutdown()


class LineExporter(ConsoleSpanExporter):
    """One JSON object per line, in a file or on standard error."""

    def __init__(self, file: IO[str]) -> None:
        super().__init__(out=file, formatter=_as_line)
        self._file = file

    def shutdown(self) -> None:
        if self._file is not sys.stderr:
            self._file.close()


def open_tracing(target: str) -> Tracing:
    """For `--traces`: `otlp`, `console`, or the name of a file."""
    if target == OTLP:
        # Only here: it brings the whole of an HTTP client along.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

        # It tells of every try, for as long as nobody listens; the queue says it once.
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
        return Tracing(OTLPSpanExporter())
    if target == CONSOLE:
        return Tracing(LineExporter(sys.stderr))
    try:
        file = Path(target).open("a", encoding="utf-8")  # noqa: SIM115 - for as long as it runs
    except OSError as error:
        raise ConfigError(
            f"--traces cannot write {target} ({error.strerror}); "
            "use otlp, console, or a writable file"
        ) from error
    return Tracing(LineExporter(file))


def _as_line(span: ReadableSpan) -> str:
    return str(span.to_json(indent=None)) + "\n"
