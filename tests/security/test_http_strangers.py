"""Who has no key makes the server keep nothing: the token comes before the body.

Plain sockets against a real server: what goes over the wire, and when, is the point.
"""

import asyncio
import http.client
import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import BinaryIO

import pytest

from tests.security.memory import PEAK, memory_bytes
from tests.security.test_http_hostile import dial, exchange, status_of, token
from twinbus.client.connection_string import ConnectionString
from twinbus.client.sas import make_sas_token
from twinbus.clock import SystemClock
from twinbus.limits import HTTP_BODY_BYTES_MAX, STRANGER_BYTES_MAX, STRANGERS_BYTES_MAX
from twinbus.server.http.access import TOKEN_LEEWAY_S
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.proves("M-11", "M-12")

CONNECTIONS = 300
WAIT_S = 30.0
MEBIBYTE = 1 << 20

# Everything that takes a body, and something that does not.
ROUTES = (
    b"PUT /orders",
    b"PUT /news/subscriptions/all",
    b"PUT /news/subscriptions/all/rules/one",
    b"PUT /$namespaceinfo",
    b"BREW /nothing/here",
    b"POST /orders/messages",
    b"POST /orders/messages/head",
    b"PUT /orders/messages/1/00000001-0000-0000-0100-000000000000",
    b"POST /$faults",
    b"PUT /$namespaces/one",
    b"PUT /$pairs/one",
    b"GET /$meter",
    b"POST /$page/delete",
    b"POST /$page/resubmit",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("strangers") / "data") as process:
        process.create_queue("orders")
        yield process
    assert "Traceback" not in process.log


def signed(server: ServerProcess, *, path: str = "", key: str = "", lifetime_s: int = 300) -> bytes:
    target = ConnectionString.parse(server.connection_string)
    expires_s = SystemClock().now().utc_ms // 1_000 + lifetime_s
    made = make_sas_token(f"https://h/{path}", target.key_name, key or target.key, expires_s)
    return b"Authorization: %s\r\n" % made.encode()


def read_answer(stream: BinaryIO) -> bytes:
    """One answer, with its body."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = stream.readline()
        assert line, head
        head += line
    return head + stream.read(int(re.findall(rb"(?i)content-length: (\d+)", head)[0]))


def is_over(stream: BinaryIO) -> bool:
    """Has the server hung up, without another word?"""
    try:
        return stream.read(1) == b""
    except ConnectionResetError:
        return True


async def upload(server: ServerProcess, head: bytes, all_have: asyncio.Barrier) -> bytes:
    """Send nearly all of a body, read the answer's status, and stay until all have theirs."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(head + bytes(MEBIBYTE - 1))
        await writer.drain()
        line = await reader.readline()
        await all_have.wait()
        return line[9:12]
    finally:
        writer.transport.abort()


@pytest.mark.asyncio
async def test_bodies_of_strangers_are_not_kept(server: ServerProcess) -> None:
    """300 of them at once, each with a mebibyte: without a token, and with a wrong one."""
    lengths = b"Content-Length: %d\r\n" % MEBIBYTE, b"Transfer-Encoding: chunked\r\n"
    heads = [
        b"%s HTTP/1.1\r\nHost: h\r\n%s%s\r\n" % (route, key, length)
        + (b"" if b"Content" in length else b"%X\r\n" % MEBIBYTE)
        for route in (b"PUT /orders", b"POST /orders/messages", b"POST /$faults")
        for key in (b"", signed(server, key="guessed"), signed(server, path="another"))
        for length in lengths
    ]
    before = memory_bytes(server, PEAK)
    all_have = asyncio.Barrier(CONNECTIONS)
    uploads = (
        upload(server, heads[number % len(heads)], all_have) for number in range(CONNECTIONS)
    )
    async with asyncio.timeout(WAIT_S):
        statuses = await asyncio.gather(*uploads)
    assert memory_bytes(server, PEAK) - before < STRANGERS_BYTES_MAX
    assert set(statuses) == {b"401"}


