"""A BusConnection for programs without an event loop: the loop runs in its own thread.

    connection = BlockingConnection.open(connection_string)
    node = connection.call(lambda bus: ManagementNode.open(bus, "orders"))

The thread answers heartbeats however long the program is busy elsewhere.  The work is a coroutine
that gets the BusConnection; what it raises is raised here.

A forked process does not inherit its parent's threads.  There the connection counts as lost, and
its socket is left alone because it still belongs to the parent.
"""

import asyncio
import os
import ssl
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Final, Self, TypeVar

from twinbus.client.connection import OPEN_DURATION_S_MAX, BusConnection
from twinbus.client.connection_string import ConnectionString
from twinbus.client.links import ConnectionLost
from twinbus.errors import OperationTimeout, TwinbusError, Unauthorized

T = TypeVar("T")
Work = Callable[[BusConnection], Coroutine[Any, Any, T]]

CALL_DURATION_S_MAX: Final = 120.0
CLOSE_DURATION_S_MAX: Final = 5.0


class CannotConnect(ConnectionLost):
    """No bus answers at the other end.

    `is_final`: trying again will not help; the name is unknown, or the certificate not trusted.
    """

    def __init__(self, text: str, is_final: bool) -> None:
        super().__init__(text)
        self.is_final = is_final


class BlockingConnection:
    """One connection, its loop, and the thread that runs it."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="twinbus-client", daemon=True)
        self._connection: BusConnection | None = None
        self._thread.start()

    @classmethod
    def open(cls, connection_string: str) -> Self:
        """Connect; over TLS unless the connection string says `UseDevelopmentEmulator=true`."""
        target = ConnectionString.parse(connection_string)  # a bad one needs no thread
        connection = cls()
        try:
            connection._connect(connection_string, target)
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def is_lost(self) -> bool:
        """Whether calls can no longer succeed: a new connection is needed."""
        connection = self._connection
        return connection is None or connection.error is not None or os.getpid() != self._pid

    def call(self, work: Work[T], timeout_s: float = CALL_DURATION_S_MAX) -> T:
        """Do the work and wait for it; OperationTimeout if it takes too long."""
        return result_of(self.start(work), timeout_s)

    def start(self, work: Work[T]) -> "Future[T]":
        """Begin the work; several pieces begin in the order they were passed."""
        connection = self._connection
        if connection is None or os.getpid() != self._pid:
            raise ConnectionLost("the connection is closed, or another process's")
        return asyncio.run_coroutine_threadsafe(work(connection), self._loop)

    def close(self) -> None:
        """Close the connection, the thread and the loop.  Safe to call twice."""
        if os.getpid() != self._pid or self._loop.is_closed():
            return
        connection, self._connection = self._connection, None
        if connection is not None:
            goodbye = asyncio.run_coroutine_threadsafe(connection.close(), self._loop)
            try:
                goodbye.result(CLOSE_DURATION_S_MAX)
            except (TwinbusError, OSError, TimeoutError):
                pass  # it is gone either way
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_DURATION_S_MAX)

    def _connect(self, connection_string: str, target: ConnectionString) -> None:
        opening = asyncio.run_coroutine_threadsafe(
            BusConnection.open(connection_string), self._loop
        )
        place = target.authority
        try:
            self._connection = opening.result(OPEN_DURATION_S_MAX + CLOSE_DURATION_S_MAX)
        except ConnectionLost as error:
            if error.condition == Unauthorized.amqp_condition:
                raise Unauthorized(f"{place} refused the key of the connection string") from None
            raise
        except TimeoutError:
            opening.cancel()
            raise CannotConnect(f"cannot connect to {place}: no answer in time", False) from None
        except ssl.SSLError as error:
            raise CannotConnect(f"cannot connect to {place} over TLS: {error}", True) from None
        except OSError as error:
            # Names that cannot be looked up are OSErrors of their own kind: socket.gaierror.
            is_final = type(error).__name__ == "gaierror"
            raise CannotConnect(f"cannot connect to {place}: {error}", is_final) from None

    def _run(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            if tasks:
                loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        finally:
            loop.close()


def result_of(work: "Future[T]", timeout_s: float) -> T:
    """Return the work's result, or raise its error."""
    try:
        return work.result(timeout_s)
    except CancelledError:
        raise ConnectionLost("outcome unknown: the connection was closed meanwhile") from None
    except TimeoutError:
        if work.done():
            raise  # the work's own
        work.cancel()
        raise OperationTimeout(f"the bus did not answer within {timeout_s:g} s") from None
