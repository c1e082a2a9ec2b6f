"""Sending, the same for every Service Bus: messages in batches, several batches under way.

A batch that the bus refuses because of one of its messages is halved until the message is found;
so one that was too large as a whole goes through in parts, and an error can name its message.

A batch is sent again by itself only when it is certain that nothing of it was stored, or when its
owner has said that a copy does no harm (`retry`).
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Final, Self

from twinbus.client.blocking import CALL_DURATION_S_MAX, result_of
from twinbus.client.connection import BusConnection
from twinbus.client.links import Sender
from twinbus.errors import EntityNotFound, ServerBusy, ServiceError, TwinbusError
from twinbus.limits import MESSAGE_SIZE_BYTES_MAX
from twinbus.message.plain import BATCH_FORMAT, build_batch, cut
from twinbus.pipeline.bus.line import NamespaceConnection, Patience, may_pass, named
from twinbus.pipeline.bus.protocol import OF_ONE_MESSAGE, SEND_BATCH_BYTES, SendRefused

# More than four full batches would only wait in the bus instead of here; small ones may be many.
UNDER_WAY_BYTES: Final = 4 * SEND_BATCH_BYTES
UNDER_WAY_MAX: Final = 64


class OtherNamespace(TwinbusError):
    """What was sent so far went to another namespace than the one that answers now."""


class _Batch:
    """Messages that are sent together; `first` is the place of the first in the submission."""

    __slots__ = ("first", "messages", "outcome", "pending", "size_bytes")

    def __init__(self, messages: list[bytes], first: int, pending: "LinePending") -> None:
        self.messages = messages
        self.first = first
        self.pending = pending
        self.size_bytes = sum(map(len, messages))
        self.outcome: Future[None] | None = None  # None: it could not even begin


class LinePending:
    """A submission: some batches of a sender."""

    def __init__(self, sender: "LineSender") -> None:
        self._sender = sender
        self.open_count = 0  # batches whose outcome is not known
        self.error: TwinbusError | None = None  # the first that went wrong

    def wait(self) -> None:
        """Return when all of it is stored; raise why when it is not."""
        while self.open_count:
            self._sender.finish_oldest()
        if self.error is not None:
            raise self.error


class LineSender:
    """A sender that survives its connection.  One thread at a time."""

    def __init__(
        self,
        line: NamespaceConnection,
        path: str,
        retry: bool,
        batch_bytes: int,
        halves: bool = True,
        pinned: bool = False,
    ) -> None:
        self._line = line
        self._pinned = pinned
        self._path = path
        self._retry = retry
        self._batch_bytes = batch_bytes
        self._halves = halves
        # Connection and link; used by the loop's thread alone, like the link itself.
        self._held: tuple[BusConnection, Sender] | None = None
        self._under_way: deque[_Batch] = deque()
        self.namespace_id: str | None = None
        self._size_max = line.run(self._open)

    def submit(self, messages: Sequence[bytes]) -> LinePending:
        """Send without waiting; see `BusSender`."""
        pending = LinePending(self)
        messages = list(messages)
        for first, count in cut(messages, min(self._batch_bytes, self._size_max)):
            # What failed goes again before anything new: that is the order.
            while self._is_full() or any(map(_has_failed, self._under_way)):
                self.finish_oldest()
            if pending.error is not None:
                break  # nothing more after what was refused
            batch = _Batch(messages[first : first + count], first, pending)
            pending.open_count += 1
            self._under_way.append(batch)
            self._start(batch)
        return pending

    def _is_full(self) -> bool:
        under_way = self._under_way
        return (
            len(under_way) >= UNDER_WAY_MAX
            or sum(batch.size_bytes for batch in under_way) >= UNDER_WAY_BYTES
        )

    def finish_oldest(self) -> None:
        """Wait for the batch that was sent first, and note in its submission what became of it."""
        batch = self._under_way[0]
        try:
            self._finish(batch, self._line.patience())
        except TwinbusError as error:
            if batch.pending.error is None:
                batch.pending.error = error
        finally:
            self._under_way.popleft()
            batch.pending.open_count -= 1

    def close(self) -> None:
        """Detach.  What was not waited for may or may not be stored."""
        if self._held is None or self._held[0].error is not None:
            return  # gone, and the link with it
        try:
            self._line.connection().call(self._close)
        except TwinbusError:
            pass  # gone just now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- one batch --------------------------------------------------------------------------------

    def _start(self, batch: _Batch) -> None:
        messages = batch.messages
        alone = len(messages) == 1
        data = messages[0] if alone else build_batch(messages)
        message_format = 0 if alone else BATCH_FORMAT

        async def work(connection: BusConnection) -> None:
            sender = self._living(connection)
            if sender is None:
                raise _NotSent
            await sender.send_encoded(data, message_format)

        try:
            batch.outcome = self._line.connection().start(work)
        except TwinbusError:
            batch.outcome = None

    def _finish(self, batch: _Batch, patience: Patience) -> None:
        """Return when the batch is stored; raise why it is not."""
        while True:
            try:
                if batch.outcome is not None:
                    result_of(batch.outcome, CALL_DURATION_S_MAX)
                    return
            except ServerBusy as busy:
                patience.pause(busy)
            except ServiceError as error:
                if not (self._retry and may_pass(error)):
                    self._finish_refused(batch, error, patience)
                    return
                patience.pause(error)
            except _NotSent:
                pass
            except TwinbusError as error:
                if not self._retry:
                    raise
                patience.pause(error)
            self._start_again(batch, patience)

    def _start_again(self, batch: _Batch, patience: Patience) -> None:
        """Send it once more, and behind it all that has failed since, in their order."""
        try:
            self._line.connection().call(self._open)
        except ServiceError as error:
            if not may_pass(error):
                raise SendRefused(self._path, batch.first, error) from None
            patience.pause(error)
        except TwinbusError as error:
            patience.pause(error)
        else:
            self._start(batch)
            if batch is self._under_way[0]:
                for other in list(self._under_way)[1:]:
                    if _may_go_again(other, self._retry):
                        self._start(other)

    def _finish_refused(self, batch: _Batch, error: ServiceError, patience: Patience) -> None:
        """Send the halves, one after the other, or name the message."""
        messages = batch.messages
        if isinstance(error, EntityNotFound):
            self.close()  # one that is made anew under this name is another one, with other links
        if len(messages) == 1 or not self._halves or not isinstance(error, OF_ONE_MESSAGE):
            raise SendRefused(self._path, batch.first, error) from None
        middle = len(messages) // 2
        for first, half in ((0, messages[:middle]), (middle, messages[middle:])):
            part = _Batch(half, batch.first + first, batch.pending)
            self._start(part)
            self._finish(part, patience)

    # --- the link, in the loop's thread -----------------------------------------------------------

    def _living(self, connection: BusConnection) -> Sender | None:
        if self._held is None or self._held[0] is not connection:
            return None
        sender = self._held[1]
        return sender if sender.error is None else None

    async def _open(self, connection: BusConnection) -> int:
        """Have a link; gives how large a message may be."""
        sender = self._living(connection)
        if sender is None:
            try:
                sender = await connection.open_sender(self._path)
            except ServiceError as error:
                raise named(error, self._path) from None
            is_same = self._held is None or sender.namespace_id == self.namespace_id
            if self._pinned and not is_same:
                sender.close()
                raise OtherNamespace(f"another namespace answers for '{self._path[:64]}' now")
            self.namespace_id = sender.namespace_id
            self._held = (connection, sender)
        return sender.message_size_bytes_max or MESSAGE_SIZE_BYTES_MAX

    async def _close(self, connection: BusConnection) -> None:
        sender = self._living(connection)
        if sender is not None:
            sender.close()


class _NotSent(TwinbusError):
    """There was no link to send it on: certainly nothing has happened."""


def _has_failed(batch: _Batch) -> bool:
    outcome = batch.outcome
    return outcome is None or (
        outcome.done() and (outcome.cancelled() or outcome.exception() is not None)
    )


def _may_go_again(batch: _Batch, retry: bool) -> bool:
    """Whether a copy of what has failed does no harm, and may succeed."""
    outcome = batch.outcome
    if outcome is None:
        return True
    if not outcome.done():
        return False
    error = None if outcome.cancelled() else outcome.exception()
    if outcome.cancelled() or isinstance(error, _NotSent | ServerBusy):
        return retry or not outcome.cancelled()
    return retry and isinstance(error, TwinbusError) and may_pass(error)


class PlainBus:
    """What is the same on every Service Bus: the line, sending on it, and what runs are."""

    def __init__(self, line: NamespaceConnection) -> None:
        self.line = line

    def numbers(self, path: str, first: int, end: int, limit: int) -> list[tuple[int, int]]:
        """See `Bus`."""
        runs: list[tuple[int, int]] = []
        for start, stop in self._runs(path, first, end):
            if runs and runs[-1][1] == start:
                runs[-1] = (runs[-1][0], stop)
            elif len(runs) == limit:
                break
            else:
                runs.append((start, stop))
        return runs

    def _runs(self, path: str, first: int, end: int) -> Iterator[tuple[int, int]]:
        """What is there in the range, lowest first, in as many pieces as the bus tells it."""
        raise NotImplementedError

    def send(self, path: str, messages: Sequence[bytes], *, retry: bool = False) -> None:
        """See `Bus`."""
        with self.open_sender(path, retry=retry) as sender:
            sender.submit(messages).wait()

    def open_sender(
        self,
        path: str,
        *,
        retry: bool = False,
        batch_bytes: int = SEND_BATCH_BYTES,
        halves: bool = True,
        pinned: bool = False,
    ) -> LineSender:
        """See `Bus`."""
        return LineSender(self.line, path, retry, batch_bytes, halves, pinned)

    def close(self) -> None:
        """Hang up."""
        self.line.close()