def test_silence_behind_tls_costs_little(server: ServerProcess) -> None:
    """A connection has its buffers before anything is said on it."""
    before = memory_bytes(server)
    with ExitStack() as stack:
        for _ in range(CONNECTIONS // 2):
            stack.enter_context(dial(server, tls=True))
        assert memory_bytes(server) - before < CONNECTIONS // 2 // 8 * MEBIBYTE  # 128 KiB each


@pytest.mark.parametrize("route", ROUTES, ids=bytes.decode)
@pytest.mark.parametrize("length", [b"Content-Length: 1000", b"Transfer-Encoding: chunked"])
def test_a_stranger_is_refused_before_he_may_go_on(
    server: ServerProcess, route: bytes, length: bytes
) -> None:
    keys = {
        "none": b"",
        "malformed": b"Authorization: SharedAccessSignature sr=h&sig=x\r\n",
        "guessed": signed(server, key="guessed"),
        "expired": signed(server, lifetime_s=-TOKEN_LEEWAY_S - 1),
        "another's": signed(server, path="another"),
    }
    if b"$page" in route:  # what such a token opens is only known when the body names its entity
        keys = {"none": b""}
    for name, key in keys.items():
        head = b"%s HTTP/1.1\r\nHost: h\r\n%s%s\r\nExpect: 100-continue\r\n\r\n"
        answer = exchange(server, head % (route, key, length))  # until it hangs up
        assert status_of(answer) == 401, name
        assert answer.count(b"HTTP/1.1 ") == 1
        assert b"connection: close" in answer.lower()


def test_who_has_a_key_may_go_on(server: ServerProcess) -> None:
    head = b"POST /orders/messages HTTP/1.1\r\nHost: h\r\n%sExpect: 100-continue\r\n"
    head %= signed(server)
    with dial(server) as sock, sock.makefile("rb") as stream:
        for length, body in (
            (b"Content-Length: 5\r\n\r\n", b"hello"),
            (b"Transfer-Encoding: chunked\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n"),
        ):
            sock.sendall(head + length)
            assert stream.readline() == b"HTTP/1.1 100 \r\n"
            assert stream.readline() == b"\r\n"
            sock.sendall(body)
            assert status_of(read_answer(stream)) == 201


def test_an_answer_is_the_same_with_and_without_a_body(server: ServerProcess) -> None:
    """Status, headers and text of a refusal are those of the route, whatever was sent with it."""
    for route in ROUTES:
        head = b"%s HTTP/1.1\r\nHost: h\r\nConnection: close\r\n" % route
        bare = exchange(server, head + b"\r\n")
        full = exchange(server, head + b"Content-Length: 5\r\n\r\nhello")
        changing = rb"TrackingId:[-0-9a-f]+|(?i:date): [^\r]+"
        assert re.sub(changing, b"", bare) == re.sub(changing, b"", full)


INNER = b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n"


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_is_never_taken_for_a_request(server: ServerProcess, is_chunked: bool) -> None:
    """Whether it comes together with its head or after the answer, or is much too long."""
    length = b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: %d" % len(INNER)
    body = b"%X\r\n%s\r\n0\r\n\r\n" % (len(INNER), INNER) if is_chunked else INNER
    head = b"PUT /orders HTTP/1.1\r\nHost: h\r\n%s\r\n\r\n" % length
    with dial(server) as sock, sock.makefile("rb") as stream:
        # All of it at once: the connection goes on behind the body, up to the last request.
        sock.sendall(head + body + INNER.replace(b"Host", b"Connection: close\r\nHost"))
        assert status_of(read_answer(stream)) == 401
        assert status_of(read_answer(stream)) == 200
        assert is_over(stream)
    with dial(server) as sock, sock.makefile("rb") as stream:
        sock.sendall(head)
        answer = read_answer(stream)
        assert status_of(answer) == 401
        assert b"connection: close" in answer.lower()
        sock.sendall(body + INNER)
        assert is_over(stream)
    if is_chunked:
        with dial(server) as sock, sock.makefile("rb") as stream:
            sock.sendall(head)
            assert status_of(read_answer(stream)) == 401
            sock.sendall(INNER * 100)  # no chunk at all
            assert is_over(stream)


def test_what_follows_a_request_is_not_kept(server: ServerProcess) -> None:
    """A request that needs no token does not open the door for anything behind it."""
    for head in (
        b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % MEBIBYTE,
    ):
        answer = exchange(server, head + bytes(MEBIBYTE))
        assert answer.count(b"HTTP/1.1 ") == 1
        assert status_of(answer) == 200


def test_a_change_by_the_page_may_be_a_little_one(server: ServerProcess) -> None:
    """Its body names the entity that the token must be for, so some of it has to be read first."""
    head = b"POST /$page/delete HTTP/1.1\r\nHost: h\r\nConnection: close\r\n%s"
    some = b'{"entity": "orders", "sequence_numbers": [9]}'
    own = head % signed(server, path="orders")
    sized = b"Content-Length: %d\r\n\r\n"
    assert status_of(exchange(server, own + sized % len(some) + some)) == 200
    for key in (signed(server, path="orders"), signed(server, key="guessed")):
        for length in (sized % (STRANGER_BYTES_MAX + 1), b"Transfer-Encoding: chunked\r\n\r\n"):
            body = b"20000\r\n" + bytes(0x20000) if b"chunked" in length else b""
            answer = exchange(server, head % key + length + body, close=True)
            assert status_of(answer) == 401
    large = sized % (STRANGER_BYTES_MAX + 1) + bytes(STRANGER_BYTES_MAX + 1)
    assert status_of(exchange(server, head % signed(server) + large)) == 400


def test_a_known_client_keeps_its_connection(server: ServerProcess) -> None:
    """Head and body go out one by one here, as most clients do it."""
    headers = {"Authorization": token(server).decode()}
    target = ConnectionString.parse(server.connection_string)
    with closing(http.client.HTTPConnection(target.host, target.port, timeout=WAIT_S)) as client:
        client.connect()
        sock = client.sock
        for method, path, body, status in (
            ("POST", "/orders/messages", b"one", 201),
            ("PUT", "/missing", b"no document", 400),
            ("POST", "/missing/messages", b"two", 410),
            ("POST", "/orders/messages", bytes(HTTP_BODY_BYTES_MAX - 1_000), 201),
            ("DELETE", "/orders/messages/head?timeout=0", b"", 200),
            ("POST", "/orders/messages", b"three", 201),
        ):
            client.request(method, path, body, headers)
            response = client.getresponse()
            response.read()
            assert response.status == status, path
            assert client.sock is sock


def test_a_client_that_is_refused_reads_why(server: ServerProcess) -> None:
    """One that sends all it has before it reads anything."""
    target = ConnectionString.parse(server.connection_string)
    with closing(http.client.HTTPConnection(target.host, target.port, timeout=WAIT_S)) as client:
        for _ in range(5):
            client.request("POST", "/orders/messages", bytes(MEBIBYTE))
            response = client.getresponse()
            assert response.status == 401
            assert response.getheader("WWW-Authenticate") == "SharedAccessSignature"
            assert b"<Code>401</Code>" in response.read()
