"""A sender of a pair: the SDK sender's interface over a link to the primary and one to a backlog.

What way a message goes is decided in sending.py.  Links are opened when they are needed: a sender
can be made, entered and used while the primary is down.
"""

import asyncio
import contextlib
import datetime as dt
import warnings
from collections.abc import Awaitable, Callable
from typing import Any, Final, Self, TypeVar

from azure.servicebus.aio import ServiceBusSender

from twinbus.pairing.aio._running import run
from twinbus.pairing.aio._steady import Closing, SteadySender
from twinbus.pairing.batch import PairedMessageBatch, batch_within
from twinbus.pairing.classification import Verdict, verdict_of
from twinbus.pairing.core import Pairing
from twinbus.pairing.events import State
from twinbus.pairing.parcels import as_outgoing, collect
from twinbus.pairing.sending import (
    SenderState,
    after,
    batch_bytes,
    check_cancel,
    schedule,
    send,
    shortcut,
)
from twinbus.pairing.steps import Flow, Pause, ScheduleOnPrimary, SendToBacklog, SendToPrimary, Step

T = TypeVar("T")

# To ask the primary how large a batch may be: an application that fills one waits for it.
BATCH_OPEN_S_MAX: Final = 10.0


class PairedSender:
    """What `get_queue_sender` and `get_topic_sender` of a paired client give.

    Used as the SDK's async sender; several tasks may share one.
    """

    def __init__(
        self,
        pairing: Pairing,
        dispatch: Callable[[], None],
        closing: Closing,
        make_primary: Callable[[str | None], ServiceBusSender],
        make_backlog: Callable[[str], ServiceBusSender],
        backlog_limit_bytes: int,
        forget: Callable[["PairedSender"], None],
    ) -> None:
        """`make_primary` is given the client identifier that a replaced sender had, `forget` the
        sender when it is closed."""
        first = make_primary(None)
        self.entity_name = first.entity_name
        self.fully_qualified_namespace = first.fully_qualified_namespace
        self.client_identifier = first.client_identifier
        self._pairing = pairing
        self._dispatch = dispatch
        self._closing = closing
        self._make_backlog = make_backlog
        self._primary = SteadySender(
            lambda: make_primary(self.client_identifier), closing, first=first
        )
        self._backlog: dict[str, SteadySender] = {}  # by queue
        self._state = SenderState(self.entity_name)
        self._state.backlog_limit_bytes = backlog_limit_bytes
        self._forget = forget
        self._closed = asyncio.Event()
        # Now, so that status() and force_failover() know of it.
        self._entity = pairing.entity(self.entity_name)

    async def __aenter__(self) -> Self:
        self._check_live()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def __str__(self) -> str:
        return f"Paired sender client id: {self.client_identifier}, entity: {self.entity_name}"

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
        if kwargs or self._closed.is_set():
            self._check_call(kwargs)
        perform: Callable[[Step], Awaitable[Any]] = self._perform
        is_plain = timeout is None and not self._backlog
        way = shortcut(self._pairing, self._entity, message) if is_plain else None
        if way is not None:
            try:
                await self._primary.send(way.outgoing, self._pairing.settings.send_timeout_s)
            except BaseException as error:
                way.failed()
                if not isinstance(error, Exception):
                    raise
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
        limit = self._primary.batch_bytes or await self._ask_for_batch_bytes()
        return batch_within(limit, max_size_in_bytes)

    async def close(self) -> None:
        """A send that is under way fails.  To close twice does nothing."""
        self._closed.set()
        senders = [self._primary, *self._backlog.values()]
        await asyncio.gather(*(sender.close() for sender in senders))
        self._forget(self)

    async def _run(
        self, flow: Flow[T], perform: Callable[[Step], Awaitable[Any]] | None = None
    ) -> T:
        try:
            return await run(flow, perform or self._perform)
        finally:
            self._dispatch()

    async def _perform(self, step: Step) -> Any:
        if isinstance(step, SendToPrimary):
            await self._primary.send(step.outgoing, step.timeout_s)
            if self._backlog:
                self._leave_backlog()
            return None
        self._dispatch()  # the step may take long, and what led to it is news already
        self._check_live()
        match step:
            case SendToBacklog(queue, messages, timeout_s):
                return await self._backlog_sender(queue).send(as_outgoing(messages), timeout_s)
            case ScheduleOnPrimary(outgoing, time_utc, timeout_s):
                return await self._primary.schedule(outgoing, time_utc, timeout_s)
            case Pause(seconds):
                return await self._pause(seconds)
            case _:
                raise AssertionError(f"no step of a send: {step}")

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        self._check_live()

    def _backlog_sender(self, queue: str) -> SteadySender:
        found = self._backlog.get(queue)
        if found is None:
            found = SteadySender(lambda: self._make_backlog(queue), self._closing)
            self._backlog[queue] = found
        return found

    def _leave_backlog(self) -> None:
        """Back on the primary: an idle link would be broken by the next outage."""
        for sender in self._backlog.values():
            self._closing.begin(sender.rest())  # other tasks may still be sending by it
        self._backlog.clear()

    async def _ask_for_batch_bytes(self) -> int:
        """What is wrong with the entity or the key is raised, as the SDK does; an outage is not."""
        if self._pairing.entity(self.entity_name).state in {State.FAILING, State.FAILED_OVER}:
            return self._state.backlog_limit_bytes
        try:
            await self._primary.open(BATCH_OPEN_S_MAX)
        except Exception as error:
            if verdict_of(error, self._pairing.settings.policy) is Verdict.RAISE:
                raise
            return self._state.backlog_limit_bytes
        return self._primary.batch_bytes

    def _check_call(self, unknown: dict[str, Any]) -> None:
        if unknown:
            warnings.warn(f"Unsupported keyword args: {unknown}", stacklevel=3)
        self._check_live()

    def _check_live(self) -> None:
        self._pairing.check()  # says more than that it is closed
        if self._closed.is_set():
            raise ValueError(
                "The sender has already been closed. Please use the paired client to get a new one."
            )
