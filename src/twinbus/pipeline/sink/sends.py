"""The sends of one task: chunk by chunk, many messages at a time, in order where order counts.

What may be sent together and what must wait for each other:

    no session id or partition key   in parts that lead to one partition: of one producer, and
                                     within 4,096 numbers; one after the other without waiting
    with one, no partitions          all in one line, each batch when the one before it is stored
    with one, partitions             a line for each key

A bus that is asked to store a batch and is busy takes it later, and the batch behind it first: so
messages with a key wait for each other.  Whether a destination has partitions only shows when it
refuses a batch with several keys; nothing else is under way to it until that is known.

Must never say that a chunk is stored before the bus has said so of every message in it.
"""

from dataclasses import dataclass

from twinbus.errors import (
    EntityDisabled,
    InvalidOperation,
    QuotaExceeded,
    ServiceError,
    TwinbusError,
)
from twinbus.pipeline.bus import Bus, BusSender, Pending, SendRefused
from twinbus.pipeline.bus.protocol import SENDERS_MAX
from twinbus.pipeline.sink.keys import Outgoing
from twinbus.pipeline.sink.parts import Part, by_destination, joined
from twinbus.pipeline.sink.refused import RowRefused


@dataclass(frozen=True, slots=True)
class PartChain:
    """Parts of which each waits for the one before."""

    destination: str
    parts: list[Part]


@dataclass(slots=True)
class Count:
    """What has been stored of one destination."""

    messages: int = 0
    size_bytes: int = 0


class Sends:
    """Sends the chunks of one task."""

    def __init__(self, bus: Bus, batch_bytes: int) -> None:
        self._bus = bus
        self._batch_bytes = batch_bytes
        self._senders: dict[str, BusSender] = {}
        self._under_way: list[tuple[Part, Pending]] = []
        # By destination: may batches hold several keys?  Unknown until one has been tried.
        self._takes_mixed: dict[str, bool] = {}
        self.counts: dict[str, Count] = {}

    def send(self, chunk: list[Outgoing], keys: list[str]) -> None:
        """Send a chunk when the one before it is stored; returns while it is under way."""
        self.wait()
        free, keyed = by_destination(chunk, keys)
        for destination, blocks in free.items():
            for part in blocks:
                self._submit(destination, part)
        for destination, part in keyed.items():
            self._send_keyed(destination, part)

    def wait(self) -> None:
        """Return when everything is stored; raise for the first row that is refused."""
        under_way, self._under_way = self._under_way, []
        for part, pending in under_way:
            self._wait(part, pending)

    def close(self) -> None:
        """Detach.  After an error things may be under way; nobody asks what becomes of them."""
        senders, self._senders = self._senders, {}
        for sender in senders.values():
            sender.close()

    def _send_keyed(self, destination: str, part: Part) -> None:
        orders = {message.order for message in part.messages}
        if destination not in self._takes_mixed and len(orders) > 1:
            part = self._try_mixed(destination, part)
        lines = [part] if self._takes_mixed.get(destination) else part.by_order()
        self._send_lines([PartChain(destination, each.cut(self._batch_bytes)) for each in lines])

    def _try_mixed(self, destination: str, part: Part) -> Part:
        """Send the first batch alone: until its outcome is known nothing may overtake it.

        Gives what is left to send.
        """
        first, *rest = part.cut(self._batch_bytes)
        if len({message.order for message in first.messages}) == 1:
            return part  # it would tell nothing
        self.wait()
        try:
            # A sender that halves would have it stored, message by message, without a word.
            with self._opened(destination, first, halves=False) as sender:
                self._wait(first, sender.submit(first.data))
        except RowRefused as error:
            if isinstance(error.__cause__, InvalidOperation):
                self._takes_mixed[destination] = False
            return part  # if it is one row's fault that row is found now
        self._takes_mixed[destination] = True
        return joined(rest)

    def _send_lines(self, lines: list[PartChain]) -> None:
        """The first parts of all lines, then the second ones, …"""
        place = 0
        while lines := [line for line in lines if place < len(line.parts)]:
            if place:
                self.wait()
            for line in lines:
                self._submit(line.destination, line.parts[place])
            place += 1

    def _submit(self, destination: str, part: Part) -> None:
        if not part.messages:
            return
        sender = self._senders.get(destination)
        if sender is None:
            if len(self._senders) >= SENDERS_MAX:
                self.wait()
                self.close()
            sender = self._senders[destination] = self._opened(destination, part)
        self._under_way.append((part, sender.submit(part.data)))

    def _opened(self, destination: str, part: Part, *, halves: bool = True) -> BusSender:
        try:
            return self._bus.open_sender(
                destination, retry=True, batch_bytes=self._batch_bytes, halves=halves
            )
        except ServiceError as error:
            raise _refusal(part.messages[0], error) from error

    def _wait(self, part: Part, pending: Pending) -> None:
        destination = part.messages[0].destination
        try:
            pending.wait()
        except SendRefused as error:
            raise _refusal(part.messages[error.index], error.reason) from error.reason
        count = self.counts.setdefault(destination, Count())
        count.messages += len(part.messages)
        count.size_bytes += part.size_bytes()


def _refusal(message: Outgoing, reason: ServiceError) -> TwinbusError:
    """Names the row; what may mend without it keeps its kind, so that it is tried again later."""
    found = RowRefused(message.row, message.destination, reason)
    if reason.retryable or isinstance(reason, QuotaExceeded | EntityDisabled):
        return type(reason)(str(found))
    return found
