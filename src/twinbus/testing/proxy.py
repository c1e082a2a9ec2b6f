"""A bad network on loopback: a TCP proxy that cuts, stalls and chops on request.

Stands between clients and a server, forwards bytes unchanged and in order (as TCP always does),
and does nothing by itself: a test says when a connection breaks and how bytes are split.
"""

import asyncio
import contextlib
import socket
import struct
from typing import Final, Self

CHUNK_BYTES_MAX: Final = 65_536
CHOPPED_COUNT_MAX: Final = 100  # pieces of one chunk; the rest goes as a whole, or it takes ages
# SO_LINGER with a time of zero: close sends RST, and what was under way is lost.
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class BadNetwork:
    """Forwards connections to one port of this machine."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self.segment_bytes_max = CHUNK_BYTES_MAX  # a write takes at most so much
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._answering = asyncio.Event()
        self._answering.set()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Break every connection at once, in both directions, in the middle of anything."""
        for writer in list(self._writers):
            sock = writer.get_extra_info("socket")
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            writer.transport.abort()

    def stall(self) -> None:
        """Let nothing through, and tell nobody."""
        self._flowing.clear()

    def mute(self) -> None:
        """Deliver what clients send; hold back the server's answers."""
        self._answering.clear()

    def flow(self) -> None:
        """Deliver what was held back, and forward again."""
        self._flowing.set()
        self._answering.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            writer.transport.abort()
            return
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            self._writers.add(sink)
            task = asyncio.create_task(self._forward(source, sink, sink is writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _forward(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, is_answer: bool
    ) -> None:
        """One direction, until either side is gone."""
        try:
            while data := await source.read(CHUNK_BYTES_MAX):
                start = 0
                while start < len(data):
                    await self._flowing.wait()
                    if is_answer:
                        await self._answering.wait()
                    end = start + self.segment_bytes_max
                    if start > CHOPPED_COUNT_MAX * self.segment_bytes_max:
                        end = len(data)
                    sink.write(data[start:end])
                    await sink.drain()
                    start = end
        except OSError:
            pass  # somebody hung up, or we cut the line
        finally:
            self._writers.discard(sink)
            sink.close()
