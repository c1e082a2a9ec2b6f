"""HTTP requests to one namespace, on the standard library: one connection per request.

Signs every request with a token for the whole namespace.  The caller interprets the answer.
"""

import http.client
import json
import ssl
from collections.abc import Mapping
from typing import Any, Final

from twinbus.client.connection_string import ConnectionString
from twinbus.client.sas import make_sas_token
from twinbus.clock import SystemClock
from twinbus.errors import (
    ArgumentInvalid,
    EntityAlreadyExists,
    EntityNotFound,
    ServiceError,
    TwinbusError,
    Unauthorized,
)

REQUEST_DURATION_S_MAX: Final = 30
TOKEN_LIFETIME_S: Final = 300
REFUSED: Final = 400  # the lowest status that says no
NOBODY_FIX: Final = (
    "start one with `twinbus serve`, or check host and port in the connection string"
)
TLS_FIX: Final = (
    "set SSL_CERT_FILE to its CA (`twinbus env` does), or end the connection string with "
    "UseDevelopmentEmulator=true; for a plain connection"
)

_REFUSALS: Final[Mapping[int, type[ServiceError]]] = {
    400: ArgumentInvalid,
    401: Unauthorized,
    404: EntityNotFound,
    409: EntityAlreadyExists,
}

Document = dict[str, Any]  # any JSON


class Unreachable(TwinbusError):
    """Nobody answers at the endpoint."""


class HttpClient:
    """Asks one namespace."""

    def __init__(self, connection_string: str, tls: ssl.SSLContext | None = None) -> None:
        self._target = ConnectionString.parse(connection_string)
        self._tls = tls

    def exchange(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        """The status and the body of the answer, or Unreachable."""
        target = self._target
        connection: http.client.HTTPConnection
        if target.development_emulator and self._tls is None:
            connection = http.client.HTTPConnection(
                target.host, target.port, timeout=REQUEST_DURATION_S_MAX
            )
        else:
            tls = self._tls or ssl.create_default_context()
            connection = http.client.HTTPSConnection(
                target.host, target.port, timeout=REQUEST_DURATION_S_MAX, context=tls
            )
        try:
            connection.request(method, path, body, {"Authorization": self._token(), **headers})
            response = connection.getresponse()
            return response.status, response.read()
        except ssl.SSLError as error:
            reason = f"TLS with {target.authority} failed ({error.reason or error}); {TLS_FIX}"
            raise Unreachable(reason) from error
        except (OSError, http.client.HTTPException) as error:
            reason = f"no bus answers at {target.authority} ({error}); {NOBODY_FIX}"
            raise Unreachable(reason) from error
        finally:
            connection.close()

    def exchange_json(self, method: str, path: str, body: bytes | None = None) -> Document:
        """The JSON object of the answer; one that is none says nothing.  Raises what is refused."""
        headers = {"Content-Type": "application/json"}
        status, text = self.exchange(method, path, body, headers)
        try:
            found = json.loads(text)
        except ValueError:
            found = {}
        document: Document = found if isinstance(found, dict) else {}
        if status >= REFUSED:
            raise refusal(status, str(document.get("error", "")))
        return document

    def _token(self) -> str:
        """A shared access signature for the whole namespace."""
        target = self._target
        expires_s = SystemClock().now().utc_ms // 1_000 + TOKEN_LIFETIME_S
        uri = f"https://{target.authority}"
        return make_sas_token(uri, target.key_name, target.key, expires_s)


def refusal(status: int, reason: str) -> ServiceError:
    """The error for an answer with this status."""
    return _REFUSALS.get(status, ServiceError)(reason or f"HTTP status {status}")
