"""One partition of the primary's queue that is down besides, by a fault of the server.

It goes down while all is well, and senders evade it.  It is still down when the primary is back
and the backlog comes home: a syphon keeps what belongs there, and goes on with everything else.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from twinbus.client.faults import FaultClient
from twinbus.clock import monotonic_s
from twinbus.drill.plan import DOWN_PARTITION, ORDERS
from twinbus.errors import TwinbusError

_KIND: Final = "partition-down"
_LOOK_S: Final = 0.5


class LostPartition:
    """Can be taken away and given back."""

    def __init__(self, entity: str = ORDERS.name, number: int = DOWN_PARTITION) -> None:
        self.entity = entity
        self.number = number
        self.name = f"partition {number} of {entity}"
        self._since_s: float | None = None
        self._down_s = 0.0

    @property
    def down_s(self) -> float:
        """How long it was down so far, the time in which its server was down included."""
        since_s = self._since_s
        return self._down_s + (0.0 if since_s is None else monotonic_s() - since_s)

    def take(self, connection_string: str) -> None:
        """Once more after a restart of the server, which forgets its faults."""
        faults = FaultClient(connection_string)
        if not _ids(faults):
            faults.add({"kind": _KIND, "entity": self.entity, "partition": [self.number]})
        if self._since_s is None:
            self._since_s = monotonic_s()

    def give_back(self, connection_string: str) -> None:
        faults = FaultClient(connection_string)
        for fault_id in _ids(faults):
            faults.clear(fault_id)
        self._down_s, self._since_s = self.down_s, None

    @contextmanager
    def back_when(
        self, is_time: Callable[[], bool], connection_string: str, on_back: Callable[[], None]
    ) -> Iterator[None]:
        """Gives it back while something else is done, and at the latest when that is done."""
        is_over = threading.Event()

        def give_back() -> None:
            while not (is_time() or is_over.wait(_LOOK_S)):
                pass
            while True:
                try:
                    self.give_back(connection_string)
                except TwinbusError:  # the server is busy
                    if is_over.wait(_LOOK_S):
                        return
                else:
                    on_back()
                    return

        thread = threading.Thread(target=give_back, name="partition", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


def _ids(faults: FaultClient) -> list[str]:
    return [str(fault["id"]) for fault in faults.list() if fault["kind"] == _KIND]
