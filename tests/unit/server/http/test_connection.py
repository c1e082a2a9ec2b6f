"""HTTP on one connection, over a transport in memory."""

import asyncio
import logging
import random
import re
from collections.abc import Iterable

import pytest

from twinbus.clock import Now
from twinbus.errors import EntityAlreadyExists, ServerBusy, Unauthorized
from twinbus.limits import HTTP_BODY_BYTES_MAX, HTTP_HEAD_BYTES_MAX
from twinbus.server.http.connection import HttpProtocol
from twinbus.server.http.exchange import Request, Response, error_response, xml_text
from twinbus.server.port.strangers import Strangers

pytestmark = [pytest.mark.proves("M-11"), pytest.mark.asyncio]

GET = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"
KNOWN_PUT = b"PUT /x HTTP/1.1\r\nHost: h\r\nKey: good\r\n"


class FixedClock:
    def now(self) -> Now:
        return Now(1_800_000_000_000, 0)


class MemoryTransport(asyncio.Transport):
    """What a protocol writes, and whether it reads and lives."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.reads = True
        self.closed = False
        self.aborted = False
        self.ended = False
        self.protocol: asyncio.BaseProtocol | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        assert not self.ended
        self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_reading(self) -> bool:
        return self.reads

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol


UPGRADED = (("Upgrade", "other"), ("Connection", "Upgrade"))


class Echo:
    """Answers with what it was asked, when told to."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.go = asyncio.Event()
        self.go.set()

    def body_max(self, request: Request) -> int:
        """Who has a key in the head may send all that there may be, and is known by it."""
        if "key" not in request.headers:
            return 0
        if request.headers["key"] == "maybe":
            return HTTP_BODY_BYTES_MAX
        assert request.when_settled is not None
        request.when_settled("echo")
        return HTTP_BODY_BYTES_MAX

    async def answer(self, request: Request) -> Response:
        self.requests.append(request)
        await self.go.wait()
        if "upgrade" in request.headers:
            return Response(101 if request.path == "/switch" else 501, b"", headers=UPGRADED)
        if request.path == "/empty":
            return Response(204, b"")
        if request.path == "/busy":
            raise ServerBusy("try again")
        if request.path == "/bug":
            raise KeyError("secret in a traceback")
        return Response(200, request.method.encode() + b" " + request.path.encode())


class Heir(asyncio.Protocol):
    """What takes over after a 101."""

    def __init__(self) -> None:
        self.transport: asyncio.BaseTransport | None = None
        self.data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data


class Peer:
    """A protocol under test and its transport."""

    def __init__(self) -> None:
        self.router = Echo()
        self.transport = MemoryTransport()
        self.lost = 0
        self.heir = Heir()
        self.strangers = Strangers()
        self.protocol = HttpProtocol(
            self.router, FixedClock(), self.count_loss, lambda: self.heir, self.strangers
        )
        self.protocol.connection_made(self.transport)

    def count_loss(self) -> None:
        self.lost += 1

    async def send(self, data: bytes) -> bytes:
        """Feed bytes, let answers run, return what came back and forget it."""
        self.protocol.data_received(data)
        await self.settle()
        return self.take()

    async def settle(self) -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    def take(self) -> bytes:
        written = bytes(self.transport.written)
        self.transport.written.clear()
        return written

    def has_deadline(self) -> bool:
        return self.protocol._deadline is not None

    def drop(self) -> None:
        self.protocol.connection_lost(None)


def statuses(data: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3})", data)]


