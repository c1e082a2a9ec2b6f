"""The syphon of a pair: one thread for each backlog queue, each runs the flow that empties it.

What happens to a message is decided in syphon.py.  Here is only the SDK: a receiver for each
queue, replaced when it breaks, and a sender for each path, shared by the threads.
"""

import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage, ServiceBusReceiver
from azure.servicebus.exceptions import ServiceBusServerBusyError

from twinbus.clock import monotonic_s
from twinbus.pairing.blocking._opening import Opening
from twinbus.pairing.blocking._refusals import raise_refusals
from twinbus.pairing.blocking._running import run
from twinbus.pairing.blocking._steady import Closing, SteadySender
from twinbus.pairing.classification import is_broken_by
from twinbus.pairing.client import CLOSE_S_MAX, bare_sender
from twinbus.pairing.fitness import none_left
from twinbus.pairing.log_lines import LOGGER
from twinbus.pairing.parcels import as_outgoing
from twinbus.pairing.steps import (
    Abandon,
    AskNamespace,
    Complete,
    DeadLetter,
    Pause,
    Peek,
    Receive,
    SendRestored,
    Step,
)
from twinbus.pairing.syphon import PATH_COUNT_MAX, POLL_S, RESTART_S, Syphon


class Stopped(BaseException):  # no Exception: the flow is not asked what it makes of it
    """The syphon is being closed."""


class BlockingSyphon:
    """The threads of one pair's syphon."""

    def __init__(
        self,
        syphon: Syphon,
        queues: list[str],
        primary: ServiceBusClient,
        secondary: ServiceBusClient,
        lock: threading.Lock,
        dispatch: Callable[[], None],
        closing: Closing,
        until_empty: bool = False,
    ) -> None:
        self._syphon = syphon
        self._until_empty = until_empty
        self._primary = primary
        self._secondary = secondary
        self._lock = lock
        self._dispatch = dispatch
        self._closing = closing
        self._stopping = threading.Event()
        self._senders: dict[str, SteadySender] = {}
        self._workers = [_Worker(queue, self) for queue in queues]

    def start(self, open_s_max: float, fit: Collection[str]) -> None:
        """The fit queues are being received from when this returns.

        One that cannot be opened is tried again later, as any that fails later; if it is all of
        the fit ones, why is raised.
        """
        for worker in self._workers:
            worker.thread.start()
        end_s = monotonic_s() + open_s_max
        awaited = [worker for worker in self._workers if worker.queue in fit]
        for worker in awaited:
            worker.is_open.wait(max(0.0, end_s - monotonic_s()))
        errors = {each.queue: each.error for each in awaited if each.error is not None}
        if errors and len(errors) == len(awaited):
            raise none_left(errors)

    def wait(self) -> None:
        """Until all queues are empty, if that is when they are left."""
        for worker in self._workers:
            worker.thread.join()

    @property
    def is_running(self) -> bool:
        return not self._stopping.is_set() and any(
            worker.thread.is_alive() for worker in self._workers
        )

    def close(self) -> None:
        """Stop within a second or so, although a poll takes 15 minutes.

        What is in hand and not sent yet stays in the backlog, and is free again when its locks end.
        """
        self._stopping.set()
        for worker in self._workers:
            worker.interrupt()
        end_s = monotonic_s() + CLOSE_S_MAX
        for worker in self._workers:
            if worker.thread.ident is not None and worker.thread is not threading.current_thread():
                worker.thread.join(max(0.0, end_s - monotonic_s()))
        for sender in list(self._senders.values()):
            sender.begin_close()

    def run(self, worker: "_Worker") -> None:
        """A worker's whole life."""
        try:
            while True:
                try:
                    flow = self._syphon.empty(worker.queue, self._until_empty)
                    run(flow, worker.perform, self._lock, self._dispatch)
                except Exception:  # noqa: BLE001 - as said below
                    # The flow lives with every error of its steps, so this is a mistake in it.
                    LOGGER.exception("the syphon has met an error: queue=%s", worker.queue)
                    self.pause(RESTART_S)
                else:
                    return
        except Stopped:
            return

    def pause(self, seconds: float) -> None:
        if self._stopping.wait(seconds):
            raise Stopped

    def check(self) -> None:
        if self._stopping.is_set():
            raise Stopped

    def new_receiver(self, queue: str) -> ServiceBusReceiver:
        return self._secondary.get_queue_receiver(queue, prefetch_count=0, max_wait_time=POLL_S)

    def sender(self, path: str) -> SteadySender:
        """A path is a queue's or a topic's: on the wire there is no difference."""
        oldest: SteadySender | None = None
        with self._lock:
            found = self._senders.pop(path, None)
            if found is None:
                found = SteadySender(lambda: bare_sender(self._primary, path), self._closing)
            self._senders[path] = found  # the one used last stands last
            if len(self._senders) > PATH_COUNT_MAX:
                oldest = self._senders.pop(next(iter(self._senders)))
        if oldest is not None:
            oldest.begin_close()
        return found

    def discard(self, receiver: ServiceBusReceiver, opening: Opening) -> threading.Thread | None:
        return None if opening.abandon() else self._closing.begin(receiver.close)


