"""The messages of a chunk with their keys, divided into what is sent together; compiled."""

from twinbus.message.plain import cut
from twinbus.pipeline.sink.keys import Outgoing, block_of, stamped


class Part:
    """Messages that are sent together; `data` has each of them with its key."""

    __slots__ = ("data", "messages")

    def __init__(self, messages: list[Outgoing], data: list[bytes]) -> None:
        self.messages = messages
        self.data = data

    def size_bytes(self) -> int:
        """Without the keys."""
        size = 0
        for message in self.messages:
            size += len(message.data)
        return size

    def by_order(self) -> "list[Part]":
        """A part for each session id or partition key."""
        parts: dict[str | None, Part] = {}
        for place, message in enumerate(self.messages):
            part = parts.get(message.order)
            if part is None:
                part = parts[message.order] = Part([], [])
            part.messages.append(message)
            part.data.append(self.data[place])
        return list(parts.values())

    def cut(self, size_bytes_max: int) -> "list[Part]":
        """Parts that go as one batch each, so that none can be overtaken by its own end."""
        return [
            Part(self.messages[first : first + count], self.data[first : first + count])
            for first, count in cut(self.data, size_bytes_max)
        ]


def joined(parts: list[Part]) -> Part:
    whole = Part([], [])
    for part in parts:
        whole.messages += part.messages
        whole.data += part.data
    return whole


def by_destination(
    chunk: list[Outgoing], keys: list[str]
) -> tuple[dict[str, list[Part]], dict[str, Part]]:
    """Messages without a session id or partition key, in their blocks; and those with one.

    The messages of one delivery go where the first of them leads, so a block has one home.
    """
    free: dict[str, dict[tuple[str, int], Part]] = {}
    keyed: dict[str, Part] = {}
    for place, message in enumerate(chunk):
        destination = message.destination
        key = keys[place]
        if message.order is None:
            blocks = free.get(destination)
            if blocks is None:
                blocks = free[destination] = {}
            block = block_of(key)
            part = blocks.get(block)
            if part is None:
                part = blocks[block] = Part([], [])
        else:
            part = keyed.get(destination)
            if part is None:
                part = keyed[destination] = Part([], [])
        part.messages.append(message)
        part.data.append(stamped(message.data, key))
    return {path: list(blocks.values()) for path, blocks in free.items()}, keyed
