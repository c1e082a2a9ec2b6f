"""A sender of a pair: the SDK sender's interface over a link to the primary and one to a backlog.

What way a message goes is decided in sending.py.
"""

import asyncio
import contextlib
import datetime as dt
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeVar

from azure.servicebus.aio import ServiceBusSender

from twinbus.pairing import steps
from twinbus.pairing.aio._running import run
from twinbus.pairing.aio._steady import SteadySender
from twinbus.pairing.batch import PairedMessageBatch, batch_within
from twinbus.pairing.parcels import as_outgoing, collect
from twinbus.pairing.sender import PairedSenderBase, Shared
from twinbus.pairing.sending import (
    after,
    batch_bytes,
    batch_limit,
    check_cancel,
    schedule,
    send,
    shortcut,
)

T = TypeVar("T")


class PairedSender(PairedSenderBase[SteadySender]):
    """What `get_queue_sender` and `get_topic_sender` of a paired client give.

    Used as the SDK's async sender; several tasks may share one.
    """

    _new_link = SteadySender

    def __init__(
        self, shared: Shared, make_primary: Callable[[str | None], ServiceBusSender]
    ) -> None:
        super().__init__(shared, make_primary)
        self._closed = asyncio.Event()  # as `_is_closed`, for whoever waits

    async def __aenter__(self) -> Self:
        self._check_live()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def send_messages(
        self,
        message: Any,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - as the SDK has it
        **kwargs: Any,
    ) -> None:
        """Send a message, several of them, or a batch, one way or the other.

        When this returns, the primary or a backlog queue has taken them.  When it raises, the
        caller still has them: see `twinbus.pairing.classification` for which error means what.
        """
        self._pairing.check()
        if kwargs or self._is_closed:
            self._check_call(kwargs)
        perform: Callable[[steps.Step], Awaitable[Any]] = self._perform
        is_plain = timeout is None and not self._backlog
        way = shortcut(self._pairing, self._entity, message) if is_plain else None
        if way is not None:
            try:
                await self._primary.send(way.outgoing, self._pairing.settings.send_timeout_s)
            except BaseException as error:
                is_told = way.failed(error)
                if not isinstance(error, Exception):
                    raise
                if is_told:
                    perform = after(error, perform)
            else:
                way.succeeded()
                if self._pairing.has_events:
                    self._dispatch()
                return
        self._state.primary_batch_bytes = self._primary.batch_bytes
        parcel = collect(message, batch_bytes(self._pairing, self._state))
        await self._run(send(self._pairing, self._state, parcel, timeout), perform)

    async def schedule_messages(
        self,
        messages: Any,
        schedule_time_utc: dt.datetime,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
        **kwargs: Any,
    ) -> list[int]:
        """The sequence numbers, by which messages can be cancelled; 0 for one in the backlog."""
        self._check_call(kwargs)
        parcel = collect(messages)
        flow = schedule(self._pairing, self._state, parcel, schedule_time_utc, timeout)
        return await self._run(flow)

    async def cancel_scheduled_messages(
        self,
        sequence_numbers: int | list[int],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
        **kwargs: Any,
    ) -> None:
        """Only the primary can cancel: what waits in the backlog has no number there yet."""
        self._check_call(kwargs)
        check_cancel(sequence_numbers, timeout)
        timeout_s = timeout or self._pairing.settings.send_timeout_s
        await self._primary.cancel(sequence_numbers, timeout_s)

    async def create_message_batch(
        self, max_size_in_bytes: int | None = None
    ) -> PairedMessageBatch:
        """As large as the primary's link allows; while it is down, as a backlog queue's does."""
        self._check_live()
        limit = self._primary.batch_bytes
        if not limit:
            limit = await self._run(batch_limit(self._pairing, self._state))
        return batch_within(limit, max_size_in_bytes)

    async def close(self) -> None:
        """A send that is under way fails.  To close twice does nothing."""
        self._is_closed = True
        self._closed.set()
        senders = [self._primary, *self._backlog.values()]
        await asyncio.gather(*(sender.close() for sender in senders))
        self._shared.forget(self)

    async def _run(
        self, flow: steps.Flow[T], perform: Callable[[steps.Step], Awaitable[Any]] | None = None
    ) -> T:
        try:
            return await run(flow, perform or self._perform)
        finally:
            self._dispatch()

    async def _perform(self, step: steps.Step) -> Any:
        if isinstance(step, steps.SendToPrimary):
            await self._primary.send(step.outgoing, step.timeout_s)
            if self._backlog:
                self._leave_backlog()
            return None
        self._dispatch()  # the step may take long, and what led to it is news already
        self._check_live()
        match step:
            case steps.SendToBacklog(queue, messages, timeout_s):
                return await self._backlog_link(queue).send(as_outgoing(messages), timeout_s)
            case steps.ScheduleOnPrimary(outgoing, time_utc, timeout_s):
                return await self._primary.schedule(outgoing, time_utc, timeout_s)
            case steps.OpenPrimary(timeout_s):
                await self._primary.open(timeout_s)
                return self._primary.batch_bytes
            case steps.Pause(seconds):
                return await self._pause(seconds)
            case _:
                raise AssertionError(f"no step of a send: {step}")

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        self._check_live()

    def _leave_backlog(self) -> None:
        """Back on the primary: an idle link would be broken by the next outage."""
        for sender in self._backlog.values():
            self._shared.closing.begin(sender.rest())  # other tasks may still be sending by it
        self._backlog.clear()