class _Worker:
    """One backlog queue: its thread and its receiver."""

    def __init__(self, queue: str, syphon: BlockingSyphon) -> None:
        self.queue = queue
        self.is_open = threading.Event()
        self.error: Exception | None = None
        self.thread = threading.Thread(
            target=self._live, name=f"twinbus-pairing-syphon-{queue}", daemon=True
        )
        self._syphon = syphon
        self._receiver: ServiceBusReceiver | None = None
        self._opening: Opening | None = None

    def interrupt(self) -> None:
        """End a poll that is under way: the SDK looks at this whenever it has read from its socket,
        several times a second; closing from another thread would read at the same time."""
        handler = getattr(self._receiver, "_handler", None)
        if handler is not None:
            handler._shutdown = True  # noqa: SLF001 - there is no other way in

    def perform(self, step: Step) -> Any:
        match step:
            case Receive(_, count_max, wait_s):
                return self._receive(count_max, wait_s)
            case Peek(_, first, count_max, timeout_s):
                return self._peek(first, count_max, timeout_s)
            case SendRestored(path, messages, timeout_s, namespaces):
                self._syphon.check()
                sender = self._syphon.sender(path)
                return sender.send_home(as_outgoing(messages), timeout_s, namespaces)
            case AskNamespace(path, timeout_s):
                self._syphon.check()
                return self._syphon.sender(path).namespace(timeout_s)
            case Complete(_, messages):
                return [error for each in messages if (error := self._complete(each))] or None
            case Abandon(_, messages):
                receiver = self._open_receiver()
                for each in messages:
                    receiver.abandon_message(each)
                return None
            case DeadLetter(_, message, reason, description):
                receiver = self._open_receiver()
                return receiver.dead_letter_message(
                    message, reason=reason, error_description=description
                )
            case Pause(seconds):
                return self._syphon.pause(seconds)
            case _:
                raise AssertionError(f"no step of a syphon: {step}")

    def _live(self) -> None:
        try:
            with suppress(ServiceBusServerBusyError):  # it is there; the flow rests and asks again
                self._open_receiver().__enter__()
        except Exception as error:  # noqa: BLE001 - for the one who waits
            self.error = error
            self._drop_receiver()
        finally:
            self.is_open.set()
        try:
            self._syphon.run(self)
        finally:
            closing = self._drop_receiver()
            if closing is not None:
                closing.join(CLOSE_S_MAX)

    def _receive(self, count_max: int, wait_s: float) -> list[ServiceBusReceivedMessage]:
        self._syphon.check()
        receiver = self._open_receiver()
        try:
            messages = receiver.receive_messages(count_max, max_wait_time=wait_s)
            if len(messages) < count_max:
                _ask_for_no_more(receiver)
        except Exception as error:
            if is_broken_by(error):
                self._drop_receiver()
            self._syphon.check()  # the error may be that of being interrupted
            raise
        if not messages:
            self._syphon.check()
        return messages

    def _peek(
        self, first: int, count_max: int, timeout_s: float
    ) -> list[ServiceBusReceivedMessage]:
        self._syphon.check()
        receiver = self._open_receiver()
        try:
            return receiver.peek_messages(count_max, sequence_number=first, timeout=timeout_s)
        except Exception as error:
            if is_broken_by(error):
                self._drop_receiver()
            self._syphon.check()
            raise

    def _complete(self, message: ServiceBusReceivedMessage) -> Exception | None:
        try:
            self._open_receiver().complete_message(message)
        except Exception as error:  # noqa: BLE001 - the flow decides
            return error
        return None

    def _open_receiver(self) -> ServiceBusReceiver:
        if self._receiver is None:
            self._receiver = self._syphon.new_receiver(self.queue)
            raise_refusals(self._receiver)
            self._opening = Opening(self._receiver)
        return self._receiver

    def _drop_receiver(self) -> threading.Thread | None:
        receiver, self._receiver = self._receiver, None
        opening, self._opening = self._opening, None
        if receiver is None or opening is None:
            return None
        return self._syphon.discard(receiver, opening)


def _ask_for_no_more(receiver: ServiceBusReceiver) -> None:
    """Take back what is left of the credit that a receive has given.

    What comes between two receives the SDK gives back unseen.  The message behind it may be under
    way by then, would be seen before it, and a session would come home in the wrong order.
    """
    client: Any = receiver
    # SLF001: there is no other way in.
    client._amqp_transport.reset_link_credit(client._handler, 0)  # noqa: SLF001
