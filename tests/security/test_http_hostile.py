"""Any bytes as HTTP: an answer or a closed connection, and the server lives on."""

import random
import socket
import ssl
import time
from collections.abc import Iterator

import pytest

from twinbus.certificates import ca_certificate
from twinbus.client.connection_string import ConnectionString
from twinbus.client.sas import make_sas_token
from twinbus.clock import SystemClock
from twinbus.limits import HTTP_BODY_BYTES_MAX, HTTP_HEAD_BYTES_MAX, HTTP_REQUEST_DURATION_S_MAX
from twinbus.server.http.atom.feeds import ATOM, SERVICE_BUS
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.proves("M-11")

SOCKET_DURATION_S = 30.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("hostile") / "data") as process:
        process.create_queue("hostile")
        yield process


@pytest.fixture(autouse=True)
def unharmed(server: ServerProcess) -> Iterator[None]:
    """After every test the server answers as before and has logged no traceback."""
    yield
    assert (
        status_of(exchange(server, b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n", close=True)) == 200
    )
    assert "Traceback" not in server.log


def dial(server: ServerProcess, *, tls: bool = False) -> socket.socket:
    plain = socket.create_connection(("127.0.0.1", server.port), SOCKET_DURATION_S)
    if not tls:
        return plain
    context = ssl.create_default_context(cafile=str(ca_certificate(server.data_dir)))
    return context.wrap_socket(plain, server_hostname="127.0.0.1")


def exchange(
    server: ServerProcess, data: bytes, *, close: bool = False, tls: bool = False
) -> bytes:
    """Send, and read until the server closes (or, with `close`, the first answer's bytes)."""
    with dial(server, tls=tls) as sock:
        try:
            sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused while still sending; the answer may be there all the same
        received = b""
        while True:
            try:
                part = sock.recv(65_536)
            except ConnectionResetError:
                return received
            received += part
            if not part or (close and b"\r\n\r\n" in received):
                return received


def status_of(answer: bytes) -> int:
    assert answer.startswith(b"HTTP/1.1 "), answer[:80]
    return int(answer[9:12])


def token(server: ServerProcess) -> bytes:
    target = ConnectionString.parse(server.connection_string)
    expires_s = SystemClock().now().utc_ms // 1000 + 300
    return make_sas_token("https://h", target.key_name, target.key, expires_s).encode()


def put(server: ServerProcess, path: bytes, body: bytes) -> bytes:
    head = b"PUT %s HTTP/1.1\r\nHost: h\r\nConnection: close\r\nAuthorization: %s\r\n"
    head += b"Content-Length: %d\r\n\r\n"
    return exchange(server, head % (path, token(server), len(body)) + body)


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize(
    "data, status",
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\nX: y\r\n\x00: z\r\n\r\n", 400),
        (b"PUT /q HTTP/1.1\r\nHost: h\r\nContent-Length: 10485760\r\n\r\n", 413),
        (b"PUT /q HTTP/1.1\r\nHost: h\r\nContent-Length: x\r\n\r\n", 400),
        (b"PUT /q HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"PUT /q HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: x\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 2 * HTTP_HEAD_BYTES_MAX, 431),
        (b"G" * 2 * HTTP_HEAD_BYTES_MAX, 431),
        (b"\x80\x80\x80\x80\r\n\r\n\r\n\r\n", 400),
        (b"AMQX/\x00\r\n\r\n", 400),
    ],
)
def test_broken_requests(server: ServerProcess, data: bytes, status: int, tls: bool) -> None:
    assert status_of(exchange(server, data, close=tls, tls=tls)) == status


def test_ten_megabytes_of_body_declared_and_sent(server: ServerProcess) -> None:
    size = 10 * HTTP_BODY_BYTES_MAX
    head = b"PUT /q HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % size
    assert status_of(exchange(server, head + bytes(size))) == 413


def test_ten_megabytes_of_body_in_chunks(server: ServerProcess) -> None:
    chunks = (b"10000\r\n" + bytes(65_536) + b"\r\n") * 160 + b"0\r\n\r\n"
    for key, status in ((b"", 401), (b"Authorization: %s\r\n" % token(server), 413)):
        head = b"PUT /q HTTP/1.1\r\nHost: h\r\n%sTransfer-Encoding: chunked\r\n\r\n"
        assert status_of(exchange(server, head % key + chunks)) == status


def test_header_injection_by_path_and_query(server: ServerProcess) -> None:
    for path in (b"/a%0d%0aX-Evil:%20yes", b"/a?%0d%0aX-Evil:%20yes", b"/%3Cscript%3E"):
        head = b"GET %s HTTP/1.1\r\nHost: h\r\nConnection: close\r\nAuthorization: %s\r\n\r\n"
        answer = exchange(server, head % (path, token(server)))
        headers, _, body = answer.partition(b"\r\n\r\n")
        assert b"X-Evil" not in headers
        assert b"<script>" not in body
        assert status_of(answer) in (400, 404)


@pytest.mark.parametrize(
    "body",
    [
        b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>',
        b'<!DOCTYPE a [<!ENTITY a "'
        + b"ha" * 1000
        + b'"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]><a>&b;&b;&b;</a>',
        b"<a>" * 100_000,
        b"<a>" * 50_000 + b"</a>" * 50_000,
        b"<a>" + b"<b/>" * 200_000 + b"</a>",
        b"<a " + b" ".join(b'a%d=""' % number for number in range(50_000)) + b"/>",
        b"\xff" * 1000,
        b"",
    ],
    ids=["external", "laughs", "open", "deep", "wide", "attributes", "bytes", "nothing"],
)
def test_hostile_xml(server: ServerProcess, body: bytes) -> None:
    answer = put(server, b"/xml", body)
    assert status_of(answer) == 400
    assert b"root:" not in answer


def test_hostile_values_stay_text(server: ServerProcess) -> None:
    values = ["]]><evil/>", "&lt;evil/&gt;", "\"'", "\u2028", "a" * 1024]
    for number, value in enumerate(values):
        escaped = value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        body = (
            f'<entry xmlns="{ATOM}"><content><QueueDescription xmlns="{SERVICE_BUS}">'
            f"<UserMetadata>{escaped}</UserMetadata></QueueDescription></content></entry>"
        )
        answer = put(server, b"/value-%d" % number, body.encode())
        assert status_of(answer) == 201
        assert b"<evil/>" not in answer
        shown = server.admin.get_queue(f"value-{number}")
        assert shown.properties["UserMetadata"] == value


@pytest.mark.proves("M-12")
def test_no_entry_without_a_token(server: ServerProcess) -> None:
    paths = (
        b"/q",
        b"/$namespaceinfo",
        b"/$Resources/queues",
        b"/t/subscriptions/s",
        b"/q/messages",
        b"/q/messages/head",
        b"/q/messages/1/00000001-0000-0000-0100-000000000000",
    )
    for method in (b"GET", b"PUT", b"DELETE", b"POST", b"PATCH", b"HEAD", b"OPTIONS", b"BREW"):
        for path in paths:
            head = b"%s %s HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            assert status_of(exchange(server, head % (method, path))) == 401


@pytest.mark.proves("M-11")
def test_what_a_message_holds_stays_where_it_belongs(server: ServerProcess) -> None:
    server.create_queue("held")
    broker = b'{"Label":"a\\r\\nX-Evil: yes","ContentType":"text/html"}'
    head = (
        b"POST /held/messages HTTP/1.1\r\nHost: h\r\nConnection: close\r\nAuthorization: %s\r\n"
        b'BrokerProperties: %s\r\nSet-Cookie: a=b\r\nNote: "\\r\\nX-Evil: yes"\r\nRaw: \xff\xfe\r\n'
        b"Content-Length: 0\r\n\r\n"
    )
    assert status_of(exchange(server, head % (token(server), broker))) == 201
    head = (
        b"DELETE /held/messages/head?timeout=5 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
        b"Authorization: %s\r\n\r\n"
    )
    answer = exchange(server, head % token(server))
    assert status_of(answer) == 200
    headers = answer.partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert not any(header.startswith((b"X-Evil", b"Set-Cookie")) for header in headers)
    assert b'Note: "\\r\\nX-Evil: yes"' in headers
    assert b'Raw: "\\u00ff\\u00fe"' in headers


@pytest.mark.proves("M-11")
@pytest.mark.parametrize(
    "broker, status",
    [
        (b"[" * 30_000, 400),
        (b'{"a":' * 5_000, 400),
        (b'{"Label":"' + b"x" * 30_000 + b'"}', 201),
        (b'{"Label":"' + b"x" * HTTP_HEAD_BYTES_MAX + b'"}', 431),
        (b'{"TimeToLive":1e999}', 201),
        (b'{"TimeToLive":' + b"9" * 5_000 + b"}", 400),
        (b'{"MessageId":{}}', 400),
        (b"\xff\xfe", 400),
    ],
    ids=["deep", "deeper", "long", "too long", "for ever", "digits", "type", "bytes"],
)
def test_hostile_broker_properties(server: ServerProcess, broker: bytes, status: int) -> None:
    head = (
        b"POST /hostile/messages HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
        b"Authorization: %s\r\nBrokerProperties: %s\r\nContent-Length: 0\r\n\r\n"
    )
    assert status_of(exchange(server, head % (token(server), broker))) == status


def test_smuggled_request_is_not_answered(server: ServerProcess) -> None:
    inner = b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n"
    both = b"PUT /q HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = exchange(server, both % len(inner) + b"0\r\n\r\n" + inner)
    assert status_of(answer) == 400
    assert b"healthy" not in answer


@pytest.mark.slow
def test_slow_heads_do_not_stop_others_and_end(server: ServerProcess) -> None:  # C4
    slow = [dial(server) for _ in range(50)]
    try:
        for sock in slow:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: ")
        deadline = time.monotonic() + HTTP_REQUEST_DURATION_S_MAX + SOCKET_DURATION_S
        assert status_of(exchange(server, b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", close=True)) == 200
        for sock in slow:
            sock.settimeout(max(0.1, deadline - time.monotonic()))
            assert status_of(sock.recv(4_096)) == 408
    finally:
        for sock in slow:
            sock.close()


def test_random_bytes(server: ServerProcess) -> None:
    seed = random.randrange(1 << 32)
    source = random.Random(seed)
    good = b"PUT /q HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody"
    for _ in range(150):
        data = bytearray(good)
        for _ in range(source.randrange(1, 8)):
            data[source.randrange(len(data))] = source.randrange(256)
        if data[:1] == b"\x16" or b"AMQP".startswith(data[:4]):
            continue
        with dial(server) as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            answer = b""
            while part := sock.recv(65_536):
                answer += part
        assert status_of(answer) in (400, 401, 413, 501, 505), f"seed {seed}: {bytes(data)!r}"
