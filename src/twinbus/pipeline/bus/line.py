"""A connection that comes back: work is done on it again until it succeeds or patience ends.

Only what may be done twice is given to `run`.  What the bus refuses for good is raised at once, as
are names that nobody knows and keys that are wrong: waiting would not mend them.
"""

import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, Generic, TypeVar

from twinbus.client.blocking import (
    CALL_DURATION_S_MAX,
    BlockingConnection,
    CannotConnect,
    Work,
    result_of,
)
from twinbus.client.connection import BusConnection
from twinbus.client.connection_string import ConnectionString
from twinbus.client.links import ConnectionLost
from twinbus.client.requests import ManagementNode, ManagementNodes
from twinbus.clock import SystemClock
from twinbus.errors import EntityNotFound, ServiceError, TwinbusError

T = TypeVar("T")
Request = Callable[[ManagementNode], Coroutine[Any, Any, T]]

RETRY_DURATION_S: Final = 60.0  # a server that is started anew is back long before
FIRST_DURATION_S: Final = 10.0  # nobody has ever answered: more likely a wrong port
_PAUSE_S_MIN: Final = 0.05
_PAUSE_S_MAX: Final = 2.0


class Patience:
    """How long to try again, with growing pauses."""

    def __init__(self, duration_s: float) -> None:
        self._clock = SystemClock()
        self._end_ms = self._clock.now().mono_ms + duration_s * 1_000
        self._pause_s = _PAUSE_S_MIN

    def pause(self, error: TwinbusError) -> None:
        """Wait a while, or raise the error: it is worth no more time, or there is none left."""
        end_ms = self._clock.now().mono_ms + self._pause_s * 1_000
        if not may_pass(error) or end_ms > self._end_ms:
            raise error
        time.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, _PAUSE_S_MAX)


def may_pass(error: TwinbusError) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, CannotConnect):
        return not error.is_final
    if isinstance(error, ServiceError):
        # An error without a kind of its own is amqp:internal-error: a part of the bus is down.
        return error.retryable or type(error) is ServiceError
    return isinstance(error, ConnectionLost)


class NamespaceConnection:
    """The connection to one namespace.  Any thread may use it."""

    def __init__(self, connection_string: str) -> None:
        self.authority = ConnectionString.parse(connection_string).authority
        self._connection_string = connection_string
        self._connection: BlockingConnection | None = None
        self._was_open = False
        self._lock = threading.Lock()
        # Used by the loop's thread alone, like the links themselves.
        self._nodes: ManagementNodes | None = None

    def connection(self) -> BlockingConnection:
        """A living connection, a new one if need be; raises why there is none, at once."""
        with self._lock:
            connection = self._connection
            if connection is None or connection.is_lost:
                if connection is not None:
                    connection.close()
                connection = BlockingConnection.open(self._connection_string)
                self._connection = connection
                self._was_open = True
            return connection

    def open(self) -> None:
        """Connect, and learn early if that is not possible."""
        patience = self.patience()
        while True:
            try:
                self.connection()
                return
            except TwinbusError as error:
                patience.pause(error)

    def product(self) -> str | None:
        """What the bus calls itself; None if it does not say."""

        async def ask(connection: BusConnection) -> str | None:
            return connection.product

        return self.run(ask)

    def patience(self) -> Patience:
        return Patience(RETRY_DURATION_S if self._was_open else FIRST_DURATION_S)

    def run(self, work: Work[T], timeout_s: float = CALL_DURATION_S_MAX) -> T:
        """Do the work, again if the connection is lost or the bus is busy."""
        patience = self.patience()
        while True:
            try:
                return self.connection().call(work, timeout_s)
            except TwinbusError as error:
                patience.pause(error)

    def begin(self, work: Work[T]) -> "Begun[T]":
        """As `run`, but only begin it."""
        return Begun(self, work)

    def request(self, path: str, ask: Request[T]) -> Work[T]:
        """The work of asking an entity's $management."""

        async def work(connection: BusConnection) -> T:
            node = None
            try:
                node = await self.node(connection, path)
                return await ask(node)
            except ServiceError as error:
                if isinstance(error, EntityNotFound) and node is not None:
                    node.close()  # one that is made anew under this name has other links
                raise named(error, path) from None

        return work

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    async def node(self, connection: BusConnection, path: str) -> ManagementNode:
        """An entity's $management; called in the loop's thread."""
        nodes = self._nodes
        if nodes is None or nodes.connection is not connection:
            nodes = self._nodes = ManagementNodes(connection)
        return await nodes.get(path)


class Begun(Generic[T]):
    """Work that is under way while its owner does something else."""

    def __init__(self, line: NamespaceConnection, work: Work[T]) -> None:
        self._line = line
        self._work = work
        self._future: Future[T] | None = None
        try:
            self._future = line.connection().start(work)
        except TwinbusError:
            pass  # `result` tries again, and tells why it cannot be done

    def result(self) -> T:
        """Wait for it; what may pass is tried again from the beginning."""
        if self._future is not None:
            try:
                return result_of(self._future, CALL_DURATION_S_MAX)
            except TwinbusError as error:
                if not may_pass(error):
                    raise
        return self._line.run(self._work)

    def cancel(self) -> None:
        """Nobody wants it any more."""
        if self._future is not None:
            self._future.cancel()


def named(error: ServiceError, path: str) -> ServiceError:
    """The error with the entity's name in its text."""
    text = str(error)
    if path.lower() in text.lower():
        return error
    return type(error)(f"'{path[:64]}': {text}")
