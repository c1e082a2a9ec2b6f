"""Bodies: kept in memory until durable, then for a while, then read back from the log.

The cache is a queue of messages in the order they were sent: receivers that keep up find every
body in memory, and those that do not would only push out what others need.  It never lets go of a
body that is not durable yet, and it cannot grow: each entry is charged for its object as well.
"""

from collections import deque
from typing import Final

from twinbus.entities.message import GONE, Message
from twinbus.errors import LogDamaged
from twinbus.storage.log import OFFSET_MASK, Log, segment_name

ENTRY_BYTES: Final = 256  # what holding on to a message costs beside its body
# Bodies closer than this are read in one go: a system call costs more than reading past 8 KiB.
GAP_BYTES_MAX: Final = 8_192
READ_BYTES_MAX: Final = 1 << 20


class BodyCache:
    """Lets go of bodies, oldest first, when they take more than `size_max` bytes."""

    __slots__ = ("_messages", "_size_max", "size")

    def __init__(self, size_max: int) -> None:
        self._messages: deque[Message] = deque()
        self._size_max = size_max
        self.size = 0

    def add(self, messages: list[Message], durable_position: int) -> None:
        """These messages are durable now: from here on their bodies may go."""
        size = self.size + ENTRY_BYTES * len(messages)
        for message in messages:
            size += message.length
        self._messages.extend(messages)
        self.size = size
        self._trim(durable_position)

    def _trim(self, durable_position: int) -> None:
        queue = self._messages
        size_max = self._size_max
        for _ in range(len(queue)):
            message = queue[0]
            # Whoever is gone at the head goes at once; further back they wait for their turn.
            if self.size <= size_max and message.state != GONE:
                return
            queue.popleft()
            if message.position == 0 or message.position >= durable_position:
                queue.append(message)  # is being moved to the head of the log: needed once more
                continue
            self.size -= message.length + ENTRY_BYTES
            message.body = None

    def __len__(self) -> int:
        return len(self._messages)


def read_bodies(log: Log, messages: list[Message]) -> list[bytes]:
    """The bodies in the order of the messages; neighbours on disk are read at once."""
    bodies: list[bytes] = []
    count = len(messages)
    index = 0
    while index < count:
        message = messages[index]
        body = message.body
        if body is not None:
            bodies.append(body)
            index += 1
            continue
        index = _read_run(log, messages, index, bodies)
    return bodies


def _read_run(log: Log, messages: list[Message], index: int, bodies: list[bytes]) -> int:
    """Read as many neighbours as lie together; returns the index behind the last."""
    first = messages[index]
    start = first.position
    if start == 0:
        raise LogDamaged(segment_name(0), 0, f"message {first.sequence_number} has no body")
    end = start + first.length
    stop = index + 1
    while stop < len(messages):
        message = messages[stop]
        position = message.position
        if (
            message.body is not None
            or position < end
            or position - end > GAP_BYTES_MAX
            or position + message.length - start > READ_BYTES_MAX
            or (position & ~OFFSET_MASK) != (start & ~OFFSET_MASK)
        ):
            break
        end = position + message.length
        stop += 1
    data = log.read(start, end - start)
    for message in messages[index:stop]:
        at = message.position - start
        bodies.append(data[at : at + message.length])
    return stop
