"""The page under attack: foreign sites, strangers, hostile messages, too much of all."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.interop.asking_page import Page, token_of
from twinbus.errors import ServiceError
from twinbus.limits import PAIR_REPORT_BYTES_MAX, VIEWERS_MAX
from twinbus.pairing.blocking._posting import Post
from twinbus.pairing.reporting import Destination
from twinbus.server.http.page.messages import read_change
from twinbus.testing.server import ServerProcess

pytestmark = [pytest.mark.proves("M-11"), pytest.mark.feature("page.hostile")]

EVIL = "<img src=x onerror=alert(1)>\u202e\u0007"
STRANGER = "bus.example"  # a name that is not this machine's


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("page") / "data") as process:
        process.create_queue("orders")
        yield process
    assert "Traceback" not in process.log, process.log


@pytest.fixture
def page(server: ServerProcess) -> Page:
    return Page(server)


@pytest.mark.parametrize("path", ["/$page/state", "/$page/live", "/$pairs"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Host": STRANGER},  # a name that was made to lead here
        {"X-Forwarded-For": "192.0.2.1"},
        {"Forwarded": "for=192.0.2.1"},
    ],
)
def test_who_is_not_this_machine_needs_a_token(
    page: Page, path: str, headers: dict[str, str]
) -> None:
    status, _, body = page.ask("GET", path, token="", **headers)
    assert status == 401
    assert set(json.loads(body)) == {"error", "reason"}


@pytest.mark.parametrize("what", ["resubmit", "delete"])
def test_nothing_is_changed_without_a_token_even_from_here(page: Page, what: str) -> None:
    wanted = {"entity": "orders/$DeadLetterQueue", "sequence_numbers": [1]}
    assert page.ask("POST", f"/$page/{what}", wanted, token="")[0] == 401
    assert page.ask("POST", f"/$page/{what}", b"{", token="")[0] == 401
    assert page.ask("PUT", "/$pairs/one", {"primary": "a", "secondary": "b"}, token="")[0] == 401
    assert page.ask("GET", "/$page/messages?entity=orders", token="")[0] == 401


def test_no_other_site_is_let_in(page: Page) -> None:
    for method in ("GET", "OPTIONS", "POST"):
        _, headers, _ = page.ask(method, "/$page/state", token="", Origin="https://evil.example")
        assert not [name for name in headers if name.lower().startswith("access-control")]


def test_hostile_messages_are_text(server: ServerProcess, page: Page) -> None:
    properties = json.dumps({"MessageId": EVIL, "Label": EVIL, "SessionId": EVIL})
    status, _, _ = page.ask(
        "POST",
        "/orders/messages",
        EVIL.encode(),
        BrokerProperties=properties,
        **{"Content-Type": "text/html", "evil": json.dumps(EVIL)},
    )
    assert status == 201
    status, headers, body = page.ask("GET", "/$page/messages?entity=orders")
    assert headers["Content-Type"] == "application/json"
    assert headers["X-Content-Type-Options"] == "nosniff"
    message = json.loads(body)["messages"][0]
    assert message["message_id"] == message["subject"] == message["session_id"] == EVIL
    assert message["body"]["kind"] == "hex"  # it has a control character in it
    assert {"name": "evil", "type": "string", "value": EVIL} in message["properties"]


def test_reports_are_bounded(page: Page) -> None:
    report: dict[str, Any] = {"primary": EVIL, "secondary": "b", "client": EVIL}
    assert page.ask("PUT", "/$pairs/" + "x" * 65, report)[0] == 400
    assert page.ask("PUT", "/$pairs/%0a", report)[0] == 400
    assert page.ask("PUT", "/$pairs/", report)[0] == 405
    large = {**report, "fault": "x" * PAIR_REPORT_BYTES_MAX}
    assert page.ask("PUT", "/$pairs/large", large)[0] == 400
    assert page.ask("PUT", "/$pairs/" + "x" * 64, report)[0] == 204
    shown = json.loads(page.ask("GET", "/$pairs")[2])["pairs"]
    assert [each["client"] for each in shown] == [EVIL]
    assert page.ask("DELETE", "/$pairs/" + "x" * 64)[0] == 405


def test_there_is_an_end_to_viewers(server: ServerProcess, page: Page) -> None:
    with ExitStack() as opened:
        for _ in range(VIEWERS_MAX):
            next(opened.enter_context(page.live("?top=1")))
        status, headers, body = page.ask("GET", "/$page/live")
        assert (status, json.loads(body)["error"]) == (503, "ServerBusy")
        assert "Retry-After" in headers
        assert page.get("state")["namespace"] == "twinbus"
    with page.live() as documents:  # when they are gone there is room again
        next(documents)


def test_a_viewer_that_reads_nothing_holds_nobody_up(server: ServerProcess, page: Page) -> None:
    with closing(socket.create_connection(("127.0.0.1", server.port))) as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        stuck.sendall(b"GET /$page/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with page.live() as documents:
            first = next(documents)
            server.create_queue("later")
            assert next(documents)["totals"]["queues"] == first["totals"]["queues"] + 1


def test_a_token_that_is_none_shows_nothing(server: ServerProcess, page: Page) -> None:
    """Whoever brings a token is judged by it, also on this machine."""
    tampered = token_of(server.connection_string).replace("&se=1", "&se=2")
    for token in (tampered, "Bearer x", "Basic eDp4", "SharedAccessSignature sr="):
        for path in ("/$page/state", "/$page/live", "/$pairs", "/$page/messages?entity=orders"):
            assert page.ask("GET", path, token=token)[0] == 401


class Stranger(BaseHTTPRequestHandler):
    """Some other bus: it is healthy, and no twinbus."""

    seen: ClassVar[list[tuple[str, str, str | None]]] = []

    def do_GET(self) -> None:
        self.seen.append((self.command, self.path, self.headers["Authorization"]))
        body = b'{"status": "healthy", "message": "Service is healthy."}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        self.do_GET()

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Nothing is printed."""


def test_no_key_leaves_for_a_bus_that_is_no_twinbus() -> None:
    with HTTPServer(("127.0.0.1", 0), Stranger) as stranger:
        thread = threading.Thread(target=stranger.serve_forever, args=(0.01,))
        thread.start()
        post = Post(Destination("127.0.0.1", stranger.server_port, False, "Root", "key"), "id")
        for _ in range(3):
            post.bring(b"{}")
        stranger.shutdown()
        thread.join()
    assert Stranger.seen == [("GET", "/health", None)]


def test_a_report_that_reaches_nobody_hurts_nobody(server: ServerProcess, page: Page) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    Post(Destination("127.0.0.1", port, False, "Root", "key"), "id").bring(b"{}")
    before = json.loads(page.ask("GET", "/$pairs")[2])["pairs"]
    wrong = Post(Destination("127.0.0.1", server.port, False, "Root", "wrong"), "id")
    wrong.bring(b'{"primary": "a", "secondary": "b"}')
    assert len(json.loads(page.ask("GET", "/$pairs")[2])["pairs"]) == len(before)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(
    st.binary(max_size=100)
    | st.fixed_dictionaries(
        {"entity": st.just("q") | anything, "sequence_numbers": st.lists(anything, max_size=3)}
    ).map(lambda each: json.dumps(each).encode())
)
def test_any_bytes_as_a_change(body: bytes) -> None:
    try:
        path, numbers = read_change(body)
    except ServiceError as error:
        assert len(str(error)) < 200
    else:
        assert isinstance(path, str)
        assert all(0 <= number < 1 << 61 for number in numbers)
