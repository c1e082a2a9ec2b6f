"""The byte stream ⇄ frames (OASIS AMQP 1.0 part 2.3).

    0        4      5      6         8          4 * doff          size
    │ size   │ doff │ type │ channel │ extended │ performative, body │

FrameBuffer walks over received chunks by position and copies only what straddles two chunks.  It
checks size, data offset and type as soon as eight bytes are there, before it keeps more, so a peer
can make it hold one frame of the agreed size and no more.
"""

from struct import Struct
from typing import Final

from twinbus.errors import RemoteProtocolError

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
TLS_HEADER: Final = b"AMQP\x02\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
PROTOCOL_HEADER_BYTES: Final = 8

AMQP_FRAME: Final = 0
SASL_FRAME: Final = 1

FRAME_HEADER_BYTES: Final = 8
EMPTY_FRAME: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"  # keeps a connection alive

_FRAME_HEADER: Final = Struct(">IBBH")


def encode_frame(
    channel: int, performative: bytes, body: bytes = b"", frame_type: int = AMQP_FRAME
) -> bytes:
    """A whole frame."""
    size = FRAME_HEADER_BYTES + len(performative) + len(body)
    return _FRAME_HEADER.pack(size, 2, frame_type, channel) + performative + body


class FrameBuffer:
    """Cuts what arrives into frames.

    feed(chunk), then as long as next_frame() is true, the frame is `data[start:end]` of type
    `frame_type` on `channel`; `start` is where its performative begins.  A frame without
    performative (start == end) is a sign of life.  Protocol headers come out by take().
    """

    __slots__ = (
        "_at",
        "_partial",
        "_rest",
        "_rest_at",
        "_wanted",
        "channel",
        "data",
        "end",
        "frame_size_max",
        "frame_type",
        "start",
    )

    def __init__(self, frame_size_max: int) -> None:
        self.frame_size_max = frame_size_max  # may be changed between frames
        self.data: bytes = b""
        self.start = 0
        self.end = 0
        self.frame_type = AMQP_FRAME
        self.channel = 0
        self._at = 0  # everything before it has been handed out
        self._partial = bytearray()  # the beginning of a frame that straddles chunks
        self._rest: bytes = b""  # the chunk to go on with after a frame that straddled, and where
        self._rest_at = 0
        self._wanted = 0  # with a partial frame: do not look again before so many bytes are there

    def feed(self, chunk: bytes) -> None:
        """Add received bytes.  Cheap after next_frame() or take() has run dry."""
        partial = self._partial
        if partial:
            missing = self._wanted - len(partial)
            if len(chunk) < missing:
                partial += chunk
                return
            if self._wanted > FRAME_HEADER_BYTES:  # a frame: it alone is put together
                self.data = bytes(partial) + chunk[:missing]
                self._rest = chunk
                self._rest_at = missing
            else:
                self.data = bytes(partial) + chunk
            self._partial = bytearray()
        elif self._at < len(self.data) or self._rest:
            self.data = self.data[self._at :] + self._rest[self._rest_at :] + chunk
            self._rest = b""
        else:
            self.data = chunk
        self._at = 0

    def take(self, count: int) -> bytes | None:
        """The next `count` bytes as they are, or None while there are fewer."""
        if self._partial:
            return None
        if self._rest and self._at == len(self.data):
            self._go_on()
        at = self._at
        taken = self.data[at : at + count]
        if len(taken) < count:
            self._keep(count)
            return None
        self._at = at + count
        return taken

    def next_frame(self) -> bool:
        """Move on to the next complete frame; False when more bytes are needed."""
        at = self._at
        data = self.data
        have = len(data) - at
        if have < FRAME_HEADER_BYTES:
            if self._rest:
                self._go_on()
                return self.next_frame()
            if have:
                self._keep(FRAME_HEADER_BYTES)
            return False
        size: int
        size, doff, self.frame_type, self.channel = _FRAME_HEADER.unpack_from(data, at)
        if size > self.frame_size_max or doff != 2 or self.frame_type > SASL_FRAME or size < 8:
            self._check(size, doff)
        if size > have:
            self._keep(size)
            return False
        self.start = at + 4 * doff
        self.end = self._at = at + size
        return True

    def unread_bytes(self) -> int:
        """How many bytes wait for the rest of their frame."""
        unread = len(self._partial) + len(self.data) - self._at
        return unread + len(self._rest) - self._rest_at if self._rest else unread

    def _go_on(self) -> None:
        """A frame that straddled has been handed out: on with the chunk that brought its end."""
        self.data = self._rest
        self._at = self._rest_at
        self._rest = b""

    def _keep(self, wanted: int) -> None:
        self._partial += self.data[self._at :]
        self._wanted = wanted
        self.data = b""
        self._at = 0

    def _check(self, size: int, doff: int) -> None:
        if size < FRAME_HEADER_BYTES:
            raise RemoteProtocolError(f"frame of {size} bytes is shorter than its header")
        if size > self.frame_size_max:
            raise RemoteProtocolError(
                f"frame of {size} bytes, but at most {self.frame_size_max} were agreed"
            )
        if doff < 2 or doff > size // 4:
            raise RemoteProtocolError(f"data offset {doff} in a frame of {size} bytes")
        if self.frame_type > SASL_FRAME:
            raise RemoteProtocolError(f"unknown frame type {self.frame_type}")
