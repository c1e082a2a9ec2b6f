"""Thousands of channels are for clients; what strangers can make of them is bounded.

And what clients do with them at once, byte by byte, on a real port.
"""

import asyncio
from collections.abc import Iterator
from typing import Final

import pytest

from tests.security.raw_amqp import RawConnection
from tests.security.test_port_robustness import HANDSHAKE, MEBIBYTE, OPEN, QUEUE, Target
from tests.unit.amqp.wiring import begin_frame, frame, read_frames, sasl_frame
from twinbus.amqp.composites import Source
from twinbus.amqp.composites import Target as AmqpTarget
from twinbus.amqp.frames import AMQP_HEADER, SASL_HEADER
from twinbus.amqp.performatives import SENDER, Attach, Begin, Detach, End, Flow, Open
from twinbus.amqp.sasl_performatives import SaslInit
from twinbus.client.connection_string import ConnectionString
from twinbus.client.sas import make_sas_token
from twinbus.clock import SystemClock
from twinbus.limits import CHANNELS_MAX, PLACES_FREE, STRANGER_PLACES_MAX
from twinbus.testing.server import ServerProcess

pytestmark = [pytest.mark.proves("M-17"), pytest.mark.asyncio]

WAIT_S: Final = 20.0
AT_A_TIME: Final = 200  # sessions, whose answers a stranger may have unread
FULL: Final = STRANGER_PLACES_MAX // CHANNELS_MAX  # connections that take all there is


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("places") / "data") as process:
        process.create_queue(QUEUE)
        yield process
    assert "Traceback" not in process.log, process.log


class Answers:
    """What the server says on one connection, frame by frame."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self.found: list[object] = []

    async def until(self, kind: type, count: int = 1) -> list[object]:
        """Everything up to so many of this kind; headers, SASL and signs of life left out."""
        async with asyncio.timeout(WAIT_S):
            while count > 0:
                size = await self._reader.readexactly(4)
                if size == b"AMQP":
                    await self._reader.readexactly(4)
                    continue
                rest = await self._reader.readexactly(int.from_bytes(size) - 4)
                ((_, performative, _),) = read_frames(size + rest)
                if rest[1] == 0 and performative is not None:
                    self.found.append(performative)
                    count -= isinstance(performative, kind)
        return self.found


async def begin_everything(target: Target) -> tuple[asyncio.StreamWriter, int]:
    """A stranger begins a session on every channel; how many it was left with."""
    reader, writer = await target.connect()
    writer.write(HANDSHAKE + OPEN)
    answers = Answers(reader)
    await answers.until(Open)
    for first in range(0, CHANNELS_MAX, AT_A_TIME):  # who leaves more unread is cut off
        channels = range(first, min(first + AT_A_TIME, CHANNELS_MAX))
        begins = b"".join(begin_frame(channel) for channel in channels)
        writer.write(begins + frame(0, Flow(0, 1, 0, 1, echo=True)))
        found = await answers.until(Flow)
    assert sum(isinstance(each, Begin) for each in found) == CHANNELS_MAX
    ends = [each for each in found if isinstance(each, End)]
    for end in ends:
        assert end.error is not None
        assert end.error.condition == "amqp:resource-limit-exceeded"
        assert str(STRANGER_PLACES_MAX) in str(end.error.description)
    return writer, CHANNELS_MAX - len(ends)


async def test_strangers_share_few_sessions_and_clients_come_in(server: ServerProcess) -> None:
    target = Target(server)
    before = target.memory_bytes()
    for _ in range(2):  # what they leave is there for the next
        writers = []
        for number in range(FULL + 2):
            writer, kept = await begin_everything(target)
            writers.append(writer)
            assert kept == (CHANNELS_MAX if number < FULL else PLACES_FREE)
        assert target.memory_bytes() - before < 64 * MEBIBYTE
        await target.assert_serves_others()
        await put_tokens(server, 3)
        files = target.open_files()
        for writer in writers:
            writer.close()
        await target.wait_for_open_files(files - len(writers))


async def put_tokens(server: ServerProcess, count: int) -> None:
    """Come in by $cbs with so many tokens, each for another address, and use the first."""
    keys = ConnectionString.parse(server.connection_string)
    expires_s = SystemClock().now().utc_ms // 1_000 + 300
    token = make_sas_token("sb://localhost/", keys.key_name, keys.key, expires_s)
    async with await RawConnection.tcp(server.port) as connection:
        assert await connection.put_token(token, f"sb://localhost/{QUEUE}") == 200
        for number in range(1, count):
            assert await connection.put_token(token, f"sb://localhost/q{number}") == 200
        for role in ("sender", "receiver"):
            _, condition = await connection.attach(role, QUEUE)
            assert condition == ""
        _, condition = await connection.attach("sender", f"q{count}")
        assert condition == "amqp:unauthorized-access"


@pytest.mark.proves("M-17")
async def test_a_connection_has_a_token_for_each_of_its_links(server: ServerProcess) -> None:
    """.NET puts one for every entity; there may be thousands."""
    await put_tokens(server, 1_100)


@pytest.mark.proves("M-17")
async def test_channels_are_used_again_in_the_same_breath(server: ServerProcess) -> None:
    """Detach, end and the next begin, without waiting for anything in between."""
    keys = ConnectionString.parse(server.connection_string)
    init = SaslInit("PLAIN", f"\0{keys.key_name}\0{keys.key}".encode(), "localhost")
    hello = SASL_HEADER + sasl_frame(init) + AMQP_HEADER
    begin = frame(3, Begin(None, 1, 5_000, 5_000, 262_143))
    reader, writer = await Target(server).connect()
    writer.write(hello + frame(0, Open("net", "localhost", 65_536, 8_191)))
    answers = Answers(reader)
    await answers.until(Open)
    rounds = 50
    for number in range(rounds):
        attach = Attach(f"l{number}", 0, SENDER, 2, 0, Source("me"), AmqpTarget(f"/{QUEUE}"))
        attach.initial_delivery_count = 0
        writer.write(begin + frame(3, attach) + frame(3, Detach(0, True)) + frame(3, End()))
    writer.write(begin)
    ends = [each for each in await answers.until(Begin, rounds + 1) if isinstance(each, End)]
    assert len(ends) == rounds
    assert all(each.error is None for each in ends)
    writer.close()
