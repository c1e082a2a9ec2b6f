"""One bus for each namespace in each process, kept for the next task.

Spark forks its workers and uses them again for many tasks; a connection for each task would cost
more than many tasks do.  A forked process has none of its parent's threads, so it never gets a bus
of its parent's.  After an error a bus is forgotten: the next one begins with a new connection.
"""

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from twinbus.errors import TwinbusError
from twinbus.pipeline.bus import Bus, open_bus

_Key = tuple[int, str, str]  # process, connection string, operations


class _Pool:
    """The buses of this process."""

    def __init__(self) -> None:
        self.buses: dict[_Key, Bus] = {}
        self.lock = threading.Lock()

    def forked(self) -> None:
        """In the child: the lock may have been held by a thread that does not exist here."""
        self.buses = {}
        self.lock = threading.Lock()


_POOL: Final = _Pool()
os.register_at_fork(after_in_child=_POOL.forked)


def bus_for(connection_string: str, operations: str = "auto") -> Bus:
    """This process's bus of the namespace."""
    key = (os.getpid(), connection_string, operations)
    with _POOL.lock:
        bus = _POOL.buses.get(key)
        if bus is None:
            bus = _POOL.buses[key] = open_bus(connection_string, operations)
        return bus


@contextmanager
def using_bus(connection_string: str, operations: str = "auto") -> Iterator[Bus]:
    """The same, for as long as nothing goes wrong: whoever comes next begins with a new one."""
    bus = bus_for(connection_string, operations)
    try:
        yield bus
    except TwinbusError:
        forget(bus)
        raise


def forget(bus: Bus) -> None:
    """Close it; nobody gets it again."""
    with _POOL.lock:
        for key in [key for key, pooled in _POOL.buses.items() if pooled is bus]:
            del _POOL.buses[key]
    bus.close()


def close_all() -> None:
    """Hang up everywhere, as a program's last act."""
    for bus in list(_POOL.buses.values()):
        forget(bus)


atexit.register(close_all)
