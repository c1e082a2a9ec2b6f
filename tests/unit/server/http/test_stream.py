"""Answers that go on: streams over a transport in memory."""

import asyncio
import logging
from collections.abc import AsyncGenerator

import pytest

from tests.unit.server.http.test_connection import FixedClock, MemoryTransport
from twinbus.server.http import writing
from twinbus.server.http.connection import HttpProtocol
from twinbus.server.http.exchange import Request, Response

pytestmark = pytest.mark.asyncio

GET = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"


class Streaming:
    """Answers every request with what the test puts in; a None ends it."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.is_closed = False

    def body_max(self, request: Request) -> int:
        return 0

    async def answer(self, request: Request) -> Response:
        request.when_gone = lambda: self.pieces.put_nowait(None)
        response = Response(200, b"", "text/event-stream")
        response.stream = self._stream()
        return response

    async def _stream(self) -> AsyncGenerator[bytes, None]:
        try:
            while (piece := await self.pieces.get()) is not None:
                if piece == b"fail":
                    raise KeyError("a bug")
                yield piece
        finally:
            self.is_closed = True


class Scene:
    def __init__(self) -> None:
        self.router = Streaming()
        self.transport = MemoryTransport()
        self.protocol = HttpProtocol(self.router, FixedClock())
        self.protocol.connection_made(self.transport)

    async def settle(self) -> bytes:
        for _ in range(20):
            await asyncio.sleep(0)
        written = bytes(self.transport.written)
        self.transport.written.clear()
        return written

    async def begin(self, request: bytes = GET) -> bytes:
        self.protocol.data_received(request)
        return await self.settle()

    async def put(self, piece: bytes | None) -> bytes:
        self.router.pieces.put_nowait(piece)
        return await self.settle()


async def test_pieces_go_out_as_they_come() -> None:
    scene = Scene()
    head = await scene.begin()
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"chunked" in head.lower()
    assert b"content-length" not in head.lower()
    assert scene.protocol._deadline is None
    assert await scene.put(b"one") == b"3\r\none\r\n"
    assert await scene.put(b"more") == b"4\r\nmore\r\n"
    assert await scene.put(None) == b"0\r\n\r\n"
    assert scene.transport.closed
    assert not scene.transport.aborted


async def test_who_speaks_http_1_0_gets_them_bare() -> None:
    scene = Scene()
    await scene.begin(b"GET /x HTTP/1.0\r\n\r\n")
    assert await scene.put(b"one") == b"one"


@pytest.mark.parametrize("how", ["lost", "eof", "shutdown"])
async def test_a_stream_ends_with_its_peer_and_with_the_server(how: str) -> None:
    scene = Scene()
    await scene.begin()
    if how == "lost":
        scene.protocol.connection_lost(None)
    elif how == "eof":
        scene.protocol.eof_received()
    else:
        scene.protocol.shutdown()
    await scene.settle()
    assert scene.router.is_closed
    assert scene.transport.closed == (how != "lost")


async def test_who_is_slow_misses_some_and_who_is_stuck_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene()
    await scene.begin()
    scene.protocol.pause_writing()
    assert await scene.put(b"missed") == b""
    scene.protocol.resume_writing()
    assert await scene.put(b"one") == b"3\r\none\r\n"
    monkeypatch.setattr(writing, "STREAM_STALL_S_MAX", -1.0)
    scene.protocol.pause_writing()
    aborted = []
    for piece in (b"two", b"three"):
        await scene.put(piece)
        aborted.append(scene.transport.aborted)
    assert aborted == [False, True]
    assert scene.router.is_closed


async def test_what_comes_during_a_stream_is_not_answered() -> None:
    scene = Scene()
    await scene.begin()
    scene.protocol.data_received(GET)
    assert await scene.settle() == b""
    assert not scene.transport.reads


async def test_a_stream_that_fails_ends_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    await scene.begin()
    with caplog.at_level(logging.ERROR):
        await scene.put(b"fail")
    assert "a stream failed" in caplog.text
    assert scene.transport.closed
