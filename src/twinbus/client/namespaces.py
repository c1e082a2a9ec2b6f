"""Namespaces over HTTP: make, list and delete them on a running server.

client = NamespaceClient(connection_string)   # of the first namespace, with the Manage right
connection_string = client.create("test-1")
client.delete("test-1")
"""

import json
import ssl
from typing import Any, Final
from urllib.parse import quote

from twinbus.client.connection_string import ConnectionString
from twinbus.client.http import REFUSED, HttpClient, refusal

NAMESPACES: Final = "/$namespaces"

Document = dict[str, Any]  # any JSON


class NamespaceClient:
    """The namespaces of one server."""

    def __init__(self, connection_string: str, tls: ssl.SSLContext | None = None) -> None:
        self._target = ConnectionString.parse(connection_string)
        self._http = HttpClient(connection_string, tls)

    def create(self, name: str, config: str = "") -> str:
        """A new namespace, with what the text of a Config.json declares; its connection string."""
        body = json.dumps({"config": config}).encode() if config else b""
        made = self._request("PUT", _path(name), body)
        plain = "UseDevelopmentEmulator=true;" if self._target.development_emulator else ""
        return (
            f"Endpoint=sb://{self._target.authority};SharedAccessKeyName={made['key_name']};"
            f"SharedAccessKey={made['key']};{plain}"
        )

    def list(self) -> list[Document]:
        found: list[Document] = self._request("GET", NAMESPACES).get("namespaces", [])
        return found

    def delete(self, name: str) -> None:
        """It goes, with its entities and every message in them."""
        self._request("DELETE", _path(name))

    def _request(self, method: str, path: str, body: bytes | None = None) -> Document:
        headers = {"Content-Type": "application/json"}
        status, text = self._http.exchange(method, path, body, headers)
        try:
            found = json.loads(text)
        except ValueError:
            found = {}
        document: Document = found if isinstance(found, dict) else {}
        if status >= REFUSED:
            raise refusal(status, str(document.get("error", "")))
        return document


def _path(name: str) -> str:
    return f"{NAMESPACES}/{quote(name, safe='')}"
