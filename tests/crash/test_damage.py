"""Files that are not what was written: the server says which and where, and touches nothing."""

import random
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import pytest_asyncio

from tests.crash.crashing import QUEUES, sized
from twinbus.client.connection import BusConnection
from twinbus.launch import ServerFailed
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.asyncio

SEED = 20_261_117
MESSAGES = 300


@pytest_asyncio.fixture
async def stopped_server(server_with_queues: Callable[..., ServerProcess]) -> ServerProcess:
    """A server that has stored messages and ended cleanly."""
    server = server_with_queues()
    async with await BusConnection.open(server.connection_string) as connection:
        sender = await connection.open_sender(QUEUES[0])
        for number in range(MESSAGES):
            await sender.send(b"%d" % number * 100)
    server.stop()
    return server


def _digests(directory: Path) -> dict[str, int]:
    return {
        str(path.relative_to(directory)): zlib.crc32(path.read_bytes())
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def _used_size(path: Path) -> int:
    """Where the written part of a preallocated file ends."""
    return len(path.read_bytes().rstrip(b"\0"))


async def test_a_damaged_log_is_named_and_left_alone(stopped_server: ServerProcess) -> None:
    """A byte changed in the middle of the log is no torn end: messages behind it are at stake."""
    places = random.Random(SEED)
    segment = max(stopped_server.data_dir.rglob("*.log"), key=_used_size)
    good = segment.read_bytes()
    # Zeros between frames mean nothing; every other byte of the first half does.
    used = [place for place in range(_used_size(segment) // 2) if good[place] != 0]
    for _ in range(sized(6, nightly=500)):
        place = places.choice(used)
        bad = bytearray(good)
        bad[place] ^= 1 << places.randrange(8)
        segment.write_bytes(bad)
        before = _digests(stopped_server.data_dir)
        with pytest.raises(ServerFailed) as failure:
            stopped_server.start()
        assert failure.value.exit_code > 0
        reason, _fix = failure.value.text.strip().splitlines()[-2:]
        assert re.search(rf"{re.escape(segment.name)}: damaged at byte \d+", reason), (
            f"byte {place}: {failure.value.text}"
        )
        assert "Traceback" not in failure.value.text
        assert _digests(stopped_server.data_dir) == before
    segment.write_bytes(good)
    stopped_server.start()
    count = stopped_server.admin.get_queue(QUEUES[0]).properties["MessageCount"]
    stopped_server.stop()
    assert int(count) == MESSAGES


async def test_a_missing_segment_is_not_an_empty_queue(stopped_server: ServerProcess) -> None:
    segment = max(stopped_server.data_dir.rglob("*.log"), key=_used_size)
    segment.rename(segment.with_suffix(".away"))
    before = _digests(stopped_server.data_dir)
    with pytest.raises(ServerFailed, match=r"\.log: damaged at byte \d+: .* missing"):
        stopped_server.start()
    assert _digests(stopped_server.data_dir) == before
    segment.with_suffix(".away").rename(segment)
    stopped_server.start()
    count = stopped_server.admin.get_queue(QUEUES[0]).properties["MessageCount"]
    stopped_server.stop()
    assert int(count) == MESSAGES
