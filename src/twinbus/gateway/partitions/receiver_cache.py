"""What has come from partitions before the client has asked for it, in the order it came."""

from collections import deque
from typing import Final

from twinbus.entities.message import Message

CACHE_BYTES_MAX: Final = 1_048_576  # of cached bodies; then the partitions wait


class Cached:
    """A message that came before it was asked for."""

    __slots__ = ("body", "locked_until_utc_ms", "message", "partition", "stale_ms")

    def __init__(
        self, partition: int, message: Message, body: bytes, until_ms: int, stale_ms: int
    ) -> None:
        self.partition = partition
        self.message = message
        self.body = body
        self.locked_until_utc_ms = until_ms
        self.stale_ms = stale_ms  # monotonic: from then on it is too late to hand it out


class ReceiverCache:
    """Messages that are locked for one client, and how many bytes they take."""

    __slots__ = ("_bytes", "_messages")

    def __init__(self) -> None:
        self._messages: deque[Cached] = deque()
        self._bytes = 0

    def is_empty(self) -> bool:
        return not self._messages

    def is_full(self) -> bool:
        return self._bytes > CACHE_BYTES_MAX

    def keep(
        self,
        partition: int,
        messages: list[Message],
        bodies: list[bytes],
        until_ms: int,
        stale_ms: int,
    ) -> None:
        for message, body in zip(messages, bodies, strict=True):
            self._messages.append(Cached(partition, message.copy(), body, until_ms, stale_ms))
            self._bytes += len(body)

    def take_stale(self, mono_ms: int) -> list[Cached]:
        """The first ones, as far as it is too late for them."""
        stale: list[Cached] = []
        while self._messages and self._messages[0].stale_ms <= mono_ms:
            stale.append(self._take_first())
        return stale

    def take_run(self, count_max: int) -> list[Cached]:
        """As many of the first ones as came together."""
        run: list[Cached] = []
        messages = self._messages
        while (
            messages
            and len(run) < count_max
            and (not run or messages[0].partition == run[0].partition)
            and (not run or messages[0].locked_until_utc_ms == run[0].locked_until_utc_ms)
        ):
            run.append(self._take_first())
        return run

    def take_all(self) -> list[Cached]:
        taken = list(self._messages)
        self._messages.clear()
        self._bytes = 0
        return taken

    def _take_first(self) -> Cached:
        cached = self._messages.popleft()
        self._bytes -= len(cached.body)
        return cached
