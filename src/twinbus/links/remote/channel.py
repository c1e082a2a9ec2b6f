"""Framing of operations, without I/O: bytes in, operations out, and the other way round.

    frame = length of the rest (u32, big-endian) ─ marshal of a list of tuples

Everything of one turn goes in one frame.  `marshal` is the fastest encoding that Python has for
plain values, and safe only between ends that trust each other: here, a server and a process that it
started, on a socketpair that nobody else can reach.  It must never be used on anything else.
"""

import marshal
from typing import Any, Final

from twinbus.errors import TwinbusError
from twinbus.links.remote.operations import Operation

FRAME_SIZE_BYTES_MAX: Final = 268_435_456
_HEAD_BYTES: Final = 4
# Version 2 looks for no shared objects: there are none worth it, and looking takes a third.
_VERSION: Final = 2


class ChannelError(TwinbusError):
    """The other end sent something that is not a frame: the channel is unusable."""


class Channel:
    """One end: keeps the beginning of a frame until the rest is here."""

    __slots__ = ("_buffer", "_size_max")

    def __init__(self, size_max: int = FRAME_SIZE_BYTES_MAX) -> None:
        self._buffer = bytearray()
        self._size_max = size_max

    def encode(self, operations: list[Operation]) -> bytes:
        """One frame; several in a row where one would be too large."""
        try:
            data = marshal.dumps(operations, _VERSION)
        except ValueError:
            # A subclass of str or int got in.  Rare, and looking for them always would cost more.
            data = marshal.dumps(_plain(operations), _VERSION)
        if len(data) <= self._size_max:
            return len(data).to_bytes(_HEAD_BYTES, "big") + data
        if len(operations) == 1:
            raise ChannelError(f"one operation has {len(data)} bytes")
        half = len(operations) // 2
        return self.encode(operations[:half]) + self.encode(operations[half:])

    def receive_data(self, data: bytes) -> list[Operation]:
        """What is complete with these bytes, in order."""
        buffer = self._buffer
        buffer += data
        found: list[Operation] = []
        size = len(buffer)
        start = 0
        while size - start >= _HEAD_BYTES:
            length = int.from_bytes(buffer[start : start + _HEAD_BYTES], "big")
            if length > self._size_max:
                raise ChannelError(f"a frame of {length} bytes; allowed are {self._size_max}")
            end = start + _HEAD_BYTES + length
            if end > size:
                break
            found += _read(buffer, start + _HEAD_BYTES, end)
            start = end
        if start:
            del buffer[:start]
        return found


def _read(buffer: bytearray, start: int, end: int) -> list[Operation]:
    with memoryview(buffer) as whole, whole[start:end] as frame:
        try:
            operations: object = marshal.loads(frame)  # noqa: S302 - see the module's docstring
        except (ValueError, EOFError, TypeError) as error:
            raise ChannelError(f"a frame that cannot be read: {error}") from error
    if not isinstance(operations, list):
        raise ChannelError("a frame that is not a list of operations")
    for operation in operations:
        if type(operation) is not tuple or len(operation) < 2:
            raise ChannelError("a frame with something that is not an operation")
    return operations


def _plain(value: Any) -> Any:
    """The same, made of the builtin types themselves."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, tuple):
        return tuple([_plain(each) for each in value])
    if isinstance(value, dict):
        return {_plain(key): _plain(each) for key, each in value.items()}
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return bytes(value)
    raise TypeError(f"{type(value).__name__} cannot be sent to another process")
