"""Bringing reports to one namespace, over HTTP; what fails is left, for the next one to say.

Every connection ends within seconds, whatever the peer does.  No key leaves before the peer has
said that it is a twinbus.
"""

import datetime as dt
import http.client
import os
import secrets
import socket
import ssl
from contextlib import suppress
from typing import Final

from twinbus.clock import SystemClock
from twinbus.pairing.events import PairingStatus
from twinbus.pairing.log_lines import LOGGER
from twinbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from twinbus.pairing.reporting import Destination, destination_of, is_twinbus, report_of

PATIENCE_S: Final = 2.0
HEALTH_BYTES_MAX: Final = 65_536

_CLOCK: Final = SystemClock()


def client_name() -> str:
    """Who reports, for people."""
    return f"{socket.gethostname()[:100]} process {os.getpid()}"


def utc_now() -> dt.datetime:
    return dt.datetime.fromtimestamp(_CLOCK.now().utc_ms / 1000, dt.UTC)


def report_now(status: PairingStatus) -> bytes:
    return report_of(status, client_name(), utc_now())


class Post:
    """The way to one namespace."""

    def __init__(self, destination: Destination, report_id: str, verify: object = None) -> None:
        """`verify` is what the SDK was told of certificates: a file with those to trust."""
        self._to = destination
        self._path = f"/$pairs/{report_id}"
        self._verify = verify if isinstance(verify, str) else None
        self._connection: http.client.HTTPConnection | None = None
        self._is_twinbus: bool | None = None  # None: it has not said yet
        self._is_over = False

    def bring(self, report: bytes) -> None:
        """Best effort: it is there, or it is not."""
        if self._is_twinbus is False or self._is_over:
            return
        try:
            if self._is_twinbus is None:
                self._is_twinbus = is_twinbus(self._ask("GET", "/health", None, {})[1])
            if self._is_twinbus:
                headers = {
                    "Authorization": self._to.token(_CLOCK.now().utc_ms // 1_000),
                    "Content-Type": "application/json",
                }
                status, _ = self._ask("PUT", self._path, report, headers)
                if status in (401, 404):  # the key may not send, or the server is too old
                    self._is_twinbus = False
        except (OSError, http.client.HTTPException, ValueError) as error:
            LOGGER.debug("report-failed host=%s error=%r", self._to.host, error)

    def end(self) -> None:
        """Nothing more goes out; what is under way fails."""
        self._is_over = True
        connection = self._connection
        found = None if connection is None else connection.sock
        if found is not None:
            with suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)

    def _ask(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        to = self._to
        connection: http.client.HTTPConnection
        if to.has_tls:
            context = ssl.create_default_context(cafile=self._verify)
            connection = http.client.HTTPSConnection(
                to.host, to.port, timeout=PATIENCE_S, context=context
            )
        else:
            connection = http.client.HTTPConnection(to.host, to.port, timeout=PATIENCE_S)
        self._connection = connection
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read(HEALTH_BYTES_MAX)
        finally:
            self._connection = None
            connection.close()


def posts_of(options: SendAvailabilityPairedNamespaceOptions, primary: object) -> list[Post]:
    """The ways to those namespaces of a pair that may be told, the one that is up first."""
    if not options.report:
        return []
    report_id = secrets.token_hex(16)
    verify = options.client_options.get("connection_verify")
    known = [(options.connection_string, verify), (primary, None)]
    destinations = [
        (destination_of(text), verified) for text, verified in known if isinstance(text, str)
    ]
    return [Post(to, report_id, verified) for to, verified in destinations if to is not None]