def three_ways(data: bytes) -> Iterable[list[bytes]]:
    yield [data]
    yield [data[i : i + 1] for i in range(len(data))]
    yield [data[: len(data) // 2], data[len(data) // 2 :]]


@pytest.mark.proves("M-11")
async def test_request_arrives_whole_bytewise_and_in_halves() -> None:
    request = (
        b"PUT /a%2Fb?api-version=2024-05&$top=1&x HTTP/1.1\r\nHost: h\r\nX-A: 1\r\nX-a: 2\r\n"
        b"Key: good\r\nContent-Length: 5\r\n\r\nhello"
    )
    for pieces in three_ways(request):
        peer = Peer()
        answer = b"".join([await peer.send(piece) for piece in pieces])
        assert statuses(answer) == [200]
        assert answer.endswith(b"PUT /a%2Fb")
        [seen] = peer.router.requests
        assert (seen.method, seen.path, seen.body) == ("PUT", "/a%2Fb", b"hello")
        assert seen.segments() == ["a/b"]
        assert seen.query == {"api-version": "2024-05", "$top": "1", "x": ""}
        assert seen.headers["x-a"] == "1, 2"
        peer.drop()


async def test_keep_alive_and_pipelining_answer_in_order() -> None:
    peer = Peer()
    many = b"".join(b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n" % number for number in range(20))
    answer = await peer.send(many)
    assert statuses(answer) == [200] * 20
    assert [request.path for request in peer.router.requests] == [f"/{n}" for n in range(20)]
    assert statuses(await peer.send(GET)) == [200]
    assert not peer.transport.is_closing()
    peer.drop()


async def test_nothing_is_read_while_a_request_is_answered() -> None:
    peer = Peer()
    peer.router.go.clear()
    assert await peer.send(GET + GET) == b""
    assert not peer.transport.is_reading()
    assert len(peer.router.requests) == 1
    peer.router.go.set()
    await peer.settle()
    assert statuses(peer.take()) == [200, 200]
    assert peer.transport.is_reading()
    peer.drop()


async def test_nothing_is_read_while_the_peer_does_not_take_its_answer() -> None:
    peer = Peer()
    peer.router.go.clear()
    peer.protocol.data_received(GET + GET)
    peer.protocol.pause_writing()
    peer.router.go.set()
    await peer.settle()
    assert statuses(peer.take()) == [200]
    assert not peer.transport.is_reading()
    peer.protocol.resume_writing()
    await peer.settle()
    assert statuses(peer.take()) == [200]
    assert peer.transport.is_reading()
    peer.drop()


async def test_peer_that_never_takes_its_answer_is_cut_off() -> None:
    peer = Peer()
    peer.router.go.clear()
    peer.protocol.data_received(GET)
    peer.protocol.pause_writing()
    peer.router.go.set()
    await peer.settle()
    peer.protocol._time_is_up()
    assert peer.transport.aborted
    peer.drop()


async def test_connection_close_and_http_1_0_are_honoured() -> None:
    for request in (
        b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        b"GET /x HTTP/1.0\r\n\r\n",
    ):
        peer = Peer()
        assert statuses(await peer.send(request)) == [200]
        assert peer.transport.is_closing()
        peer.drop()


async def test_what_comes_after_the_end_is_ignored() -> None:
    """TLS may still hand over data that was on its way when the connection was closed."""
    peer = Peer()
    await peer.send(b"GET /x HTTP/1.0\r\n\r\n")
    assert await peer.send(GET) == b""
    assert len(peer.router.requests) == 1
    peer.drop()


async def test_peer_may_close_its_half_and_still_get_the_answer() -> None:
    peer = Peer()
    peer.router.go.clear()
    peer.protocol.data_received(GET)
    assert peer.protocol.eof_received() is True
    peer.router.go.set()
    await peer.settle()
    assert statuses(peer.take()) == [200]
    assert peer.transport.is_closing()
    peer.drop()


async def test_eof_between_requests_and_inside_one() -> None:
    peer = Peer()
    await peer.send(GET)
    assert peer.protocol.eof_received() is False
    assert peer.transport.is_closing()
    peer.drop()
    peer = Peer()
    await peer.send(GET[:10])
    assert peer.protocol.eof_received() is False
    assert statuses(peer.take()) == [400]
    peer.drop()


async def test_head_has_no_body() -> None:
    peer = Peer()
    answer = await peer.send(b"HEAD /x HTTP/1.1\r\nHost: h\r\n\r\n")
    assert b"Content-Length: 7\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")
    assert statuses(await peer.send(GET)) == [200]
    peer.drop()


async def test_garbage_after_head_gets_a_whole_answer() -> None:
    peer = Peer()
    await peer.send(b"HEAD /x HTTP/1.1\r\nHost: h\r\n\r\n")
    answer = await peer.send(b"\x00\r\n\r\n")
    assert statuses(answer) == [400]
    assert answer.endswith(b"</Error>")
    peer.drop()


async def test_expect_continue() -> None:
    peer = Peer()
    head = b"PUT /x HTTP/1.1\r\nHost: h\r\nKey: good\r\nContent-Length: 2\r\n"
    head += b"Expect: 100-continue\r\n\r\n"
    assert statuses(await peer.send(head)) == [100]
    assert statuses(await peer.send(b"ok")) == [200]
    peer.drop()


@pytest.mark.proves("A-2")
async def test_service_error_is_an_answer_with_its_sub_code() -> None:
    peer = Peer()
    answer = await peer.send(b"GET /busy HTTP/1.1\r\nHost: h\r\n\r\n")
    assert statuses(answer) == [503]
    assert b"<Error><Code>503</Code><Detail>try again SubCode=50004. TrackingId:" in answer
    assert b"\r\nRetry-After: 10\r\n" in answer
    assert not peer.transport.is_closing()
    peer.drop()


async def test_bug_is_a_500_that_shows_nothing(caplog: pytest.LogCaptureFixture) -> None:
    peer = Peer()
    with caplog.at_level(logging.CRITICAL, "twinbus.server"):
        answer = await peer.send(b"GET /bug HTTP/1.1\r\nHost: h\r\n\r\n")
    assert statuses(answer) == [500]
    assert b"secret" not in answer
    assert statuses(await peer.send(GET)) == [200]
    peer.drop()


async def test_answer_for_a_lost_peer_is_dropped() -> None:
    peer = Peer()
    peer.router.go.clear()
    peer.protocol.data_received(GET)
    peer.drop()
    assert peer.lost == 1
    peer.router.go.set()
    await peer.settle()
    assert peer.take() == b""


async def test_shutdown_finishes_the_request_in_hand() -> None:
    peer = Peer()
    peer.router.go.clear()
    peer.protocol.data_received(GET + GET)
    await peer.settle()
    peer.protocol.shutdown()
    assert not peer.transport.is_closing()
    peer.router.go.set()
    await peer.settle()
    answer = peer.take()
    assert statuses(answer) == [200]
    assert b"connection: close" in answer.lower()
    assert peer.transport.is_closing()
    idle = Peer()
    idle.protocol.shutdown()
    assert idle.transport.is_closing()
    peer.drop()
    idle.drop()


@pytest.mark.parametrize(
    "data, status",
    [
        (b"\r\n\r\n\r\n" + b"\x00" * 40 + b"\r\n\r\n", 400),
        (b"GET /x\r\n\r\n", 400),
        (b"GET /x HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET /x HTTP/1.1\r\nHost: h\r\nBad\r\n\r\n", 400),
        (b"GET /x HTTP/1.1\r\nHost: h\r\nA: b\r\n folded: \x00\r\n\r\n", 400),
        (b"GET /x y HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"GET /x HTTP/9.9\r\nHost: h\r\n\r\n", 505),
        (b"GET x HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"GET ftp://h/x HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"GET /%FF HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"GET /x?%FF=1 HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"GET /x?" + b"a&" * 40 + b" HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"PUT /x HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n", 400),
        (b"PUT /x HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"PUT /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (KNOWN_PUT + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"PUT /x HTTP/1.1\r\nHost: h\r\nContent-Length: 9999999\r\n\r\n", 413),
        (b"POST /q/messages?x HTTP/1.1\r\nHost: h\r\nContent-Length: 9999999\r\n\r\n", 403),
        (
            b"PUT /x HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"0\r\n\r\n" + GET,
            400,
        ),
        (b"GET /x HTTP/1.1\r\nHost: h\r\nA: " + b"a" * HTTP_HEAD_BYTES_MAX, 431),
    ],
)
async def test_what_is_no_request_is_refused_and_the_peer_dropped(data: bytes, status: int) -> None:
    peer = Peer()
    answer = await peer.send(data)
    assert statuses(answer) == [status]
    assert b"<Error><Code>%d</Code>" % status in answer
    assert b"connection: close" in answer.lower()
    assert peer.router.requests == []
    assert peer.transport.ended
    # What still comes is read and forgotten, until the deadline.
    assert await peer.send(GET) == b""
    assert peer.protocol.eof_received() is False
    peer.protocol._time_is_up()
    assert peer.transport.aborted
    peer.drop()


async def test_chunked_body_is_bounded() -> None:
    peer = Peer()
    chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    assert await peer.send(KNOWN_PUT + b"Transfer-Encoding: chunked\r\n\r\n") == b""
    for _ in range(HTTP_BODY_BYTES_MAX // 65_536):
        assert await peer.send(chunk) == b""
    assert statuses(await peer.send(chunk)) == [413]
    assert len(peer.protocol._reader._body) == 0
    peer.drop()


async def test_body_at_the_limit_is_taken() -> None:
    peer = Peer()
    head = KNOWN_PUT + b"Content-Length: %d\r\n\r\n" % HTTP_BODY_BYTES_MAX
    assert statuses(await peer.send(head + b"x" * HTTP_BODY_BYTES_MAX)) == [200]
    assert len(peer.router.requests[0].body) == HTTP_BODY_BYTES_MAX
    peer.drop()


async def test_slow_request_gets_408() -> None:
    peer = Peer()
    await peer.send(GET[:-1])
    peer.protocol._time_is_up()
    assert statuses(peer.take()) == [408]
    assert peer.transport.ended
    peer.drop()


async def test_slow_second_request_gets_408_and_idle_peer_is_dropped_in_silence() -> None:
    peer = Peer()
    await peer.send(GET + GET[:5])
    peer.protocol._time_is_up()
    assert statuses(peer.take()) == [408]
    peer.drop()
    idle = Peer()
    await idle.send(GET)
    idle.protocol._time_is_up()
    assert idle.take() == b""
    assert idle.transport.aborted
    idle.drop()


async def test_no_deadline_runs_while_answering_or_after_the_end() -> None:
    peer = Peer()
    peer.router.go.clear()
    peer.protocol.data_received(GET)
    assert not peer.has_deadline()
    peer.router.go.set()
    await peer.settle()
    assert peer.has_deadline()
    peer.drop()
    assert not peer.has_deadline()
    peer.protocol._time_is_up()
    peer.protocol.data_received(GET)
    assert peer.protocol.eof_received() is False
    peer.protocol.resume_writing()
    peer.protocol.shutdown()


async def test_absolute_target() -> None:
    peer = Peer()
    await peer.send(b"GET HTTP://h:1/x?a=b HTTP/1.1\r\nHost: h\r\n\r\n")
    assert peer.router.requests[0].path == "/x"
    assert peer.router.requests[0].query == {"a": "b"}
    peer.drop()


async def test_error_texts_are_xml_whatever_is_in_them() -> None:
    from xml.etree.ElementTree import fromstring

    reason = "<script>&\r\n\x00\x1b\ud800\ufffe]]>"
    answer = error_response(EntityAlreadyExists.http_status, reason)
    detail = fromstring(answer.body).findtext("Detail")
    assert detail is not None
    assert detail.startswith("<script>&\r\n\ufffd\ufffd\ufffd\ufffd]]> SubCode=40900. TrackingId:")
    assert xml_text("a<b") == "a&lt;b"


async def test_unauthorized_names_the_scheme() -> None:
    headers = error_response(Unauthorized.http_status, "no").headers
    assert headers == (("WWW-Authenticate", "SharedAccessSignature"),)


SWITCH = b"GET /switch HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n"


@pytest.mark.proves("M-10")
async def test_upgrade_gives_the_connection_away_with_what_came_behind() -> None:
    peer = Peer()
    answer = await peer.send(SWITCH + b"not HTTP")
    assert answer.startswith(b"HTTP/1.1 101 ")
    assert b"Upgrade: other\r\n" in answer
    assert peer.transport.protocol is peer.heir
    assert peer.heir.transport is peer.transport
    assert peer.heir.data == b"not HTTP"
    assert peer.transport.reads
    assert not peer.has_deadline()
    peer.protocol.shutdown()
    peer.protocol.resume_writing()
    assert not peer.transport.is_closing()


async def test_no_upgrade_while_the_server_stops_or_without_an_heir() -> None:
    peer = Peer()
    peer.router.go.clear()
    peer.protocol.data_received(SWITCH)
    peer.protocol.shutdown()
    peer.router.go.set()
    await peer.settle()
    assert peer.transport.is_closing()
    assert peer.heir.transport is None
    peer.drop()


@pytest.mark.proves("M-11")
async def test_no_content_has_no_length() -> None:
    peer = Peer()
    answer = await peer.send(b"GET /empty HTTP/1.1\r\nHost: h\r\n\r\n")
    assert statuses(answer) == [204]
    assert b"content-" not in answer.lower().replace(b"x-content-type-options", b"")
    assert statuses(await peer.send(GET)) == [200]
    peer.drop()


@pytest.mark.proves("M-11")
@pytest.mark.parametrize("how", ["lost", "end of file", "shutdown"])
async def test_who_makes_a_peer_wait_hears_that_it_is_gone(how: str) -> None:
    peer = Peer()
    peer.router.go.clear()
    peer.protocol.data_received(GET)
    await peer.settle()
    gone: list[str] = []
    peer.router.requests[0].when_gone = lambda: gone.append(how)
    if how == "lost":
        peer.drop()
    elif how == "end of file":
        peer.protocol.eof_received()
    else:
        peer.protocol.shutdown()
    assert gone == [how]
    peer.router.go.set()
    await peer.settle()
    if how != "lost":
        peer.drop()
    assert gone == [how]


@pytest.mark.proves("M-11")
async def test_who_answers_hears_that_the_answer_was_not_sent() -> None:
    unsent: list[str] = []

    class Late(Echo):
        async def answer(self, request: Request) -> Response:
            response = await super().answer(request)
            response.when_unsent = lambda: unsent.append(request.path)
            return response

    peer = Peer()
    peer.protocol._router = peer.protocol._reader._router = Late()
    await peer.send(GET)
    assert unsent == []
    peer.protocol.data_received(b"GET /late HTTP/1.1\r\nHost: h\r\n\r\n")
    peer.drop()
    await peer.settle()
    assert unsent == ["/late"]


async def test_one_read_is_taken_while_an_answer_is_prepared() -> None:
    """It is how the end of a peer is noticed; more would pile up."""
    peer = Peer()
    peer.router.go.clear()
    peer.protocol.data_received(GET)
    assert peer.transport.is_reading()
    peer.protocol.data_received(GET[:5])
    assert not peer.transport.is_reading()
    peer.router.go.set()
    await peer.settle()
    assert peer.transport.is_reading()
    assert statuses(await peer.send(GET[5:])) == [200, 200]
    peer.router.go.clear()
    peer.protocol.data_received(GET + GET)
    assert not peer.transport.is_reading()
    peer.router.go.set()
    await peer.settle()
    assert peer.transport.is_reading()
    peer.drop()


@pytest.mark.proves("M-11")
async def test_names_of_headers_as_they_were_written() -> None:
    peer = Peer()
    await peer.send(b"GET /x HTTP/1.1\r\nHost: h\r\nMy-Name: 1\r\nmy-name: 2\r\n\r\n")
    [request] = peer.router.requests
    assert request.named_headers[1:] == (("My-Name", "1"), ("my-name", "2"))
    assert request.headers["my-name"] == "1, 2"
    assert request.scheme == "http"
    peer.drop()


async def test_connection_lives_on_after_a_refused_upgrade() -> None:
    peer = Peer()
    upgrade = (
        b"GET /$servicebus/websocket HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\n"
        b"Upgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n"
    )
    assert statuses(await peer.send(upgrade + GET)) == [501, 200]
    peer.drop()


@pytest.mark.parametrize("seed", range(8))
async def test_damaged_requests_in_any_pieces_never_raise(seed: int) -> None:
    source = random.Random(seed)
    good = (
        b"PUT /x?a=b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"
    )
    for _ in range(50):
        data = bytearray(good + GET + good)
        for _ in range(source.randrange(4)):
            data[source.randrange(len(data))] = source.randrange(256)
        peer = Peer()
        while data:
            size = source.randrange(1, 64)
            await peer.send(bytes(data[:size]))
            del data[:size]
        peer.protocol.eof_received()
        peer.drop()
