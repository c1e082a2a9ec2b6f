"""The stores of one broker process: opening, serving, closing, failing; each for itself.

No asyncio here: a `Runner` opens stores and runs their brokers (worker.py, or a test by hand), and
somebody calls `tick` a few times a second.  A store that fails takes nobody along: the gateway is
told, everything of it is dropped, and the others go on.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

from twinbus.broker.broker import Broker
from twinbus.broker.remote.store_session import Say, StoreSession
from twinbus.clock import Clock
from twinbus.entities.commands import Command, Listed, Reply
from twinbus.errors import DirectoryInUse, StorageError
from twinbus.links.remote.codec import decode_command
from twinbus.links.remote.operations import (
    CLOSE_STORE,
    CLOSED,
    COMMAND_MIN,
    FAULT,
    OPEN_STORE,
    OPENED,
    STORE_FAILED,
    Operation,
)
from twinbus.links.remote.results import encode_listed
from twinbus.storage.store import Store

# The process that had a store is killed, and its lock goes with it; that takes a moment.
IN_USE_MS_MAX: Final = 5_000


class Shell(Protocol):
    """What runs the broker of one store."""

    @property
    def broker(self) -> Broker: ...

    def close(self, then: Callable[[], None]) -> None:
        """Make durable what was decided, give the directory back, then call."""


class Runner(Protocol):
    """The world around a host."""

    def open_store(self, number: int, path: str, then: "Opened") -> None:
        """Recover a store, which takes a while; not on the loop."""

    def run_store(
        self,
        number: int,
        store: Store,
        on_replies: Callable[[list[Reply]], None],
        on_failure: Callable[[BaseException], None],
    ) -> Shell:
        """Run a broker on it from now on."""

    def set_fault(self, number: int, plan: Any) -> None:
        """Let a store's disk go wrong as planned, from now on."""

    def recent_log(self) -> list[str]:
        """The newest lines of the log."""


Opened = Callable[[Store | Exception], None]


