"""Opening a link so that it ends in time, whatever the peer does.

The SDK's timeouts do not reach into its opening of a connection: a peer that takes the connection
and then says nothing (a stopped process, a load balancer with nobody behind it) would hold the
caller for ever.  So the SDK's own opening runs in a thread of its own, and the caller waits for it
as long as the call may take.  An opening that hangs goes on: who comes next waits for the same one,
so there is at most one such thread a link.
"""

import threading
from collections.abc import Callable
from typing import Final

from azure.servicebus import ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import OperationTimeoutError

from twinbus.clock import monotonic_s
from twinbus.pairing import namespace_ids
from twinbus.pairing.client import OPEN_S_MAX

# An opening that has hung for so long is left to itself, and another one is tried.  Its thread ends
# when the peer answers or its connection breaks.
HANG_S_MAX: Final = 120.0


class Opening:
    """Stands in for the `_open` of one SDK sender or receiver, by which all of its calls open."""

    def __init__(
        self,
        link: ServiceBusSender | ServiceBusReceiver,
        learn: Callable[[str | None], None] | None = None,
    ) -> None:
        """`learn` is told the id of the namespace each time the link has opened."""
        self.wait_s_max = OPEN_S_MAX
        # Ids of namespaces: whatever opens the link again meanwhile, it is for these alone.
        self.meant_for = namespace_ids.ANY
        self._learn = learn
        self._link = link
        self._open = link._open  # noqa: SLF001 - the only place where opening can be bounded
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._begun_s = 0.0
        self._is_under_way = False
        self._abandoned = False
        # A method is called sooner than an object, and every send calls it twice.
        link._open = self.__call__  # type: ignore[method-assign]  # noqa: SLF001 - as above

    def __call__(self, timeout: float | None = None) -> None:
        if not self._link._running:  # noqa: SLF001 - as the SDK's own opening begins
            self._wait_for_opening(timeout)
        if self.meant_for:
            namespace_ids.check(namespace_ids.id_told_to(self._link), self.meant_for)

    def _wait_for_opening(self, timeout: float | None) -> None:
        end_s = monotonic_s() + min(timeout or self.wait_s_max, self.wait_s_max)
        is_ours = False
        while True:
            thread = self._thread
            if thread is None:
                thread = self._begin(end_s - monotonic_s())
                is_ours = True
            thread.join(max(0.0, end_s - monotonic_s()))
            if self._is_under_way:
                raise OperationTimeoutError(message="The link was not open in time.")
            self._thread = None
            error, self._error = self._error, None
            if error is None:
                return
            if is_ours:
                raise error

    @property
    def hangs_for_s(self) -> float:
        """How long an opening has been under way; 0 if none is."""
        return monotonic_s() - self._begun_s if self._is_under_way else 0.0

    def abandon(self) -> bool:
        """Nobody wants this link any more; is an opening under way that will close it at its end?

        The SDK's objects must not be closed while they open: what then came of the opening would
        stay open for ever.
        """
        with self._lock:
            self._abandoned = True
            return self._is_under_way

    def _begin(self, timeout_s: float) -> threading.Thread:
        self._begun_s = monotonic_s()
        self._is_under_way = True
        thread = threading.Thread(
            target=self._run, args=(timeout_s,), name="twinbus-pairing-opening", daemon=True
        )
        self._thread = thread
        thread.start()
        return thread

    def _run(self, timeout_s: float) -> None:
        try:
            self._open(timeout_s)
            if self._learn is not None:
                self._learn(namespace_ids.id_told_to(self._link))
        except Exception as error:  # noqa: BLE001 - for the one who waits
            self._error = error
        with self._lock:
            self._is_under_way = False
            if not self._abandoned:
                return
        self._link.close()
