"""Faults over HTTP: add, list and clear them on a running server (docs/reference/faults.md).

    client = FaultClient(connection_string)
    fault = client.add({"kind": "throttle", "entity": "orders", "duration_s": 30})
    client.clear(fault["id"])

Documents are those of the protocol; what makes sense is the server's to say.
"""

import json
import ssl
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from twinbus.client.http import REFUSED, HttpClient, refusal

FAULTS: Final = "/$faults"

Document = dict[str, Any]  # any JSON


class FaultClient:
    """The faults of one server."""

    def __init__(self, connection_string: str, tls: ssl.SSLContext | None = None) -> None:
        self._http = HttpClient(connection_string, tls)

    def add(self, fault: Mapping[str, object]) -> Document:
        return self._request("POST", FAULTS, json.dumps(fault).encode())

    def list(self) -> list[Document]:
        faults: list[Document] = self._request("GET", FAULTS).get("faults", [])
        return faults

    def clear(self, fault_id: str) -> None:
        self._request("DELETE", f"{FAULTS}/{quote(fault_id, safe='')}")

    def clear_all(self) -> None:
        self._request("DELETE", FAULTS)

    def _request(self, method: str, path: str, body: bytes | None = None) -> Document:
        headers = {"Content-Type": "application/json"}
        status, text = self._http.exchange(method, path, body, headers)
        document = _document(text)
        if status >= REFUSED:
            raise refusal(status, str(document.get("error", "")))
        return document


def _document(text: bytes) -> Document:
    """What an answer says; one that is no JSON object says nothing."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
