"""Faults over HTTP: add, list and clear them on a running server (docs/reference/faults.md).

    client = FaultClient(connection_string)
    fault = client.add({"kind": "throttle", "entity": "orders", "duration_s": 30})
    client.clear(fault["id"])

Documents are those of the protocol; the server checks them.
"""

import json
import ssl
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from twinbus.client.http import Document, HttpClient

FAULTS: Final = "/$faults"


class FaultClient:
    """The faults of one server."""

    def __init__(self, connection_string: str, tls: ssl.SSLContext | None = None) -> None:
        self._request = HttpClient(connection_string, tls).exchange_json

    def add(self, fault: Mapping[str, object]) -> Document:
        return self._request("POST", FAULTS, json.dumps(fault).encode())

    def list(self) -> list[Document]:
        faults: list[Document] = self._request("GET", FAULTS).get("faults", [])
        return faults

    def clear(self, fault_id: str) -> None:
        self._request("DELETE", f"{FAULTS}/{quote(fault_id, safe='')}")

    def clear_all(self) -> None:
        self._request("DELETE", FAULTS)
