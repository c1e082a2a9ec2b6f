"""A bus by what every Service Bus has: peek, receive and settle, send.

It costs more than twinbus's own operations: a request for every 250 messages that are read, some
forty to find where an entity's numbers end, and a lock on every message that is settled.

What it cannot know: how many messages there are (`count` is the width of the range, at least as
much), when the entity was created, and numbers that are gone.  `next` is therefore one above the
highest number that is there or that this object has seen; in a new process it may be lower.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from twinbus.amqp.types import Int
from twinbus.client.requests import ManagementNode
from twinbus.entities.partitions import COUNTER_BITS
from twinbus.pipeline.bus.line import Begun, NamespaceConnection
from twinbus.pipeline.bus.peeked import Peeked, read_peeked
from twinbus.pipeline.bus.protocol import EntityState, PartitionState
from twinbus.pipeline.bus.sending import PlainBus
from twinbus.pipeline.bus.standard_settling import Settling

_PEEK_COUNT: Final = 250  # more than that Azure does not give at once
_NUMBERS_END: Final = 1 << 63


class StandardBus(PlainBus):
    """One namespace of any Service Bus."""

    def __init__(self, line: NamespaceConnection) -> None:
        super().__init__(line)
        self._seen: dict[str, dict[int, int]] = {}  # path → partition → the highest `next` so far

    def entity(self, path: str) -> EntityState:
        """See `Bus`.  Only partitions in which something is or was seen are told."""
        seen = self._seen.setdefault(path.lower(), {})
        firsts: dict[int, int] = {}
        at = 0
        while at < _NUMBERS_END:
            first = self._first_from(path, at)
            if first is None:
                break
            partition = first >> COUNTER_BITS
            firsts[partition] = first
            at = (partition + 1) << COUNTER_BITS
            last = self._last_between(path, first, at)
            seen[partition] = max(last + 1, seen.get(partition, 0))
        if not seen:
            return EntityState(path, None, [PartitionState(0, True, 0, 0, 0)])
        return EntityState(path, None, [_state(p, firsts, seen[p]) for p in sorted(seen)])

    def _runs(self, path: str, first: int, end: int) -> Iterator[tuple[int, int]]:
        for chunk in self._peek_range(path, first, end):
            for peeked in chunk:
                yield peeked.number, peeked.number + 1

    def browse(self, path: str, first: int, end: int) -> Iterator[list[bytes]]:
        """See `Bus`.  The next chunk is under way while the caller works on one."""
        for chunk in self._peek_range(path, first, end):
            yield [peeked.data for peeked in chunk]

    def settle(
        self,
        path: str,
        ranges: Sequence[tuple[int, int]],
        reason: str | None = None,
        description: str | None = None,
    ) -> int:
        """See `Bus`.  Receives what is there; what lies outside of the ranges is given back."""
        settling = Settling(self.line, path, reason, description)
        for first, end in sorted(ranges):
            for chunk in self._peek_range(path, first, end):
                settling.add(chunk)
        return settling.settle()

    def _peek_range(self, path: str, first: int, end: int) -> Iterator[list[Peeked]]:
        """What is there in the range without scheduled ones; no chunk is empty."""
        if first >= end:
            return
        ahead = self._begin_peek(path, first, _PEEK_COUNT)
        try:
            while True:
                found = [read_peeked(data) for data in ahead.result()]
                if not found:
                    return
                following = found[-1].number + 1
                if following < end:
                    ahead = self._begin_peek(path, following, _PEEK_COUNT)
                chunk = [each for each in found if each.number < end and not each.is_scheduled]
                if chunk:
                    yield chunk
                if following >= end:
                    return
        finally:
            ahead.cancel()

    def _begin_peek(self, path: str, first: int, count: int) -> Begun[list[bytes]]:
        body: dict[object, object] = {"from-sequence-number": first, "message-count": Int(count)}

        async def ask(node: ManagementNode) -> list[bytes]:
            messages, _ = await node.request_messages("com.microsoft:peek-message", body)
            return messages

        return self.line.begin(self.line.request(path, ask))

    def _first_from(self, path: str, at: int) -> int | None:
        """The lowest number from here on."""
        found = self._begin_peek(path, at, 1).result()
        return read_peeked(found[0]).number if found else None

    def _last_between(self, path: str, last: int, end: int) -> int:
        """The highest number below `end`; `last` is one that is there.

        Strides of twice the size until there is nothing, then halves: 2 · log2 of the distance.
        """
        stride = 1
        while last + stride < end:
            found = self._first_from(path, last + stride)
            if found is None or found >= end:
                end = last + stride
            else:
                last = found
                stride *= 2
        while end - last > 1:
            middle = (last + end) // 2
            found = self._first_from(path, middle)
            if found is None or found >= end:
                end = middle
            else:
                last = found
        return last


def _state(partition: int, firsts: dict[int, int], following: int) -> PartitionState:
    first = firsts.get(partition, following)
    return PartitionState(partition, True, first, following, following - first)
