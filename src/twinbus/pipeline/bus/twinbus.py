"""A bus by the operations that twinbus offers to pipelines.

Each of them answers for a whole range of sequence numbers, and looks at it where it is stored:
nothing is locked, nothing is received, and a megabyte of messages is one request.  The maps are in
docs/reference/management-operations.md.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from twinbus.amqp.types import Array, Int
from twinbus.client.requests import ManagementNode
from twinbus.errors import ServiceError, Unavailable
from twinbus.limits import RANGES_MAX
from twinbus.pipeline.bus.line import Begun
from twinbus.pipeline.bus.protocol import EntityState, PartitionState
from twinbus.pipeline.bus.sending import PlainBus

PARTITIONS: Final = "twinbus:partitions"
_STATES: Final = ("active", "deferred")  # what a receiver can get; a scheduled one is not there yet
_CHUNK_BYTES: Final = 1024 * 1024
_NEXT: Final = "next-sequence-number"
_Chunk = tuple[list[bytes], int]  # and where to go on


class TwinbusBus(PlainBus):
    """One namespace of a twinbus."""

    def entity(self, path: str) -> EntityState:
        """See `Bus`."""
        answer = self._ask(path, PARTITIONS, {})
        created = answer.get("created")
        partitions = answer.get("partitions")
        if not isinstance(partitions, list):
            raise ServiceError(f"'{path[:64]}': the answer has no partitions")
        return EntityState(
            path,
            int(created) if isinstance(created, int) else None,
            [_partition(entry) for entry in partitions],
        )

    def _runs(self, path: str, first: int, end: int) -> Iterator[tuple[int, int]]:
        while first < end:
            answer = self._ask(path, "twinbus:numbers", _selection(first, end))
            bounds = answer.get("bounds")
            numbers = [int(each) for each in bounds] if isinstance(bounds, list) else []
            yield from zip(numbers[::2], numbers[1::2], strict=True)
            first = _next(answer, end)

    def browse(self, path: str, first: int, end: int) -> Iterator[list[bytes]]:
        """See `Bus`.  The next chunk is under way while the caller works on one."""
        if first >= end:
            return
        ahead = self._begin_chunk(path, first, end)
        try:
            while True:
                messages, following = ahead.result()
                if following < end:
                    ahead = self._begin_chunk(path, following, end)
                if messages:
                    yield messages
                if following >= end:
                    return
        finally:
            ahead.cancel()

    def settle(
        self,
        path: str,
        ranges: Sequence[tuple[int, int]],
        reason: str | None = None,
        description: str | None = None,
    ) -> int:
        """See `Bus`.  After a lost answer it counts only what the second request has found."""
        body: dict[object, object] = {}
        if reason is not None:
            body["deadletter-reason"] = reason
            body["deadletter-description"] = description or ""
        return sum(
            self._settle_some(path, ranges[at : at + RANGES_MAX], body)
            for at in range(0, len(ranges), RANGES_MAX)
        )

    def _settle_some(
        self, path: str, ranges: Sequence[tuple[int, int]], body: dict[object, object]
    ) -> int:
        """One request, and more of them while a partition is down that has its part of it."""
        patience = self.line.patience()
        count = 0
        while ranges:
            bounds = [bound for each in ranges for bound in each]
            answer = self._ask(path, "twinbus:settle", body | {"bounds": Array(bounds)})
            done = answer.get("message-count")
            count += done if isinstance(done, int) else 0
            following = answer.get(_NEXT)
            if not isinstance(following, int):
                break
            text = f"'{path[:64]}': a partition is down; not all from {following} on is settled"
            patience.pause(Unavailable(text))
            ranges = [(max(first, following), end) for first, end in ranges if end > following]
        return count

    def _ask(self, path: str, operation: str, body: dict[object, object]) -> dict[str, object]:
        async def ask(node: ManagementNode) -> dict[str, object]:
            return await node.request(operation, body)

        return self.line.run(self.line.request(path, ask))

    def _begin_chunk(self, path: str, first: int, end: int) -> Begun[_Chunk]:
        body = _selection(first, end) | {"maximum-bytes": Int(_CHUNK_BYTES)}

        async def ask(node: ManagementNode) -> _Chunk:
            messages, answer = await node.request_messages("twinbus:browse", body)
            return messages, _next(answer, end)

        return self.line.begin(self.line.request(path, ask))


def _selection(first: int, end: int) -> dict[object, object]:
    return {"states": list(_STATES), "from-sequence-number": first, "to-sequence-number": end}


def _next(answer: dict[str, object], end: int) -> int:
    """Where to go on; `end` when everything has been looked at."""
    following = answer.get(_NEXT)
    return following if isinstance(following, int) else end


def _partition(entry: object) -> PartitionState:
    if not isinstance(entry, dict):
        raise ServiceError("the answer has a partition that is not a map")
    return PartitionState(
        partition=_number(entry, "partition"),
        is_up=entry.get("is-up") is True,
        first=_number(entry, "first-sequence-number"),
        next=_number(entry, _NEXT),
        count=_number(entry, "message-count"),
    )


def _number(entry: dict[object, object], name: str) -> int:
    value = entry.get(name)
    if not isinstance(value, int):
        raise ServiceError(f"the answer has a partition without '{name}'")
    return int(value)
