"""A sender of a pair: the SDK sender's interface over a link to the primary and one to a backlog.

What way a message goes is decided in sending.py.
"""

import datetime as dt
import threading
from collections.abc import Callable
from typing import Any, Self

from azure.servicebus import ServiceBusSender

from twinbus.pairing import steps
from twinbus.pairing.batch import PairedMessageBatch, batch_within
from twinbus.pairing.blocking._running import run
from twinbus.pairing.blocking._steady import SteadySender
from twinbus.pairing.log_lines import LOGGER
from twinbus.pairing.parcels import as_outgoing, collect
from twinbus.pairing.sender import PairedSenderBase, Shared
from twinbus.pairing.sending import (
    BATCH_OPEN_S_MAX,
    Shortcut,
    after,
    batch_bytes,
    batch_limit,
    check_cancel,
    schedule,
    send,
    shortcut,
)


class PairedSender(PairedSenderBase[SteadySender]):
    """What `get_queue_sender` and `get_topic_sender` of a paired client give.

    Used as the SDK's sender; several threads may share one.
    """

    _new_link = SteadySender

    def __init__(
        self, shared: Shared, make_primary: Callable[[str | None], ServiceBusSender]
    ) -> None:
        super().__init__(shared, make_primary)
        self._closed = threading.Event()  # as `_is_closed`, for whoever waits

    def __enter__(self) -> Self:
        self._check_live()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def send_messages(self, message: Any, *, timeout: float | None = None, **kwargs: Any) -> None:
        """Send a message, several of them, or a batch, one way or the other.

        When this returns, the primary or a backlog queue has taken them.  When it raises, the
        caller still has them: see `twinbus.pairing.classification` for which error means what.
        """
        if kwargs or self._is_closed:
            self._check_call(kwargs)
        perform: Callable[[steps.Step], Any] = self._perform
        way: Shortcut | None = None
        # The first send of all and the first after an outage have more to do.
        if timeout is None and self._state.primary_batch_bytes and not self._backlog:
            with self._lock:
                self._pairing.check()
                way = shortcut(self._pairing, self._entity, message)
        if way is not None:
            try:
                self._primary.send(way.outgoing, self._pairing.settings.send_timeout_s)
            except BaseException as error:
                with self._lock:
                    is_told = way.failed(error)
                if not isinstance(error, Exception):
                    raise
                if is_told:
                    perform = after(error, perform)
            else:
                with self._lock:
                    way.succeeded()
                if self._pairing.has_events:
                    self._dispatch()
                return
        with self._lock:
            size_bytes = batch_bytes(self._pairing, self._state)
        parcel = collect(message, size_bytes)
        flow = send(self._pairing, self._state, parcel, timeout)
        run(flow, perform, self._lock, self._dispatch)

    def schedule_messages(
        self,
        messages: Any,
        schedule_time_utc: dt.datetime,
        *,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> list[int]:
        """The sequence numbers, by which messages can be cancelled; 0 for one in the backlog."""
        self._check_call(kwargs)
        parcel = collect(messages)
        flow = schedule(self._pairing, self._state, parcel, schedule_time_utc, timeout)
        return run(flow, self._perform, self._lock, self._dispatch)

    def cancel_scheduled_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None, **kwargs: Any
    ) -> None:
        """Only the primary can cancel: what waits in the backlog has no number there yet."""
        self._check_call(kwargs)
        check_cancel(sequence_numbers, timeout)
        self._primary.cancel(sequence_numbers, timeout or self._pairing.settings.send_timeout_s)

    def create_message_batch(self, max_size_in_bytes: int | None = None) -> PairedMessageBatch:
        """As large as the primary's link allows; while it is down, as a backlog queue's does."""
        self._check_live()
        limit = self._state.primary_batch_bytes
        if not limit:
            flow = batch_limit(self._pairing, self._state)
            limit = run(flow, self._perform, self._lock, self._dispatch)
        return batch_within(limit, max_size_in_bytes)

    def close(self) -> None:
        """A send that is under way fails.  To close twice does nothing."""
        self._is_closed = True
        self._closed.set()
        threads = [self._primary.begin_close(), *self._close_backlog()]
        for thread in threads:
            if thread is not None:
                thread.join()

    def begin_close(self) -> None:
        """As `close`, but somebody else waits."""
        self._is_closed = True
        self._closed.set()
        self._primary.begin_close()
        self._close_backlog()

    def _perform(self, step: steps.Step) -> Any:
        if isinstance(step, steps.SendToPrimary):
            self._primary.send(step.outgoing, step.timeout_s)
            if not self._state.primary_batch_bytes:
                self._learn_batch_bytes()
            if self._backlog:
                self._close_backlog()  # an idle link would be broken by the next outage
            return None
        match step:
            case steps.SendToBacklog(queue, messages, timeout_s):
                return self._backlog_link(queue).send(as_outgoing(messages), timeout_s)
            case steps.ScheduleOnPrimary(outgoing, time_utc, timeout_s):
                return self._primary.schedule(outgoing, time_utc, timeout_s)
            case steps.OpenPrimary(timeout_s):
                return self._primary.batch_bytes(timeout_s)
            case steps.Pause(seconds):
                self._closed.wait(seconds)
                return self._check_live()
            case _:
                raise AssertionError(f"no step of a send: {step}")

    def _learn_batch_bytes(self) -> None:
        """The link is open, so this asks nobody; what goes wrong is no fault of the send."""
        try:
            self._state.primary_batch_bytes = self._primary.batch_bytes(BATCH_OPEN_S_MAX)
        except Exception as error:  # noqa: BLE001 - there is another chance with the next send
            LOGGER.debug("size of a batch unknown: entity=%s error=%r", self.entity_name, error)

    def _close_backlog(self) -> list[threading.Thread | None]:
        with self._lock:
            senders = list(self._backlog.values())
            self._backlog.clear()
        return [sender.begin_close() for sender in senders]
