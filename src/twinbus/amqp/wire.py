"""What the parts of one connection share: the way out, and the events on the way up."""

from typing import Final

from twinbus.amqp.places import Places
from twinbus.limits import FRAME_SIZE_BYTES_MIN

UINT_MASK: Final = 0xFFFF_FFFF
_HALF: Final = 0x8000_0000


def serial_distance(start: int, end: int) -> int:
    """How far `end` lies after `start`; negative when before (RFC 1982, 32 bits)."""
    distance = (end - start) & UINT_MASK
    return distance - 0x1_0000_0000 if distance >= _HALF else distance


class Event:
    """Root of all that a connection tells its shell (events.py)."""

    __slots__ = ()


class Wire:
    """Frames wait here until the shell takes them; `size` is what waits, in bytes.

    Frames that a session holds back count too (`held_bytes`), so that whoever looks at the size to
    decide whether to send more sees all that this connection keeps.
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
