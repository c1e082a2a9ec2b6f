"""Namespaces over HTTP: create, list and delete them on a running server.

client = NamespaceClient(connection_string)   # of the first namespace, with the Manage right
connection_string = client.create("test-1")
client.delete("test-1")
"""

import json
import ssl
from typing import Final
from urllib.parse import quote

from twinbus.client.connection_string import ConnectionString
from twinbus.client.http import Document, HttpClient

NAMESPACES: Final = "/$namespaces"


class NamespaceClient:
    """The namespaces of one server."""

    def __init__(self, connection_string: str, tls: ssl.SSLContext | None = None) -> None:
        self._target = ConnectionString.parse(connection_string)
        self._request = HttpClient(connection_string, tls).exchange_json

    def create(self, name: str, config: str = "") -> str:
        """Create a namespace with the entities of a Config.json; returns its connection string."""
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
        """Delete it, with its entities and all their messages."""
        self._request("DELETE", _path(name))


def _path(name: str) -> str:
    return f"{NAMESPACES}/{quote(name, safe='')}"
