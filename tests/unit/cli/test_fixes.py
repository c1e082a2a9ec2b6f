"""Every error has a reason and a fix, whatever is in its text."""

import argparse
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest

from tests.complaint import complaint
from twinbus import __version__, errors
from twinbus.cli.arguments import CONNECTION_STRING
from twinbus.cli.fixes import explain, nearest
from twinbus.cli.main import complain, main
from twinbus.client.blocking import CannotConnect
from twinbus.client.links import ConnectionLost
from twinbus.errors import ConfigError, ServiceError, TwinbusError

pytestmark = pytest.mark.feature("cli.errors")

OPTIONS = argparse.Namespace(command="peek", entity="orders")
KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, ServiceError) and kind is not ServiceError
]


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONNECTION_STRING, raising=False)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_a_bus_answers(kind: type[ServiceError]) -> None:
    reason, fix = explain(kind("It is so. SubCode=40000"), OPTIONS)
    assert reason == "It is so"
    assert fix


@pytest.mark.parametrize(
    "error, expected",
    [
        (ConfigError("no file; make one"), ("no file", "make one")),
        (ConfigError("no file"), ("no file", "see `twinbus peek --help`")),
        (CannotConnect("nobody; start one", False), ("nobody", "start one")),
        (errors.DirectoryInUse("in use"), ("in use", "stop the server that uses it, or set")),
        (
            ConnectionLost("gone; really"),
            ("gone; really", "check that the server is still running"),
        ),
        (errors.InvalidOperation("no session"), ("no session", "omit --session")),
        (TwinbusError(""), ("TwinbusError", "see `twinbus peek --help`")),
    ],
)
def test_the_two_parts(error: TwinbusError, expected: tuple[str, str]) -> None:
    reason, fix = explain(error, OPTIONS)
    assert reason == expected[0]
    assert fix.startswith(expected[1])


def test_no_text_breaks_out_of_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    complain("one\ntwo\r\x0bthree \x1b[31m\u202e", "four\n\n")
    assert complaint(capsys.readouterr().err) == r"one two three \x1b[31m\u202e; four"


def test_the_nearest_name() -> None:
    assert nearest("ordres", ["news", "Orders"]) == "did you mean `Orders`?"
    assert nearest("orders", []) == nearest("orders", ["zzz"]) == ""


# --- a server of another version ------------------------------------------------------------------


class Stranger(BaseHTTPRequestHandler):
    """A server that knows nothing of what is asked but its health."""

    version: ClassVar[str | None] = "99.0.0"

    def do_GET(self) -> None:
        is_health = self.path == "/health"
        document = {"status": "healthy", "message": "twinbus is ready.", "version": self.version}
        self.send_response(200 if is_health else 404)
        self.end_headers()
        self.wfile.write(json.dumps(document if is_health else {}).encode())

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Stranger]]:
    with HTTPServer(("127.0.0.1", 0), Stranger) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        endpoint = f"Endpoint=sb://127.0.0.1:{server.server_port};SharedAccessKeyName=n;"
        text = f"{endpoint}SharedAccessKey=k;UseDevelopmentEmulator=true;"
        monkeypatch.setenv(CONNECTION_STRING, text)
        yield Stranger
        server.shutdown()
        thread.join()


def test_a_server_of_another_version_is_named(
    stranger: type[Stranger], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in (["status"], ["cost", "show"]):
        assert main(command) == 1
        said = complaint(capsys.readouterr().err)
        assert f"the server is twinbus 99.0.0, this is {__version__}" in said
        assert said.endswith("use the same version of twinbus on both sides")
    monkeypatch.setattr(stranger, "version", None)
    assert main(["status"]) == 1
    assert "twinbus doctor" in complaint(capsys.readouterr().err)
