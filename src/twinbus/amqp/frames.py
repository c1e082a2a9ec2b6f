"""The byte stream ⇄ frames (OASIS AMQP 1.0 part 2.3).

    0        4      5      6         8          4 * doff          size
    │ size   │ doff │ type │ channel │ extended │ performative, body │

    received chunks ─▶ FrameBuffer ─▶ frames           frames ─▶ Wire ─▶ the shell

FrameBuffer walks over received chunks by position and copies only what straddles two chunks.  It
checks size, data offset and type as soon as eight bytes are there, before it keeps more, so a peer
can make it hold one frame of the agreed size and no more.  The two frames of every message,
`transfer` and `disposition`, are written by one Struct.pack each.
"""

from struct import Struct
from typing import Final

from twinbus.amqp.encoding import encode_binary, encode_list
from twinbus.amqp.fields import NULL, put_boolean, put_uint
from twinbus.amqp.places import Places
from twinbus.errors import RemoteProtocolError
from twinbus.limits import FRAME_SIZE_BYTES_MIN

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
TLS_HEADER: Final = b"AMQP\x02\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
PROTOCOL_HEADER_BYTES: Final = 8

AMQP_FRAME: Final = 0
SASL_FRAME: Final = 1

FRAME_HEADER_BYTES: Final = 8
EMPTY_FRAME: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"  # keeps a connection alive

_FRAME_HEADER: Final = Struct(">IBBH")

UINT_MASK: Final = 0xFFFF_FFFF
_HALF: Final = 0x8000_0000


def serial_distance(start: int, end: int) -> int:
    """How far `end` lies after `start`; negative when before (RFC 1982, 32 bits)."""
    distance = (end - start) & UINT_MASK
    return distance - 0x1_0000_0000 if distance >= _HALF else distance


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


class Event:
    """Root of all that a connection tells its shell (events.py)."""

    __slots__ = ()


class Wire:
    """Frames wait here until the shell takes them; `size` is what waits, in bytes.

    Frames that a session holds back count too (`held_bytes`), so that the size shows all that this
    connection keeps when the shell decides whether to send more.
    """

    __slots__ = (
        "events",
        "frame_size_max",
        "frames",
        "held_bytes",
        "partial_bytes",
        "places",
        "size",
        "unsettled_count",
    )

    def __init__(self, places: Places) -> None:
        self.places = places
        self.frames: list[bytes] = []
        self.size = 0
        self.held_bytes = 0
        self.events: list[Event] = []
        self.frame_size_max = FRAME_SIZE_BYTES_MIN  # the peer's, known from its open
        self.partial_bytes = 0  # of deliveries whose last frame has not come
        self.unsettled_count = 0  # of our deliveries, over all links

    def write(self, frame: bytes) -> None:
        """Queue a frame (or a header) behind all others."""
        self.frames.append(frame)
        self.size += len(frame)

    def take(self) -> list[bytes]:
        """Everything that is queued, in order."""
        frames = self.frames
        if frames:
            self.frames = []
            self.size = 0
        return frames


# --- writing whole frames ------------------------------------------------------------------------
_FRAME_HEAD: Final = Struct(">IHH")
# Frame header, descriptor and list8, then handle, delivery-id, tag, message-format, settled, more.
_TRANSFER_16: Final = Struct(">IHH6sBIBI2s16s3s")
_TRANSFER_SETTLED: Final = b"\x43\x41\x42"
_TRANSFER_UNSETTLED: Final = b"\x43\x42\x42"
_TRANSFER_16_BYTES: Final = _TRANSFER_16.size
_FRAME_START: Final = 0x0200  # data offset 2, frame type 0

_CONTINUATION: Final = Struct(">IHH6sBI5s")
_CONTINUATION_BYTES: Final = _CONTINUATION.size

_DISPOSITION: Final = Struct(">IHH5sBBBIBIB")
_DISPOSITION_BYTES: Final = _DISPOSITION.size


def encode_transfer_start(
    channel: int,
    handle: int,
    delivery_id: int,
    tag: bytes,
    settled: bool,
    prefix: bytes,
    rest_size: int,
    more: bool = False,
    message_format: int = 0,
) -> bytes:
    """The first (or only) frame of a delivery up to `prefix`, which `rest_size` bytes follow."""
    if len(tag) == 16 and message_format == 0 and not more:
        return (
            _TRANSFER_16.pack(
                _TRANSFER_16_BYTES + len(prefix) + rest_size,
                _FRAME_START,
                channel,
                b"\x00\x53\x14\xc0\x20\x06",
                0x70,
                handle,
                0x70,
                delivery_id,
                b"\xa0\x10",
                tag,
                _TRANSFER_SETTLED if settled else _TRANSFER_UNSETTLED,
            )
            + prefix
        )
    fields = [
        put_uint(handle),
        put_uint(delivery_id),
        encode_binary(tag),
        put_uint(message_format),
        put_boolean(settled),
        put_boolean(more),
    ]
    head = b"\x00\x53\x14" + encode_list(fields)
    size = 8 + len(head) + len(prefix) + rest_size
    return b"".join((_FRAME_HEAD.pack(size, _FRAME_START, channel), head, prefix))


def encode_continuation_frame(channel: int, handle: int, more: bool, body: bytes) -> bytes:
    """A whole frame: a further part of a delivery.  Neither id nor tag: clients differ on them."""
    return (
        _CONTINUATION.pack(
            _CONTINUATION_BYTES + len(body),
            _FRAME_START,
            channel,
            b"\x00\x53\x14\xc0\x0b\x06",
            0x70,
            handle,
            b"\x40\x40\x40\x40\x41" if more else b"\x40\x40\x40\x40\x42",
        )
        + body
    )


def encode_disposition_frame(
    channel: int, role: bool, first: int, last: int, settled: bool, state: bytes
) -> bytes:
    """A whole frame; `state` is an encoded delivery state, or empty for none."""
    state = state or NULL
    if len(state) > 200:
        fields = [put_boolean(role), put_uint(first), put_uint(last), put_boolean(settled), state]
        head = b"\x00\x53\x15" + encode_list(fields)
        return _FRAME_HEAD.pack(8 + len(head), _FRAME_START, channel) + head
    return (
        _DISPOSITION.pack(
            _DISPOSITION_BYTES + len(state),
            _FRAME_START,
            channel,
            b"\x00\x53\x15\xc0" + bytes((13 + len(state),)),
            5,
            0x41 if role else 0x42,
            0x70,
            first,
            0x70,
            last,
            0x41 if settled else 0x42,
        )
        + state
    )
