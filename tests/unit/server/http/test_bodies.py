"""Bodies that may come and bodies that may not, over a transport in memory."""

import asyncio

import pytest

from tests.unit.server.http.test_connection import GET, KNOWN_PUT, SWITCH, Peer, statuses
from twinbus.errors import Unauthorized
from twinbus.limits import (
    HTTP_BODY_BYTES_MAX,
    HTTP_HEAD_BYTES_MAX,
    STRANGER_BYTES_MAX,
    STRANGERS_BYTES_MAX,
)
from twinbus.server.http.exchange import Request
from twinbus.server.port.strangers import Strangers, StrangerShare

pytestmark = [pytest.mark.proves("M-11", "M-12"), pytest.mark.asyncio]

PUT = b"PUT /x HTTP/1.1\r\nHost: h\r\n"
SIZED = PUT + b"Content-Length: 5\r\n\r\n"
CHUNKED = PUT + b"Transfer-Encoding: chunked\r\n\r\n"
# The router of these tests leaves it to the protocol what a stranger may.
MAYBE = PUT + b"Key: maybe\r\n"


def held(peer: Peer) -> int:
    """Bytes of the peer that are still there, wherever they wait."""
    return len(peer.protocol._http.trailing_data[0]) + len(peer.protocol._reader._body)


async def test_a_body_that_may_not_come_is_answered_without() -> None:
    peer = Peer()
    answer = await peer.send(SIZED)
    assert statuses(answer) == [200]
    assert b"connection: close" in answer.lower()
    [request] = peer.router.requests
    with pytest.raises(Unauthorized):
        _ = request.body
    assert not peer.transport.is_closing()  # or the peer might not read its answer
    assert peer.has_deadline()
    assert await peer.send(b"hel") == b""
    assert not peer.transport.is_closing()
    assert await peer.send(b"lo" + GET) == b""
    assert peer.transport.is_closing()
    assert len(peer.router.requests) == 1
    peer.drop()


async def test_one_that_is_there_already_does_not_end_the_connection() -> None:
    for body in (SIZED + b"hello", CHUNKED + b"5\r\nhello\r\n0\r\n\r\n"):
        peer = Peer()
        answer = await peer.send(body + GET)
        assert statuses(answer) == [200, 200]
        assert b"connection: close" not in answer.lower()
        assert [request.method for request in peer.router.requests] == ["PUT", "GET"]
        with pytest.raises(Unauthorized):
            _ = peer.router.requests[0].body
        assert not peer.transport.is_closing()
        peer.drop()


async def test_what_is_dropped_is_not_kept_while_the_answer_takes_its_time() -> None:
    peer = Peer()
    peer.router.go.clear()
    await peer.send(PUT + b"Content-Length: %d\r\n\r\n" % HTTP_BODY_BYTES_MAX)
    for _ in range(10):
        await peer.send(bytes(100_000))
        assert held(peer) == 0
    assert peer.transport.is_reading()
    peer.router.go.set()
    await peer.settle()
    assert statuses(peer.take()) == [200]
    peer.drop()


async def test_a_body_that_never_ends_is_not_waited_for() -> None:
    peer = Peer()
    await peer.send(SIZED)
    peer.protocol._time_is_up()
    assert peer.transport.aborted
    peer.drop()


@pytest.mark.parametrize("how", ["no chunk", "end of file"])
async def test_a_dropped_body_that_is_broken_ends_the_connection(how: str) -> None:
    """Before the answer is there, and after it."""
    for is_late in (False, True):
        peer = Peer()
        peer.router.go.clear()
        await peer.send(CHUNKED)
        if is_late:
            peer.router.go.set()
            await peer.settle()
        if how == "no chunk":
            for _ in range(10):
                await peer.send(GET * 1_000)
                assert held(peer) <= STRANGER_BYTES_MAX
        else:
            peer.protocol.eof_received()
        peer.router.go.set()
        await peer.settle()
        answer = peer.take()
        assert is_late or statuses(answer) == [200]
        assert peer.transport.ended or peer.transport.is_closing()
        assert len(peer.router.requests) == 1
        peer.drop()


