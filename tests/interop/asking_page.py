"""Asks a server what the page asks: JSON over HTTP, with or without a token."""

import http.client
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import quote

from twinbus.client.connection_string import ConnectionString
from twinbus.client.sas import make_sas_token
from twinbus.clock import SystemClock
from twinbus.testing.server import ServerProcess

WAIT_S_MAX = 30.0


def token_of(connection_string: str, path: str = "") -> str:
    target = ConnectionString.parse(connection_string)
    expires_s = SystemClock().now().utc_ms // 1_000 + 300
    return make_sas_token(f"https://h/{path}", target.key_name, target.key, expires_s)


class Page:
    """One server, as its page sees it; the token is the server's own unless another is given."""

    def __init__(self, server: ServerProcess, token: str | None = None) -> None:
        self.port = server.port
        self.token = token_of(server.connection_string) if token is None else token

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str | None = None,
        **headers: str,
    ) -> tuple[int, dict[str, str], bytes]:
        token = self.token if token is None else token
        if token:
            headers["Authorization"] = token
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body else None
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S_MAX)
        with closing(connection):
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()

    def get(self, path: str, **query: object) -> dict[str, Any]:
        text = "&".join(f"{name}={quote(str(value))}" for name, value in query.items())
        status, _, body = self.ask("GET", f"/$page/{path}?{text}")
        assert status == 200, body
        document: dict[str, Any] = json.loads(body)
        return document

    def change(self, what: str, entity: str, *numbers: object) -> dict[str, Any]:
        wanted = {"entity": entity, "sequence_numbers": list(numbers)}
        status, _, body = self.ask("POST", f"/$page/{what}", wanted)
        assert status == 200, body
        document: dict[str, Any] = json.loads(body)
        return document

    def entity(self, path: str) -> dict[str, Any]:
        return next(each for each in self.get("state")["entities"] if each["path"] == path)

    @contextmanager
    def live(self, query: str = "") -> Iterator[Iterator[dict[str, Any]]]:
        """Documents as they come; ends when the server ends it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S_MAX)
        with closing(connection):
            connection.request("GET", f"/$page/live{query}", headers={"Authorization": self.token})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            assert answer.getheader("Content-Type") == "text/event-stream; charset=utf-8"
            yield _events(answer)


def _events(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    while line := answer.readline():
        if line.startswith(b"data: "):
            yield json.loads(line[6:])
