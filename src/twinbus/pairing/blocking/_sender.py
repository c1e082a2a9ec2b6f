"""A sender of a pair: the SDK sender's interface over a link to the primary and one to a backlog.

What way a message goes is decided in sending.py.  Links are opened when they are needed: a sender
can be made, entered and used while the primary is down.
"""

import datetime as dt
import threading
import warnings
from collections.abc import Callable
from typing import Any, Final, Self

from azure.servicebus import ServiceBusSender

from twinbus.pairing.batch import PairedMessageBatch, batch_within
from twinbus.pairing.blocking._running import run
from twinbus.pairing.blocking._steady import Closing, SteadySender
from twinbus.pairing.classification import Verdict, verdict_of
from twinbus.pairing.core import Pairing
from twinbus.pairing.events import State
from twinbus.pairing.log_lines import LOGGER
from twinbus.pairing.parcels import as_outgoing, collect
from twinbus.pairing.sending import (
    SenderState,
    Shortcut,
    after,
    batch_bytes,
    check_cancel,
    schedule,
    send,
    shortcut,
)
from twinbus.pairing.steps import Pause, ScheduleOnPrimary, SendToBacklog, SendToPrimary, Step

# To ask the primary how large a batch may be: an application that fills one waits for it.
BATCH_OPEN_S_MAX: Final = 10.0


class PairedSender:
    """What `get_queue_sender` and `get_topic_sender` of a paired client give.

    Used as the SDK's sender; several threads may share one.
    """

    def __init__(
        self,
        pairing: Pairing,
        lock: threading.Lock,
        dispatch: Callable[[], None],
        closing: Closing,
        make_primary: Callable[[str | None], ServiceBusSender],
        make_backlog: Callable[[str], ServiceBusSender],
        backlog_limit_bytes: int,
    ) -> None:
        """`make_primary` is given the client identifier that a replaced sender had."""
        first = make_primary(None)
        self.entity_name = first.entity_name
        self.fully_qualified_namespace = first.fully_qualified_namespace
        self.client_identifier = first.client_identifier
        self._pairing = pairing
        self._lock = lock
        self._dispatch = dispatch
        self._closing = closing
        self._make_backlog = make_backlog
        self._primary = SteadySender(
            lambda: make_primary(self.client_identifier), closing, first=first
        )
        self._backlog: dict[str, SteadySender] = {}  # by queue
        self._state = SenderState(self.entity_name)
        self._state.backlog_limit_bytes = backlog_limit_bytes
        self._closed = threading.Event()
        self._is_closed = False  # the same, for whoever only looks
        with lock:  # so that status() and force_failover() know of it
            self._entity = pairing.entity(self.entity_name)

    def __enter__(self) -> Self:
        self._check_live()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __str__(self) -> str:
        return f"Paired sender client id: {self.client_identifier}, entity: {self.entity_name}"

    def send_messages(self, message: Any, *, timeout: float | None = None, **kwargs: Any) -> None:
        """Send a message, several of them, or a batch, one way or the other.

        When this returns, the primary or a backlog queue has taken them.  When it raises, the
        caller still has them: see `twinbus.pairing.classification` for which error means what.
        """
        if kwargs or self._is_closed:
            self._check_call(kwargs)
        perform: Callable[[Step], Any] = self._perform
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
                    way.failed()
                if not isinstance(error, Exception):
                    raise
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
        with self._lock:
            self._pairing.check()
        self._primary.cancel(sequence_numbers, timeout or self._pairing.settings.send_timeout_s)

    def create_message_batch(self, max_size_in_bytes: int | None = None) -> PairedMessageBatch:
        """As large as the primary's link allows; while it is down, as a backlog queue's does."""
        self._check_live()
        limit = self._state.primary_batch_bytes or self._ask_for_batch_bytes()
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

    def _perform(self, step: Step) -> Any:
        if isinstance(step, SendToPrimary):
            self._primary.send(step.outgoing, step.timeout_s)
            if not self._state.primary_batch_bytes:
                self._learn_batch_bytes()
            if self._backlog:
                self._close_backlog()  # an idle link would be broken by the next outage
            return None
        match step:
            case SendToBacklog(queue, messages, timeout_s):
                return self._backlog_sender(queue).send(as_outgoing(messages), timeout_s)
            case ScheduleOnPrimary(outgoing, time_utc, timeout_s):
                return self._primary.schedule(outgoing, time_utc, timeout_s)
            case Pause(seconds):
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

    def _backlog_sender(self, queue: str) -> SteadySender:
        with self._lock:
            found = self._backlog.get(queue)
            if found is None:
                found = SteadySender(lambda: self._make_backlog(queue), self._closing)
                self._backlog[queue] = found
        return found

    def _close_backlog(self) -> list[threading.Thread | None]:
        with self._lock:
            senders = list(self._backlog.values())
            self._backlog.clear()
        return [sender.begin_close() for sender in senders]

    def _ask_for_batch_bytes(self) -> int:
        """What is wrong with the entity or the key is raised, as the SDK does; an outage is not."""
        with self._lock:
            self._pairing.check()
            state = self._pairing.entity(self.entity_name).state
        if state in {State.FAILING, State.FAILED_OVER}:
            return self._state.backlog_limit_bytes
        try:
            found = self._primary.batch_bytes(BATCH_OPEN_S_MAX)
        except Exception as error:
            if verdict_of(error, self._pairing.settings.policy) is Verdict.RAISE:
                raise
            return self._state.backlog_limit_bytes
        self._state.primary_batch_bytes = found
        return found

    def _check_call(self, unknown: dict[str, Any]) -> None:
        if unknown:
            warnings.warn(f"Unsupported keyword args: {unknown}", stacklevel=3)
        self._check_live()

    def _check_live(self) -> None:
        if self._is_closed:
            with self._lock:
                self._pairing.check()  # that the pair is over says more
            raise ValueError(
                "The sender has already been closed. Please use the paired client to get a new one."
            )