async def test_who_waits_to_go_on_is_not_waited_for() -> None:
    peer = Peer()
    answer = await peer.send(PUT + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n")
    assert statuses(answer) == [200]
    assert peer.transport.ended
    assert await peer.send(b"hello" + GET) == b""
    peer.protocol._time_is_up()
    assert peer.transport.aborted
    peer.drop()


async def test_a_handshake_has_no_body() -> None:
    peer = Peer()
    handshake = SWITCH[:-2] + b"Content-Length: 5\r\n\r\n"
    assert statuses(await peer.send(handshake)) == [400]
    assert peer.heir.transport is None
    peer.drop()


async def test_a_stranger_has_little_room_whatever_the_router_says() -> None:
    room = STRANGER_BYTES_MAX - 100  # and its head
    for length, body in (
        (b"Content-Length: %d\r\n\r\n" % room, bytes(room)),
        (b"Transfer-Encoding: chunked\r\n\r\n", b"%X\r\n%s\r\n0\r\n\r\n" % (room, bytes(room))),
    ):
        peer = Peer()
        await peer.send(MAYBE + length)
        assert statuses(await peer.send(body)) == [200]
        assert len(peer.router.requests[0].body) == room
        peer.drop()
    for length, body in (
        (b"Content-Length: %d\r\n\r\n" % STRANGER_BYTES_MAX, b""),
        (b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + bytes(STRANGER_BYTES_MAX)),
    ):
        peer = Peer()
        assert statuses(await peer.send(MAYBE + length + body)) == [200]
        with pytest.raises(Unauthorized):
            _ = peer.router.requests[0].body
        assert held(peer) == 0
        peer.drop()


async def test_a_stranger_that_runs_ahead_gets_one_answer() -> None:
    peer = Peer()
    answer = await peer.send(GET * 10_000)
    assert statuses(answer) == [200]
    assert b"connection: close" in answer.lower()
    assert peer.transport.ended
    assert held(peer) == 0
    peer.drop()
    known = Peer()
    await known.send(KNOWN_PUT + b"Content-Length: 1\r\n\r\nx")
    known.protocol.data_received(GET * 3_000)
    for _ in range(100):
        await known.settle()
    assert len(statuses(known.take())) == 3_000
    known.drop()


async def test_who_does_not_read_is_not_read_either() -> None:
    peer = Peer()
    await peer.send(GET)
    peer.protocol.pause_writing()
    for _ in range(10):
        peer.protocol.data_received(GET * 1_000)
        assert held(peer) <= STRANGER_BYTES_MAX
        assert not peer.transport.is_reading()
    peer.drop()


async def test_all_strangers_together_have_their_room() -> None:
    peer = Peer()
    others = StrangerShare(peer.strangers)
    assert others.hold(STRANGERS_BYTES_MAX - 100)
    await peer.send(PUT[:20])
    assert peer.strangers.kept_bytes == STRANGERS_BYTES_MAX - 80
    answer = await peer.send(b"x" * 200)
    assert statuses(answer) == [503]
    assert b"Retry-After" in answer
    assert peer.transport.ended
    assert peer.strangers.kept_bytes == STRANGERS_BYTES_MAX - 100
    peer.drop()


async def test_who_is_known_at_once_needs_none_of_it() -> None:
    peer = Peer()
    others = StrangerShare(peer.strangers)
    assert others.hold(STRANGERS_BYTES_MAX)
    await peer.send(KNOWN_PUT + b"Content-Length: 70000\r\n\r\n")
    await peer.send(bytes(69_999))
    assert statuses(await peer.send(b"x")) == [200]
    assert statuses(await peer.send(GET)) == [200]
    assert peer.strangers.kept_bytes == STRANGERS_BYTES_MAX
    peer.drop()


async def test_what_is_not_kept_any_more_is_not_counted() -> None:
    strangers = Strangers()
    for end in ("answered", "refused", "lost", "switched", "known"):
        peer = Peer()
        peer.protocol._peer._share = StrangerShare(strangers)
        await peer.send(PUT)
        assert strangers.kept_bytes == len(PUT)
        if end == "answered":
            await peer.send(b"\r\n")
        elif end == "refused":
            await peer.send(b"x" * HTTP_HEAD_BYTES_MAX)
        elif end == "switched":
            await peer.send(b"\r\n")
            await peer.send(SWITCH)
        elif end == "known":
            await peer.send(b"Key: good\r\nContent-Length: 9\r\n\r\nsome")
        else:
            peer.drop()
        assert strangers.kept_bytes == 0, end
        if end != "lost":
            peer.drop()
    await asyncio.sleep(0)


async def test_unread_answers_of_strangers_count() -> None:
    peer = Peer()
    others = StrangerShare(peer.strangers)
    assert others.hold(STRANGERS_BYTES_MAX - 10)
    peer.router.go.clear()
    peer.protocol.data_received(GET)
    peer.protocol.pause_writing()
    peer.router.go.set()
    await peer.settle()
    assert peer.transport.aborted
    peer.drop()


async def test_a_body_is_never_taken_for_an_empty_one() -> None:
    request = Request("PUT", "/x", {}, {}, None)
    with pytest.raises(Unauthorized):
        _ = request.body
    request.bring(b"")
    assert request.body == b""
