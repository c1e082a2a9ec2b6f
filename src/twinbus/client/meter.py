"""A running server's metered usage, over HTTP (docs/operating/cost.md)."""

import ssl
from urllib.parse import urlencode

from twinbus.client.http import HttpClient
from twinbus.errors import ServiceError
from twinbus.metered import Metered, read_document


class MeterClient:
    """The meter of one namespace."""

    def __init__(self, connection_string: str, tls: ssl.SSLContext | None = None) -> None:
        self._http = HttpClient(connection_string, tls)

    def read(self, from_text: str | None = None, to_text: str | None = None) -> list[Metered]:
        """A sum for each day, entity and kind; times are ISO 8601."""
        span = {"from": from_text, "to": to_text}
        query = urlencode({name: text for name, text in span.items() if text is not None})
        document = self._http.exchange_json("GET", f"/$meter?{query}")
        lines = [read_document(each) for each in document.get("metered", [])]
        if "metered" not in document or None in lines:
            raise ServiceError("the endpoint does not answer as a meter of this version")
        return [line for line in lines if line is not None]
