"""A sender that goes on: the SDK's sender, opened when first needed and replaced when it breaks.

The SDK's sender must not be used by two threads at once, and one whose connection hangs is of no
further use.  Nothing here decides what an error means for the pair: it is raised as the SDK raised
it.
"""

import datetime as dt
import threading
from collections.abc import Callable
from typing import Any, Final, cast

from azure.servicebus import ServiceBusSender
from azure.servicebus.exceptions import OperationTimeoutError

from twinbus.clock import monotonic_s
from twinbus.pairing.blocking._opening import HANG_S_MAX, Opening
from twinbus.pairing.blocking._refusals import Tries, raise_refusals
from twinbus.pairing.classification import is_broken_by
from twinbus.pairing.client import CLOSE_S_MAX, OPEN_S_MAX
from twinbus.pairing.log_lines import LOGGER
from twinbus.pairing.namespace_ids import ANY, id_told_to

# The SDK takes no timeout of 0, which is what a call has left that has waited for its turn.
TIMEOUT_S_MIN: Final = 0.001
SHUT_DOWN: Final = "already been shutdown"  # what the SDK says of a sender that was closed


class Closing:
    """SDK objects that are being closed while everybody else goes on: it takes up to a second."""

    def __init__(self) -> None:
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()

    def begin(self, close: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(
            target=self._close, args=(close,), name="twinbus-pairing-closing", daemon=True
        )
        with self._lock:  # whoever waits finds only threads that have been started
            self._threads.add(thread)
            thread.start()
        return thread

    def wait(self) -> None:
        """Until all of them are closed, but not for ever."""
        end_s = monotonic_s() + CLOSE_S_MAX
        with self._lock:
            threads = self._threads - {threading.current_thread()}
        for thread in threads:
            thread.join(max(0.0, end_s - monotonic_s()))

    def _close(self, close: Callable[[], None]) -> None:
        try:
            close()
        except Exception as error:  # noqa: BLE001 - it is being thrown away
            LOGGER.debug("closing failed: error=%r", error)
        with self._lock:
            self._threads.discard(threading.current_thread())


class SteadySender:
    """One SDK sender at a time, used by one thread at a time."""

    def __init__(
        self,
        make: Callable[[], ServiceBusSender],
        closing: Closing,
        first: ServiceBusSender | None = None,
        learn: Callable[[str | None], None] | None = None,
    ) -> None:
        """`first` was made already: the SDK checks names when it makes a sender.

        `learn` is told the id of the peer's namespace whenever a link has opened.
        """
        self._learn = learn
        self._make = make
        self._closing = closing
        self._mutex = threading.Lock()
        self._sdk = first
        self._opening: Opening | None = None
        self._tries = Tries()
        if first is not None:
            self._prepare(first)

    def send(self, outgoing: Any, timeout_s: float) -> None:
        # Mostly nobody else is sending, and the SDK's sender is there: then no time has passed.
        if self._mutex.acquire(blocking=False):
            try:
                sdk = self._sdk
                if sdk is not None:
                    self._tries.begin()
                    sdk.send_messages(outgoing, timeout=timeout_s)
                    return
            except BaseException as error:
                if not self._is_to_be_replaced(sdk, error):
                    raise
            finally:
                self._mutex.release()
        self._use("send_messages", timeout_s, outgoing)

    def send_home(self, outgoing: Any, timeout_s: float, namespaces: frozenset[str]) -> None:
        """Only to a namespace of these ids, or to one that tells none."""
        if namespaces:
            self._use("send_messages", timeout_s, outgoing, meant_for=namespaces)
        else:
            self.send(outgoing, timeout_s)

    def namespace(self, timeout_s: float) -> str | None:
        """The id that the peer tells; opens the link, unless it is open."""
        self._use(None, timeout_s)
        return id_told_to(self._sdk)

    def schedule(self, outgoing: Any, time_utc: dt.datetime, timeout_s: float) -> list[int]:
        return cast(list[int], self._use("schedule_messages", timeout_s, outgoing, time_utc))

    def cancel(self, sequence_numbers: int | list[int], timeout_s: float) -> None:
        self._use("cancel_scheduled_messages", timeout_s, sequence_numbers)

    def batch_bytes(self, timeout_s: float) -> int:
        """The largest batch.  Opens the link, unless it is open: only the peer knows."""
        return cast(int, self._use(None, timeout_s))

    def begin_close(self) -> threading.Thread | None:
        """A send that is under way fails; a later one would open a new SDK sender.

        Gives the thread that closes the SDK sender, if there is something to close.
        """
        sdk, self._sdk = self._sdk, None
        opening, self._opening = self._opening, None
        if sdk is None or (opening is not None and opening.abandon()):
            return None
        return self._closing.begin(sdk.close)

    def close(self) -> None:
        closing = self.begin_close()
        if closing is not None:
            closing.join(CLOSE_S_MAX)

    def _use(
        self, method: str | None, timeout_s: float, *arguments: Any, meant_for: frozenset[str] = ANY
    ) -> Any:
        end_s = monotonic_s() + timeout_s
        # Mostly it is free, and to ask without a timeout is cheaper.
        if not self._mutex.acquire(blocking=False) and not self._mutex.acquire(timeout=timeout_s):
            text = f"The sender was busy with other sends for {timeout_s:g} s."
            raise OperationTimeoutError(message=text)
        try:
            while True:
                sdk = self._ready(meant_for)
                self._tries.begin()
                left_s = max(TIMEOUT_S_MIN, end_s - monotonic_s())
                try:
                    if method is None:
                        return self._batch_bytes(sdk, left_s)
                    return getattr(sdk, method)(*arguments, timeout=left_s)
                except BaseException as error:
                    if not self._is_to_be_replaced(sdk, error):
                        raise
        finally:
            opening = self._opening
            if opening is not None:
                opening.meant_for = ANY
            self._mutex.release()

    def _is_to_be_replaced(self, sdk: ServiceBusSender | None, error: BaseException) -> bool:
        """Throws away what the error has broken.  True: the call is to be made by a new one."""
        if self._sdk is sdk and is_broken_by(error) and not self._is_opening():
            self.begin_close()
        # Somebody has closed the SDK's client: no fault of what is being sent.
        return isinstance(error, ValueError) and SHUT_DOWN in str(error)

    def _ready(self, meant_for: frozenset[str]) -> ServiceBusSender:
        sdk = self._sdk
        if sdk is None:
            sdk = self._sdk = self._make()
            self._prepare(sdk)
        opening = self._opening
        if opening is not None:
            opening.meant_for = meant_for
        return sdk

    def _prepare(self, sdk: ServiceBusSender) -> None:
        """The SDK's sender is new: it gets to behave as a pair needs it."""
        self._tries = raise_refusals(sdk)
        self._opening = Opening(sdk, self._learn)

    def _batch_bytes(self, sdk: ServiceBusSender, timeout_s: float) -> int:
        """Of the SDK's calls the one that knows no timeout."""
        opening = self._opening
        assert opening is not None
        opening.wait_s_max = timeout_s
        try:
            return sdk.create_message_batch().max_size_in_bytes
        finally:
            opening.wait_s_max = OPEN_S_MAX

    def _is_opening(self) -> bool:
        """An opening that hangs is waited for by the next send, too, but not for ever."""
        return self._opening is not None and 0.0 < self._opening.hangs_for_s < HANG_S_MAX