class Stores:
    """All stores of this process."""

    def __init__(self, runner: Runner, say: Say, is_full: Callable[[], bool], clock: Clock) -> None:
        self._runner = runner
        self._say = say
        self._is_full = is_full
        self._clock = clock
        self._stores: dict[int, StoreSession] = {}
        self._shells: dict[int, Shell] = {}
        self._opening: dict[int, Opening] = {}
        self._closing: dict[int, StoreSession] = {}

    @property
    def shells(self) -> dict[int, Shell]:
        """Of the stores that are open."""
        return self._shells

    @property
    def is_empty(self) -> bool:
        return not (self._stores or self._opening or self._closing)

    # -- what the gateway asks ---------------------------------------------------------------------

    def received(self, operations: list[Operation]) -> None:
        """Do these, in this order.  Commands of a store go to its broker together."""
        commands: list[Command] = []
        last: StoreSession | None = None
        talked: dict[int, StoreSession] = {}
        for operation in operations:
            code: int = operation[0]
            store = self._stores.get(operation[1])
            if commands and last is not None and (store is not last or code < COMMAND_MIN):
                self._attempt(last, commands, None)
                commands = []
            last = store
            if code in (OPEN_STORE, CLOSE_STORE, FAULT):
                self._administer(operation)
            elif store is None:
                continue  # it has failed, and the gateway is about to read of it
            elif code >= COMMAND_MIN:
                commands.append(decode_command(operation))
                talked[store.number] = store
            else:
                self._attempt(store, [], operation)
        if commands and last is not None:
            self._attempt(last, commands, None)
        for number, store in talked.items():
            if number in self._stores:
                # One socket is one talker: what came in one frame need not wait for more.
                store.broker.turn_if_alone(self)

    def _attempt(
        self, store: StoreSession, commands: list[Command], operation: Operation | None
    ) -> None:
        if self._stores.get(store.number) is not store:
            return
        try:
            if operation is None:
                store.submit(commands)
            else:
                store.handle(operation)
        except StorageError as error:
            self.fail(store.number, error)

    def _administer(self, operation: Operation) -> None:
        code, number = operation[0], operation[1]
        if code == OPEN_STORE:
            self._open(number, operation[2])
        elif code == CLOSE_STORE:
            self.close(number)
        else:
            self._runner.set_fault(number, operation[2])

    def tick(self) -> None:
        """Time has passed: try again what could not be opened."""
        for opening in list(self._opening.values()):
            opening.try_again()

    def resume(self) -> None:
        """The socket has room again."""
        for store in list(self._stores.values()):
            store.resume()

    # -- opening -----------------------------------------------------------------------------------

    def _open(self, number: int, path: str) -> None:
        if number in self._stores or number in self._opening:
            raise AssertionError(f"the store {number} is to be opened twice")
        deadline_ms = self._clock.now().mono_ms + IN_USE_MS_MAX
        opening = Opening(self, self._runner, number, path, deadline_ms)
        self._opening[number] = opening
        opening.begin()

    def open_ended(self, number: int, result: Store | Exception) -> bool:
        """An attempt is over; returns whether there is to be another."""
        opening = self._opening[number]
        if isinstance(result, Store):
            del self._opening[number]
            self._run(number, result)
        elif isinstance(result, DirectoryInUse) and self._clock.now().mono_ms < opening.deadline_ms:
            return True
        else:
            del self._opening[number]
            self._say_failed(number, result)
        return False

    def _run(self, number: int, store: Store) -> None:
        hosted = StoreSession(number, self._say, self._is_full, self._clock)
        failure = Failure(self, number)
        first_grant = store.grants.next
        shell = self._runner.run_store(number, store, hosted.replied, failure.happened)
        hosted.run_by(shell.broker)
        self._stores[number] = hosted
        self._shells[number] = shell
        listed = [
            Listed(queue.entity_id, queue.kind, queue.name, queue.description)
            for queue in store.entities.values()
        ]
        self._say((OPENED, number, encode_listed(listed), first_grant))

    # -- closing and failing -----------------------------------------------------------------------

    def close(self, number: int) -> None:
        """Finish what was decided, answer for it, and give the store back."""
        store = self._stores.pop(number, None)
        if store is None:
            return  # it has failed meanwhile, and that was told
        self._closing[number] = store
        store.close_receivers()
        self._shells.pop(number).close(Closing(self, number).done)

    def close_all(self) -> None:
        for number in list(self._stores):
            self.close(number)

    def closed(self, number: int) -> None:
        store = self._closing.pop(number, None)
        if store is not None:
            store.say((CLOSED, number))
            store.give_up()

    def fail(self, number: int, error: BaseException) -> None:
        """A store is of no use any more.  The process goes on with the others."""
        store = self._stores.pop(number, None)
        shell = self._shells.pop(number, None)
        if store is None:
            store = self._closing.pop(number, None)
        if store is None:
            return
        store.give_up()
        self._say_failed(number, error)
        if shell is not None:
            shell.close(_nothing)

    def _say_failed(self, number: int, error: BaseException) -> None:
        text = str(error) or type(error).__name__
        self._say((STORE_FAILED, number, text, self._runner.recent_log()))


class Opening:
    """A store on its way up."""

    def __init__(
        self, host: Stores, runner: Runner, number: int, path: str, deadline_ms: int
    ) -> None:
        self._host = host
        self._runner = runner
        self._number = number
        self._path = path
        self.deadline_ms = deadline_ms  # for a directory that is in use
        self._is_waiting = False

    def begin(self) -> None:
        self._is_waiting = False
        self._runner.open_store(self._number, self._path, self._ended)

    def _ended(self, result: Store | Exception) -> None:
        self._is_waiting = self._host.open_ended(self._number, result)

    def try_again(self) -> None:
        if self._is_waiting:
            self.begin()


class Failure:
    """Whom the broker of a store tells that it has failed."""

    def __init__(self, host: Stores, number: int) -> None:
        self._host = host
        self._number = number

    def happened(self, error: BaseException) -> None:
        self._host.fail(self._number, error)


class Closing:
    """Whom the broker of a store tells that it has been closed."""

    def __init__(self, host: Stores, number: int) -> None:
        self._host = host
        self._number = number

    def done(self) -> None:
        self._host.closed(self._number)


def _nothing() -> None:
    """The gateway has been told already."""
