"""A server's telemetry: its log, the secrets it hides, its traces."""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from twinbus.errors import ConfigError
from twinbus.gateway.directory.directory import Directory, Entity
from twinbus.links.store_link import StoreLink
from twinbus.telemetry.logs import TEXT
from twinbus.telemetry.secrets import KnownSecrets

if TYPE_CHECKING:
    from twinbus.telemetry.tracing import Tracing


class TraceCounts(NamedTuple):
    """Spans so far: exported, dropped because too many waited, refused by the exporter."""

    exported: int
    dropped: int
    failed: int


class Telemetry:
    """Passed to a server with its configuration; the default logs text and traces nothing."""

    def __init__(
        self,
        log_format: str = TEXT,
        secrets: KnownSecrets | None = None,
        tracing: "Tracing | None" = None,
    ) -> None:
        self.log_format = log_format
        self.secrets = KnownSecrets() if secrets is None else secrets
        self._tracing = tracing

    def hide_keys_of(self, entity: Entity) -> None:
        """The keys of an entity's authorization rules are secrets, too."""
        for rule in entity.description.authorization_rules:
            self.secrets.add((rule.primary_key, rule.secondary_key))

    def traced(
        self,
        links: Sequence[StoreLink],
        read_id: Callable[[bytes], str | None],
        namespace: str,
        directory: Callable[[], Directory],
    ) -> list[StoreLink]:
        """The links that the gateway is to have: the same ones, unless there are traces."""
        if self._tracing is None:
            return list(links)
        # Nobody else loads OpenTelemetry.
        from twinbus.telemetry.traced_link import TracedLink  # noqa: PLC0415

        return [
            TracedLink(link, store, self._tracing, read_id, namespace, directory)
            for store, link in enumerate(links)
        ]

    @property
    def trace_counts(self) -> TraceCounts | None:
        """None where nothing is traced."""
        if self._tracing is None:
            return None
        queue = self._tracing.queue
        return TraceCounts(queue.exported, queue.dropped, queue.failed)

    def close(self) -> None:
        """Export what is left."""
        if self._tracing is not None:
            self._tracing.close()


def open_telemetry(log_format: str, secrets: KnownSecrets, traces: str | None) -> Telemetry:
    """For `serve --log-format` and `--traces`; ConfigError where something is missing."""
    headers = os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "")  # how a collector knows us
    secrets.add([pair.partition("=")[2].strip() for pair in headers.split(",")])
    if traces is None:
        return Telemetry(log_format, secrets)
    try:
        from twinbus.telemetry.tracing import open_tracing  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            f"--traces needs OpenTelemetry ({error.name} is missing); "
            "pip install 'twinbus[telemetry]'"
        ) from error
    return Telemetry(log_format, secrets, open_tracing(traces))
